//! What is counted of statuses on their way.

use std::time::Duration;

/// `kubelet_pod_status_sync_duration_seconds`: from a change of a pod's status until the API server
/// has it, changes that were superseded meanwhile included.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SyncDurations {
    /// One per bound of [`SyncDurations::BOUNDS`], not cumulative; longer ones are in `count` only.
    pub buckets: [u64; SyncDurations::BOUNDS.len()],
    pub count: u64,
    pub sum: f64,
}

impl SyncDurations {
    /// In seconds.
    pub const BOUNDS: [f64; 11] = [0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 20.0, 30.0, 45.0, 60.0];

    pub(super) fn observe(&mut self, took: Duration) {
        let seconds = took.as_secs_f64();
        let bucket = Self::BOUNDS.iter().position(|bound| seconds <= *bound);
        if let Some(count) = bucket.and_then(|i| self.buckets.get_mut(i)) {
            *count += 1;
        }
        self.count += 1;
        self.sum += seconds;
    }
}

/// Counted since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SenderNumbers {
    pub durations: SyncDurations,
    pub gets: u64,
    pub patches: u64,
    pub deletions: u64,
    pub failures: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_fall_into_the_first_bucket_that_holds_them() {
        let mut durations = SyncDurations::default();
        for millis in [0, 10, 11, 60_000, 60_001] {
            durations.observe(Duration::from_millis(millis));
        }
        assert_eq!(durations.buckets, [2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        assert_eq!(durations.count, 5);
        assert!((durations.sum - 120.022).abs() < 1e-9);
    }
}
