//! Sessions with iSCSI targets, opened and closed by the host's `iscsiadm`.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use krablet_linux::{Files, Tools};

use crate::address::{Address, Initiator, Portal};
use crate::chap::Chap;
use crate::error::SetUpError;
use crate::interface;
use crate::tool::{Failed, try_run};

const DEADLINE: Duration = Duration::from_secs(60);
const TOOL: &str = "iscsiadm";
/// What the tool ends with when there is a session already.
pub(crate) const SESSION_EXISTS: i32 = 15;
/// What it ends with when there is no session, or no record, to do something to.
const NOTHING_THERE: [i32; 2] = [2, 21];

pub(crate) struct Sessions {
    files: Arc<dyn Files>,
    tools: Arc<dyn Tools>,
}

impl Sessions {
    pub fn new(files: Arc<dyn Files>, tools: Arc<dyn Tools>) -> Self {
        Self { files, tools }
    }

    /// Logs in by every way there is. What went wrong with the last that could not be gone, for the device tells
    /// whether that matters.
    pub async fn open(
        &self,
        address: &Address,
        chap: Option<&Chap>,
    ) -> Result<Option<String>, SetUpError> {
        let ways = address.ways();
        if let Some(way) = ways.first() {
            let initiator = address.initiator();
            let known = initiator.map_or(way.interface, |i| &i.like);
            // Tells that the tool is there and knows the interface.
            let shown = self.run(&interface::arguments(known, &["show"])).await;
            let shown = shown.map_err(|failed| SetUpError::Attach(failed.status))?;
            if let Some(initiator) = initiator {
                let made = self.make_interface(way.interface, &shown, initiator).await;
                made.map_err(SetUpError::Attach)?;
            }
        }
        let mut last = None;
        for way in ways {
            if let Err(why) = self.log_in(way, chap).await {
                last = Some(why);
            }
        }
        Ok(last)
    }

    /// An interface like one that is there, but for the node's name. It was recorded before, and may be made again.
    async fn make_interface(
        &self,
        own: &str,
        shown: &str,
        initiator: &Initiator,
    ) -> Result<(), String> {
        let like = &initiator.like;
        if own == like {
            return Err(format!("iscsi: cannot clone iface with same name: {like}"));
        }
        let settings = interface::settings(shown, initiator)
            .map_err(|e| format!("iscsi: failed to parse iface records: {shown} ({e})"))?;
        match self.run(&interface::arguments(own, &["new"])).await {
            Ok(_) => {}
            // It had its settings before anybody logged in by it.
            Err(failed) if failed.code == Some(SESSION_EXISTS) => {
                return self.check_interface(own, initiator).await;
            }
            Err(Failed { status, output, .. }) => {
                return Err(format!(
                    "iscsi: failed to create new iface: {output} ({status})"
                ));
            }
        }
        for (key, value) in settings {
            let update = interface::arguments(own, &["update", "-n", &key, "-v", &value]);
            if let Err(Failed { status, output, .. }) = self.run(&update).await {
                let _ = self.run(&interface::arguments(own, &["delete"])).await;
                return Err(format!(
                    "iscsi: failed to update iface records: {output} ({status}). iface({like}) will be used"
                ));
            }
        }
        Ok(())
    }

    /// Whether an interface that a session goes by is for this disk too: volumes of one name have one, and may want the
    /// node to be different ones.
    async fn check_interface(&self, own: &str, initiator: &Initiator) -> Result<(), String> {
        let shown = self.run(&interface::arguments(own, &["show"])).await;
        let shown = shown.map_err(|Failed { status, output, .. }| {
            format!("iscsi: failed to show iface {own}: {output} ({status})")
        })?;
        let name = interface::initiator_of(&shown).unwrap_or("none");
        match name == initiator.name {
            true => Ok(()),
            false => Err(format!(
                "iscsi: iface {own} is in use with initiator name {name}, and cannot have {}: volumes of one name and portal share it",
                initiator.name
            )),
        }
    }

    async fn log_in(&self, way: Portal<'_>, chap: Option<&Chap>) -> Result<(), String> {
        let (portal, files) = (way.portal, &*self.files);
        // One that is there already is as good.
        let _ = self.run(&way.discovery("-o new")).await;
        if let Some(chap) = chap {
            chap.tell_portal(files, way).await.map_err(|e| {
                format!("iscsi: failed to update discoverydb to portal {portal} error: {e}")
            })?;
        }
        if let Err(failed) = self.run(&way.discovery("--discover")).await {
            let _ = self.run(&way.discovery("-o delete")).await;
            let Failed { status, output, .. } = failed;
            return Err(format!(
                "iscsi: failed to sendtargets to portal {portal} output: {output}, err {status}"
            ));
        }
        if let Some(chap) = chap {
            chap.tell_target(files, way).await.map_err(|e| {
                format!("iscsi: failed to update iscsi node to portal {portal} error: {e}")
            })?;
        }
        match self.run(&way.node("--login")).await {
            Err(failed) if failed.code != Some(SESSION_EXISTS) => {
                let _ = self.run(&way.node("-o delete")).await;
                let Failed { status, output, .. } = failed;
                return Err(format!(
                    "iscsi: failed to attach disk: Error: {output} ({status})"
                ));
            }
            _ => {}
        }
        if let Err(failed) = self.run(&way.started_by_hand()).await {
            tracing::warn!(portal, err = %failed.status, "Could not set a session of iSCSI to be started by hand");
        }
        Ok(())
    }

    /// Logs out, unless another disk of the target is in use: `left` are the directories of those that are. The
    /// target's record goes too, that of the portal if it has passwords in it, and an interface that was made.
    pub async fn close(&self, address: &Address, left: &BTreeSet<String>, portal_is_told: bool) {
        if address.shares_target(left) {
            return;
        }
        let ways = address.ways();
        for way in &ways {
            let portal = portal_is_told.then(|| way.discovery("-o delete"));
            let steps = [way.node("--logout"), way.node("-o delete")];
            for arguments in steps.into_iter().chain(portal) {
                self.end(way, &arguments).await;
            }
        }
        // Volumes of one name share an interface.
        if let (Some(way), Some(own), true) =
            (ways.first(), address.own_interface(), left.is_empty())
        {
            let delete = interface::arguments(own, &["delete"]);
            self.end(way, &delete).await;
        }
    }

    /// What is gone already has ended.
    async fn end(&self, way: &Portal<'_>, arguments: &[String]) {
        let Err(failed) = self.run(arguments).await else {
            return;
        };
        if !failed.code.is_some_and(|c| NOTHING_THERE.contains(&c)) {
            tracing::warn!(portal = way.portal, err = %failed.status, "Could not end a session of iSCSI");
        }
    }

    async fn run(&self, arguments: &[String]) -> Result<String, Failed> {
        try_run(&*self.tools, TOOL, arguments, DEADLINE).await
    }
}
