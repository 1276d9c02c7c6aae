//! The system calls behind [`crate::HostFiles`], one blocking function each.

use std::ffi::{CStr, OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use rustix::fs::{self, AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use crate::failure::{naming, refuse};
use crate::files::{Entry, EntryKind};

/// Mode of directories that had to be made on the way.
const PARENT_MODE: u32 = 0o755;
/// Links followed before a path is taken for a loop, as the kernel counts.
const MAX_LINKS: usize = 40;

pub(crate) fn kind_of(file_type: FileType) -> EntryKind {
    match file_type {
        FileType::RegularFile => EntryKind::File,
        FileType::Directory => EntryKind::Directory,
        FileType::Symlink => EntryKind::Symlink,
        FileType::Socket => EntryKind::Socket,
        FileType::CharacterDevice => EntryKind::CharDevice,
        FileType::BlockDevice => EntryKind::BlockDevice,
        FileType::Fifo | FileType::Unknown => EntryKind::Other,
    }
}

fn entry(path: PathBuf, stat: &Stat) -> Entry {
    Entry {
        path,
        kind: kind_of(FileType::from_raw_mode(stat.st_mode)),
        size: u64::try_from(stat.st_size).unwrap_or_default(),
        modified: stat.st_mtime,
    }
}

pub(crate) fn stat(path: &Path) -> io::Result<Entry> {
    let found = fs::stat(path).map_err(naming("stat", path))?;
    Ok(entry(path.to_owned(), &found))
}

pub(crate) fn lstat(path: &Path) -> io::Result<Entry> {
    let found = fs::lstat(path).map_err(naming("lstat", path))?;
    Ok(entry(path.to_owned(), &found))
}

/// The newer of the times of content and of change.
fn changed(found: &Stat) -> io::Result<Timestamp> {
    let at = |second, nanosecond| {
        let nanosecond = i32::try_from(nanosecond).map_err(io::Error::other)?;
        Timestamp::new(second, nanosecond).map_err(io::Error::other)
    };
    let content = at(found.st_mtime, found.st_mtime_nsec)?;
    Ok(content.max(at(found.st_ctime, found.st_ctime_nsec)?))
}

/// Of what a path leads to, and of every link on the way.
pub(crate) fn last_change(path: &Path) -> io::Result<Timestamp> {
    let mut newest = changed(&fs::stat(path).map_err(naming("stat", path))?)?;
    let parts = |of: &Path| -> Vec<PathBuf> {
        let parts = of.components().rev();
        parts.map(|part| PathBuf::from(part.as_os_str())).collect()
    };
    let (mut real, mut links) = (PathBuf::new(), 0);
    let mut left = parts(&std::path::absolute(path)?);
    while let Some(part) = left.pop() {
        if part == Path::new("..") {
            real.pop();
            continue;
        }
        let next = real.join(part);
        let found = fs::lstat(&next).map_err(naming("lstat", &next))?;
        if FileType::from_raw_mode(found.st_mode) != FileType::Symlink {
            real = next;
            continue;
        }
        links += 1;
        if links > MAX_LINKS {
            return Err(naming("stat", path)(Errno::LOOP));
        }
        newest = newest.max(changed(&found)?);
        left.extend(parts(&read_link(&next)?));
    }
    Ok(newest)
}

/// Shows `visit` each name in a directory, in no order, and the directory to ask more of it.
fn each_name(
    dir: &Path,
    mut visit: impl FnMut(&OwnedFd, &CStr) -> io::Result<()>,
) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let fd = fs::open(dir, flags, Mode::empty()).map_err(naming("open directory", dir))?;
    for item in Dir::read_from(&fd).map_err(naming("read directory", dir))? {
        let item = item.map_err(naming("read directory", dir))?;
        let name = item.file_name();
        if !is_dot(name) {
            visit(&fd, name)?;
        }
    }
    Ok(())
}

pub(crate) fn list(dir: &Path) -> io::Result<Vec<Entry>> {
    let mut found = Vec::new();
    each_name(dir, |fd, name| {
        let path = dir.join(OsStr::from_bytes(name.to_bytes()));
        match fs::statat(fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => found.push(entry(path, &stat)),
            // Gone between the two calls: as if never seen.
            Err(Errno::NOENT) => {}
            Err(e) => return Err(naming("lstat", &path)(e)),
        }
        Ok(())
    })?;
    found.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(found)
}

/// Asks nothing of what is behind the names, which may hang.
pub(crate) fn names(dir: &Path) -> io::Result<Vec<OsString>> {
    let mut found = Vec::new();
    each_name(dir, |_, name| {
        found.push(OsStr::from_bytes(name.to_bytes()).to_owned());
        Ok(())
    })?;
    found.sort();
    Ok(found)
}

pub(crate) fn is_dot(name: &CStr) -> bool {
    matches!(name.to_bytes(), b"." | b"..")
}

/// Opens a regular file. Opening a FIFO must not wait for its writer, hence the two steps.
fn open_regular(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let fd = fs::open(path, flags, Mode::empty()).map_err(naming("open", path))?;
    let stat = fs::fstat(&fd).map_err(naming("stat", path))?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Ok(File::from(fd)),
        FileType::Directory => Err(naming("read", path)(Errno::ISDIR)),
        _ => Err(refuse(
            io::ErrorKind::InvalidInput,
            "read",
            path,
            "not a regular file",
        )),
    }
}

pub(crate) fn read(path: &Path, limit: usize) -> io::Result<Vec<u8>> {
    let file = open_regular(path)?;
    let mut bytes = Vec::new();
    let one_more = u64::try_from(limit).unwrap_or(u64::MAX).saturating_add(1);
    file.take(one_more)
        .read_to_end(&mut bytes)
        .map_err(naming("read", path))?;
    if bytes.len() > limit {
        let why = format!("larger than {limit} bytes");
        return Err(refuse(io::ErrorKind::FileTooLarge, "read", path, &why));
    }
    Ok(bytes)
}

pub(crate) fn read_tail(path: &Path, limit: usize) -> io::Result<Vec<u8>> {
    let mut file = open_regular(path)?;
    let size = file.metadata().map_err(naming("stat", path))?.len();
    let limit = u64::try_from(limit).unwrap_or(u64::MAX);
    file.seek(SeekFrom::Start(size.saturating_sub(limit)))
        .map_err(naming("seek in", path))?;
    let mut bytes = Vec::new();
    // A file that grows meanwhile must not make the tail longer than asked.
    file.take(limit)
        .read_to_end(&mut bytes)
        .map_err(naming("read", path))?;
    Ok(bytes)
}

pub(crate) fn create_dir_all(dir: &Path, mode: u32) -> io::Result<()> {
    match fs::mkdir(dir, Mode::from_raw_mode(mode)) {
        Ok(()) => set_mode(dir, mode),
        Err(Errno::EXIST) => match stat(dir)?.kind {
            EntryKind::Directory => Ok(()),
            _ => Err(naming("create directory", dir)(Errno::NOTDIR)),
        },
        Err(Errno::NOENT) => {
            let parent = dir
                .parent()
                .filter(|p| !p.as_os_str().is_empty())
                .ok_or(Errno::NOENT)
                .map_err(naming("create directory", dir))?;
            create_dir_all(parent, PARENT_MODE)?;
            match fs::mkdir(dir, Mode::from_raw_mode(mode)) {
                Ok(()) => set_mode(dir, mode),
                // Somebody else was quicker.
                Err(Errno::EXIST) => Ok(()),
                Err(e) => Err(naming("create directory", dir)(e)),
            }
        }
        Err(e) => Err(naming("create directory", dir)(e)),
    }
}

pub(crate) fn touch(path: &Path, mode: u32) -> io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    match fs::open(path, flags, Mode::from_raw_mode(mode)) {
        Ok(fd) => fs::fchmod(fd, Mode::from_raw_mode(mode)).map_err(naming("set mode of", path)),
        // A link to nowhere also "exists"; following it tells.
        Err(Errno::EXIST) => stat(path).map(drop),
        Err(e) => Err(naming("create", path)(e)),
    }
}

pub(crate) fn read_link(link: &Path) -> io::Result<PathBuf> {
    let target = fs::readlink(link, Vec::new()).map_err(naming("read link", link))?;
    Ok(std::ffi::OsString::from_vec(target.into_bytes()).into())
}

pub(crate) fn rename(from: &Path, to: &Path) -> io::Result<()> {
    fs::rename(from, to).map_err(naming("rename", from))
}

fn absent_is_fine(result: rustix::io::Result<()>) -> rustix::io::Result<()> {
    match result {
        Err(Errno::NOENT) => Ok(()),
        other => other,
    }
}

pub(crate) fn remove_file(path: &Path) -> io::Result<()> {
    absent_is_fine(fs::unlink(path)).map_err(naming("remove", path))
}

pub(crate) fn remove_dir(path: &Path) -> io::Result<()> {
    absent_is_fine(fs::rmdir(path)).map_err(naming("remove directory", path))
}

pub(crate) fn set_mode(path: &Path, mode: u32) -> io::Result<()> {
    fs::chmod(path, Mode::from_raw_mode(mode)).map_err(naming("set mode of", path))
}

pub(crate) fn set_group(path: &Path, gid: u32) -> io::Result<()> {
    // The kernel reads this value as "leave as it is".
    if gid == u32::MAX {
        return Err(naming("set group of", path)(Errno::INVAL));
    }
    let group = Some(fs::Gid::from_raw(gid));
    fs::chownat(CWD, path, None, group, AtFlags::SYMLINK_NOFOLLOW)
        .map_err(naming("set group of", path))
}
