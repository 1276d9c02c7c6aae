//! Since when pods wait for their volumes. A try that fails is done over as a whole, so it is kept here, and not in a
//! try, how long a volume took from the first one on.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use krablet_pod::PodUid;
use tokio::time::Instant;

/// Pods whose volumes do not all stand.
#[derive(Debug, Default)]
pub(crate) struct Waiting(Mutex<BTreeMap<PodUid, Wait>>);

#[derive(Debug)]
struct Wait {
    since: Instant,
    /// Those of the pod's volumes that stand, by their names in its spec.
    stand: BTreeSet<String>,
}

impl Waiting {
    /// It is known what a pod is to have.
    pub(crate) fn begun(&self, uid: &PodUid) {
        self.book().entry(uid.clone()).or_insert_with(|| Wait {
            since: Instant::now(),
            stand: BTreeSet::new(),
        });
    }

    /// A volume stands: how long it was waited for, if it did not stand before.
    pub(crate) fn stands(&self, uid: &PodUid, volume: &str) -> Option<Duration> {
        let mut book = self.book();
        let wait = book.get_mut(uid)?;
        let news = wait.stand.insert(volume.to_owned());
        news.then(|| wait.since.elapsed())
    }

    /// All of them stand, or none is wanted any more.
    pub(crate) fn ended(&self, uid: &PodUid) {
        self.book().remove(uid);
    }

    /// Nobody panics between two writes, so what a poisoned lock guards is still whole.
    fn book(&self) -> MutexGuard<'_, BTreeMap<PodUid, Wait>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn from_the_first_try_and_once() {
        let (waiting, uid) = (Waiting::default(), PodUid::from("a"));
        let second = Duration::from_secs(1);
        assert_eq!(waiting.stands(&uid, "v"), None);
        for (volume, expected) in [("v", Some(1)), ("v", None), ("w", Some(3))] {
            waiting.begun(&uid);
            tokio::time::advance(second).await;
            let found = waiting.stands(&uid, volume);
            assert_eq!(found, expected.map(Duration::from_secs), "{volume}");
        }
        waiting.ended(&uid);
        waiting.begun(&uid);
        assert_eq!(waiting.stands(&uid, "v"), Some(Duration::ZERO));
    }
}
