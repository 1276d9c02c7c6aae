//! Who is to be looked at again because something he refers to has changed.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use krablet_pod::PodUid;
use tokio::sync::Notify;

/// Pods to wake, each once however often it was rung for. Clones share one set; one listener takes it.
#[derive(Clone, Debug, Default)]
pub struct Bell {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    pods: Mutex<BTreeSet<PodUid>>,
    rung: Notify,
}

impl Bell {
    pub fn ring(&self, pods: impl IntoIterator<Item = PodUid>) {
        let mut waiting = self.pods();
        waiting.extend(pods);
        if !waiting.is_empty() {
            self.inner.rung.notify_one();
        }
    }

    /// Those rung for since the last call; waits for the first. Nobody is lost when this is dropped.
    pub async fn next(&self) -> BTreeSet<PodUid> {
        loop {
            let pods = std::mem::take(&mut *self.pods());
            if !pods.is_empty() {
                return pods;
            }
            self.inner.rung.notified().await;
        }
    }

    fn pods(&self) -> std::sync::MutexGuard<'_, BTreeSet<PodUid>> {
        self.inner
            .pods
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn each_pod_once_and_none_is_lost() {
        let bell = Bell::default();
        assert!(bell.next().now_or_never().is_none());
        bell.ring(["a".into(), "b".into()]);
        bell.ring(["a".into()]);
        assert_eq!(bell.next().await, BTreeSet::from(["a".into(), "b".into()]));
        bell.ring([]);
        assert!(bell.next().now_or_never().is_none());
        bell.ring(["c".into()]);
        assert_eq!(bell.next().await, BTreeSet::from(["c".into()]));
    }
}
