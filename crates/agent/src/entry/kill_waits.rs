//! Pods that others had ended: by when their containers ought to have stopped.

use std::collections::BTreeMap;
use std::time::Duration;

use krablet_core::Mono;
use krablet_core::worker::WaiterId;
use krablet_pod::{PodRef, PodUid};

/// What the runtime gets to kill a pod at the least.
const AT_LEAST: i64 = 10;

/// One wait per pod: who asks again for the same end waits with the first.
#[derive(Debug, Default)]
pub(crate) struct KillWaits {
    pods: BTreeMap<PodUid, Wait>,
    /// How many waits there were.
    begun: u64,
}

#[derive(Debug)]
struct Wait {
    id: WaiterId,
    pod: PodRef,
    until: Mono,
}

impl KillWaits {
    /// For who is about to have a pod ended. `None` if the end of it is waited for already.
    pub(crate) fn begin(&mut self, pod: &PodRef, grace: i64, now: Mono) -> Option<WaiterId> {
        if self.pods.contains_key(&pod.uid) {
            return None;
        }
        self.begun += 1;
        let wait = Wait {
            id: WaiterId(self.begun),
            pod: pod.clone(),
            until: now + patience(grace),
        };
        let id = wait.id;
        self.pods.insert(pod.uid.clone(), wait);
        Some(id)
    }

    /// The containers have stopped, late or not.
    pub(crate) fn release(&mut self, id: WaiterId) {
        self.pods.retain(|_, wait| wait.id != id);
    }

    /// When the first wait ends.
    pub(crate) fn next(&self) -> Option<Mono> {
        self.pods.values().map(|wait| wait.until).min()
    }

    /// Pods whose containers have not stopped in time. Each is told once.
    pub(crate) fn take_overdue(&mut self, now: Mono) -> Vec<PodRef> {
        let overdue = self.pods.extract_if(.., |_, wait| wait.until <= now);
        overdue.map(|(_, wait)| wait.pod).collect()
    }
}

/// Half of the grace period more than it, for the way to the runtime and back.
fn patience(grace: i64) -> Duration {
    let seconds = grace.saturating_add(grace / 2).max(AT_LEAST);
    Duration::from_secs(seconds.unsigned_abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Mono {
        Mono(Duration::from_secs(seconds))
    }

    fn pod(uid: &str) -> PodRef {
        PodRef::new(uid, "ns", "p")
    }

    #[test]
    fn patience_follows_the_grace_period() {
        let table = [(-5, 10), (0, 10), (1, 10), (6, 10), (7, 10), (8, 12)];
        let more = [(30, 45), (31, 46), (i64::MAX, i64::MAX.unsigned_abs())];
        for (grace, seconds) in table.into_iter().chain(more) {
            assert_eq!(patience(grace), Duration::from_secs(seconds), "{grace}");
        }
    }

    #[test]
    fn who_is_released_in_time_is_not_told_and_who_is_late_is_told_once() {
        let mut waits = KillWaits::default();
        let first = waits.begin(&pod("a"), 1, at(0)).unwrap();
        assert!(waits.begin(&pod("b"), 30, at(0)).is_some());
        assert!(waits.begin(&pod("c"), 1, at(5)).is_some());
        assert_eq!(waits.begin(&pod("c"), 1, at(6)), None);
        assert_eq!(waits.next(), Some(at(10)));
        waits.release(first);
        assert_eq!(waits.next(), Some(at(15)));
        assert!(waits.take_overdue(at(14)).is_empty());
        assert_eq!(waits.take_overdue(at(100)), [pod("b"), pod("c")]);
        assert!(waits.take_overdue(at(100)).is_empty());
        assert_eq!(waits.next(), None);
        // Who asks once more waits once more.
        assert!(waits.begin(&pod("c"), 1, at(100)).is_some());
    }
}
