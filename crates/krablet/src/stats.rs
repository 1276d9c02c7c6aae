//! The node's statistics: what the agent knows of its pods handed to those who read the figures, and the figures to the
//! HTTPS door.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use jiff::Timestamp;
use krablet_agent::{AgentDeps, AgentHandle, DesiredPods};
use krablet_config::Loaded;
use krablet_core::local_storage::StorageLimits;
use krablet_cri::StatsService;
use krablet_linux::{CgroupVersion, HostFacts};
use krablet_pod::api::{Pod, Volume};
use krablet_pod::observed::ObservedPod;
use krablet_pod::paths::RootDir;
use krablet_pod::storage::{LocalUsage, is_local};
use krablet_pod::{PodRef, PodUid};
use krablet_server::{Pieces, Statistics};
use krablet_stats::reading::Depth;
use krablet_stats::{
    CountedVolumes, Pods, Stats, StatsConfig, StatsDeps, Storage, SystemCgroups, VolumePlace,
};
use krablet_volumes::{RECORD_FILE, Record};
use tokio::sync::watch;
use tracing::error;

/// Where the figures come from.
pub struct Sources<'a> {
    pub loaded: &'a Loaded,
    pub node_name: &'a str,
    pub root: &'a RootDir,
    pub version: CgroupVersion,
    pub deps: &'a AgentDeps,
    pub handle: &'a AgentHandle,
    pub runtime: Arc<dyn StatsService>,
}

pub fn build(sources: Sources<'_>) -> Arc<Figures> {
    let config = &sources.loaded.config;
    let cgroups = sources.deps.cgroups.clone();
    let stats = Stats::new(
        StatsConfig {
            node_name: sources.node_name.to_owned(),
            root: sources.root.clone(),
            pod_logs: PathBuf::from(&config.sources.pod_logs_dir),
            version: sources.version,
            pod_path: Arc::new(move |uid, class| cgroups.cgroup_parent(uid, class)),
            systems: SystemCgroups {
                kubelet: config.cgroups.kubelet_cgroups.clone(),
                runtime: sources.loaded.flags.runtime.runtime_cgroups.clone(),
                misc: config.cgroups.system_cgroups.clone(),
            },
            started: sources.deps.clock.now(),
        },
        StatsDeps {
            pods: Arc::new(House {
                handle: sources.handle.clone(),
                root: sources.root.clone(),
                records: Mutex::default(),
            }),
            runtime: sources.runtime,
            images: sources.deps.images.clone(),
            machine: Arc::new(HostFacts::new(sources.root.path())),
            clock: sources.deps.clock.clone(),
            measured: sources.handle.metrics.volumes.measured.clone(),
        },
    );
    Arc::new(Figures {
        stats,
        desired: sources.handle.desired.clone(),
    })
}

/// The figures as the doors send them.
pub struct Figures {
    stats: Stats,
    desired: DesiredPods,
}

impl Figures {
    /// Rings after every reading.
    pub fn readings(&self) -> watch::Receiver<u64> {
        self.stats.readings()
    }

    /// Volumes and logs, for the agent's own metrics; the log says why if there are none.
    pub async fn storage(&self) -> Storage {
        let read = self.stats.storage().await;
        read.inspect_err(|e| error!(err = %e, "Volumes and logs cannot be read"))
            .unwrap_or_default()
    }

    /// What these pods keep on the node's disk, as far as it counts to their limits; the log says why if it is not known.
    pub async fn local_usage(
        &self,
        of: &BTreeSet<PodUid>,
        containers: bool,
    ) -> BTreeMap<PodUid, LocalUsage> {
        let counted = self.counted_volumes(of);
        let read = self.stats.local_usage(counted, containers).await;
        read.inspect_err(|e| error!(err = %e, "What pods keep on the disk cannot be read"))
            .unwrap_or_default()
    }

    /// Of pods that are gone, or have no limits, nothing.
    fn counted_volumes(&self, of: &BTreeSet<PodUid>) -> CountedVolumes {
        let counted = of.iter().filter_map(|uid| {
            let pod = self.desired.get(uid)?;
            let limits = StorageLimits::of(&pod)?;
            let names = limits.counted_volumes().into_iter().map(str::to_owned);
            Some((uid.clone(), names.collect()))
        });
        counted.collect()
    }
}

#[async_trait]
impl Statistics for Figures {
    async fn summary(&self, only_cpu_and_memory: bool) -> Result<Vec<u8>, String> {
        let depth = match only_cpu_and_memory {
            true => Depth::CpuAndMemory,
            false => Depth::Summary,
        };
        self.stats.summary(depth).await.map_err(|e| e.to_string())
    }

    async fn resource_metrics(&self) -> String {
        self.stats.resource_metrics().await
    }

    async fn cadvisor_metrics(&self) -> Pieces {
        Box::new(self.stats.cadvisor_metrics().await)
    }
}

struct House {
    handle: AgentHandle,
    root: RootDir,
    /// Of pods that were observed last, as long as their files are the same.
    records: Mutex<BTreeMap<PodUid, Recorded>>,
}

/// What the file of a pod's volumes said. It is another file after every change.
#[derive(Clone)]
struct Recorded {
    file: FileId,
    /// Paths by names.
    places: Arc<BTreeMap<String, PathBuf>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct FileId {
    inode: u64,
    size: u64,
    modified: (i64, i64),
}

impl FileId {
    fn of(path: &Path) -> Option<Self> {
        let found = std::fs::metadata(path).ok()?;
        Some(Self {
            inode: found.ino(),
            size: found.size(),
            modified: (found.mtime(), found.mtime_nsec()),
        })
    }
}

impl House {
    fn records(&self) -> std::sync::MutexGuard<'_, BTreeMap<PodUid, Recorded>> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where the volumes of a pod stand; scrapes ask for it again and again, and it hardly ever changes.
    fn recorded(&self, uid: &PodUid) -> Option<Arc<BTreeMap<String, PathBuf>>> {
        let directory = self.root.pod(uid);
        let path = directory.join(RECORD_FILE);
        let file = FileId::of(&path)?;
        let known = self.records().get(uid).cloned();
        if let Some(known) = known.filter(|known| known.file == file) {
            return Some(known.places);
        }
        let record: Record = serde_json::from_slice(&std::fs::read(path).ok()?).ok()?;
        let places = record.volumes.into_iter().map(|volume| {
            let path = directory.join(&volume.path);
            (volume.name, path)
        });
        let places: Arc<BTreeMap<_, _>> = Arc::new(places.collect());
        let recorded = Recorded {
            file,
            places: places.clone(),
        };
        self.records().insert(uid.clone(), recorded);
        Some(places)
    }
}

impl Pods for House {
    fn observed(&self) -> Vec<Arc<ObservedPod>> {
        let observed = self.handle.observer.all();
        let uids: BTreeSet<&PodUid> = observed.iter().map(|pod| &pod.pod.uid).collect();
        self.records().retain(|uid, _| uids.contains(uid));
        observed
    }

    fn started(&self, uid: &PodUid) -> Option<Timestamp> {
        let status = self.handle.status.status(uid)?;
        status.start_time.as_ref().map(|time| time.0)
    }

    fn volumes(&self, uid: &PodUid) -> Vec<VolumePlace> {
        let Some(pod) = self.handle.desired.get(uid) else {
            return Vec::new();
        };
        if !has_volumes(&pod) {
            return Vec::new();
        }
        let recorded = self.recorded(uid).unwrap_or_default();
        let place = |name: &str| recorded.get(name).cloned();
        places(&pod, place)
    }
}

fn has_volumes(pod: &Pod) -> bool {
    let spec = pod.spec.as_ref();
    spec.is_some_and(|spec| spec.volumes.as_ref().is_some_and(|v| !v.is_empty()))
}

/// The volumes that stand below the pod's directory, with what their figures mean.
fn places(pod: &Pod, place: impl Fn(&str) -> Option<PathBuf>) -> Vec<VolumePlace> {
    let of = PodRef::of(pod);
    let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_ref());
    let volumes = volumes.into_iter().flatten();
    let places = volumes.filter_map(|volume| {
        Some(VolumePlace {
            path: place(&volume.name)?,
            name: volume.name.clone(),
            claim: claim(volume, &of.name).map(|claim| (of.namespace.to_string(), claim)),
            ephemeral: is_local(volume),
        })
    });
    places.collect()
}

/// A claim that comes with the pod is named after both.
fn claim(volume: &Volume, pod: &str) -> Option<String> {
    let named = volume.persistent_volume_claim.as_ref();
    let with_the_pod = volume.ephemeral.as_ref();
    named
        .map(|claim| claim.claim_name.clone())
        .or_else(|| with_the_pod.map(|_| format!("{pod}-{}", volume.name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volumes_of_a_pod() {
        let pod: Pod = serde_json::from_value(serde_json::json!({
            "metadata": {"name": "p", "namespace": "ns", "uid": "u"},
            "spec": {"containers": [], "volumes": [
                {"name": "scratch", "emptyDir": {}},
                {"name": "memory", "emptyDir": {"medium": "Memory"}},
                {"name": "settings", "configMap": {"name": "c"}},
                {"name": "data", "persistentVolumeClaim": {"claimName": "claim"}},
                {"name": "own", "ephemeral": {}},
                {"name": "host", "hostPath": {"path": "/"}},
            ]},
        }))
        .unwrap();
        let place = |name: &str| (name != "host").then(|| PathBuf::from(format!("/v/{name}")));
        let found: Vec<String> = places(&pod, place)
            .into_iter()
            .map(|v| format!("{} {:?} {}", v.path.display(), v.claim, v.ephemeral))
            .collect();
        assert_eq!(
            found,
            [
                "/v/scratch None true",
                "/v/memory None false",
                "/v/settings None true",
                r#"/v/data Some(("ns", "claim")) false"#,
                r#"/v/own Some(("ns", "p-own")) false"#,
            ]
        );
    }
}
