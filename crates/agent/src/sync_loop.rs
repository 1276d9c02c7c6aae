//! The one loop in which desired and observed state meet. It owns the pod set, the workers' state
//! machine and the wakes; whatever takes time is done by the steps it spawns.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use krablet_core::merge::{Op, PodUpdate};
use krablet_core::probe::Verdict;
use krablet_core::worker::{Effect, PodWorkers, Stage, Step, Update, UpdateKind};
use krablet_events::Recorder;
use krablet_linux::WallClock;
use krablet_objects::Bell;
use krablet_observer::{Change, Changes, ObserverHandle, RuntimeHealth};
use krablet_pod::api::Pod;
use krablet_pod::marks::{self, PodSource};
use krablet_pod::observed::ObservedPod;
use krablet_pod::{PodRef, PodUid, Ticket};
use krablet_probes::{ProbeKind, ProbeUpdate, ProbeUpdates, ProbesHandle};
use krablet_status::StatusStore;
use krablet_status::sender::SenderHandle;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::{AbortHandle, Id, JoinError, JoinSet};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, warn};

use crate::accounts::Accounts;
use crate::door::Door;
use crate::entry::kill_waits::KillWaits;
use crate::eviction::Eviction;
use crate::housekeeping::Housekeeping;
use crate::mono::MonoClock;
use crate::pod_set::DesiredPods;
use crate::resizes::{ResizeBook, Trigger, WaitingResizes};
use crate::steps::{StepDone, Steps};
use crate::wakes::Wakes;

/// What the loop listens to.
pub(crate) struct Inputs {
    pub(crate) updates: mpsc::Receiver<PodUpdate>,
    pub(crate) changes: Changes,
    pub(crate) probes: ProbeUpdates,
    /// Rings for pods whose configMaps and secrets have changed.
    pub(crate) objects: Bell,
    pub(crate) evictions: mpsc::Receiver<Eviction>,
    pub(crate) health: watch::Receiver<RuntimeHealth>,
}

/// What the loop works with.
pub(crate) struct Parts {
    pub(crate) desired: DesiredPods,
    pub(crate) status: StatusStore,
    pub(crate) observer: ObserverHandle,
    pub(crate) probes: ProbesHandle,
    pub(crate) steps: Arc<Steps>,
    pub(crate) clock: Arc<dyn WallClock>,
    pub(crate) mono: MonoClock,
    /// The sources that must have spoken before anything unknown is removed.
    pub(crate) sources: BTreeSet<PodSource>,
    pub(crate) accounts: Accounts,
    pub(crate) recorder: Recorder,
    /// Brings statuses to the API server, if there is one.
    pub(crate) sender: Option<SenderHandle>,
    pub(crate) resizes: ResizeBook,
    /// Rings when containers may have started.
    pub(crate) started: Arc<Notify>,
}

/// A step in flight.
struct Running {
    pod: PodRef,
    step: Step,
    abort: AbortHandle,
    cancel: CancellationToken,
}

impl Running {
    /// A sync ends before its next call that changes something: what the runtime has begun it must
    /// finish, or nobody knows of it. Stopping may be cut off anywhere and begun anew.
    fn cancel(&self) {
        match self.step {
            Step::Sync => self.cancel.cancel(),
            Step::Terminating | Step::TerminatingRuntime | Step::Terminated => self.abort.abort(),
        }
    }
}

pub(crate) struct SyncLoop {
    pub(crate) parts: Parts,
    pub(crate) workers: PodWorkers,
    wakes: Wakes,
    tasks: JoinSet<StepDone>,
    running: BTreeMap<Id, Running>,
    /// When each worker's last step ended: what it needs to see next is newer.
    pub(crate) ended: BTreeMap<PodUid, Ticket>,
    pub(crate) housekeeping: Housekeeping,
    pub(crate) door: Door,
    pub(crate) waiting_resizes: WaitingResizes,
    pub(crate) kill_waits: KillWaits,
    turn: watch::Sender<Instant>,
    rng: StdRng,
    /// What the runtime held when this agent started, until housekeeping has seen to it.
    pub(crate) found_at_start: Vec<Arc<ObservedPod>>,
}

impl SyncLoop {
    pub(crate) fn new(
        parts: Parts,
        workers: PodWorkers,
        housekeeping: Housekeeping,
        door: Door,
        turn: watch::Sender<Instant>,
        seed: u64,
    ) -> Self {
        Self {
            parts,
            workers,
            wakes: Wakes::default(),
            tasks: JoinSet::new(),
            running: BTreeMap::new(),
            ended: BTreeMap::new(),
            housekeeping,
            door,
            waiting_resizes: WaitingResizes::default(),
            kill_waits: KillWaits::default(),
            turn,
            rng: StdRng::seed_from_u64(seed),
            found_at_start: Vec::new(),
        }
    }

    /// Turns until the sources are closed.
    pub(crate) async fn run(mut self, mut inputs: Inputs) {
        info!("Starting the main sync loop");
        self.first_look().await;
        loop {
            self.wait_for_runtime(&mut inputs.health).await;
            self.turn.send_replace(Instant::now());
            let wake_at = self.next_wake();
            tokio::select! {
                biased;
                Some(done) = self.tasks.join_next_with_id() => self.step_ended(done),
                update = inputs.updates.recv() => match update {
                    Some(update) => self.config_changed(update),
                    None => return,
                },
                change = inputs.changes.next() => self.pod_observed(&change),
                update = inputs.probes.next() => match update {
                    Some(update) => self.probed(&update),
                    None => return,
                },
                pods = inputs.objects.next() => pods.iter().for_each(|uid| self.wake(uid)),
                Some(eviction) = inputs.evictions.recv() => self.evict(&eviction),
                () = tokio::time::sleep_until(wake_at) => self.wake_due(),
                () = self.waiting_resizes.due() => self.retry_resizes(Trigger::Periodic),
                pods = self.door.second_look() => pods.iter().for_each(|pod| self.look_again(pod)),
                findings = self.housekeeping.next() => self.clean_up(findings),
                Ok(()) = inputs.health.changed() => {}
            }
        }
    }

    /// Before anything is started it must be known what runs: a pod may have to wait for one that an
    /// earlier agent left under its name. For that the list is enough: a pod that is slow to be looked at
    /// delays no other.
    async fn first_look(&mut self) {
        let mut told = false;
        loop {
            self.turn.send_replace(Instant::now());
            let ticket = self.parts.observer.ticket();
            match self.parts.observer.all_newer_than(ticket).await {
                Ok(found) => {
                    let alive = found.iter().filter(|o| o.is_alive());
                    self.door.found_running(alive.map(|o| o.pod.uid.clone()));
                    self.found_at_start = found;
                    return;
                }
                Err(e) if !told => {
                    warn!(err = %e, "Waiting for the container runtime to list its pods");
                    told = true;
                }
                Err(_) => {}
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }

    /// While the runtime does not answer nothing can be done for any pod; steps in flight may end.
    async fn wait_for_runtime(&mut self, health: &mut watch::Receiver<RuntimeHealth>) {
        let mut told = false;
        loop {
            let error = health.borrow_and_update().error.clone();
            let Some(error) = error else {
                if told {
                    info!("The container runtime answers again");
                }
                return;
            };
            if !told {
                warn!(err = error, "Skipping pod synchronization");
                told = true;
            }
            // The loop itself is well: it waits for the runtime.
            self.turn.send_replace(Instant::now());
            self.tell_overdue();
            tokio::select! {
                biased;
                Some(done) = self.tasks.join_next_with_id() => self.step_ended(done),
                changed = health.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(Duration::from_secs(5)) => {}
            }
        }
    }

    fn config_changed(&mut self, update: PodUpdate) {
        let names: Vec<String> = update
            .pods
            .iter()
            .map(|p| PodRef::of(p).to_string())
            .collect();
        debug!(source = update.source.as_str(), op = update.op.as_str(), pods = ?names, "SyncLoop");
        let (mirrors, pods): (Vec<_>, Vec<_>) =
            update.pods.into_iter().partition(|p| marks::is_mirror(p));
        mirrors
            .iter()
            .for_each(|m| self.mirror_changed(m, update.op));
        let pods = match update.op {
            Op::Add | Op::Restore => self.door.queue(pods),
            _ => pods,
        };
        for pod in &pods {
            match update.op {
                Op::Add | Op::Restore => self.pod_wanted(pod, UpdateKind::Create),
                Op::Update | Op::Delete => self.pod_wanted(pod, UpdateKind::Update),
                Op::Reconcile => self.pod_reconciled(pod),
                Op::Remove => self.pod_removed(pod),
            }
        }
        match update.op {
            Op::Add | Op::Restore => self.retry_resizes(Trigger::PodsAdded),
            Op::Remove => self.retry_resizes(Trigger::PodsRemoved),
            Op::Update | Op::Delete | Op::Reconcile => {}
        }
        // Not before: a pod remembered from an earlier life asks for what it asked for then, until its
        // source has told what it asks for now.
        if update.last && self.parts.desired.source_spoke(update.source) {
            self.retry_resizes(Trigger::PodsAdded);
        }
        // What the API server says of a status leaves nothing behind.
        if update.op != Op::Reconcile {
            self.housekeeping.soon();
        }
    }

    pub(crate) fn pod_wanted(&mut self, pod: &Arc<Pod>, kind: UpdateKind) {
        let before = self.parts.desired.get(&PodRef::of(pod).uid);
        self.parts.desired.put(pod);
        if kind == UpdateKind::Create && !self.make_way(pod) {
            // Housekeeping starts it once every source has spoken.
            return;
        }
        if self.may_enter(pod) {
            self.note_resize(before.as_deref(), pod, kind);
            self.send(pod, kind);
        }
        self.compare_status(&PodRef::of(pod).uid);
    }

    /// The status others see is not the one this agent told.
    fn pod_reconciled(&mut self, pod: &Arc<Pod>) {
        self.parts.desired.put(pod);
        self.status_seen(pod);
        let gated = pod.spec.as_ref().and_then(|s| s.readiness_gates.as_ref());
        let uid = PodRef::of(pod).uid;
        if gated.is_some_and(|gates| !gates.is_empty()) && self.workers.is_known(&uid) {
            // What others say of a readiness gate decides whether the pod is ready.
            self.send(pod, UpdateKind::Sync);
        } else if Arc::ptr_eq(&self.door.allocated(pod), pod) {
            // Not when it asks for more than it is promised: what the worker holds is the promise.
            self.workers.seen(&uid, pod);
        }
        self.compare_status(&uid);
    }

    fn mirror_changed(&mut self, mirror: &Arc<Pod>, op: Op) {
        if op == Op::Remove {
            self.parts.desired.remove_mirror(&PodRef::of(mirror));
        } else if let Some(uid) = self.parts.desired.put_mirror(mirror) {
            self.compare_status(&uid);
        }
    }

    fn compare_status(&self, uid: &PodUid) {
        if let Some(sender) = &self.parts.sender {
            sender.reconcile(uid);
        }
    }

    /// Ends pods that nobody wants and that run under the name of a static pod: it waits for them.
    /// False while a source may still claim one.
    pub(crate) fn make_way(&mut self, pod: &Arc<Pod>) -> bool {
        if !marks::is_static(pod) {
            return true;
        }
        let wanted = PodRef::of(pod);
        let mut rivals = self.parts.observer.all();
        // Of a pod whose look failed or is slow there is no view yet, only what the list told.
        let unseen = |o: &&Arc<ObservedPod>| self.parts.observer.latest(&o.pod.uid).is_none();
        rivals.extend(self.found_at_start.iter().filter(unseen).cloned());
        rivals.retain(|o| {
            let unknown =
                !self.workers.is_known(&o.pod.uid) && !self.parts.desired.contains(&o.pod.uid);
            unknown && o.is_alive() && o.pod.full_name() == wanted.full_name()
        });
        let own = PodSource::of(pod);
        if rivals.iter().any(|rival| self.may_be_claimed(rival, own)) {
            return false;
        }
        for rival in rivals {
            self.end_unknown(rival.pod.clone());
        }
        true
    }

    /// Whether a source that has not spoken yet may want the pod that was found. `speaking` has just
    /// named another pod of that name, and holds no two. Who waited for all sources would wait for an API
    /// server that cannot start before the pod of its mended manifest does.
    fn may_be_claimed(&self, found: &ObservedPod, speaking: Option<PodSource>) -> bool {
        let from = found.sandboxes.iter().find_map(|s| s.source);
        let mut claimants = self.parts.sources.clone();
        claimants.retain(|s| Some(*s) != speaking && from.is_none_or(|from| from == *s));
        !self.parts.desired.sources_ready(&claimants)
    }

    /// Ends a pod that was found in the runtime and that no source wants.
    pub(crate) fn end_unknown(&mut self, pod: PodRef) {
        info!(pod = %pod, podUID = %pod.uid, "Ending a pod that no source wants");
        let uid = pod.uid.clone();
        let effects = self.workers.update(Update::orphan(pod));
        self.parts.accounts.orphan_found();
        self.parts.accounts.note(&uid, &self.workers);
        self.carry_out(effects);
    }

    /// The source that brought the pod has let it go; no other can claim it.
    fn pod_removed(&mut self, pod: &Arc<Pod>) {
        let uid = PodRef::of(pod).uid;
        let stage = self.workers.stage(&uid);
        let alive = stage.is_some_and(|s| s < Stage::Finished);
        self.parts.desired.remove(pod, alive);
        self.door.gone(&uid);
        if self.workers.is_known(&uid) {
            self.send(pod, UpdateKind::Kill);
        }
    }

    pub(crate) fn send(&mut self, pod: &Arc<Pod>, kind: UpdateKind) {
        let uid = PodRef::of(pod).uid;
        // From here on a pod has what it is promised, whatever it asks for.
        let allocated = self.door.allocated(pod);
        self.parts.desired.put_allocated(pod, &allocated);
        let update = Update {
            runtime_alive: self.was_alive(&uid),
            ..Update::new(&allocated, kind)
        };
        let effects = self.workers.update(update);
        self.parts.accounts.note(&uid, &self.workers);
        self.carry_out(effects);
    }

    /// Whether a pod lived when it was last seen. Of one found at the start there may be no view yet: what
    /// the list told of it must not be taken for nothing.
    fn was_alive(&self, uid: &PodUid) -> bool {
        let found = || self.found_at_start.iter().find(|o| o.pod.uid == *uid);
        match self.parts.observer.latest(uid) {
            Some(seen) => seen.is_alive(),
            None => found().is_some_and(|o| o.is_alive()),
        }
    }

    fn pod_observed(&mut self, change: &Change) {
        let uid = &change.pod.uid;
        self.parts.started.notify_one();
        if !change.died.is_empty() {
            self.housekeeping.soon();
        }
        match self.workers.stage(uid) {
            Some(Stage::Finished) | None => self.housekeeping.soon(),
            Some(_) => self.wake(uid),
        }
    }

    fn probed(&mut self, update: &ProbeUpdate) {
        let Some(pod) = self.workers.spec(&update.pod).cloned() else {
            return;
        };
        let now = self.parts.clock.now();
        let good = update.verdict == Verdict::Success;
        let status = &self.parts.status;
        match update.kind {
            ProbeKind::Readiness => status.set_readiness(&pod, &update.container, good, now),
            ProbeKind::Startup => status.set_started(&pod, &update.container, good, now),
            ProbeKind::Liveness => update.verdict == Verdict::Failure,
        };
        self.wake(&update.pod);
    }

    fn wake(&mut self, uid: &PodUid) {
        let effects = self.workers.wake(uid);
        self.carry_out(effects);
    }

    pub(crate) fn next_wake(&self) -> Instant {
        let latest = self.parts.mono.now() + Duration::from_secs(3600);
        let next = self.wakes.next().into_iter().chain(self.kill_waits.next());
        self.parts
            .mono
            .instant(next.fold(latest, |soonest, at| soonest.min(at)))
    }

    pub(crate) fn wake_due(&mut self) {
        self.tell_overdue();
        for uid in self.wakes.take_due(self.parts.mono.now()) {
            self.wake(&uid);
        }
    }

    pub(crate) fn carry_out(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Run(uid, work) => {
                    self.wakes.clear(&uid);
                    // A first step must see what was done to an earlier life under this UID.
                    let ended = self.ended.get(&uid).copied();
                    let after = ended.unwrap_or_else(|| self.parts.observer.ticket());
                    let steps = self.parts.steps.clone();
                    let cancel = CancellationToken::new();
                    let (step, token) = (work.step, cancel.clone());
                    let pod = work.desired.pod_ref();
                    let given = self.door.actuation(&uid);
                    let abort = self
                        .tasks
                        .spawn(async move { steps.run(*work, after, given, token).await });
                    let running = Running {
                        pod,
                        step,
                        abort,
                        cancel,
                    };
                    self.running.insert(running.abort.id(), running);
                }
                Effect::Cancel(uid) => {
                    let running = self.running.values().find(|r| r.pod.uid == uid);
                    if let Some(running) = running {
                        running.cancel();
                    }
                }
                Effect::WakeAt(uid, at) => self.wakes.set(&uid, at),
                Effect::Release(waiter) => self.kill_waits.release(waiter),
            }
        }
    }

    fn step_ended(&mut self, done: Result<(Id, StepDone), JoinError>) {
        let id = done.as_ref().map_or_else(JoinError::id, |(id, _)| *id);
        let Some(Running { pod, .. }) = self.running.remove(&id) else {
            return;
        };
        let done = match done {
            Ok((_, done)) => done,
            Err(e) if e.is_cancelled() => StepDone::cancelled(),
            Err(e) => {
                error!(pod = %pod, podUID = %pod.uid, err = %e, "A pod worker step failed in an unforeseen way");
                StepDone::failed()
            }
        };
        let uid = pod.uid;
        // Taken after the step's last runtime call, so it covers all of them.
        self.ended.insert(uid.clone(), self.parts.observer.ticket());
        self.door.actuated(&uid, done.given);
        let outcome = done.outcome;
        let spread = self.rng.random::<f64>();
        let now = self.parts.mono.now();
        let effects = self.workers.completed(&uid, outcome, now, spread);
        self.parts.accounts.note(&uid, &self.workers);
        self.carry_out(effects);
        match self.workers.stage(&uid) {
            Some(Stage::Finished) | None => {
                self.wakes.clear(&uid);
                self.ended.remove(&uid);
                self.parts.desired.ended(&uid);
                self.parts.steps.forget_objects(&uid);
                self.room_was_made(&uid);
                self.tidy();
                self.housekeeping.soon();
            }
            // Others may have the room as soon as all containers have stopped: that is when the scheduler
            // may hear of it and bind the next pod here.
            Some(Stage::Terminated) => self.room_was_made(&uid),
            Some(_) => {}
        }
    }
}
