//! The pods the sources want, by UID.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use krablet_pod::api::Pod;
use krablet_pod::marks::PodSource;
use krablet_pod::{PodRef, PodUid};

/// A read-only look at the desired pods. The sync loop alone changes them.
#[derive(Clone, Default)]
pub struct DesiredPods(Arc<Mutex<Snapshot>>);

#[derive(Default)]
struct Snapshot {
    pods: BTreeMap<PodUid, Arc<Pod>>,
    ready: BTreeSet<PodSource>,
}

impl DesiredPods {
    pub fn get(&self, uid: &PodUid) -> Option<Arc<Pod>> {
        self.with(|s| s.pods.get(uid).cloned())
    }

    pub fn all(&self) -> Vec<Arc<Pod>> {
        self.with(|s| s.pods.values().cloned().collect())
    }

    /// Whether each of these sources has delivered at least one set.
    pub fn sources_ready(&self, sources: &BTreeSet<PodSource>) -> bool {
        self.with(|s| sources.is_subset(&s.ready))
    }

    pub(crate) fn contains(&self, uid: &PodUid) -> bool {
        self.with(|s| s.pods.contains_key(uid))
    }

    pub(crate) fn put(&self, pod: &Arc<Pod>) {
        self.with(|s| s.pods.insert(PodRef::of(pod).uid, pod.clone()));
    }

    pub(crate) fn remove(&self, uid: &PodUid) {
        self.with(|s| s.pods.remove(uid));
    }

    pub(crate) fn source_spoke(&self, source: PodSource) {
        self.with(|s| s.ready.insert(source));
    }

    fn with<T>(&self, f: impl FnOnce(&mut Snapshot) -> T) -> T {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
