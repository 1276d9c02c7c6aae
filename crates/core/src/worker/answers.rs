//! What others ask of the workers.

use std::sync::Arc;

use krablet_pod::PodUid;
use krablet_pod::api::Pod;

use super::{PodWorkers, Record, Stage};

/// Until the desired set was complete once, an unknown pod may be running.
impl PodWorkers {
    pub fn stage(&self, uid: &PodUid) -> Option<Stage> {
        self.records.get(uid).map(|r| r.stage)
    }

    /// The spec a worker last took up, or is about to.
    pub fn spec(&self, uid: &PodUid) -> Option<&Arc<Pod>> {
        self.records.get(uid).and_then(Record::spec)
    }

    pub fn is_known(&self, uid: &PodUid) -> bool {
        self.records.contains_key(uid)
    }

    pub fn uids(&self) -> impl Iterator<Item = &PodUid> {
        self.records.keys()
    }

    /// Not terminating yet: counts against the node's capacity and may start containers.
    pub fn is_termination_requested(&self, uid: &PodUid) -> bool {
        self.records
            .get(uid)
            .is_some_and(Record::termination_requested)
    }

    /// Sandboxes and volumes may go.
    pub fn may_remove_runtime(&self, uid: &PodUid) -> bool {
        match self.records.get(uid) {
            Some(record) => record.is_terminated(),
            None => self.synced,
        }
    }

    /// Dead containers and logs may go.
    pub fn may_remove_content(&self, uid: &PodUid) -> bool {
        match self.records.get(uid) {
            Some(r) => r.evicted || (r.deleted && r.is_terminated()),
            None => self.synced,
        }
    }
}
