//! Writing a tree of files that nobody looks at yet.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Component, Path};

use rustix::fs::{self, Mode, OFlags, Uid};

use crate::disk;
use crate::failure::{naming, refuse};
use crate::trees::{TreeFile, TreeFiles};

/// Everyone may look into the top and into what is below it.
pub(crate) const TOP_MODE: u32 = 0o755;
pub(crate) const BELOW_MODE: u32 = 0o777;

pub(crate) fn write_new(top: &Path, files: &TreeFiles) -> io::Result<()> {
    fs::mkdir(top, Mode::from_raw_mode(TOP_MODE)).map_err(naming("create directory", top))?;
    disk::set_mode(top, TOP_MODE)?;
    for (relative, file) in files {
        stays_below(top, relative)?;
        if let Some(parent) = relative.parent().filter(|p| !p.as_os_str().is_empty()) {
            make_parents(top, parent)?;
        }
        write_one(&top.join(relative), file)?;
    }
    Ok(())
}

pub(crate) fn stays_below(top: &Path, relative: &Path) -> io::Result<()> {
    let mut parts = relative.components();
    match !relative.as_os_str().is_empty() && parts.all(|p| matches!(p, Component::Normal(_))) {
        true => Ok(()),
        false => {
            let why = format!("{} leads elsewhere", relative.display());
            Err(refuse(io::ErrorKind::InvalidInput, "write", top, &why))
        }
    }
}

pub(crate) fn new_link(target: &Path, link: &Path) -> io::Result<()> {
    fs::symlink(target, link).map_err(naming("create link", link))
}

fn make_parents(top: &Path, relative: &Path) -> io::Result<()> {
    let mut at = top.to_owned();
    for part in relative.components() {
        at.push(part);
        disk::create_dir_all(&at, BELOW_MODE)?;
    }
    Ok(())
}

fn write_one(path: &Path, file: &TreeFile) -> io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = fs::open(path, flags, Mode::RUSR | Mode::WUSR).map_err(naming("create", path))?;
    let mut open = File::from(fd);
    open.write_all(&file.bytes).map_err(naming("write", path))?;
    if let Some(owner) = file.owner {
        fs::fchown(&open, Some(Uid::from_raw(owner)), None)
            .map_err(naming("set owner of", path))?;
    }
    // The mode last: a change of hands takes bits of it away.
    fs::fchmod(&open, Mode::from_raw_mode(file.mode)).map_err(naming("set mode of", path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    fn file(bytes: &[u8], mode: u32) -> TreeFile {
        TreeFile {
            bytes: bytes.to_vec(),
            mode,
            owner: None,
        }
    }

    #[test]
    fn files_with_their_modes_and_owners() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().join("..2026");
        let root = rustix::process::geteuid().is_root();
        let mut owned = file(b"three", 0o400);
        owned.owner = root.then_some(1234);
        let files = TreeFiles::from([
            ("one".into(), file(b"1", 0o644)),
            ("a/b/two".into(), file(b"2", 0o600)),
            ("a/three".into(), owned),
        ]);
        write_new(&top, &files).unwrap();
        let meta = |p: &str| std::fs::metadata(top.join(p)).unwrap();
        assert_eq!(meta("").permissions().mode() & 0o7777, 0o755);
        assert_eq!(meta("a/b").permissions().mode() & 0o7777, 0o777);
        assert_eq!(meta("one").permissions().mode() & 0o7777, 0o644);
        assert_eq!(meta("a/three").permissions().mode() & 0o7777, 0o400);
        assert_eq!(std::fs::read(top.join("a/b/two")).unwrap(), b"2");
        if root {
            assert_eq!(meta("a/three").uid(), 1234);
        }
        assert!(write_new(&top, &files).is_err(), "it is there already");
    }

    #[test]
    fn nothing_is_written_elsewhere() {
        let dir = tempfile::tempdir().unwrap();
        for bad in ["", "../x", "/x", "a/../../x"] {
            let top = dir.path().join("t");
            let files = TreeFiles::from([(bad.into(), file(b"", 0o644))]);
            assert!(write_new(&top, &files).is_err(), "{bad}");
            std::fs::remove_dir_all(&top).unwrap();
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
