//! Setting up what a pod needs on disk before it can start.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::{Component, Path};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use krablet_linux::{EntryKind, Files, Mounts};
use krablet_pod::api::{Pod, Volume};
use krablet_pod::paths::RootDir;
use krablet_pod::{PodRef, PodUid};

use crate::empty_dir::EmptyDir;
use crate::error::{SetUpError, VolumeError};
use crate::host_path::HostPath;
use crate::plugin::{PodMounts, VolumePlugin, VolumeRequest, kind_of};
use crate::record::{self, Found};

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
    pub mounts: Arc<dyn Mounts>,
}

/// A pod whose volumes are set up, and for which of its specs.
struct Ready {
    fingerprint: u64,
    mounts: PodMounts,
}

/// The volumes of all pods. Calls for one pod come one after another, from its worker; calls for
/// different pods do not wait for each other.
pub struct Volumes {
    pub(crate) root: RootDir,
    pub(crate) deps: VolumesDeps,
    plugins: Vec<Arc<dyn VolumePlugin>>,
    ready: Mutex<BTreeMap<PodUid, Ready>>,
}

impl Volumes {
    /// With the kinds that need nothing but the node itself.
    pub fn new(config: VolumesConfig, deps: VolumesDeps) -> Self {
        let VolumesDeps { files, mounts } = deps.clone();
        let plugins: Vec<Arc<dyn VolumePlugin>> = vec![
            Arc::new(EmptyDir::new(files.clone(), mounts, config.node_memory)),
            Arc::new(HostPath::new(files, config.host_path_deadline)),
        ];
        Self::with_plugins(config.root, deps, plugins)
    }

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
        }
    }

    /// Makes the pod's directories and all of its volumes. Again and again for one pod is cheap:
    /// once set up, nothing is asked of the disk until the pod's volumes change.
    pub async fn set_up(&self, pod: &Pod) -> Result<PodMounts, VolumeError> {
        let uid = PodRef::of(pod).uid;
        check_uid(&uid)?;
        let fingerprint = fingerprint(pod);
        if let Some(ready) = self.ready().get(&uid)
            && ready.fingerprint == fingerprint
        {
            return Ok(ready.mounts.clone());
        }
        let work = self.assign(pod, &uid)?;
        self.make_directories(&uid)
            .await
            .map_err(VolumeError::Directories)?;
        self.write_down(&uid, &work).await?;
        let mut mounts = PodMounts::new();
        for (plugin, request) in work {
            let name = &request.volume.name;
            let mounted = plugin.set_up(&request).await.map_err(failed(name))?;
            mounts.insert(name.clone(), mounted);
        }
        let ready = Ready {
            fingerprint,
            mounts: mounts.clone(),
        };
        self.ready().insert(uid, ready);
        Ok(mounts)
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
    }

    fn ready(&self) -> MutexGuard<'_, BTreeMap<PodUid, Ready>> {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Who sets up which volume; refuses a pod before anything is made for it.
    fn assign<'a>(&'a self, pod: &'a Pod, uid: &'a PodUid) -> Result<Work<'a>, VolumeError> {
        volumes_of(pod)
            .iter()
            .map(|volume| {
                let request = VolumeRequest {
                    root: &self.root,
                    uid,
                    pod,
                    volume,
                };
                if !names_one_entry(&volume.name) {
                    return Err(failed(&volume.name)(SetUpError::Name));
                }
                let unknown = || SetUpError::UnsupportedKind(kind_of(volume));
                let plugin = self
                    .plugins
                    .iter()
                    .find(|p| p.supports(volume))
                    .ok_or_else(unknown)
                    .map_err(failed(&volume.name))?;
                Ok((&**plugin, request))
            })
            .collect()
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
    async fn write_down(&self, uid: &PodUid, work: &Work<'_>) -> Result<(), VolumeError> {
        let mut planned = Vec::new();
        for (plugin, request) in work {
            planned.extend(plugin.plan(request).map_err(failed(&request.volume.name))?);
        }
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
        if !record.add(planned) && written {
            return Ok(());
        }
        record
            .write(files, &self.root, uid)
            .await
            .map_err(VolumeError::Record)
    }
}

type Work<'a> = Vec<(&'a dyn VolumePlugin, VolumeRequest<'a>)>;

fn failed(volume: &str) -> impl FnOnce(SetUpError) -> VolumeError {
    let volume = volume.to_owned();
    move |cause| VolumeError::SetUp { volume, cause }
}

fn volumes_of(pod: &Pod) -> &[Volume] {
    let spec = pod.spec.as_ref();
    spec.and_then(|s| s.volumes.as_deref()).unwrap_or_default()
}

/// Changes when a pod's volumes, or what they are made by, do.
fn fingerprint(pod: &Pod) -> u64 {
    let mut hasher = DefaultHasher::new();
    let group = pod
        .spec
        .as_ref()
        .and_then(|s| s.security_context.as_ref()?.fs_group);
    group.hash(&mut hasher);
    for volume in volumes_of(pod) {
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
