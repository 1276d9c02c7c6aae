//! Pods at the door. A pod is written in one line, e.g. `web cpu=500m memory=1Gi port=80 prio=3`.

mod handlers;
mod preempting;
mod remembering;

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::*;

/// `name word…`. `cpu=`, `memory=`, or any other resource: a request, with `!` before the name a
/// limit too. Words: `static`, `mirror`, `prio=`, `port=[ip:]n[/proto]`, `node=`, `selector=k:v`,
/// `tolerate=key`, `sysctl=`, `hostnet`, `os=`, `label=k:v`, `phase=`, `apparmor=`, `groups=`,
/// `init:res=amount`, `pod:res=amount`, `overhead:res=amount`.
pub(super) fn pod(text: &str) -> Pod {
    let mut words = text.split_whitespace();
    let name = words.next().unwrap_or("p");
    let mut pod = json!({
        "metadata": {"name": name, "namespace": "ns", "uid": name, "annotations": {}, "labels": {}},
        "spec": {"containers": [{"name": "c", "ports": [], "resources": {"requests": {}, "limits": {}}}],
            "nodeSelector": {}, "tolerations": [], "securityContext": {"sysctls": []}},
        "status": {},
    });
    for word in words {
        let (key, value) = word.split_once('=').unwrap_or((word, ""));
        put(&mut pod, key, value);
    }
    serde_json::from_value(pod).unwrap_or_else(|e| panic!("{text}: {e}"))
}

fn put(pod: &mut Value, key: &str, value: &str) {
    let pair = |text: &str| {
        let (k, v) = text.split_once(':').unwrap();
        (k.to_owned(), v.to_owned())
    };
    match key {
        "static" => pod["metadata"]["annotations"][marks::CONFIG_SOURCE] = "file".into(),
        "mirror" => pod["metadata"]["annotations"][marks::CONFIG_MIRROR] = "x".into(),
        "prio" => pod["spec"]["priority"] = value.parse::<i32>().unwrap().into(),
        "node" => pod["spec"]["nodeName"] = value.into(),
        "hostnet" => pod["spec"]["hostNetwork"] = true.into(),
        "hostusers" => pod["spec"]["hostUsers"] = (value == "true").into(),
        "os" => pod["spec"]["os"] = json!({ "name": value }),
        "phase" => pod["status"]["phase"] = value.into(),
        "qos" => pod["status"]["qosClass"] = value.into(),
        "apparmor" => {
            pod["spec"]["securityContext"]["appArmorProfile"] = json!({ "type": value });
        }
        "groups" => pod["spec"]["securityContext"]["supplementalGroupsPolicy"] = value.into(),
        "restartall" => {
            pod["spec"]["containers"][0]["restartPolicyRules"] =
                json!([{"action": "RestartAllContainers"}]);
        }
        "created" => pod["metadata"]["creationTimestamp"] = value.into(),
        "label" => {
            let (k, v) = pair(value);
            pod["metadata"]["labels"][k] = v.into();
        }
        "annotation" => {
            let (k, v) = pair(value);
            pod["metadata"]["annotations"][k] = v.into();
        }
        "selector" => {
            let (k, v) = pair(value);
            pod["spec"]["nodeSelector"][k] = v.into();
        }
        "tolerate" => push(
            &mut pod["spec"]["tolerations"],
            json!({"key": value, "operator": "Exists"}),
        ),
        "sysctl" => push(
            &mut pod["spec"]["securityContext"]["sysctls"],
            json!({"name": value, "value": "1"}),
        ),
        "port" => {
            let (address, rest) = value.rsplit_once(':').unwrap_or(("", value));
            let (number, protocol) = rest.split_once('/').unwrap_or((rest, "TCP"));
            let number: i32 = number.parse().unwrap();
            let port = json!({"containerPort": number, "hostPort": number, "hostIP": address,
                "protocol": protocol});
            push(&mut pod["spec"]["containers"][0]["ports"], port);
        }
        _ => put_resource(pod, key, value),
    }
}

fn put_resource(pod: &mut Value, key: &str, value: &str) {
    let spec = &mut pod["spec"];
    match key.split_once(':') {
        Some(("pod", resource)) => spec["resources"]["requests"][resource] = value.into(),
        Some(("overhead", resource)) => spec["overhead"][resource] = value.into(),
        Some(("init", resource)) => {
            let requests = json!({ resource: value });
            spec["initContainers"] = json!([{"name": "i", "resources": {"requests": requests}}]);
        }
        Some(other) => panic!("{other:?}"),
        None => {
            let resources = &mut spec["containers"][0]["resources"];
            let name = key.trim_start_matches('!');
            resources["requests"][name] = value.into();
            if key.starts_with('!') {
                resources["limits"][name] = value.into();
            }
        }
    }
}

fn push(list: &mut Value, item: Value) {
    list.as_array_mut().unwrap().push(item);
}

/// `cpu=4 memory=8Gi pods=10`.
pub(super) fn node(text: &str) -> NodeView {
    let allocatable = text.split_whitespace().map(|word| {
        let (name, amount) = word.split_once('=').unwrap();
        (name.to_owned(), amount.parse().unwrap())
    });
    NodeView {
        name: "n1".into(),
        labels: BTreeMap::from([("zone".to_owned(), "a".to_owned())]),
        allocatable: allocatable.collect(),
        os: "linux".into(),
        ..NodeView::default()
    }
}

pub(super) fn settings() -> AdmissionSettings {
    AdmissionSettings {
        sysctls: SysctlAllowlist::new::<&str>(&[], Some(KernelVersion(6, 1))).unwrap(),
        apparmor: true,
        pod_level_resources: true,
        dra_extended_resources: false,
        declared_features: Some(BTreeSet::new()),
        ..AdmissionSettings::default()
    }
}

pub(super) const ROOMY: &str = "cpu=4 memory=8Gi ephemeral-storage=10Gi pods=10";

/// The verdict on one line.
pub(super) fn show(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Admit => "admit".into(),
        Verdict::AdmitAfterPreempting(room) => {
            let victims: Vec<&str> = room.victims.iter().map(|v| v.as_str()).collect();
            format!("after {}", victims.join(" "))
        }
        Verdict::Reject(r) => format!("{}: {}", r.reason, r.message),
    }
}

/// A pod before a node that holds `others`, one a line.
pub(super) struct Door {
    pub node: NodeView,
    pub conditions: NodeConditions,
    pub settings: AdmissionSettings,
}

impl Door {
    pub fn new(allocatable: &str) -> Self {
        Self {
            node: node(allocatable),
            conditions: NodeConditions::default(),
            settings: settings(),
        }
    }

    pub fn ask(&self, candidate: &str, others: &[&str]) -> String {
        show(&self.verdict(&pod(candidate), others))
    }

    pub fn verdict(&self, candidate: &Pod, others: &[&str]) -> Verdict {
        let others: Vec<AdmittedPod> = others
            .iter()
            .map(|other| {
                let (text, leaving) = match other.strip_suffix(" LEAVING") {
                    Some(text) => (text, true),
                    None => (*other, false),
                };
                AdmittedPod {
                    leaving,
                    ..AdmittedPod::of(&pod(text), &self.settings)
                }
            })
            .collect();
        let others: Vec<&AdmittedPod> = others.iter().collect();
        admit(&AdmissionInputs {
            pod: candidate,
            node: &self.node,
            conditions: &self.conditions,
            settings: &self.settings,
            others: &others,
            allocation_failure: None,
        })
    }
}
