//! `/metrics/resource`: the few series that metrics-server lives on. Pure.

use crate::reading::{Cgroup, Container, Pod, Snapshot};
use crate::text::{Labels, Metric, Text, counter, gauge};

static NODE_CPU: Metric = counter(
    "node_cpu_usage_seconds_total",
    "[STABLE] Cumulative cpu time consumed by the node in core-seconds",
);
static NODE_MEMORY: Metric = gauge(
    "node_memory_working_set_bytes",
    "[STABLE] Current working set of the node in bytes",
);
static NODE_SWAP: Metric = gauge(
    "node_swap_usage_bytes",
    "[ALPHA] Current swap usage of the node in bytes. Reported only on non-windows systems",
);
static CONTAINER_CPU: Metric = counter(
    "container_cpu_usage_seconds_total",
    "[STABLE] Cumulative cpu time consumed by the container in core-seconds",
);
static CONTAINER_MEMORY: Metric = gauge(
    "container_memory_working_set_bytes",
    "[STABLE] Current working set of the container in bytes",
);
static CONTAINER_SWAP: Metric = gauge(
    "container_swap_usage_bytes",
    "[ALPHA] Current amount of the container swap usage in bytes. Reported only on non-windows systems",
);
static CONTAINER_SWAP_LIMIT: Metric = gauge(
    "container_swap_limit_bytes",
    "[ALPHA] Current amount of the container swap limit in bytes. Reported only on non-windows systems",
);
static CONTAINER_START: Metric = gauge(
    "container_start_time_seconds",
    "[STABLE] Start time of the container since unix epoch in seconds",
);
static POD_CPU: Metric = counter(
    "pod_cpu_usage_seconds_total",
    "[STABLE] Cumulative cpu time consumed by the pod in core-seconds",
);
static POD_MEMORY: Metric = gauge(
    "pod_memory_working_set_bytes",
    "[STABLE] Current working set of the pod in bytes",
);
static POD_SWAP: Metric = gauge(
    "pod_swap_usage_bytes",
    "[ALPHA] Current amount of the pod swap usage in bytes. Reported only on non-windows systems",
);
static SCRAPE_ERROR: Metric = gauge(
    "scrape_error",
    "[ALPHA] (Deprecated since 1.29.0) 1 if there was an error while getting container metrics, 0 otherwise",
);
static RESOURCE_SCRAPE_ERROR: Metric = gauge(
    "resource_scrape_error",
    "[STABLE] 1 if there was an error while getting container metrics, 0 otherwise",
);

/// Without a snapshot the page says that there was an error.
pub fn resource_metrics(snapshot: Option<&Snapshot>) -> String {
    let mut text = Text::default();
    let failed = if snapshot.is_some() { 0.0 } else { 1.0 };
    for metric in [&SCRAPE_ERROR, &RESOURCE_SCRAPE_ERROR] {
        text.put(metric, Labels::default(), failed, None);
    }
    if let Some(snapshot) = snapshot {
        let at = snapshot.at.as_millisecond();
        let node = [&NODE_CPU, &NODE_MEMORY, &NODE_SWAP];
        put(&mut text, node, Labels::default(), &snapshot.node, at);
        for pod in &snapshot.pods {
            put_pod(&mut text, pod, at);
        }
    }
    text.pieces().collect()
}

fn put_pod(text: &mut Text, pod: &Pod, at: i64) {
    let of_pod = [("namespace", &*pod.pod.namespace), ("pod", &*pod.pod.name)];
    if let Some(cgroup) = &pod.cgroup {
        let metrics = [&POD_CPU, &POD_MEMORY, &POD_SWAP];
        let labels = text.labels(&of_pod);
        put(text, metrics, labels, cgroup, at);
    }
    for container in &pod.containers {
        let [namespace, name] = of_pod;
        let labels = text.labels(&[("container", &*container.name), namespace, name]);
        put_container(text, labels, container, at);
    }
}

fn put_container(text: &mut Text, labels: Labels, container: &Container, at: i64) {
    let metrics = [&CONTAINER_CPU, &CONTAINER_MEMORY, &CONTAINER_SWAP];
    put(text, metrics, labels, &container.cgroup, at);
    let memory = container.cgroup.memory.as_ref();
    if let Some(limit) = memory.and_then(|m| m.limits.swap) {
        text.put(&CONTAINER_SWAP_LIMIT, labels, limit as f64, Some(at));
    }
    if let Some(started) = container.started {
        let seconds = started.as_duration().as_secs_f64();
        text.put(&CONTAINER_START, labels, seconds, None);
    }
}

/// CPU time, working set and swap.
fn put(text: &mut Text, metrics: [&'static Metric; 3], labels: Labels, of: &Cgroup, at: i64) {
    let [cpu, working_set, swap] = metrics;
    if let Some(found) = &of.cpu {
        text.put(cpu, labels, seconds(found.usage), Some(at));
    }
    if let Some(memory) = &of.memory {
        text.put(working_set, labels, memory.working_set as f64, Some(at));
        text.put(swap, labels, memory.swap as f64, Some(at));
    }
}

pub(crate) fn seconds(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}
