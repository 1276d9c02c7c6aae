//! The volumes of a pod, as its steps ask for them and give them back.

use krablet_core::worker::Outcome;
use krablet_events::{Subject, reason};
use krablet_pod::PodRef;
use krablet_pod::api::Pod;
use krablet_runtime::VolumeSource;
use krablet_volumes::{Attempt, News, PodMounts, SetUp, VolumeError};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::Steps;

impl Steps {
    /// How the step ends, and told why, if the pod cannot have them all.
    pub(super) async fn set_up_volumes(
        &self,
        pod: &Pod,
        pod_ref: &PodRef,
        cancel: &CancellationToken,
    ) -> Result<SetUp, Outcome> {
        let hear = |news: News| {
            let (subject, reason) = about(pod_ref, &news);
            let recorder = &self.parts.recorder;
            recorder.warning(subject, reason, news.to_string());
        };
        let attempt = Attempt {
            cancel: Some(cancel),
            hear: &hear,
        };
        let set_up = self.parts.volumes.attempt(pod, attempt).await;
        if set_up.is_err() && cancel.is_cancelled() {
            return Err(Outcome::Cancelled);
        }
        let failures = match &set_up {
            Ok(set_up) => &set_up.stale,
            Err(errors) => &errors.0,
        };
        for failure in failures {
            let (reason, message) = told(failure);
            self.warn(pod_ref, reason, message);
        }
        set_up.map_err(|_| Outcome::Failed)
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

/// What an event is about, and its reason.
fn about(pod: &PodRef, news: &News) -> (Subject, &'static str) {
    let reason = match news {
        News::Ownership { .. } => reason::VOLUME_PERMISSION_CHANGE_IN_PROGRESS,
        News::OtherGroup { .. } => reason::ALREADY_MOUNTED_VOLUME,
        News::OtherFileSystem { volume, uid, .. } => {
            let (name, uid) = (volume.as_str().into(), uid.as_str().into());
            let reason = reason::FAILED_MOUNT_ON_FILESYSTEM_MISMATCH;
            return (Subject::Volume { name, uid }, reason);
        }
    };
    (Subject::Pod(pod.clone()), reason)
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
    fn news_have_their_reasons_and_subjects() {
        let pod = PodRef::new("u", "ns", "web");
        let volume = || "pv".to_owned();
        let slow = News::Ownership {
            dir: "u/volumes/x".to_owned(),
            files: None,
        };
        let group = News::OtherGroup {
            volume: volume(),
            wanted: 2,
            found: 1,
        };
        let disk = News::OtherFileSystem {
            volume: volume(),
            uid: "u-pv".to_owned(),
            why: "no".to_owned(),
        };
        let of_pod = Subject::Pod(pod.clone());
        let of_volume = Subject::Volume {
            name: "pv".into(),
            uid: "u-pv".into(),
        };
        for (news, subject, reason) in [
            (slow, of_pod.clone(), "VolumePermissionChangeInProgress"),
            (group, of_pod, "AlreadyMountedVolume"),
            (disk, of_volume, "FailedMountOnFilesystemMismatch"),
        ] {
            assert_eq!(about(&pod, &news), (subject, reason));
        }
    }

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
