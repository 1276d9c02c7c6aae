//! Containers that were started or could not be, as metrics tell them.

use krablet_metrics::RuntimeMetrics;
use krablet_pod::containers::ContainerKind;

pub(crate) fn container_started(metrics: &RuntimeMetrics, kind: ContainerKind) {
    metrics.started_containers.add(&[container_type(kind)], 1);
}

pub(crate) fn container_failed(metrics: &RuntimeMetrics, kind: ContainerKind, code: &str) {
    metrics
        .started_containers_errors
        .add(&[code, container_type(kind)], 1);
}

fn container_type(kind: ContainerKind) -> &'static str {
    match kind {
        ContainerKind::Init => "init_container",
        ContainerKind::Regular => "container",
        ContainerKind::Ephemeral => "ephemeral_container",
    }
}
