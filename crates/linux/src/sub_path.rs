//! Ways into a volume that never lead out of it, whatever links its writers put, move and swap in it meanwhile.
//! Everything is held open from the volume's top down; what is held cannot be made to lead elsewhere, and is what
//! gets mounted. A way may leave the volume if it comes back, as an absolute link does: where it ends is asked once,
//! and opened from the top anew, by a way without links.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fmt;
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

/// On the way to showing a part of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartStep {
    /// Nothing is there, and a directory cannot be made.
    Make,
    Show,
}

/// Why a part of a volume is not shown.
#[derive(Debug)]
pub struct PartError {
    pub step: PartStep,
    pub error: io::Error,
}

impl PartError {
    pub(crate) fn making(error: io::Error) -> Self {
        let step = PartStep::Make;
        Self { step, error }
    }
}

impl From<io::Error> for PartError {
    fn from(error: io::Error) -> Self {
        let step = PartStep::Show;
        Self { step, error }
    }
}

impl fmt::Display for PartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

/// Holds what is at `relative` below `top`; makes a directory there, as open as the top, if nothing is.
pub(crate) fn hold_or_make(top: &Path, relative: &Path) -> Result<OwnedFd, PartError> {
    let volume = Volume::open(top, Opening::BEST)?;
    let path = top.join(relative);
    let stat = fs::fstat(&volume.root).map_err(naming("stat", top))?;
    let mode = stat.st_mode & 0o2777;
    for _ in 0..TRIES {
        match volume.hold(relative) {
            Ok(fd) => return Ok(fd),
            Err(Errno::NOENT) => match volume.make(relative, mode) {
                Ok(()) | Err(Errno::NOENT | Errno::AGAIN) => {}
                Err(e) => return Err(PartError::making(explain(&path, e))),
            },
            Err(Errno::AGAIN) => {}
            Err(e) => return Err(explain(&path, e).into()),
        }
    }
    Err(explain(&path, Errno::AGAIN).into())
}

fn explain(path: &Path, error: Errno) -> io::Error {
    match error {
        Errno::XDEV => leads_outside(path),
        other => naming("open", path)(other),
    }
}

type Open = fn(BorrowedFd<'_>, &Path) -> rustix::io::Result<OwnedFd>;

/// How to open what lies below a directory.
#[derive(Clone, Copy)]
struct Opening {
    /// By links that stay below it, too. `XDEV` if the way leads out, `NOENT` if it leads nowhere.
    within: Open,
    /// By no link at all.
    plain: Open,
}

impl Opening {
    const BEST: Self = Self {
        within: hold_within,
        plain: hold_plain,
    };
}

/// A volume by its name and by its top, which is held.
struct Volume<'a> {
    top: &'a Path,
    root: OwnedFd,
    opening: Opening,
}

impl<'a> Volume<'a> {
    fn open(top: &'a Path, opening: Opening) -> io::Result<Self> {
        let root = fs::open(top, HOLD | OFlags::DIRECTORY, Mode::empty());
        Ok(Self {
            top,
            root: root.map_err(naming("open", top))?,
            opening,
        })
    }

    /// `XDEV` if the way ends outside, `NOENT` if it leads nowhere, `AGAIN` if it changed meanwhile.
    fn hold(&self, relative: &Path) -> rustix::io::Result<OwnedFd> {
        match (self.opening.within)(self.root.as_fd(), relative) {
            // It may come back.
            Err(Errno::XDEV) => self.hold_end(relative),
            other => other,
        }
    }

    /// What lies where the way ends: a name found by following links is never trusted, only tried.
    fn hold_end(&self, relative: &Path) -> rustix::io::Result<OwnedFd> {
        let end = self.end(relative)?;
        match (self.opening.plain)(self.root.as_fd(), &end) {
            // A moment ago it was there, and there was no link on the way.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Err(Errno::AGAIN),
            other => other,
        }
    }

    /// Where a way ends, from the top; `XDEV` if that is outside.
    fn end(&self, relative: &Path) -> rustix::io::Result<PathBuf> {
        if relative.is_absolute() {
            return Err(Errno::XDEV);
        }
        let (top, end) = (real(self.top)?, real(&self.top.join(relative))?);
        let inside = end.strip_prefix(&top).map_err(|_| Errno::XDEV)?;
        Ok(Path::new(".").join(inside))
    }

    /// Makes the missing directories of a way, each in the one that is held.
    fn make(&self, relative: &Path, mode: u32) -> rustix::io::Result<()> {
        let mut way = PathBuf::new();
        let mut parent = fs::openat(&self.root, ".", HOLD, Mode::empty())?;
        for part in relative.components() {
            let Component::Normal(name) = part else {
                return Err(Errno::XDEV);
            };
            way.push(name);
            parent = match self.hold(&way) {
                Ok(fd) => fd,
                Err(Errno::NOENT) => make_one(parent.as_fd(), name, mode)?,
                Err(e) => return Err(e),
            };
        }
        Ok(())
    }
}

fn real(path: &Path) -> rustix::io::Result<PathBuf> {
    path.canonicalize()
        .map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))
}

fn hold_within(root: BorrowedFd<'_>, relative: &Path) -> rustix::io::Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    at_once(root, relative, resolve, hold_within_stepwise)
}

fn hold_plain(root: BorrowedFd<'_>, relative: &Path) -> rustix::io::Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    at_once(root, relative, resolve, hold_plain_stepwise)
}

fn at_once(
    root: BorrowedFd<'_>,
    relative: &Path,
    resolve: ResolveFlags,
    otherwise: Open,
) -> rustix::io::Result<OwnedFd> {
    match fs::openat2(root, relative, HOLD, Mode::empty(), resolve) {
        // Kernels before 5.6, and filters that do not know the call.
        Err(Errno::NOSYS | Errno::PERM) => otherwise(root, relative),
        other => other,
    }
}

/// The same by single steps, for kernels that cannot do it in one.
fn hold_within_stepwise(root: BorrowedFd<'_>, relative: &Path) -> rustix::io::Result<OwnedFd> {
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
    match hold_plain(root, relative) {
        // A link stands where a directory was.
        Err(Errno::LOOP) => Err(naming("open", relative)(Errno::NOENT)),
        other => other.map_err(naming("open", relative)),
    }
}

fn hold_plain_stepwise(root: BorrowedFd<'_>, relative: &Path) -> rustix::io::Result<OwnedFd> {
    let mut held = fs::openat(root, ".", HOLD, Mode::empty())?;
    for part in parts(relative)? {
        if part == ".." {
            return Err(Errno::XDEV);
        }
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
