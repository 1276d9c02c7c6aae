//! The volumes of a pod, as its steps ask for them and give them back.

use krablet_events::reason;
use krablet_pod::PodRef;
use krablet_pod::api::Pod;
use krablet_runtime::VolumeSource;
use krablet_volumes::{PodMounts, SetUp, VolumeError};
use tracing::warn;

use super::Steps;

impl Steps {
    /// `None`, and told, if the pod cannot have them all.
    pub(super) async fn set_up_volumes(&self, pod: &Pod, pod_ref: &PodRef) -> Option<SetUp> {
        let set_up = self.parts.volumes.set_up(pod).await;
        let failures = match &set_up {
            Ok(set_up) => &set_up.stale,
            Err(errors) => &errors.0,
        };
        for failure in failures {
            let (reason, message) = told(failure);
            self.warn(pod_ref, reason, message);
        }
        set_up.ok()
    }

    /// True if no volume is left.
    pub(super) async fn release_volumes(&self, pod_ref: &PodRef) -> bool {
        let uid = &pod_ref.uid;
        let released = self.parts.volumes.release(uid).await;
        if let Some(text) = self.held_volumes.news(uid, &released) {
            warn!(pod = %pod_ref, podUID = %uid, err = text, "Could not release the volumes of a pod, will retry");
            self.warn(pod_ref, reason::FAILED_SYNC, text);
        }
        released.is_ok()
    }
}

/// Reason and message of the event. Devices are mapped, not mounted; the directories of the pod are
/// no volume.
fn told(error: &VolumeError) -> (&'static str, String) {
    let reason = match error {
        VolumeError::Directories(source) => {
            let message = format!("error making pod data directories: {source}");
            return (reason::FAILED_TO_MAKE_POD_DATA_DIRECTORIES, message);
        }
        VolumeError::SetUpDevice { .. } | VolumeError::NodeAffinity { device: true, .. } => {
            reason::FAILED_MAP_VOLUME
        }
        _ => reason::FAILED_MOUNT,
    };
    (reason, error.to_string())
}

pub(super) fn sources(mounts: PodMounts) -> Vec<VolumeSource> {
    mounts
        .into_iter()
        .map(|(name, mounted)| VolumeSource {
            name,
            spec_name: mounted.spec_name,
            host_path: mounted.host_path,
            read_only: mounted.read_only,
            relabel: mounted.se_linux_relabel,
            block: mounted.block,
            group: mounted.group,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::io;

    use krablet_volumes::SetUpError;

    use super::*;

    #[test]
    fn each_failure_has_its_reason() {
        let (volume, cause) = ("v".to_owned(), SetUpError::Name);
        let device = VolumeError::SetUpDevice { volume, cause };
        let (volume, cause) = ("v".to_owned(), SetUpError::Name);
        let mount = VolumeError::SetUp { volume, cause };
        let affinity = |device| VolumeError::NodeAffinity {
            volume: "v".to_owned(),
            device,
        };
        let full = || io::Error::other("disk full");
        let cases = [
            (
                VolumeError::Directories(full()),
                "FailedToMakePodDataDirectories",
                "error making pod data directories: disk full",
            ),
            (
                VolumeError::Record(full()),
                "FailedMount",
                "record of volumes: disk full",
            ),
            (mount, "FailedMount", "MountVolume.SetUp failed"),
            (device, "FailedMapVolume", "MapVolume.SetUpDevice failed"),
            (affinity(false), "FailedMount", "MountVolume.NodeAffinity"),
            (affinity(true), "FailedMapVolume", "MapVolume.NodeAffinity"),
        ];
        for (error, reason, begins) in cases {
            let (got, message) = told(&error);
            assert_eq!(got, reason, "{error}");
            assert!(message.starts_with(begins), "{message}");
        }
    }
}
