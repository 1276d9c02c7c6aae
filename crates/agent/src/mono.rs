//! The agent's monotonic clock as the pure rooms see it.

use krablet_core::Mono;
use tokio::time::Instant;

/// Counts from the moment it was made. Copies agree with each other.
#[derive(Clone, Copy, Debug)]
pub struct MonoClock(Instant);

impl MonoClock {
    pub fn start() -> Self {
        Self(Instant::now())
    }

    pub fn epoch(&self) -> Instant {
        self.0
    }

    pub fn now(&self) -> Mono {
        Mono(self.0.elapsed())
    }

    pub fn instant(&self, at: Mono) -> Instant {
        self.0 + at.0
    }
}
