//! Telling that something in a directory changed. Only a hint: whoever is told looks for himself.

use std::io;
use std::path::Path;

use futures::StreamExt;
use futures::stream::BoxStream;
use inotify::{EventMask, Inotify, WatchMask};

/// An item for each burst of changes; ends when the directory can no longer be watched.
pub type WatchStream = BoxStream<'static, ()>;

pub trait DirectoryWatch: Send + Sync {
    fn watch(&self, directory: &Path) -> io::Result<WatchStream>;
}

/// The kernel's file-change notification.
#[derive(Clone, Copy, Debug, Default)]
pub struct InotifyWatch;

impl DirectoryWatch for InotifyWatch {
    fn watch(&self, directory: &Path) -> io::Result<WatchStream> {
        let inotify = Inotify::init()?;
        // Finished writes and renames, not each write: a half-written file is not worth a look.
        let mask = WatchMask::CLOSE_WRITE
            | WatchMask::MOVED_TO
            | WatchMask::MOVED_FROM
            | WatchMask::DELETE
            | WatchMask::CREATE
            | WatchMask::ATTRIB
            | WatchMask::DELETE_SELF
            | WatchMask::MOVE_SELF
            | WatchMask::ONLYDIR;
        inotify.watches().add(directory, mask)?;
        let events = inotify.into_event_stream(vec![0u8; 4096])?;
        let stream = futures::stream::unfold(events, |mut events| async move {
            let event = events.next().await?.ok()?;
            // The directory itself went away: whoever listens watches anew.
            let gone = event.mask.contains(EventMask::IGNORED);
            (!gone).then_some(((), events))
        });
        Ok(stream.boxed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn changes_are_told_and_the_end_of_the_directory_ends_the_stream() {
        let dir = tempfile::tempdir().unwrap();
        let sub = dir.path().join("manifests");
        std::fs::create_dir(&sub).unwrap();
        let mut changes = InotifyWatch.watch(&sub).unwrap();
        std::fs::write(sub.join("a.yaml"), "x").unwrap();
        assert_eq!(changes.next().await, Some(()));
        std::fs::remove_dir_all(&sub).unwrap();
        while changes.next().await.is_some() {}
    }

    #[tokio::test]
    async fn a_missing_directory_is_an_error() {
        assert!(
            InotifyWatch
                .watch(Path::new("/nonexistent/manifests"))
                .is_err()
        );
    }
}
