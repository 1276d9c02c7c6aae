//! The table of flags, joined from its parts, and the list of flags that are gone.

use super::Flag;
use super::{table_kubelet, table_node, table_pods, table_server};

const GROUPS: &[&[Flag]] = &[
    table_kubelet::FLAGS,
    table_kubelet::LOGGING,
    table_kubelet::STATISTICS,
    table_server::FLAGS,
    table_node::FLAGS,
    table_node::RESOURCES,
    table_pods::FLAGS,
    table_pods::EVICTION,
];

/// Flags that scripts may still carry, and why they are not known. A `*` stands for any end.
pub(super) const REMOVED: &[(&str, &str)] = &[
    (
        "pod-infra-container-image",
        "removed in 1.35; the sandbox image is a setting of the runtime",
    ),
    (
        "container-runtime",
        "removed in 1.27; every runtime is reached over CRI, see --container-runtime-endpoint",
    ),
    (
        "network-plugin",
        "removed in 1.24 with the Docker shim; networking is a setting of the runtime",
    ),
    (
        "cni-*",
        "removed in 1.24 with the Docker shim; networking is a setting of the runtime",
    ),
    ("docker-endpoint", "removed in 1.24 with the Docker shim"),
    (
        "image-pull-progress-deadline",
        "removed in 1.24 with the Docker shim",
    ),
    ("dynamic-config-dir", "removed; see --config-dir"),
    ("master-service-namespace", "removed without replacement"),
    (
        "cloud-config",
        "removed; cloud providers run outside, see --cloud-provider=external",
    ),
    ("keep-terminated-pod-volumes", "removed without replacement"),
    (
        "node-lease-duration-seconds",
        "set nodeLeaseDurationSeconds in the configuration file",
    ),
    (
        "logtostderr",
        "removed in 1.26; logs go to standard error, see --logging-format",
    ),
    (
        "alsologtostderr",
        "removed in 1.26; logs go to standard error",
    ),
    ("log-dir", "removed in 1.26; logs go to standard error"),
    ("log-file", "removed in 1.26; logs go to standard error"),
    (
        "stderrthreshold",
        "removed in 1.26; logs go to standard error",
    ),
];

/// Every flag.
pub fn all() -> impl Iterator<Item = &'static Flag> {
    GROUPS.iter().copied().flatten()
}

/// The flag of that name; underscores count as dashes.
#[must_use]
pub fn find(name: &str) -> Option<&'static Flag> {
    let name = name.replace('_', "-");
    all().find(|flag| flag.name == name)
}

pub(super) fn find_short(letter: char) -> Option<&'static Flag> {
    all().find(|flag| flag.short == Some(letter))
}
