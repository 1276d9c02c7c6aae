//! [`Mounts`] over the disk in memory.

use std::io;
use std::path::Path;

use async_trait::async_trait;

use super::disk::Disk;
use super::{Shared, call, lock};
use crate::failure::naming;
use crate::files::EntryKind;
use crate::group::leads_outside;
use crate::mounts::{Mount, Mounts};
use crate::sub_path::PartError;

/// Mounts in memory. Clones share them.
#[derive(Clone)]
pub struct MemoryMounts {
    shared: Shared,
}

impl MemoryMounts {
    pub(super) fn over(shared: Shared) -> Self {
        Self { shared }
    }

    /// A busy mount cannot be unmounted.
    pub fn set_busy(&self, point: &Path, busy: bool) {
        lock(&self.shared).disk.set_busy(point, busy);
    }

    /// A file system as one of the host's tools would mount it.
    pub fn put(&self, fs_type: &'static str, point: &Path) -> io::Result<()> {
        lock(&self.shared).disk.mount_as(fs_type, point, None)
    }

    /// The same of a device, which the table then names.
    pub fn put_from(&self, fs_type: &'static str, source: &Path, point: &Path) -> io::Result<()> {
        lock(&self.shared).disk.mount_from(fs_type, source, point)
    }

    /// The size the topmost mount at `point` was given.
    pub fn size_of(&self, point: &Path) -> Option<u64> {
        lock(&self.shared).disk.size_of(point)
    }
}

#[async_trait]
impl Mounts for MemoryMounts {
    async fn below(&self, dir: &Path) -> io::Result<Vec<Mount>> {
        call(&self.shared, "mounts_below", dir, |disk| {
            disk.mounts_below(dir)
        })
        .await
    }

    async fn tmpfs(&self, point: &Path, size: Option<u64>) -> io::Result<()> {
        call(&self.shared, "tmpfs", point, |disk| disk.mount(point, size)).await
    }

    async fn hugetlbfs(&self, point: &Path, page_size: u64) -> io::Result<()> {
        call(&self.shared, "hugetlbfs", point, |disk| {
            disk.mount_as("hugetlbfs", point, Some(page_size))
        })
        .await
    }

    async fn bind(&self, source: &Path, point: &Path, _: bool) -> io::Result<()> {
        call(&self.shared, "bind", point, |disk| {
            disk.entry(source, true)?;
            disk.bind(source, point)
        })
        .await
    }

    async fn bind_below(&self, top: &Path, relative: &Path, point: &Path) -> Result<(), PartError> {
        call(&self.shared, "bind_below", point, |disk| {
            Ok(bind_below(disk, top, relative, point))
        })
        .await?
    }

    async fn unmount(&self, point: &Path) -> io::Result<()> {
        call(&self.shared, "unmount", point, |disk| disk.unmount(point)).await
    }

    async fn force(&self, point: &Path) -> io::Result<()> {
        call(&self.shared, "force", point, |disk| disk.unmount(point)).await
    }

    async fn detach(&self, point: &Path) -> io::Result<()> {
        call(&self.shared, "detach", point, |disk| {
            disk.set_busy(point, false);
            disk.unmount(point)
        })
        .await
    }

    async fn holders(&self, point: &Path) -> Vec<String> {
        match lock(&self.shared).disk.is_busy(point) {
            true => vec!["process 1 (holder): open file".to_owned()],
            false => Vec::new(),
        }
    }
}

fn bind_below(disk: &mut Disk, top: &Path, relative: &Path, point: &Path) -> Result<(), PartError> {
    let source = top.join(relative);
    let resolve = |path: &Path| disk.resolve(path, true).map_err(naming("open", path));
    let (real_top, real) = (resolve(top)?, resolve(&source)?);
    let missing = disk.entry(&source, true).is_err();
    if !real.starts_with(real_top) {
        let error = leads_outside(&source);
        return Err(match missing {
            true => PartError::making(error),
            false => error.into(),
        });
    }
    if missing {
        let mode = disk.node_at(top).map_or(0o755, |n| n.mode);
        let made = disk.create_dir_all(&source, mode);
        made.map_err(PartError::making)?;
    }
    if !disk.mounts_below(point)?.is_empty() {
        return Ok(());
    }
    match disk.entry(&source, true)?.kind {
        EntryKind::Directory => disk.create_dir_all(point, 0o750)?,
        _ => {
            if let Some(parent) = point.parent() {
                disk.create_dir_all(parent, 0o750)?;
            }
            let node = disk.node(EntryKind::File, 0o640);
            disk.put(point, node, "create")?;
        }
    }
    disk.bind(&source, point)?;
    Ok(())
}
