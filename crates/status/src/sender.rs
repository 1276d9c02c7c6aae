//! Brings the statuses that stand to the API server. One task takes the newest status of each pod,
//! merges it with what others wrote, and patches what differs; it deletes the object of a pod that
//! is over once its last status is there. What the watch tells of an object is enough to write to it:
//! the object is asked for only when nobody knows whether a write was done.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use jiff::Timestamp;
use krablet_core::status::{self, MergeInputs, Urgency};
use krablet_kube::{Kube, Priority};
use krablet_pod::api::{Pod, PodStatus};
use krablet_pod::{PodRef, PodUid, marks};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tracing::{debug, warn};

use crate::{Standing, StatusStore};

mod deliver;
mod numbers;
mod plan;

use deliver::{End, Job, Landed, deliver};
pub use numbers::{SenderNumbers, SyncDurations};
use plan::{Plan, Settled};

/// What the sender has to know of pods.
pub trait ApiPods: Send + Sync {
    /// The pod's object as the API server was last known to have it, with the resource version it
    /// had then; `None` if the API server does not have it.
    fn pod(&self, uid: &PodUid) -> Option<Arc<Pod>>;

    /// The mirror pod of a static pod, in the same way.
    fn mirror_of(&self, static_uid: &PodUid) -> Option<Arc<Pod>>;

    /// Something of the pod (its own UID, not the mirror's) may still run.
    fn could_have_running_containers(&self, uid: &PodUid) -> bool;
}

#[derive(Clone, Copy, Debug)]
pub struct SenderConfig {
    /// How many statuses are on their way at once.
    pub in_flight: usize,
    /// How often all statuses are compared with the API server's copies, in memory.
    pub audit_period: Duration,
    /// Of every random number the sender draws.
    pub seed: u64,
}

impl Default for SenderConfig {
    fn default() -> Self {
        Self {
            in_flight: 8,
            audit_period: Duration::from_secs(60),
            seed: 0,
        }
    }
}

#[derive(Clone)]
pub struct SenderDeps {
    pub store: StatusStore,
    pub pods: Arc<dyn ApiPods>,
    pub kube: Kube,
    /// The wall-clock time that people will read.
    pub clock: Arc<dyn Fn() -> Timestamp + Send + Sync>,
}

/// What others ask of the sender. Bounded by the pods there are.
#[derive(Default)]
struct Requests {
    compare: BTreeSet<PodUid>,
    reached: bool,
}

/// Clones speak to one sender.
#[derive(Clone)]
pub struct SenderHandle {
    requests: Arc<Mutex<Requests>>,
    bell: Arc<Notify>,
    numbers: Arc<Mutex<SenderNumbers>>,
    undelivered: watch::Receiver<usize>,
}

impl SenderHandle {
    /// The API server's copy of a pod changed, appeared (a mirror pod), or is to be deleted: compare
    /// it, and send what is different. Of a static pod, its own UID. The echo of our own write costs
    /// nothing.
    pub fn reconcile(&self, uid: &PodUid) {
        lock(&self.requests).compare.insert(uid.clone());
        self.bell.notify_one();
    }

    /// The API server answers again: whatever waits for another try is tried at once.
    pub fn reached(&self) {
        lock(&self.requests).reached = true;
        self.bell.notify_one();
    }

    pub fn numbers(&self) -> SenderNumbers {
        *lock(&self.numbers)
    }

    /// How many pods have something to be told.
    pub fn undelivered(&self) -> watch::Receiver<usize> {
        self.undelivered.clone()
    }
}

/// Nobody panics between two writes, so what a poisoned lock guards is still whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub struct Sender {
    config: SenderConfig,
    deps: SenderDeps,
    plan: Plan,
    flights: FuturesUnordered<BoxFuture<'static, Landed>>,
    requests: Arc<Mutex<Requests>>,
    bell: Arc<Notify>,
    numbers: Arc<Mutex<SenderNumbers>>,
    undelivered: watch::Sender<usize>,
    /// Changes of the store that were looked at.
    seen: u64,
    random: StdRng,
}

pub fn build(config: SenderConfig, deps: SenderDeps) -> (Sender, SenderHandle) {
    let undelivered = watch::Sender::new(0);
    let handle = SenderHandle {
        requests: Arc::default(),
        bell: Arc::default(),
        numbers: Arc::default(),
        undelivered: undelivered.subscribe(),
    };
    let sender = Sender {
        config,
        deps,
        plan: Plan::new(config.in_flight),
        flights: FuturesUnordered::new(),
        requests: handle.requests.clone(),
        bell: handle.bell.clone(),
        numbers: handle.numbers.clone(),
        undelivered,
        seen: 0,
        random: StdRng::seed_from_u64(config.seed),
    };
    (sender, handle)
}

impl Sender {
    pub async fn run(mut self) {
        let bell = self.bell.clone();
        let mut changes = self.deps.store.changes();
        self.look_at_news();
        let mut audit = self.next_audit();
        loop {
            self.send_what_is_due();
            self.tell_undelivered();
            let wake = self.plan.next_due().map_or(audit, |due| due.min(audit));
            tokio::select! {
                biased;
                Some(landed) = self.flights.next() => self.land(landed),
                changed = changes.changed() => match changed {
                    Ok(()) => self.look_at_news(),
                    Err(_) => return,
                },
                () = bell.notified() => self.answer_requests(),
                () = tokio::time::sleep_until(wake) => {
                    if Instant::now() >= audit {
                        self.audit();
                        audit = self.next_audit();
                    }
                }
            }
        }
    }

    fn next_audit(&mut self) -> Instant {
        let jitter = self.random.random_range(0.8..1.2);
        Instant::now() + self.config.audit_period.mul_f64(jitter)
    }

    fn tell_undelivered(&self) {
        let now = self.plan.undelivered();
        self.undelivered.send_if_modified(|told| {
            let changed = *told != now;
            *told = now;
            changed
        });
    }

    /// Where the status of a pod goes: a static pod's to its mirror.
    fn target(&self, uid: &PodUid) -> Option<Arc<Pod>> {
        let pods = &self.deps.pods;
        pods.mirror_of(uid)
            .or_else(|| pods.pod(uid).filter(|pod| !marks::is_static(pod)))
    }

    /// The API server's object as far as it is known: as our last write should have left it, until
    /// the watch has caught up. `None` if that cannot be told.
    fn base(&self, uid: &PodUid, target: &Arc<Pod>) -> Option<Arc<Pod>> {
        if self.plan.is_unsure(uid) {
            return None;
        }
        let of_target = |answer: &&Arc<Pod>| answer.metadata.uid == target.metadata.uid;
        let Some(answer) = self.plan.answer(uid).filter(of_target) else {
            // One without a version is remembered from an earlier life, and only in part.
            let known = !resource_version(target).is_empty();
            return known.then(|| target.clone());
        };
        // As soon as the watch has shown what became of the write, that counts.
        let ahead = is_newer(resource_version(answer), resource_version(target))?;
        Some(if ahead { answer } else { target }.clone())
    }

    /// Notes which statuses changed, and forgets pods that are no more.
    fn look_at_news(&mut self) {
        let now = Instant::now();
        let news = self.deps.store.news(self.seen);
        self.seen = news.seen;
        self.plan.unpark();
        if news.forgot {
            self.plan.retain(|uid| self.deps.store.has(uid));
        }
        for (uid, standing) in &news.changed {
            if self.plan.is_news(uid, &standing.status) {
                let urgency = self.urgency(uid, standing);
                self.plan.tell(uid, &standing.status, urgency, now);
            }
        }
    }

    fn urgency(&self, uid: &PodUid, standing: &Standing) -> Urgency {
        let Some(target) = self.target(uid) else {
            return Urgency::Normal;
        };
        let leaving = target.metadata.deletion_timestamp.is_some();
        let base = self.base(uid, &target).unwrap_or(target);
        match standing.finished {
            true => Urgency::Urgent,
            false => status::urgency(base.status.as_ref(), &standing.status, leaving),
        }
    }

    fn answer_requests(&mut self) {
        let requests = std::mem::take(&mut *lock(&self.requests));
        if requests.reached {
            self.plan.reached();
        }
        for uid in &requests.compare {
            let standing = self.deps.store.get(uid);
            if let Some((standing, target)) = standing.zip(self.target(uid)) {
                let version = resource_version(&target);
                let caught_up = self.has_caught_up(uid, version);
                if caught_up {
                    self.plan.forget_answer(uid);
                }
                let settled = self.plan.settled(uid).map(|s| s.resource_version.as_str());
                let known = settled.is_some_and(|s| is_newer(version, s) == Some(false));
                // What stands there since our last word may never have been looked at.
                let echo = known && !caught_up && !self.plan.is_unsure(uid);
                self.compare(uid, &standing, &target, echo);
            }
        }
    }

    /// The watch, at this version, shows what the last answer told, or something newer.
    fn has_caught_up(&self, uid: &PodUid, version: &str) -> bool {
        let answer = self.plan.answer(uid).map(|a| resource_version(a));
        answer.is_some_and(|a| is_newer(a, version) == Some(false))
    }

    /// A watch that is behind our own writes for so long is silent, or does not catch up because the API
    /// server's past is another one now. Which of the two is not known, so neither counts: it is asked.
    fn audit(&mut self) {
        self.look_at_news();
        for (uid, standing) in &self.deps.store.all() {
            if let Some(target) = self.target(uid) {
                if self.plan.settled(uid).is_some_and(|s| is_news(&target, s)) {
                    self.plan.doubt_end(uid);
                }
                let unseen = self.plan.answer(uid).is_some();
                match self.has_caught_up(uid, resource_version(&target)) {
                    true => self.plan.forget_answer(uid),
                    false if unseen => self.plan.doubt(uid),
                    false => {}
                }
                let settled = self.plan.settled(uid).map(|s| s.resource_version.as_str());
                let echo = settled == Some(resource_version(&target)) && !unseen;
                self.compare(uid, standing, &target, echo);
            }
        }
    }

    /// Sends a pod's status anew if the API server's copy of it says something else. `echo`: that
    /// copy tells nothing that was not looked at since our last word.
    fn compare(&mut self, uid: &PodUid, standing: &Standing, target: &Arc<Pod>, echo: bool) {
        if self.is_different(uid, standing, target, echo) {
            let urgency = self.urgency(uid, standing);
            self.plan
                .tell(uid, &standing.status, urgency, Instant::now());
        }
    }

    fn is_different(
        &self,
        uid: &PodUid,
        standing: &Standing,
        target: &Arc<Pod>,
        echo: bool,
    ) -> bool {
        let settled = self.plan.settled(uid);
        let Some(settled) = settled.filter(|_| !self.is_first(uid, target)) else {
            return true;
        };
        if !Arc::ptr_eq(&settled.status, &standing.status) {
            return true;
        }
        // A last phase that was held back goes when the containers have ended.
        if echo && !settled.held_back {
            return false;
        }
        let empty = PodStatus::default();
        let api = target.status.as_ref().unwrap_or(&empty);
        let merged = status::merge_for_api(&MergeInputs {
            api_pod: target,
            ours: &standing.status,
            could_have_running_containers: self.deps.pods.could_have_running_containers(uid),
            now: (self.deps.clock)(),
        });
        status::needs_update(api, &merged) || status::can_be_deleted(target, standing.finished)
    }

    fn send_what_is_due(&mut self) {
        let now = Instant::now();
        while let Some(uid) = self.plan.next(now) {
            let Some(standing) = self.deps.store.get(&uid) else {
                self.plan.let_go(&uid);
                continue;
            };
            let Some(target) = self.target(&uid) else {
                self.plan.park(&uid);
                continue;
            };
            if self.is_gone(&uid, &target) {
                self.plan.let_go(&uid);
                continue;
            }
            let urgency = self.urgency(&uid, &standing);
            let job = Job {
                base: self.base(&uid, &target),
                first: self.is_first(&uid, &target),
                could_have_running_containers: self.deps.pods.could_have_running_containers(&uid),
                priority: match urgency {
                    Urgency::Urgent => Priority::Urgent,
                    _ => Priority::Normal,
                },
                now: (self.deps.clock)(),
                uid,
                target,
                standing,
            };
            let flight = deliver(self.deps.kube.clone(), job);
            self.flights.push(Box::pin(flight));
        }
    }

    /// Nothing was said to this object in this life.
    fn is_first(&self, uid: &PodUid, target: &Pod) -> bool {
        let settled = self.plan.settled(uid);
        settled.is_none_or(|s| s.api_uid != PodRef::of(target).uid)
    }

    /// The object was found to be gone, and the watch has told nothing since that was not known then, or only that the
    /// server was about to take it away: it gives an object no more time first.
    fn is_gone(&self, uid: &PodUid, target: &Pod) -> bool {
        self.plan.settled(uid).is_some_and(|settled| {
            settled.gone
                && settled.api_uid == PodRef::of(target).uid
                && (!is_news(target, settled)
                    || target.metadata.deletion_grace_period_seconds == Some(0))
        })
    }

    fn land(&mut self, landed: Landed) {
        let Landed { job, calls, end } = landed;
        let target = PodRef::of(&job.target);
        let settled = |object: &Pod, gone, held_back| Settled {
            api_uid: target.uid.clone(),
            status: job.standing.status.clone(),
            resource_version: resource_version(object).to_owned(),
            gone,
            held_back,
        };
        let since = match end {
            End::Told { object, held_back } => {
                let settled = settled(&object, false, held_back);
                let answer = (calls != Default::default()).then_some(object);
                self.plan.settle(&job.uid, settled, answer)
            }
            End::Gone { known } => {
                debug!(pod = %target, podUID = %job.uid, "Pod is no longer at the API server");
                let object = known.as_ref().unwrap_or(&job.target);
                self.plan
                    .settle(&job.uid, settled(object, true, false), None);
                None
            }
            End::Failed {
                error,
                trouble,
                unsure,
                answer,
            } => {
                warn!(pod = %target, podUID = %job.uid, err = %error, "Failed to update status for pod");
                lock(&self.numbers).failures += 1;
                let stretch = self.random.random_range(1.0..1.2);
                if let Some(answer) = answer {
                    self.plan.keep_answer(&job.uid, answer);
                }
                self.plan
                    .fail(&job.uid, trouble, unsure, stretch, Instant::now());
                None
            }
        };
        self.look_at_what_was_faster(&job.uid);
        let mut numbers = lock(&self.numbers);
        numbers.gets += calls.gets;
        numbers.patches += calls.patches;
        numbers.deletions += calls.deletes;
        if let Some(since) = since {
            numbers.durations.observe(since.elapsed());
        }
    }
}

impl Sender {
    /// The watch may have shown what became of a write before the write was answered. Nothing comes after that in which
    /// the answer could be let go of, so it is looked at now, with all that others wrote in between.
    fn look_at_what_was_faster(&mut self, uid: &PodUid) {
        let (Some(answer), Some(target)) = (self.plan.answer(uid), self.target(uid)) else {
            return;
        };
        let same = answer.metadata.uid == target.metadata.uid;
        if same && self.has_caught_up(uid, resource_version(&target)) {
            lock(&self.requests).compare.insert(uid.clone());
            self.bell.notify_one();
        }
    }
}

fn resource_version(pod: &Pod) -> &str {
    pod.metadata.resource_version.as_deref().unwrap_or_default()
}

/// The watch shows something that was not known when the API server was last spoken to.
fn is_news(target: &Pod, settled: &Settled) -> bool {
    is_newer(resource_version(target), &settled.resource_version) != Some(false)
}

/// Resource versions of one kind of object grow. `None` if they are not of the usual kind.
fn is_newer(version: &str, than: &str) -> Option<bool> {
    if version == than {
        return Some(false);
    }
    let number = |text: &str| text.parse::<u128>().ok();
    Some(number(version)? > number(than)?)
}

#[cfg(test)]
mod tests;
