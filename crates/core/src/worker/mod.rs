//! The pod workers as one state machine. Updates, results and timers go in; effects come out: run
//! a step for a pod, cancel one, wake a pod later, release whoever waits for its end. One worker per
//! UID, with a mailbox of one slot: a newer update replaces an older one that was not yet taken up.

mod answers;
mod record;
mod static_names;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use krablet_pod::api::{Pod, PodCondition};
use krablet_pod::{PodRef, PodUid, marks};

pub use record::Stage;
use record::{Pending, Record};
use static_names::StaticNames;

use crate::Mono;

/// Someone who waits for a pod's containers to have stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WaiterId(pub u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpdateKind {
    Create,
    Update,
    Sync,
    Kill,
}

/// What an update is about.
#[derive(Clone, Debug)]
pub enum Desired {
    /// A pod some source wants (or wanted).
    Spec(Arc<Pod>),
    /// A pod found in the runtime that no source knows.
    RuntimeOnly(PodRef),
}

impl Desired {
    pub fn spec(&self) -> Option<&Arc<Pod>> {
        match self {
            Desired::Spec(pod) => Some(pod),
            Desired::RuntimeOnly(_) => None,
        }
    }

    pub fn pod_ref(&self) -> PodRef {
        match self {
            Desired::Spec(pod) => PodRef::of(pod),
            Desired::RuntimeOnly(pod) => pod.clone(),
        }
    }
}

/// What a killer (eviction, deadline, shutdown) wants the final status to say.
#[derive(Clone, Debug, PartialEq)]
pub struct StatusOverride {
    pub phase: &'static str,
    pub reason: String,
    pub message: String,
    /// Why the pod was disrupted, for controllers that count failures.
    pub condition: Option<PodCondition>,
}

/// Options of a kill.
#[derive(Clone, Debug, Default)]
pub struct KillRequest {
    pub grace: Option<i64>,
    pub evicted: bool,
    pub status: Option<Arc<StatusOverride>>,
    pub waiter: Option<WaiterId>,
}

#[derive(Clone, Debug)]
pub struct Update {
    pub desired: Desired,
    pub kind: UpdateKind,
    pub kill: Option<KillRequest>,
    /// Whether the runtime was last seen to hold a running container or a ready sandbox of it.
    pub runtime_alive: bool,
}

impl Update {
    pub fn new(pod: &Arc<Pod>, kind: UpdateKind) -> Self {
        Self {
            desired: Desired::Spec(pod.clone()),
            kind,
            kill: None,
            runtime_alive: false,
        }
    }

    /// The end of a pod that was found in the runtime and that no source knows.
    pub fn orphan(pod: PodRef) -> Self {
        Self {
            desired: Desired::RuntimeOnly(pod),
            kind: UpdateKind::Kill,
            kill: None,
            runtime_alive: true,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Bring the pod towards its spec.
    Sync,
    /// Stop all its containers and sandboxes.
    Terminating,
    /// The same for a pod without a spec.
    TerminatingRuntime,
    /// Release what it held: volumes, directories, cgroups.
    Terminated,
}

/// One step for a worker to do.
#[derive(Clone, Debug)]
pub struct Work {
    pub step: Step,
    pub desired: Desired,
    pub kind: UpdateKind,
    /// The first step this worker does for the pod.
    pub first: bool,
    /// Set while terminating.
    pub grace: Option<i64>,
    pub status_override: Option<Arc<StatusOverride>>,
}

/// How a step ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Done,
    /// A sync found that the pod has reached a terminal phase.
    Terminal,
    /// Given up because a newer update asked for it.
    Cancelled,
    NetworkNotReady,
    /// Nothing to do before the given time: a back-off or a deadline.
    WaitUntil(Mono),
    Failed,
}

#[derive(Clone, Debug)]
pub enum Effect {
    Run(PodUid, Box<Work>),
    /// Stop the sync in flight at its next safe point.
    Cancel(PodUid),
    /// Replaces an earlier wake of the same pod.
    WakeAt(PodUid, Mono),
    Release(WaiterId),
}

/// How long until the next step, by what the last one said. Each gets up to half of it on top.
#[derive(Clone, Copy, Debug)]
pub struct Periods {
    pub resync: Duration,
    pub error: Duration,
    pub network: Duration,
    /// First retry of a failed termination; doubles up to `error`.
    pub first_retry: Duration,
}

impl Default for Periods {
    fn default() -> Self {
        Self {
            resync: Duration::from_secs(60),
            error: Duration::from_secs(10),
            network: Duration::from_secs(1),
            first_retry: Duration::from_millis(500),
        }
    }
}

/// What housekeeping learns of a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerView {
    pub stage: Stage,
    /// No source wants the pod any more.
    pub orphan: bool,
    pub has_config: bool,
    pub is_static: bool,
    pub pod: PodRef,
}

#[derive(Debug)]
pub struct PodWorkers {
    records: BTreeMap<PodUid, Record>,
    names: StaticNames,
    periods: Periods,
    /// The desired set was complete once; before that, unknown pods may be running.
    synced: bool,
}

impl PodWorkers {
    pub fn new(periods: Periods) -> Self {
        Self {
            records: BTreeMap::new(),
            names: StaticNames::default(),
            periods,
            synced: false,
        }
    }

    /// Takes an update for a pod, from a source or from whoever wants it ended.
    pub fn update(&mut self, update: Update) -> Vec<Effect> {
        let mut effects = Vec::new();
        let pod = update.desired.pod_ref();
        let runtime_only = update.desired.spec().is_none();
        if runtime_only && update.kind != UpdateKind::Kill {
            return effects;
        }
        let first_time = !self.records.contains_key(&pod.uid);
        let record = self
            .records
            .entry(pod.uid.clone())
            .or_insert_with(|| first_sight(pod, &update));
        let desired = if runtime_only {
            record.observed_runtime = true;
            record
                .spec()
                .cloned()
                .map_or_else(|| update.desired.clone(), Desired::Spec)
        } else {
            update.desired.clone()
        };
        if !first_time && record.termination_requested() && update.kind == UpdateKind::Create {
            // The UID was used again: once this pod has ended, it is to be started anew.
            record.restart_requested = true;
            return effects;
        }
        if record.stage == Stage::Finished {
            effects.extend(update.kill.and_then(|k| k.waiter).map(Effect::Release));
            return effects;
        }
        let became_terminating =
            !record.termination_requested() && request_termination(record, &desired, &update);
        let mut kill = update.kill.unwrap_or_default();
        let mut shortened = false;
        match record.stage {
            Stage::Terminated | Stage::Finished => {
                effects.extend(kill.waiter.map(Effect::Release));
                if runtime_only {
                    // An older sight of the runtime; the final clean-up is under way.
                    return effects;
                }
            }
            Stage::Terminating { .. } => {
                record.waiters.extend(kill.waiter);
                if let Some(status) = kill.status.take() {
                    record.status_override = Some(status);
                }
                shortened = record.shorten_grace(desired.spec().map(|p| &**p), Some(&kill));
            }
            Stage::Sync => effects.extend(kill.waiter.map(Effect::Release)),
        }
        if first_time {
            match &desired {
                Desired::Spec(pod) if marks::is_static(pod) => {
                    self.names.wait(&record.full_name(), record.uid());
                }
                Desired::Spec(_) => {}
                Desired::RuntimeOnly(_) => self.names.occupy(&record.full_name(), record.uid()),
            }
        }
        record.pending = Some(Pending {
            desired,
            kind: update.kind,
        });
        let uid = record.uid().clone();
        if (became_terminating || shortened) && record.running.is_some() {
            effects.push(Effect::Cancel(uid.clone()));
        }
        self.start(&uid, &mut effects);
        effects
    }

    /// Starts the pending work of an idle worker, if it is permitted to start.
    fn start(&mut self, uid: &PodUid, effects: &mut Vec<Effect>) {
        let Some(record) = self.records.get(uid) else {
            return;
        };
        if record.running.is_some() || record.pending.is_none() {
            return;
        }
        if !record.started && record.is_static() && !record.observed_runtime {
            let name = record.full_name();
            if record.termination_requested() && !record.is_terminated() {
                self.finish_unstarted(uid, effects);
                return;
            }
            let records = &self.records;
            let wants_to_run =
                |w: &PodUid| records.get(w).is_some_and(|r| !r.termination_requested());
            if !record.is_terminated() && !self.names.take(&name, uid, wants_to_run) {
                return;
            }
        }
        if let Some(record) = self.records.get_mut(uid) {
            record.started = true;
            if let Some(work) = record.begin() {
                effects.push(Effect::Run(uid.clone(), Box::new(work)));
            }
        }
    }

    /// A static pod that was told to end before its turn came is finished without a step.
    fn finish_unstarted(&mut self, uid: &PodUid, effects: &mut Vec<Effect>) {
        if let Some(record) = self.records.get_mut(uid) {
            record.pending = None;
            effects.extend(record.waiters.drain(..).map(Effect::Release));
        }
        self.finish(uid, effects);
    }

    fn finish(&mut self, uid: &PodUid, effects: &mut Vec<Effect>) {
        let Some(record) = self.records.get_mut(uid) else {
            return;
        };
        record.stage = Stage::Finished;
        record.pending = None;
        record.status_override = None;
        let name = record.full_name();
        self.release_name(&name, uid, effects);
    }

    fn release_name(
        &mut self,
        name: &krablet_pod::FullName,
        uid: &PodUid,
        effects: &mut Vec<Effect>,
    ) {
        for next in self.names.release(name, uid) {
            self.start(&next, effects);
        }
    }

    /// Takes the result of the step that ran for a pod. `spread` is a number in 0..1 that moves the
    /// next wake within its window.
    pub fn completed(
        &mut self,
        uid: &PodUid,
        outcome: Outcome,
        now: Mono,
        spread: f64,
    ) -> Vec<Effect> {
        let mut effects = Vec::new();
        let Some(record) = self.records.get_mut(uid) else {
            return effects;
        };
        let Some(step) = record.running.take() else {
            return effects;
        };
        record.failures = match outcome {
            Outcome::Failed => record.failures.saturating_add(1),
            _ => 0,
        };
        match (outcome, step) {
            (Outcome::Terminal, Step::Sync) => {
                if record.stage == Stage::Sync {
                    record.stage = Stage::Terminating { acknowledged: true };
                    let spec = record.active.as_ref().and_then(Desired::spec).cloned();
                    record.shorten_grace(spec.as_deref(), None);
                }
                record.replay();
            }
            (Outcome::Done | Outcome::Terminal, Step::Terminating) => {
                record.stage = Stage::Terminated;
                record.status_override = None;
                effects.extend(record.waiters.drain(..).map(Effect::Release));
                record.replay();
            }
            (Outcome::Done | Outcome::Terminal, Step::TerminatingRuntime) => {
                effects.extend(record.waiters.drain(..).map(Effect::Release));
                if record.spec().is_none() {
                    // Transient and in no desired state: nothing to remember.
                    let name = record.full_name();
                    self.records.remove(uid);
                    self.release_name(&name, uid, &mut effects);
                    return effects;
                }
            }
            (Outcome::Done | Outcome::Terminal, Step::Terminated) => {
                self.finish(uid, &mut effects);
                return effects;
            }
            (Outcome::Cancelled, _) => record.replay(),
            (outcome, step) => {
                let wait = next_wait(&self.periods, outcome, step, record.failures, now, spread);
                effects.push(Effect::WakeAt(uid.clone(), now + wait));
            }
        }
        self.start(uid, &mut effects);
        effects
    }

    /// Does the last update again: its time has come, or something happened to the pod.
    pub fn wake(&mut self, uid: &PodUid) -> Vec<Effect> {
        let mut effects = Vec::new();
        if let Some(record) = self.records.get_mut(uid)
            && record.stage != Stage::Finished
        {
            record.replay();
            self.start(uid, &mut effects);
        }
        effects
    }

    /// Something of a finished pod came to life after its last step, by a call that was given up: that step is done
    /// again.
    pub fn end_again(&mut self, uid: &PodUid) -> Vec<Effect> {
        let mut effects = Vec::new();
        if let Some(record) = self.records.get_mut(uid)
            && record.stage == Stage::Finished
            && record.active.is_some()
        {
            record.stage = Stage::Terminated;
            record.replay();
            self.start(uid, &mut effects);
        }
        effects
    }

    /// The same wish in a newer object, of which only what its status says has changed: from now on the worker holds that
    /// one, so that a pod is kept once and not once more as it was when it came. Nothing is done for it.
    pub fn seen(&mut self, uid: &PodUid, pod: &Arc<Pod>) {
        if let Some(record) = self.records.get_mut(uid) {
            record.seen(pod);
        }
    }

    /// Compares the workers with what the sources want. Records of pods that are gone, or that are
    /// to be started anew, are forgotten once finished; the caller sends a create for every wanted
    /// pod that is not in the answer.
    pub fn sync_known(
        &mut self,
        desired: impl Fn(&PodUid) -> bool,
        complete: bool,
    ) -> (BTreeMap<PodUid, WorkerView>, Vec<Effect>) {
        self.synced |= complete;
        let mut effects = Vec::new();
        let mut views = BTreeMap::new();
        let uids: Vec<PodUid> = self.records.keys().cloned().collect();
        for uid in uids {
            let orphan = !desired(&uid);
            let Some(record) = self.records.get(&uid) else {
                continue;
            };
            if (orphan || record.restart_requested) && self.forget(&uid, orphan, &mut effects) {
                continue;
            }
            if let Some(record) = self.records.get(&uid) {
                let view = WorkerView {
                    stage: record.stage,
                    orphan,
                    has_config: record.spec().is_some(),
                    is_static: record.is_static(),
                    pod: record.pod.clone(),
                };
                views.insert(uid, view);
            }
        }
        (views, effects)
    }

    /// Forgets a finished or never started record; drives an orphan that still has something to
    /// end. True if the record is gone.
    fn forget(&mut self, uid: &PodUid, orphan: bool, effects: &mut Vec<Effect>) -> bool {
        let Some(record) = self.records.get_mut(uid) else {
            return true;
        };
        if record.stage != Stage::Finished {
            if !orphan {
                return false;
            }
            record.deleted = true;
            let untouched = !record.started && !record.observed_runtime;
            if !untouched {
                if !record.termination_requested() {
                    record.stage = Stage::Terminating {
                        acknowledged: false,
                    };
                    let spec = record.spec().cloned();
                    record.shorten_grace(spec.as_deref(), None);
                    if record.running.is_some() {
                        effects.push(Effect::Cancel(uid.clone()));
                    }
                    record.replay();
                    self.start(uid, effects);
                }
                return false;
            }
        }
        if record.running.is_some() {
            return false;
        }
        let name = record.full_name();
        effects.extend(record.waiters.drain(..).map(Effect::Release));
        self.records.remove(uid);
        self.release_name(&name, uid, effects);
        true
    }
}

/// A pod that its config calls finished, and of which nothing runs, starts at its clean-up: it must
/// neither be run again after a restart of the agent nor count as running.
fn first_sight(pod: PodRef, update: &Update) -> Record {
    let mut record = Record::new(pod);
    if has_terminal_phase(&update.desired) && !update.runtime_alive {
        record.stage = Stage::Terminated;
        record.started = true;
    }
    record
}

/// Decides whether the update ends the pod; marks it so.
fn request_termination(record: &mut Record, desired: &Desired, update: &Update) -> bool {
    let deleted = match desired {
        Desired::RuntimeOnly(_) => true,
        Desired::Spec(pod) => {
            pod.metadata.deletion_timestamp.is_some() || update.desired.spec().is_none()
        }
    };
    let killed = update.kind == UpdateKind::Kill;
    if !deleted && !killed && !has_terminal_phase(desired) {
        return false;
    }
    record.deleted |= deleted;
    record.evicted |= update.kill.as_ref().is_some_and(|k| k.evicted);
    record.stage = Stage::Terminating {
        acknowledged: false,
    };
    true
}

fn has_terminal_phase(desired: &Desired) -> bool {
    let phase = desired
        .spec()
        .and_then(|p| p.status.as_ref())
        .and_then(|s| s.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

fn next_wait(
    periods: &Periods,
    outcome: Outcome,
    step: Step,
    failures: u32,
    now: Mono,
    spread: f64,
) -> Duration {
    let base = match outcome {
        Outcome::Done | Outcome::Terminal | Outcome::Cancelled => periods.resync,
        Outcome::NetworkNotReady => periods.network,
        // Woken exactly when the wait ends: spreading it would only make the user wait longer.
        Outcome::WaitUntil(until) => return (until - now).min(periods.resync),
        Outcome::Failed if step == Step::Sync => periods.error,
        Outcome::Failed => {
            let doublings = failures.saturating_sub(1).min(16);
            (periods.first_retry * (1 << doublings)).min(periods.error)
        }
    };
    base + base.mul_f64(0.5 * spread.clamp(0.0, 1.0))
}
