//! How full a file system is.

use std::io;
use std::path::Path;

use async_trait::async_trait;
use rustix::fs::statvfs;

use crate::failure::{blocking, naming};

/// In bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    pub capacity: u64,
    /// For those without special rights.
    pub available: u64,
}

#[async_trait]
pub trait DiskSpace: Send + Sync {
    /// Of the file system a path is on.
    async fn space(&self, path: &Path) -> io::Result<Space>;
}

/// The machine's own file systems.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostSpace;

#[async_trait]
impl DiskSpace for HostSpace {
    async fn space(&self, path: &Path) -> io::Result<Space> {
        let path = path.to_owned();
        blocking(move || {
            let found = statvfs(&path).map_err(naming("look at the space of", &path))?;
            Ok(Space {
                capacity: found.f_frsize.saturating_mul(found.f_blocks),
                available: found.f_frsize.saturating_mul(found.f_bavail),
            })
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_real_file_system_has_space() {
        let space = HostSpace.space(Path::new("/")).await.unwrap();
        assert!(space.capacity > 0 && space.available <= space.capacity);
        let missing = HostSpace.space(Path::new("/no/such/place")).await;
        assert!(missing.is_err_and(|e| e.kind() == io::ErrorKind::NotFound));
    }
}
