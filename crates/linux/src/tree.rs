//! Removing a tree that somebody hostile may have filled: links are removed, never followed;
//! a mount point is never entered, not even one of the same file system; depth costs neither
//! stack nor open files.

use std::ffi::{CStr, CString, OsStr};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{self, AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::disk::is_dot;
use crate::failure::{naming, refuse};

/// Directories held open at once. Deeper ones are moved up to the top and taken from there.
const MAX_DEPTH: usize = 32;
/// Names read before they are removed and the directory is read again.
const CHUNK: usize = 1024;

pub(crate) fn remove(path: &Path) -> io::Result<()> {
    let (parent, name) = split(path)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let parent_fd = match fs::open(&parent, flags, Mode::empty()) {
        Ok(fd) => fd,
        Err(Errno::NOENT) => return Ok(()),
        Err(e) => return Err(naming("open directory", &parent)(e)),
    };
    if !is_directory(parent_fd.as_fd(), &name, FileType::Unknown).map_err(naming("remove", path))? {
        return gone(fs::unlinkat(&parent_fd, &name, AtFlags::empty()))
            .map_err(naming("remove", path));
    }
    let Some(top) = open_below(parent_fd.as_fd(), &name).map_err(explain(path))? else {
        return Ok(());
    };
    Removal {
        top: top.as_fd(),
        top_path: path,
        moved: 0,
    }
    .empty_top()?;
    drop(top);
    gone(fs::unlinkat(&parent_fd, &name, AtFlags::REMOVEDIR))
        .map_err(naming("remove directory", path))
}

fn split(path: &Path) -> io::Result<(PathBuf, CString)> {
    let unfit = || refuse(io::ErrorKind::InvalidInput, "remove", path, "no file name");
    let name = path.file_name().ok_or_else(unfit)?;
    let name = CString::new(name.as_bytes()).map_err(|_| unfit())?;
    let parent = match path.parent() {
        Some(p) if !p.as_os_str().is_empty() => p.to_owned(),
        _ => PathBuf::from("."),
    };
    Ok((parent, name))
}

fn gone(result: rustix::io::Result<()>) -> rustix::io::Result<()> {
    match result {
        Err(Errno::NOENT) => Ok(()),
        other => other,
    }
}

fn explain(path: &Path) -> impl FnOnce(Errno) -> io::Error {
    let path = path.to_owned();
    move |errno| match errno {
        Errno::XDEV => refuse(
            io::ErrorKind::CrossesDevices,
            "remove",
            &path,
            "a mount point is in the way",
        ),
        other => naming("remove", &path)(other),
    }
}

/// False for what is absent.
fn is_directory(dir: BorrowedFd<'_>, name: &CStr, known: FileType) -> rustix::io::Result<bool> {
    if known != FileType::Unknown {
        return Ok(known == FileType::Directory);
    }
    match fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(FileType::from_raw_mode(stat.st_mode) == FileType::Directory),
        Err(Errno::NOENT) => Ok(false),
        Err(e) => Err(e),
    }
}

/// Opens a directory entry; `XDEV` if it is a mount point, none if it is no directory any more.
fn open_below(dir: BorrowedFd<'_>, name: &CStr) -> rustix::io::Result<Option<OwnedFd>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS;
    let opened = match fs::openat2(dir, name, flags, Mode::empty(), resolve) {
        // Kernels before 5.6, and filters that do not know the call.
        Err(Errno::NOSYS | Errno::PERM) => open_same_device(dir, name, flags),
        other => other,
    };
    match opened {
        Ok(fd) => Ok(Some(fd)),
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
        Err(e) => Err(e),
    }
}

fn open_same_device(
    dir: BorrowedFd<'_>,
    name: &CStr,
    flags: OFlags,
) -> rustix::io::Result<OwnedFd> {
    let fd = fs::openat(dir, name, flags, Mode::empty())?;
    if fs::fstat(&fd)?.st_dev == fs::fstat(dir)?.st_dev {
        Ok(fd)
    } else {
        Err(Errno::XDEV)
    }
}

struct Removal<'a> {
    top: BorrowedFd<'a>,
    top_path: &'a Path,
    /// How many deep directories were moved up so far.
    moved: u64,
}

impl Removal<'_> {
    fn empty_top(&mut self) -> io::Result<()> {
        loop {
            let before = self.moved;
            self.empty(self.top, self.top_path, 1)?;
            if self.moved == before {
                return Ok(());
            }
        }
    }

    /// Removes what `dir` holds. What cannot be removed does not keep the rest: the first error is
    /// told when nothing more can be done.
    fn empty(&mut self, dir: BorrowedFd<'_>, path: &Path, depth: usize) -> io::Result<()> {
        loop {
            let names = some_names(dir, path)?;
            let mut removed = 0;
            let mut first_error = None;
            for (name, file_type) in &names {
                let entry = path.join(OsStr::from_bytes(name.to_bytes()));
                match self.remove_entry(dir, name, *file_type, &entry, depth) {
                    Ok(()) => removed += 1,
                    Err(e) => first_error = first_error.or(Some(e)),
                }
            }
            match first_error {
                Some(e) if removed == 0 || names.len() < CHUNK => return Err(e),
                None if names.len() < CHUNK => return Ok(()),
                _ => {}
            }
        }
    }

    fn remove_entry(
        &mut self,
        dir: BorrowedFd<'_>,
        name: &CStr,
        file_type: FileType,
        path: &Path,
        depth: usize,
    ) -> io::Result<()> {
        if !is_directory(dir, name, file_type).map_err(naming("remove", path))? {
            return gone(fs::unlinkat(dir, name, AtFlags::empty())).map_err(naming("remove", path));
        }
        if depth == MAX_DEPTH {
            return self.move_up(dir, name, path);
        }
        if let Some(fd) = open_below(dir, name).map_err(explain(path))? {
            self.empty(fd.as_fd(), path, depth + 1)?;
        }
        gone(fs::unlinkat(dir, name, AtFlags::REMOVEDIR)).map_err(naming("remove directory", path))
    }

    fn move_up(&mut self, dir: BorrowedFd<'_>, name: &CStr, path: &Path) -> io::Result<()> {
        loop {
            self.moved += 1;
            let free = format!(".krablet-removed-{}", self.moved);
            match fs::renameat(dir, name, self.top, free.as_str()) {
                Ok(()) => return Ok(()),
                // The name is taken; the next one may not be.
                Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR) => {}
                Err(e) => return Err(explain(path)(e)),
            }
        }
    }
}

fn some_names(dir: BorrowedFd<'_>, path: &Path) -> io::Result<Vec<(CString, FileType)>> {
    let mut names = Vec::new();
    for item in Dir::read_from(dir).map_err(naming("read directory", path))? {
        let item = item.map_err(naming("read directory", path))?;
        if !is_dot(item.file_name()) {
            names.push((item.file_name().to_owned(), item.file_type()));
        }
        if names.len() == CHUNK {
            break;
        }
    }
    Ok(names)
}
