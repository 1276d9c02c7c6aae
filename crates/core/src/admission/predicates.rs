//! The questions a scheduler asks too: room, affinity, name, ports, taints. They must agree with its
//! answers, or pods bounce.

use krablet_pod::marks;

use super::fit::{Lack, lacks};
use super::ports::{any_conflict, host_ports};
use super::preemption::victims;
use super::{
    AdmissionInputs, AdmittedPod, Rejection, Room, UNEXPECTED_ADMISSION_ERROR, Verdict,
    matches_node, tolerates,
};

#[derive(Clone, Debug, PartialEq, Eq)]
enum Failure {
    Lack(Lack),
    Predicate(&'static str, &'static str),
}

const NODE_AFFINITY: Failure = Failure::Predicate(
    "NodeAffinity",
    "node(s) didn't match Pod's node affinity/selector",
);
const NODE_NAME: Failure =
    Failure::Predicate("NodeName", "node(s) didn't match the requested node name");
const NODE_PORTS: Failure = Failure::Predicate(
    "NodePorts",
    "node(s) didn't have free ports for the requested pod ports",
);
const TAINT_TOLERATION: Failure = Failure::Predicate(
    "TaintToleration",
    "node(s) had taints that the pod didn't tolerate",
);

pub(super) fn predicates(inputs: &AdmissionInputs<'_>) -> Verdict {
    // First what no pre-emption could help.
    if let Some(rejection) = unfit(inputs) {
        return Verdict::Reject(rejection);
    }
    let mut failures = objections(inputs, inputs.others);
    if failures.is_empty() {
        return Verdict::Admit;
    }
    let (leaving, staying): (Vec<&AdmittedPod>, Vec<&AdmittedPod>) = inputs
        .others
        .iter()
        .copied()
        .partition(|other| other.leaving);
    let mut preempted: Vec<_> = leaving.iter().map(|other| other.uid.clone()).collect();
    if !leaving.is_empty() {
        failures = objections(inputs, &staying);
        if failures.is_empty() {
            return Verdict::AdmitAfterPreempting(Room {
                victims: preempted,
                lacking: None,
            });
        }
    }
    if inputs.is_critical() {
        let (lacks, others) = split(failures);
        if others.is_empty() {
            return match victims(inputs.pod, &staying, &lacks) {
                Ok(chosen) => {
                    preempted.extend(chosen);
                    Verdict::AdmitAfterPreempting(Room {
                        victims: preempted,
                        lacking: lacks.first().map(|lack| lack.resource.clone()),
                    })
                }
                Err(why) => {
                    let message = format!(
                        "Unexpected error while attempting to recover from admission failure: \
                         preemption: error finding a set of pods to preempt: {why}"
                    );
                    Verdict::Reject(Rejection::new(UNEXPECTED_ADMISSION_ERROR, message))
                }
            };
        }
        failures = others;
    }
    reject(&failures)
}

fn unfit(inputs: &AdmissionInputs<'_>) -> Option<Rejection> {
    let labelled = inputs.pod.metadata.labels.as_ref();
    let labelled = labelled.and_then(|labels| labels.get("kubernetes.io/os"));
    if labelled.is_some_and(|os| *os != inputs.node.os) {
        return Some(Rejection::new(
            "PodOSSelectorNodeLabelDoesNotMatch",
            "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label",
        ));
    }
    let spec = inputs.pod.spec.as_ref()?;
    if spec.os.as_ref().is_some_and(|os| os.name != inputs.node.os) {
        return Some(Rejection::new(
            "PodOSNotSupported",
            "Failed to admit pod as the OS field doesn't match node OS",
        ));
    }
    let policy = spec
        .security_context
        .as_ref()
        .and_then(|s| s.supplemental_groups_policy.as_deref());
    if policy == Some("Strict") && !inputs.node.supplemental_groups_policy {
        return Some(Rejection::new(
            "SupplementalGroupsPolicyNotSupported",
            "SupplementalGroupsPolicy=Strict is not supported in this node",
        ));
    }
    None
}

/// Everything that stands against the pod beside these others.
fn objections(inputs: &AdmissionInputs<'_>, others: &[&AdmittedPod]) -> Vec<Failure> {
    let mut failures: Vec<Failure> = lacks(inputs, others)
        .into_iter()
        .map(Failure::Lack)
        .collect();
    let Some(spec) = inputs.pod.spec.as_ref() else {
        return failures;
    };
    if !matches_node(spec, inputs.node) {
        failures.push(NODE_AFFINITY);
    }
    let bound = spec.node_name.as_deref().unwrap_or_default();
    if !(bound.is_empty() || bound == inputs.node.name) {
        failures.push(NODE_NAME);
    }
    let wanted = host_ports(spec);
    if others
        .iter()
        .any(|other| any_conflict(&wanted, &other.ports))
    {
        failures.push(NODE_PORTS);
    }
    if !marks::is_static(inputs.pod) && !tolerates_node(inputs) {
        failures.push(TAINT_TOLERATION);
    }
    failures
}

/// Only the effect that ends running pods matters here; the others are the scheduler's.
fn tolerates_node(inputs: &AdmissionInputs<'_>) -> bool {
    let tolerations = inputs
        .pod
        .spec
        .as_ref()
        .and_then(|s| s.tolerations.as_deref());
    let tolerations = tolerations.unwrap_or_default();
    let comparison = inputs.settings.toleration_comparison;
    let mut taints = inputs
        .node
        .taints
        .iter()
        .filter(|t| t.effect == "NoExecute");
    taints.all(|taint| tolerations.iter().any(|t| tolerates(t, taint, comparison)))
}

fn split(failures: Vec<Failure>) -> (Vec<Lack>, Vec<Failure>) {
    let mut lacks = Vec::new();
    let mut others = Vec::new();
    for failure in failures {
        match failure {
            Failure::Lack(lack) => lacks.push(lack),
            other => others.push(other),
        }
    }
    (lacks, others)
}

/// Only the first failure is told.
fn reject(failures: &[Failure]) -> Verdict {
    let mut rejection = match failures.first() {
        Some(Failure::Lack(lack)) => {
            Rejection::new(format!("OutOf{}", lack.resource), lack.to_string())
        }
        Some(Failure::Predicate(name, why)) => {
            Rejection::new(*name, format!("Predicate {name} failed: {why}"))
        }
        None => return Verdict::Admit,
    };
    rejection.only_labels = failures.iter().all(|f| *f == NODE_AFFINITY);
    Verdict::Reject(rejection)
}
