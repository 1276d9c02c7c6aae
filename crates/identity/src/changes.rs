//! Telling that something in the store's directories changed. Only a hint: whoever is told looks
//! for himself.

use std::io;
use std::path::Path;

use futures::StreamExt as _;
use futures::stream::{BoxStream, select_all};
use inotify::{EventMask, Inotify, WatchMask};

/// An item for each change; ends when the directories can no longer be watched.
pub type Changes = BoxStream<'static, ()>;

/// The kernel's file-change notification for these directories.
pub fn watch<P: AsRef<Path>>(directories: &[P]) -> io::Result<Changes> {
    let all: io::Result<Vec<Changes>> = directories.iter().map(|d| watch_one(d.as_ref())).collect();
    Ok(select_all(all?).boxed())
}

fn watch_one(directory: &Path) -> io::Result<Changes> {
    let inotify = Inotify::init()?;
    // Finished writes, links and renames; a half-written file is not worth a look.
    let mask = WatchMask::CLOSE_WRITE
        | WatchMask::CREATE
        | WatchMask::MOVED_TO
        | WatchMask::MOVED_FROM
        | WatchMask::DELETE
        | WatchMask::ONLYDIR;
    inotify.watches().add(directory, mask)?;
    let events = inotify.into_event_stream(vec![0u8; 4096])?;
    let stream = futures::stream::unfold(events, |mut events| async move {
        let event = events.next().await?.ok()?;
        let gone = event.mask.contains(EventMask::IGNORED);
        (!gone).then_some(((), events))
    });
    Ok(stream.boxed())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_turned_link_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let mut changes = watch(&[dir.path()]).unwrap();
        std::os::unix::fs::symlink("/nowhere", dir.path().join("new")).unwrap();
        assert_eq!(changes.next().await, Some(()));
        std::fs::rename(dir.path().join("new"), dir.path().join("link")).unwrap();
        assert_eq!(changes.next().await, Some(()));
        assert!(watch(&[Path::new("/nonexistent/pki")]).is_err());
    }
}
