//! Counts of starts, for whoever shows metrics.

use std::collections::BTreeMap;

use krablet_pod::containers::ContainerKind;

/// Since the agent began.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// `kubelet_started_pods_total`: sandboxes asked for.
    pub started_pods: u64,
    pub started_pods_errors: u64,
    /// `kubelet_started_containers_total` by `container_type`.
    pub started_containers: BTreeMap<&'static str, u64>,
    /// `kubelet_started_containers_errors_total` by `container_type` and `code`.
    pub started_containers_errors: BTreeMap<(&'static str, &'static str), u64>,
}

impl Counters {
    pub(crate) fn container_started(&mut self, kind: ContainerKind) {
        *self.started_containers.entry(label(kind)).or_default() += 1;
    }

    pub(crate) fn container_failed(&mut self, kind: ContainerKind, reason: &'static str) {
        let key = (label(kind), reason);
        *self.started_containers_errors.entry(key).or_default() += 1;
    }
}

fn label(kind: ContainerKind) -> &'static str {
    match kind {
        ContainerKind::Init => "init_container",
        ContainerKind::Regular => "container",
        ContainerKind::Ephemeral => "ephemeral_container",
    }
}
