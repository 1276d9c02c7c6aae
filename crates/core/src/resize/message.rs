//! What events tell of a resize: a word and the resources, as JSON that tools read.

use krablet_pod::api::{Container, Pod, PodSpec};
use krablet_pod::containers::init_containers;
use krablet_pod::resources::{ApiList, parse};
use serde::Serialize;
use std::collections::BTreeMap;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Summary<'a> {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    init_containers: Vec<Line<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    containers: Vec<Line<'a>>,
    generation: i64,
    #[serde(skip_serializing_if = "str::is_empty")]
    error: &'a str,
}

#[derive(Serialize)]
struct Line<'a> {
    name: &'a str,
    resources: Lists,
}

#[derive(Serialize)]
struct Lists {
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    limits: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    requests: BTreeMap<String, String>,
}

/// `Pod resize started: {"containers":[…],"generation":2}`.
pub fn message(what: &str, pod: &Pod, generation: Option<i64>, error: &str) -> String {
    let default = PodSpec::default();
    let spec = pod.spec.as_ref().unwrap_or(&default);
    let summary = Summary {
        init_containers: init_containers(spec).iter().map(line).collect(),
        containers: spec.containers.iter().map(line).collect(),
        generation: generation.unwrap_or(0),
        error,
    };
    match serde_json::to_string(&summary) {
        Ok(json) => format!("Pod resize {what}: {}", escaped(&json)),
        Err(_) => format!("Pod resize {what}"),
    }
}

fn line(container: &Container) -> Line<'_> {
    let resources = container.resources.as_ref();
    let list = |list: Option<&ApiList>| {
        let amounts = parse(list).into_iter();
        amounts.map(|(name, q)| (name, q.to_string())).collect()
    };
    Line {
        name: &container.name,
        resources: Lists {
            limits: list(resources.and_then(|r| r.limits.as_ref())),
            requests: list(resources.and_then(|r| r.requests.as_ref())),
        },
    }
}

/// As Go writes JSON. These characters stand in strings only.
fn escaped(json: &str) -> String {
    json.replace('&', "\\u0026")
        .replace('<', "\\u003c")
        .replace('>', "\\u003e")
}
