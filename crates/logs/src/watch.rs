//! Tells those who follow logs that something in a log's directory changed. One inotify instance
//! serves all of them, for a machine has few to give; a directory is watched while somebody follows a
//! log in it.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::StreamExt as _;
use inotify::{EventMask, Inotify, WatchDescriptor, WatchMask, Watches};
use tokio::sync::watch;
use tokio::task::JoinSet;

const BUFFER: usize = 16 * 1024;

struct Directory {
    descriptor: WatchDescriptor,
    changes: watch::Sender<u64>,
    followers: usize,
}

type Directories = BTreeMap<PathBuf, Directory>;

struct Shared {
    watches: Mutex<Watches>,
    directories: Mutex<Directories>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Must be made within a runtime, whose task it keeps until it is dropped.
pub struct LogWatch {
    shared: Arc<Shared>,
    _task: JoinSet<()>,
}

/// Changes in one directory. A hint: whoever is told looks for himself.
pub struct DirectoryChanges {
    shared: Arc<Shared>,
    path: PathBuf,
    changes: watch::Receiver<u64>,
}

impl LogWatch {
    pub fn new() -> io::Result<Self> {
        let inotify = Inotify::init()?;
        let shared = Arc::new(Shared {
            watches: Mutex::new(inotify.watches()),
            directories: Mutex::default(),
        });
        let events = inotify.into_event_stream(vec![0; BUFFER])?;
        let told = shared.clone();
        let mut task = JoinSet::new();
        task.spawn(async move {
            let mut events = events;
            while let Some(Ok(event)) = events.next().await {
                tell(&told, &event.wd, event.mask);
            }
        });
        Ok(Self {
            shared,
            _task: task,
        })
    }

    pub fn directory(&self, path: &Path) -> io::Result<DirectoryChanges> {
        let mut directories = lock(&self.shared.directories);
        if !directories.contains_key(path) {
            let mask = WatchMask::MODIFY
                | WatchMask::CREATE
                | WatchMask::MOVED_TO
                | WatchMask::MOVED_FROM
                | WatchMask::DELETE
                | WatchMask::DELETE_SELF
                | WatchMask::ONLYDIR;
            let descriptor = lock(&self.shared.watches).add(path, mask)?;
            let (changes, _) = watch::channel(0);
            let directory = Directory {
                descriptor,
                changes,
                followers: 0,
            };
            directories.insert(path.to_owned(), directory);
        }
        let directory = directories
            .get_mut(path)
            .ok_or_else(|| io::Error::other("the watch is gone"))?;
        directory.followers += 1;
        Ok(DirectoryChanges {
            shared: self.shared.clone(),
            path: path.to_owned(),
            changes: directory.changes.subscribe(),
        })
    }

    /// How many directories are watched.
    pub fn directories(&self) -> usize {
        lock(&self.shared.directories).len()
    }
}

fn tell(shared: &Shared, descriptor: &WatchDescriptor, mask: EventMask) {
    let directories = lock(&shared.directories);
    // Too much happened at once for the kernel to tell: everyone looks.
    let all = mask.contains(EventMask::Q_OVERFLOW);
    for directory in directories.values() {
        if all || directory.descriptor == *descriptor {
            directory.changes.send_modify(|count| *count += 1);
        }
    }
}

impl DirectoryChanges {
    /// Waits for a change since the last time this returned.
    pub async fn changed(&mut self) {
        if self.changes.changed().await.is_err() {
            // Nobody will tell any more; the end of the container still ends the wait.
            std::future::pending::<()>().await;
        }
    }
}

impl Drop for DirectoryChanges {
    fn drop(&mut self) {
        let mut directories = lock(&self.shared.directories);
        let Some(directory) = directories.get_mut(&self.path) else {
            return;
        };
        directory.followers -= 1;
        if directory.followers == 0
            && let Some(directory) = directories.remove(&self.path)
        {
            // A directory that was removed took its watch with it.
            let _ = lock(&self.shared.watches).remove(directory.descriptor);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt as _;

    #[tokio::test]
    async fn followers_share_a_watch_and_the_last_takes_it_away() {
        let dir = tempfile::tempdir().unwrap();
        let watch = LogWatch::new().unwrap();
        let mut one = watch.directory(dir.path()).unwrap();
        let mut two = watch.directory(dir.path()).unwrap();
        assert_eq!(watch.directories(), 1);
        assert_eq!(one.changed().now_or_never(), None);
        std::fs::write(dir.path().join("0.log"), "x").unwrap();
        one.changed().await;
        two.changed().await;
        drop(one);
        assert_eq!(watch.directories(), 1);
        drop(two);
        assert_eq!(watch.directories(), 0);
        assert!(watch.directory(Path::new("/nonexistent/logs")).is_err());
        assert_eq!(watch.directories(), 0);
    }
}
