//! The pods that are measured: one quiet container each, and the same with probes.

use krablet_testbed::images;
use serde_json::{Value, json};

/// A pod with one container that waits for its end.
pub fn quiet(index: usize) -> Value {
    pod(index, vec![container("main")])
}

/// A pod whose containers are probed every second, for liveness and readiness, at a server
/// elsewhere: two probes a second for each container.
pub fn probed(index: usize, containers: usize, port: u16) -> Value {
    let probe = json!({
        "httpGet": {"host": "127.0.0.1", "port": port, "path": "/"},
        "periodSeconds": 1,
        "timeoutSeconds": 5,
    });
    let containers = (0..containers).map(|number| {
        let mut container = container(&format!("c{number}"));
        container["livenessProbe"] = probe.clone();
        container["readinessProbe"] = probe.clone();
        container
    });
    pod(index, containers.collect())
}

fn container(name: &str) -> Value {
    json!({"name": name, "image": images::TOOL, "args": ["hold"]})
}

fn pod(index: usize, containers: Vec<Value>) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name(index), "namespace": "default"},
        "spec": {"containers": containers},
    })
}

pub fn name(index: usize) -> String {
    format!("pod-{index:03}")
}
