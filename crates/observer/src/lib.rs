//! The observed truth of the node: what the runtime holds of each pod, as of which ticket.
//!
//! One task ([`Observer`]) owns the views and writes them. Runtime events, hints from those who
//! act, and the differences an audit finds only mark a pod dirty; the truth comes from looking at
//! that pod (two filtered lists and the statuses not known yet) after taking a ticket. A slow,
//! jittered full list audits the views; while events do not flow it is done every second. Between
//! audits a quiet node costs the runtime nothing. A pod is absent only if a list says so. One
//! whose status calls hang is degraded alone: who asks for all pods is told of it what the list
//! tells, and soon.

mod change;
mod convert;
#[cfg(test)]
mod fake;
mod gather;
mod handle;
mod inspect;
mod message;
mod owner;
mod pacing;
mod stats;
mod table;
#[cfg(test)]
mod tests;

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use krablet_cri::RuntimeService;
use krablet_linux::{Files, WallClock};
use tokio::sync::watch;

pub use change::{Change, Changes};
pub use handle::{Hold, ObserverHandle};
pub use owner::Observer;
pub use stats::{BUCKETS, Histogram, ObserverStats, Overdue, RuntimeHealth};

/// Why there is no observation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ObserveError {
    #[error("{} of {object}: {error}", .error.call)]
    Call {
        /// What was asked about, down to the pod.
        object: String,
        error: krablet_cri::Error,
    },
    #[error("{call} of {object}: no answer within {limit:?}")]
    Deadline {
        call: &'static str,
        object: String,
        limit: Duration,
    },
    /// Nobody can tell whether an end is final.
    #[error("the end of {object}: {error}")]
    End { object: String, error: String },
    #[error("the observer has stopped")]
    Stopped,
}

impl ObserveError {
    /// The runtime could not be reached.
    pub fn is_unavailable(&self) -> bool {
        matches!(self, Self::Call { error, .. } if error.is_unavailable())
    }
}

#[derive(Clone, Debug)]
pub struct ObserverConfig {
    /// Between audits while events flow; drawn anew each time.
    pub audit_period: RangeInclusive<Duration>,
    /// Between audits while they do not.
    pub fast_audit_period: Duration,
    /// For the two lists of an audit.
    pub audit_limit: Duration,
    /// Without a good audit for so long the runtime is unhealthy.
    pub audit_overdue: Duration,
    /// For all calls of one look at a pod.
    pub look_limit: Duration,
    /// Looks at a time; one that takes longer than `slow_look` gives its place to another, and who waits
    /// for all pods goes without it.
    pub looks_at_once: usize,
    pub slow_look: Duration,
    /// The longest that hints wait for the end of a hold.
    pub hold_limit: Duration,
    /// For the call that tells whether the runtime answers at all.
    pub ping_limit: Duration,
    /// Between attempts to subscribe to events: first and longest.
    pub resubscribe: RangeInclusive<Duration>,
    /// Between attempts with a runtime that has no events.
    pub unimplemented_retry: Duration,
}

impl Default for ObserverConfig {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self {
            audit_period: seconds(30)..=seconds(60),
            fast_audit_period: seconds(1),
            audit_limit: seconds(30),
            audit_overdue: seconds(180),
            look_limit: seconds(30),
            looks_at_once: 8,
            slow_look: seconds(1),
            hold_limit: seconds(1),
            ping_limit: seconds(10),
            resubscribe: seconds(1)..=seconds(30),
            unimplemented_retry: seconds(300),
        }
    }
}

impl ObserverConfig {
    fn limits(&self) -> table::Limits {
        table::Limits {
            at_once: self.looks_at_once.max(1),
            slow_after: self.slow_look,
            hold: self.hold_limit,
        }
    }

    fn periods(&self) -> pacing::Periods {
        pacing::Periods {
            audit: self.audit_period.clone(),
            fast_audit: self.fast_audit_period,
            resubscribe: self.resubscribe.clone(),
            unimplemented: self.unimplemented_retry,
        }
    }
}

pub struct ObserverDeps {
    pub runtime: Arc<dyn RuntimeService>,
    /// Termination messages and logs are read through it.
    pub files: Arc<dyn Files>,
    /// To tell how old the runtime's events are when they come.
    pub clock: Arc<dyn WallClock>,
    /// Of the audits' jitter.
    pub seed: u64,
}

/// The task that observes, to be run by the caller, and the handle for everybody else.
pub fn build(config: ObserverConfig, deps: ObserverDeps) -> (Observer, ObserverHandle) {
    let shared = Arc::new(handle::Shared::new());
    let (health, watched) = watch::channel(RuntimeHealth::default());
    let observer = Observer {
        config,
        runtime: deps.runtime,
        files: deps.files,
        clock: deps.clock,
        seed: deps.seed,
        shared: shared.clone(),
        health,
    };
    let handle = ObserverHandle {
        shared,
        health: watched,
    };
    (observer, handle)
}
