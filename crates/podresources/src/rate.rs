//! How often something may be done: so many times a second, and so many times at once.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::time::Instant;

/// Clones draw from one supply.
#[derive(Clone, Debug)]
pub(crate) struct Rate {
    per_second: f64,
    burst: f64,
    supply: Arc<Mutex<Supply>>,
}

#[derive(Debug)]
struct Supply {
    left: f64,
    at: Instant,
}

impl Rate {
    pub(crate) fn new(per_second: u32, burst: u32) -> Self {
        let burst = f64::from(burst);
        let supply = Supply {
            left: burst,
            at: Instant::now(),
        };
        Self {
            per_second: per_second.into(),
            burst,
            supply: Arc::new(Mutex::new(supply)),
        }
    }

    /// Whether it may be done now.
    pub(crate) fn take(&self) -> bool {
        let mut supply = self.supply.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let come = now.duration_since(supply.at).as_secs_f64() * self.per_second;
        supply.left = (supply.left + come).min(self.burst);
        supply.at = now;
        let enough = supply.left >= 1.0;
        if enough {
            supply.left -= 1.0;
        }
        enough
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_supply_fills_up_again_and_no_further() {
        let rate = Rate::new(100, 3);
        let taken = || (0..10).filter(|_| rate.take()).count();
        assert_eq!(taken(), 3);
        tokio::time::advance(Duration::from_millis(20)).await;
        assert_eq!(taken(), 2);
        tokio::time::advance(Duration::from_secs(3600)).await;
        assert_eq!(taken(), 3);
    }
}
