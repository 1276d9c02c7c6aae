//! Setting up what a pod needs on disk before it can start.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::{Component, Path};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use krablet_core::admission::NodeView;
use krablet_linux::{EntryKind, Files, Mounts, Tools, Trees, WallClock};
use krablet_metrics::VolumeMetrics;
use krablet_objects::Objects;
use krablet_pod::api::{Pod, PodSpec, Volume};
use krablet_pod::paths::RootDir;
use krablet_pod::{PodRef, PodUid};
use krablet_podcerts::PodCertificates;
use krablet_tokens::Tokens;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::attempt::{Attempt, News};
use crate::cluster::ClusterObjects;
use crate::earlier::Earlier;
use crate::error::{SetUpError, VolumeError, VolumeErrors};
use crate::holders::Holders;
use crate::in_use::{InUse, attached_as};
use crate::plugin::{PodMounts, Source, Standing, VolumePlugin, VolumeRequest, kind_of};
use crate::record::{self, Found, RecordedVolume};
use crate::registry;
use crate::resolve::{ClaimedVolumes, source, sub_path_points};
use crate::trust::TrustBundles;
use crate::used::{Used, used};
use crate::waiting::Waiting;

/// What the record says of parts of volumes.
pub(crate) const SUB_PATH: &str = "subpath";
/// Nobody but the agent and its group looks into a pod's directory.
const DIRECTORY_MODE: u32 = 0o750;

#[derive(Clone, Debug)]
pub struct VolumesConfig {
    pub root: RootDir,
    /// How long a path of the host may take to answer.
    pub host_path_deadline: Duration,
    /// Memory all pods together may use: the limit of memory volumes that have no smaller one.
    pub node_memory: Option<u64>,
}

impl VolumesConfig {
    pub fn new(root: RootDir) -> Self {
        Self {
            root,
            host_path_deadline: Duration::from_secs(10),
            node_memory: None,
        }
    }
}

#[derive(Clone)]
pub struct VolumesDeps {
    pub files: Arc<dyn Files>,
    pub trees: Arc<dyn Trees>,
    pub mounts: Arc<dyn Mounts>,
    pub tools: Arc<dyn Tools>,
    pub clock: Arc<dyn WallClock>,
    /// ConfigMaps and secrets.
    pub objects: Arc<dyn Objects>,
    /// None on a node without a cluster.
    pub cluster: Option<Arc<dyn ClusterObjects>>,
    pub tokens: Option<Tokens>,
    /// None where the feature is not on, too.
    pub certificates: Option<PodCertificates>,
    pub trust_bundles: Option<TrustBundles>,
    /// What pods may use of this node, and how it is labelled.
    pub node: watch::Receiver<Arc<NodeView>>,
    pub metrics: VolumeMetrics,
}

/// A pod whose volumes are set up, and for which of its specs.
pub(crate) struct Ready {
    fingerprint: u64,
    pub(crate) mounts: PodMounts,
}

/// A pod's volumes stand.
#[derive(Debug)]
pub struct SetUp {
    pub mounts: PodMounts,
    /// When the content of one of them has to be renewed.
    pub renew_at: Option<Timestamp>,
    /// What kept volumes from being brought up to date. The pod goes on with what they hold.
    pub stale: Vec<VolumeError>,
}

/// The volumes of all pods. Calls for one pod come one after another, from its worker; calls for
/// different pods do not wait for each other.
pub struct Volumes {
    pub(crate) root: RootDir,
    pub(crate) deps: VolumesDeps,
    pub(crate) plugins: Vec<Arc<dyn VolumePlugin>>,
    ready: Mutex<BTreeMap<PodUid, Ready>>,
    pub(crate) in_use: InUse,
    pub(crate) holders: Holders,
    pub(crate) earlier: Earlier,
    pub(crate) waiting: Waiting,
    /// How often a pod's mounts could not be taken away.
    failures: Mutex<BTreeMap<PodUid, u32>>,
}

impl Volumes {
    pub fn new(config: VolumesConfig, deps: VolumesDeps) -> Self {
        let plugins = registry::built_in(&config, &deps);
        Self::with_plugins(config.root, deps, plugins)
    }

    /// Of the plugins the first that supports a volume gets it.
    pub fn with_plugins(
        root: RootDir,
        deps: VolumesDeps,
        plugins: Vec<Arc<dyn VolumePlugin>>,
    ) -> Self {
        Self {
            root,
            deps,
            plugins,
            ready: Mutex::default(),
            in_use: InUse::default(),
            holders: Holders::default(),
            earlier: Earlier::default(),
            waiting: Waiting::default(),
            failures: Mutex::default(),
        }
    }

    /// The same as [`Volumes::attempt`], however long it takes.
    pub async fn set_up(&self, pod: &Pod) -> Result<SetUp, VolumeErrors> {
        self.attempt(pod, Attempt::PATIENT).await
    }

    /// Makes the pod's directories and all of its volumes. Again and again for one pod is cheap:
    /// once set up, nothing is asked of the disk until the pod's volumes, or what they show, change.
    pub async fn attempt(&self, pod: &Pod, attempt: Attempt<'_>) -> Result<SetUp, VolumeErrors> {
        let uid = PodRef::of(pod).uid;
        check_uid(&uid)?;
        let empty = PodSpec::default();
        let used = used(pod.spec.as_ref().unwrap_or(&empty));
        let fingerprint = fingerprint(pod, &used);
        if let Some(mounts) = self.standing(&uid, fingerprint) {
            return Ok(self.follow(pod, &uid, &used, mounts, attempt).await);
        }
        let had = self.holders.of(&uid);
        let (claimed, failed) = self.resolve(pod, &uid, &used).await;
        let work = match failed.is_empty() {
            true => self.assign(pod, &uid, &used, &claimed, attempt),
            false => Err(VolumeErrors(failed)),
        };
        // Two pods that each have what the other waits for would wait for ever.
        let work = work.inspect_err(|_| self.holders.keep_only(&uid, had))?;
        self.waiting.begun(&uid);
        let sources = work.iter().map(|(_, request)| &request.source);
        self.in_use
            .begun(&uid, sources.filter_map(attached_as).collect());
        self.make_directories(&uid)
            .await
            .map_err(VolumeError::Directories)?;
        self.write_down(pod, &uid, &work, &claimed).await?;
        let mut done = SetUp {
            mounts: PodMounts::new(),
            renew_at: None,
            stale: Vec::new(),
        };
        let mut failed = Vec::new();
        for (plugin, request) in work {
            if attempt.is_cancelled() {
                failed.push(refused(&request, SetUpError::Cancelled));
                break;
            }
            let begun = Instant::now();
            let made = plugin.set_up(&request).await;
            self.count_set_up(&request, plugin.name(), begun.elapsed(), made.is_ok());
            match made {
                Ok(standing) => done.add(&request, standing),
                Err(cause) => {
                    tell_of(&request, &cause);
                    failed.push(refused(&request, cause));
                }
            }
        }
        if !failed.is_empty() {
            return Err(VolumeErrors(failed));
        }
        let ready = Ready {
            fingerprint,
            mounts: done.mounts.clone(),
        };
        self.waiting.ended(&uid);
        self.ready().insert(uid, ready);
        Ok(done)
    }

    fn standing(&self, uid: &PodUid, fingerprint: u64) -> Option<PodMounts> {
        let ready = self.ready();
        let found = ready.get(uid).filter(|r| r.fingerprint == fingerprint);
        found.map(|r| r.mounts.clone())
    }

    /// Brings volumes that follow something up to date.
    async fn follow(
        &self,
        pod: &Pod,
        uid: &PodUid,
        used: &Used<'_>,
        mounts: PodMounts,
        attempt: Attempt<'_>,
    ) -> SetUp {
        let mut done = SetUp {
            mounts,
            renew_at: None,
            stale: Vec::new(),
        };
        for volume in volumes_of(pod).iter().filter(|v| used.has(&v.name)) {
            let source = Source::Inline(volume);
            let plugin = self.plugins.iter().find(|p| p.supports(&source));
            let Some(plugin) = plugin.filter(|p| p.follows()) else {
                continue;
            };
            let request = VolumeRequest {
                root: &self.root,
                uid,
                pod,
                volume,
                source,
                attempt,
            };
            match plugin.set_up(&request).await {
                Ok(standing) => done.add(&request, standing),
                Err(cause) => done.stale.push(refused(&request, cause)),
            }
        }
        done
    }

    /// UIDs of the pods that have a directory on disk.
    pub async fn recorded(&self) -> Result<Vec<PodUid>, VolumeError> {
        let entries = match self.deps.files.list(&self.root.pods()).await {
            Ok(entries) => entries,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(VolumeError::Directories(e)),
        };
        let uids = entries
            .iter()
            .filter(|e| e.kind == EntryKind::Directory)
            .filter_map(|e| e.path.file_name()?.to_str())
            .map(PodUid::from);
        Ok(uids.collect())
    }

    pub(crate) fn forget(&self, uid: &PodUid) {
        self.ready().remove(uid);
        self.waiting.ended(uid);
        self.plugins.iter().for_each(|p| p.forget(uid));
    }

    pub(crate) fn ready(&self) -> MutexGuard<'_, BTreeMap<PodUid, Ready>> {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn failures(&self) -> MutexGuard<'_, BTreeMap<PodUid, u32>> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Who sets up which volume; refuses a pod before anything is made for it.
    fn assign<'a>(
        &'a self,
        pod: &'a Pod,
        uid: &'a PodUid,
        used: &Used<'_>,
        claimed: &'a ClaimedVolumes,
        attempt: Attempt<'a>,
    ) -> Result<Work<'a>, VolumeErrors> {
        let (mut work, mut failed) = (Work::new(), Vec::new());
        for volume in volumes_of(pod).iter().filter(|v| used.has(&v.name)) {
            let request = VolumeRequest {
                root: &self.root,
                uid,
                pod,
                volume,
                source: source(volume, claimed),
                attempt,
            };
            let plugin = self.plugins.iter().find(|p| p.supports(&request.source));
            match plugin {
                _ if !names_one_entry(&volume.name) || !names_one_entry(request.name()) => {
                    failed.push(refused(&request, SetUpError::Name));
                }
                Some(plugin) => work.push((&**plugin, request)),
                None => failed.push(unsupported(&request)),
            }
        }
        match failed.is_empty() {
            true => Ok(work),
            false => Err(VolumeErrors(failed)),
        }
    }

    async fn make_directories(&self, uid: &PodUid) -> io::Result<()> {
        for dir in [
            self.root.pods(),
            self.root.pod(uid),
            self.root.volumes(uid),
            self.root.plugins(uid),
        ] {
            self.deps.files.create_dir_all(&dir, DIRECTORY_MODE).await?;
        }
        Ok(())
    }

    /// Records what will be made, before it is.
    async fn write_down(
        &self,
        pod: &Pod,
        uid: &PodUid,
        work: &Work<'_>,
        claimed: &ClaimedVolumes,
    ) -> Result<(), VolumeError> {
        let mut planned = Vec::new();
        for (plugin, request) in work {
            let plan = plugin
                .plan(request)
                .map_err(|cause| refused(request, cause))?;
            planned.extend(plan);
        }
        // Parts of volumes are mounted when their container starts; where is known now.
        let points = sub_path_points(pod, claimed).into_iter();
        planned.extend(points.map(|(name, path)| RecordedVolume {
            name,
            plugin: SUB_PATH.to_owned(),
            path,
            mounted: true,
            outside: None,
        }));
        let files = &*self.deps.files;
        let found = record::read(files, &self.root, uid)
            .await
            .map_err(VolumeError::Record)?;
        let (mut record, written) = match found {
            Found::Whole(record) => (record, true),
            // Also for a pod without volumes: the record tells who set the pod up.
            Found::Nothing => (Default::default(), false),
            Found::Unreadable(why) => {
                record::set_aside(files, &self.root, uid, &why)
                    .await
                    .map_err(VolumeError::Record)?;
                (Default::default(), false)
            }
        };
        if !written {
            self.earlier.begun(uid);
        }
        let persistent = claimed.values().map(|c| c.name().to_owned()).collect();
        if !record.add(planned, persistent) && written {
            return Ok(());
        }
        record
            .write(files, &self.root, uid)
            .await
            .map_err(VolumeError::Record)
    }
}

type Work<'a> = Vec<(&'a dyn VolumePlugin, VolumeRequest<'a>)>;

impl SetUp {
    fn add(&mut self, request: &VolumeRequest<'_>, standing: Standing) {
        let name = request.volume.name.clone();
        self.mounts.insert(name, standing.volume);
        let stale = standing.stale.map(|cause| refused(request, cause));
        self.stale.extend(stale);
        let times = [self.renew_at, standing.renew_at];
        self.renew_at = times.into_iter().flatten().min();
    }
}

/// What is to be known of the persistent volume itself.
fn tell_of(request: &VolumeRequest<'_>, cause: &SetUpError) {
    if let (SetUpError::OtherFileSystem(why), Source::Persistent { volume, .. }) =
        (cause, &request.source)
    {
        (request.attempt.hear)(News::OtherFileSystem {
            volume: request.name().to_owned(),
            uid: volume.metadata.uid.clone().unwrap_or_default(),
            why: why.clone(),
        });
    }
}

fn refused(request: &VolumeRequest<'_>, cause: SetUpError) -> VolumeError {
    let volume = request.name().to_owned();
    match request.source.is_block() {
        true => VolumeError::SetUpDevice { volume, cause },
        false => VolumeError::SetUp { volume, cause },
    }
}

/// Kinds that upstream gave up, or that need a plugin which is not there, are refused in its words.
fn unsupported(request: &VolumeRequest<'_>) -> VolumeError {
    let name = request.name();
    let kind = match request.source {
        Source::Inline(volume) => kind_of(volume),
        Source::Persistent { .. } => match request.source.persistent() {
            Some(spec) if spec.csi.is_some() => "csi",
            _ => "",
        },
    };
    match kind {
        "gitRepo" => refused(request, SetUpError::GitRepo),
        kind @ ("csi" | "ephemeral" | "persistentVolumeClaim") => {
            refused(request, SetUpError::UnsupportedKind(kind))
        }
        _ => VolumeError::Process {
            volume: request.volume.name.clone(),
            cause: format!(
                "failed to get Plugin from volumeSpec for volume {name:?} err=no volume plugin matched"
            ),
        },
    }
}

pub(crate) fn volumes_of(pod: &Pod) -> &[Volume] {
    let spec = pod.spec.as_ref();
    spec.and_then(|s| s.volumes.as_deref()).unwrap_or_default()
}

/// Changes when a pod's volumes, or what they are made by, do.
fn fingerprint(pod: &Pod, used: &Used<'_>) -> u64 {
    let mut hasher = DefaultHasher::new();
    let context = pod.spec.as_ref().and_then(|s| s.security_context.as_ref());
    context.and_then(|c| c.fs_group).hash(&mut hasher);
    for volume in volumes_of(pod).iter().filter(|v| used.has(&v.name)) {
        // Plain data always has a JSON form; without one the name alone would do.
        serde_json::to_string(volume)
            .unwrap_or_else(|_| volume.name.clone())
            .hash(&mut hasher);
    }
    hasher.finish()
}

pub(crate) fn check_uid(uid: &PodUid) -> Result<(), VolumeError> {
    match names_one_entry(uid.as_str()) {
        true => Ok(()),
        false => Err(VolumeError::Uid(uid.clone())),
    }
}

/// A name from outside that stays where it is put.
fn names_one_entry(name: &str) -> bool {
    let mut parts = Path::new(name).components();
    let one = matches!(parts.next(), Some(Component::Normal(_))) && parts.next().is_none();
    one && !name.contains(['/', '\0'])
}
