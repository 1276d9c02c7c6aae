//! How the node speaks to an API server: before others, with short deadlines, on a fresh connection
//! after a failure.

use std::time::Duration;

use krablet_kube::{Api, ApiError};
use rand::RngExt;
use rand::rngs::StdRng;

/// Waits that double up to a limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BackOff {
    first: Duration,
    most: Duration,
    next: Duration,
}

impl BackOff {
    pub(crate) fn new(first: Duration, most: Duration) -> Self {
        Self {
            first,
            most,
            next: first,
        }
    }

    pub(crate) fn next_wait(&mut self) -> Duration {
        let wait = self.next;
        self.next = (wait * 2).min(self.most);
        wait
    }

    pub(crate) fn reset(&mut self) {
        self.next = self.first;
    }
}

/// After a failure that a connection may be to blame for, the next call gets one of its own.
pub(crate) fn mend(api: &dyn Api, error: &ApiError) {
    let broken = match error {
        ApiError::Status { code, .. } => *code >= 500,
        ApiError::Deadline(_) | ApiError::Connection(_) | ApiError::Tls(_) => true,
        ApiError::Credentials(_) | ApiError::Decode(_) => false,
    };
    if broken {
        api.reconnect();
    }
}

/// How long the server asks us to stay away, within reason.
pub(crate) fn asked_to_wait(error: &ApiError, most: Duration) -> Duration {
    error.retry_after().unwrap_or_default().min(most)
}

/// A little longer, so that many nodes do not keep step.
pub(crate) fn jittered(period: Duration, dice: &mut StdRng) -> Duration {
    period.mul_f64(1.0 + 0.04 * dice.random::<f64>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_limit() {
        let mut back_off = BackOff::new(Duration::from_millis(100), Duration::from_secs(7));
        let waits: Vec<u128> = (0..9).map(|_| back_off.next_wait().as_millis()).collect();
        assert_eq!(waits, [100, 200, 400, 800, 1600, 3200, 6400, 7000, 7000]);
        back_off.reset();
        assert_eq!(back_off.next_wait().as_millis(), 100);
    }
}
