//! The files of one log: the one being written, and those that were rotated away from it.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// One file, whatever its name is by now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    device: u64,
    inode: u64,
}

impl Identity {
    pub(crate) fn of(metadata: &fs::Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
        }
    }
}

/// The file that was begun after `held`, if there is one: what was rotated away after it, oldest
/// first, or the log itself. `None` while a rotation is under way, and while `held` is the log itself.
///
/// Their order says which it is. Times decide only if `held` has lost its name: a file that was just begun may seem older than the
/// last word in the one before it.
pub(crate) fn successor(log: &Path, held: &File) -> io::Result<Option<File>> {
    let metadata = held.metadata()?;
    let (identity, written) = (Identity::of(&metadata), times(&metadata));
    let mut files = opened(log)?;
    let place = |files: &[(File, fs::Metadata)]| {
        let is_held = |(_, metadata): &(File, fs::Metadata)| Identity::of(metadata) == identity;
        files.iter().position(is_held)
    };
    let mut found = place(&files);
    if found.is_none() {
        // It may have been renamed between the look at the names and the look at the files.
        files = opened(log)?;
        found = place(&files);
    }
    let mut files = files.into_iter();
    let next = match found {
        Some(at) => files.nth(at + 1),
        None => files.find(|(_, metadata)| times(metadata) > written),
    };
    Ok(next.map(|(file, _)| file))
}

/// The files that are there, oldest first.
fn opened(log: &Path) -> io::Result<Vec<(File, fs::Metadata)>> {
    let mut files = Vec::new();
    for path in in_order(log)? {
        match File::open(&path) {
            Ok(file) => {
                let metadata = file.metadata()?;
                files.push((file, metadata));
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(e),
        }
    }
    Ok(files)
}

fn times(metadata: &fs::Metadata) -> (i64, i64) {
    (metadata.mtime(), metadata.mtime_nsec())
}

/// `3.log.20260102-030405` and so on, oldest first, then `3.log`. Compressed ones were read long ago.
fn in_order(log: &Path) -> io::Result<Vec<PathBuf>> {
    let (Some(dir), Some(name)) = (log.parent(), log.file_name().and_then(|n| n.to_str())) else {
        return Ok(Vec::new());
    };
    let mut rotated = Vec::new();
    for entry in fs::read_dir(dir)? {
        let file = entry?.file_name();
        let stamp = file.to_str().and_then(|f| f.strip_prefix(name));
        let stamp = stamp.and_then(|rest| rest.strip_prefix('.'));
        let digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit() || b == b'-');
        if stamp.is_some_and(|s| !s.is_empty() && digits(s)) {
            rotated.push(dir.join(file));
        }
    }
    rotated.sort();
    rotated.push(log.to_owned());
    Ok(rotated)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;

    fn text(mut file: File) -> String {
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn files_follow_each_other() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let log = at("0.log");
        fs::write(&log, "one").unwrap();
        let one = File::open(&log).unwrap();
        assert!(successor(&log, &one).unwrap().is_none());
        fs::rename(&log, at("0.log.20260101-000000")).unwrap();
        assert!(successor(&log, &one).unwrap().is_none(), "not begun yet");
        fs::write(&log, "two").unwrap();
        let two = successor(&log, &one).unwrap().unwrap();
        // A second rotation before the reader came this far.
        fs::rename(&log, at("0.log.20260101-000010")).unwrap();
        fs::write(&log, "three").unwrap();
        fs::write(at("0.log.20260101-000000.gz"), "other").unwrap();
        fs::write(at("10.log"), "other").unwrap();
        let again = successor(&log, &one).unwrap().unwrap();
        assert_eq!(text(again), "two");
        let three = successor(&log, &two).unwrap().unwrap();
        assert_eq!(text(three), "three");
        // What was begun last seems older than what came before it.
        let three = File::open(&log).unwrap();
        let begun = three.metadata().unwrap().modified().unwrap();
        let later = begun + std::time::Duration::from_secs(1);
        let before = at("0.log.20260101-000010");
        File::options()
            .append(true)
            .open(&before)
            .unwrap()
            .set_modified(later)
            .unwrap();
        assert!(successor(&log, &three).unwrap().is_none());
        // The one held was compressed and removed.
        fs::remove_file(at("0.log.20260101-000000")).unwrap();
        assert!(successor(&log, &one).unwrap().is_some());
    }
}
