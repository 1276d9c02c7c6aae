//! Telling that a file is written to again, once. For files that are quiet most of the time: whoever is told looks for
//! himself, and asks again when he has seen enough.

use std::io;
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use futures::StreamExt as _;
use inotify::{EventMask, EventStream, Inotify, WatchDescriptor, WatchMask};

#[async_trait]
pub trait FirstWrites: Send {
    /// The next write to the file is told, once. Only a hint: it may be missed.
    fn expect(&mut self, path: &Path);
    /// A file that was written to. May be dropped while it waits, and never ends.
    async fn next(&mut self) -> PathBuf;
}

/// The kernel's file-change notification.
pub struct InotifyWrites {
    events: EventStream<Vec<u8>>,
    expected: Vec<(WatchDescriptor, PathBuf)>,
}

impl InotifyWrites {
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            events: Inotify::init()?.into_event_stream(vec![0; 4096])?,
            expected: Vec::new(),
        })
    }
}

#[async_trait]
impl FirstWrites for InotifyWrites {
    fn expect(&mut self, path: &Path) {
        let mask = WatchMask::MODIFY | WatchMask::ONESHOT | WatchMask::DONT_FOLLOW;
        let Ok(descriptor) = self.events.watches().add(path, mask) else {
            return;
        };
        match self.expected.iter_mut().find(|(d, _)| *d == descriptor) {
            Some((_, known)) => path.clone_into(known),
            None => self.expected.push((descriptor, path.to_owned())),
        }
    }

    async fn next(&mut self) -> PathBuf {
        loop {
            let Some(Ok(event)) = self.events.next().await else {
                return std::future::pending().await;
            };
            let at = self.expected.iter().position(|(d, _)| *d == event.wd);
            // After the one event, and when the file is gone, the kernel says that it does not watch any more.
            let Some(at) = at else { continue };
            let (_, path) = self.expected.swap_remove(at);
            if event.mask.contains(EventMask::MODIFY) {
                return path;
            }
        }
    }
}

/// Where nobody can tell.
pub struct NoWrites;

#[async_trait]
impl FirstWrites for NoWrites {
    fn expect(&mut self, _: &Path) {}

    async fn next(&mut self) -> PathBuf {
        std::future::pending().await
    }
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::io::Write as _;

    use futures::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn the_first_write_is_told_and_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let write = |name: &str| {
            let file = OpenOptions::new()
                .append(true)
                .create(true)
                .open(path(name));
            file.unwrap().write_all(b"x").unwrap();
        };
        for name in ["a", "b", "c"] {
            write(name);
        }
        let mut writes = InotifyWrites::new().unwrap();
        writes.expect(&path("a"));
        writes.expect(&path("a"));
        writes.expect(&path("c"));
        writes.expect(&path("missing"));
        for name in ["a", "a", "b"] {
            write(name);
        }
        assert_eq!(writes.next().await, path("a"));
        std::fs::remove_file(path("c")).unwrap();
        write("a");
        assert_eq!(writes.next().now_or_never(), None);
        assert!(writes.expected.is_empty(), "what is gone is forgotten");
        writes.expect(&path("b"));
        write("b");
        assert_eq!(writes.next().await, path("b"));
    }
}
