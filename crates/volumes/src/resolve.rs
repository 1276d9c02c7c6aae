//! What stands behind a pod's volumes: each is the pod's own, or a persistent one that its claim is bound to.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use krablet_pod::PodUid;
use krablet_pod::api::{PersistentVolume, Pod, Volume};

use crate::claims::{self, ClaimRef};
use crate::error::{SetUpError, VolumeError};
use crate::plugin::Source;
use crate::used::Used;
use crate::volumes::Volumes;

/// A persistent volume that a pod has.
#[derive(Clone, Debug)]
pub(crate) struct Claimed {
    pub volume: Arc<PersistentVolume>,
    pub read_only: bool,
}

impl Claimed {
    pub fn name(&self) -> &str {
        self.volume.metadata.name.as_deref().unwrap_or_default()
    }
}

/// By the name of the pod's volume.
pub(crate) type ClaimedVolumes = BTreeMap<String, Claimed>;

pub(crate) fn source<'a>(volume: &'a Volume, claimed: &'a ClaimedVolumes) -> Source<'a> {
    match claimed.get(&volume.name) {
        Some(claimed) => Source::Persistent {
            volume: &claimed.volume,
            read_only: claimed.read_only,
        },
        None => Source::Inline(volume),
    }
}

impl Volumes {
    /// The persistent volumes of a pod, as far as they are there and may be used; and why the others may not.
    pub(crate) async fn resolve(
        &self,
        pod: &Pod,
        uid: &PodUid,
        used: &Used<'_>,
    ) -> (ClaimedVolumes, Vec<VolumeError>) {
        let (mut found, mut failed) = (ClaimedVolumes::new(), Vec::new());
        let spec = pod.spec.as_ref();
        let volumes = spec.and_then(|s| s.volumes.as_deref()).unwrap_or_default();
        for volume in volumes.iter().filter(|v| used.has(&v.name)) {
            let Some(claim) = claims::claim_of(pod, volume) else {
                continue;
            };
            match self.behind(pod, uid, volume, &claim, used).await {
                Ok(claimed) => {
                    found.insert(volume.name.clone(), claimed);
                }
                Err(e) => failed.push(e),
            }
        }
        (found, failed)
    }

    async fn behind(
        &self,
        pod: &Pod,
        uid: &PodUid,
        volume: &Volume,
        claim: &ClaimRef,
        used: &Used<'_>,
    ) -> Result<Claimed, VolumeError> {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let name = &volume.name;
        let wrong = |cause: String| VolumeError::Process {
            volume: name.clone(),
            cause,
        };
        let of_claim = |why: String| {
            wrong(format!(
                "error processing PVC {namespace}/{}: {why}",
                claim.name
            ))
        };
        let Some(cluster) = &self.deps.cluster else {
            return Err(of_claim(
                "failed to fetch PVC from API server: no kubeClient defined".to_owned(),
            ));
        };
        let object = cluster
            .claim(namespace, &claim.name)
            .await
            .map_err(|e| of_claim(format!("failed to fetch PVC from API server: {e}")))?;
        let bound = claims::bound_volume(&object).map_err(|e| of_claim(e.to_owned()))?;
        if claim.ephemeral {
            claims::check_owner(pod, &object).map_err(wrong)?;
        }
        let persistent = cluster
            .persistent_volume(bound)
            .await
            .map_err(|e| of_claim(format!("failed to fetch PV {bound} from API server: {e}")))?;
        claims::check_binding(&persistent, &object).map_err(of_claim)?;
        let (mounts, devices) = (
            used.mounts.contains(name.as_str()),
            used.devices.contains(name.as_str()),
        );
        claims::check_mode(&persistent, name, mounts, devices).map_err(wrong)?;
        let claimed = Claimed {
            volume: Arc::new(persistent),
            read_only: claim.read_only,
        };
        if !claims::fits_node(&claimed.volume, &self.deps.node.borrow()) {
            return Err(VolumeError::NodeAffinity {
                volume: claimed.name().to_owned(),
                device: devices,
            });
        }
        let alone = claims::is_for_one_pod(&claimed.volume);
        if alone {
            self.look_for_holders().await?;
        }
        if !self.holders.take(uid, claimed.name(), alone) {
            let (volume, cause) = (claimed.name().to_owned(), SetUpError::InUse);
            return Err(match devices {
                true => VolumeError::SetUpDevice { volume, cause },
                false => VolumeError::SetUp { volume, cause },
            });
        }
        Ok(claimed)
    }
}

/// What `Ready` and the record call the places where parts of volumes are mounted for containers.
pub(crate) fn sub_path_points(
    pod: &Pod,
    claimed: &ClaimedVolumes,
) -> BTreeSet<(String, std::path::PathBuf)> {
    let mut points = BTreeSet::new();
    let Some(spec) = pod.spec.as_ref() else {
        return points;
    };
    for container in krablet_pod::containers::all(spec).map(|c| c.container) {
        let mounts = container.volume_mounts.iter().flatten().enumerate();
        for (index, mount) in mounts {
            let set = |text: &Option<String>| text.as_ref().is_some_and(|t| !t.is_empty());
            if set(&mount.sub_path) || set(&mount.sub_path_expr) {
                let volume = claimed.get(&mount.name);
                let volume = volume.map_or(mount.name.as_str(), |c| c.name());
                let point = krablet_pod::paths::sub_path(volume, &container.name, index);
                points.insert((mount.name.clone(), point));
            }
        }
    }
    points
}
