//! Static pods of one full name take turns: at most one UID holds the name, the others wait in the
//! order in which they arrived. An edited manifest gets a new UID, so the new pod starts only when
//! the old one is fully torn down. A pod that was found running without a config holds its name
//! too, until it has ended: it may be the predecessor, left by an earlier agent.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use krablet_pod::{FullName, PodUid};

#[derive(Debug, Default)]
pub(super) struct StaticNames {
    holders: BTreeMap<FullName, BTreeSet<PodUid>>,
    waiting: BTreeMap<FullName, VecDeque<PodUid>>,
}

impl StaticNames {
    pub(super) fn wait(&mut self, name: &FullName, uid: &PodUid) {
        let queue = self.waiting.entry(name.clone()).or_default();
        if !queue.contains(uid) {
            queue.push_back(uid.clone());
        }
    }

    /// Takes the name for `uid` if nobody holds it and `uid` is the first waiter that still wants
    /// to run.
    pub(super) fn take(
        &mut self,
        name: &FullName,
        uid: &PodUid,
        wants_to_run: impl Fn(&PodUid) -> bool,
    ) -> bool {
        if let Some(holders) = self.holders.get(name) {
            return holders.contains(uid);
        }
        let Some(queue) = self.waiting.get_mut(name) else {
            return false;
        };
        while queue.front().is_some_and(|w| !wants_to_run(w)) {
            queue.pop_front();
        }
        if queue.front() != Some(uid) {
            return false;
        }
        queue.pop_front();
        if queue.is_empty() {
            self.waiting.remove(name);
        }
        self.occupy(name, uid);
        true
    }

    /// Holds the name whoever else does: the pod is there already.
    pub(super) fn occupy(&mut self, name: &FullName, uid: &PodUid) {
        let holders = self.holders.entry(name.clone()).or_default();
        holders.insert(uid.clone());
    }

    /// Gives up whatever place `uid` has; returns those who may now be next.
    pub(super) fn release(&mut self, name: &FullName, uid: &PodUid) -> Vec<PodUid> {
        if let Some(holders) = self.holders.get_mut(name) {
            holders.remove(uid);
            if holders.is_empty() {
                self.holders.remove(name);
            }
        }
        let Some(queue) = self.waiting.get_mut(name) else {
            return Vec::new();
        };
        queue.retain(|w| w != uid);
        if queue.is_empty() {
            self.waiting.remove(name);
            return Vec::new();
        }
        queue.iter().cloned().collect()
    }
}
