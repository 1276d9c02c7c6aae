//! The two conditions of a resize: that it waits, and that it is being done.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use krablet_pod::api::{PodCondition, PodStatus};

pub const PENDING: &str = "PodResizePending";
pub const IN_PROGRESS: &str = "PodResizeInProgress";

const DEFERRED: &str = "Deferred";
const INFEASIBLE: &str = "Infeasible";
const ERROR: &str = "Error";

/// What is told of one pod's resizes. Both may stand: a newer resize waits while an older one is done.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ResizeConditions {
    pending: Option<PodCondition>,
    in_progress: Option<PodCondition>,
}

impl ResizeConditions {
    /// As an earlier life of the agent told them.
    pub fn of_status(status: Option<&PodStatus>) -> Self {
        let find = |type_: &str| {
            let all = status.and_then(|s| s.conditions.as_deref()).unwrap_or(&[]);
            all.iter().find(|c| c.type_ == type_).cloned()
        };
        Self {
            pending: find(PENDING),
            in_progress: find(IN_PROGRESS),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.pending.is_none() && self.in_progress.is_none()
    }

    pub fn list(&self) -> Vec<PodCondition> {
        self.pending
            .iter()
            .chain(&self.in_progress)
            .cloned()
            .collect()
    }

    pub fn is_in_progress(&self) -> bool {
        self.in_progress.is_some()
    }

    pub fn is_deferred(&self) -> bool {
        self.pending_reason() == Some(DEFERRED)
    }

    /// `Deferred` or `Infeasible`.
    pub fn pending_reason(&self) -> Option<&str> {
        self.pending.as_ref()?.reason.as_deref()
    }

    /// Since when it waits.
    pub fn pending_since(&self) -> Option<Timestamp> {
        let since = self.pending.as_ref()?.last_transition_time.as_ref()?;
        Some(since.0)
    }

    /// It cannot be done now. True if that is news: for this reason, or of this generation.
    pub fn defer(&mut self, message: &str, generation: Option<i64>, now: Timestamp) -> bool {
        set(
            &mut self.pending,
            told(PENDING, DEFERRED, message, generation),
            now,
        )
    }

    /// It can never be done. True if that is news.
    pub fn refuse(&mut self, message: &str, generation: Option<i64>, now: Timestamp) -> bool {
        set(
            &mut self.pending,
            told(PENDING, INFEASIBLE, message, generation),
            now,
        )
    }

    pub fn clear_pending(&mut self) -> bool {
        self.pending.take().is_some()
    }

    /// A new resize was allocated: what was wrong with the one before is over.
    pub fn begin(&mut self, generation: Option<i64>, now: Timestamp) {
        self.pending = None;
        self.in_progress = None;
        self.go_on(generation, now);
    }

    /// It is found to be not yet done. An error that stands stays, and so does the generation it is
    /// about.
    pub fn go_on(&mut self, generation: Option<i64>, now: Timestamp) {
        if self.in_progress.is_none() {
            let fresh = told(IN_PROGRESS, "", "", generation);
            set(&mut self.in_progress, fresh, now);
        }
    }

    /// It failed and is tried again. If that is news, the generation it is about.
    pub fn fail(
        &mut self,
        message: &str,
        generation: Option<i64>,
        now: Timestamp,
    ) -> Option<Option<i64>> {
        let standing = self.in_progress.as_ref();
        let generation = standing.map_or(generation, |c| c.observed_generation);
        let known = standing.is_some_and(|c| {
            c.reason.as_deref() == Some(ERROR) && c.message.as_deref() == Some(message)
        });
        let fresh = told(IN_PROGRESS, ERROR, message, generation);
        set(&mut self.in_progress, fresh, now);
        (!known).then_some(generation)
    }

    /// All that runs has what `generation` was promised. If that ends a resize, the generation it was
    /// about; one of a newer generation has just begun and goes on.
    pub fn complete(&mut self, generation: Option<i64>) -> Option<Option<i64>> {
        let of_this = |c: &mut PodCondition| c.observed_generation <= generation;
        let done = self.in_progress.take_if(of_this)?;
        Some(done.observed_generation)
    }
}

fn told(type_: &str, reason: &str, message: &str, generation: Option<i64>) -> PodCondition {
    let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    PodCondition {
        type_: type_.to_owned(),
        status: "True".to_owned(),
        reason: text(reason),
        message: text(message),
        observed_generation: generation.filter(|g| *g != 0),
        ..PodCondition::default()
    }
}

/// The time of the transition is that of the reason. True if reason or generation is another.
fn set(place: &mut Option<PodCondition>, mut fresh: PodCondition, now: Timestamp) -> bool {
    let seconds = Timestamp::from_second(now.as_second()).unwrap_or(now);
    let standing = place.as_ref();
    let same_reason = standing.is_some_and(|c| c.reason == fresh.reason);
    let same =
        same_reason && standing.is_some_and(|c| c.observed_generation == fresh.observed_generation);
    fresh.last_transition_time = standing
        .filter(|_| same_reason)
        .and_then(|c| c.last_transition_time.clone())
        .or(Some(Time(seconds)));
    *place = Some(fresh);
    !same
}
