//! Calls that may never come back, for they ask a file system that hangs.
//!
//! Such a call holds a thread until the kernel lets go of it, so each is made once however often it is asked for, and
//! there is a bound on how many hang at once. Who asks waits no longer than he has said.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Calls under way, by what tells them apart.
pub struct Pending<K, T> {
    limit: usize,
    calls: Mutex<Calls<K, T>>,
}

struct Calls<K, T> {
    tasks: JoinSet<()>,
    by_key: BTreeMap<K, watch::Receiver<Option<T>>>,
}

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoAnswer {
    /// Not in time. The call goes on.
    Late,
    /// As many calls as may be have not come back.
    TooMany,
}

impl<K: Ord, T: Clone + Send + Sync + 'static> Pending<K, T> {
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            calls: Mutex::new(Calls {
                tasks: JoinSet::new(),
                by_key: BTreeMap::new(),
            }),
        }
    }

    /// Makes the call, or joins the same one if it is under way.
    pub async fn ask(
        &self,
        key: K,
        deadline: Duration,
        call: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, NoAnswer> {
        let mut answer = self.begin(key, call).ok_or(NoAnswer::TooMany)?;
        let answered = timeout(deadline, answer.wait_for(Option::is_some)).await;
        let answered = answered.map_err(|_| NoAnswer::Late)?;
        answered
            .ok()
            .and_then(|answer| answer.clone())
            .ok_or(NoAnswer::Late)
    }

    fn begin(
        &self,
        key: K,
        call: impl Future<Output = T> + Send + 'static,
    ) -> Option<watch::Receiver<Option<T>>> {
        let mut calls = self.calls();
        // What has ended answers nobody who asks from now on.
        calls.by_key.retain(|_, answer| answer.borrow().is_none());
        while calls.tasks.try_join_next().is_some() {}
        if let Some(answer) = calls.by_key.get(&key) {
            return Some(answer.clone());
        }
        if calls.by_key.len() >= self.limit {
            return None;
        }
        let (tell, answer) = watch::channel(None);
        calls.tasks.spawn(async move {
            let found = call.await;
            tell.send_replace(Some(found));
        });
        calls.by_key.insert(key, answer.clone());
        Some(answer)
    }

    fn calls(&self) -> MutexGuard<'_, Calls<K, T>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    const SOON: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn one_that_hangs_is_made_once_and_keeps_nobody_else() {
        let calls = Pending::new(2);
        let made = Arc::new(AtomicUsize::new(0));
        for _ in 0..5 {
            let made = made.clone();
            let hangs = async move {
                made.fetch_add(1, Ordering::Relaxed);
                pending::<u32>().await
            };
            assert_eq!(calls.ask("a", SOON, hangs).await, Err(NoAnswer::Late));
        }
        assert_eq!(made.load(Ordering::Relaxed), 1);
        for n in 0..5 {
            assert_eq!(calls.ask("b", SOON, async move { n }).await, Ok(n));
        }
        let hangs = || pending::<u32>();
        assert_eq!(calls.ask("b", SOON, hangs()).await, Err(NoAnswer::Late));
        assert_eq!(calls.ask("c", SOON, hangs()).await, Err(NoAnswer::TooMany));
    }

    #[tokio::test(start_paused = true)]
    async fn who_asks_again_gets_the_answer_that_was_late() {
        let calls = Pending::new(2);
        let (tell, told) = tokio::sync::oneshot::channel::<u32>();
        let slow = async move { told.await.unwrap_or_default() };
        assert_eq!(calls.ask("a", SOON, slow).await, Err(NoAnswer::Late));
        let again = calls.ask("a", SOON, async { 0 });
        let answer = async { tell.send(7) };
        let (again, _) = tokio::join!(again, answer);
        assert_eq!(again, Ok(7));
    }
}
