//! How the runtime and the observer are doing, for health checks and metrics.

use std::time::Duration;

use tokio::time::Instant;

/// The runtime as seen from here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuntimeHealth {
    /// The last time an observation succeeded.
    pub last_ok: Option<Instant>,
    /// The runtime does not answer even a cheap call: which one, and what came instead.
    pub error: Option<String>,
    /// Events flow. Without them the node is audited every second.
    pub events: bool,
    /// No audit has succeeded for too long.
    pub overdue: Option<Overdue>,
}

/// Why nothing is known of all pods together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overdue {
    /// Which call, and what came instead of an answer.
    pub culprit: String,
    /// When the last audit that succeeded began.
    pub since: Instant,
}

impl RuntimeHealth {
    /// Seen at least once, answering, and audited in time.
    pub fn is_healthy(&self) -> bool {
        self.last_ok.is_some() && self.error.is_none() && self.overdue.is_none()
    }
}

/// Upper bounds, in seconds, of [`Histogram`]'s buckets.
pub const BUCKETS: [f64; 11] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
];

/// Durations, sorted into buckets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    /// One per bound of [`BUCKETS`], not cumulative; longer ones are in `count` only.
    pub buckets: [u64; BUCKETS.len()],
    pub count: u64,
    pub sum: Duration,
}

impl Histogram {
    pub(crate) fn record(&mut self, took: Duration) {
        let seconds = took.as_secs_f64();
        if let Some(bucket) = BUCKETS.iter().position(|bound| seconds <= *bound) {
            self.buckets[bucket] += 1;
        }
        self.count += 1;
        self.sum += took;
    }
}

/// Counters since the start. What the kubelet calls a relist is an audit here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObserverStats {
    pub audit_durations: Histogram,
    /// From the start of one audit to the start of the next.
    pub audit_intervals: Histogram,
    pub audit_failures: u64,
    /// When the last successful audit began.
    pub last_audit: Option<Instant>,
    /// Pods an audit found changed without a hint while events flowed. Meant to stay zero.
    pub discrepancies: u64,
    pub refreshes: u64,
    pub refresh_durations: Histogram,
    pub refresh_failures: u64,
    pub events: u64,
    /// How long events took from the runtime to here, by the wall clock.
    pub event_ages: Histogram,
    pub stream_losses: u64,
}
