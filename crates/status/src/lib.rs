//! The statuses of pods: what this node says of each. Every change goes through the accept rules of
//! the core, so a status never goes back; readers get snapshots and a bell that rings on change. The
//! [`sender`] brings them to the API server.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use jiff::Timestamp;
use krablet_core::restart::RestartGates;
use krablet_core::status::{self, AcceptInputs};
use krablet_pod::api::{Pod, PodSpec, PodStatus};
use krablet_pod::observed::ObservedPod;
use krablet_pod::{ContainerId, PodRef, PodUid, marks, trim};
use tokio::sync::watch;
use tracing::error;

pub mod sender;

/// A status as it stands, with the number of changes it has seen.
#[derive(Clone, Debug)]
pub struct Standing {
    pub status: Arc<PodStatus>,
    /// Grows with each accepted change of this pod.
    pub version: u64,
    /// The pod has ended and released what it held; its object may be deleted.
    pub finished: bool,
}

/// Clones share one store.
#[derive(Clone)]
pub struct StatusStore {
    standings: Arc<Mutex<Standings>>,
    bell: watch::Sender<u64>,
    gates: RestartGates,
    mirror: Option<MirrorOf>,
}

/// What changed since somebody last asked.
#[derive(Debug)]
pub struct News {
    /// To be asked with next time.
    pub seen: u64,
    pub changed: Vec<(PodUid, Standing)>,
    /// Some pods were forgotten.
    pub forgot: bool,
}

/// The statuses in the order of the pods, and the pods in the order of their last changes.
#[derive(Default)]
struct Standings {
    of: BTreeMap<PodUid, (Standing, u64)>,
    order: BTreeMap<u64, PodUid>,
    changes: u64,
    last_forgot: u64,
}

impl Standings {
    fn get(&self, uid: &PodUid) -> Option<&Standing> {
        self.of.get(uid).map(|(standing, _)| standing)
    }

    fn insert(&mut self, uid: PodUid, standing: Standing) {
        self.changes += 1;
        self.order.insert(self.changes, uid.clone());
        if let Some((_, before)) = self.of.insert(uid, (standing, self.changes)) {
            self.order.remove(&before);
        }
    }

    fn retain(&mut self, keep: impl Fn(&PodUid) -> bool) {
        let before = self.of.len();
        let order = &mut self.order;
        self.of.retain(|uid, (_, change)| {
            let kept = keep(uid);
            if !kept {
                order.remove(change);
            }
            kept
        });
        if self.of.len() < before {
            self.changes += 1;
            self.last_forgot = self.changes;
        }
    }
}

/// The mirror pod of a static pod, as the API server has it.
pub type MirrorOf = Arc<dyn Fn(&PodRef) -> Option<Arc<Pod>> + Send + Sync>;

impl StatusStore {
    pub fn new(gates: RestartGates) -> Self {
        Self {
            standings: Arc::default(),
            bell: watch::Sender::new(0),
            gates,
            mirror: None,
        }
    }

    /// What a mirror pod says counts where this agent has not said anything yet.
    pub fn with_mirrors(self, mirror: MirrorOf) -> Self {
        Self {
            mirror: Some(mirror),
            ..self
        }
    }

    pub fn get(&self, uid: &PodUid) -> Option<Standing> {
        self.with(|s| s.get(uid).cloned())
    }

    pub fn status(&self, uid: &PodUid) -> Option<Arc<PodStatus>> {
        self.get(uid).map(|s| s.status)
    }

    pub fn all(&self) -> BTreeMap<PodUid, Standing> {
        let clone =
            |(uid, (standing, _)): (&PodUid, &(Standing, u64))| (uid.clone(), standing.clone());
        self.with(|s| s.of.iter().map(clone).collect())
    }

    pub fn has(&self, uid: &PodUid) -> bool {
        self.with(|s| s.of.contains_key(uid))
    }

    /// What changed since then; everything, if asked with 0.
    pub fn news(&self, since: u64) -> News {
        self.with(|s| {
            let changed = s.order.range(since + 1..).filter_map(|(_, uid)| {
                let standing = s.get(uid)?.clone();
                Some((uid.clone(), standing))
            });
            News {
                seen: s.changes,
                changed: changed.collect(),
                forgot: s.last_forgot > since,
            }
        })
    }

    /// Rings on every accepted change; the number only tells that something changed.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.bell.subscribe()
    }

    /// Replaces a status by what `generate` makes of the one that stands. True if it changed. Nobody
    /// else changes the status meanwhile, so `generate` must be quick and must not come back here.
    pub fn update(
        &self,
        pod: &Pod,
        now: Timestamp,
        generate: impl FnOnce(Option<&PodStatus>) -> PodStatus,
    ) -> bool {
        self.change(pod, now, false, |old| Some(generate(old)))
    }

    /// The final word on a pod that has ended.
    pub fn terminate(&self, pod: &Pod, now: Timestamp) -> bool {
        let empty = PodStatus::default();
        self.change(pod, now, true, |old| {
            let base = old.or(pod.status.as_ref()).unwrap_or(&empty);
            Some(status::terminate(base, pod))
        })
    }

    /// A readiness verdict, ahead of the sync that will confirm it.
    pub fn set_readiness(&self, pod: &Pod, id: &ContainerId, ready: bool, now: Timestamp) -> bool {
        let change = |old: Option<&PodStatus>| status::with_readiness(old?, pod, id, ready);
        self.change(pod, now, false, change)
    }

    /// Ends of containers that were killed to be started again, ahead of the sync that would tell of
    /// the instances after them.
    pub fn set_ends(
        &self,
        pod: &Pod,
        seen: &ObservedPod,
        runtime_name: &str,
        now: Timestamp,
    ) -> bool {
        let empty = PodSpec::default();
        let spec = pod.spec.as_ref().unwrap_or(&empty);
        let change =
            |old: Option<&PodStatus>| status::with_ends(old?, spec, seen, runtime_name, self.gates);
        self.change(pod, now, false, change)
    }

    /// A startup verdict, ahead of the sync that will confirm it.
    pub fn set_started(&self, pod: &Pod, id: &ContainerId, started: bool, now: Timestamp) -> bool {
        let change = |old: Option<&PodStatus>| status::with_started(old?, id, started);
        self.change(pod, now, false, change)
    }

    /// Forgets the pods that are not to be kept.
    pub fn retain(&self, keep: impl Fn(&PodUid) -> bool) {
        self.with(|s| s.retain(keep));
    }

    fn change(
        &self,
        pod: &Pod,
        now: Timestamp,
        terminate: bool,
        make: impl FnOnce(Option<&PodStatus>) -> Option<PodStatus>,
    ) -> bool {
        let pod_ref = PodRef::of(pod);
        let uid = pod_ref.uid.clone();
        let mirror = match marks::is_static(pod) {
            true => self.mirror.as_ref().and_then(|mirror| mirror(&pod_ref)),
            false => None,
        };
        let mirror = mirror.as_ref().and_then(|m| m.status.as_ref());
        let changed = self.with(|standings| {
            let old = standings.get(&uid);
            let Some(new) = make(old.map(|s| &*s.status).or(mirror)) else {
                return false;
            };
            let inputs = AcceptInputs {
                pod,
                cached: old.map(|s| &*s.status),
                mirror,
                now,
                terminate,
                gates: self.gates,
            };
            let accepted = status::accept(&inputs, new);
            if let Some(why) = accepted.refused {
                error!(pod = %pod_ref, podUID = %uid, err = why, "Status update on pod aborted");
            }
            let finished = terminate || old.is_some_and(|s| s.finished);
            let changed = accepted.changed || old.is_none_or(|s| s.finished != finished);
            if changed {
                let mut status = accepted.status;
                trim(&mut status);
                let standing = Standing {
                    status: Arc::new(status),
                    version: old.map_or(1, |s| s.version + 1),
                    finished,
                };
                standings.insert(uid, standing);
            }
            changed
        });
        if changed {
            self.bell.send_modify(|n| *n += 1);
        }
        changed
    }

    fn with<T>(&self, f: impl FnOnce(&mut Standings) -> T) -> T {
        f(&mut self
            .standings
            .lock()
            .unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use krablet_pod::api::{PodCondition, PodSpec};

    fn pod() -> Pod {
        let mut pod = Pod::default();
        pod.metadata.uid = Some("u".into());
        pod.spec = Some(PodSpec::default());
        pod
    }

    fn phase(phase: &str) -> PodStatus {
        PodStatus {
            phase: Some(phase.into()),
            ..PodStatus::default()
        }
    }

    #[test]
    fn versions_count_changes_and_the_bell_rings_for_them_alone() {
        let store = StatusStore::new(RestartGates::default());
        let mut bell = store.changes();
        let now = Timestamp::UNIX_EPOCH;
        assert!(store.update(&pod(), now, |_| phase("Pending")));
        assert!(bell.has_changed().unwrap());
        bell.mark_unchanged();
        assert!(!store.update(&pod(), now, |_| phase("Pending")));
        assert!(!bell.has_changed().unwrap());
        assert!(store.update(&pod(), now, |_| phase("Running")));
        assert_eq!(store.get(&"u".into()).unwrap().version, 2);
    }

    #[test]
    fn what_stands_takes_no_more_room_than_it_needs() {
        let store = StatusStore::new(RestartGates::default());
        let mut status = phase("Running");
        let mut conditions = Vec::with_capacity(64);
        conditions.push(PodCondition::default());
        status.conditions = Some(conditions);
        store.update(&pod(), Timestamp::UNIX_EPOCH, |_| status);
        let standing = store.status(&"u".into()).unwrap();
        let conditions = standing.conditions.as_ref().unwrap();
        assert_eq!((conditions.len(), conditions.capacity()), (1, 1));
    }

    #[test]
    fn the_last_word_finishes_a_pod_and_stays() {
        let store = StatusStore::new(RestartGates::default());
        let now = Timestamp::UNIX_EPOCH;
        store.update(&pod(), now, |_| phase("Running"));
        assert!(store.terminate(&pod(), now));
        assert!(store.get(&"u".into()).unwrap().finished);
        store.update(&pod(), now, |_| phase("Failed"));
        assert!(store.get(&"u".into()).unwrap().finished);
        store.retain(|_| false);
        assert!(store.all().is_empty());
    }

    #[test]
    fn news_are_what_changed_since() {
        let named = |uid: &str| {
            let mut pod = pod();
            pod.metadata.uid = Some(uid.into());
            pod
        };
        let store = StatusStore::new(RestartGates::default());
        let now = Timestamp::UNIX_EPOCH;
        let told = |since| {
            let News {
                seen,
                changed,
                forgot,
            } = store.news(since);
            let uids: Vec<String> = changed.iter().map(|(uid, _)| uid.to_string()).collect();
            (seen, uids.join(" "), forgot)
        };
        assert_eq!(told(0), (0, String::new(), false));
        for uid in ["a", "b", "c"] {
            store.update(&named(uid), now, |_| phase("Pending"));
        }
        let (seen, all, _) = told(0);
        assert_eq!(all, "a b c");
        store.update(&named("a"), now, |_| phase("Running"));
        assert_eq!(told(seen), (seen + 1, "a".to_owned(), false));
        assert_eq!(told(0).1, "b c a");
        store.retain(|uid| uid.to_string() != "a");
        assert_eq!(told(seen + 1), (seen + 2, String::new(), true));
        assert_eq!(told(seen + 2), (seen + 2, String::new(), false));
        assert_eq!(told(0).1, "b c");
    }

    #[test]
    fn verdicts_about_unknown_pods_change_nothing() {
        let store = StatusStore::new(RestartGates::default());
        assert!(!store.set_readiness(&pod(), &"c".into(), true, Timestamp::UNIX_EPOCH));
        assert!(store.all().is_empty());
    }
}
