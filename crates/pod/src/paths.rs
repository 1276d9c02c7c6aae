//! Where things of a pod stand on disk, as every log collector and backup script expects them.

use std::path::{Path, PathBuf};

use crate::{ContainerId, PodRef, PodUid};

/// File names longer than this are cut, as the file system demands.
const MAX_FILE_NAME: usize = 255;

/// `<podLogsDir>/<namespace>_<name>_<uid>`.
pub fn pod_log_dir(pod_logs_dir: &Path, pod: &PodRef) -> PathBuf {
    pod_logs_dir.join(format!("{}_{}_{}", pod.namespace, pod.name, pod.uid))
}

/// The UID in the name of a pod's log directory.
pub fn uid_of_log_dir(dir_name: &str) -> Option<PodUid> {
    let mut parts = dir_name.split('_');
    match (parts.next(), parts.next(), parts.next(), parts.next()) {
        (Some(_), Some(_), Some(uid), None) if !uid.is_empty() => Some(uid.into()),
        _ => None,
    }
}

/// Log file of one container instance, relative to the pod's log directory: `<container>/<restart>.log`.
pub fn container_log_file(container: &str, restart_count: u32) -> String {
    format!("{container}/{restart_count}.log")
}

/// Stands beside the log of an instance that was stopped to make way for another. Made before the stop,
/// so that whoever sees the end knows that it is not final, also an agent that was started in between.
pub fn restart_mark(log: &Path) -> Option<PathBuf> {
    log.file_name()?;
    Some(log.with_extension("restart"))
}

/// `<containerLogsDir>/<pod>_<namespace>_<container>-<id>.log`, cut so that the name fits.
pub fn legacy_log_symlink(dir: &Path, pod: &PodRef, container: &str, id: &ContainerId) -> PathBuf {
    const SUFFIX: &str = ".log";
    let mut name = format!("{}_{}_{}-{}", pod.name, pod.namespace, container, id);
    let room = MAX_FILE_NAME - SUFFIX.len();
    if name.len() > room {
        let cut = (0..=room).rev().find(|i| name.is_char_boundary(*i));
        name.truncate(cut.unwrap_or_default());
    }
    name.push_str(SUFFIX);
    dir.join(name)
}

/// Where a part of a volume is mounted for a container, relative to the pod's directory: the place of the mount among
/// the container's others tells it apart.
pub fn sub_path(volume: &str, container: &str, index: usize) -> PathBuf {
    let container = Path::new("volume-subpaths").join(volume).join(container);
    container.join(index.to_string())
}

/// The directories under `--root-dir`.
#[derive(Clone, Debug)]
pub struct RootDir(PathBuf);

impl RootDir {
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self(root.into())
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn pods(&self) -> PathBuf {
        self.0.join("pods")
    }

    pub fn pod(&self, uid: &PodUid) -> PathBuf {
        self.pods().join(uid.as_str())
    }

    pub fn volumes(&self, uid: &PodUid) -> PathBuf {
        self.pod(uid).join("volumes")
    }

    pub fn plugins(&self, uid: &PodUid) -> PathBuf {
        self.pod(uid).join("plugins")
    }

    /// `plugin` in its escaped form, e.g. `kubernetes.io~empty-dir`.
    pub fn volume(&self, uid: &PodUid, plugin: &str, volume: &str) -> PathBuf {
        self.volumes(uid).join(plugin).join(volume)
    }

    pub fn containers(&self, uid: &PodUid) -> PathBuf {
        self.pod(uid).join("containers")
    }

    pub fn container(&self, uid: &PodUid, container: &str) -> PathBuf {
        self.containers(uid).join(container)
    }

    pub fn etc_hosts(&self, uid: &PodUid) -> PathBuf {
        self.pod(uid).join("etc-hosts")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_dir_names_round_trip() {
        let pod = PodRef::new("u-1", "ns", "web-0");
        let dir = pod_log_dir(Path::new("/logs"), &pod);
        assert_eq!(dir, Path::new("/logs/ns_web-0_u-1"));
        assert_eq!(uid_of_log_dir("ns_web-0_u-1"), Some("u-1".into()));
        for odd in ["", "a_b", "a_b_", "a_b_c_d"] {
            assert_eq!(uid_of_log_dir(odd), None, "{odd}");
        }
    }

    #[test]
    fn long_symlink_names_are_cut_to_255() {
        let pod = PodRef::new("u", "ns", &"p".repeat(300));
        let link = legacy_log_symlink(Path::new("/c"), &pod, "c", &"id".into());
        let name = link.file_name().and_then(|n| n.to_str()).unwrap();
        assert_eq!(name.len(), 255);
        assert!(name.ends_with(".log"));
    }
}
