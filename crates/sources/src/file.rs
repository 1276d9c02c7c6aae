//! Static pods from a directory of manifests, or from one file.

use std::collections::BTreeMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{once, select_all};
use futures::{FutureExt, StreamExt};
use jiff::Timestamp;
use krablet_linux::{DirectoryWatch, Entry, EntryKind, Files, WatchStream, regular_files};
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
/// How often to listen anew when the ground moves while the watch is being opened. The next look
/// tries again.
const TRIES: usize = 4;

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

/// A trouble that lasts is told once, and again when it is another.
#[derive(Default)]
pub(crate) struct Trouble {
    told: Option<String>,
}

impl Trouble {
    /// Whether it is not the one told last.
    pub(crate) fn is_news(&mut self, text: &str) -> bool {
        let news = self.told.as_deref() != Some(text);
        if news {
            self.told = Some(text.to_owned());
        }
        news
    }

    pub(crate) fn is_over(&mut self) {
        self.told = None;
    }
}

/// Device and inode. A watch stays with its directory, wherever the path leads later.
type Identity = (u64, u64);

/// The directories whose changes matter.
#[derive(Debug, PartialEq, Eq)]
struct Ground {
    /// The directory the path leads to.
    inside: Option<Identity>,
    /// The nearest directory above the path. It tells of a path that comes or, if it is a link,
    /// leads elsewhere.
    above: Option<(PathBuf, Identity)>,
}

/// An open watch, and for which ground it was opened.
struct Listening {
    ground: Ground,
    changes: WatchStream,
}

pub struct FileSource {
    config: FileSourceConfig,
    files: Arc<dyn Files>,
    watch: Arc<dyn DirectoryWatch>,
    decode: Decode,
    take_over: Option<Arc<dyn TakeOver>>,
    manifests: BTreeMap<PathBuf, Manifest>,
    /// With reading the directory itself.
    trouble: Trouble,
    /// With listening to it.
    deafness: Trouble,
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
            trouble: Trouble::default(),
            deafness: Trouble::default(),
        }
    }

    /// Delivers the set at start and whenever it may have changed, until nobody listens.
    pub async fn run(mut self, sets: mpsc::Sender<SourceSet>) {
        info!(path = %self.config.path.display(), "Watching path for static pods");
        let mut listening = None;
        let mut sent = false;
        loop {
            // First the ear, then the eye: what changes after the look is heard.
            self.listen(&mut listening).await;
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
            self.wait(&mut listening, &sets).await;
            if sets.is_closed() {
                return;
            }
        }
    }

    /// Waits for a sign of change or for the time of the next check.
    async fn wait(&self, listening: &mut Option<Listening>, sets: &mpsc::Sender<SourceSet>) {
        let period = self.config.check_frequency;
        let Some(Listening { changes, .. }) = listening else {
            tokio::select! {
                biased;
                () = sets.closed() => {}
                () = tokio::time::sleep(period) => {}
            }
            return;
        };
        let heard = tokio::select! {
            biased;
            () = sets.closed() => return,
            heard = tokio::time::timeout(period, changes.next()) => heard,
        };
        let Ok(heard) = heard else {
            return;
        };
        tokio::time::sleep(SETTLE).await;
        if heard.is_none() || drained(changes) {
            *listening = None;
        }
    }

    /// Sees to it that what is listened to is what the path leads to now.
    async fn listen(&mut self, listening: &mut Option<Listening>) {
        let mut failure = None;
        for _ in 0..TRIES {
            let ground = self.ground().await;
            if listening.as_ref().is_some_and(|l| l.ground == ground) {
                return self.deafness.is_over();
            }
            // And then once more: of what moved between the look at the ground and the watch nobody tells.
            (*listening, failure) = match self.open_watch(&ground) {
                Ok(changes) => (Some(Listening { ground, changes }), None),
                Err(e) => (None, Some(e.to_string())),
            };
        }
        if let Some(error) = failure
            && self.deafness.is_news(&error)
        {
            warn!(path = %self.config.path.display(), err = error, "Cannot watch for changes of static pods, will only look periodically");
        }
    }

    fn open_watch(&self, ground: &Ground) -> io::Result<WatchStream> {
        let inside = ground.inside.map(|_| self.config.path.as_path());
        let above = ground.above.as_ref().map(|(path, _)| path.as_path());
        let mut ears = Vec::new();
        for directory in inside.into_iter().chain(above) {
            let changes = self.watch.watch(directory)?;
            // With the end of one all must be opened anew.
            ears.push(changes.map(Some).chain(once(async { None })).boxed());
        }
        if ears.is_empty() {
            return Err(io::ErrorKind::NotFound.into());
        }
        let changes = select_all(ears).take_while(|change| std::future::ready(change.is_some()));
        Ok(changes.map(|_| ()).boxed())
    }

    async fn ground(&self) -> Ground {
        let path = &self.config.path;
        // A file system that hangs is to hold the thread this call has of its own, not one of the pool.
        let _ = self.files.stat(path).await;
        let inside = identity(path).await;
        let itself = tokio::fs::symlink_metadata(path).await;
        let is_link = itself.is_ok_and(|found| found.is_symlink());
        let mut above = None;
        if inside.is_none() || is_link {
            for directory in path.ancestors().skip(1) {
                if let Some(found) = identity(directory).await {
                    above = Some((directory.to_owned(), found));
                    break;
                }
            }
        }
        Ground { inside, above }
    }

    /// Reads what is there now. True if the set of pods may have changed.
    async fn scan(&mut self) -> bool {
        let found = match self.find().await {
            Ok(found) => {
                self.trouble.is_over();
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
            changed |= self.read(&entry.path).await;
        }
        changed
    }

    fn complain(&mut self, trouble: String) {
        if self.trouble.is_news(&trouble) {
            error!(err = trouble, "Unable to read config path");
        }
    }

    /// The manifest files there are, by name. Dot-files and anything but files are passed over.
    async fn find(&self) -> io::Result<Vec<Entry>> {
        let path = &self.config.path;
        let entry = self.files.stat(path).await?;
        if entry.kind != EntryKind::Directory {
            return Ok(vec![entry]);
        }
        let wanted = |path: &Path| !is_hidden(path);
        let mut found = regular_files(&*self.files, path, wanted).await?;
        if found.len() > MAX_FILES {
            warn!(path = %path.display(), files = found.len(), limit = MAX_FILES, "Too many manifests in one directory, ignoring the last ones by name");
            found.truncate(MAX_FILES);
        }
        Ok(found)
    }

    /// Looks at one manifest. True if its pods changed.
    async fn read(&mut self, path: &Path) -> bool {
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
        let origin = Origin::File(path.to_owned());
        match (self.decode)(&bytes, &origin) {
            Ok(pods) => {
                // Asked after it was read: what came later is newer. Of a file that is gone nobody knows.
                let changed = self.files.last_change(path).await;
                let changed = changed.unwrap_or(Timestamp::MAX);
                let pods = taken_over(pods, self.take_over.as_deref(), &origin, changed).await;
                let manifest = Manifest {
                    digest,
                    pods,
                    refusal: None,
                };
                self.manifests.insert(path.to_owned(), manifest);
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
fn drained(changes: &mut WatchStream) -> bool {
    loop {
        match changes.next().now_or_never() {
            Some(Some(())) => {}
            Some(None) => return true,
            None => return false,
        }
    }
}

/// Of a directory, links followed.
async fn identity(path: &Path) -> Option<Identity> {
    let found = tokio::fs::metadata(path).await.ok()?;
    found.is_dir().then(|| (found.dev(), found.ino()))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trouble_is_told_once_until_it_is_another_or_over() {
        let mut trouble = Trouble::default();
        for (text, news) in [
            (Some("a"), true),
            (Some("a"), false),
            (Some("b"), true),
            (Some("a"), true),
            (Some("a"), false),
            (None, false),
            (Some("a"), true),
        ] {
            match text {
                Some(text) => assert_eq!(trouble.is_news(text), news, "{text}"),
                None => trouble.is_over(),
            }
        }
    }
}
