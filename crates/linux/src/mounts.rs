//! Mounts the agent makes for pods.

use std::ffi::CString;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use rustix::fs::{self, FileType};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};

use crate::failure::{alone, blocking, naming};
use crate::sub_path::PartError;
use crate::{disk, group, holders, mountinfo, sub_path, tree};

/// One line of the mount table, as far as we ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    pub point: PathBuf,
    pub fs_type: String,
    /// Which file system it is: mounts of one have one device. Some (btrfs) have a number that is no device's.
    pub device: String,
    /// What was mounted, as whoever mounted it called it: a device's name, for file systems that have one.
    pub source: PathBuf,
}

#[async_trait]
pub trait Mounts: Send + Sync {
    /// Mount points at or below `dir`, in mount order.
    async fn below(&self, dir: &Path) -> io::Result<Vec<Mount>>;
    /// Mounts a tmpfs; `size` in bytes, none for the kernel's default.
    async fn tmpfs(&self, point: &Path, size: Option<u64>) -> io::Result<()>;
    /// Mounts huge pages of this size in bytes.
    async fn hugetlbfs(&self, point: &Path, page_size: u64) -> io::Result<()>;
    /// Shows `source`, a directory or a file, at `point`, which must be of the same kind.
    async fn bind(&self, source: &Path, point: &Path, read_only: bool) -> io::Result<()>;
    /// Shows what is at `relative` below `top` at `point`, and never anything that is not below `top`, whoever changes
    /// links in it meanwhile. Links that lead out and back in again are fine. Makes a directory at `relative`, as open
    /// as `top`, if nothing is there; makes `point`. Shown there already is fine.
    async fn bind_below(&self, top: &Path, relative: &Path, point: &Path) -> Result<(), PartError>;
    /// Unmounts the top mount at `point`. Not mounted is fine; busy is an error of kind `ResourceBusy`.
    async fn unmount(&self, point: &Path) -> io::Result<()>;
    /// Unmounts like `unmount`, and does not wait for a server that is away: what was asked of it fails.
    async fn force(&self, point: &Path) -> io::Result<()>;
    /// Takes the top mount at `point` out of the tree whoever uses it; it ends when its last user does. Not mounted is
    /// fine.
    async fn detach(&self, point: &Path) -> io::Result<()>;
    /// Who keeps a mount busy, in words for people (`process 42 (sh): working directory …`). A best
    /// effort with a bound; empty when nothing was found.
    async fn holders(&self, point: &Path) -> Vec<String>;
}

/// The machine's own mount table.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostMounts;

#[async_trait]
impl Mounts for HostMounts {
    async fn below(&self, dir: &Path) -> io::Result<Vec<Mount>> {
        let dir = dir.to_owned();
        blocking(move || below(&dir)).await
    }

    async fn tmpfs(&self, point: &Path, size: Option<u64>) -> io::Result<()> {
        let point = point.to_owned();
        blocking(move || tmpfs(&point, size)).await
    }

    async fn hugetlbfs(&self, point: &Path, page_size: u64) -> io::Result<()> {
        let point = point.to_owned();
        blocking(move || {
            mount_of(
                "hugetlbfs",
                "nodev",
                &point,
                &format!("pagesize={page_size}"),
            )
            .map_err(naming("mount huge pages on", &point))
        })
        .await
    }

    async fn bind(&self, source: &Path, point: &Path, read_only: bool) -> io::Result<()> {
        let (source, point) = (source.to_owned(), point.to_owned());
        alone(move || bind(&source, &point, read_only)).await
    }

    async fn bind_below(&self, top: &Path, relative: &Path, point: &Path) -> Result<(), PartError> {
        let (top, relative, point) = (top.to_owned(), relative.to_owned(), point.to_owned());
        alone(move || Ok(bind_below(&top, &relative, &point))).await?
    }

    async fn unmount(&self, point: &Path) -> io::Result<()> {
        let point = point.to_owned();
        alone(move || unmount(&point, UnmountFlags::empty())).await
    }

    async fn force(&self, point: &Path) -> io::Result<()> {
        let point = point.to_owned();
        alone(move || unmount(&point, UnmountFlags::FORCE)).await
    }

    async fn detach(&self, point: &Path) -> io::Result<()> {
        let point = point.to_owned();
        alone(move || unmount(&point, UnmountFlags::DETACH)).await
    }

    async fn holders(&self, point: &Path) -> Vec<String> {
        let point = point.to_owned();
        alone(move || holders::of(&point)).await.unwrap_or_default()
    }
}

fn below(dir: &Path) -> io::Result<Vec<Mount>> {
    let table = mountinfo::read()?;
    let real = match real_path(dir, &table) {
        Ok(real) => real,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(naming("resolve", dir)(e)),
    };
    Ok(points_below(&table, &real, dir))
}

/// The table holds real paths, our own may lead through links. What is mounted at `dir` itself is not asked: its
/// server may be away.
fn real_path(dir: &Path, table: &[mountinfo::MountInfo]) -> io::Result<PathBuf> {
    if let (Some(parent), Some(name)) = (dir.parent(), dir.file_name()) {
        let unasked = parent.canonicalize()?.join(name);
        if table.iter().any(|m| m.point == unasked) {
            return Ok(unasked);
        }
    }
    dir.canonicalize()
}

/// Mounts at or below `real`, told in the words of `asked`.
fn points_below(table: &[mountinfo::MountInfo], real: &Path, asked: &Path) -> Vec<Mount> {
    table
        .iter()
        .filter_map(|m| {
            let rest = m.point.strip_prefix(real).ok()?;
            let point = match rest.as_os_str().is_empty() {
                true => asked.to_owned(),
                false => asked.join(rest),
            };
            Some(Mount {
                point,
                fs_type: m.fs_type.clone(),
                device: m.device.clone(),
                source: m.source.clone(),
            })
        })
        .collect()
}

fn tmpfs(point: &Path, size: Option<u64>) -> io::Result<()> {
    let size = size
        .map(|bytes| format!("size={bytes}"))
        .unwrap_or_default();
    // What lives in memory must not be written to swap; kernels before 6.4 cannot promise that.
    let no_swap = [size.as_str(), "noswap"]
        .into_iter()
        .filter(|o| !o.is_empty())
        .collect::<Vec<_>>()
        .join(",");
    match mount_of("tmpfs", "tmpfs", point, &no_swap) {
        Err(Errno::INVAL) => mount_of("tmpfs", "tmpfs", point, &size),
        other => other,
    }
    .map_err(naming("mount tmpfs on", point))
}

fn mount_of(fs_type: &str, source: &str, point: &Path, options: &str) -> rustix::io::Result<()> {
    let options = CString::new(options).map_err(|_| Errno::INVAL)?;
    let flags = MountFlags::empty();
    rustix::mount::mount(source, point, fs_type, flags, options.as_c_str())
}

fn bind(source: &Path, point: &Path, read_only: bool) -> io::Result<()> {
    rustix::mount::mount_bind(source, point).map_err(naming("bind mount", source))?;
    if !read_only {
        return Ok(());
    }
    let flags = MountFlags::BIND | MountFlags::RDONLY;
    rustix::mount::mount_remount(point, flags, c"").map_err(|e| {
        // Writable is worse than not there.
        let _ = unmount(point, UnmountFlags::empty());
        naming("mount read-only", point)(e)
    })
}

/// Directories on the way to a point are for the agent alone.
const POINT_MODE: u32 = 0o750;
const POINT_FILE_MODE: u32 = 0o640;

fn bind_below(top: &Path, relative: &Path, point: &Path) -> Result<(), PartError> {
    let held = sub_path::hold_or_make(top, relative)?;
    let found = fs::fstat(&held).map_err(naming("stat", point))?;
    let parent = point.parent().unwrap_or(point);
    disk::create_dir_all(parent, POINT_MODE)?;
    while below(parent)?.iter().any(|m| m.point == point) {
        let there = fs::lstat(point).map_err(naming("stat", point))?;
        if (there.st_dev, there.st_ino) == (found.st_dev, found.st_ino) {
            return Ok(());
        }
        unmount(point, UnmountFlags::empty())?;
    }
    let directory = FileType::from_raw_mode(found.st_mode) == FileType::Directory;
    let in_the_way = match fs::lstat(point) {
        Ok(there) => {
            let kind = FileType::from_raw_mode(there.st_mode);
            (kind == FileType::Directory) != directory || kind == FileType::Symlink
        }
        Err(_) => false,
    };
    if in_the_way {
        tree::remove(point)?;
    }
    match directory {
        true => disk::create_dir_all(point, POINT_MODE)?,
        false => disk::touch(point, POINT_FILE_MODE)?,
    }
    let source = group::of_fd(held.as_fd());
    rustix::mount::mount_bind(source, point).map_err(naming("bind mount on", point))?;
    Ok(())
}

fn unmount(point: &Path, how: UnmountFlags) -> io::Result<()> {
    match rustix::mount::unmount(point, how | UnmountFlags::NOFOLLOW) {
        // Not a mount point, or not there at all.
        Ok(()) | Err(Errno::INVAL | Errno::NOENT) => Ok(()),
        Err(e) => Err(naming("unmount", point)(e)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_are_told_in_the_words_of_the_question() {
        let table = mountinfo::parse(
            b"1 0 0:1 / / rw - ext4 a rw\n\
              2 1 0:2 / /data/kubelet/pods/u rw - tmpfs t rw\n\
              3 2 0:3 /vol /data/kubelet/pods/u/volumes/v rw - btrfs /dev/sdb rw\n\
              4 1 0:4 / /data/kubelet/pods/u2 rw - tmpfs t rw\n",
        );
        let real = Path::new("/data/kubelet/pods/u");
        let found: Vec<_> = points_below(&table, real, Path::new("/var/lib/kubelet/pods/u"))
            .into_iter()
            .map(|m| (m.point.display().to_string(), m.source))
            .collect();
        let own = |point: &str, source: &str| (point.to_owned(), PathBuf::from(source));
        assert_eq!(
            found,
            [
                own("/var/lib/kubelet/pods/u", "t"),
                own("/var/lib/kubelet/pods/u/volumes/v", "/dev/sdb"),
            ]
        );
    }
}
