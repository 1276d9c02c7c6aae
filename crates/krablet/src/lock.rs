//! Two agents on one root directory would undo each other's work: a lock keeps the second out.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::{Context, Result, bail};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// Held until dropped; the kernel releases it with the process.
pub struct Lock {
    _file: File,
}

/// Takes the lock, or says who must stop first.
pub fn take(path: &Path) -> Result<Lock> {
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(path)
        .with_context(|| format!("cannot open the lock file {}", path.display()))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Lock { _file: file }),
        Err(Errno::WOULDBLOCK) => bail!(
            "another agent holds {}: stop it first, or give this one another --root-dir",
            path.display()
        ),
        Err(e) => Err(e).with_context(|| format!("cannot lock {}", path.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_is_kept_out_until_the_first_is_gone() {
        let path = std::env::temp_dir().join(format!("krablet-lock-{}", std::process::id()));
        let first = take(&path).unwrap();
        let refused = take(&path).err().map(|e| e.to_string()).unwrap_or_default();
        assert!(refused.contains("another agent holds"), "{refused}");
        drop(first);
        assert!(take(&path).is_ok());
        std::fs::remove_file(&path).unwrap();
    }
}
