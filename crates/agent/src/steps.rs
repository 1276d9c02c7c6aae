//! The steps of a pod worker: bring a pod towards its spec, stop it, release what it held. Each is
//! done from the start every time and may be cut off at any point; the runtime and the disk remember.

pub(crate) mod cgroups;
mod failures;
pub(crate) mod garbage;
pub(crate) mod resizing;
mod statuses;
mod volumes;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use jiff::Timestamp;
use krablet_core::Mono;
use krablet_core::actions::{ActionInputs, compute_pod_actions};
use krablet_core::restart::RestartGates;
use krablet_core::start::StartErrors;
use krablet_core::status::{self, NodeFacts};
use krablet_core::worker::{Desired, Outcome, Step, Work};
use krablet_events::{Recorder, Subject, reason};
use krablet_linux::{HostIps, WallClock};
use krablet_objects::Objects;
use krablet_observer::ObserverHandle;
use krablet_pod::api::{Pod, PodSpec};
use krablet_pod::observed::ObservedPod;
use krablet_pod::qos::qos_class;
use krablet_pod::{Actuation, PodRef, PodUid, Ticket};
use krablet_probes::ProbesHandle;
use krablet_runtime::gc::ContainerGc;
use krablet_runtime::{PodRuntime, Sizes, SyncInputs, SyncOutcome};
use krablet_status::StatusStore;
use krablet_volumes::Volumes;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::accounts::Accounts;
use crate::clearing::Clearing;
use crate::held_volumes::HeldVolumes;
use crate::mono::MonoClock;
use crate::network::NetworkReadiness;
use crate::pod_set::DesiredPods;
use crate::resizes::ResizeBook;

use cgroups::PodCgroups;
use failures::SyncFailures;
use resizing::Given;
use statuses::StatusView;

/// How a step ended.
#[derive(Debug)]
pub(crate) struct StepDone {
    pub(crate) outcome: Outcome,
    pub(crate) given: Given,
}

impl StepDone {
    fn new(outcome: Outcome) -> Self {
        let given = Given::default();
        Self { outcome, given }
    }

    pub(crate) fn failed() -> Self {
        Self::new(Outcome::Failed)
    }

    pub(crate) fn cancelled() -> Self {
        Self::new(Outcome::Cancelled)
    }
}

/// What statuses tell of the node.
pub(crate) struct NodeStatusFacts {
    pub(crate) host_ips: HostIps,
    pub(crate) runtime_name: String,
    pub(crate) in_cluster: bool,
}

impl NodeStatusFacts {
    pub(crate) fn now(&self, recursive_read_only: bool) -> NodeFacts {
        NodeFacts {
            host_ips: self.host_ips.now(),
            runtime_name: self.runtime_name.clone(),
            recursive_read_only,
        }
    }
}

/// What the steps work with.
pub(crate) struct StepParts {
    pub(crate) observer: ObserverHandle,
    pub(crate) runtime: PodRuntime,
    pub(crate) volumes: Arc<Volumes>,
    pub(crate) cgroups: PodCgroups,
    pub(crate) objects: Arc<dyn Objects>,
    pub(crate) gc: ContainerGc,
    pub(crate) desired: DesiredPods,
    pub(crate) probes: ProbesHandle,
    pub(crate) status: StatusStore,
    pub(crate) recorder: Recorder,
    pub(crate) network: NetworkReadiness,
    pub(crate) clock: Arc<dyn WallClock>,
    pub(crate) mono: MonoClock,
    pub(crate) node: NodeStatusFacts,
    pub(crate) gates: RestartGates,
    pub(crate) accounts: Accounts,
    pub(crate) resizes: ResizeBook,
}

pub(crate) struct Steps {
    parts: StepParts,
    /// Why containers of a pod could last not be started; what their waiting state says.
    start_errors: Mutex<BTreeMap<PodUid, StartErrors>>,
    clearing: Clearing,
    held_volumes: HeldVolumes,
    failures: SyncFailures,
}

impl Steps {
    pub(crate) fn new(parts: StepParts) -> Self {
        Self {
            parts,
            start_errors: Mutex::default(),
            clearing: Clearing::default(),
            held_volumes: HeldVolumes::default(),
            failures: SyncFailures::default(),
        }
    }

    /// Does one step with what was observed after `after`.
    pub(crate) async fn run(
        &self,
        work: Work,
        after: Ticket,
        given: Option<Actuation>,
        cancel: CancellationToken,
    ) -> StepDone {
        let pod_ref = work.desired.pod_ref();
        let mut after = after;
        if self.clearing.begin_step(&pod_ref.uid).await {
            after = self.parts.observer.ticket();
        }
        let hold = self.parts.observer.hold(&pod_ref.uid);
        let begun = Instant::now();
        self.parts.accounts.step_begins(&work);
        let mut newly = Given::default();
        let outcome = match (&work.step, &work.desired) {
            (Step::Sync, Desired::Spec(pod)) => {
                let given = given.as_ref();
                self.sync(pod, &pod_ref, after, given, &mut newly, &cancel)
                    .await
            }
            (Step::Terminating, Desired::Spec(pod)) => {
                self.terminating(pod, &pod_ref, &work, after).await
            }
            (Step::Terminated, Desired::Spec(pod)) => self.terminated(pod, &pod_ref, after).await,
            (_, Desired::RuntimeOnly(_)) => self.terminating_runtime_only(&pod_ref, after).await,
            (Step::TerminatingRuntime, Desired::Spec(pod)) => {
                self.terminating(pod, &pod_ref, &work, after).await
            }
        };
        drop(hold);
        self.parts.accounts.step_ended(&work, begun.elapsed());
        StepDone {
            outcome,
            given: newly,
        }
    }

    /// Forgets what is remembered of pods that are gone.
    pub(crate) fn retain(&self, keep: &dyn Fn(&PodUid) -> bool) {
        self.with_start_errors(|e| e.retain(|uid, _| keep(uid)));
        self.failures.retain(keep);
        self.parts.runtime.forget_pods(keep);
    }

    /// The pod has ended: what it referred to need not be kept ready for it.
    pub(crate) fn forget_objects(&self, uid: &PodUid) {
        self.parts.objects.forget(uid);
    }

    async fn observe(&self, pod: &PodRef, after: Ticket) -> Option<Arc<ObservedPod>> {
        match self.parts.observer.newer_than(pod, after).await {
            Ok(observed) => Some(observed),
            Err(e) => {
                let subject = Subject::Pod(pod.clone());
                let message = format!("error determining status: {e}");
                self.parts
                    .recorder
                    .warning(subject, reason::FAILED_SYNC, message);
                None
            }
        }
    }
}

/// The normal step.
impl Steps {
    async fn sync(
        &self,
        pod: &Arc<Pod>,
        pod_ref: &PodRef,
        after: Ticket,
        given: Option<&Actuation>,
        newly: &mut Given,
        cancel: &CancellationToken,
    ) -> Outcome {
        // First of all: it is fetched while the rest is looked at.
        self.parts.objects.want(pod);
        let learnt = self.parts.runtime.learn_handler(pod);
        cancel.run_until_cancelled(learnt).await;
        let Some(observed) = self.observe(pod_ref, after).await else {
            return Outcome::Failed;
        };
        if cancel.is_cancelled() {
            return Outcome::Cancelled;
        }
        self.note_resize_progress(pod, pod_ref, &observed, given);
        let mut view = StatusView {
            actuated: given,
            ..StatusView::default()
        };
        if self.parts.status.get(&pod_ref.uid).is_none() {
            view.log_restart_counts = self
                .parts
                .runtime
                .restart_counts_from_logs(pod, &observed)
                .await;
        }
        let status = self.store_status(pod, pod_ref, &observed, view);
        if status::is_terminal(&status) {
            if status.reason.as_deref() == Some(status::DEADLINE_EXCEEDED) {
                let subject = Subject::Pod(pod_ref.clone());
                let message = status.message.unwrap_or_default();
                let recorder = &self.parts.recorder;
                recorder.normal(subject, reason::DEADLINE_EXCEEDED, message);
            }
            return Outcome::Terminal;
        }
        if given.is_some() && !self.may_resize(pod_ref).await {
            return Outcome::Failed;
        }
        let needs_sandbox = self.needs_sandbox(pod, &observed);
        if needs_sandbox
            && !is_host_network(pod)
            && let Err(e) = self.parts.network.check().await
        {
            let message = format!("network is not ready: {e}");
            self.warn(pod_ref, reason::NETWORK_NOT_READY, message);
            return Outcome::NetworkNotReady;
        }
        let qos = qos_class(pod.spec.as_ref().unwrap_or(&PodSpec::default()));
        self.weigh_classes_once().await;
        if needs_sandbox {
            if !self.make_cgroup(pod, pod_ref, qos).await {
                return Outcome::Failed;
            }
            newly.pod = Some(pod.spec.as_ref().and_then(|s| s.resources.clone()));
        }
        let set_up = match self.set_up_volumes(pod, pod_ref, cancel).await {
            Ok(set_up) => set_up,
            Err(outcome) => return outcome,
        };
        let renew_at = set_up.renew_at.map(|at| self.mono_at(at));
        self.parts.probes.set_pod(pod, &observed, &status);
        // From here on it may be a long wait.
        drop(status);
        let verdicts = self.parts.probes.verdicts(&pod_ref.uid);
        let cgroup = self.parts.cgroups.of_pod(&pod_ref.uid, qos);
        // The sandbox may have taken until after the pod's deadline: then nothing is started in it.
        let over = cancel.child_token();
        let mut result = self
            .parts
            .runtime
            .sync_pod(SyncInputs {
                pod,
                observed: &observed,
                verdicts: &verdicts,
                volumes: &volumes::sources(set_up.mounts),
                cgroup_parent: &self.parts.cgroups.parent(&pod_ref.uid, qos),
                sizes: Sizes {
                    actuated: given,
                    cgroup: Some(cgroup),
                },
                on_sandbox_ready: &|_| {
                    if !self.sandbox_is_ready(pod, pod_ref, &observed) {
                        over.cancel();
                    }
                },
                on_killed: &|| Box::pin(self.tell_ends(pod, pod_ref)),
                cancel: &over,
            })
            .await;
        let accounts = &self.parts.accounts;
        accounts.needed_images(&pod_ref.uid, &result.image_waits);
        newly.containers = std::mem::take(&mut result.resized.containers);
        newly.resized = result.resized.changed;
        if result.resized.pod {
            newly.pod = Some(pod.spec.as_ref().and_then(|s| s.resources.clone()));
        }
        let outcome = self.after_runtime_sync(pod, pod_ref, &observed, given, result);
        match outcome {
            Outcome::Cancelled if !cancel.is_cancelled() => {
                Outcome::WaitUntil(self.parts.mono.now())
            }
            outcome => no_later_than(outcome, renew_at),
        }
    }

    fn needs_sandbox(&self, pod: &Pod, observed: &ObservedPod) -> bool {
        let inputs = ActionInputs {
            pod,
            observed,
            verdicts: &self.parts.probes.verdicts(&observed.pod.uid),
            rules_enabled: self.parts.gates.rules,
            restart_all_enabled: self.parts.gates.restart_all,
            actuated: None,
        };
        observed.ready_sandboxes().next().is_none() && compute_pod_actions(&inputs).create_sandbox
    }

    fn after_runtime_sync(
        &self,
        pod: &Arc<Pod>,
        pod_ref: &PodRef,
        observed: &ObservedPod,
        given: Option<&Actuation>,
        result: SyncOutcome,
    ) -> Outcome {
        let failed_anew = self.note_resize_error(pod, pod_ref, &result);
        let changed = self.with_start_errors(|all| {
            let old = all.get(&pod_ref.uid);
            let changed = old.map_or(!result.start_errors.is_empty(), |o| {
                *o != result.start_errors
            });
            if result.start_errors.is_empty() {
                all.remove(&pod_ref.uid);
            } else {
                all.insert(pod_ref.uid.clone(), result.start_errors.clone());
            }
            changed
        });
        if changed || failed_anew {
            // Waiting reasons are news of their own; nothing in the runtime will tell of them.
            let view = StatusView {
                actuated: given,
                ..StatusView::default()
            };
            self.store_status(pod, pod_ref, observed, view);
        }
        self.note_failure(pod_ref, result.error.as_ref());
        if result.acted {
            // The runtime's events may be lost; what was done is looked at in any case.
            self.parts.observer.request(&pod_ref.uid);
        }
        if result.cancelled {
            return Outcome::Cancelled;
        }
        let resized = result.resized.changed && result.error.is_none();
        if result.restart_all || resized {
            return Outcome::WaitUntil(self.parts.mono.now());
        }
        let deadline = self.deadline(pod, pod_ref);
        match (result.retry_at, result.error, deadline) {
            (Some(at), _, deadline) => Outcome::WaitUntil(deadline.map_or(at, |d| d.min(at))),
            (None, Some(_), _) => Outcome::Failed,
            (None, None, Some(deadline)) => Outcome::WaitUntil(deadline),
            (None, None, None) => Outcome::Done,
        }
    }

    /// The network of a new sandbox stands; its containers may follow much later. False if the pod
    /// is over by now.
    fn sandbox_is_ready(&self, pod: &Arc<Pod>, pod_ref: &PodRef, observed: &ObservedPod) -> bool {
        let view = StatusView {
            ready_to_start: Some(true),
            ..StatusView::default()
        };
        !status::is_terminal(&self.store_status(pod, pod_ref, observed, view))
    }

    /// How containers ended that were killed to be started again.
    async fn tell_ends(
        &self,
        pod: &Arc<Pod>,
        pod_ref: &PodRef,
    ) -> Result<Arc<ObservedPod>, String> {
        let observer = &self.parts.observer;
        let seen = observer.newer_than(pod_ref, observer.ticket()).await;
        let seen = seen.map_err(|e| e.to_string())?;
        let runtime = &self.parts.node.runtime_name;
        let now = self.parts.clock.now();
        self.parts.status.set_ends(pod, &seen, runtime, now);
        Ok(seen)
    }

    /// When the pod's active deadline ends, on the monotonic clock.
    fn deadline(&self, pod: &Pod, pod_ref: &PodRef) -> Option<Mono> {
        let standing = self.parts.status.status(&pod_ref.uid);
        let at = status::active_deadline(pod, standing.as_deref())?;
        Some(self.mono_at(at))
    }

    /// A moment that has passed is now.
    fn mono_at(&self, at: Timestamp) -> Mono {
        let left = at.duration_since(self.parts.clock.now());
        self.parts.mono.now() + left.try_into().unwrap_or_default()
    }
}

/// The steps at a pod's end.
impl Steps {
    async fn terminating(
        &self,
        pod: &Arc<Pod>,
        pod_ref: &PodRef,
        work: &Work,
        after: Ticket,
    ) -> Outcome {
        let Some(observed) = self.observe(pod_ref, after).await else {
            return Outcome::Failed;
        };
        let status_override = work.status_override.as_deref();
        self.store_status(
            pod,
            pod_ref,
            &observed,
            StatusView {
                status_override,
                ..StatusView::default()
            },
        );
        self.parts.probes.stop_liveness_and_startup(&pod_ref.uid);
        let killed = self
            .parts
            .runtime
            .kill_pod(Some(pod), &observed, work.grace)
            .await;
        if let Err(e) = killed {
            self.warn(
                pod_ref,
                reason::FAILED_KILL_POD,
                format!("error killing pod: {e}"),
            );
            return Outcome::Failed;
        }
        self.parts.probes.remove(&pod_ref.uid);
        let ticket = self.parts.observer.ticket();
        let Some(now_observed) = self.observe(pod_ref, ticket).await else {
            return Outcome::Failed;
        };
        if let Some(running) = now_observed.running().next() {
            warn!(pod = %pod_ref, podUID = %pod_ref.uid, containerName = &*running.name, "The runtime says that a container still runs after it was stopped");
            return Outcome::Failed;
        }
        self.store_status(
            pod,
            pod_ref,
            &now_observed,
            StatusView {
                status_override,
                terminal: true,
                ..StatusView::default()
            },
        );
        Outcome::Done
    }

    async fn terminating_runtime_only(&self, pod_ref: &PodRef, after: Ticket) -> Outcome {
        let Some(observed) = self.observe(pod_ref, after).await else {
            return Outcome::Failed;
        };
        match self.parts.runtime.kill_pod(None, &observed, Some(1)).await {
            Ok(()) => Outcome::Done,
            Err(e) => {
                self.warn(
                    pod_ref,
                    reason::FAILED_KILL_POD,
                    format!("error killing pod: {e}"),
                );
                Outcome::Failed
            }
        }
    }

    async fn terminated(&self, pod: &Arc<Pod>, pod_ref: &PodRef, after: Ticket) -> Outcome {
        let Some(observed) = self.observe(pod_ref, after).await else {
            return Outcome::Failed;
        };
        self.store_status(
            pod,
            pod_ref,
            &observed,
            StatusView {
                terminal: true,
                ..StatusView::default()
            },
        );
        if observed.is_alive()
            && let Err(e) = self
                .parts
                .runtime
                .kill_pod(Some(pod), &observed, Some(1))
                .await
        {
            // A call that was given up came to its end in the runtime after all.
            self.warn(
                pod_ref,
                reason::FAILED_KILL_POD,
                format!("error killing pod: {e}"),
            );
            return Outcome::Failed;
        }
        let qos = qos_class(pod.spec.as_ref().unwrap_or(&PodSpec::default()));
        // The directory stays, with termination messages in it, until the pod is gone for good.
        if !self.release_volumes(pod_ref).await || !self.release_cgroup_of(pod_ref, qos).await {
            return Outcome::Failed;
        }
        self.parts.status.terminate(pod, self.parts.clock.now());
        Outcome::Done
    }
}

impl Steps {
    fn warn(&self, pod: &PodRef, reason: &'static str, message: String) {
        self.parts
            .recorder
            .warning(Subject::Pod(pod.clone()), reason, message);
    }

    fn with_start_errors<T>(&self, f: impl FnOnce(&mut BTreeMap<PodUid, StartErrors>) -> T) -> T {
        f(&mut self
            .start_errors
            .lock()
            .unwrap_or_else(PoisonError::into_inner))
    }
}

fn is_host_network(pod: &Pod) -> bool {
    pod.spec
        .as_ref()
        .is_some_and(|s| s.host_network == Some(true))
}

/// A sync that went well is followed by another in time for what has to be renewed.
fn no_later_than(outcome: Outcome, renew_at: Option<Mono>) -> Outcome {
    match (outcome, renew_at) {
        (Outcome::Done, Some(at)) => Outcome::WaitUntil(at),
        (Outcome::WaitUntil(other), Some(at)) => Outcome::WaitUntil(other.min(at)),
        (other, _) => other,
    }
}
