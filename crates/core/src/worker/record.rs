//! What is known of one pod UID while a worker is responsible for it.

use std::sync::Arc;

use krablet_pod::api::Pod;
use krablet_pod::{FullName, PodRef, PodUid, marks};

use super::{
    Desired, KillRequest, StatusOverride, Step, UpdateKind, WaiterId, Work, has_terminal_phase,
};

/// How far a pod has come. It only ever goes forward, but for what comes to life once a pod has finished: that is
/// ended from `Terminated` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Should run.
    Sync,
    /// Should end. `acknowledged` once the worker itself has seen it: only then is it certain
    /// that no new container starts.
    Terminating { acknowledged: bool },
    /// All containers have stopped; resources are being released.
    Terminated,
    /// Nothing left to do. The record stays until housekeeping forgets it.
    Finished,
}

/// The newest update that waits for the worker.
#[derive(Clone, Debug)]
pub(super) struct Pending {
    pub(super) desired: Desired,
    pub(super) kind: UpdateKind,
}

#[derive(Debug)]
pub(super) struct Record {
    pub(super) pod: PodRef,
    pub(super) stage: Stage,
    /// Effective grace period, once terminating. Only shrinks.
    pub(super) grace: Option<i64>,
    pub(super) deleted: bool,
    pub(super) evicted: bool,
    pub(super) restart_requested: bool,
    /// Seen in the runtime without a config: must be driven to its end even if never started by us.
    pub(super) observed_runtime: bool,
    /// Was permitted to start (holds its full name, if static).
    pub(super) started: bool,
    /// What the worker last took up; what others may know of the pod.
    pub(super) active: Option<Desired>,
    pub(super) pending: Option<Pending>,
    /// The step in flight.
    pub(super) running: Option<Step>,
    pub(super) failures: u32,
    pub(super) waiters: Vec<WaiterId>,
    pub(super) status_override: Option<Arc<StatusOverride>>,
}

impl Record {
    pub(super) fn new(pod: PodRef) -> Self {
        Self {
            pod,
            stage: Stage::Sync,
            grace: None,
            deleted: false,
            evicted: false,
            restart_requested: false,
            observed_runtime: false,
            started: false,
            active: None,
            pending: None,
            running: None,
            failures: 0,
            waiters: Vec::new(),
            status_override: None,
        }
    }

    pub(super) fn uid(&self) -> &PodUid {
        &self.pod.uid
    }

    pub(super) fn full_name(&self) -> FullName {
        self.pod.full_name()
    }

    pub(super) fn termination_requested(&self) -> bool {
        self.stage != Stage::Sync
    }

    pub(super) fn is_terminated(&self) -> bool {
        self.stage >= Stage::Terminated
    }

    /// The newest spec known, pending before active.
    pub(super) fn spec(&self) -> Option<&Arc<Pod>> {
        let pending = self.pending.as_ref().map(|p| &p.desired);
        [pending, self.active.as_ref()]
            .into_iter()
            .flatten()
            .find_map(Desired::spec)
    }

    pub(super) fn is_static(&self) -> bool {
        self.spec().is_some_and(|pod| marks::is_static(pod))
    }

    pub(super) fn step(&self) -> Step {
        let runtime_only = self.spec().is_none();
        match self.stage {
            Stage::Sync => Step::Sync,
            Stage::Terminating { .. } if runtime_only => Step::TerminatingRuntime,
            Stage::Terminating { .. } => Step::Terminating,
            Stage::Terminated | Stage::Finished => Step::Terminated,
        }
    }

    /// Takes a newer object of the same wish in the place of the one held. Not of a pod that ends, or that its object
    /// calls finished: what that means is for an update to say, and the worker goes on as it was told to.
    pub(super) fn seen(&mut self, pod: &Arc<Pod>) {
        let newest = Desired::Spec(pod.clone());
        let ends = pod.metadata.deletion_timestamp.is_some() || has_terminal_phase(&newest);
        if ends || self.stage != Stage::Sync {
            return;
        }
        let waiting = self.pending.as_mut().map(|p| &mut p.desired);
        for held in waiting.into_iter().chain(&mut self.active) {
            if held.spec().is_some() {
                *held = newest.clone();
            }
        }
    }

    /// Puts the last update back into the mailbox, unless a newer one waits there.
    pub(super) fn replay(&mut self) {
        if self.pending.is_none()
            && let Some(desired) = self.active.clone()
        {
            self.pending = Some(Pending {
                desired,
                kind: UpdateKind::Sync,
            });
        }
    }

    /// Moves the pending update into the worker's hands.
    pub(super) fn begin(&mut self) -> Option<Work> {
        let step = self.step();
        let pending = self.pending.take()?;
        let first = self.active.is_none();
        // A runtime-only update never hides a spec that is already known.
        if pending.desired.spec().is_some() || self.active.is_none() {
            self.active = Some(pending.desired);
        }
        if let Stage::Terminating { acknowledged } = &mut self.stage {
            *acknowledged = true;
        }
        self.running = Some(step);
        Some(Work {
            step,
            desired: self.active.clone()?,
            kind: pending.kind,
            first,
            grace: self.grace.filter(|_| self.termination_requested()),
            status_override: self.status_override.clone(),
        })
    }

    /// Applies the rules of the grace period: the API server's value, then the killer's, else the
    /// spec's; never longer than before, never under one second. True if it got shorter.
    pub(super) fn shorten_grace(&mut self, pod: Option<&Pod>, kill: Option<&KillRequest>) -> bool {
        let asked = [
            pod.and_then(|p| p.metadata.deletion_grace_period_seconds),
            kill.and_then(|k| k.grace),
        ];
        let mut grace = self.grace;
        for value in asked.into_iter().flatten() {
            grace = Some(grace.map_or(value, |g| g.min(value)));
        }
        let from_spec = || {
            pod.and_then(|p| p.spec.as_ref())
                .and_then(|s| s.termination_grace_period_seconds)
        };
        let grace = grace.or_else(from_spec).unwrap_or(1).max(1);
        let shortened = self.grace.is_some_and(|g| grace < g);
        self.grace = Some(grace);
        shortened
    }
}
