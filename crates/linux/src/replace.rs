//! Putting a whole new file or link in the place of an old one in one step.
//!
//! The temporary name is fixed per target, so a crash leaves at most one leftover, which the next
//! write of the same target takes over. A lock on it keeps writers of one target apart; the
//! kernel drops the lock of a writer that died.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use rustix::fs::{self, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use crate::failure::{naming, refuse};

/// Whether a file must be there after the machine has lost its power.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lasting {
    Yes,
    No,
}

/// How often a temporary name may be found occupied before we give up.
const TRIES: usize = 64;

/// Beside the target, hidden, and short however long the target's name is.
fn temporary(path: &Path) -> io::Result<PathBuf> {
    const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0100_0000_01b3;
    let name = path
        .file_name()
        .ok_or_else(|| refuse(io::ErrorKind::InvalidInput, "write", path, "no file name"))?;
    let hash = name
        .as_bytes()
        .iter()
        .fold(OFFSET, |h, b| (h ^ u64::from(*b)).wrapping_mul(PRIME));
    Ok(path.with_file_name(format!(".krablet-{hash:016x}.tmp")))
}

/// Opens `path` for us alone: a regular file of no other name, empty, locked.
fn open_alone(path: &Path) -> io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    for _ in 0..TRIES {
        let fd = match fs::open(path, flags | OFlags::NONBLOCK, Mode::RUSR | Mode::WUSR) {
            Ok(fd) => fd,
            // A link or something that is no file stands in the way: it is not ours to follow.
            Err(Errno::LOOP | Errno::NXIO) => {
                crate::disk::remove_file(path)?;
                continue;
            }
            Err(e) => return Err(naming("create", path)(e)),
        };
        fs::flock(&fd, FlockOperation::LockExclusive).map_err(naming("lock", path))?;
        let ours = fs::fstat(&fd).map_err(naming("stat", path))?;
        let there = match fs::lstat(path) {
            Ok(there) => there,
            // The writer before us put it in its place.
            Err(Errno::NOENT) => continue,
            Err(e) => return Err(naming("stat", path)(e)),
        };
        if (ours.st_dev, ours.st_ino) != (there.st_dev, there.st_ino) {
            continue;
        }
        let regular = FileType::from_raw_mode(ours.st_mode) == FileType::RegularFile;
        if !regular || ours.st_nlink != 1 {
            crate::disk::remove_file(path)?;
            continue;
        }
        fs::ftruncate(&fd, 0).map_err(naming("truncate", path))?;
        return Ok(File::from(fd));
    }
    let why = "the temporary name is taken again and again";
    Err(refuse(io::ErrorKind::ResourceBusy, "create", path, why))
}

/// Gives the complete temporary file its mode and its final name, and makes both last.
fn publish(
    file: &File,
    temporary: &Path,
    path: &Path,
    mode: u32,
    lasting: Lasting,
) -> io::Result<()> {
    fs::fchmod(file, Mode::from_raw_mode(mode)).map_err(naming("set mode of", temporary))?;
    if lasting == Lasting::Yes {
        file.sync_all().map_err(naming("sync", temporary))?;
    }
    fs::rename(temporary, path).map_err(naming("rename to", path))?;
    match lasting {
        Lasting::Yes => sync_parent(path),
        Lasting::No => Ok(()),
    }
}

fn sync_parent(path: &Path) -> io::Result<()> {
    let parent = match path.parent() {
        Some(p) if !p.as_os_str().is_empty() => p,
        _ => Path::new("."),
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let fd = fs::open(parent, flags, Mode::empty()).map_err(naming("open directory", parent))?;
    match fs::fsync(fd) {
        // Some file systems cannot sync a directory.
        Ok(()) | Err(Errno::INVAL) => Ok(()),
        Err(e) => Err(naming("sync directory", parent)(e)),
    }
}

pub(crate) fn write(path: &Path, bytes: &[u8], mode: u32, lasting: Lasting) -> io::Result<()> {
    let temporary = temporary(path)?;
    let mut file = open_alone(&temporary)?;
    let done = file
        .write_all(bytes)
        .map_err(naming("write", &temporary))
        .and_then(|()| publish(&file, &temporary, path, mode, lasting));
    if done.is_err() {
        // Best effort: the next write would take the leftover over anyway.
        let _ = crate::disk::remove_file(&temporary);
    }
    done
}

pub(crate) fn symlink(target: &Path, link: &Path) -> io::Result<()> {
    let temporary = temporary(link)?;
    for _ in 0..TRIES {
        match fs::symlink(target, &temporary) {
            Ok(()) => {}
            Err(Errno::EXIST) => {
                crate::disk::remove_file(&temporary)?;
                continue;
            }
            Err(e) => return Err(naming("create link", link)(e)),
        }
        match fs::rename(&temporary, link) {
            Ok(()) => return Ok(()),
            Err(Errno::NOENT) => {}
            Err(e) => {
                let _ = crate::disk::remove_file(&temporary);
                return Err(naming("create link", link)(e));
            }
        }
    }
    let why = "the temporary name is taken again and again";
    Err(refuse(
        io::ErrorKind::ResourceBusy,
        "create link",
        link,
        why,
    ))
}

/// The temporary name is `<from>.tmp`, which log rotation knows as a leftover.
pub(crate) fn gzip(from: &Path, to: &Path) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let fd = fs::open(from, flags, Mode::empty()).map_err(naming("open", from))?;
    let stat = fs::fstat(&fd).map_err(naming("stat", from))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        let why = "not a regular file";
        return Err(refuse(io::ErrorKind::InvalidInput, "compress", from, why));
    }
    let mut name = from.as_os_str().to_owned();
    name.push(".tmp");
    let temporary = PathBuf::from(name);
    let packed = pack(File::from(fd), &temporary, from)
        .and_then(|file| publish(&file, &temporary, to, stat.st_mode & 0o7777, Lasting::Yes));
    if packed.is_err() {
        let _ = crate::disk::remove_file(&temporary);
    }
    packed?;
    crate::disk::remove_file(from)
}

fn pack(mut plain: File, temporary: &Path, from: &Path) -> io::Result<File> {
    let file = open_alone(temporary)?;
    let mut encoder = GzEncoder::new(file, Compression::default());
    io::copy(&mut plain, &mut encoder).map_err(naming("compress", from))?;
    encoder.finish().map_err(naming("compress", from))
}
