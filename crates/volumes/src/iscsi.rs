//! Sessions with iSCSI targets, opened and closed by the host's `iscsiadm`.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use krablet_linux::{Files, Tools};

use crate::address::{Address, Portal};
use crate::chap::Chap;
use crate::error::SetUpError;
use crate::tool::{Failed, try_run};

const DEADLINE: Duration = Duration::from_secs(60);
const TOOL: &str = "iscsiadm";
/// What the tool ends with when there is a session already.
const SESSION_EXISTS: i32 = 15;
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
            // Tells that the tool is there and knows the interface.
            let show = ["-m", "iface", "-I", way.interface, "-o", "show"].map(str::to_owned);
            let shown = self.run(&show).await;
            shown.map_err(|failed| SetUpError::Attach(failed.status))?;
        }
        let mut last = None;
        for way in ways {
            if let Err(why) = self.log_in(way, chap).await {
                last = Some(why);
            }
        }
        Ok(last)
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
    /// target's record goes too, and that of the portal if it has passwords in it.
    pub async fn close(&self, address: &Address, left: &BTreeSet<String>, portal_is_told: bool) {
        if address.shares_target(left) {
            return;
        }
        for way in address.ways() {
            let portal = portal_is_told.then(|| way.discovery("-o delete"));
            let steps = [way.node("--logout"), way.node("-o delete")];
            for arguments in steps.into_iter().chain(portal) {
                let Err(failed) = self.run(&arguments).await else {
                    continue;
                };
                if !failed.code.is_some_and(|c| NOTHING_THERE.contains(&c)) {
                    tracing::warn!(portal = way.portal, err = %failed.status, "Could not end a session of iSCSI");
                }
            }
        }
    }

    async fn run(&self, arguments: &[String]) -> Result<String, Failed> {
        try_run(&*self.tools, TOOL, arguments, DEADLINE).await
    }
}
