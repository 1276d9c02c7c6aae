//! The pods the sources want, by UID, and what the API server holds beside them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use krablet_pod::api::Pod;
use krablet_pod::marks::{self, PodSource};
use krablet_pod::{FullName, PodRef, PodUid};
use tokio::sync::watch;

/// A read-only look at the desired pods. The sync loop alone changes them; a step that sees a mirror pod tell of an
/// earlier life says so here, for whoever keeps the mirror pods.
#[derive(Clone)]
pub struct DesiredPods {
    snapshot: Arc<Mutex<Snapshot>>,
    /// Rings when mirror pods may have to follow.
    mirrors_due: watch::Sender<u64>,
    /// Rings when a pod begins to end that nobody wants any more, and when it has ended.
    ends: watch::Sender<u64>,
}

impl Default for DesiredPods {
    fn default() -> Self {
        Self {
            snapshot: Arc::default(),
            mirrors_due: watch::Sender::new(0),
            ends: watch::Sender::new(0),
        }
    }
}

#[derive(Default)]
struct Snapshot {
    pods: BTreeMap<PodUid, Arc<Pod>>,
    ready: BTreeSet<PodSource>,
    /// Mirror pods on the API server, by the name each shares with its static pod.
    mirrors: BTreeMap<FullName, Arc<Pod>>,
    /// Pods that nobody wants any more and that have not ended yet.
    ending: BTreeMap<PodUid, Arc<Pod>>,
    /// Mirror pods that tell of static pods as they were before they were let go: the same manifest
    /// may come back, and then with another life. The UID of the static pod, and of the mirror.
    past: BTreeMap<FullName, (PodUid, PodUid)>,
    /// Pods that were not let in: wanted, and never started.
    refused: BTreeSet<PodUid>,
    /// Of pods that ask for other resources than they are promised: the pod with what it is promised.
    allocated: BTreeMap<PodUid, Arc<Pod>>,
}

/// For everybody.
impl DesiredPods {
    pub fn get(&self, uid: &PodUid) -> Option<Arc<Pod>> {
        self.with(|s| s.pods.get(uid).cloned())
    }

    pub fn all(&self) -> Vec<Arc<Pod>> {
        self.with(|s| s.pods.values().cloned().collect())
    }

    /// All pods, each with the resources it is promised.
    pub fn all_allocated(&self) -> Vec<Arc<Pod>> {
        self.with(|s| {
            let pods = s.pods.iter();
            let allocated = pods.map(|(uid, pod)| s.allocated.get(uid).unwrap_or(pod));
            allocated.cloned().collect()
        })
    }

    /// Images that pods mount as volumes.
    pub fn image_volumes(&self) -> BTreeSet<String> {
        let of = |pod: &Arc<Pod>| {
            let volumes = pod.spec.as_ref().and_then(|s| s.volumes.as_deref());
            let images = volumes.unwrap_or_default().iter();
            let images = images.filter_map(|v| v.image.as_ref()?.reference.clone());
            images.collect::<Vec<_>>()
        };
        self.with(|s| s.pods.values().flat_map(of).collect())
    }

    /// Whether each of these sources has delivered at least one set.
    pub fn sources_ready(&self, sources: &BTreeSet<PodSource>) -> bool {
        self.with(|s| sources.is_subset(&s.ready))
    }

    /// The mirror pod of a static pod.
    pub fn mirror(&self, name: &FullName) -> Option<Arc<Pod>> {
        self.with(|s| s.mirrors.get(name).cloned())
    }

    /// The mirror pod that stands for a static pod as it is now, not for an earlier manifest.
    pub fn mirror_of(&self, uid: &PodUid) -> Option<Arc<Pod>> {
        let pod = self.get(uid).filter(|pod| marks::is_static(pod))?;
        let name = PodRef::of(&pod).full_name();
        let mirror = self.with(|s| {
            let mirror = s.mirrors.get(&name)?;
            let life = (uid.clone(), PodRef::of(mirror).uid);
            (s.past.get(&name) != Some(&life)).then(|| mirror.clone())
        })?;
        krablet_core::mirror::mirrors_well(&mirror, &pod).then_some(mirror)
    }

    pub fn mirrors(&self) -> Vec<Arc<Pod>> {
        self.with(|s| s.mirrors.values().cloned().collect())
    }

    /// Pods that nobody wants any more and that have not ended yet. One that came back meanwhile is also among the
    /// wanted ones: its next life begins when this one has ended.
    pub fn ending_pods(&self) -> Vec<Arc<Pod>> {
        self.with(|s| s.ending.values().cloned().collect())
    }

    /// Rings when a pod begins to end that nobody wants any more, and when it has ended.
    pub fn ends(&self) -> watch::Receiver<u64> {
        self.ends.subscribe()
    }

    pub fn is_refused(&self, uid: &PodUid) -> bool {
        self.with(|s| s.refused.contains(uid))
    }
}

/// For those who keep the mirror pods.
impl DesiredPods {
    /// Rings when a static pod or a mirror pod came, changed or went.
    pub(crate) fn mirrors_due(&self) -> watch::Receiver<u64> {
        self.mirrors_due.subscribe()
    }

    pub(crate) fn statics(&self) -> Vec<Arc<Pod>> {
        let mut pods = self.all();
        pods.retain(|pod| marks::is_static(pod));
        pods
    }

    /// Names of static pods that have not ended though nobody wants them any more.
    pub(crate) fn ending(&self) -> BTreeSet<FullName> {
        self.with(|s| {
            let statics = s.ending.values().filter(|pod| marks::is_static(pod));
            statics.map(|pod| PodRef::of(pod).full_name()).collect()
        })
    }

    /// Mirror pods of static pods that came back and live anew.
    pub(crate) fn mirrors_of_past_lives(&self) -> Vec<PodRef> {
        self.with(|s| {
            let back = s
                .past
                .iter()
                .filter(|(_, (uid, _))| s.pods.contains_key(uid));
            let told = back.filter_map(|(name, (_, mirror))| {
                let held = PodRef::of(s.mirrors.get(name)?);
                (held.uid == *mirror).then_some(held)
            });
            told.collect()
        })
    }

    /// What the API server was seen to hold. The static pod it stands for, if there is one.
    pub(crate) fn put_mirror(&self, mirror: &Arc<Pod>) -> Option<PodUid> {
        let name = PodRef::of(mirror).full_name();
        let of = self.with(|s| {
            s.mirrors.insert(name.clone(), mirror.clone());
            static_of(s, &name)
        });
        self.ring();
        of
    }

    /// The API server does not hold this mirror pod any more.
    pub(crate) fn remove_mirror(&self, mirror: &PodRef) {
        let name = mirror.full_name();
        self.with(|s| {
            let same = |held: &Arc<Pod>| PodRef::of(held).uid == mirror.uid;
            if s.mirrors.get(&name).is_some_and(same) {
                s.mirrors.remove(&name);
                s.past.remove(&name);
            }
        });
        self.ring();
    }
}

fn static_of(snapshot: &Snapshot, name: &FullName) -> Option<PodUid> {
    let pods = snapshot.pods.values().filter(|pod| marks::is_static(pod));
    pods.map(|pod| PodRef::of(pod))
        .find(|pod| pod.full_name() == *name)
        .map(|pod| pod.uid)
}

/// For the sync loop.
impl DesiredPods {
    pub(crate) fn contains(&self, uid: &PodUid) -> bool {
        self.with(|s| s.pods.contains_key(uid))
    }

    pub(crate) fn put(&self, pod: &Arc<Pod>) {
        self.with(|s| s.pods.insert(PodRef::of(pod).uid, pod.clone()));
        if marks::is_static(pod) {
            self.ring();
        }
    }

    /// What a wanted pod is promised.
    pub(crate) fn put_allocated(&self, wanted: &Arc<Pod>, allocated: &Arc<Pod>) {
        let uid = PodRef::of(wanted).uid;
        self.with(|s| match Arc::ptr_eq(wanted, allocated) {
            true => s.allocated.remove(&uid),
            false => s.allocated.insert(uid, allocated.clone()),
        });
    }

    /// The source has let the pod go. `alive` tells whether it has still to be ended.
    pub(crate) fn remove(&self, pod: &Arc<Pod>, alive: bool) {
        let pod_ref = PodRef::of(pod);
        self.with(|s| {
            s.pods.remove(&pod_ref.uid);
            s.refused.remove(&pod_ref.uid);
            s.allocated.remove(&pod_ref.uid);
            let name = pod_ref.full_name();
            if marks::is_static(pod)
                && let Some(mirror) = s.mirrors.get(&name)
            {
                let life = (pod_ref.uid.clone(), PodRef::of(mirror).uid);
                s.past.insert(name, life);
            }
            if alive {
                s.ending.insert(pod_ref.uid.clone(), pod.clone());
            }
        });
        if alive {
            self.ends.send_modify(|n| *n += 1);
        }
        if marks::is_static(pod) {
            self.ring();
        }
    }

    /// A pod whose last life has ended lives again. What its mirror was told since is of the life before.
    pub(crate) fn lives_anew(&self, pod: &Pod) {
        let pod_ref = PodRef::of(pod);
        let name = pod_ref.full_name();
        if !marks::is_static(pod) {
            return;
        }
        self.with(|s| {
            if let Some(mirror) = s.mirrors.get(&name) {
                let life = (pod_ref.uid, PodRef::of(mirror).uid);
                s.past.insert(name, life);
            }
        });
        self.ring();
    }

    /// Nothing of the pod runs any more.
    pub(crate) fn ended(&self, uid: &PodUid) {
        self.retain_ending(|other| other != uid);
    }

    /// Of the pods that have still to be ended, only those that have not.
    pub(crate) fn retain_ending(&self, alive: impl Fn(&PodUid) -> bool) {
        let (mut gone, mut statics) = (false, false);
        self.with(|s| {
            s.ending.retain(|uid, pod| {
                let kept = alive(uid);
                gone |= !kept;
                statics |= !kept && marks::is_static(pod);
                kept
            });
        });
        if gone {
            self.ends.send_modify(|n| *n += 1);
        }
        if statics {
            self.ring();
        }
    }

    pub(crate) fn refuse(&self, uid: &PodUid) {
        self.with(|s| s.refused.insert(uid.clone()));
    }

    /// True if it was the first time.
    pub(crate) fn source_spoke(&self, source: PodSource) -> bool {
        let first = self.with(|s| s.ready.insert(source));
        if first {
            self.ring();
        }
        first
    }
}

impl DesiredPods {
    fn ring(&self) {
        self.mirrors_due.send_modify(|n| *n += 1);
    }

    fn with<T>(&self, f: impl FnOnce(&mut Snapshot) -> T) -> T {
        let mut snapshot = self.snapshot.lock().unwrap_or_else(PoisonError::into_inner);
        f(&mut snapshot)
    }
}
