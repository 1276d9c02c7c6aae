//! The node's resolver file. A pod that could not start because of it starts as soon as it is mended.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
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
            // Often it is a link to a file that another program writes.
            let real = std::fs::canonicalize(&self.file).unwrap_or_else(|_| self.file.clone());
            let directory = real.parent().unwrap_or(Path::new("/"));
            if let Ok(mut changes) = self.watch.watch(directory) {
                self.tell_if_changed(&mut seen).await;
                while changes.next().await.is_some() {
                    self.tell_if_changed(&mut seen).await;
                }
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use krablet_linux::HostFiles;
    use tokio::task::JoinSet;

    #[tokio::test]
    async fn who_waits_is_woken_by_another_content_and_by_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().join("real");
        std::fs::create_dir(&real).unwrap();
        let (target, link) = (real.join("resolv.conf"), dir.path().join("resolv.conf"));
        std::fs::write(&target, "nameserver\n").unwrap();
        std::os::unix::fs::symlink(&target, &link).unwrap();
        let bell = Bell::default();
        let asked = Arc::new(AtomicUsize::new(0));
        let counted = asked.clone();
        let watch = ResolverWatch {
            file: link,
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
        // Written until it is seen: the watch may begin after the first time.
        for number in 0_u64.. {
            std::fs::write(real.join("other"), number.to_string()).unwrap();
            std::fs::write(&target, format!("nameserver 192.0.2.{number}\n")).unwrap();
            let rung = tokio::time::timeout(Duration::from_secs(1), bell.next());
            if let Ok(rung) = rung.await {
                assert_eq!(rung, ["a".into()].into());
                break;
            }
        }
    }
}
