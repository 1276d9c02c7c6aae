//! What the scheduler reads and a node's admission checks again: selectors, affinity, tolerations, spreading.

use std::collections::BTreeSet;

use krablet_pod::api::{
    Affinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, PodAffinityTerm, PodSpec,
    Toleration, TopologySpreadConstraint, WeightedPodAffinityTerm,
};

use crate::problem::{Path, Report, list, text};
use crate::{metadata, names};

const OPERATOR_RULE: &str = "not a valid selector operator";
const WEIGHT_RULE: &str = "must be in the range 1-100";
const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

pub(crate) fn check(report: &mut Report, path: &Path, spec: &PodSpec) {
    if let Some(selector) = &spec.node_selector {
        metadata::labels(report, &path.child("nodeSelector"), selector);
    }
    if let Some(affinity) = &spec.affinity {
        self::affinity(report, &path.child("affinity"), affinity);
    }
    for (i, gate) in list(&spec.readiness_gates).iter().enumerate() {
        let path = path.child("readinessGates").index(i).child("conditionType");
        report.invalid_each(
            &path,
            &gate.condition_type,
            names::qualified_name(&gate.condition_type),
        );
    }
    gates(report, path, spec);
    spreading(
        report,
        &path.child("topologySpreadConstraints"),
        list(&spec.topology_spread_constraints),
    );
    tolerations(report, &path.child("tolerations"), list(&spec.tolerations));
}

fn gates(report: &mut Report, path: &Path, spec: &PodSpec) {
    let gates = list(&spec.scheduling_gates);
    let mut seen = BTreeSet::new();
    for (i, gate) in gates.iter().enumerate() {
        let path = path.child("schedulingGates").index(i);
        report.invalid_each(&path, &gate.name, names::qualified_name(&gate.name));
        if !seen.insert(gate.name.as_str()) {
            report.duplicate(&path, &gate.name);
        }
    }
    if !gates.is_empty() && !text(&spec.node_name).is_empty() {
        report.forbidden(
            &path.child("nodeName"),
            "cannot be set until all schedulingGates have been cleared",
        );
    }
}

fn affinity(report: &mut Report, path: &Path, affinity: &Affinity) {
    if let Some(nodes) = &affinity.node_affinity {
        let path = path.child("nodeAffinity");
        if let Some(selector) = &nodes.required_during_scheduling_ignored_during_execution {
            node_selector(report, &path.child(REQUIRED), selector);
        }
        let preferred = list(&nodes.preferred_during_scheduling_ignored_during_execution);
        for (i, term) in preferred.iter().enumerate() {
            let path = path.child(PREFERRED).index(i);
            weight(report, &path, term.weight);
            // A preference may name values no node can have.
            node_term(report, &path.child("preference"), &term.preference, false);
        }
    }
    if let Some(pods) = &affinity.pod_affinity {
        let required = list(&pods.required_during_scheduling_ignored_during_execution);
        let preferred = list(&pods.preferred_during_scheduling_ignored_during_execution);
        pod_terms(report, &path.child("podAffinity"), required, preferred);
    }
    if let Some(pods) = &affinity.pod_anti_affinity {
        let required = list(&pods.required_during_scheduling_ignored_during_execution);
        let preferred = list(&pods.preferred_during_scheduling_ignored_during_execution);
        pod_terms(report, &path.child("podAntiAffinity"), required, preferred);
    }
}

fn weight(report: &mut Report, path: &Path, weight: i32) {
    if !(1..=100).contains(&weight) {
        report.invalid(&path.child("weight"), &weight, WEIGHT_RULE);
    }
}

fn node_selector(report: &mut Report, path: &Path, selector: &NodeSelector) {
    let path = path.child("nodeSelectorTerms");
    if selector.node_selector_terms.is_empty() {
        return report.required(&path, "must have at least one node selector term");
    }
    for (i, term) in selector.node_selector_terms.iter().enumerate() {
        node_term(report, &path.index(i), term, true);
    }
}

fn node_term(report: &mut Report, path: &Path, term: &NodeSelectorTerm, check_values: bool) {
    for (i, rule) in list(&term.match_expressions).iter().enumerate() {
        node_expression(
            report,
            &path.child("matchExpressions").index(i),
            rule,
            check_values,
        );
    }
    for (i, rule) in list(&term.match_fields).iter().enumerate() {
        node_field(report, &path.child("matchFields").index(i), rule);
    }
}

fn node_expression(
    report: &mut Report,
    path: &Path,
    rule: &NodeSelectorRequirement,
    check_values: bool,
) {
    let values = list(&rule.values);
    let values_path = path.child("values");
    match rule.operator.as_str() {
        "In" | "NotIn" if values.is_empty() => {
            report.required(
                &values_path,
                "must be specified when `operator` is 'In' or 'NotIn'",
            );
        }
        "Exists" | "DoesNotExist" if !values.is_empty() => {
            report.forbidden(
                &values_path,
                "may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
            );
        }
        "Gt" | "Lt" if values.len() != 1 => {
            report.required(
                &values_path,
                "must be specified single value when `operator` is 'Lt' or 'Gt'",
            );
        }
        "In" | "NotIn" | "Exists" | "DoesNotExist" | "Gt" | "Lt" => {}
        other => report.invalid(&path.child("operator"), other, OPERATOR_RULE),
    }
    report.invalid_each(
        &path.child("key"),
        &rule.key,
        names::qualified_name(&rule.key),
    );
    if check_values {
        for (i, value) in values.iter().enumerate() {
            report.invalid_each(&values_path.index(i), value, names::label_value(value));
        }
    }
}

fn node_field(report: &mut Report, path: &Path, rule: &NodeSelectorRequirement) {
    let values = list(&rule.values);
    match rule.operator.as_str() {
        "In" | "NotIn" if values.len() != 1 => report.required(
            &path.child("values"),
            "must be only one value when `operator` is 'In' or 'NotIn' for node field selector",
        ),
        "In" | "NotIn" => {}
        other => report.invalid(&path.child("operator"), other, OPERATOR_RULE),
    }
    if rule.key != "metadata.name" {
        return report.invalid(
            &path.child("key"),
            &rule.key,
            "not a valid field selector key",
        );
    }
    for (i, value) in values.iter().enumerate() {
        report.invalid_each(
            &path.child("values").index(i),
            value,
            names::dns_subdomain(value),
        );
    }
}

fn pod_terms(
    report: &mut Report,
    path: &Path,
    required: &[PodAffinityTerm],
    preferred: &[WeightedPodAffinityTerm],
) {
    for (i, term) in required.iter().enumerate() {
        pod_term(report, &path.child(REQUIRED).index(i), term);
    }
    for (i, term) in preferred.iter().enumerate() {
        let path = path.child(PREFERRED).index(i);
        weight(report, &path, term.weight);
        pod_term(
            report,
            &path.child("podAffinityTerm"),
            &term.pod_affinity_term,
        );
    }
}

fn pod_term(report: &mut Report, path: &Path, term: &PodAffinityTerm) {
    metadata::selector(
        report,
        &path.child("labelSelector"),
        term.label_selector.as_ref(),
    );
    metadata::selector(
        report,
        &path.child("namespaceSelector"),
        term.namespace_selector.as_ref(),
    );
    for name in list(&term.namespaces) {
        report.invalid_each(&path.child("namespaces"), name, names::dns_label(name));
    }
    let (matching, differing) = (
        list(&term.match_label_keys),
        list(&term.mismatch_label_keys),
    );
    for (field, keys) in [
        ("matchLabelKeys", matching),
        ("mismatchLabelKeys", differing),
    ] {
        label_keys(
            report,
            &path.child(field),
            keys,
            term.label_selector.is_some(),
        );
    }
    let unwanted: BTreeSet<&String> = differing.iter().collect();
    for (i, key) in matching.iter().enumerate() {
        if unwanted.contains(key) {
            let path = path.child("matchLabelKeys").index(i);
            report.invalid(
                &path,
                key,
                "exists in both matchLabelKeys and mismatchLabelKeys",
            );
        }
    }
    let path = path.child("topologyKey");
    if term.topology_key.is_empty() {
        report.required(&path, "can not be empty");
    } else {
        report.invalid_each(
            &path,
            &term.topology_key,
            names::qualified_name(&term.topology_key),
        );
    }
}

fn label_keys(report: &mut Report, path: &Path, keys: &[String], has_selector: bool) {
    if keys.is_empty() {
        return;
    }
    if !has_selector {
        return report.forbidden(path, "must not be specified when labelSelector is not set");
    }
    for (i, key) in keys.iter().enumerate() {
        report.invalid_each(&path.index(i), key, names::qualified_name(key));
    }
}

fn spreading(report: &mut Report, path: &Path, constraints: &[TopologySpreadConstraint]) {
    let mut seen = BTreeSet::new();
    for (i, constraint) in constraints.iter().enumerate() {
        let path = path.index(i);
        let (key, action) = (
            constraint.topology_key.as_str(),
            constraint.when_unsatisfiable.as_str(),
        );
        if constraint.max_skew <= 0 {
            report.invalid(
                &path.child("maxSkew"),
                &constraint.max_skew,
                "must be greater than zero",
            );
        }
        if key.is_empty() {
            report.required(&path.child("topologyKey"), "can not be empty");
        }
        if !matches!(action, "DoNotSchedule" | "ScheduleAnyway") {
            let actions = ["DoNotSchedule", "ScheduleAnyway"];
            report.unsupported(&path.child("whenUnsatisfiable"), action, &actions);
        }
        if !seen.insert((key, action)) {
            report.duplicate(
                &path.child("{topologyKey, whenUnsatisfiable}"),
                &format!("{{{key}, {action}}}"),
            );
        }
        if let Some(least) = constraint.min_domains {
            let path = path.child("minDomains");
            if least <= 0 {
                report.invalid(&path, &least, "must be greater than zero");
            }
            if action != "DoNotSchedule" {
                let detail = format!(
                    "can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {action}"
                );
                report.invalid(&path, &least, detail);
            }
        }
        for (field, policy) in [
            ("nodeAffinityPolicy", &constraint.node_affinity_policy),
            ("nodeTaintsPolicy", &constraint.node_taints_policy),
        ] {
            let policy = policy
                .as_deref()
                .filter(|policy| !matches!(*policy, "Honor" | "Ignore"));
            if let Some(policy) = policy {
                report.unsupported(&path.child(field), policy, &["Honor", "Ignore"]);
            }
        }
        let selector = constraint.label_selector.as_ref();
        let keys = list(&constraint.match_label_keys);
        label_keys(
            report,
            &path.child("matchLabelKeys"),
            keys,
            selector.is_some(),
        );
        metadata::selector(report, &path.child("labelSelector"), selector);
    }
}

fn tolerations(report: &mut Report, path: &Path, tolerations: &[Toleration]) {
    for (i, toleration) in tolerations.iter().enumerate() {
        let path = path.index(i);
        let (key, operator) = (text(&toleration.key), text(&toleration.operator));
        let (value, effect) = (text(&toleration.value), text(&toleration.effect));
        if !key.is_empty() {
            report.invalid_each(&path.child("key"), key, names::qualified_name(key));
        } else if operator != "Exists" {
            report.invalid(
                &path.child("operator"),
                operator,
                "operator must be Exists when `key` is empty, which means \"match all values and all keys\"",
            );
        }
        if toleration.toleration_seconds.is_some() && effect != "NoExecute" {
            let detail = "effect must be 'NoExecute' when `tolerationSeconds` is set";
            report.invalid(&path.child("effect"), effect, detail);
        }
        let operator_path = path.child("operator");
        match operator {
            "" | "Equal" => report.invalid_each(&operator_path, value, names::label_value(value)),
            "Exists" if !value.is_empty() => {
                report.invalid(
                    &operator_path,
                    value,
                    "value must be empty when `operator` is 'Exists'",
                );
            }
            "Exists" => {}
            other => report.unsupported(&operator_path, other, &["Equal", "Exists"]),
        }
        let effects = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
        if !effect.is_empty() && !effects.contains(&effect) {
            report.unsupported(&path.child("effect"), effect, &effects);
        }
    }
}
