//! One watch: lines of what changed, late, cut off, or never.

use std::future::pending;
use std::sync::Weak;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use krablet_kube::{ApiError, Watch};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};

use super::{Shared, Tide, lock};
use crate::world::WatchWeather;

/// Between bookmarks.
const BOOKMARKS: Duration = Duration::from_secs(60);

struct Lines {
    shared: Weak<Shared>,
    tide: watch::Receiver<Tide>,
    /// As many watches had been cut when this one began.
    cuts: u64,
    /// Changes told, and changes that may be told.
    told: usize,
    ready: usize,
    bookmark: Instant,
    end: Instant,
    closed: bool,
}

pub(super) fn lines(shared: &std::sync::Arc<Shared>, from: usize, lasts: Duration) -> Watch {
    let tide = shared.tide.subscribe();
    let cuts = tide.borrow().cuts;
    let lines = Lines {
        shared: std::sync::Arc::downgrade(shared),
        tide,
        cuts,
        told: from,
        ready: from,
        bookmark: Instant::now() + BOOKMARKS,
        end: Instant::now() + lasts,
        closed: false,
    };
    futures::stream::unfold(lines, Lines::next).boxed()
}

impl Lines {
    async fn next(mut self) -> Option<(Result<Bytes, ApiError>, Self)> {
        loop {
            if self.closed {
                return None;
            }
            let Tide { cuts, up, version } = *self.tide.borrow_and_update();
            if !up || (cuts != self.cuts && cuts % 2 == 0) {
                self.closed = true;
                let error = ApiError::Connection("connection reset by peer".to_owned());
                return Some((Err(error), self));
            }
            if cuts != self.cuts {
                return None;
            }
            if self.told < self.ready {
                let shared = self.shared.upgrade()?;
                let line = lock(&shared.store).change(self.told)?.line();
                self.told += 1;
                return Some((Ok(line), self));
            }
            if self.ready < version {
                let weather = self.shared.upgrade()?.world.watch_weather();
                match weather {
                    WatchWeather::After(delay) => sleep(delay).await,
                    WatchWeather::Silence => self.silence().await,
                    WatchWeather::Gone => {
                        self.closed = true;
                        let gone = br#"{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired","message":"too old resource version"}}"#;
                        return Some((Ok(Bytes::from_static(gone)), self));
                    }
                }
                // What was written at once need not arrive at once.
                let shared = self.shared.upgrade()?;
                self.ready += shared.world.watched_of(version - self.ready);
                continue;
            }
            tokio::select! {
                biased;
                changed = self.tide.changed() => if changed.is_err() {
                    return None;
                },
                () = sleep_until(self.bookmark.min(self.end)) => {
                    if Instant::now() >= self.end {
                        return None;
                    }
                    self.bookmark = Instant::now() + BOOKMARKS;
                    let line = format!(
                        r#"{{"type":"BOOKMARK","object":{{"kind":"Pod","metadata":{{"resourceVersion":"{}"}}}}}}"#,
                        self.told
                    );
                    return Some((Ok(line.into()), self));
                }
            }
        }
    }

    /// Nothing more comes, not even an end, unless the connection breaks.
    async fn silence(&mut self) {
        loop {
            let Tide { cuts, up, .. } = *self.tide.borrow_and_update();
            if !up || cuts != self.cuts {
                return;
            }
            if self.tide.changed().await.is_err() {
                pending::<()>().await;
            }
        }
    }
}
