//! What a pod keeps on the node's disk: which of its volumes are there, and what was found.

use std::collections::BTreeMap;

use crate::api::Volume;

/// Whether a volume is on the node's disk and goes with the pod: its bytes are the pod's own. (The kubelet counts neither
/// secrets and tokens, which are in memory, nor what the downward API and projections show.)
pub fn is_local(volume: &Volume) -> bool {
    let empty_dir = volume.empty_dir.as_ref();
    let medium = empty_dir.map(|dir| dir.medium.as_deref().unwrap_or_default());
    medium == Some("") || volume.config_map.is_some() || volume.git_repo.is_some()
}

/// In bytes. What is not known is absent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LocalUsage {
    /// By the volume's name, whatever kind of volume it is.
    pub volumes: BTreeMap<String, u64>,
    /// By the container's name.
    pub containers: BTreeMap<String, ContainerUsage>,
    /// What belongs to the pod as a whole: its hosts file and its own logs.
    pub other: u64,
    /// Whether containers write to the disk that the node has for itself, and not to one of the runtime's.
    pub one_disk: bool,
}

/// In bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ContainerUsage {
    pub logs: u64,
    /// Beside all volumes.
    pub written: u64,
}

impl ContainerUsage {
    pub fn sum(self) -> u64 {
        self.logs.saturating_add(self.written)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn which_volumes_are_the_pods_own() {
        for (source, local) in [
            (json!({"emptyDir": {}}), true),
            (json!({"emptyDir": {"medium": ""}}), true),
            (json!({"emptyDir": {"medium": "Memory"}}), false),
            (json!({"emptyDir": {"medium": "HugePages-2Mi"}}), false),
            (json!({"configMap": {"name": "c"}}), true),
            (json!({"gitRepo": {"repository": "r"}}), true),
            (json!({"secret": {"secretName": "s"}}), false),
            (json!({"projected": {"sources": []}}), false),
            (json!({"downwardAPI": {}}), false),
            (json!({"hostPath": {"path": "/"}}), false),
            (json!({"persistentVolumeClaim": {"claimName": "c"}}), false),
            (json!({"ephemeral": {}}), false),
        ] {
            let mut volume = source.clone();
            volume["name"] = "v".into();
            let volume: Volume = serde_json::from_value(volume).unwrap();
            assert_eq!(is_local(&volume), local, "{source}");
        }
    }
}
