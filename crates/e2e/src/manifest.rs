//! Manifests, as short as a scenario can say them.

use krablet_testbed::images;
use serde_json::{Value, json};

/// A pod. What most scenarios want is filled in: a short grace period.
pub fn pod(name: &str, mut spec: Value) -> Value {
    let fields = spec.as_object_mut().expect("a spec is an object");
    fields
        .entry("terminationGracePeriodSeconds")
        .or_insert(json!(2));
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})
}

/// A pod of one container `main`.
pub fn single(name: &str, container: Value) -> Value {
    pod(name, json!({"containers": [container]}))
}

/// A container that runs `/tool` with these arguments.
pub fn tool(name: &str, arguments: &[&str]) -> Value {
    json!({"name": name, "image": images::TOOL, "args": arguments})
}

/// A container that runs a shell script.
pub fn shell(name: &str, script: &str) -> Value {
    json!({"name": name, "image": images::TOOL, "command": ["/bin/sh", "-c", script]})
}

/// A script that notes `start NAME`, waits, and notes `stop NAME` when it is told to end.
pub fn diary(name: &str) -> String {
    format!(
        "trap 'echo stop {name} >> /scratch/diary; exit 0' TERM; \
         echo start {name} >> /scratch/diary; while :; do sleep 1000 & wait $!; done"
    )
}

/// Lays the fields of `patch` over those of `base`.
pub fn with(mut base: Value, patch: Value) -> Value {
    if let (Some(base), Value::Object(patch)) = (base.as_object_mut(), patch) {
        base.extend(patch);
    }
    base
}

/// Gives a container the scenario's directory as `/scratch`; see [`scratch_volume`].
pub fn scratched(container: Value) -> Value {
    with(
        container,
        json!({"volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}]}),
    )
}

/// The scenario's directory on the machine as a volume.
pub fn scratch_volume(dir: &std::path::Path) -> Value {
    json!({"name": "scratch", "hostPath": {"path": dir, "type": "Directory"}})
}
