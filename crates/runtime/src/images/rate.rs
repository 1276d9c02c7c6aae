//! How many pulls may begin in a second.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::config::ImageSettings;

pub(crate) struct PullRate {
    bucket: Option<Mutex<Bucket>>,
}

impl PullRate {
    pub(crate) fn new(settings: &ImageSettings) -> Self {
        Self {
            bucket: (settings.qps > 0.0).then(|| Mutex::new(Bucket::new(settings))),
        }
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
        let rate = PullRate::new(&ImageSettings {
            qps: 2.0,
            burst: 3,
            ..ImageSettings::default()
        });
        let begun = (0..5).filter(|_| rate.may_begin()).count();
        assert_eq!(begun, 3);
        tokio::time::advance(Duration::from_millis(500)).await;
        assert!(rate.may_begin());
        assert!(!rate.may_begin());
    }

    #[tokio::test]
    async fn no_rate_no_limit() {
        let rate = PullRate::new(&ImageSettings {
            qps: 0.0,
            ..ImageSettings::default()
        });
        assert!((0..1000).all(|_| rate.may_begin()));
    }
}
