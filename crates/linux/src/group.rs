//! Giving a tree to a group, as `fsGroup` asks. Whoever writes into the tree meanwhile may put links in the way:
//! every entry is held open before it is looked at and changed, so no link is ever followed.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{self, AtFlags, Dir, FileType, Gid, Mode, OFlags, Stat};
use rustix::io::Errno;

use crate::disk::is_dot;
use crate::failure::{naming, refuse};
use crate::sub_path;
use crate::trees::GroupShare;
use crate::walk::Walk;

/// What is done to each entry, as errors name it.
const CHANGE: &str = "set group of";
const READ: u32 = 0o440;
const WRITE: u32 = 0o660;
/// What directories get beside: a way in, and that new files belong to the group.
const ENTER: u32 = 0o110;
const SET_GROUP: u32 = 0o2000;

/// The mode an entry gets.
pub(crate) fn shared_mode(mode: u32, directory: bool, read_only: bool) -> u32 {
    let bits = if read_only { READ } else { WRITE };
    let directory = if directory { ENTER | SET_GROUP } else { 0 };
    mode | bits | directory
}

/// Whether a top of this group and mode stands for a tree that was shared before.
pub(crate) fn is_shared(gid: u32, mode: u32, share: GroupShare) -> bool {
    gid == share.gid && shared_mode(mode, true, share.read_only) == mode
}

pub(crate) fn share(top: &Path, share: GroupShare, walk: &Walk) -> io::Result<()> {
    // The kernel reads this value as "leave as it is".
    if share.gid == u32::MAX {
        return Err(naming(CHANGE, top)(Errno::INVAL));
    }
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let root = fs::open(top, flags, Mode::empty()).map_err(naming("open", top))?;
    let stat = fs::fstat(&root).map_err(naming("stat", top))?;
    let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
    let known = is_shared(stat.st_gid, stat.st_mode & 0o7777, share);
    if share.only_if_top_differs && is_directory && known {
        return Ok(());
    }
    if is_directory {
        below(root.as_fd(), top, share, walk)?;
    }
    walk.step(CHANGE, top)?;
    change(root.as_fd(), &stat, share).map_err(naming(CHANGE, top))
}

/// Everything below the top. Only one directory is held open at a time, however deep the tree.
fn below(root: BorrowedFd<'_>, top: &Path, share: GroupShare, walk: &Walk) -> io::Result<()> {
    let mut pending = vec![PathBuf::new()];
    while let Some(relative) = pending.pop() {
        let path = top.join(&relative);
        let dir = match open_dir(root, &relative) {
            Ok(dir) => dir,
            // Gone, or no directory any more.
            Err(e) if is_gone(&e) => continue,
            Err(e) => return Err(e),
        };
        for item in Dir::read_from(&dir).map_err(naming("read directory", &path))? {
            let item = item.map_err(naming("read directory", &path))?;
            let name = item.file_name();
            if is_dot(name) {
                continue;
            }
            walk.step(CHANGE, top)?;
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let name_path = relative.join(OsStr::from_bytes(name.to_bytes()));
            let entry = match fs::openat(&dir, name, flags, Mode::empty()) {
                Ok(entry) => entry,
                Err(Errno::NOENT) => continue,
                Err(e) => return Err(naming("open", &top.join(name_path))(e)),
            };
            let done = fs::fstat(&entry).and_then(|stat| {
                change(entry.as_fd(), &stat, share)?;
                Ok(FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
            });
            match done {
                Ok(true) => pending.push(name_path),
                Ok(false) => {}
                Err(e) => return Err(naming(CHANGE, &top.join(name_path))(e)),
            }
        }
    }
    Ok(())
}

fn open_dir(root: BorrowedFd<'_>, relative: &Path) -> io::Result<OwnedFd> {
    let at = match relative.as_os_str().is_empty() {
        true => Path::new("."),
        false => relative,
    };
    let held = sub_path::open_without_links(root, at)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    fs::openat(&held, ".", flags, Mode::empty()).map_err(naming("open directory", relative))
}

fn is_gone(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

fn change(fd: BorrowedFd<'_>, stat: &Stat, share: GroupShare) -> rustix::io::Result<()> {
    let kind = FileType::from_raw_mode(stat.st_mode);
    if stat.st_gid != share.gid {
        let group = Some(Gid::from_raw(share.gid));
        fs::chownat(fd, "", None, group, AtFlags::EMPTY_PATH)?;
    }
    // A link has no mode of its own.
    if kind == FileType::Symlink {
        return Ok(());
    }
    let old = stat.st_mode & 0o7777;
    let mode = shared_mode(old, kind == FileType::Directory, share.read_only);
    if mode == old && stat.st_gid == share.gid {
        return Ok(());
    }
    // After the change of group, which takes the set-group bit away.
    fs::chmod(of_fd(fd), Mode::from_raw_mode(mode))
}

/// A name for what is held open, which nobody can make lead elsewhere.
pub(crate) fn of_fd(fd: BorrowedFd<'_>) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()))
}

/// An error for a path that leaves its tree.
pub(crate) fn leads_outside(path: &Path) -> io::Error {
    let why = "it leads outside its volume";
    refuse(io::ErrorKind::PermissionDenied, "open", path, why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, symlink};

    #[test]
    fn modes() {
        assert_eq!(shared_mode(0o600, false, false), 0o660);
        assert_eq!(shared_mode(0o600, false, true), 0o640);
        assert_eq!(shared_mode(0o755, true, false), 0o2775);
        assert_eq!(shared_mode(0o755, true, true), 0o2755);
        let share = |read_only| GroupShare {
            gid: 5,
            read_only,
            only_if_top_differs: true,
        };
        assert!(is_shared(5, 0o2775, share(false)));
        assert!(!is_shared(5, 0o2755, share(false)));
        assert!(is_shared(5, 0o2755, share(true)));
        assert!(!is_shared(5, 0o775, share(false)));
        assert!(!is_shared(6, 0o2775, share(false)));
    }

    #[test]
    fn a_whole_tree_and_nothing_behind_a_link() {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: needs root");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let (top, outside) = (dir.path().join("top"), dir.path().join("outside"));
        std::fs::create_dir_all(top.join("a/b")).unwrap();
        std::fs::create_dir(&outside).unwrap();
        for file in [
            top.join("f"),
            top.join("a/f"),
            top.join("a/b/f"),
            outside.join("f"),
        ] {
            std::fs::write(&file, "x").unwrap();
            disk_mode(&file, 0o600);
        }
        symlink(&outside, top.join("a/link")).unwrap();
        symlink(outside.join("f"), top.join("file-link")).unwrap();
        let want = GroupShare {
            gid: 2000,
            read_only: false,
            only_if_top_differs: true,
        };
        share(&top, want, &Walk::default()).unwrap();
        for (path, mode) in [("f", 0o660), ("a/f", 0o660), ("a/b/f", 0o660)] {
            let meta = std::fs::metadata(top.join(path)).unwrap();
            assert_eq!((meta.gid(), meta.mode() & 0o7777), (2000, mode), "{path}");
        }
        for path in ["", "a", "a/b"] {
            let meta = std::fs::metadata(top.join(path)).unwrap();
            assert_eq!(
                (meta.gid(), meta.mode() & 0o2770),
                (2000, 0o2770),
                "{path:?}"
            );
        }
        let link = std::fs::symlink_metadata(top.join("file-link")).unwrap();
        assert_eq!(link.gid(), 2000);
        for path in [outside.clone(), outside.join("f")] {
            assert_eq!(std::fs::metadata(&path).unwrap().gid(), 0, "{path:?}");
        }

        // A top that is right already stands for all of it, unless all is asked for.
        std::fs::write(top.join("new"), "x").unwrap();
        disk_mode(&top.join("new"), 0o600);
        share(&top, want, &Walk::default()).unwrap();
        let mode = || std::fs::metadata(top.join("new")).unwrap().mode() & 0o777;
        assert_eq!(mode(), 0o600);
        let all = GroupShare {
            only_if_top_differs: false,
            ..want
        };
        share(&top, all, &Walk::default()).unwrap();
        assert_eq!(mode(), 0o660);
    }

    fn disk_mode(path: &Path, mode: u32) {
        crate::disk::set_mode(path, mode).unwrap();
    }
}
