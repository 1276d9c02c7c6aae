//! Ways into a volume that never lead out of it, whatever links its writers put, move and swap in it meanwhile.
//! Everything is held open from the volume's top down; what is held cannot be made to lead elsewhere, and is what
//! gets mounted.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{self, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::failure::naming;
use crate::group::{leads_outside, of_fd};

/// As many symlinks as the kernel would follow.
const MAX_LINKS: usize = 40;
/// How often a way may change under our feet before we give up.
const TRIES: usize = 128;
const HOLD: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);

/// Holds what is at `relative` below `top`; makes a directory there, as open as the top, if nothing is.
pub(crate) fn hold_or_make(top: &Path, relative: &Path) -> io::Result<OwnedFd> {
    let root =
        fs::open(top, HOLD | OFlags::DIRECTORY, Mode::empty()).map_err(naming("open", top))?;
    let mode = fs::fstat(&root).map_err(naming("stat", top))?.st_mode & 0o2777;
    for _ in 0..TRIES {
        match hold(root.as_fd(), relative) {
            Ok(fd) => return Ok(fd),
            Err(Errno::NOENT) => match make(root.as_fd(), relative, mode) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(e) => return Err(explain(&top.join(relative), e)),
            },
            Err(Errno::AGAIN) => {}
            Err(e) => return Err(explain(&top.join(relative), e)),
        }
    }
    Err(naming("open", &top.join(relative))(Errno::AGAIN))
}

fn explain(path: &Path, error: Errno) -> io::Error {
    match error {
        Errno::XDEV => leads_outside(path),
        other => naming("open", path)(other),
    }
}

/// `XDEV` if the way leads out, `NOENT` if it leads nowhere.
fn hold(root: BorrowedFd<'_>, relative: &Path) -> rustix::io::Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    match fs::openat2(root, relative, HOLD, Mode::empty(), resolve) {
        // Kernels before 5.6, and filters that do not know the call.
        Err(Errno::NOSYS | Errno::PERM) => hold_stepwise(root, relative),
        other => other,
    }
}

/// The same by single steps, for kernels that cannot do it in one.
fn hold_stepwise(root: BorrowedFd<'_>, relative: &Path) -> rustix::io::Result<OwnedFd> {
    let mut held: Vec<OwnedFd> = Vec::new();
    let mut todo = parts(relative)?;
    let mut links = 0;
    while let Some(part) = todo.pop_front() {
        if part == ".." {
            held.pop().ok_or(Errno::XDEV)?;
            continue;
        }
        let at = held.last().map_or(root, |fd| fd.as_fd());
        let fd = fs::openat(at, &part, HOLD | OFlags::NOFOLLOW, Mode::empty())?;
        if kind(fd.as_fd())? != FileType::Symlink {
            held.push(fd);
            continue;
        }
        links += 1;
        if links > MAX_LINKS {
            return Err(Errno::LOOP);
        }
        let target = fs::readlinkat(&fd, "", Vec::new())?;
        let target = PathBuf::from(OsString::from_vec(target.into_bytes()));
        for part in parts(&target)?.into_iter().rev() {
            todo.push_front(part);
        }
    }
    match held.pop() {
        Some(fd) => Ok(fd),
        None => fs::openat(root, ".", HOLD, Mode::empty()),
    }
}

/// Names and `..` of a way; one that begins at the root of the host leads out.
fn parts(path: &Path) -> rustix::io::Result<VecDeque<OsString>> {
    let mut found = VecDeque::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => found.push_back(name.to_owned()),
            Component::ParentDir => found.push_back("..".into()),
            Component::CurDir => {}
            Component::RootDir | Component::Prefix(_) => return Err(Errno::XDEV),
        }
    }
    Ok(found)
}

fn kind(fd: BorrowedFd<'_>) -> rustix::io::Result<FileType> {
    Ok(FileType::from_raw_mode(fs::fstat(fd)?.st_mode))
}

/// Makes the missing directories of a way, each in the one that is held.
fn make(root: BorrowedFd<'_>, relative: &Path, mode: u32) -> rustix::io::Result<()> {
    let mut way = PathBuf::new();
    let mut parent = fs::openat(root, ".", HOLD, Mode::empty())?;
    for part in relative.components() {
        let Component::Normal(name) = part else {
            return Err(Errno::XDEV);
        };
        way.push(name);
        parent = match hold(root, &way) {
            Ok(fd) => fd,
            Err(Errno::NOENT) => make_one(parent.as_fd(), name, mode)?,
            Err(e) => return Err(e),
        };
    }
    Ok(())
}

fn make_one(parent: BorrowedFd<'_>, name: &OsStr, mode: u32) -> rustix::io::Result<OwnedFd> {
    let made = match fs::mkdirat(parent, name, Mode::from_raw_mode(mode)) {
        Ok(()) => true,
        Err(Errno::EXIST) => false,
        Err(e) => return Err(e),
    };
    let flags = HOLD | OFlags::DIRECTORY | OFlags::NOFOLLOW;
    let fd = match fs::openat(parent, name, flags, Mode::empty()) {
        // A link to nowhere: what it names is not ours to make.
        Err(Errno::NOTDIR | Errno::LOOP) => return Err(Errno::XDEV),
        other => other?,
    };
    if made {
        fs::chmod(of_fd(fd.as_fd()), Mode::from_raw_mode(mode))?;
    }
    Ok(fd)
}

/// Holds a directory entry by a way in which no link may be.
pub(crate) fn open_without_links(root: BorrowedFd<'_>, relative: &Path) -> io::Result<OwnedFd> {
    let resolve = ResolveFlags::NO_SYMLINKS;
    let opened = match fs::openat2(root, relative, HOLD, Mode::empty(), resolve) {
        Err(Errno::NOSYS | Errno::PERM) => without_links_stepwise(root, relative),
        other => other,
    };
    match opened {
        // A link stands where a directory was.
        Err(Errno::LOOP) => Err(naming("open", relative)(Errno::NOENT)),
        other => other.map_err(naming("open", relative)),
    }
}

fn without_links_stepwise(root: BorrowedFd<'_>, relative: &Path) -> rustix::io::Result<OwnedFd> {
    let mut held = fs::openat(root, ".", HOLD, Mode::empty())?;
    for part in parts(relative)? {
        held = fs::openat(&held, &part, HOLD | OFlags::NOFOLLOW, Mode::empty())?;
        if kind(held.as_fd())? == FileType::Symlink {
            return Err(Errno::LOOP);
        }
    }
    Ok(held)
}

#[cfg(test)]
#[path = "sub_path_tests.rs"]
mod tests;
