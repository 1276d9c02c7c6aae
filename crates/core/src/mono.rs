//! A point on the agent's own monotonic clock, handed in by whoever does the work.

use std::ops::{Add, Sub};
use std::time::Duration;

/// Time since some fixed instant of this agent's life. Never set back, never compared across agents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mono(pub Duration);

impl Add<Duration> for Mono {
    type Output = Mono;

    fn add(self, rhs: Duration) -> Mono {
        Mono(self.0.saturating_add(rhs))
    }
}

impl Sub for Mono {
    type Output = Duration;

    /// How long after `earlier` this is; zero if it is not.
    fn sub(self, earlier: Mono) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}
