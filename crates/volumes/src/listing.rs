//! What there is at a place of the disk.

use std::io;
use std::path::Path;

use krablet_linux::{Files, Mounts};

/// The names in a directory, sorted. Where there is none, or something else, there are no names.
pub(crate) async fn names_in(files: &dyn Files, dir: &Path) -> io::Result<Vec<String>> {
    let entries = match files.list(dir).await {
        Ok(entries) => entries,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) if e.kind() == io::ErrorKind::NotADirectory => return Ok(Vec::new()),
        Err(e) => return Err(e),
    };
    let names = entries.iter().filter_map(|e| e.path.file_name()?.to_str());
    Ok(names.map(str::to_owned).collect())
}

/// Whether a file system is mounted at the very place.
pub(crate) async fn is_mounted(mounts: &dyn Mounts, point: &Path) -> io::Result<bool> {
    let found = mounts.below(point).await?;
    Ok(found.iter().any(|m| m.point == point))
}

#[cfg(test)]
mod tests {
    use super::*;
    use krablet_linux::EntryKind;
    use krablet_linux::fake::{Fault, MemoryFiles};

    #[tokio::test]
    async fn names_are_told_and_so_is_what_keeps_them_from_being_known() {
        let files = MemoryFiles::default();
        for (path, kind) in [
            ("/d/b", EntryKind::Directory),
            ("/d/a", EntryKind::File),
            ("/d/b/below", EntryKind::File),
        ] {
            files.put(Path::new(path), kind).unwrap();
        }
        let names = async |dir: &str| names_in(&files, Path::new(dir)).await;
        assert_eq!(names("/d").await.unwrap(), ["a", "b"]);
        for nothing in ["/none", "/d/a"] {
            assert!(names(nothing).await.unwrap().is_empty(), "{nothing}");
        }
        files.set_faults(|_, _| Some(Fault::Before(io::ErrorKind::PermissionDenied.into())));
        assert!(names("/d").await.is_err());
    }
}
