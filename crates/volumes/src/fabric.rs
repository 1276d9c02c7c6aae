//! What is known of a fabric: when the node last looked for disks on it, and whether it joins several ways to one.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// How long several ways to a disk may take to be joined.
pub(crate) const JOINED_WITHIN: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub(crate) struct Fabric(Mutex<Known>);

#[derive(Clone, Copy, Debug, Default)]
struct Known {
    scanned: Option<Instant>,
    joins: bool,
}

impl Fabric {
    /// The fabric is being looked at, which may bring any disk, and not only that of who looks.
    pub fn note_scan(&self) {
        self.lock().scanned = Some(Instant::now());
    }

    /// There was a disk whose ways were joined: so may be those of others that come, before a second way is seen.
    pub fn note_joined(&self) {
        self.lock().joins = true;
    }

    /// Until when the ways to a disk may yet be joined, where so many of them are known. Ways that have been there for
    /// long are joined by now, or never will be.
    pub fn joined_by(&self, ways: usize) -> Option<Instant> {
        let Known { scanned, joins } = *self.lock();
        let scanned = scanned.filter(|_| joins || ways > 1);
        scanned.map(|at| at + JOINED_WITHIN)
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn only_what_has_just_come_is_waited_for() {
        let now = Instant::now();
        let soon = Some(now + JOINED_WITHIN);
        for (scanned, joins, ways, expected) in [
            (false, false, 2, None),
            (false, true, 2, None),
            (true, false, 1, None),
            (true, false, 2, soon),
            (true, true, 1, soon),
        ] {
            let fabric = Fabric::default();
            if scanned {
                fabric.note_scan();
            }
            if joins {
                fabric.note_joined();
            }
            assert_eq!(fabric.joined_by(ways), expected, "{scanned} {joins} {ways}");
        }
    }
}
