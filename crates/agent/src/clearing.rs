//! Pods whose remains are being taken away. A pod may come back under its UID at any moment, when
//! the manifest of a static pod is put back: its new life begins once the call under way is done,
//! and nothing more of the old one is taken away.

use std::collections::BTreeMap;

use krablet_pod::PodUid;
use tokio::sync::watch;

/// Clones share one book.
#[derive(Clone, Default)]
pub(crate) struct Clearing {
    /// How many are at it.
    pods: watch::Sender<BTreeMap<PodUid, usize>>,
}

/// Being cleared until dropped.
pub(crate) struct Cleared {
    clearing: Clearing,
    uid: PodUid,
}

impl Clearing {
    pub(crate) fn begin(&self, uid: &PodUid) -> Cleared {
        self.pods
            .send_modify(|pods| *pods.entry(uid.clone()).or_default() += 1);
        Cleared {
            clearing: self.clone(),
            uid: uid.clone(),
        }
    }

    /// Waits until nothing of the pod is being taken away. True if it had to.
    pub(crate) async fn over(&self, uid: &PodUid) -> bool {
        if !self.pods.borrow().contains_key(uid) {
            return false;
        }
        let mut pods = self.pods.subscribe();
        // The sender lives as long as this.
        let _ = pods.wait_for(|pods| !pods.contains_key(uid)).await;
        true
    }
}

impl Drop for Cleared {
    fn drop(&mut self) {
        self.clearing.pods.send_modify(|pods| {
            let last = pods.get_mut(&self.uid).is_none_or(|count| {
                *count -= 1;
                *count == 0
            });
            if last {
                pods.remove(&self.uid);
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
        assert_eq!(clearing.over(&uid).now_or_never(), Some(false));
        let (first, second) = (clearing.begin(&uid), clearing.begin(&uid));
        let waiting = clearing.clone();
        let mut over = Box::pin(waiting.over(&uid));
        assert_eq!((&mut over).now_or_never(), None);
        assert_eq!(clearing.over(&other).now_or_never(), Some(false));
        drop(first);
        assert_eq!((&mut over).now_or_never(), None);
        drop(second);
        assert_eq!(over.now_or_never(), Some(true));
    }
}
