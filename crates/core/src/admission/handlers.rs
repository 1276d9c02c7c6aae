//! The short questions: pressure, what the resource owners said, gates, declared features, shutdown.

use std::collections::BTreeSet;

use krablet_pod::api::{PodSpec, Taint};
use krablet_pod::containers;
use krablet_pod::qos::QosClass;
use krablet_pod::resources::has_pod_level_resources;

use super::{AdmissionInputs, Pressure, Rejection, Verdict, qos_of, tolerates};

fn reject(reason: &str, message: impl Into<String>) -> Verdict {
    Verdict::Reject(Rejection::new(reason, message))
}

/// Critical pods come in under any pressure. Memory pressure alone keeps out only pods that ask for
/// nothing and do not tolerate it.
pub(super) fn eviction_pressure(inputs: &AdmissionInputs<'_>) -> Verdict {
    let pressures = &inputs.conditions.pressures;
    if pressures.is_empty() || inputs.is_critical() {
        return Verdict::Admit;
    }
    if pressures[..] == [Pressure::Memory] {
        let taint = Taint {
            key: "node.kubernetes.io/memory-pressure".into(),
            effect: "NoSchedule".into(),
            ..Taint::default()
        };
        let spec = inputs.pod.spec.iter();
        let mut tolerations = spec.flat_map(|s| &s.tolerations).flatten();
        let tolerated = |t| tolerates(t, &taint, inputs.settings.toleration_comparison);
        if qos_of(inputs.pod) != QosClass::BestEffort || tolerations.any(tolerated) {
            return Verdict::Admit;
        }
    }
    let names: Vec<&str> = pressures.iter().map(|p| p.as_str()).collect();
    let message = format!("The node had condition: [{}]. ", names.join(" "));
    reject("Evicted", message)
}

pub(super) fn allocation(inputs: &AdmissionInputs<'_>) -> Verdict {
    match inputs.allocation_failure {
        Some(rejection) => Verdict::Reject(rejection.clone()),
        None => Verdict::Admit,
    }
}

pub(super) fn pod_level_resources(inputs: &AdmissionInputs<'_>) -> Verdict {
    let asked = inputs
        .pod
        .spec
        .as_ref()
        .is_some_and(has_pod_level_resources);
    if asked && !inputs.settings.pod_level_resources {
        let message = "PodLevelResources feature gate is disabled";
        return reject("PodLevelResourcesNotSupported", message);
    }
    Verdict::Admit
}

pub(super) fn declared_features(inputs: &AdmissionInputs<'_>) -> Verdict {
    let (Some(declared), Some(spec)) = (&inputs.settings.declared_features, &inputs.pod.spec)
    else {
        return Verdict::Admit;
    };
    let needed = needed_features(spec);
    let missing: Vec<&str> = needed
        .into_iter()
        .filter(|feature| !declared.contains(*feature))
        .collect();
    if missing.is_empty() {
        return Verdict::Admit;
    }
    let message = format!(
        "Pod requires node features that are not available: {}",
        missing.join(", ")
    );
    reject("PodFeatureUnsupported", message)
}

/// Features a pod needs from its first start on, of those nodes declare.
fn needed_features(spec: &PodSpec) -> BTreeSet<&'static str> {
    let mut needed = BTreeSet::new();
    let restarts_all = containers::all(spec)
        .flat_map(|c| c.container.restart_policy_rules.iter().flatten())
        .any(|rule| rule.action == "RestartAllContainers");
    if restarts_all {
        needed.insert("RestartAllContainersOnContainerExits");
    }
    if spec.host_network == Some(true) && spec.host_users == Some(false) {
        needed.insert("UserNamespacesHostNetworkSupport");
    }
    needed
}

pub(super) fn node_shutdown(inputs: &AdmissionInputs<'_>) -> Verdict {
    if inputs.conditions.shutting_down {
        let message = "Pod was rejected as the node is shutting down.";
        return reject("NodeShutdown", message);
    }
    Verdict::Admit
}
