//! How many pulls run at a time, and how many begin in a second.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::Instant;

use crate::config::ImageSettings;

/// The limits on pulls. Images that are already there never come here.
pub(crate) struct PullLimits {
    /// None: as many as like.
    slots: Option<Semaphore>,
    bucket: Option<Mutex<Bucket>>,
}

impl PullLimits {
    pub(crate) fn new(settings: &ImageSettings) -> Self {
        let slots = match (settings.serialize_pulls, settings.max_parallel_pulls) {
            (true, _) => Some(1),
            (false, None | Some(0)) => None,
            (false, Some(n)) => Some(n as usize),
        };
        Self {
            slots: slots.map(Semaphore::new),
            bucket: (settings.qps > 0.0).then(|| Mutex::new(Bucket::new(settings))),
        }
    }

    /// Waits for a turn; first come, first served.
    pub(crate) async fn turn(&self) -> Option<SemaphorePermit<'_>> {
        // The semaphore is never closed.
        self.slots.as_ref()?.acquire().await.ok()
    }

    /// Whether one more pull may begin in this second.
    pub(crate) fn may_begin(&self) -> bool {
        let Some(bucket) = &self.bucket else {
            return true;
        };
        let mut bucket = bucket.lock().unwrap_or_else(PoisonError::into_inner);
        bucket.take(Instant::now())
    }
}

/// A token bucket, full at first.
struct Bucket {
    tokens: f64,
    burst: f64,
    per_second: f64,
    filled: Instant,
}

impl Bucket {
    fn new(settings: &ImageSettings) -> Self {
        let burst = f64::from(settings.burst.max(1));
        Self {
            tokens: burst,
            burst,
            per_second: settings.qps,
            filled: Instant::now(),
        }
    }

    fn take(&mut self, now: Instant) -> bool {
        let since: Duration = now.saturating_duration_since(self.filled);
        self.tokens = (self.tokens + since.as_secs_f64() * self.per_second).min(self.burst);
        self.filled = now;
        if self.tokens < 1.0 {
            return false;
        }
        self.tokens -= 1.0;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_burst_then_the_rate() {
        let limits = PullLimits::new(&ImageSettings {
            qps: 2.0,
            burst: 3,
            ..ImageSettings::default()
        });
        let begun = (0..5).filter(|_| limits.may_begin()).count();
        assert_eq!(begun, 3);
        tokio::time::advance(Duration::from_millis(500)).await;
        assert!(limits.may_begin());
        assert!(!limits.may_begin());
    }

    #[tokio::test]
    async fn no_rate_no_limit() {
        let limits = PullLimits::new(&ImageSettings {
            qps: 0.0,
            ..ImageSettings::default()
        });
        assert!((0..1000).all(|_| limits.may_begin()));
    }
}
