//! Where files go that cannot be trusted: beside their place, and only so many of them.

use std::path::{Path, PathBuf};

use krablet_linux::Files;
use tracing::warn;

/// How many files set aside are kept for each name; then the oldest is replaced.
const KEPT: u32 = 5;

/// Moves the file away and tells of it. None: it could not be moved and stands where it stood.
pub(crate) async fn set_aside(files: &dyn Files, path: &Path, why: &str) -> Option<PathBuf> {
    let aside = free_name(files, path).await;
    let file = path.display();
    match files.rename(path, &aside).await {
        Ok(()) => {
            let aside_name = aside.display();
            warn!("State file {file} is not used and set aside as {aside_name}: {why}");
            Some(aside)
        }
        Err(error) => {
            warn!("State file {file} is not used: {why}; it could not be set aside: {error}");
            None
        }
    }
}

async fn free_name(files: &dyn Files, path: &Path) -> PathBuf {
    let mut oldest: Option<(i64, PathBuf)> = None;
    for n in 1..=KEPT {
        let name = numbered(path, n);
        let Ok(taken) = files.lstat(&name).await else {
            return name;
        };
        if oldest
            .as_ref()
            .is_none_or(|(time, _)| taken.modified < *time)
        {
            oldest = Some((taken.modified, name));
        }
    }
    oldest.map_or_else(|| numbered(path, 1), |(_, name)| name)
}

/// `<name>.bad-<n>`.
fn numbered(path: &Path, n: u32) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".bad-{n}"));
    name.into()
}
