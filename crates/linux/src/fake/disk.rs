//! A file system as a sorted map of paths. Descendants of a directory are one range of it.

use std::collections::BTreeMap;
use std::io;
use std::ops::Bound;
use std::path::{Component, Path, PathBuf};

use rustix::io::Errno;

use crate::failure::{naming, refuse};
use crate::files::{Entry, EntryKind};
use crate::mounts::Mount;

/// Links followed before a path is taken for a loop, as the kernel counts.
const MAX_LINKS: usize = 40;

#[derive(Clone, Debug)]
pub(super) struct Node {
    pub kind: EntryKind,
    /// Content of a file.
    pub bytes: Vec<u8>,
    /// Target of a symlink.
    pub target: PathBuf,
    pub mode: u32,
    pub owner: u32,
    pub group: u32,
    pub modified: i64,
}

/// A mount, and what it covers. What a bind mount shows is not modelled: it begins empty.
#[derive(Debug)]
struct Mounted {
    point: PathBuf,
    fs_type: &'static str,
    device: String,
    source: PathBuf,
    size: Option<u64>,
    covered: BTreeMap<PathBuf, Node>,
    busy: bool,
}

#[derive(Debug)]
pub(super) struct Disk {
    nodes: BTreeMap<PathBuf, Node>,
    mounts: Vec<Mounted>,
    /// Unix seconds of the call being served.
    pub now: i64,
}

impl Disk {
    pub fn new() -> Self {
        let mut disk = Self {
            nodes: BTreeMap::new(),
            mounts: Vec::new(),
            now: 0,
        };
        let root = disk.node(EntryKind::Directory, 0o755);
        disk.nodes.insert(PathBuf::from("/"), root);
        disk
    }

    pub fn node(&self, kind: EntryKind, mode: u32) -> Node {
        Node {
            kind,
            bytes: Vec::new(),
            target: PathBuf::new(),
            mode,
            owner: 0,
            group: 0,
            modified: self.now,
        }
    }

    /// The path with every link in it followed, the last one only if asked. The last part need
    /// not exist.
    pub fn resolve(&self, path: &Path, follow_last: bool) -> Result<PathBuf, Errno> {
        let mut real = PathBuf::from("/");
        let mut left: Vec<PathBuf> = parts_reversed(path);
        let mut links = 0;
        while let Some(part) = left.pop() {
            if part == Path::new("..") {
                real.pop();
                continue;
            }
            match self.nodes.get(&real).map(|n| n.kind) {
                Some(EntryKind::Directory) => {}
                Some(_) => return Err(Errno::NOTDIR),
                None => return Err(Errno::NOENT),
            }
            let next = real.join(&part);
            match self.nodes.get(&next) {
                Some(n) if n.kind == EntryKind::Symlink && (follow_last || !left.is_empty()) => {
                    links += 1;
                    if links > MAX_LINKS {
                        return Err(Errno::LOOP);
                    }
                    if n.target.is_absolute() {
                        real = PathBuf::from("/");
                    }
                    left.extend(parts_reversed(&n.target));
                }
                _ => real = next,
            }
        }
        Ok(real)
    }

    fn get(&self, path: &Path, follow: bool) -> Result<(PathBuf, &Node), Errno> {
        let real = self.resolve(path, follow)?;
        let node = self.nodes.get(&real).ok_or(Errno::NOENT)?;
        Ok((real, node))
    }

    pub fn entry(&self, path: &Path, follow: bool) -> io::Result<Entry> {
        let (_, node) = self.get(path, follow).map_err(naming("stat", path))?;
        Ok(entry(path, node))
    }

    pub fn node_at(&self, path: &Path) -> Option<&Node> {
        self.get(path, true).ok().map(|(_, node)| node)
    }

    pub fn node_mut(&mut self, path: &Path, action: &'static str) -> io::Result<&mut Node> {
        let real = self.resolve(path, true).map_err(naming(action, path))?;
        self.nodes
            .get_mut(&real)
            .ok_or(Errno::NOENT)
            .map_err(naming(action, path))
    }

    pub fn link_target(&self, real: &Path) -> Result<PathBuf, Errno> {
        match self.nodes.get(real) {
            Some(n) if n.kind == EntryKind::Symlink => Ok(n.target.clone()),
            Some(_) => Err(Errno::INVAL),
            None => Err(Errno::NOENT),
        }
    }

    pub fn file(&self, path: &Path) -> io::Result<&Node> {
        let (_, node) = self.get(path, true).map_err(naming("open", path))?;
        match node.kind {
            EntryKind::File => Ok(node),
            EntryKind::Directory => Err(naming("read", path)(Errno::ISDIR)),
            _ => Err(refuse(
                io::ErrorKind::InvalidInput,
                "read",
                path,
                "not a regular file",
            )),
        }
    }

    /// Puts a node in its place, over a file or link that may stand there, never over a directory.
    pub fn put(&mut self, path: &Path, node: Node, action: &'static str) -> io::Result<()> {
        let real = self.resolve(path, false).map_err(naming(action, path))?;
        match self.nodes.get(&real).map(|n| n.kind) {
            Some(EntryKind::Directory) => Err(naming(action, path)(Errno::ISDIR)),
            _ => {
                self.nodes.insert(real, node);
                Ok(())
            }
        }
    }

    pub fn create_dir_all(&mut self, dir: &Path, mode: u32) -> io::Result<()> {
        let mut at = PathBuf::from("/");
        let mut parts = dir.components().peekable();
        while let Some(part) = parts.next() {
            at.push(part);
            let real = self
                .resolve(&at, true)
                .map_err(naming("create directory", dir))?;
            match self.nodes.get(&real).map(|n| n.kind) {
                Some(EntryKind::Directory) => {}
                Some(_) => return Err(naming("create directory", dir)(Errno::NOTDIR)),
                None => {
                    let mode = if parts.peek().is_none() { mode } else { 0o755 };
                    self.nodes
                        .insert(real, self.node(EntryKind::Directory, mode));
                }
            }
        }
        Ok(())
    }

    pub fn list(&self, dir: &Path) -> io::Result<Vec<Entry>> {
        let (real, node) = self.get(dir, true).map_err(naming("open directory", dir))?;
        if node.kind != EntryKind::Directory {
            return Err(naming("open directory", dir)(Errno::NOTDIR));
        }
        let found = self.below(&real).filter_map(|(path, node)| {
            let name = path.strip_prefix(&real).ok()?;
            let own = name.components().count() == 1;
            own.then(|| entry(&dir.join(name), node))
        });
        Ok(found.collect())
    }

    /// What lies strictly below a real path.
    fn below<'a>(&'a self, real: &'a Path) -> impl Iterator<Item = (&'a PathBuf, &'a Node)> {
        let after = (Bound::Excluded(real), Bound::Unbounded);
        self.nodes
            .range::<Path, _>(after)
            .take_while(move |(path, _)| path.starts_with(real))
    }

    fn take_below(&mut self, real: &Path) -> BTreeMap<PathBuf, Node> {
        let paths: Vec<PathBuf> = self.below(real).map(|(p, _)| p.clone()).collect();
        paths
            .into_iter()
            .filter_map(|p| self.nodes.remove_entry(&p))
            .collect()
    }

    pub fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        let failed = || naming("rename", from);
        let (source, node) = self.get(from, false).map_err(failed())?;
        let kind = node.kind;
        let target = self.resolve(to, false).map_err(failed())?;
        let parent = target.parent().map(|p| self.nodes.contains_key(p));
        if parent != Some(true) {
            return Err(failed()(Errno::NOENT));
        }
        if self.is_mounted(&source) || self.is_mounted(&target) {
            return Err(failed()(Errno::BUSY));
        }
        if let Some(there) = self.nodes.get(&target) {
            match (kind, there.kind) {
                (EntryKind::Directory, EntryKind::Directory)
                    if self.below(&target).next().is_some() =>
                {
                    return Err(failed()(Errno::NOTEMPTY));
                }
                (EntryKind::Directory, EntryKind::Directory) => {}
                (EntryKind::Directory, _) => return Err(failed()(Errno::NOTDIR)),
                (_, EntryKind::Directory) => return Err(failed()(Errno::ISDIR)),
                _ => {}
            }
        }
        if kind == EntryKind::Directory && target.starts_with(&source) {
            return Err(failed()(Errno::INVAL));
        }
        let moved = self.take_below(&source);
        if let Some(node) = self.nodes.remove(&source) {
            self.nodes.insert(target.clone(), node);
        }
        for (path, node) in moved {
            if let Ok(rest) = path.strip_prefix(&source) {
                self.nodes.insert(target.join(rest), node);
            }
        }
        Ok(())
    }

    pub fn remove_file(&mut self, path: &Path) -> io::Result<()> {
        let real = match self.get(path, false) {
            Ok((_, node)) if node.kind == EntryKind::Directory => {
                return Err(naming("remove", path)(Errno::ISDIR));
            }
            Ok((real, _)) => real,
            Err(Errno::NOENT) => return Ok(()),
            Err(e) => return Err(naming("remove", path)(e)),
        };
        self.nodes.remove(&real);
        Ok(())
    }

    pub fn remove_dir(&mut self, path: &Path) -> io::Result<()> {
        let failed = || naming("remove directory", path);
        let real = match self.get(path, false) {
            Ok((_, node)) if node.kind != EntryKind::Directory => {
                return Err(failed()(Errno::NOTDIR));
            }
            Ok((real, _)) => real,
            Err(Errno::NOENT) => return Ok(()),
            Err(e) => return Err(failed()(e)),
        };
        if self.is_mounted(&real) {
            return Err(failed()(Errno::BUSY));
        }
        if self.below(&real).next().is_some() {
            return Err(failed()(Errno::NOTEMPTY));
        }
        self.nodes.remove(&real);
        Ok(())
    }

    pub fn remove_tree(&mut self, path: &Path) -> io::Result<()> {
        let real = match self.get(path, false) {
            Ok((real, _)) => real,
            Err(Errno::NOENT) => return Ok(()),
            Err(e) => return Err(naming("remove", path)(e)),
        };
        let kept: Vec<PathBuf> = self
            .mounts
            .iter()
            .filter(|m| m.point.starts_with(&real))
            .map(|m| m.point.clone())
            .collect();
        let needed = |p: &Path| {
            kept.iter()
                .any(|point| p.starts_with(point) || point.starts_with(p))
        };
        self.nodes.retain(|p, _| !p.starts_with(&real) || needed(p));
        match kept.first() {
            None => Ok(()),
            Some(point) => Err(refuse(
                io::ErrorKind::CrossesDevices,
                "remove",
                point,
                "a mount point is in the way",
            )),
        }
    }

    fn is_mounted(&self, real: &Path) -> bool {
        self.mounts.iter().any(|m| m.point == real)
    }

    pub fn mount(&mut self, point: &Path, size: Option<u64>) -> io::Result<()> {
        self.mount_as("tmpfs", point, size)
    }

    /// Mounts something empty: a directory over a directory, a file over a file.
    pub fn mount_as(
        &mut self,
        fs_type: &'static str,
        point: &Path,
        size: Option<u64>,
    ) -> io::Result<()> {
        let failed = || naming("mount on", point);
        let (real, node) = self.get(point, true).map_err(failed())?;
        let kind = node.kind;
        if kind != EntryKind::Directory && fs_type != "bind" {
            return Err(failed()(Errno::NOTDIR));
        }
        let mut covered = self.take_below(&real);
        let root = self.node(kind, 0o1777);
        if let Some(old) = self.nodes.insert(real.clone(), root) {
            covered.insert(real.clone(), old);
        }
        let device = real.display().to_string();
        self.mounts.push(Mounted {
            point: real,
            fs_type,
            device,
            source: fs_type.into(),
            size,
            covered,
            busy: false,
        });
        Ok(())
    }

    /// Mounts a device, which the table then names.
    pub fn mount_from(
        &mut self,
        fs_type: &'static str,
        source: &Path,
        point: &Path,
    ) -> io::Result<()> {
        self.mount_as(fs_type, point, None)?;
        if let Some(mounted) = self.mounts.last_mut() {
            mounted.source = source.to_owned();
        }
        Ok(())
    }

    /// A bind mount of something mounted is of the same file system.
    pub fn bind(&mut self, source: &Path, point: &Path) -> io::Result<()> {
        let real = self
            .resolve(source, true)
            .map_err(naming("bind mount", source))?;
        let of = self.mounts.iter().filter(|m| real.starts_with(&m.point));
        let of = of.max_by_key(|m| m.point.as_os_str().len());
        let of = of.map(|m| (m.device.clone(), m.source.clone()));
        let (device, source) = of.unwrap_or_else(|| ("disk".to_owned(), "disk".into()));
        self.mount_as("bind", point, None)?;
        if let Some(mounted) = self.mounts.last_mut() {
            (mounted.device, mounted.source) = (device, source);
        }
        Ok(())
    }

    pub fn unmount(&mut self, point: &Path) -> io::Result<()> {
        let real = match self.resolve(point, false) {
            Ok(real) => real,
            Err(Errno::NOENT) => return Ok(()),
            Err(e) => return Err(naming("unmount", point)(e)),
        };
        let Some(top) = self.mounts.iter().rposition(|m| m.point == real) else {
            return Ok(());
        };
        let covers_other = self
            .mounts
            .iter()
            .skip(top)
            .any(|m| m.point != real && m.point.starts_with(&real));
        if covers_other || self.mounts[top].busy {
            return Err(naming("unmount", point)(Errno::BUSY));
        }
        let mounted = self.mounts.remove(top);
        self.take_below(&real);
        self.nodes.extend(mounted.covered);
        Ok(())
    }

    pub fn mounts_below(&self, dir: &Path) -> io::Result<Vec<Mount>> {
        let real = match self.resolve(dir, true) {
            Ok(real) => real,
            Err(Errno::NOENT) => return Ok(Vec::new()),
            Err(e) => return Err(naming("resolve", dir)(e)),
        };
        let found = self.mounts.iter().filter_map(|m| {
            let rest = m.point.strip_prefix(&real).ok()?;
            let point = match rest.as_os_str().is_empty() {
                true => dir.to_owned(),
                false => dir.join(rest),
            };
            let fs_type = m.fs_type.to_owned();
            Some(Mount {
                point,
                fs_type,
                device: m.device.clone(),
                source: m.source.clone(),
            })
        });
        Ok(found.collect())
    }

    pub fn set_busy(&mut self, point: &Path, busy: bool) {
        for mount in self.mounts.iter_mut().filter(|m| m.point == point) {
            mount.busy = busy;
        }
    }

    pub fn is_busy(&self, point: &Path) -> bool {
        self.mounts.iter().any(|m| m.point == point && m.busy)
    }

    pub fn size_of(&self, point: &Path) -> Option<u64> {
        self.mounts
            .iter()
            .rfind(|m| m.point == point)
            .and_then(|m| m.size)
    }

    /// Every node at and below a real path.
    pub fn each_below(&mut self, real: &Path, mut change: impl FnMut(&mut Node)) {
        let at_or_below = self.nodes.iter_mut().filter(|(p, _)| p.starts_with(real));
        at_or_below.for_each(|(_, node)| change(node));
    }

    pub fn paths(&self) -> Vec<PathBuf> {
        self.nodes.keys().cloned().collect()
    }
}

fn entry(path: &Path, node: &Node) -> Entry {
    let size = match node.kind {
        EntryKind::Symlink => node.target.as_os_str().len(),
        _ => node.bytes.len(),
    };
    Entry {
        path: path.to_owned(),
        kind: node.kind,
        size: u64::try_from(size).unwrap_or(u64::MAX),
        modified: node.modified,
    }
}

/// The named parts of a path, last first.
fn parts_reversed(path: &Path) -> Vec<PathBuf> {
    path.components()
        .rev()
        .filter(|c| matches!(c, Component::Normal(_) | Component::ParentDir))
        .map(|c| PathBuf::from(c.as_os_str()))
        .collect()
}
