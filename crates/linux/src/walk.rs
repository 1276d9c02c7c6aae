//! Walks through trees that may take very long, or never end: they stop when nobody waits for them, and tell how far
//! they are.

use std::io;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::sleep;

use crate::failure::{alone, refuse};

/// As long as the kubelet waits before it tells of one, and between one word and the next.
const LONG: Duration = Duration::from_secs(30);
const AGAIN: Duration = Duration::from_secs(60);

/// A walk under way, as whoever walks and whoever waits see it.
#[derive(Debug, Default)]
pub(crate) struct Walk {
    stopped: AtomicBool,
    seen: AtomicU64,
}

impl Walk {
    /// Before each entry is touched.
    pub fn step(&self, action: &'static str, path: &Path) -> io::Result<()> {
        if self.stopped.load(Ordering::Relaxed) {
            let why = "nobody waits for it any more";
            return Err(refuse(io::ErrorKind::Interrupted, action, path, why));
        }
        self.seen.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

/// Whoever waited has gone.
struct StopsWhenDropped(Arc<Walk>);

impl Drop for StopsWhenDropped {
    fn drop(&mut self) {
        self.0.stopped.store(true, Ordering::Relaxed);
    }
}

/// Walks on a thread of its own, and tells of it if it takes long: with nothing at first, then with how many entries
/// it has seen. Dropped, it stops before the next entry: only a call that hangs in the kernel keeps the thread.
pub(crate) async fn walk<T, F>(walk: F, mut tell: impl FnMut(Option<u64>)) -> io::Result<T>
where
    T: Send + 'static,
    F: FnOnce(&Walk) -> io::Result<T> + Send + 'static,
{
    let state = Arc::new(Walk::default());
    let _stop = StopsWhenDropped(state.clone());
    let walked = state.clone();
    let tell = |first: bool| tell((!first).then(|| state.seen.load(Ordering::Relaxed)));
    patiently(alone(move || walk(&walked)), tell).await
}

/// Tells, the first time and every other, that something takes long.
pub(crate) async fn patiently<T>(done: impl Future<Output = T>, mut tell: impl FnMut(bool)) -> T {
    let mut done = pin!(done);
    let (mut first, mut wait) = (true, LONG);
    loop {
        tokio::select! {
            biased;
            done = &mut done => return done,
            () = sleep(wait) => tell(first),
        }
        (first, wait) = (false, AGAIN);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use tokio::time::Instant;

    #[tokio::test(start_paused = true)]
    async fn what_takes_long_is_told_of_and_then_every_minute() {
        for (takes, expected) in [
            (29, vec![]),
            (31, vec![(30, true)]),
            (151, vec![(30, true), (90, false), (150, false)]),
        ] {
            let (begun, mut told) = (Instant::now(), Vec::new());
            let done = sleep(Duration::from_secs(takes));
            patiently(done, |first| told.push((begun.elapsed().as_secs(), first))).await;
            assert_eq!(told, expected, "{takes}");
        }
    }

    #[tokio::test]
    async fn a_walk_stops_when_nobody_waits_for_it() {
        let (begin, begun) = tokio::sync::oneshot::channel();
        let (go, wait) = mpsc::channel::<()>();
        let (tell, told) = tokio::sync::oneshot::channel();
        let at = Path::new("/tree");
        let walked = walk(
            move |walk| {
                let before = walk.step("touch", at).is_ok();
                let _ = begin.send(());
                wait.recv().map_err(io::Error::other)?;
                let _ = tell.send((before, walk.step("touch", at).map_err(|e| e.kind())));
                Ok(())
            },
            |_| {},
        );
        {
            let mut walked = pin!(walked);
            tokio::select! {
                biased;
                _ = &mut walked => panic!("it waits"),
                begun = begun => begun.unwrap(),
            }
        }
        go.send(()).unwrap();
        let stopped = Err(io::ErrorKind::Interrupted);
        assert_eq!(told.await.unwrap(), (true, stopped));
    }
}
