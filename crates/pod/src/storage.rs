//! What a pod keeps on the node's disk, as it was found.

use std::collections::BTreeMap;

/// In bytes. What is not known is absent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LocalUsage {
    /// By the volume's name, whatever kind of volume it is.
    pub volumes: BTreeMap<String, u64>,
    /// Logs, and what was written beside all volumes if that is on the same disk; by the container's name.
    pub containers: BTreeMap<String, u64>,
    /// What belongs to the pod as a whole: its hosts file.
    pub other: u64,
}
