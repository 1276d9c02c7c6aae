//! What is counted of each probe: the series of `/metrics/probes`.

use std::sync::Arc;
use std::time::Duration;

use krablet_core::probe::{Outcome, ProbeKind};
use krablet_pod::PodRef;

/// A histogram over Prometheus' default bounds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Durations {
    /// How many took no longer than each of [`Durations::BOUNDS`] (and longer than the one before).
    pub buckets: [u64; 11],
    pub count: u64,
    pub sum: f64,
}

impl Durations {
    /// In seconds.
    pub const BOUNDS: [f64; 11] = [
        0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
    ];

    fn observe(&mut self, took: Duration) {
        let seconds = took.as_secs_f64();
        let bucket = Self::BOUNDS.iter().position(|bound| seconds <= *bound);
        if let Some(count) = bucket.and_then(|i| self.buckets.get_mut(i)) {
            *count += 1;
        }
        self.count += 1;
        self.sum += seconds;
    }
}

/// `prober_probe_total` and `prober_probe_duration_seconds` of one probe.
#[derive(Clone, Debug, PartialEq)]
pub struct ProbeMetrics {
    pub pod: PodRef,
    pub container: Arc<str>,
    pub kind: ProbeKind,
    pub successful: u64,
    pub failed: u64,
    /// Of the successful ones.
    pub durations: Durations,
}

/// The numbers of one probe. Errors count as nothing, as upstream has it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) successful: u64,
    pub(crate) failed: u64,
    pub(crate) durations: Durations,
}

impl Counts {
    pub(crate) fn count(&mut self, outcome: Outcome, took: Duration) {
        match outcome {
            Outcome::Success => {
                self.successful += 1;
                self.durations.observe(took);
            }
            Outcome::Failure | Outcome::Hung => self.failed += 1,
            Outcome::Error => {}
        }
    }
}
