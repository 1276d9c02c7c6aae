//! Pods at the door: who is let in, who is refused, who has to make room.

pub(crate) mod kill_waits;

use std::sync::Arc;

use krablet_core::admission::{self, Rejection, Room, Verdict};
use krablet_core::status;
use krablet_core::worker::{KillRequest, Stage, Update, UpdateKind};
use krablet_events::{Subject, reason};
use krablet_pod::api::Pod;
use krablet_pod::{PodRef, PodUid};
use tracing::info;

use crate::resizes::Trigger;
use crate::sync_loop::SyncLoop;

impl SyncLoop {
    /// Whether a worker may have the pod.
    pub(crate) fn may_enter(&mut self, pod: &Arc<Pod>) -> bool {
        self.is_let_in(pod, false)
    }

    /// The second look at a pod that only the node's labels kept out.
    pub(crate) fn look_again(&mut self, pod: &Arc<Pod>) {
        let uid = PodRef::of(pod).uid;
        let wanted = self.parts.desired.get(&uid);
        if let Some(pod) = wanted
            && !self.workers.is_known(&uid)
            && self.is_let_in(&pod, true)
        {
            self.send(&pod, UpdateKind::Create);
        }
    }

    /// `last` tells whether the node as it is known is the node as it is.
    fn is_let_in(&mut self, pod: &Arc<Pod>, last: bool) -> bool {
        let uid = PodRef::of(pod).uid;
        let ends = pod.metadata.deletion_timestamp.is_some()
            || pod.status.as_ref().is_some_and(status::is_terminal);
        if ends || self.workers.is_known(&uid) {
            return true;
        }
        if self.parts.desired.is_refused(&uid) {
            return false;
        }
        match self.door.ask(pod) {
            Verdict::Admit => true,
            Verdict::Reject(rejection) if rejection.only_labels && !last => {
                self.door.doubt(pod);
                false
            }
            Verdict::Reject(rejection) => {
                self.refuse(pod, &rejection);
                false
            }
            Verdict::AdmitAfterPreempting(room) => {
                self.make_room(&room);
                false
            }
        }
    }

    fn refuse(&mut self, pod: &Arc<Pod>, rejection: &Rejection) {
        let pod_ref = PodRef::of(pod);
        info!(pod = %pod_ref, podUID = %pod_ref.uid, reason = rejection.reason, message = rejection.message, "Pod was rejected");
        self.parts.desired.refuse(&pod_ref.uid);
        self.parts.accounts.refused(rejection);
        self.parts.recorder.warning(
            Subject::Pod(pod_ref),
            rejection.reason.clone(),
            rejection.message.clone(),
        );
        let now = self.parts.clock.now();
        let refused = admission::rejected_status(pod, rejection);
        self.parts.status.update(pod, now, |_| refused);
    }

    /// Ends pods so that a critical one finds room.
    pub(crate) fn make_room(&mut self, room: &Room) {
        for victim in &room.victims {
            // Those that leave already were counted when they were told to.
            if self.workers.stage(victim) == Some(Stage::Sync) {
                self.parts.accounts.preempted(room.lacking.as_deref());
            }
            self.preempt(victim);
        }
    }

    fn preempt(&mut self, victim: &PodUid) {
        let Some(pod) = self.workers.spec(victim).cloned() else {
            return;
        };
        self.parts.recorder.warning(
            Subject::Pod(PodRef::of(&pod)),
            admission::PREEMPTING,
            admission::PREEMPTING_MESSAGE,
        );
        self.end(
            &pod,
            KillRequest {
                evicted: true,
                status: Some(Arc::new(admission::preempted(&pod))),
                ..KillRequest::default()
            },
        );
    }

    /// Ends a pod for reasons that are not its own. It is told of if that takes too long.
    pub(crate) fn end(&mut self, pod: &Arc<Pod>, kill: KillRequest) {
        let pod_ref = PodRef::of(pod);
        let own = || pod.spec.as_ref()?.termination_grace_period_seconds;
        let grace = kill.grace.or_else(own).unwrap_or_default();
        let now = self.parts.mono.now();
        let waiter = self.kill_waits.begin(&pod_ref, grace, now);
        let update = Update {
            kill: Some(KillRequest { waiter, ..kill }),
            ..Update::new(pod, UpdateKind::Kill)
        };
        let effects = self.workers.update(update);
        self.parts.accounts.note(&pod_ref.uid, &self.workers);
        self.carry_out(effects);
    }

    /// The kill itself goes on.
    pub(crate) fn tell_overdue(&mut self) {
        for pod in self.kill_waits.take_overdue(self.parts.mono.now()) {
            self.parts.recorder.warning(
                Subject::Pod(pod),
                reason::EXCEEDED_GRACE_PERIOD,
                "Container runtime did not kill the pod within specified grace period.",
            );
        }
    }

    /// A pod has ended: those that waited for room are asked again.
    pub(crate) fn room_was_made(&mut self, uid: &PodUid) {
        for pod in self.door.ended(uid) {
            self.pod_wanted(&pod, UpdateKind::Create);
        }
        self.retry_resizes(Trigger::PodTerminated);
    }
}
