//! A wall clock over virtual time that can be set.

use std::sync::{Arc, Mutex, PoisonError};

use jiff::{SignedDuration, Timestamp};
use krablet_linux::WallClock;
use tokio::time::Instant;

/// 2026-01-01T00:00:00Z.
const START: i64 = 1_767_225_600;

/// Clones show the same time.
#[derive(Clone, Debug)]
pub struct SimClock {
    begun: Instant,
    step: Arc<Mutex<SignedDuration>>,
}

impl SimClock {
    pub fn start() -> Self {
        Self {
            begun: Instant::now(),
            step: Arc::default(),
        }
    }

    /// A clock that goes before this one from now on.
    pub(crate) fn ahead(&self, by: SignedDuration) -> Self {
        let step = *self.step.lock().unwrap_or_else(PoisonError::into_inner);
        Self {
            begun: self.begun,
            step: Arc::new(Mutex::new(step.saturating_add(by))),
        }
    }

    /// Sets the clock forward or back.
    pub fn step(&self, by: SignedDuration) {
        let mut step = self.step.lock().unwrap_or_else(PoisonError::into_inner);
        *step = step.saturating_add(by);
    }
}

impl WallClock for SimClock {
    fn now(&self) -> Timestamp {
        let step = *self.step.lock().unwrap_or_else(PoisonError::into_inner);
        let run = SignedDuration::try_from(self.begun.elapsed()).unwrap_or_default();
        let start = Timestamp::from_second(START).unwrap_or_default();
        start
            .saturating_add(run.saturating_add(step))
            .unwrap_or(Timestamp::MAX)
    }
}
