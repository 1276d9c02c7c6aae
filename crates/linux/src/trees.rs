//! Whole trees of files in one call: written anew for a volume, or given to a group.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use async_trait::async_trait;

use crate::failure::{alone, blocking, naming};
use crate::{HostFiles, disk, group, tree_write, walk};

/// One file of a tree.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TreeFile {
    pub bytes: Vec<u8>,
    /// Exact, whatever the umask.
    pub mode: u32,
    /// Whose it is, if not ours.
    pub owner: Option<u32>,
}

/// Files by their paths relative to the tree's top, none of which has `..` in it.
pub type TreeFiles = BTreeMap<PathBuf, TreeFile>;

/// What a group gets of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupShare {
    pub gid: u32,
    /// The group reads only; else it writes too.
    pub read_only: bool,
    /// A top that has group and rights already stands for all that is below it.
    pub only_if_top_differs: bool,
}

/// Hears of a tree that takes long: after 30 s with nothing, then every minute with how many entries were given so far.
pub type Slow<'a> = &'a (dyn Fn(Option<u64>) + Send + Sync);

#[async_trait]
pub trait Trees: Send + Sync {
    /// Makes the directory `top`, open to read for everyone, with these files. It must not be there. Nothing is
    /// synced: after a power failure it may be incomplete.
    async fn write_new(&self, top: &Path, files: &TreeFiles) -> io::Result<()>;

    /// Makes a link where nothing is.
    async fn new_link(&self, target: &Path, link: &Path) -> io::Result<()>;

    /// Makes a link at `through` and moves it onto `link`, in one step for whoever looks at that.
    async fn switch_link(&self, target: &Path, link: &Path, through: &Path) -> io::Result<()>;

    /// Gives everything at and below `top` to a group: links to them change hands but are not followed. Directories
    /// pass the group on to what is made in them. The top itself is last, so that it tells of a whole tree. It may take
    /// very long, and for ever if the file system hangs; whoever drops it stops it.
    async fn share(&self, top: &Path, share: GroupShare, slow: Slow<'_>) -> io::Result<()>;

    /// The group that has the top of a tree.
    async fn group(&self, top: &Path) -> io::Result<u32>;
}

#[async_trait]
impl Trees for HostFiles {
    async fn write_new(&self, top: &Path, files: &TreeFiles) -> io::Result<()> {
        let (top, files) = (top.to_owned(), files.clone());
        blocking(move || tree_write::write_new(&top, &files)).await
    }

    async fn new_link(&self, target: &Path, link: &Path) -> io::Result<()> {
        let (target, link) = (target.to_owned(), link.to_owned());
        blocking(move || tree_write::new_link(&target, &link)).await
    }

    async fn switch_link(&self, target: &Path, link: &Path, through: &Path) -> io::Result<()> {
        let (target, link, through) = (target.to_owned(), link.to_owned(), through.to_owned());
        blocking(move || {
            disk::remove_file(&through)?;
            tree_write::new_link(&target, &through)?;
            disk::rename(&through, &link)
        })
        .await
    }

    async fn share(&self, top: &Path, share: GroupShare, slow: Slow<'_>) -> io::Result<()> {
        let top = top.to_owned();
        walk::walk(move |walk| group::share(&top, share, walk), slow).await
    }

    async fn group(&self, top: &Path) -> io::Result<u32> {
        let top = top.to_owned();
        alone(move || {
            let found = rustix::fs::stat(&top).map_err(naming("stat", &top))?;
            Ok(found.st_gid)
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;
    use std::time::Duration;

    /// Those of the pool are few, and other pods need them.
    #[test]
    fn a_tree_is_shared_on_a_thread_of_its_own() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .max_blocking_threads(1)
            .enable_time()
            .build()
            .unwrap();
        runtime.block_on(async {
            let (go, wait) = std::sync::mpsc::channel::<()>();
            let pool = tokio::task::spawn_blocking(move || wait.recv());
            let dir = tempfile::tempdir().unwrap();
            let share = GroupShare {
                gid: std::fs::metadata(dir.path()).unwrap().gid(),
                read_only: false,
                only_if_top_differs: false,
            };
            let shared = HostFiles.share(dir.path(), share, &|_| {});
            let shared = tokio::time::timeout(Duration::from_secs(60), shared).await;
            go.send(()).unwrap();
            pool.await.unwrap().unwrap();
            shared.expect("it waits for the pool").unwrap();
            let mode = std::fs::metadata(dir.path()).unwrap().mode();
            assert_eq!(mode & 0o2070, 0o2070);
            assert_eq!(HostFiles.group(dir.path()).await.unwrap(), share.gid);
        });
    }
}
