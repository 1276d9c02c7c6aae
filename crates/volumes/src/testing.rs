//! What the tests of several kinds of volumes put together alike.

use std::sync::Arc;

use krablet_linux::fake::{FakeTools, FixedClock, MemoryFiles};
use krablet_objects::FakeObjects;
use krablet_pod::PodUid;
use krablet_pod::api::{PersistentVolume, Pod, Volume};
use krablet_pod::paths::RootDir;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::attempt::Attempt;
use crate::plugin::{Source, VolumeRequest};
use crate::volumes::VolumesDeps;

pub(crate) const ROOT: &str = "/var/lib/kubelet";

/// A node in memory that belongs to no cluster.
pub(crate) fn in_memory(
    files: &MemoryFiles,
    tools: &FakeTools,
    objects: &FakeObjects,
) -> VolumesDeps {
    VolumesDeps {
        files: Arc::new(files.clone()),
        trees: Arc::new(files.clone()),
        mounts: Arc::new(files.mounts()),
        tools: Arc::new(tools.clone()),
        clock: Arc::new(FixedClock::default()),
        objects: Arc::new(objects.clone()),
        cluster: None,
        tokens: None,
        certificates: None,
        trust_bundles: None,
        node: watch::Sender::default().subscribe(),
        metrics: Default::default(),
    }
}

/// A pod and the volume it wants.
pub(crate) struct Wanted {
    root: RootDir,
    uid: PodUid,
    pub(crate) pod: Pod,
    volume: Volume,
    persistent: Option<PersistentVolume>,
}

impl Wanted {
    /// The pod's own spec says all.
    pub(crate) fn inline(uid: &str, volume: Volume) -> Self {
        Self {
            root: RootDir::new(ROOT),
            uid: PodUid::from(uid),
            pod: Pod::default(),
            volume,
            persistent: None,
        }
    }

    /// The pod's claim is bound to the volume `pv-1` with this spec.
    pub(crate) fn claimed(uid: &str, spec: Value) -> Self {
        let volume = serde_json::from_value(json!({"name": "claimed"})).unwrap();
        let persistent = json!({"metadata": {"name": "pv-1"}, "spec": spec});
        Self {
            persistent: Some(serde_json::from_value(persistent).unwrap()),
            ..Self::inline(uid, volume)
        }
    }

    pub(crate) fn request(&self) -> VolumeRequest<'_> {
        let source = match &self.persistent {
            None => Source::Inline(&self.volume),
            Some(volume) => Source::Persistent {
                volume,
                read_only: false,
            },
        };
        VolumeRequest {
            root: &self.root,
            uid: &self.uid,
            pod: &self.pod,
            volume: &self.volume,
            source,
            attempt: Attempt::PATIENT,
        }
    }
}
