//! A disk that is as full as a test says.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;

use crate::space::{DiskSpace, Space};

/// Every path has the same space. Clones share one.
#[derive(Clone, Debug)]
pub struct MemorySpace {
    space: Arc<Mutex<Space>>,
}

impl MemorySpace {
    pub fn new(capacity: u64, available: u64) -> Self {
        let space = Space {
            capacity,
            available,
        };
        Self {
            space: Arc::new(Mutex::new(space)),
        }
    }

    pub fn change(&self, change: impl FnOnce(&mut Space)) {
        change(&mut self.space.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl Default for MemorySpace {
    /// Nearly empty.
    fn default() -> Self {
        Self::new(1 << 40, 1 << 39)
    }
}

#[async_trait]
impl DiskSpace for MemorySpace {
    async fn space(&self, _: &Path) -> io::Result<Space> {
        Ok(*self.space.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
