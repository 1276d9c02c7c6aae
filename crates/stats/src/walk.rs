//! How much a directory holds, found a few entries at a time. Whoever writes below it cannot lead the walk out of it: no
//! link is followed and no mount crossed.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{self, AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, Stat};

use crate::reading::Usage;

/// A walk that has seen this many entries ends there; its figure is then too small.
const MOST_ENTRIES: u64 = 2_000_000;
/// Directories that wait for their turn.
const MOST_WAITING: usize = 100_000;
/// Files with several names that are remembered; beyond that each name counts its share.
const MOST_LINKED: usize = 100_000;
/// `st_blocks` counts these, whatever the file system's blocks are.
const BLOCK: u64 = 512;

pub struct Walk {
    top: OwnedFd,
    current: Option<(PathBuf, Dir)>,
    waiting: Vec<PathBuf>,
    linked: BTreeSet<(u64, u64)>,
    entries: u64,
    usage: Usage,
}

impl Walk {
    pub fn new(top: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let top = fs::openat(CWD, top, flags, Mode::empty())?;
        let stat = fs::fstat(&top)?;
        let mut walk = Self {
            top,
            current: None,
            waiting: vec![PathBuf::from(".")],
            linked: BTreeSet::new(),
            entries: 0,
            usage: Usage::default(),
        };
        walk.count(&stat);
        Ok(walk)
    }

    /// Looks at about so many entries. What the directory holds, once all were seen.
    pub fn step(&mut self, entries: u64) -> Option<Usage> {
        let end = self.entries.saturating_add(entries).min(MOST_ENTRIES);
        while self.entries < end {
            let Some((path, mut dir)) = self.current.take() else {
                let Some(next) = self.waiting.pop() else {
                    return Some(self.usage);
                };
                self.current = self.open(&next).map(|dir| (next, dir));
                // Opening counts, or many directories that are gone would be one long step.
                self.entries += 1;
                continue;
            };
            if let Some(Ok(entry)) = dir.read() {
                self.look(&path, &dir, entry.file_name());
                self.current = Some((path, dir));
            }
        }
        (self.entries >= MOST_ENTRIES).then_some(self.usage)
    }

    fn open(&self, path: &Path) -> Option<Dir> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let inside = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
        let fd = fs::openat2(&self.top, path, flags, Mode::empty(), inside).ok()?;
        Dir::new(fd).ok()
    }

    fn look(&mut self, path: &Path, dir: &Dir, name: &std::ffi::CStr) {
        if matches!(name.to_bytes(), b"." | b"..") {
            return;
        }
        self.entries += 1;
        let stat = dir
            .fd()
            .and_then(|fd| fs::statat(fd, name, AtFlags::SYMLINK_NOFOLLOW));
        // Gone meanwhile.
        let Ok(stat) = stat else {
            return;
        };
        self.count(&stat);
        let is_dir = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        if is_dir && self.waiting.len() < MOST_WAITING {
            self.waiting
                .push(path.join(OsStr::from_bytes(name.to_bytes())));
        }
    }

    fn count(&mut self, stat: &Stat) {
        let bytes = u64::try_from(stat.st_blocks).unwrap_or_default() * BLOCK;
        let is_dir = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        let names = stat.st_nlink;
        if is_dir || names < 2 {
            self.usage.add(Usage { bytes, inodes: 1 });
        } else if self.linked.len() >= MOST_LINKED {
            let share = bytes / names;
            self.usage.add(Usage {
                bytes: share,
                inodes: 0,
            });
        } else if self.linked.insert((stat.st_dev, stat.st_ino)) {
            self.usage.add(Usage { bytes, inodes: 1 });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn walked(top: &Path, entries: u64) -> (Usage, u32) {
        let mut walk = Walk::new(top).unwrap();
        let mut steps = 1;
        loop {
            if let Some(usage) = walk.step(entries) {
                return (usage, steps);
            }
            steps += 1;
        }
    }

    #[test]
    fn a_tree_is_counted_once_however_small_the_steps() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().join("top");
        std::fs::create_dir_all(top.join("a/b")).unwrap();
        let file = top.join("a/b/file");
        std::fs::write(&file, vec![1; 100_000]).unwrap();
        for n in 0..50 {
            std::fs::hard_link(&file, top.join(format!("link{n}"))).unwrap();
        }
        // What a link leads to is not below the directory.
        std::fs::write(dir.path().join("outside"), vec![1; 1_000_000]).unwrap();
        std::os::unix::fs::symlink(dir.path().join("outside"), top.join("out")).unwrap();
        std::os::unix::fs::symlink("/", top.join("a/root")).unwrap();
        let (whole, one) = walked(&top, 10_000);
        let (again, many) = walked(&top, 3);
        assert_eq!(whole, again);
        assert!(one == 1 && many > 10, "{one} {many}");
        // Three directories, one file, two links.
        assert_eq!(whole.inodes, 6);
        assert!((100_000..200_000).contains(&whole.bytes), "{whole:?}");
    }

    #[test]
    fn what_is_no_directory_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        assert!(Walk::new(&dir.path().join("absent")).is_err());
        std::os::unix::fs::symlink("/", dir.path().join("link")).unwrap();
        assert!(Walk::new(&dir.path().join("link")).is_err());
    }
}
