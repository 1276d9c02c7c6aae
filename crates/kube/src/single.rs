//! One attempt at a time, shared by all who need its outcome.
//!
//! Whoever waits drives it; nobody owns it. When all who waited have given up, it stays where it is, and the next
//! to come drives it on, unless its time is over by then. So a caller's short deadline does not end what others, or
//! the same caller's next try, could have had.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::{BoxFuture, Shared};
use tokio::time::Instant;

type Attempt<T> = Shared<BoxFuture<'static, T>>;

pub(crate) struct Single<T: Clone> {
    running: Mutex<Option<(Attempt<T>, Instant)>>,
}

impl<T: Clone> Default for Single<T> {
    fn default() -> Self {
        Self {
            running: Mutex::default(),
        }
    }
}

impl<T: Clone> Single<T> {
    /// The outcome of the attempt under way, or of one that `begin` makes and that takes at most `limit`.
    pub(crate) async fn run(
        &self,
        limit: Duration,
        begin: impl FnOnce() -> BoxFuture<'static, T>,
    ) -> T {
        let attempt = self.join(limit, begin);
        let outcome = attempt.clone().await;
        // What came out belongs to those who waited; keeping it here would keep it alive.
        let mut running = self.lock();
        if running.as_ref().is_some_and(|(a, _)| a.ptr_eq(&attempt)) {
            *running = None;
        }
        outcome
    }

    fn join(&self, limit: Duration, begin: impl FnOnce() -> BoxFuture<'static, T>) -> Attempt<T> {
        let now = Instant::now();
        let mut running = self.lock();
        match &*running {
            Some((attempt, until)) if *until > now => attempt.clone(),
            _ => {
                let attempt = begin().shared();
                *running = Some((attempt.clone(), now + limit));
                attempt
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<(Attempt<T>, Instant)>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::Notify;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    struct World {
        single: Single<usize>,
        begun: Arc<AtomicUsize>,
        go: Arc<Notify>,
    }

    impl World {
        fn new() -> Self {
            Self {
                single: Single::default(),
                begun: Arc::default(),
                go: Arc::default(),
            }
        }

        async fn run(&self) -> usize {
            let (begun, go) = (self.begun.clone(), self.go.clone());
            let begin = || {
                async move {
                    let serial = begun.fetch_add(1, Ordering::Relaxed) + 1;
                    go.notified().await;
                    serial
                }
                .boxed()
            };
            self.single.run(LIMIT, begin).await
        }
    }

    #[tokio::test(start_paused = true)]
    async fn all_who_wait_share_one_attempt() {
        let world = World::new();
        let go = async { world.go.notify_one() };
        let (a, b, ()) = tokio::join!(world.run(), world.run(), go);
        assert_eq!((a, b), (1, 1));
        world.go.notify_one();
        assert_eq!(world.run().await, 2, "the outcome is not kept");
    }

    #[tokio::test(start_paused = true)]
    async fn an_attempt_outlives_those_who_gave_up_but_not_its_time() {
        let world = World::new();
        let short = Duration::from_secs(5);
        assert!(tokio::time::timeout(short, world.run()).await.is_err());
        world.go.notify_one();
        assert_eq!(world.run().await, 1, "goes on where it was");
        assert!(tokio::time::timeout(short, world.run()).await.is_err());
        tokio::time::advance(LIMIT).await;
        world.go.notify_one();
        assert_eq!(world.run().await, 3, "its time was over");
    }
}
