//! ConfigMaps and secrets of a node without an API server: manifests in a directory, read anew when they change.

mod decode;
#[cfg(test)]
mod tests;

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash as _, Hasher as _};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::{FutureExt as _, StreamExt as _};
use krablet_linux::{DirectoryWatch, Files, WatchStream, regular_files};
use krablet_pod::api::{ConfigMap, Pod, Secret};
use krablet_pod::{PodRef, PodUid};
use tokio::sync::watch;
use tokio::time::timeout;
use tracing::{error, info, warn};

use crate::cluster::SharedTable;
use crate::object::Object;
use crate::references::uses;
use crate::{Bell, Nowhere, ObjectError, ObjectKey, Objects, Referents};

/// A larger manifest is refused; an API server takes about a megabyte for one object.
const MAX_BYTES: usize = 4 << 20;
/// So that a stray directory cannot fill memory.
const MAX_FILES: usize = 4096;
/// A burst of changes is read once, this long after its first sign.
const SETTLE: Duration = Duration::from_millis(20);
/// How often to look even if nothing was heard of a change.
const CHECK: Duration = Duration::from_secs(20);
/// How long a reader waits for the first look.
const PATIENCE: Duration = Duration::from_secs(10);

type Found = BTreeMap<ObjectKey, Object>;

/// What pods of this node refer to is in this directory; the task keeps an eye on it.
pub fn local(
    directory: PathBuf,
    files: Arc<dyn Files>,
    watch: Arc<dyn DirectoryWatch>,
) -> (Referents, LocalTask) {
    let (found, known) = watch::channel(None);
    let (bell, table) = (Bell::default(), SharedTable::default());
    let referents = Referents {
        objects: Arc::new(LocalObjects {
            table: table.clone(),
            known,
        }),
        services: Arc::new(Nowhere),
        bell: bell.clone(),
    };
    let task = LocalTask {
        directory,
        files,
        watch,
        manifests: BTreeMap::new(),
        trouble: None,
        found,
        table,
        bell,
    };
    (referents, task)
}

struct LocalObjects {
    table: SharedTable,
    known: watch::Receiver<Option<Found>>,
}

impl LocalObjects {
    async fn get(&self, key: &ObjectKey) -> Result<Object, ObjectError> {
        let mut known = self.known.clone();
        let looked = timeout(PATIENCE, known.wait_for(Option::is_some)).await;
        let Ok(Ok(found)) = looked else {
            return Err(ObjectError::timed_out(key, None));
        };
        let object = found.as_ref().and_then(|found| found.get(key)).cloned();
        object.ok_or_else(|| ObjectError::not_found(key))
    }
}

#[async_trait]
impl Objects for LocalObjects {
    async fn config_map(&self, namespace: &str, name: &str) -> Result<Arc<ConfigMap>, ObjectError> {
        let key = ObjectKey::config_map(namespace, name);
        self.get(&key).await?.config_map(&key)
    }

    async fn secret(&self, namespace: &str, name: &str) -> Result<Arc<Secret>, ObjectError> {
        let key = ObjectKey::secret(namespace, name);
        self.get(&key).await?.secret(&key)
    }

    fn want(&self, pod: &Pod) {
        self.table.lock().want(&PodRef::of(pod).uid, uses(pod));
    }

    fn forget(&self, uid: &PodUid) {
        self.table.lock().forget(uid);
    }
}

/// What is remembered of one manifest.
#[derive(Default)]
struct Manifest {
    /// Of its present content.
    digest: Option<u64>,
    /// Of its last good content: a broken edit takes nothing away.
    objects: Vec<(ObjectKey, Object)>,
    refusal: Option<String>,
}

/// Reads the directory.
pub struct LocalTask {
    directory: PathBuf,
    files: Arc<dyn Files>,
    watch: Arc<dyn DirectoryWatch>,
    manifests: BTreeMap<PathBuf, Manifest>,
    /// The last trouble with the directory itself, so that it is told once.
    trouble: Option<String>,
    found: watch::Sender<Option<Found>>,
    table: SharedTable,
    bell: Bell,
}

impl LocalTask {
    /// Never ends.
    pub async fn run(mut self) {
        info!(path = %self.directory.display(), "Watching path for configMaps and secrets");
        loop {
            // Listens before it looks: what changes meanwhile is heard.
            let mut changes = self.watch.watch(&self.directory).ok();
            loop {
                self.scan().await;
                match heard(changes.as_mut()).await {
                    Heard::Change => {}
                    Heard::End => break,
                }
            }
        }
    }

    async fn scan(&mut self) {
        let is_first = self.found.borrow().is_none();
        let changed = match self.find().await {
            Ok(found) => {
                self.trouble = None;
                self.read_all(found).await
            }
            Err(e) => {
                // Not the same as an empty directory: what is known stays.
                let trouble = format!("unable to read {}: {e}", self.directory.display());
                if self.trouble.as_ref() != Some(&trouble) {
                    error!(err = trouble, "Unable to read the directory of objects");
                    self.trouble = Some(trouble);
                }
                false
            }
        };
        if changed || is_first {
            self.publish();
        }
    }

    /// The manifests there are, by name.
    async fn find(&self) -> io::Result<Vec<PathBuf>> {
        let mut found = regular_files(&*self.files, &self.directory, is_manifest).await?;
        if found.len() > MAX_FILES {
            warn!(path = %self.directory.display(), files = found.len(), limit = MAX_FILES, "Too many manifests in one directory, ignoring the last ones by name");
            found.truncate(MAX_FILES);
        }
        Ok(found.into_iter().map(|entry| entry.path).collect())
    }

    /// True if anything may be other than before.
    async fn read_all(&mut self, found: Vec<PathBuf>) -> bool {
        let before = self.manifests.len();
        self.manifests.retain(|path, _| found.contains(path));
        let mut changed = self.manifests.len() != before;
        for path in found {
            match self.files.read(&path, MAX_BYTES).await {
                Ok(bytes) => changed |= self.read(path, &bytes),
                Err(e) if e.kind() == io::ErrorKind::NotFound => {
                    changed |= self.manifests.remove(&path).is_some();
                }
                Err(e) => {
                    let manifest = self.manifests.entry(path.clone()).or_default();
                    manifest.refuse(&path, e.to_string());
                }
            }
        }
        changed
    }

    fn read(&mut self, path: PathBuf, bytes: &[u8]) -> bool {
        let manifest = self.manifests.entry(path.clone()).or_default();
        let digest = Some(digest(bytes));
        if manifest.digest == digest {
            return false;
        }
        manifest.digest = digest;
        match decode::decode(bytes) {
            Ok(objects) => {
                manifest.objects = objects;
                manifest.refusal = None;
                true
            }
            Err(problem) => {
                manifest.refuse(&path, problem);
                false
            }
        }
    }

    /// Tells everyone, and wakes those whose objects are other than before.
    fn publish(&self) {
        let mut found = Found::new();
        for (path, manifest) in &self.manifests {
            for (key, object) in &manifest.objects {
                if found.contains_key(key) {
                    warn!(path = %path.display(), object = %key, "Object is in another file too, which comes first by name");
                    continue;
                }
                found.insert(key.clone(), object.clone());
            }
        }
        let before = self.found.send_replace(Some(found));
        let after = self.found.borrow().clone().unwrap_or_default();
        let before = before.unwrap_or_default();
        let keys: BTreeSet<&ObjectKey> = before.keys().chain(after.keys()).collect();
        let table = self.table.lock();
        let changed = keys.into_iter().filter(|k| before.get(k) != after.get(k));
        let pods: BTreeSet<PodUid> = changed.flat_map(|key| table.referrers(key)).collect();
        self.bell.ring(pods);
    }
}

impl Manifest {
    fn refuse(&mut self, path: &Path, problem: String) {
        if self.refusal.as_ref() != Some(&problem) {
            error!(path = %path.display(), err = problem, keepsLastGood = !self.objects.is_empty(), "Could not process the manifest of an object");
            self.refusal = Some(problem);
        }
    }
}

enum Heard {
    Change,
    /// Listen anew.
    End,
}

/// Waits for a sign of change or for the time of the next look.
async fn heard(changes: Option<&mut WatchStream>) -> Heard {
    let Some(changes) = changes else {
        tokio::time::sleep(CHECK).await;
        return Heard::End;
    };
    match timeout(CHECK, changes.next()).await {
        Err(_) => return Heard::Change,
        Ok(None) => {
            tokio::time::sleep(SETTLE).await;
            return Heard::End;
        }
        Ok(Some(())) => tokio::time::sleep(SETTLE).await,
    }
    // A burst is worth one look.
    loop {
        match changes.next().now_or_never() {
            Some(Some(())) => {}
            Some(None) => return Heard::End,
            None => return Heard::Change,
        }
    }
}

fn digest(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}

fn is_manifest(path: &Path) -> bool {
    let name = path.file_name().map(|n| n.as_encoded_bytes());
    let hidden = name.is_none_or(|n| n.starts_with(b"."));
    let extension = path.extension().and_then(|e| e.to_str());
    !hidden && matches!(extension, Some("yaml" | "yml" | "json"))
}
