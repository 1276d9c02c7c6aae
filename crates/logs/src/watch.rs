//! Tells those who follow logs that something in a log's directory changed. One inotify instance
//! serves all of them, for a machine has few to give; a directory is watched while somebody follows a
//! log in it. The instance is asked for by the first who follows. When there is none to be had, he is told so, and the next
//! one asks again: everything else at the door does without.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::StreamExt as _;
use inotify::{EventMask, Inotify, WatchDescriptor, WatchMask, Watches};
use rustix::io::Errno;
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

type Open = Box<dyn Fn() -> io::Result<Inotify> + Send + Sync>;

/// Must be asked within a runtime, whose task it keeps from the first time on until it is dropped.
pub struct LogWatch {
    open: Open,
    instance: Mutex<Option<Instance>>,
}

struct Instance {
    shared: Arc<Shared>,
    _task: JoinSet<()>,
}

impl Default for LogWatch {
    fn default() -> Self {
        Self::by(Inotify::init)
    }
}

/// Changes in one directory. A hint: whoever is told looks for himself.
pub struct DirectoryChanges {
    shared: Arc<Shared>,
    path: PathBuf,
    changes: watch::Receiver<u64>,
}

/// A limit of the machine that stands in the way is called by its name.
fn naming_the_limit(e: io::Error) -> io::Error {
    let limit = match Errno::from_io_error(&e) {
        Some(Errno::MFILE) => "fs.inotify.max_user_instances or the agent's limit on open files",
        Some(Errno::NOSPC) => "fs.inotify.max_user_watches",
        _ => return e,
    };
    io::Error::new(e.kind(), format!("{limit} is used up: {e}"))
}

impl Instance {
    fn of(inotify: Inotify) -> io::Result<Self> {
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
}

impl LogWatch {
    /// One that gets its instance otherwise, for tests.
    pub fn by(open: impl Fn() -> io::Result<Inotify> + Send + Sync + 'static) -> Self {
        Self {
            open: Box::new(open),
            instance: Mutex::default(),
        }
    }

    fn shared(&self) -> io::Result<Arc<Shared>> {
        let mut instance = lock(&self.instance);
        if let Some(instance) = &*instance {
            return Ok(instance.shared.clone());
        }
        let inotify = (self.open)().map_err(naming_the_limit)?;
        let new = Instance::of(inotify)?;
        let shared = new.shared.clone();
        *instance = Some(new);
        Ok(shared)
    }

    pub fn directory(&self, path: &Path) -> io::Result<DirectoryChanges> {
        let shared = self.shared()?;
        let mut directories = lock(&shared.directories);
        if !directories.contains_key(path) {
            let mask = WatchMask::MODIFY
                | WatchMask::CREATE
                | WatchMask::MOVED_TO
                | WatchMask::MOVED_FROM
                | WatchMask::DELETE
                | WatchMask::DELETE_SELF
                | WatchMask::ONLYDIR;
            let added = lock(&shared.watches).add(path, mask);
            let descriptor = added.map_err(naming_the_limit)?;
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
        let changes = directory.changes.subscribe();
        drop(directories);
        Ok(DirectoryChanges {
            shared,
            path: path.to_owned(),
            changes,
        })
    }

    /// How many directories are watched.
    pub fn directories(&self) -> usize {
        let instance = lock(&self.instance);
        let shared = instance.as_ref().map(|instance| &instance.shared);
        shared.map_or(0, |shared| lock(&shared.directories).len())
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
    use std::sync::atomic::{AtomicBool, Ordering};

    #[tokio::test]
    async fn followers_share_a_watch_and_the_last_takes_it_away() {
        let dir = tempfile::tempdir().unwrap();
        let watch = LogWatch::default();
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

    /// A node whose instances are all taken, until one is free again.
    #[tokio::test]
    async fn who_follows_later_asks_again() {
        let dir = tempfile::tempdir().unwrap();
        let free = Arc::new(AtomicBool::new(false));
        let is_free = free.clone();
        let watch = LogWatch::by(move || match is_free.load(Ordering::Relaxed) {
            true => Inotify::init(),
            false => Err(Errno::MFILE.into()),
        });
        for _ in 0..2 {
            let refused = watch.directory(dir.path()).map(|_| ()).unwrap_err();
            let why = refused.to_string();
            assert!(why.contains("fs.inotify.max_user_instances"), "{why}");
        }
        free.store(true, Ordering::Relaxed);
        let mut changes = watch.directory(dir.path()).unwrap();
        std::fs::write(dir.path().join("0.log"), "x").unwrap();
        changes.changed().await;
        free.store(false, Ordering::Relaxed);
        assert!(watch.directory(dir.path()).is_ok(), "one is enough for all");
    }
}
