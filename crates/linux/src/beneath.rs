//! Reading a file of a tree that others write to, without being led out of it.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path};

use rustix::fs::{self, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::failure::naming;

/// Not to hang on a pipe that stands where a file should.
const READ: OFlags = OFlags::RDONLY
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOCTTY)
    .union(OFlags::CLOEXEC);

/// The bytes of a regular file; links are followed as if `top` were the root. More than `limit` is an error of kind
/// `FileTooLarge`.
pub(crate) fn read(top: &Path, relative: &Path, limit: usize) -> io::Result<Vec<u8>> {
    let path = top.join(relative);
    let fd = open(top, relative).map_err(naming("open", &path))?;
    let stat = fs::fstat(&fd).map_err(naming("stat", &path))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        let problem = format!("{}: not a regular file", path.display());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, problem));
    }
    let mut bytes = Vec::new();
    let most = u64::try_from(limit).unwrap_or(u64::MAX);
    File::from(fd)
        .take(most.saturating_add(1))
        .read_to_end(&mut bytes)?;
    match bytes.len() > limit {
        true => Err(io::ErrorKind::FileTooLarge.into()),
        false => Ok(bytes),
    }
}

fn open(top: &Path, relative: &Path) -> rustix::io::Result<OwnedFd> {
    let root = fs::open(
        top,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    let inside = relative.strip_prefix("/").unwrap_or(relative);
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    match fs::openat2(&root, inside, READ, Mode::empty(), resolve) {
        // Kernels before 5.6, and filters that do not know the call.
        Err(Errno::NOSYS | Errno::PERM) => open_stepwise(root, inside),
        other => other,
    }
}

/// For kernels that cannot do it in one call: no link is followed at all.
fn open_stepwise(root: OwnedFd, relative: &Path) -> rustix::io::Result<OwnedFd> {
    let mut at = root;
    let mut names = relative.components().peekable();
    while let Some(component) = names.next() {
        let Component::Normal(name) = component else {
            return Err(Errno::XDEV);
        };
        let flags = match names.peek() {
            Some(_) => OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
            None => READ,
        };
        at = fs::openat(at.as_fd(), name, flags | OFlags::NOFOLLOW, Mode::empty())?;
    }
    Ok(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_stay_inside_and_pipes_do_not_hang() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().join("volume");
        std::fs::create_dir_all(top.join("sub")).unwrap();
        std::fs::write(dir.path().join("secret"), "node").unwrap();
        std::fs::write(top.join("sub/env"), "A='1'").unwrap();
        let link = |target: &str, name: &str| {
            std::os::unix::fs::symlink(target, top.join(name)).unwrap();
        };
        link("/sub/env", "absolute");
        link("sub/../sub/env", "relative");
        link("../secret", "out");
        link(dir.path().join("secret").to_str().unwrap(), "far");
        fs::mknodat(fs::CWD, top.join("pipe"), FileType::Fifo, Mode::RUSR, 0).unwrap();
        let get = |relative: &str| read(&top, Path::new(relative), 5).ok();
        for good in ["sub/env", "/sub/env", "absolute", "relative"] {
            assert_eq!(get(good).as_deref(), Some(&b"A='1'"[..]), "{good}");
        }
        for bad in ["out", "far", "pipe", "sub", "none", "../secret"] {
            assert_eq!(get(bad), None, "{bad}");
        }
        let error = read(&top, Path::new("sub/env"), 4).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
    }

    #[test]
    fn the_old_way_follows_no_link() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("sub")).unwrap();
        std::fs::write(dir.path().join("sub/env"), "x").unwrap();
        std::os::unix::fs::symlink("sub", dir.path().join("link")).unwrap();
        let open = |relative: &str| {
            let root = fs::open(dir.path(), OFlags::PATH, Mode::empty()).unwrap();
            open_stepwise(root, Path::new(relative)).is_ok()
        };
        assert!(open("sub/env"));
        assert!(!open("link/env"));
        assert!(!open("sub/../sub/env"));
    }
}
