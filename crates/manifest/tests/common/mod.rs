//! What the tests of manifests share: a small good pod, and the corpus of cases.
#![allow(dead_code)]

use krablet_manifest::{Origin, Place};
use serde_json::{Value, json};

pub const CASES: [(&str, &str); 7] = [
    ("metadata", include_str!("../refused/metadata.yaml")),
    ("containers", include_str!("../refused/containers.yaml")),
    ("probes", include_str!("../refused/probes.yaml")),
    ("volumes", include_str!("../refused/volumes.yaml")),
    ("security", include_str!("../refused/security.yaml")),
    ("pods", include_str!("../refused/pods.yaml")),
    ("resources", include_str!("../refused/resources.yaml")),
];

pub fn file_origin() -> Origin {
    Origin {
        place: Place::File("/etc/kubernetes/manifests/web.yaml".into()),
        node_name: "node".into(),
        references: krablet_manifest::References::None,
    }
}

pub fn url_origin() -> Origin {
    Origin {
        place: Place::Url("http://127.0.0.1/pods".into()),
        node_name: "node".into(),
        references: krablet_manifest::References::None,
    }
}

/// Lays a case's parts over the good pod.
pub fn overlay(case: &Value) -> Value {
    let mut pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "web"},
        "spec": {"containers": [{"name": "web", "image": "busybox:1"}]},
    });
    if let Some(part) = case.get("container") {
        merge(&mut pod["spec"]["containers"][0], part);
    }
    if let Some(part) = case.get("init") {
        pod["spec"]["initContainers"] = json!([{"name": "setup", "image": "busybox:1"}]);
        merge(&mut pod["spec"]["initContainers"][0], part);
    }
    if let Some(part) = case.get("volume") {
        pod["spec"]["volumes"] = json!([{"name": "data"}]);
        merge(&mut pod["spec"]["volumes"][0], part);
    }
    for field in ["metadata", "spec"] {
        if let Some(part) = case.get(field) {
            merge(&mut pod[field], part);
        }
    }
    pod
}

/// A JSON merge patch: null removes, mappings merge, the rest replaces.
pub fn merge(target: &mut Value, patch: &Value) {
    let (Value::Object(target), Value::Object(patch)) = (&mut *target, patch) else {
        *target = patch.clone();
        return;
    };
    for (key, value) in patch {
        if value.is_null() {
            target.remove(key);
        } else {
            merge(target.entry(key).or_insert(Value::Null), value);
        }
    }
}
