//! Who does something to a disk, or to what disks share, does it alone.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

/// By what is held: the place where a disk is mounted, its target, an interface to it, its devices. Whoever wants
/// several takes them in this order.
#[derive(Default)]
pub(crate) struct Turns(Mutex<BTreeMap<String, Weak<AsyncMutex<()>>>>);

impl Turns {
    /// Held while somebody does something to it.
    pub async fn alone_with(&self, what: &str) -> OwnedMutexGuard<()> {
        let lock = {
            let mut locks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            locks.retain(|_, lock| lock.strong_count() > 0);
            let held = locks.get(what).and_then(Weak::upgrade);
            held.unwrap_or_else(|| {
                let lock = Arc::new(AsyncMutex::new(()));
                locks.insert(what.to_owned(), Arc::downgrade(&lock));
                lock
            })
        };
        lock.lock_owned().await
    }

    /// The same for all of these, which nobody may want in another order.
    pub async fn alone_with_all(&self, all: &BTreeSet<String>) -> Vec<OwnedMutexGuard<()>> {
        let mut held = Vec::with_capacity(all.len());
        for what in all {
            held.push(self.alone_with(what).await);
        }
        held
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_logs_in_to_a_target_is_alone_and_nothing_is_kept_of_it() {
        let turns = Turns::default();
        let held = turns.alone_with("a").await;
        let again = turns.alone_with("a");
        let mut again = std::pin::pin!(again);
        assert!(at_once(again.as_mut()).await.is_none());
        drop(turns.alone_with("b").await);
        drop(held);
        drop(again.await);
        drop(turns.alone_with("c").await);
        assert_eq!(turns.0.lock().unwrap().len(), 1);
    }

    /// What it gives without waiting.
    async fn at_once<F: Future>(mut future: std::pin::Pin<&mut F>) -> Option<F::Output> {
        std::future::poll_fn(|cx| match future.as_mut().poll(cx) {
            std::task::Poll::Ready(output) => std::task::Poll::Ready(Some(output)),
            std::task::Poll::Pending => std::task::Poll::Ready(None),
        })
        .await
    }
}
