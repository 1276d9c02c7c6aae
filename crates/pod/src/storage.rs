//! What a pod keeps on the node's disk, as it was found.

use std::collections::BTreeMap;

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
