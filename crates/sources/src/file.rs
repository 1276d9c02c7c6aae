//! Static pods from a directory of manifests, or from one file.

use std::collections::BTreeMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::{FutureExt, StreamExt};
use jiff::Timestamp;
use krablet_linux::{DirectoryWatch, Entry, EntryKind, Files, WatchStream};
use krablet_pod::api::Pod;
use krablet_pod::marks::PodSource;
use tokio::sync::mpsc;
use tracing::{error, info, warn};

use crate::{Decode, Origin, SourceSet, TakeOver, taken_over};

/// A manifest larger than this is refused unread.
const MAX_MANIFEST: usize = 10 * 1024 * 1024;
/// Manifests in one directory; more are refused by name, so that a stray directory cannot fill memory.
const MAX_FILES: usize = 4096;
/// A burst of changes is read once, this long after its first sign.
const SETTLE: Duration = Duration::from_millis(20);

#[derive(Clone, Debug)]
pub struct FileSourceConfig {
    /// A directory of manifests, or one manifest.
    pub path: PathBuf,
    /// How often to look even if nothing was heard of a change.
    pub check_frequency: Duration,
}

/// What is remembered of one manifest file.
struct Manifest {
    digest: u64,
    /// The pods of its last good content.
    pods: Vec<Arc<Pod>>,
    /// Why its present content is refused.
    refusal: Option<String>,
}

pub struct FileSource {
    config: FileSourceConfig,
    files: Arc<dyn Files>,
    watch: Arc<dyn DirectoryWatch>,
    decode: Decode,
    take_over: Option<Arc<dyn TakeOver>>,
    manifests: BTreeMap<PathBuf, Manifest>,
    /// The last trouble with the directory itself, so that it is told once.
    trouble: Option<String>,
}

impl FileSource {
    pub fn new(
        config: FileSourceConfig,
        files: Arc<dyn Files>,
        watch: Arc<dyn DirectoryWatch>,
        decode: Decode,
        take_over: Option<Arc<dyn TakeOver>>,
    ) -> Self {
        Self {
            config,
            files,
            watch,
            decode,
            take_over,
            manifests: BTreeMap::new(),
            trouble: None,
        }
    }

    /// Delivers the set at start and whenever it may have changed, until nobody listens.
    pub async fn run(mut self, sets: mpsc::Sender<SourceSet>) {
        info!(path = %self.config.path.display(), "Watching path for static pods");
        let mut changes = self.open_watch().await;
        let mut sent = false;
        loop {
            if self.scan().await || !sent {
                let set = SourceSet {
                    source: PodSource::File,
                    pods: self
                        .manifests
                        .values()
                        .flat_map(|m| m.pods.clone())
                        .collect(),
                    restored: false,
                };
                if sets.send(set).await.is_err() {
                    return;
                }
                sent = true;
            }
            self.wait(&mut changes, &sets).await;
            if sets.is_closed() {
                return;
            }
        }
    }

    /// Waits for a sign of change or for the time of the next check.
    async fn wait(&self, changes: &mut Option<WatchStream>, sets: &mpsc::Sender<SourceSet>) {
        let period = self.config.check_frequency;
        let heard = match changes.as_mut() {
            Some(stream) => tokio::select! {
                biased;
                () = sets.closed() => return,
                heard = tokio::time::timeout(period, stream.next()) => heard,
            },
            None => tokio::select! {
                biased;
                () = sets.closed() => return,
                () = tokio::time::sleep(period) => Ok(None),
            },
        };
        match heard {
            Ok(Some(())) => {
                tokio::time::sleep(SETTLE).await;
                if drained(changes) {
                    *changes = self.open_watch().await;
                }
            }
            Ok(None) => *changes = self.open_watch().await,
            Err(_) => {}
        }
    }

    /// The directory to listen to: the path itself, or the one its file lies in.
    async fn open_watch(&self) -> Option<WatchStream> {
        let path = &self.config.path;
        let is_directory = matches!(
            self.files.stat(path).await,
            Ok(Entry {
                kind: EntryKind::Directory,
                ..
            })
        );
        let directory = if is_directory {
            Some(path.as_path())
        } else {
            path.parent()
        };
        self.watch.watch(directory?).ok()
    }

    /// Reads what is there now. True if the set of pods may have changed.
    async fn scan(&mut self) -> bool {
        let found = match self.find().await {
            Ok(found) => {
                self.trouble = None;
                found
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                self.complain(format!(
                    "path {} does not exist, ignoring",
                    self.config.path.display()
                ));
                Vec::new()
            }
            Err(e) => {
                // Not the same as an empty directory: keep what is known until it can be read again.
                self.complain(format!(
                    "unable to read {}: {e}",
                    self.config.path.display()
                ));
                return false;
            }
        };
        let before = self.manifests.len();
        self.manifests
            .retain(|path, _| found.iter().any(|f| f.path == *path));
        let mut changed = self.manifests.len() != before;
        for entry in found {
            changed |= self.read(&entry).await;
        }
        changed
    }

    fn complain(&mut self, trouble: String) {
        if self.trouble.as_ref() != Some(&trouble) {
            error!(err = trouble, "Unable to read config path");
            self.trouble = Some(trouble);
        }
    }

    /// The manifest files there are, by name. Dot-files and anything but files are passed over.
    async fn find(&self) -> io::Result<Vec<Entry>> {
        let path = &self.config.path;
        let entry = self.files.stat(path).await?;
        if entry.kind != EntryKind::Directory {
            return Ok(vec![entry]);
        }
        let mut found = Vec::new();
        for entry in self.files.list(path).await? {
            if is_hidden(&entry.path) {
                continue;
            }
            let entry = match entry.kind {
                EntryKind::Symlink => match self.files.stat(&entry.path).await {
                    Ok(target) => Entry {
                        path: entry.path,
                        ..target
                    },
                    Err(_) => continue,
                },
                _ => entry,
            };
            if entry.kind == EntryKind::File {
                found.push(entry);
            }
        }
        if found.len() > MAX_FILES {
            warn!(path = %path.display(), files = found.len(), limit = MAX_FILES, "Too many manifests in one directory, ignoring the last ones by name");
            found.truncate(MAX_FILES);
        }
        Ok(found)
    }

    /// Looks at one manifest. True if its pods changed.
    async fn read(&mut self, entry: &Entry) -> bool {
        let path = &entry.path;
        let bytes = match self.files.read(path, MAX_MANIFEST).await {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                return self
                    .manifests
                    .remove(path)
                    .is_some_and(|m| !m.pods.is_empty());
            }
            Err(e) => {
                self.refuse(path, 0, e.to_string());
                return false;
            }
        };
        let digest = digest(&bytes);
        if self.manifests.get(path).is_some_and(|m| m.digest == digest) {
            return false;
        }
        let origin = Origin::File(path.clone());
        match (self.decode)(&bytes, &origin) {
            Ok(pods) => {
                let modified = Timestamp::from_second(entry.modified).unwrap_or(Timestamp::MAX);
                let pods = taken_over(pods, self.take_over.as_deref(), &origin, modified).await;
                let manifest = Manifest {
                    digest,
                    pods,
                    refusal: None,
                };
                self.manifests.insert(path.clone(), manifest);
                true
            }
            Err(reason) => {
                self.refuse(path, digest, reason);
                false
            }
        }
    }

    /// Tells once why a manifest is refused. The pods of its last good content stay: a broken edit
    /// or a half-written file must not stop what runs.
    fn refuse(&mut self, path: &Path, digest: u64, reason: String) {
        let manifest = self.manifests.entry(path.to_owned()).or_insert(Manifest {
            digest,
            pods: Vec::new(),
            refusal: None,
        });
        manifest.digest = digest;
        if manifest.refusal.as_ref() != Some(&reason) {
            let kept = !manifest.pods.is_empty();
            error!(
                path = %path.display(),
                err = reason,
                keepsLastGoodPod = kept,
                "Could not process manifest file"
            );
            manifest.refusal = Some(reason);
        }
    }
}

/// Takes what was told so far: the look that follows sees all of it, so a burst of changes is worth
/// one look and not one for each file. True if the stream has ended.
fn drained(changes: &mut Option<WatchStream>) -> bool {
    let Some(stream) = changes else {
        return true;
    };
    loop {
        match stream.next().now_or_never() {
            Some(Some(())) => {}
            Some(None) => return true,
            None => return false,
        }
    }
}

fn is_hidden(path: &Path) -> bool {
    path.file_name()
        .is_none_or(|n| n.as_encoded_bytes().starts_with(b"."))
}

fn digest(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}
