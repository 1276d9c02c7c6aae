//! The parts of a running agent, and their end.

use std::time::Duration;

use tokio::task::JoinSet;
use tracing::warn;

use crate::lock::Lock;
use crate::preflight::LockFile;

/// How long the end waits for the last writes; a disk that hangs must not keep the process alive.
const LAST_WRITES: Duration = Duration::from_secs(8);

#[derive(Default)]
pub struct Parts {
    /// None of these ends by itself.
    pub tasks: JoinSet<()>,
    /// Those that write state files. They end when nobody is left who could give them something to write.
    pub savers: JoinSet<()>,
    /// Held until the last write is done.
    pub lock_file: Option<LockFile>,
    pub root_lock: Option<Lock>,
}

impl Parts {
    /// Ends the tasks, then lets the savers write what they were given last. Whoever holds a `Saver` beside
    /// the tasks has to be gone by now.
    pub async fn end(mut self) {
        let end = async {
            self.tasks.shutdown().await;
            while self.savers.join_next().await.is_some() {}
        };
        if tokio::time::timeout(LAST_WRITES, end).await.is_err() {
            warn!("Not all state files were written in time for the end");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_was_learnt_last_is_written_before_the_end() {
        let (tell, mut told) = tokio::sync::mpsc::channel(2);
        for value in ["first", "last"] {
            tell.send(value).await.unwrap();
        }
        let written = Arc::new(Mutex::new(Vec::new()));
        let mut parts = Parts::default();
        parts.tasks.spawn(async move {
            tell.closed().await;
        });
        let file = written.clone();
        parts.savers.spawn(async move {
            while let Some(value) = told.recv().await {
                // A write takes a while.
                tokio::time::sleep(Duration::from_secs(1)).await;
                file.lock().unwrap().push(value);
            }
        });
        parts.end().await;
        assert_eq!(*written.lock().unwrap(), ["first", "last"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_disk_that_hangs_does_not_hold_up_the_end() {
        let mut parts = Parts::default();
        parts.savers.spawn(std::future::pending());
        parts.end().await;
    }
}
