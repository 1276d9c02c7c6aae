//! [`Files`] over the disk in memory.

use std::fmt;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use flate2::Compression;
use flate2::write::GzEncoder;
use rustix::io::Errno;

use super::disk::{Disk, Node};
use super::{Fault, FixedClock, MemoryMounts, Shared, State, call, lock};
use crate::clock::WallClock;
use crate::failure::{naming, refuse};
use crate::files::{Entry, EntryKind, Files};

/// Files in memory. Clones share them.
#[derive(Clone)]
pub struct MemoryFiles {
    shared: Shared,
}

impl fmt::Debug for MemoryFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.paths()).finish()
    }
}

impl Default for MemoryFiles {
    fn default() -> Self {
        Self::new(Arc::new(FixedClock::default()))
    }
}

impl MemoryFiles {
    /// An empty disk; `clock` tells the times of change.
    pub fn new(clock: Arc<dyn WallClock>) -> Self {
        let state = State {
            disk: Disk::new(),
            clock,
            faults: None,
        };
        Self {
            shared: Arc::new(Mutex::new(state)),
        }
    }

    /// Mounts over the same disk.
    pub fn mounts(&self) -> MemoryMounts {
        MemoryMounts::over(self.shared.clone())
    }

    /// From now on `hook` is asked before every call of files and mounts what shall go wrong.
    pub fn set_faults(
        &self,
        hook: impl Fn(&'static str, &Path) -> Option<Fault> + Send + Sync + 'static,
    ) {
        lock(&self.shared).faults = Some(Arc::new(hook));
    }

    pub fn clear_faults(&self) {
        lock(&self.shared).faults = None;
    }

    /// Puts an entry with its missing parents, whatever the faults. A directory stays as it is.
    pub fn put(&self, path: &Path, kind: EntryKind) -> io::Result<()> {
        self.at_once(|disk| match kind {
            EntryKind::Directory => disk.create_dir_all(path, 0o755),
            _ => {
                make_parent(disk, path)?;
                let node = disk.node(kind, 0o644);
                disk.put(path, node, "put")
            }
        })
    }

    /// Puts a file with its missing parents, whatever the faults.
    pub fn put_file(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        self.at_once(|disk| {
            make_parent(disk, path)?;
            let node = file(disk, bytes, 0o644);
            disk.put(path, node, "put")
        })
    }

    /// Adds to a file's end, making the file if there is none: what a container's log sees.
    pub fn append(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        self.at_once(|disk| {
            if disk.node_at(path).is_none() {
                let node = file(disk, &[], 0o640);
                disk.put(path, node, "append to")?;
            }
            let now = disk.now;
            let node = disk.node_mut(path, "append to")?;
            node.bytes.extend_from_slice(bytes);
            node.modified = now;
            Ok(())
        })
    }

    /// Content of a file, whatever the faults.
    pub fn content(&self, path: &Path) -> Option<Vec<u8>> {
        let state = lock(&self.shared);
        state.disk.file(path).ok().map(|node| node.bytes.clone())
    }

    pub fn mode(&self, path: &Path) -> Option<u32> {
        lock(&self.shared).disk.node_at(path).map(|n| n.mode)
    }

    pub fn owner(&self, path: &Path) -> Option<u32> {
        lock(&self.shared).disk.node_at(path).map(|n| n.owner)
    }

    pub(super) fn shared(&self) -> &Shared {
        &self.shared
    }

    pub fn group(&self, path: &Path) -> Option<u32> {
        lock(&self.shared).disk.node_at(path).map(|n| n.group)
    }

    /// Every path there is, sorted.
    pub fn paths(&self) -> Vec<PathBuf> {
        lock(&self.shared).disk.paths()
    }

    fn at_once<T>(&self, effect: impl FnOnce(&mut Disk) -> io::Result<T>) -> io::Result<T> {
        let mut state = lock(&self.shared);
        state.disk.now = state.clock.now().as_second();
        effect(&mut state.disk)
    }
}

fn file(disk: &Disk, bytes: &[u8], mode: u32) -> Node {
    Node {
        bytes: bytes.to_vec(),
        ..disk.node(EntryKind::File, mode)
    }
}

fn make_parent(disk: &mut Disk, path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(parent) => disk.create_dir_all(parent, 0o755),
        None => Ok(()),
    }
}

fn gzip(plain: &[u8]) -> io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(plain)?;
    encoder.finish()
}

#[async_trait]
impl Files for MemoryFiles {
    async fn stat(&self, path: &Path) -> io::Result<Entry> {
        call(&self.shared, "stat", path, |disk| disk.entry(path, true)).await
    }

    async fn lstat(&self, path: &Path) -> io::Result<Entry> {
        call(&self.shared, "lstat", path, |disk| disk.entry(path, false)).await
    }

    async fn list(&self, dir: &Path) -> io::Result<Vec<Entry>> {
        call(&self.shared, "list", dir, |disk| disk.list(dir)).await
    }

    async fn read(&self, path: &Path, limit: usize) -> io::Result<Vec<u8>> {
        call(&self.shared, "read", path, |disk| {
            let node = disk.file(path)?;
            if node.bytes.len() > limit {
                let why = format!("larger than {limit} bytes");
                return Err(refuse(io::ErrorKind::FileTooLarge, "read", path, &why));
            }
            Ok(node.bytes.clone())
        })
        .await
    }

    async fn read_tail(&self, path: &Path, limit: usize) -> io::Result<Vec<u8>> {
        call(&self.shared, "read_tail", path, |disk| {
            let node = disk.file(path)?;
            Ok(node.bytes[node.bytes.len().saturating_sub(limit)..].to_vec())
        })
        .await
    }

    async fn create_dir_all(&self, dir: &Path, mode: u32) -> io::Result<()> {
        call(&self.shared, "create_dir_all", dir, |disk| {
            disk.create_dir_all(dir, mode)
        })
        .await
    }

    async fn write_atomic(&self, path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
        call(&self.shared, "write_atomic", path, |disk| {
            let node = file(disk, bytes, mode);
            disk.put(path, node, "write")
        })
        .await
    }

    async fn touch(&self, path: &Path, mode: u32) -> io::Result<()> {
        call(&self.shared, "touch", path, |disk| {
            if disk.entry(path, false).is_ok() {
                return disk.entry(path, true).map(drop);
            }
            let node = file(disk, &[], mode);
            disk.put(path, node, "create")
        })
        .await
    }

    async fn symlink(&self, target: &Path, link: &Path) -> io::Result<()> {
        call(&self.shared, "symlink", link, |disk| {
            let node = Node {
                target: target.to_owned(),
                ..disk.node(EntryKind::Symlink, 0o777)
            };
            disk.put(link, node, "create link")
        })
        .await
    }

    async fn read_link(&self, link: &Path) -> io::Result<PathBuf> {
        call(&self.shared, "read_link", link, |disk| {
            let real = disk
                .resolve(link, false)
                .map_err(naming("read link", link))?;
            disk.link_target(&real).map_err(naming("read link", link))
        })
        .await
    }

    async fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        call(&self.shared, "rename", from, |disk| disk.rename(from, to)).await
    }

    async fn remove_file(&self, path: &Path) -> io::Result<()> {
        call(&self.shared, "remove_file", path, |disk| {
            disk.remove_file(path)
        })
        .await
    }

    async fn remove_dir(&self, path: &Path) -> io::Result<()> {
        call(&self.shared, "remove_dir", path, |disk| {
            disk.remove_dir(path)
        })
        .await
    }

    async fn remove_tree(&self, path: &Path) -> io::Result<()> {
        call(&self.shared, "remove_tree", path, |disk| {
            disk.remove_tree(path)
        })
        .await
    }

    async fn gzip(&self, from: &Path, to: &Path) -> io::Result<()> {
        call(&self.shared, "gzip", from, |disk| {
            let plain = disk.file(from)?;
            let (mode, packed) = (plain.mode, gzip(&plain.bytes)?);
            let node = file(disk, &packed, mode);
            disk.put(to, node, "compress")?;
            disk.remove_file(from)
        })
        .await
    }

    async fn set_mode(&self, path: &Path, mode: u32) -> io::Result<()> {
        call(&self.shared, "set_mode", path, |disk| {
            disk.node_mut(path, "set mode of")?.mode = mode;
            Ok(())
        })
        .await
    }

    async fn set_group(&self, path: &Path, gid: u32) -> io::Result<()> {
        call(&self.shared, "set_group", path, |disk| {
            if gid == u32::MAX {
                return Err(naming("set group of", path)(Errno::INVAL));
            }
            disk.node_mut(path, "set group of")?.group = gid;
            Ok(())
        })
        .await
    }
}
