//! The wall clock. Only for what people read (start times, log names): nothing is ordered by it.

use jiff::Timestamp;

pub trait WallClock: Send + Sync {
    fn now(&self) -> Timestamp;
}

/// The machine's own clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl WallClock for SystemClock {
    #[allow(clippy::disallowed_methods)] // the one place that reads it
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }
}
