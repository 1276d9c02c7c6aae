//! Puts new content into a volume in one step, as readers expect it:
//!
//! ```text
//! <volume>/key      -> ..data/key
//! <volume>/..data   -> ..2026_11_16_05_30_00.123456789
//! <volume>/..2026_11_16_05_30_00.123456789/key
//! ```
//!
//! A reader who opens `..data/key` sees the old or the new, never a part of either. What a writer that was cut off left
//! behind goes with the next write.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use krablet_linux::{EntryKind, Files, GroupShare, TreeFiles, Trees};

use crate::ownership::logged;

const DATA: &str = "..data";
const NEW_DATA: &str = "..data_tmp";

pub(crate) struct Writer<'a> {
    pub files: &'a dyn Files,
    pub trees: &'a dyn Trees,
}

impl Writer<'_> {
    /// Something was written here before.
    pub async fn stands(&self, volume: &Path) -> io::Result<bool> {
        Ok(self.current(volume).await?.is_some())
    }

    /// Makes `volume`, a directory, show these files and no others; writes nothing if it does. True if it wrote.
    pub async fn write(
        &self,
        volume: &Path,
        content: &TreeFiles,
        share: Option<GroupShare>,
        now: Timestamp,
    ) -> io::Result<bool> {
        let old = self.current(volume).await?;
        let same = match &old {
            Some(old) => self.holds(&volume.join(old), content).await?,
            None => false,
        };
        let current = match old {
            Some(old) if same => old,
            _ => self.publish(volume, content, share, now).await?,
        };
        self.tidy(volume, content, &current).await?;
        Ok(!same)
    }

    /// The directory `..data` leads to.
    async fn current(&self, volume: &Path) -> io::Result<Option<OsString>> {
        match self.files.read_link(&volume.join(DATA)).await {
            // Never one that leads elsewhere: it is not of our making.
            Ok(target) => Ok(Some(target.into_os_string()).filter(|t| is_version(t))),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Whether a version has these files, with this content, and no others.
    async fn holds(&self, version: &Path, content: &TreeFiles) -> io::Result<bool> {
        let mut seen = 0;
        let mut pending = vec![version.to_owned()];
        while let Some(dir) = pending.pop() {
            let entries = match self.files.list(&dir).await {
                Ok(entries) => entries,
                Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(false),
                Err(e) => return Err(e),
            };
            for entry in entries {
                if entry.kind == EntryKind::Directory {
                    pending.push(entry.path);
                    continue;
                }
                let wanted = entry.path.strip_prefix(version).ok();
                let wanted = wanted.and_then(|relative| content.get(relative));
                let Some(wanted) = wanted else {
                    return Ok(false);
                };
                match self.files.read(&entry.path, wanted.bytes.len()).await {
                    Ok(bytes) if bytes == wanted.bytes => seen += 1,
                    _ => return Ok(false),
                }
            }
        }
        Ok(seen == content.len())
    }

    async fn publish(
        &self,
        volume: &Path,
        content: &TreeFiles,
        share: Option<GroupShare>,
        now: Timestamp,
    ) -> io::Result<OsString> {
        let version = self.new_version(volume, content, now).await?;
        if let Some(share) = share {
            let slow = logged(volume, share.gid);
            self.trees.share(volume, share, &slow).await?;
        }
        let (data, through) = (volume.join(DATA), volume.join(NEW_DATA));
        let switched = self.trees.switch_link(Path::new(&version), &data, &through);
        switched.await?;
        Ok(version)
    }

    async fn new_version(
        &self,
        volume: &Path,
        content: &TreeFiles,
        now: Timestamp,
    ) -> io::Result<OsString> {
        const TRIES: i64 = 16;
        for number in 0..TRIES {
            let name = version_name(now, number);
            match self.trees.write_new(&volume.join(&name), content).await {
                Ok(()) => return Ok(name.into()),
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(e),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    /// Links for what is there, none for what is not, and no version but the current one.
    async fn tidy(&self, volume: &Path, content: &TreeFiles, current: &OsStr) -> io::Result<()> {
        let names: BTreeSet<&OsStr> = content.keys().filter_map(|p| p.iter().next()).collect();
        let mut missing = names.clone();
        for entry in self.files.list(volume).await? {
            let Some(name) = entry.path.file_name() else {
                continue;
            };
            missing.remove(name);
            let hidden = name.as_encoded_bytes().starts_with(b"..");
            if hidden && name != DATA && name != current {
                self.files.remove_tree(&entry.path).await?;
            }
            if !hidden && entry.kind == EntryKind::Symlink && !names.contains(name) {
                self.files.remove_file(&entry.path).await?;
            }
        }
        for name in missing {
            let target = PathBuf::from(DATA).join(name);
            self.trees.new_link(&target, &volume.join(name)).await?;
        }
        Ok(())
    }
}

fn version_name(now: Timestamp, number: i64) -> String {
    let nanos = i64::from(now.subsec_nanosecond()) + number;
    format!("{}.{nanos:09}", now.strftime("..%Y_%m_%d_%H_%M_%S"))
}

/// `..` and something, with no way to elsewhere in it.
fn is_version(name: &OsStr) -> bool {
    let bytes = name.as_encoded_bytes();
    bytes.len() > 2 && bytes.starts_with(b"..") && !bytes.contains(&b'/')
}

#[cfg(test)]
#[path = "writer_tests.rs"]
mod tests;
