//! Files in memory, as far as the runtime room needs them.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use async_trait::async_trait;
use krablet_linux::{Entry, EntryKind, Files};

#[derive(Clone, Debug, PartialEq)]
pub enum Node {
    Dir(u32),
    File(Vec<u8>, u32),
    Link(PathBuf),
}

#[derive(Default)]
pub struct MemFiles {
    nodes: Mutex<BTreeMap<PathBuf, Node>>,
    /// Writing below this path fails.
    pub full: Mutex<Option<PathBuf>>,
}

impl MemFiles {
    pub fn put(&self, path: &str, bytes: &[u8]) {
        let node = Node::File(bytes.to_vec(), 0o644);
        self.nodes.lock().unwrap().insert(path.into(), node);
    }

    pub fn get(&self, path: &str) -> Option<Node> {
        self.nodes.lock().unwrap().get(Path::new(path)).cloned()
    }

    pub fn paths(&self) -> Vec<String> {
        let nodes = self.nodes.lock().unwrap();
        nodes.keys().map(|p| p.display().to_string()).collect()
    }

    fn find(&self, path: &Path) -> io::Result<Node> {
        let found = self.nodes.lock().unwrap().get(path).cloned();
        found.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
    }

    fn insert(&self, path: &Path, node: Node) -> io::Result<()> {
        let full = self.full.lock().unwrap().clone();
        if full.is_some_and(|full| path.starts_with(full)) {
            return Err(io::Error::other("no space left on device"));
        }
        self.nodes.lock().unwrap().insert(path.into(), node);
        Ok(())
    }
}

fn entry(path: &Path, node: &Node) -> Entry {
    Entry {
        path: path.into(),
        kind: match node {
            Node::Dir(_) => EntryKind::Directory,
            Node::File(..) => EntryKind::File,
            Node::Link(_) => EntryKind::Symlink,
        },
        size: 0,
        modified: 0,
    }
}

fn unused<T>() -> io::Result<T> {
    Err(io::Error::from(io::ErrorKind::Unsupported))
}

#[async_trait]
impl Files for MemFiles {
    async fn stat(&self, path: &Path) -> io::Result<Entry> {
        Ok(entry(path, &self.find(path)?))
    }

    async fn lstat(&self, path: &Path) -> io::Result<Entry> {
        self.stat(path).await
    }

    async fn list(&self, dir: &Path) -> io::Result<Vec<Entry>> {
        let nodes = self.nodes.lock().unwrap();
        let inside = nodes.iter().filter(|(path, _)| path.parent() == Some(dir));
        Ok(inside.map(|(path, node)| entry(path, node)).collect())
    }

    async fn read(&self, path: &Path, limit: usize) -> io::Result<Vec<u8>> {
        match self.find(path)? {
            Node::File(bytes, _) if bytes.len() > limit => Err(io::ErrorKind::FileTooLarge.into()),
            Node::File(bytes, _) => Ok(bytes),
            _ => unused(),
        }
    }

    async fn read_tail(&self, _path: &Path, _limit: usize) -> io::Result<Vec<u8>> {
        unused()
    }

    async fn create_dir_all(&self, dir: &Path, mode: u32) -> io::Result<()> {
        self.insert(dir, Node::Dir(mode))
    }

    async fn write_atomic(&self, path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
        self.insert(path, Node::File(bytes.to_vec(), mode))
    }

    async fn touch(&self, path: &Path, mode: u32) -> io::Result<()> {
        self.insert(path, Node::File(Vec::new(), mode))
    }

    async fn symlink(&self, target: &Path, link: &Path) -> io::Result<()> {
        let dir = link.parent().unwrap_or(link);
        self.find(dir)?;
        self.insert(link, Node::Link(target.into()))
    }

    async fn read_link(&self, _link: &Path) -> io::Result<PathBuf> {
        unused()
    }

    async fn rename(&self, _from: &Path, _to: &Path) -> io::Result<()> {
        unused()
    }

    async fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.nodes.lock().unwrap().remove(path);
        Ok(())
    }

    async fn remove_dir(&self, _path: &Path) -> io::Result<()> {
        unused()
    }

    async fn remove_tree(&self, _path: &Path) -> io::Result<()> {
        unused()
    }

    async fn gzip(&self, _from: &Path, _to: &Path) -> io::Result<()> {
        unused()
    }

    async fn set_mode(&self, _path: &Path, _mode: u32) -> io::Result<()> {
        unused()
    }

    async fn set_group(&self, _path: &Path, _gid: u32) -> io::Result<()> {
        unused()
    }
}
