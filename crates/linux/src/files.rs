//! File operations the agent needs, no more. Asynchronous, because a path may lie on a file system
//! that hangs; the real implementation keeps such calls off the async threads.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use jiff::Timestamp;
use tracing::warn;

use crate::failure::{alone, blocking};
use crate::replace::{self, Lasting};
use crate::{FirstWrites, InotifyWrites, NoWrites, beneath, disk, tree};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    File,
    Directory,
    Symlink,
    Socket,
    CharDevice,
    BlockDevice,
    Other,
}

/// What `lstat`/`stat` tells, as far as we ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub path: PathBuf,
    pub kind: EntryKind,
    pub size: u64,
    /// Unix seconds of the last change of content.
    pub modified: i64,
}

#[async_trait]
pub trait Files: Send + Sync {
    /// Follows symlinks.
    async fn stat(&self, path: &Path) -> io::Result<Entry>;
    /// The same for many, in their order.
    async fn stat_all(&self, paths: &[&Path]) -> Vec<io::Result<Entry>> {
        let mut found = Vec::with_capacity(paths.len());
        for path in paths {
            found.push(self.stat(path).await);
        }
        found
    }
    /// When what is at a path last became another thing, as far as can be told: the newest time of the file's content, of
    /// the file itself (one that is put in place may have content of long ago) and of all links that lead to it.
    async fn last_change(&self, path: &Path) -> io::Result<Timestamp> {
        let (itself, target) = (self.lstat(path).await?, self.stat(path).await?);
        let newest = itself.modified.max(target.modified);
        Timestamp::from_second(newest).map_err(io::Error::other)
    }
    /// Who tells of writes to files.
    fn first_writes(&self) -> Box<dyn FirstWrites> {
        Box::new(NoWrites)
    }
    /// Does not follow a final symlink.
    async fn lstat(&self, path: &Path) -> io::Result<Entry>;
    /// Entries of a directory by name, sorted; not recursive; not following symlinks.
    async fn list(&self, dir: &Path) -> io::Result<Vec<Entry>>;
    /// The names of a directory's entries, sorted. Nothing is asked of the entries themselves: one may be a mount that
    /// hangs.
    async fn names(&self, dir: &Path) -> io::Result<Vec<OsString>> {
        let entries = self.list(dir).await?.into_iter();
        Ok(entries
            .filter_map(|e| e.path.file_name().map(ToOwned::to_owned))
            .collect())
    }
    /// At most `limit` bytes from the start; an error of kind `FileTooLarge` if there are more.
    async fn read(&self, path: &Path, limit: usize) -> io::Result<Vec<u8>>;
    /// Like `read`, of a regular file below a directory that others write to: no link leads out of it.
    async fn read_beneath(&self, top: &Path, relative: &Path, limit: usize) -> io::Result<Vec<u8>> {
        self.read(&top.join(relative), limit).await
    }
    /// The last `limit` bytes (fewer if the file is shorter).
    async fn read_tail(&self, path: &Path, limit: usize) -> io::Result<Vec<u8>>;
    /// Creates a directory and missing parents. The mode (exact, whatever the umask) is for the last one.
    async fn create_dir_all(&self, dir: &Path, mode: u32) -> io::Result<()>;
    /// Writes through a temporary file, fsync and rename, so that a reader sees the old or the new whole.
    async fn write_atomic(&self, path: &Path, bytes: &[u8], mode: u32) -> io::Result<()>;
    /// Like `write_atomic`, without waiting for the disk: for what must outlive this process but is worth
    /// nothing once the machine has gone down.
    async fn write_whole(&self, path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
        self.write_atomic(path, bytes, mode).await
    }
    /// Creates an empty file if there is none; sets the mode when it creates.
    async fn touch(&self, path: &Path, mode: u32) -> io::Result<()>;
    /// Creates a symlink, replacing an existing link or file in one step.
    async fn symlink(&self, target: &Path, link: &Path) -> io::Result<()>;
    async fn read_link(&self, link: &Path) -> io::Result<PathBuf>;
    async fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Absent is fine.
    async fn remove_file(&self, path: &Path) -> io::Result<()>;
    /// Removes an empty directory. Absent is fine.
    async fn remove_dir(&self, path: &Path) -> io::Result<()>;
    /// Removes a tree without crossing into another file system or following symlinks. Absent is fine.
    async fn remove_tree(&self, path: &Path) -> io::Result<()>;
    /// Compresses `from` to `to` (gzip, through a temporary file), then removes `from`.
    async fn gzip(&self, from: &Path, to: &Path) -> io::Result<()>;
    async fn set_mode(&self, path: &Path, mode: u32) -> io::Result<()>;
    /// Changes the group and leaves the owner.
    async fn set_group(&self, path: &Path, gid: u32) -> io::Result<()>;
}

/// The regular files of a directory, by name; one that a link leads to goes by the link's name. Entries that are not `wanted`
/// and links that lead nowhere are passed over. A link that cannot be followed for any other reason is there as a link, for
/// what is behind it may be there as well: who reads it learns the reason.
pub async fn regular_files(
    files: &dyn Files,
    dir: &Path,
    wanted: impl Fn(&Path) -> bool + Send,
) -> io::Result<Vec<Entry>> {
    let mut found = Vec::new();
    for entry in files.list(dir).await? {
        if !wanted(&entry.path) {
            continue;
        }
        let entry = match entry.kind {
            EntryKind::Symlink => match files.stat(&entry.path).await {
                Ok(target) => Entry {
                    path: entry.path,
                    ..target
                },
                Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                Err(_) => entry,
            },
            _ => entry,
        };
        if matches!(entry.kind, EntryKind::File | EntryKind::Symlink) {
            found.push(entry);
        }
    }
    Ok(found)
}

/// The machine's own files.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostFiles;

#[async_trait]
impl Files for HostFiles {
    async fn stat(&self, path: &Path) -> io::Result<Entry> {
        let path = path.to_owned();
        alone(move || disk::stat(&path)).await
    }

    async fn stat_all(&self, paths: &[&Path]) -> Vec<io::Result<Entry>> {
        let owned: Vec<PathBuf> = paths.iter().map(|path| (*path).to_owned()).collect();
        let found = alone(move || Ok(owned.iter().map(|path| disk::stat(path)).collect()));
        let lost = |e: io::Error| {
            let again = || Err(io::Error::new(e.kind(), e.to_string()));
            paths.iter().map(|_| again()).collect()
        };
        found.await.unwrap_or_else(lost)
    }

    async fn last_change(&self, path: &Path) -> io::Result<Timestamp> {
        let path = path.to_owned();
        alone(move || disk::last_change(&path)).await
    }

    fn first_writes(&self) -> Box<dyn FirstWrites> {
        match InotifyWrites::new() {
            Ok(writes) => Box::new(writes),
            Err(e) => {
                warn!(err = %e, "The kernel cannot tell of writes to files: logs are looked at periodically only");
                Box::new(NoWrites)
            }
        }
    }

    async fn lstat(&self, path: &Path) -> io::Result<Entry> {
        let path = path.to_owned();
        blocking(move || disk::lstat(&path)).await
    }

    async fn list(&self, dir: &Path) -> io::Result<Vec<Entry>> {
        let dir = dir.to_owned();
        blocking(move || disk::list(&dir)).await
    }

    async fn names(&self, dir: &Path) -> io::Result<Vec<OsString>> {
        let dir = dir.to_owned();
        blocking(move || disk::names(&dir)).await
    }

    async fn read(&self, path: &Path, limit: usize) -> io::Result<Vec<u8>> {
        let path = path.to_owned();
        blocking(move || disk::read(&path, limit)).await
    }

    async fn read_beneath(&self, top: &Path, relative: &Path, limit: usize) -> io::Result<Vec<u8>> {
        let (top, relative) = (top.to_owned(), relative.to_owned());
        blocking(move || beneath::read(&top, &relative, limit)).await
    }

    async fn read_tail(&self, path: &Path, limit: usize) -> io::Result<Vec<u8>> {
        let path = path.to_owned();
        blocking(move || disk::read_tail(&path, limit)).await
    }

    async fn create_dir_all(&self, dir: &Path, mode: u32) -> io::Result<()> {
        let dir = dir.to_owned();
        blocking(move || disk::create_dir_all(&dir, mode)).await
    }

    async fn write_atomic(&self, path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
        let (path, bytes) = (path.to_owned(), bytes.to_vec());
        blocking(move || replace::write(&path, &bytes, mode, Lasting::Yes)).await
    }

    async fn write_whole(&self, path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
        let (path, bytes) = (path.to_owned(), bytes.to_vec());
        blocking(move || replace::write(&path, &bytes, mode, Lasting::No)).await
    }

    async fn touch(&self, path: &Path, mode: u32) -> io::Result<()> {
        let path = path.to_owned();
        blocking(move || disk::touch(&path, mode)).await
    }

    async fn symlink(&self, target: &Path, link: &Path) -> io::Result<()> {
        let (target, link) = (target.to_owned(), link.to_owned());
        blocking(move || replace::symlink(&target, &link)).await
    }

    async fn read_link(&self, link: &Path) -> io::Result<PathBuf> {
        let link = link.to_owned();
        blocking(move || disk::read_link(&link)).await
    }

    async fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let (from, to) = (from.to_owned(), to.to_owned());
        blocking(move || disk::rename(&from, &to)).await
    }

    async fn remove_file(&self, path: &Path) -> io::Result<()> {
        let path = path.to_owned();
        blocking(move || disk::remove_file(&path)).await
    }

    async fn remove_dir(&self, path: &Path) -> io::Result<()> {
        let path = path.to_owned();
        blocking(move || disk::remove_dir(&path)).await
    }

    async fn remove_tree(&self, path: &Path) -> io::Result<()> {
        let path = path.to_owned();
        blocking(move || tree::remove(&path)).await
    }

    async fn gzip(&self, from: &Path, to: &Path) -> io::Result<()> {
        let (from, to) = (from.to_owned(), to.to_owned());
        blocking(move || replace::gzip(&from, &to)).await
    }

    async fn set_mode(&self, path: &Path, mode: u32) -> io::Result<()> {
        let path = path.to_owned();
        blocking(move || disk::set_mode(&path, mode)).await
    }

    async fn set_group(&self, path: &Path, gid: u32) -> io::Result<()> {
        let path = path.to_owned();
        blocking(move || disk::set_group(&path, gid)).await
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, symlink};
    use std::time::{Duration, SystemTime};

    use super::*;
    use crate::fake::{Fault, MemoryFiles};

    #[tokio::test]
    async fn what_a_link_cannot_be_followed_to_is_not_taken_for_absent() {
        let files = MemoryFiles::default();
        let dir = Path::new("/d");
        files.put_file(&dir.join("plain"), b"").unwrap();
        files
            .put(&dir.join("directory"), EntryKind::Directory)
            .unwrap();
        files.put(&dir.join("socket"), EntryKind::Socket).unwrap();
        for (link, target) in [
            ("good", "plain"),
            ("loop", "loop"),
            ("nowhere", "gone"),
            ("through-a-file", "plain/x"),
            ("to-a-directory", "directory"),
            ("to-a-socket", "socket"),
            ("unwanted", "plain"),
            ("withheld", "plain"),
        ] {
            let link = dir.join(link);
            files.symlink(Path::new(target), &link).await.unwrap();
        }
        files.set_faults(|call, path| {
            let withheld = call == "stat" && path.ends_with("withheld");
            withheld.then(|| Fault::Before(io::ErrorKind::PermissionDenied.into()))
        });
        let wanted = |path: &Path| !path.ends_with("unwanted");
        let found = regular_files(&files, dir, wanted).await.unwrap();
        let found: Vec<(&str, EntryKind)> = found
            .iter()
            .map(|e| (e.path.file_name().unwrap().to_str().unwrap(), e.kind))
            .collect();
        assert_eq!(
            found,
            [
                ("good", EntryKind::File),
                ("loop", EntryKind::Symlink),
                ("plain", EntryKind::File),
                ("through-a-file", EntryKind::Symlink),
                ("withheld", EntryKind::Symlink),
            ]
        );
    }

    /// Does it until the clock of the file system has gone on.
    fn newly(path: &Path, after: Timestamp, make: impl Fn(&Path)) -> Timestamp {
        loop {
            let _ = std::fs::remove_file(path);
            make(path);
            let found = std::fs::symlink_metadata(path).unwrap();
            let nanoseconds = i32::try_from(found.ctime_nsec()).unwrap();
            let made = Timestamp::new(found.ctime(), nanoseconds).unwrap();
            if made > after {
                return made;
            }
        }
    }

    fn set_modified(path: &Path, second: u64) {
        let file = std::fs::File::options().write(true).open(path).unwrap();
        let at = SystemTime::UNIX_EPOCH + Duration::from_secs(second);
        file.set_modified(at).unwrap();
    }

    #[tokio::test]
    async fn what_was_put_in_place_lately_is_new_however_old_its_content() {
        let dir = tempfile::tempdir().unwrap();
        let [file, way, link] = ["file", "way", "link"].map(|name| dir.path().join(name));
        let old_file = |path: &Path| {
            std::fs::write(path, "").unwrap();
            set_modified(path, 0);
        };
        let look = || HostFiles.last_change(&link);
        // In whatever order they come, the last one counts.
        let made = newly(&file, Timestamp::MIN, old_file);
        assert_eq!(HostFiles.last_change(&file).await.unwrap(), made);
        let made = newly(&way, made, |way| symlink(dir.path(), way).unwrap());
        let made = newly(&link, made, |link| symlink("way/file", link).unwrap());
        assert_eq!(look().await.unwrap(), made);
        let made = newly(&way, made, |way| symlink(".", way).unwrap());
        assert_eq!(look().await.unwrap(), made);
        let made = newly(&file, made, old_file);
        assert_eq!(look().await.unwrap(), made);
        set_modified(&file, 4_000_000_000);
        let told = look().await.unwrap();
        assert_eq!(told.as_second(), 4_000_000_000);
        std::fs::remove_file(&file).unwrap();
        let gone = look().await.unwrap_err();
        assert_eq!(gone.kind(), io::ErrorKind::NotFound);
    }
}
