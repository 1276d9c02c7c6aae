//! Sessions with iSCSI targets, opened and closed by the host's `iscsiadm`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use krablet_linux::{Files, Tools};
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

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
    /// By what is held: a target, or the place where a disk of it is mounted.
    locks: Mutex<BTreeMap<String, Weak<AsyncMutex<()>>>>,
}

impl Sessions {
    pub fn new(files: Arc<dyn Files>, tools: Arc<dyn Tools>) -> Self {
        Self {
            files,
            tools,
            locks: Mutex::default(),
        }
    }

    /// Held while somebody does something to it. Whoever wants a place and its target takes the place first.
    pub async fn alone_with(&self, what: &str) -> OwnedMutexGuard<()> {
        let lock = {
            let mut locks = self.locks.lock().unwrap_or_else(PoisonError::into_inner);
            locks.retain(|_, lock| lock.strong_count() > 0);
            let held = locks.get(what).and_then(Weak::upgrade);
            held.unwrap_or_else(|| {
                let lock = Arc::new(AsyncMutex::new(()));
                locks.insert(what.to_owned(), Arc::downgrade(&lock));
                lock
            })
        };
        lock.lock_owned().await
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

#[cfg(test)]
mod tests {
    use super::*;
    use krablet_linux::fake::{FakeTools, MemoryFiles};

    #[tokio::test]
    async fn who_logs_in_to_a_target_is_alone_and_nothing_is_kept_of_it() {
        let sessions = Sessions::new(
            Arc::new(MemoryFiles::default()),
            Arc::new(FakeTools::default()),
        );
        let held = sessions.alone_with("a").await;
        let again = sessions.alone_with("a");
        let mut again = std::pin::pin!(again);
        assert!(at_once(again.as_mut()).await.is_none());
        drop(sessions.alone_with("b").await);
        drop(held);
        drop(again.await);
        drop(sessions.alone_with("c").await);
        assert_eq!(sessions.locks.lock().unwrap().len(), 1);
    }

    /// What it gives without waiting.
    async fn at_once<F: Future>(mut future: std::pin::Pin<&mut F>) -> Option<F::Output> {
        std::future::poll_fn(|cx| match future.as_mut().poll(cx) {
            std::task::Poll::Ready(output) => std::task::Poll::Ready(Some(output)),
            std::task::Poll::Pending => std::task::Poll::Ready(None),
        })
        .await
    }
}
