//! Telling that something in the store's directories changed. Only a hint: whoever is told looks
//! for himself.

use std::io;
use std::path::Path;

use futures::StreamExt as _;
use futures::stream::{BoxStream, select_all};
use krablet_linux::{DirectoryWatch as _, InotifyWatch};

/// An item for each change; ends when the directories can no longer be watched.
pub type Changes = BoxStream<'static, ()>;

/// The kernel's file-change notification for these directories.
pub fn watch<P: AsRef<Path>>(directories: &[P]) -> io::Result<Changes> {
    let each = directories.iter().map(|d| InotifyWatch.watch(d.as_ref()));
    let all: io::Result<Vec<Changes>> = each.collect();
    Ok(select_all(all?).boxed())
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
