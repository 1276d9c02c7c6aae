//! [`Mounts`] over the disk in memory.

use std::io;
use std::path::Path;

use async_trait::async_trait;

use super::{Shared, call, lock};
use crate::mounts::{Mount, Mounts};

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

    async fn unmount(&self, point: &Path) -> io::Result<()> {
        call(&self.shared, "unmount", point, |disk| disk.unmount(point)).await
    }

    async fn holders(&self, point: &Path) -> Vec<String> {
        match lock(&self.shared).disk.is_busy(point) {
            true => vec!["process 1 (holder): open file".to_owned()],
            false => Vec::new(),
        }
    }
}
