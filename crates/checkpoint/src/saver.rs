//! Writing what changes often: at most once a second, and the newest always.

use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until};
use tracing::{info, warn};

use crate::error::CheckpointError;

/// Between the beginnings of two writes.
const PACE: Duration = Duration::from_secs(1);
/// Between attempts while the disk refuses; doubles from [`PACE`] up to this.
const SLOWEST: Duration = Duration::from_secs(60);
/// How long an end waits for the last write.
const LAST_WRITE: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Saved {
    Written,
    /// The same bytes stand there already.
    Unchanged,
}

/// Where a [`Saver`] puts what it is given.
#[async_trait]
pub trait Store<T>: Send {
    async fn save(&mut self, value: &T) -> Result<Saved, CheckpointError>;
    /// For the log.
    fn path(&self) -> &Path;
}

/// Takes what is to be saved. Holds one value at a time, the newest, and none once that is written.
pub struct Saver<T> {
    newest: watch::Sender<Newest<T>>,
    /// The number of the last value that is known to be written.
    written: watch::Receiver<u64>,
    /// Closes when the last saver is dropped; nothing is ever sent.
    _alive: mpsc::Sender<Infallible>,
}

impl<T> Clone for Saver<T> {
    fn clone(&self) -> Self {
        Self {
            newest: self.newest.clone(),
            written: self.written.clone(),
            _alive: self._alive.clone(),
        }
    }
}

/// A value and its number. No value was set yet, with number 0, or it is written and nobody needs it any more.
struct Newest<T> {
    number: u64,
    value: Option<Arc<T>>,
}

impl<T> Saver<T> {
    /// Never waits. What was set before and is not yet written is dropped.
    pub fn set(&self, value: T) {
        self.newest.send_modify(|newest| {
            newest.number += 1;
            newest.value = Some(Arc::new(value));
        });
    }

    /// Waits until what was last set is written, or a later value in its place. Ends at once when
    /// nobody writes any more.
    pub async fn saved(&self) {
        let number = self.newest.borrow().number;
        let mut written = self.written.clone();
        // An error means that the writing end is gone.
        let _ = written.wait_for(|written| *written >= number).await;
    }
}

/// The writing end; see [`SaverTask::run`].
pub struct SaverTask<T> {
    newest: watch::Receiver<Newest<T>>,
    /// For letting go of what is written.
    setting: watch::Sender<Newest<T>>,
    alive: mpsc::Receiver<Infallible>,
    store: Box<dyn Store<T>>,
    /// The number of the value that is known to be written.
    written: watch::Sender<u64>,
    failures: u32,
}

pub fn saver<T: Send + Sync + 'static>(store: impl Store<T> + 'static) -> (Saver<T>, SaverTask<T>) {
    let (newest, seen) = watch::channel(Newest {
        number: 0,
        value: None,
    });
    let (alive, closed) = mpsc::channel(1);
    let (written, known) = watch::channel(0);
    let saver = Saver {
        newest,
        written: known,
        _alive: alive,
    };
    let task = SaverTask {
        newest: seen,
        setting: saver.newest.clone(),
        alive: closed,
        store: Box::new(store),
        written,
        failures: 0,
    };
    (saver, task)
}

impl<T: Send + Sync + 'static> SaverTask<T> {
    /// Writes until the last [`Saver`] is dropped, then the last value, and ends. So at shutdown: drop
    /// the savers, then await this. A disk that hangs is waited for no longer than a few seconds.
    pub async fn run(mut self) {
        while self.next_is_there().await {
            let begun = Instant::now();
            if !self.write().await {
                return;
            }
            let next = begun + pause(self.failures);
            tokio::select! {
                biased;
                _ = self.alive.recv() => break,
                () = sleep_until(next) => {}
            }
        }
        self.write().await;
    }

    /// False when there will be none any more.
    async fn next_is_there(&mut self) -> bool {
        while self.unwritten().is_none() {
            tokio::select! {
                biased;
                _ = self.alive.recv() => return false,
                _ = self.newest.changed() => {}
            }
        }
        true
    }

    fn unwritten(&mut self) -> Option<(u64, Arc<T>)> {
        let newest = self.newest.borrow_and_update();
        let value = newest.value.clone()?;
        (newest.number != *self.written.borrow()).then_some((newest.number, value))
    }

    /// One attempt. False when it hung until the end and was given up.
    async fn write(&mut self) -> bool {
        let Some((number, value)) = self.unwritten() else {
            return true;
        };
        let result = tokio::select! {
            biased;
            result = self.store.save(&value) => result,
            () = overdue(&mut self.alive) => {
                let file = self.store.path().display();
                warn!("State file {file} was not written in time for the end");
                return false;
            }
        };
        let file = self.store.path().display();
        match result {
            Ok(_) => {
                if self.failures > 0 {
                    info!("State file {file} is written again");
                }
                self.failures = 0;
                self.written.send_replace(number);
                self.forget(number);
            }
            Err(error) => {
                if self.failures == 0 {
                    warn!("State file {file} cannot be written, trying again: {error}");
                }
                self.failures = self.failures.saturating_add(1);
            }
        }
        true
    }
}

impl<T> SaverTask<T> {
    /// Lets go of a value that is written, unless there is a newer one. Nobody needs to wake for that.
    fn forget(&self, number: u64) {
        self.setting.send_if_modified(|newest| {
            if newest.number == number {
                newest.value = None;
            }
            false
        });
    }
}

pub(crate) fn pause(failures: u32) -> Duration {
    PACE.saturating_mul(1 << failures.saturating_sub(1).min(10))
        .min(SLOWEST)
}

/// Returns some time after the last saver is gone.
async fn overdue(alive: &mut mpsc::Receiver<Infallible>) {
    alive.recv().await;
    sleep(LAST_WRITE).await;
}
