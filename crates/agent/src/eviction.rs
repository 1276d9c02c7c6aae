//! Pods that have to go because of what they take of the node.

use std::sync::Arc;

use krablet_core::local_storage::{self, EVICTED, EVICTION_GRACE, Exceeded};
use krablet_core::worker::{KillRequest, Stage};
use krablet_events::Subject;
use krablet_pod::{PodRef, PodUid};
use tokio::sync::mpsc;
use tracing::info;

use crate::sync_loop::SyncLoop;

#[cfg(test)]
mod tests;

/// Who finds a pod over its limit waits until the loop has heard of the one before.
const WAITING: usize = 8;

/// A pod that was found over its limit.
#[derive(Clone, Debug)]
pub struct Eviction {
    pub pod: PodUid,
    pub why: Exceeded,
}

pub(crate) fn channel() -> (mpsc::Sender<Eviction>, mpsc::Receiver<Eviction>) {
    mpsc::channel(WAITING)
}

impl SyncLoop {
    /// A pod that ends already goes on doing so.
    pub(crate) fn evict(&mut self, eviction: &Eviction) {
        let uid = &eviction.pod;
        if self.workers.stage(uid) != Some(Stage::Sync) {
            return;
        }
        let Some(pod) = self.workers.spec(uid).cloned() else {
            return;
        };
        let Exceeded { signal, message } = &eviction.why;
        let pod_ref = PodRef::of(&pod);
        info!(pod = %pod_ref, podUID = %uid, message, "Evicting pod");
        self.parts.accounts.evicted(signal);
        let subject = Subject::Pod(pod_ref);
        self.parts
            .recorder
            .warning(subject, EVICTED, message.clone());
        self.end(
            &pod,
            KillRequest {
                grace: Some(EVICTION_GRACE),
                evicted: true,
                status: Some(Arc::new(local_storage::evicted(message))),
                ..KillRequest::default()
            },
        );
    }
}
