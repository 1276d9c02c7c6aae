//! Pods whose remains are being taken away. A pod may come back under its UID at any moment, when
//! the manifest of a static pod is put back: its new life begins once the call under way is done,
//! and nothing more of the old one is taken away, by a round whose look knew only the old one.

use std::collections::{BTreeMap, BTreeSet};

use krablet_pod::PodUid;
use tokio::sync::watch;

/// Clones share one book.
#[derive(Clone, Default)]
pub(crate) struct Clearing {
    book: watch::Sender<Book>,
}

#[derive(Default)]
struct Book {
    /// How many are at it.
    cleared: BTreeMap<PodUid, usize>,
    /// For each round that is open, the pods that began a step since.
    rounds: BTreeMap<u64, BTreeSet<PodUid>>,
    next_round: u64,
}

/// A round of clearing, by what was known when it opened; it is over when dropped.
pub(crate) struct Round {
    clearing: Clearing,
    id: u64,
}

/// Being cleared until dropped.
pub(crate) struct Cleared {
    clearing: Clearing,
    uid: PodUid,
}

impl Clearing {
    /// To be opened when it is decided what may go.
    pub(crate) fn open(&self) -> Round {
        let mut id = 0;
        self.book.send_modify(|book| {
            id = book.next_round;
            book.next_round += 1;
            book.rounds.insert(id, BTreeSet::new());
        });
        let clearing = self.clone();
        Round { clearing, id }
    }

    /// Begins a step of a pod, once nothing of it is being taken away. True if it had to wait.
    pub(crate) async fn begin_step(&self, uid: &PodUid) -> bool {
        let mut waited = false;
        while !self.try_begin_step(uid) {
            waited = true;
            let mut book = self.book.subscribe();
            // The sender lives as long as this.
            let _ = book.wait_for(|book| !book.cleared.contains_key(uid)).await;
        }
        waited
    }

    fn try_begin_step(&self, uid: &PodUid) -> bool {
        let mut begun = false;
        // Nobody waits for steps to begin.
        self.book.send_if_modified(|book| {
            begun = !book.cleared.contains_key(uid);
            if begun {
                let rounds = book.rounds.values_mut();
                rounds.for_each(|seen| {
                    seen.insert(uid.clone());
                });
            }
            false
        });
        begun
    }
}

impl Round {
    /// `None` if a step of the pod began since the round opened: what is there now may be of a life the round
    /// knows nothing of.
    pub(crate) fn claim(&self, uid: &PodUid) -> Option<Cleared> {
        let claimed = self.clearing.book.send_if_modified(|book| {
            let seen = book.rounds.get(&self.id);
            let free = seen.is_some_and(|seen| !seen.contains(uid));
            if free {
                *book.cleared.entry(uid.clone()).or_default() += 1;
            }
            free
        });
        claimed.then(|| Cleared {
            clearing: self.clearing.clone(),
            uid: uid.clone(),
        })
    }
}

impl Drop for Round {
    fn drop(&mut self) {
        self.clearing.book.send_if_modified(|book| {
            book.rounds.remove(&self.id);
            false
        });
    }
}

impl Drop for Cleared {
    fn drop(&mut self) {
        self.clearing.book.send_modify(|book| {
            let last = book.cleared.get_mut(&self.uid).is_none_or(|count| {
                *count -= 1;
                *count == 0
            });
            if last {
                book.cleared.remove(&self.uid);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt as _;

    #[test]
    fn a_pod_waits_for_everyone_who_clears_it_and_for_nobody_else() {
        let clearing = Clearing::default();
        let (uid, other) = (PodUid::from("a"), PodUid::from("b"));
        let round = clearing.open();
        let (first, second) = (round.claim(&uid), round.claim(&uid));
        assert!(first.is_some() && second.is_some());
        let waiting = clearing.clone();
        let mut begun = Box::pin(waiting.begin_step(&uid));
        assert_eq!((&mut begun).now_or_never(), None);
        assert_eq!(clearing.begin_step(&other).now_or_never(), Some(false));
        drop(first);
        assert_eq!((&mut begun).now_or_never(), None);
        drop(second);
        assert_eq!(begun.now_or_never(), Some(true));
    }

    #[test]
    fn a_pod_that_began_since_the_look_is_not_cleared_by_what_the_look_knew() {
        let clearing = Clearing::default();
        let (uid, other) = (PodUid::from("a"), PodUid::from("b"));
        let (early, round) = (clearing.open(), clearing.open());
        drop(round.claim(&uid));
        assert_eq!(clearing.begin_step(&uid).now_or_never(), Some(false));
        assert!(round.claim(&uid).is_none());
        assert!(early.claim(&uid).is_none());
        assert!(round.claim(&other).is_some());
        // The next look knows the new life.
        assert!(clearing.open().claim(&uid).is_some());
        drop((early, round));
        assert!(clearing.book.borrow().rounds.is_empty());
        assert!(clearing.book.borrow().cleared.is_empty());
    }
}
