//! Pods that ask for other resources: who waits for them, what is told of them, and when they are asked
//! for again.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use krablet_checkpoint::Saver;
use krablet_core::admission::ResizeVerdict;
use krablet_core::resize::{self, ResizeConditions};
use krablet_core::worker::{Stage, UpdateKind};
use krablet_events::Subject;
use krablet_metrics::ResizeMetrics;
use krablet_pod::api::{Pod, PodCondition};
use krablet_pod::{AdmittedPods, PodRef, PodUid, marks};
use tokio::time::{Instant, sleep_until, timeout};
use tracing::info;

use crate::sync_loop::SyncLoop;

/// Until all sources have spoken nobody can say what room there is.
const FIRST_RETRY: Duration = Duration::from_secs(30);
const RETRY: Duration = Duration::from_secs(180);
/// How long a promise may take to be written down before the work on it is put off.
const WRITING: Duration = Duration::from_secs(10);

/// What made resizes be tried again; for those who count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trigger {
    PodResized,
    PodUpdated,
    PodsAdded,
    PodsRemoved,
    PodTerminated,
    Periodic,
}

impl Trigger {
    fn as_str(self) -> &'static str {
        match self {
            Trigger::PodResized => "pod_resized",
            Trigger::PodUpdated => "pod_updated",
            Trigger::PodsAdded => "pods_added",
            Trigger::PodsRemoved => "pods_removed",
            Trigger::PodTerminated => "pod_terminated",
            Trigger::Periodic => "periodic_retry",
        }
    }
}

/// What is told of resizes, by pod. Written by the sync loop, which allocates, and by the steps, which
/// do what was allocated. Clones share one book.
#[derive(Clone)]
pub(crate) struct ResizeBook {
    told: Arc<Mutex<BTreeMap<PodUid, ResizeConditions>>>,
    metrics: ResizeMetrics,
    /// Where promises are written down.
    savers: Arc<[Saver<AdmittedPods>]>,
}

impl ResizeBook {
    pub(crate) fn new(metrics: ResizeMetrics, savers: Vec<Saver<AdmittedPods>>) -> Self {
        Self {
            told: Arc::default(),
            metrics,
            savers: savers.into(),
        }
    }

    pub(crate) fn get(&self, uid: &PodUid) -> ResizeConditions {
        self.with(|told| told.get(uid).cloned().unwrap_or_default())
    }

    pub(crate) fn list(&self, uid: &PodUid) -> Vec<PodCondition> {
        self.with(|told| {
            told.get(uid)
                .map(ResizeConditions::list)
                .unwrap_or_default()
        })
    }

    /// Changes what is told of one pod.
    pub(crate) fn change<T>(
        &self,
        uid: &PodUid,
        change: impl FnOnce(&mut ResizeConditions) -> T,
    ) -> T {
        self.with(|told| {
            let mut conditions = told.remove(uid).unwrap_or_default();
            let was_empty = conditions.is_empty();
            let result = change(&mut conditions);
            let is_empty = conditions.is_empty();
            if !is_empty {
                told.insert(uid.clone(), conditions);
            }
            if !(was_empty && is_empty) {
                self.count(told);
            }
            result
        })
    }

    pub(crate) fn retain(&self, keep: impl Fn(&PodUid) -> bool) {
        self.with(|told| {
            let before = told.len();
            told.retain(|uid, _| keep(uid));
            if told.len() != before {
                self.count(told);
            }
        });
    }

    /// Waits until what was promised is written down: after a crash it must not be less than was given.
    /// False if that takes too long.
    pub(crate) async fn promises_are_written(&self) -> bool {
        let all = async {
            for saver in &*self.savers {
                saver.saved().await;
            }
        };
        timeout(WRITING, all).await.is_ok()
    }

    fn count(&self, told: &BTreeMap<PodUid, ResizeConditions>) {
        let mut reasons: BTreeMap<String, u64> = BTreeMap::new();
        for reason in told.values().filter_map(ResizeConditions::pending_reason) {
            *reasons.entry(reason.to_lowercase()).or_default() += 1;
        }
        let pending = reasons
            .iter()
            .map(|(reason, n)| (vec![reason.as_str()], *n));
        self.metrics.pending.set(pending);
        let in_progress = told.values().filter(|c| c.is_in_progress()).count();
        self.metrics
            .in_progress
            .set([(Vec::new(), in_progress as u64)]);
    }

    fn with<T>(&self, f: impl FnOnce(&mut BTreeMap<PodUid, ResizeConditions>) -> T) -> T {
        f(&mut self.told.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Pods to be asked for again.
#[derive(Default)]
pub(crate) struct WaitingResizes {
    pods: Vec<PodUid>,
    retry_at: Option<Instant>,
}

impl WaitingResizes {
    fn push(&mut self, uid: &PodUid) {
        if !self.pods.contains(uid) {
            self.pods.push(uid.clone());
        }
    }

    fn remove(&mut self, uid: &PodUid) {
        self.pods.retain(|other| other != uid);
    }

    /// When the time has come to ask again though nothing has happened. May be dropped and called anew.
    pub(crate) async fn due(&self) {
        match self.retry_at.filter(|_| !self.pods.is_empty()) {
            Some(at) => sleep_until(at).await,
            None => std::future::pending().await,
        }
    }
}

impl SyncLoop {
    /// A pod that is in has come or changed: does it ask for other resources?
    pub(crate) fn note_resize(&mut self, before: Option<&Pod>, pod: &Arc<Pod>, kind: UpdateKind) {
        let uid = PodRef::of(pod).uid;
        if marks::is_static(pod) || ends(pod) {
            return;
        }
        if kind == UpdateKind::Create {
            let told = ResizeConditions::of_status(pod.status.as_ref());
            if !told.is_empty() {
                self.parts.resizes.change(&uid, |standing| *standing = told);
            }
        }
        let requested = before.map(|before| resize::requested(before, pod));
        for (resource, requirement, operation) in requested.into_iter().flatten() {
            let labels = [operation, requirement, resource];
            self.metrics().requested.add(&labels, 1);
        }
        if !Arc::ptr_eq(&self.door.allocated(pod), pod) {
            self.waiting_resizes.push(&uid);
            if kind == UpdateKind::Update {
                self.retry_resizes(Trigger::PodUpdated);
            }
            return;
        }
        self.waiting_resizes.remove(&uid);
        self.parts
            .resizes
            .change(&uid, ResizeConditions::clear_pending);
    }

    /// Others may have what a resized pod has given back, once that is told.
    pub(crate) fn status_seen(&mut self, pod: &Pod) {
        if self.door.status_changed(pod) {
            self.retry_resizes(Trigger::PodResized);
        }
    }

    /// Asks again for all that wait.
    pub(crate) fn retry_resizes(&mut self, trigger: Trigger) {
        if self.waiting_resizes.pods.is_empty() {
            return;
        }
        let now = Instant::now();
        if !self.parts.desired.sources_ready(&self.parts.sources) {
            self.waiting_resizes.retry_at = Some(now + FIRST_RETRY);
            return;
        }
        self.waiting_resizes.retry_at = Some(now + RETRY);
        let waiting = std::mem::take(&mut self.waiting_resizes.pods);
        let mut wanted = BTreeMap::new();
        for uid in waiting {
            let runs = self.workers.stage(&uid).is_none_or(|s| s == Stage::Sync);
            if let Some(pod) = self.parts.desired.get(&uid).filter(|p| runs && !ends(p)) {
                wanted.insert(uid, pod);
            }
        }
        let queue = wanted.iter().map(|(uid, pod)| {
            let since = self.parts.resizes.get(uid).pending_since();
            self.door.waiting(pod, since)
        });
        for uid in resize::order(queue.collect()) {
            if let Some(pod) = wanted.get(&uid) {
                self.try_resize(&uid, pod, trigger);
            }
        }
    }

    fn try_resize(&mut self, uid: &PodUid, pod: &Arc<Pod>, trigger: Trigger) {
        let now = self.parts.clock.now();
        let generation = pod.metadata.generation;
        let book = self.parts.resizes.clone();
        match self.door.resize(pod) {
            ResizeVerdict::Same => {
                if book.change(uid, ResizeConditions::clear_pending) {
                    self.resync(pod);
                }
            }
            ResizeVerdict::Allocated => {
                if book.get(uid).is_deferred() {
                    let trigger = trigger.as_str();
                    self.metrics().deferred_accepted.add(&[trigger], 1);
                }
                book.change(uid, |told| told.begin(generation, now));
                let message = resize::message("started", pod, generation, "");
                self.tell_resize(pod, resize::STARTED, message);
                self.resync(pod);
            }
            ResizeVerdict::AfterPreempting(room) => {
                self.waiting_resizes.push(uid);
                self.make_room(&room);
            }
            ResizeVerdict::Deferred(why) => {
                self.waiting_resizes.push(uid);
                if book.change(uid, |told| told.defer(&why.message, generation, now)) {
                    let message = resize::message(&why.reason, pod, generation, &why.message);
                    self.tell_resize(pod, resize::DEFERRED, message);
                    self.resync(pod);
                }
            }
            ResizeVerdict::Infeasible(why) => {
                self.metrics().infeasible.add(&[why.label], 1);
                if book.change(uid, |told| told.refuse(&why.message, generation, now)) {
                    let message = resize::message("Infeasible", pod, generation, &why.message);
                    self.tell_resize(pod, resize::INFEASIBLE, message);
                    self.resync(pod);
                }
            }
        }
    }

    /// A pod that no worker has yet is not given to one here: its turn comes.
    fn resync(&mut self, pod: &Arc<Pod>) {
        if self.workers.is_known(&PodRef::of(pod).uid) {
            self.send(pod, UpdateKind::Update);
        }
    }

    fn tell_resize(&self, pod: &Pod, reason: &'static str, message: String) {
        let pod_ref = PodRef::of(pod);
        info!(pod = %pod_ref, podUID = %pod_ref.uid, reason, message, "Pod resize");
        let subject = Subject::Pod(pod_ref);
        match reason {
            resize::STARTED => self.parts.recorder.normal(subject, reason, message),
            _ => self.parts.recorder.warning(subject, reason, message),
        }
    }

    fn metrics(&self) -> &ResizeMetrics {
        &self.parts.resizes.metrics
    }
}

fn ends(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
        || pod
            .status
            .as_ref()
            .is_some_and(krablet_core::status::is_terminal)
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use krablet_metrics::{Metrics, Page};

    use super::*;

    #[test]
    fn what_is_told_is_counted() {
        let metrics = Metrics::default();
        let book = ResizeBook::new(metrics.workers.resizes.clone(), Vec::new());
        let at = Timestamp::UNIX_EPOCH;
        let shown = || {
            let mut page = Page::default();
            metrics.put_on(&mut page);
            let text = page.render();
            let lines = text.lines().filter(|l| !l.starts_with('#'));
            let lines = lines
                .filter(|l| l.contains("pending_resizes") || l.contains("in_progress_resizes"));
            let lines: Vec<&str> = lines
                .map(|l| l.trim_start_matches("kubelet_pod_"))
                .collect();
            lines.join(", ")
        };
        assert_eq!(shown(), "in_progress_resizes 0");
        for uid in ["a", "b"] {
            book.change(&uid.into(), |told| told.defer("no room", Some(1), at));
        }
        book.change(&"c".into(), |told| told.refuse("never", Some(1), at));
        book.change(&"b".into(), |told| told.begin(Some(1), at));
        assert_eq!(
            shown(),
            "in_progress_resizes 1, pending_resizes{reason=\"deferred\"} 1, pending_resizes{reason=\"infeasible\"} 1"
        );
        assert_eq!(book.list(&"b".into()).len(), 1);
        assert!(book.change(&"a".into(), ResizeConditions::clear_pending));
        book.retain(|uid| uid.as_str() == "a");
        assert_eq!(shown(), "in_progress_resizes 0");
        assert!(book.list(&"b".into()).is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn the_time_to_ask_again() {
        let mut waiting = WaitingResizes {
            retry_at: Some(Instant::now() + RETRY),
            ..WaitingResizes::default()
        };
        let patience = RETRY + RETRY;
        assert!(timeout(patience, waiting.due()).await.is_err());
        waiting.push(&"a".into());
        waiting.push(&"a".into());
        assert_eq!(waiting.pods.len(), 1);
        waiting.due().await;
        waiting.remove(&"a".into());
        assert!(timeout(patience, waiting.due()).await.is_err());
    }
}
