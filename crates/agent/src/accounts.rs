//! What is counted of pods: their workers, their starts and ends. Written by the sync loop and its
//! steps when something happens; read when somebody asks.

mod starts;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use krablet_core::admission::Rejection;
use krablet_core::worker::{PodWorkers, Stage, Step, UpdateKind, Work};
use krablet_metrics::WorkerMetrics;
use krablet_pod::api::{ContainerStatus, Pod, PodStatus};
use krablet_pod::{PodUid, marks};
use krablet_runtime::ImageWait;
use tokio::time::Instant;

use starts::ImageTime;

/// Clones share one book.
#[derive(Clone)]
pub struct Accounts {
    metrics: WorkerMetrics,
    book: Arc<Mutex<Book>>,
}

type Book = BTreeMap<PodUid, Account>;

/// A pod with a worker.
struct Account {
    stage: Stage,
    /// None: there is no spec, only the runtime knows the pod.
    is_static: Option<bool>,
    seen: Instant,
    /// All its containers ran once, or it ran before this agent.
    started: bool,
    images: ImageTime,
}

/// The labels of a group of pods with workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WorkingPods {
    pub config: &'static str,
    pub lifecycle: &'static str,
    pub is_static: &'static str,
}

/// For who asks.
impl Accounts {
    /// Pods with a worker, by what their worker is at and whether a source wants them. Groups without
    /// a pod are there, too.
    pub fn working_pods(&self, wanted: impl Fn(&PodUid) -> bool) -> BTreeMap<WorkingPods, u64> {
        let mut groups: BTreeMap<WorkingPods, u64> = every_group().map(|g| (g, 0)).collect();
        self.with(|book| {
            for (uid, account) in &*book {
                *groups.entry(group(account, wanted(uid))).or_default() += 1;
            }
        });
        groups
    }

    /// Whether a wanted pod still counts as one that may run: it has not ended, and is not about to be
    /// found to have ended.
    pub fn is_active(&self, uid: &PodUid, status: Option<&PodStatus>) -> bool {
        let ended = status
            .and_then(|s| s.phase.as_deref())
            .is_some_and(|phase| matches!(phase, "Succeeded" | "Failed"));
        match self.with(|book| book.get(uid).map(|a| a.stage)) {
            Some(Stage::Terminated | Stage::Finished) => false,
            Some(Stage::Terminating { .. }) => true,
            Some(Stage::Sync) | None => !ended,
        }
    }
}

/// For the sender of statuses.
impl Accounts {
    /// Whether something of a pod may still run; `None` if it has no worker.
    pub(crate) fn may_run(&self, uid: &PodUid) -> Option<bool> {
        let stage = self.with(|book| book.get(uid).map(|a| a.stage))?;
        Some(stage < Stage::Terminated)
    }
}

/// For the sync loop.
impl Accounts {
    pub(crate) fn new(metrics: WorkerMetrics) -> Self {
        Self {
            metrics,
            book: Arc::default(),
        }
    }

    /// Notes how a pod's worker stands now.
    pub(crate) fn note(&self, uid: &PodUid, workers: &PodWorkers) {
        let is_static = workers.spec(uid).map(|pod| marks::is_static(pod));
        self.with(|book| {
            let Some(stage) = workers.stage(uid) else {
                book.remove(uid);
                return;
            };
            let account = book.entry(uid.clone()).or_insert_with(|| Account {
                stage,
                is_static,
                seen: Instant::now(),
                started: false,
                images: ImageTime::default(),
            });
            account.stage = stage;
            account.is_static = is_static;
        });
    }

    /// Notes how all workers stand now, and forgets those that are gone.
    pub(crate) fn note_all(&self, workers: &PodWorkers) {
        self.with(|book| book.retain(|uid, _| workers.is_known(uid)));
        for uid in workers.uids() {
            self.note(uid, workers);
        }
    }

    pub(crate) fn restarted(&self, pod: &Pod) {
        let label = static_label(marks::is_static(pod));
        self.metrics.restarted_pods.add(&[label], 1);
    }

    pub(crate) fn refused(&self, rejection: &Rejection) {
        let reason = rejection.counted_as();
        self.metrics.door.rejections.add(&[reason], 1);
    }

    /// A pod is told to leave, for want of this resource.
    pub(crate) fn preempted(&self, lacking: Option<&str>) {
        let signal = lacking.unwrap_or_default();
        self.metrics.door.preemptions.add(&[signal], 1);
    }

    pub(crate) fn evicted(&self, signal: &'static str) {
        self.metrics.door.evictions.add(&[signal], 1);
    }

    pub(crate) fn orphan_found(&self) {
        self.metrics.orphaned_runtime_pods.add(1);
    }
}

/// For the steps.
impl Accounts {
    pub(crate) fn step_begins(&self, work: &Work) {
        let Some(pod) = work.desired.spec().filter(|_| work.first) else {
            return;
        };
        let containers = pod.spec.as_ref().map_or(0, |s| s.containers.len());
        self.metrics.containers_per_pod.observe(containers as f64);
        let uid = work.desired.pod_ref().uid;
        let seen = self.with(|book| book.get(&uid).map(|a| a.seen));
        if let Some(seen) = seen.filter(|_| work.kind == UpdateKind::Create) {
            self.metrics.start_duration.observe_duration(seen.elapsed());
        }
    }

    /// A step had to have images for a pod's containers.
    pub(crate) fn needed_images(&self, uid: &PodUid, waits: &[ImageWait]) {
        self.with(|book| {
            // Once it has started, nothing is asked of it any more.
            if let Some(account) = book.get_mut(uid).filter(|a| !a.started) {
                waits.iter().for_each(|wait| account.images.add(*wait));
            }
        });
    }

    pub(crate) fn step_ended(&self, work: &Work, took: Duration) {
        let operation = operation(work.step, work.kind);
        self.metrics.duration.observe_duration(&[operation], took);
    }

    /// A pod's status goes from `old` to `new`.
    pub(crate) fn status_changes(
        &self,
        pod: &Pod,
        uid: &PodUid,
        old: Option<&PodStatus>,
        new: &PodStatus,
        now: Timestamp,
    ) {
        for (container_type, status) in newly_terminated(old, new) {
            let Some(ended) = status.state.as_ref().and_then(|s| s.terminated.as_ref()) else {
                continue;
            };
            let code = ended.exit_code.to_string();
            let reason = ended.reason.as_deref().unwrap_or_default();
            let labels = [container_type, &code, reason];
            self.metrics.terminated_containers.add(&labels, 1);
        }
        self.with(|book| {
            if let Some(account) = book.get_mut(uid) {
                self.start_progress(account, pod, old, new, now);
            }
        });
    }

    fn start_progress(
        &self,
        account: &mut Account,
        pod: &Pod,
        old: Option<&PodStatus>,
        new: &PodStatus,
        now: Timestamp,
    ) {
        let phase = |status: &PodStatus, name: &str| status.phase.as_deref() == Some(name);
        if !phase(new, "Running") {
            return;
        }
        let Some(old) = old else {
            account.started = true;
            return;
        };
        let since_seen = account.seen.elapsed();
        if phase(old, "Pending") {
            let starts = &self.metrics.pod_start_duration;
            starts.observe_duration(since_seen);
        }
        if !account.started && all_running(new) {
            account.started = true;
            let created = pod.metadata.creation_timestamp.as_ref();
            let since = created.map(|c| now.duration_since(c.0));
            let since = since.and_then(|d| Duration::try_from(d).ok());
            let total = since.unwrap_or(since_seen);
            let starts = &self.metrics.pod_start_total_duration;
            starts.observe_duration(total);
            if !starts::is_stateful(pod) {
                let apart = account.images.total() + starts::init_time(pod, new);
                let own = total.saturating_sub(apart);
                let starts = &self.metrics.pod_start_sli_duration;
                starts.observe_duration(own);
                if !starts::has_host_network(pod) {
                    self.metrics.first_network_pod_start.offer(own);
                }
            }
        }
    }

    fn with<T>(&self, f: impl FnOnce(&mut Book) -> T) -> T {
        f(&mut self.book.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn operation(step: Step, kind: UpdateKind) -> &'static str {
    match (step, kind) {
        (Step::Terminated, _) => "terminated",
        (_, UpdateKind::Create) => "create",
        (_, UpdateKind::Update) => "update",
        (_, UpdateKind::Sync) => "sync",
        (_, UpdateKind::Kill) => "kill",
    }
}

fn static_label(is_static: bool) -> &'static str {
    match is_static {
        true => "true",
        false => "",
    }
}

fn group(account: &Account, wanted: bool) -> WorkingPods {
    let lifecycle = match account.stage {
        Stage::Sync => "sync",
        Stage::Terminating { .. } => "terminating",
        Stage::Terminated | Stage::Finished => "terminated",
    };
    let (config, is_static) = match account.is_static {
        None => ("runtime_only", "unknown"),
        Some(is_static) if wanted => ("desired", static_label(is_static)),
        Some(is_static) => ("orphan", static_label(is_static)),
    };
    WorkingPods {
        config,
        lifecycle,
        is_static,
    }
}

fn every_group() -> impl Iterator<Item = WorkingPods> {
    let configs = [
        ("desired", "true"),
        ("desired", ""),
        ("orphan", "true"),
        ("orphan", ""),
        ("runtime_only", "unknown"),
    ];
    configs.into_iter().flat_map(|(config, is_static)| {
        ["sync", "terminating", "terminated"].map(|lifecycle| WorkingPods {
            config,
            lifecycle,
            is_static,
        })
    })
}

fn all_running(status: &PodStatus) -> bool {
    let running = |c: &ContainerStatus| {
        let running = c.state.as_ref().and_then(|s| s.running.as_ref());
        running.is_some_and(|r| r.started_at.is_some())
    };
    status.container_statuses.iter().flatten().all(running)
}

type Statuses = fn(&PodStatus) -> &Option<Vec<ContainerStatus>>;

/// Containers that are terminated now and were not before, with their `container_type`.
fn newly_terminated<'a>(
    old: Option<&'a PodStatus>,
    new: &'a PodStatus,
) -> impl Iterator<Item = (&'static str, &'a ContainerStatus)> {
    let lists: [(_, Statuses); 3] = [
        ("init_container", |s| &s.init_container_statuses),
        ("container", |s| &s.container_statuses),
        ("ephemeral_container", |s| &s.ephemeral_container_statuses),
    ];
    let terminated = |c: &ContainerStatus| c.state.as_ref().is_some_and(|s| s.terminated.is_some());
    lists.into_iter().flat_map(move |(container_type, list)| {
        let before = old.map_or(&[][..], |old| list(old).as_deref().unwrap_or_default());
        let now = list(new).iter().flatten();
        now.filter(move |c| {
            let known = before.iter().find(|b| b.name == c.name);
            terminated(c) && !known.is_some_and(terminated)
        })
        .map(move |c| (container_type, c))
    })
}

#[cfg(test)]
mod tests;
