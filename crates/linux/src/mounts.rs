//! Mounts the agent makes for pods.

use std::ffi::CString;
use std::io;
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};

use crate::failure::{blocking, naming};
use crate::{holders, mountinfo};

/// One line of the mount table, as far as we ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    pub point: PathBuf,
    pub fs_type: String,
}

#[async_trait]
pub trait Mounts: Send + Sync {
    /// Mount points at or below `dir`, in mount order.
    async fn below(&self, dir: &Path) -> io::Result<Vec<Mount>>;
    /// Mounts a tmpfs; `size` in bytes, none for the kernel's default.
    async fn tmpfs(&self, point: &Path, size: Option<u64>) -> io::Result<()>;
    /// Unmounts the top mount at `point`. Not mounted is fine; busy is an error of kind `ResourceBusy`.
    async fn unmount(&self, point: &Path) -> io::Result<()>;
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

    async fn unmount(&self, point: &Path) -> io::Result<()> {
        let point = point.to_owned();
        blocking(move || unmount(&point)).await
    }

    async fn holders(&self, point: &Path) -> Vec<String> {
        let point = point.to_owned();
        blocking(move || holders::of(&point))
            .await
            .unwrap_or_default()
    }
}

fn below(dir: &Path) -> io::Result<Vec<Mount>> {
    // The table holds real paths, our own may lead through links.
    let real = match dir.canonicalize() {
        Ok(real) => real,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(naming("resolve", dir)(e)),
    };
    let table = mountinfo::read()?;
    Ok(points_below(&table, &real, dir))
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
    match mount_tmpfs(point, &no_swap) {
        Err(Errno::INVAL) => mount_tmpfs(point, &size),
        other => other,
    }
    .map_err(naming("mount tmpfs on", point))
}

fn mount_tmpfs(point: &Path, options: &str) -> rustix::io::Result<()> {
    let options = CString::new(options).map_err(|_| Errno::INVAL)?;
    rustix::mount::mount(
        "tmpfs",
        point,
        "tmpfs",
        MountFlags::empty(),
        options.as_c_str(),
    )
}

fn unmount(point: &Path) -> io::Result<()> {
    match rustix::mount::unmount(point, UnmountFlags::NOFOLLOW) {
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
              3 2 0:3 / /data/kubelet/pods/u/volumes/v rw - tmpfs t rw\n\
              4 1 0:4 / /data/kubelet/pods/u2 rw - tmpfs t rw\n",
        );
        let real = Path::new("/data/kubelet/pods/u");
        let found: Vec<_> = points_below(&table, real, Path::new("/var/lib/kubelet/pods/u"))
            .into_iter()
            .map(|m| m.point.display().to_string())
            .collect();
        assert_eq!(
            found,
            [
                "/var/lib/kubelet/pods/u",
                "/var/lib/kubelet/pods/u/volumes/v"
            ]
        );
    }
}
