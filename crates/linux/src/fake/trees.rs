//! [`Trees`] over the disk in memory.

use std::io;
use std::path::Path;

use async_trait::async_trait;

use super::disk::Node;
use super::files::MemoryFiles;
use super::{Disk, call};
use crate::failure::naming;
use crate::files::EntryKind;
use crate::group::{is_shared, shared_mode};
use crate::tree_write::{BELOW_MODE, TOP_MODE, stays_below};
use crate::trees::{GroupShare, Slow, TreeFiles, Trees};
use crate::walk;

#[async_trait]
impl Trees for MemoryFiles {
    async fn write_new(&self, top: &Path, files: &TreeFiles) -> io::Result<()> {
        call(self.shared(), "write_new", top, |disk| {
            write_new(disk, top, files)
        })
        .await
    }

    async fn new_link(&self, target: &Path, link: &Path) -> io::Result<()> {
        call(self.shared(), "new_link", link, |disk| {
            if disk.entry(link, false).is_ok() {
                return Err(naming("create link", link)(rustix::io::Errno::EXIST));
            }
            put_link(disk, target, link)
        })
        .await
    }

    async fn switch_link(&self, target: &Path, link: &Path, _: &Path) -> io::Result<()> {
        call(self.shared(), "switch_link", link, |disk| {
            put_link(disk, target, link)
        })
        .await
    }

    /// One that hangs tells of it as a real one does; it gets nowhere.
    async fn share(&self, top: &Path, share: GroupShare, slow: Slow<'_>) -> io::Result<()> {
        let given = call(self.shared(), "share", top, |disk| give(disk, top, share));
        walk::patiently(given, |first| slow((!first).then_some(0))).await
    }

    async fn group(&self, top: &Path) -> io::Result<u32> {
        call(self.shared(), "group", top, |disk| {
            Ok(disk.node_mut(top, "stat")?.group)
        })
        .await
    }
}

fn write_new(disk: &mut Disk, top: &Path, files: &TreeFiles) -> io::Result<()> {
    if disk.entry(top, false).is_ok() {
        return Err(naming("create directory", top)(rustix::io::Errno::EXIST));
    }
    disk.create_dir_all(top, TOP_MODE)?;
    for (relative, file) in files {
        stays_below(top, relative)?;
        let path = top.join(relative);
        if let Some(parent) = path.parent() {
            disk.create_dir_all(parent, BELOW_MODE)?;
        }
        let node = Node {
            bytes: file.bytes.clone(),
            owner: file.owner.unwrap_or_default(),
            ..disk.node(EntryKind::File, file.mode)
        };
        disk.put(&path, node, "write")?;
    }
    Ok(())
}

fn put_link(disk: &mut Disk, target: &Path, link: &Path) -> io::Result<()> {
    let node = Node {
        target: target.to_owned(),
        ..disk.node(EntryKind::Symlink, 0o777)
    };
    disk.put(link, node, "create link")
}

fn give(disk: &mut Disk, top: &Path, share: GroupShare) -> io::Result<()> {
    let root = disk.node_mut(top, "set group of")?;
    if share.only_if_top_differs && is_shared(root.group, root.mode, share) {
        return Ok(());
    }
    let real = disk.resolve(top, true).map_err(naming("open", top))?;
    disk.each_below(&real, |node| {
        node.group = share.gid;
        if node.kind != EntryKind::Symlink {
            let directory = node.kind == EntryKind::Directory;
            node.mode = shared_mode(node.mode, directory, share.read_only);
        }
    });
    Ok(())
}
