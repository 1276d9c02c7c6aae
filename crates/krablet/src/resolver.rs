//! The node's resolver file. A pod that could not start because of it starts as soon as it is mended.

use std::future::ready;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::{once, select};
use krablet_agent::{AgentDeps, AgentHandle};
use krablet_linux::{DirectoryWatch, Files, InotifyWatch};
use krablet_objects::Bell;
use krablet_pod::{PodRef, PodUid};
use krablet_runtime::dns::RESOLV_CONF_LIMIT;

/// A directory that is not there may come.
const LOOK_AGAIN: Duration = Duration::from_secs(10);

pub struct ResolverWatch {
    file: PathBuf,
    files: Arc<dyn Files>,
    watch: Arc<dyn DirectoryWatch>,
    bell: Bell,
    /// Pods that have not started.
    waiting: Box<dyn Fn() -> Vec<PodUid> + Send + Sync>,
}

impl ResolverWatch {
    pub fn new(file: PathBuf, deps: &AgentDeps, handle: &AgentHandle) -> Self {
        let handle = handle.clone();
        let waiting = move || {
            let uids = handle.desired.all().into_iter();
            let uids = uids.map(|pod| PodRef::of(&pod).uid);
            let is_pending = |uid: &PodUid| {
                let status = handle.status.status(uid);
                status.is_none_or(|s| s.phase.as_deref() == Some("Pending"))
            };
            uids.filter(is_pending).collect()
        };
        Self {
            file,
            files: deps.files.clone(),
            watch: Arc::new(InotifyWatch),
            bell: deps.referents.bell.clone(),
            waiting: Box::new(waiting),
        }
    }

    /// Never ends.
    pub async fn run(self) {
        let mut seen = self.content().await;
        loop {
            if self.watch_one_place(&mut seen).await.is_none() {
                tokio::time::sleep(LOOK_AGAIN).await;
            }
        }
    }

    /// Often it is a link to a file that another program writes: both directories are watched, until
    /// the link leads elsewhere. None if there is nothing to watch, or no more.
    async fn watch_one_place(&self, seen: &mut Option<u64>) -> Option<()> {
        let real = self.real().await;
        let link = self.watch.watch(directory(&self.file)).ok()?;
        let target = self.watch.watch(directory(&real)).ok()?;
        // The end of either is heard, not only that of both.
        let [link, target] = [link, target].map(|s| s.map(Some).chain(once(ready(None))));
        let mut changes = pin!(select(link, target));
        self.tell_if_changed(seen).await;
        while let Some(Some(())) = changes.next().await {
            self.tell_if_changed(seen).await;
            if self.real().await != real {
                return Some(());
            }
        }
        None
    }

    async fn real(&self) -> PathBuf {
        let real = tokio::fs::canonicalize(&self.file).await;
        real.unwrap_or_else(|_| self.file.clone())
    }

    /// A hash of it; none if it cannot be read.
    async fn content(&self) -> Option<u64> {
        let bytes = self.files.read(&self.file, RESOLV_CONF_LIMIT).await.ok()?;
        let mut hasher = DefaultHasher::new();
        bytes.hash(&mut hasher);
        Some(hasher.finish())
    }

    /// Other files of the directory change too.
    async fn tell_if_changed(&self, seen: &mut Option<u64>) {
        let now = self.content().await;
        if now != *seen {
            *seen = now;
            self.bell.ring((self.waiting)());
        }
    }
}

fn directory(file: &Path) -> &Path {
    file.parent().unwrap_or(Path::new("/"))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use krablet_linux::HostFiles;
    use tokio::task::JoinSet;

    /// Written until it is seen: the watch may begin after the first time.
    async fn rewrite_until_heard(file: &Path, bell: &Bell) {
        for number in 0_u64.. {
            std::fs::write(file.with_file_name("other"), number.to_string()).unwrap();
            std::fs::write(file, format!("nameserver 192.0.2.{number}\n")).unwrap();
            let rung = tokio::time::timeout(Duration::from_secs(1), bell.next());
            if let Ok(rung) = rung.await {
                assert_eq!(rung, ["a".into()].into());
                return;
            }
        }
    }

    #[tokio::test]
    async fn who_waits_is_woken_by_another_content_and_by_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let files = ["here", "there"].map(|name| dir.path().join(name).join("resolv.conf"));
        for file in &files {
            std::fs::create_dir(directory(file)).unwrap();
            std::fs::write(file, "nameserver\n").unwrap();
        }
        let [here, there] = files;
        let link = dir.path().join("resolv.conf");
        std::os::unix::fs::symlink(&here, &link).unwrap();
        let bell = Bell::default();
        let asked = Arc::new(AtomicUsize::new(0));
        let counted = asked.clone();
        let watch = ResolverWatch {
            file: link.clone(),
            files: Arc::new(HostFiles),
            watch: Arc::new(InotifyWatch),
            bell: bell.clone(),
            waiting: Box::new(move || {
                counted.fetch_add(1, Ordering::Relaxed);
                vec!["a".into()]
            }),
        };
        let mut tasks = JoinSet::new();
        let mut seen = watch.content().await;
        watch.tell_if_changed(&mut seen).await;
        assert_eq!(asked.load(Ordering::Relaxed), 0);
        tasks.spawn(watch.run());
        rewrite_until_heard(&here, &bell).await;
        // The link itself is replaced; from then on it is the other file that counts.
        let replaced = dir.path().join("replaced");
        std::os::unix::fs::symlink(&there, &replaced).unwrap();
        std::fs::rename(&replaced, &link).unwrap();
        bell.next().await;
        rewrite_until_heard(&there, &bell).await;
    }
}
