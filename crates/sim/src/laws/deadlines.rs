//! Laws about pods that may be there only for so long.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use krablet_core::status;
use krablet_linux::WallClock;
use krablet_pod::PodUid;
use krablet_pod::api::{PodSpec, PodStatus};

use super::{Held, Law, Laws, broken};
use crate::clock::SimClock;

/// A deadline that is further away when the node settles is not reached in a schedule any more.
const FAR: SignedDuration = SignedDuration::from_secs(1200);

#[derive(Debug)]
pub(super) struct Book {
    clock: SimClock,
    /// Pods that were said to be past theirs.
    exceeded: BTreeSet<PodUid>,
    /// How far ahead they matter.
    far: SignedDuration,
}

impl Book {
    pub(super) fn new(clock: SimClock) -> Self {
        Self {
            clock,
            exceeded: BTreeSet::new(),
            far: FAR,
        }
    }
}

fn deadline(spec: &PodSpec, status: &PodStatus) -> Option<Timestamp> {
    let seconds = SignedDuration::from_secs(spec.active_deadline_seconds?);
    status.start_time.as_ref()?.0.checked_add(seconds).ok()
}

pub(super) fn says_exceeded(status: &PodStatus) -> bool {
    status.reason.as_deref() == Some(status::DEADLINE_EXCEEDED)
}

impl Laws {
    /// Said for the first time it must be so; later the clock may have been set back.
    pub(super) fn exceeded_in_time(&mut self, uid: &PodUid, status: &PodStatus) -> Held {
        if !says_exceeded(status) || !self.deadlines.exceeded.insert(uid.clone()) {
            return Ok(());
        }
        let at = self.spec(uid).and_then(|spec| deadline(spec, status));
        let now = self.deadlines.clock.now();
        match at {
            Some(at) if at <= now && status::phase_of(status) == status::FAILED => Ok(()),
            _ => {
                let phase = status::phase_of(status);
                let how = format!("{uid} is {phase} by its deadline {at:?} at {now}");
                broken(Law::InTime, how)
            }
        }
    }

    /// How long a pod may go on; nothing if it may for longer than anybody looks, or has ended.
    fn time_left(&self, uid: &PodUid) -> Option<SignedDuration> {
        let status = &self.standings.get(uid)?.status;
        let at = deadline(self.spec(uid)?, status)?;
        let left = at.duration_since(self.deadlines.clock.now());
        (left < self.deadlines.far && !status::is_terminal(status)).then_some(left)
    }

    /// Why a pod that has not ended cannot stay as it is.
    pub(super) fn has_to_end(&self, uid: &PodUid) -> Option<String> {
        let left = self.time_left(uid)?;
        Some(match left.is_positive() {
            true => format!("has {left:?} until its deadline"),
            false => "is past its deadline and has not ended".to_owned(),
        })
    }

    /// From now on no deadline is waited for.
    pub(crate) fn has_settled(&mut self) {
        self.deadlines.far = SignedDuration::ZERO;
    }

    /// When the last of the wanted pods that have a deadline gets to it.
    pub(crate) fn last_deadline(&self) -> Option<Duration> {
        let wanted = self.pods.iter().filter(|(_, known)| known.wanted);
        let left = wanted.filter_map(|(uid, _)| self.time_left(uid));
        left.filter_map(|left| Duration::try_from(left).ok()).max()
    }
}
