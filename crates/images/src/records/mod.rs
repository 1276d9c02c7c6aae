//! Who has proven to have a right to an image that is on the node.
//!
//! Before a pull an intent is written down, after it with which credentials it succeeded; both in the files a
//! kubelet keeps, so that one can take over from the other. A pod whose image is there already gets it without
//! asking the registry only if the record says that it may.

mod announced;
mod record;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use krablet_linux::{EntryKind, Files, WallClock};
use krablet_metrics::ImageMetrics;
use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};

pub use announced::PullIntent;
use announced::{Announced, UnderWay};
pub use record::Credentials as RecordedCredentials;
use record::{Foreign, Intent, PulledRecord};

use crate::keyring::{Credential, hex};
use crate::reference;

const DIR_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;
/// A record with a hundred secrets has some twenty kilobytes.
const LIMIT: usize = 1 << 20;
const PREFIX: &str = "sha256-";

// What comes of a look at the records, in upstream's words.
const POLICY_ALLOWED: &str = "credentialPolicyAllowed";
const RECORD_FOUND: &str = "credentialRecordFound";
const MUST_AUTHENTICATE: &str = "mustAuthenticate";

/// `imagePullCredentialsVerificationPolicy`: for which images that are there a right must be proven.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Verification {
    NeverVerify,
    /// For those an agent has pulled.
    #[default]
    NeverVerifyPreloadedImages,
    /// For all but these; a name may end in `/*`.
    NeverVerifyAllowlistedImages(Vec<String>),
    AlwaysVerify,
}

impl Verification {
    /// `None`: there is no such policy.
    pub fn parse(policy: &str, allowlist: &[String]) -> Option<Self> {
        Some(match policy {
            "NeverVerify" => Self::NeverVerify,
            "" | "NeverVerifyPreloadedImages" => Self::NeverVerifyPreloadedImages,
            "NeverVerifyAllowlistedImages" => {
                Self::NeverVerifyAllowlistedImages(allowlist.to_vec())
            }
            "AlwaysVerify" => Self::AlwaysVerify,
            _ => return None,
        })
    }

    fn asks(&self, image: &str, pulled_by_agent: bool) -> bool {
        match self {
            Self::NeverVerify => false,
            Self::NeverVerifyPreloadedImages => pulled_by_agent,
            Self::NeverVerifyAllowlistedImages(list) => {
                let name = reference::bare(image).unwrap_or(image);
                !list.iter().any(|pattern| match pattern.strip_suffix('*') {
                    Some(prefix) => name.starts_with(prefix),
                    None => name == pattern,
                })
            }
            Self::AlwaysVerify => true,
        }
    }
}

/// What must be known of a pod before it gets an image that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Nothing.
    Free,
    /// That it has one of these credentials.
    Known(RecordedCredentials),
    /// That its registry lets it pull.
    Unknown,
}

/// Something is wrong with the files.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {problem}")]
pub struct RecordError {
    path: PathBuf,
    problem: String,
}

impl RecordError {
    fn new(path: &Path, problem: impl ToString) -> Self {
        Self {
            path: path.to_owned(),
            problem: problem.to_string(),
        }
    }
}

pub struct PullRecords {
    policy: Verification,
    /// Intents: whatever is there by the name is ours.
    pulling: PathBuf,
    /// In the place of an intent, where an image from elsewhere was there by the name.
    foreign: PathBuf,
    pulled: PathBuf,
    files: Arc<dyn Files>,
    clock: Arc<dyn WallClock>,
    metrics: ImageMetrics,
    under_way: UnderWay,
    /// A record is read, changed and written by one at a time.
    writing: tokio::sync::Mutex<()>,
    /// What lies in both directories was counted once.
    tallied: AtomicBool,
}

/// An announcement that no pull of now stands behind.
struct LeftOver {
    path: PathBuf,
    image: String,
    announced: Announced,
}

impl PullRecords {
    /// `root` is the agent's root directory.
    pub fn new(
        policy: Verification,
        root: &Path,
        files: Arc<dyn Files>,
        clock: Arc<dyn WallClock>,
    ) -> Self {
        let dir = root.join("image_manager");
        Self {
            policy,
            pulling: dir.join("pulling"),
            foreign: dir.join("foreign"),
            pulled: dir.join("pulled"),
            files,
            clock,
            metrics: ImageMetrics::default(),
            under_way: UnderWay::default(),
            writing: tokio::sync::Mutex::default(),
            tallied: AtomicBool::new(false),
        }
    }

    /// Counts here from now on.
    pub fn counting(mut self, metrics: ImageMetrics) -> Self {
        self.metrics = metrics;
        self
    }

    /// How a pod that asks for `image` stands to the image `id` that is there.
    pub async fn standing(&self, image: &str, id: &str) -> Standing {
        let (record, ours) = match self.known(image, id).await {
            Ok(known) => known,
            Err(error) => {
                tracing::error!(image, %error, "Unable to access records about image pulls");
                self.check_failed();
                return Standing::Unknown;
            }
        };
        if !self.policy.asks(image, ours) {
            self.checked(POLICY_ALLOWED);
            return Standing::Free;
        }
        let name = reference::bare(image).ok();
        let credentials = record
            .zip(name)
            .and_then(|(mut record, name)| record.credential_mapping.remove(name));
        match credentials {
            Some(c) if c.node_pods_accessible => {
                self.checked(RECORD_FOUND);
                Standing::Free
            }
            // What comes of it is counted when the pod's credentials are known.
            Some(c) if !c.is_empty() => Standing::Known(c),
            _ => {
                self.checked(MUST_AUTHENTICATE);
                Standing::Unknown
            }
        }
    }

    /// It cannot be found out what a pod may have.
    pub fn check_failed(&self) {
        self.checked("error");
    }

    fn checked(&self, result: &str) {
        self.metrics.must_pull_checks.add(&[result], 1);
    }

    /// Tells how much is written down in a directory, by whoever has changed it. Who is the first to change anything also
    /// tells of the other directory, for what an earlier agent left there.
    async fn tally(&self, changed: &Path) {
        let is_first = !self.tallied.load(Ordering::Relaxed);
        let intents = [self.pulling.as_path(), self.foreign.as_path()];
        let records = [self.pulled.as_path()];
        for (dirs, gauge) in [
            (&intents[..], &self.metrics.intents_on_disk),
            (&records[..], &self.metrics.records_on_disk),
        ] {
            if !is_first && !dirs.contains(&changed) {
                continue;
            }
            let mut count = 0;
            for dir in dirs {
                let names = self.files.names(dir).await.unwrap_or_default();
                let names = names.iter().filter_map(|name| name.to_str());
                count += names.filter(|name| is_record(name)).count();
            }
            gauge.set([(Vec::new(), count as u64)]);
        }
        self.tallied.store(true, Ordering::Relaxed);
    }

    /// The image's record, and whether an agent pulled it.
    async fn known(
        &self,
        image: &str,
        id: &str,
    ) -> Result<(Option<PulledRecord>, bool), RecordError> {
        if let Some(record) = self.record(id).await? {
            return Ok((Some(record), true));
        }
        let announced = self.announced(image).await?;
        if announced.is_some_and(|announced| announced.is_ours(id)) {
            return Ok((None, true));
        }
        // A pull that has ended in the meantime wrote its record before it took back what it had announced.
        let record = self.record(id).await?;
        let is_ours = record.is_some();
        Ok((record, is_ours))
    }

    /// What was announced of an image and not taken back. Files are looked at in the order in which nothing is missed
    /// when one gives way to the other.
    async fn announced(&self, image: &str) -> Result<Option<Announced>, RecordError> {
        if let Some(announced) = self.under_way.announced(image) {
            return Ok(Some(announced));
        }
        let name = file_name(image);
        let foreign: Option<Foreign> = self.read(&self.foreign.join(&name)).await?;
        let intent: Option<Intent> = self.read(&self.pulling.join(&name)).await?;
        if intent.is_some_and(|intent| intent.image == image) {
            return Ok(Some(Announced::Any));
        }
        let foreign = foreign.filter(|foreign| foreign.image == image);
        Ok(foreign.map(|foreign| Announced::AllBut(foreign.image_ref)))
    }

    /// Whether one of a pod's credentials is among those recorded. One that is known by its place or by its
    /// content alone is recorded anew.
    pub async fn allows(
        &self,
        image: &str,
        id: &str,
        known: &RecordedCredentials,
        held: &[Credential],
    ) -> bool {
        let Some((credential, is_news)) = known.find(held) else {
            self.checked(MUST_AUTHENTICATE);
            return false;
        };
        self.checked(RECORD_FOUND);
        if is_news {
            let recorded = RecordedCredentials::of(Some(credential));
            if let Err(error) = self.record_credentials(image, id, Some(recorded)).await {
                tracing::error!(image, imageRef = id, %error, "Failed to write an image pulled record");
            }
        }
        true
    }

    /// To be called before a pull. `there` is the id of the image that is there by this name.
    pub async fn intend(
        &self,
        image: &str,
        there: Option<&str>,
    ) -> Result<PullIntent, RecordError> {
        let _writing = self.writing.lock().await;
        // What cannot be read may have been either; the intent is the stricter one.
        let before = self.announced(image).await.unwrap_or_else(|error| {
            tracing::info!(image, %error, "What was announced of an image cannot be read");
            Some(Announced::Any)
        });
        let there = match there {
            Some(id) => Some((id, !matches!(self.record(id).await, Ok(None)))),
            None => None,
        };
        if let (Some(before), Some((id, false))) = (&before, there)
            && before.is_ours(id)
            && !self.under_way.contains(image)
        {
            // A pull that was given up has brought it after all. Should this one fail, that is still so.
            self.write_credentials(image, id, None).await?;
        }
        let announced = Announced::next(before.as_ref(), there);
        self.announce(image, &announced).await?;
        Ok(self.under_way.begin(image, announced))
    }

    async fn announce(&self, image: &str, announced: &Announced) -> Result<(), RecordError> {
        let name = file_name(image);
        let foreign = self.foreign.join(&name);
        match announced {
            Announced::AllBut(id) => {
                let announced = Foreign::new(image, id);
                self.write(&self.foreign, &foreign, &announced).await
            }
            Announced::Any => {
                let path = self.pulling.join(name);
                self.write(&self.pulling, &path, &Intent::new(image))
                    .await?;
                // An intent outweighs it, so that it may go after.
                let removed = self.files.remove_file(&foreign).await;
                removed.map_err(|e| RecordError::new(&foreign, e))
            }
        }
    }

    /// The pull has succeeded with this credential, or without any.
    pub async fn pulled(&self, intent: PullIntent, id: &str, used: Option<&Credential>) {
        let recorded = RecordedCredentials::of(used);
        let image = intent.image().to_owned();
        match self.record_credentials(&image, id, Some(recorded)).await {
            Ok(()) => self.end(intent, PullIntent::succeeded).await,
            // The intent stays, and makes a record of itself when the agent starts the next time.
            Err(error) => {
                tracing::error!(imageRef = id, %error, "Failed to write image pulled record");
            }
        }
    }

    /// The pull has failed, or was not tried.
    pub async fn failed(&self, intent: PullIntent) {
        self.end(intent, PullIntent::failed).await;
    }

    async fn end(&self, intent: PullIntent, how: impl FnOnce(PullIntent) -> Option<Announced>) {
        let image = intent.image().to_owned();
        let _writing = self.writing.lock().await;
        let dir = match how(intent) {
            None => return,
            Some(Announced::Any) => &self.pulling,
            Some(Announced::AllBut(_)) => &self.foreign,
        };
        let removed = self.files.remove_file(&dir.join(file_name(&image))).await;
        if let Err(error) = removed {
            tracing::error!(image, %error, "Failed to remove image pull intent");
        }
        self.tally(dir).await;
    }

    async fn record_credentials(
        &self,
        image: &str,
        id: &str,
        credentials: Option<RecordedCredentials>,
    ) -> Result<(), RecordError> {
        let _writing = self.writing.lock().await;
        self.write_credentials(image, id, credentials).await
    }

    /// To be called by whoever writes.
    async fn write_credentials(
        &self,
        image: &str,
        id: &str,
        credentials: Option<RecordedCredentials>,
    ) -> Result<(), RecordError> {
        let path = self.pulled.join(file_name(id));
        let name = reference::bare(image).map_err(|e| RecordError::new(&path, e))?;
        // One that cannot be read is written anew.
        let old = self.record(id).await.unwrap_or_else(|error| {
            tracing::info!(image, %error, "An image pulled record cannot be read");
            None
        });
        let now = self.clock.now();
        let merged = match old {
            Some(old) => old.merged(name, credentials, now),
            None => Some(PulledRecord::new(id, name, credentials, now)),
        };
        match merged {
            Some(record) => self.write(&self.pulled, &path, &record).await,
            None => Ok(()),
        }
    }

    async fn record(&self, id: &str) -> Result<Option<PulledRecord>, RecordError> {
        let found: Option<PulledRecord> = self.read(&self.pulled.join(file_name(id))).await?;
        Ok(found.filter(|record| record.image_ref == id))
    }

    /// Whether there were pulls without an end, those under way aside.
    pub async fn has_intents(&self) -> bool {
        !self.left_over().await.is_empty()
    }

    /// Announced pulls that came to no end: images that they may have brought are taken as pulled, by whom nobody knows.
    /// `images` are the ids of all images with their names. What is under way now is left alone.
    pub async fn settle_intents(&self, images: &[(String, Vec<String>)]) {
        // Nothing begins or ends in between.
        let _writing = self.writing.lock().await;
        for left in self.left_over().await {
            let listed = reference::listed_name(&left.image).unwrap_or_default();
            let is_it = |name: &String| *name == left.image || *name == listed;
            let here = images.iter().find(|(_, names)| names.iter().any(is_it));
            let Some((id, _)) = here.filter(|(id, _)| left.announced.is_ours(id)) else {
                continue;
            };
            if let Err(error) = self.write_credentials(&left.image, id, None).await {
                tracing::error!(imageRef = id, %error, "Failed to write an image pull record");
                continue;
            }
            let _ = self.files.remove_file(&left.path).await;
        }
        self.tally(&self.pulling).await;
    }

    async fn left_over(&self) -> Vec<LeftOver> {
        let intents = self.all::<Intent>(&self.pulling).await.into_iter();
        let intents = intents.map(|(path, intent)| LeftOver {
            path,
            image: intent.image,
            announced: Announced::Any,
        });
        let foreign = self.all::<Foreign>(&self.foreign).await.into_iter();
        let foreign = foreign.map(|(path, foreign)| LeftOver {
            path,
            image: foreign.image,
            announced: Announced::AllBut(foreign.image_ref),
        });
        let all = intents.chain(foreign);
        all.filter(|left| !self.under_way.contains(&left.image))
            .collect()
    }

    /// Forgets images that are gone. `until` lies before the images were listed: what is younger may be of one
    /// that came later.
    pub async fn prune(&self, ids: &[String], until: jiff::Timestamp) {
        let _writing = self.writing.lock().await;
        for (path, record) in self.all::<PulledRecord>(&self.pulled).await {
            if record.is_before(until) && !ids.contains(&record.image_ref) {
                let removed = self.files.remove_file(&path).await;
                if let Err(error) = removed {
                    tracing::error!(imageRef = record.image_ref, %error, "Failed to remove an image pulled record");
                }
            }
        }
        self.tally(&self.pulled).await;
    }

    /// All records of a directory that can be read.
    async fn all<T: DeserializeOwned + record::Versioned>(&self, dir: &Path) -> Vec<(PathBuf, T)> {
        let entries = match self.files.list(dir).await {
            Ok(entries) => entries,
            Err(e) if e.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => {
                tracing::error!(dir = %dir.display(), %error, "Failed to list records of image pulls");
                Vec::new()
            }
        };
        let mut found = Vec::new();
        for entry in entries {
            let name = entry.path.file_name().and_then(|n| n.to_str());
            if name.is_some_and(is_record)
                && entry.kind == EntryKind::File
                && let Ok(Some(record)) = self.read(&entry.path).await
            {
                found.push((entry.path, record));
            }
        }
        found
    }

    async fn read<T: DeserializeOwned + record::Versioned>(
        &self,
        path: &Path,
    ) -> Result<Option<T>, RecordError> {
        let bytes = match self.files.read(path, LIMIT).await {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(RecordError::new(path, e)),
        };
        let record: T = serde_json::from_slice(&bytes).map_err(|e| RecordError::new(path, e))?;
        match record.is_ours() {
            true => Ok(Some(record)),
            false => Err(RecordError::new(path, "of another kind or version")),
        }
    }

    async fn write(
        &self,
        dir: &Path,
        path: &Path,
        record: &impl Serialize,
    ) -> Result<(), RecordError> {
        let mut bytes = serde_json::to_vec(record).map_err(|e| RecordError::new(path, e))?;
        bytes.push(b'\n');
        let mut written = self.files.write_atomic(path, &bytes, FILE_MODE).await;
        let absent = |e: &io::Error| e.kind() == io::ErrorKind::NotFound;
        if written.as_ref().is_err_and(absent) {
            let parent = dir.parent().unwrap_or(dir);
            for dir in [parent, dir] {
                let made = self.files.create_dir_all(dir, DIR_MODE).await;
                made.map_err(|e| RecordError::new(dir, e))?;
            }
            written = self.files.write_atomic(path, &bytes, FILE_MODE).await;
        }
        written.map_err(|e| RecordError::new(path, e))?;
        self.tally(dir).await;
        Ok(())
    }
}

/// Whether a file of this name is one of ours, and whole.
fn is_record(name: &str) -> bool {
    name.starts_with(PREFIX) && !name.ends_with(".tmp")
}

fn file_name(text: &str) -> String {
    format!("{PREFIX}{}", hex(&Sha256::digest(text)))
}

#[cfg(test)]
mod tests;
