//! The whole pod: every check in its order.

use std::collections::BTreeSet;

use krablet_pod::api::{Pod, PodSpec};

use crate::problem::{Path, Problem, Report, list, text};
use crate::resources::{self, Asker};
use crate::{containers, metadata, names, network, scheduling, security, volumes};

/// Everything that is wrong with a defaulted pod, as strictly as the API server judges a new one.
/// At most [`MAX_PROBLEMS`](crate::MAX_PROBLEMS) are listed.
#[must_use]
pub fn validate(pod: &Pod) -> Vec<Problem> {
    let mut report = Report::default();
    let empty = PodSpec::default();
    let spec = pod.spec.as_ref().unwrap_or(&empty);
    metadata::check(&mut report, &pod.metadata, spec);
    check(&mut report, &Path::root("spec"), spec);
    report.into_problems()
}

fn check(report: &mut Report, path: &Path, spec: &PodSpec) {
    grace(report, &path.child("terminationGracePeriodSeconds"), spec);
    let known = volumes::volumes(report, &path.child("volumes"), list(&spec.volumes));
    let claims: BTreeSet<&str> = list(&spec.resource_claims)
        .iter()
        .map(|c| c.name.as_str())
        .collect();
    resource_claims(report, &path.child("resourceClaims"), spec);
    containers::check(report, path, spec, &known, &claims);
    resources::pod_level(report, path, spec, &claims);
    let policies = ["Always", "OnFailure", "Never"];
    report.one_of(
        &path.child("restartPolicy"),
        text(&spec.restart_policy),
        &policies,
    );
    network::check(report, path, spec);
    scheduling::check(report, path, spec);
    security::pod(report, path, spec);
    security::host_users(report, path, spec);
    names_of_others(report, path, spec);
    if let Some(deadline) = spec.active_deadline_seconds
        && !(1..=i64::from(i32::MAX)).contains(&deadline)
    {
        let detail = format!("must be between 1 and {}, inclusive", i32::MAX);
        report.invalid(&path.child("activeDeadlineSeconds"), &deadline, detail);
    }
    if let Some(policy) = spec.preemption_policy.as_deref() {
        let policies = ["PreemptLowerPriority", "Never"];
        report.one_of(&path.child("preemptionPolicy"), policy, &policies);
    }
    if let Some(overhead) = &spec.overhead {
        resources::amounts(report, &path.child("overhead"), overhead, Asker::Container);
    }
    security::os(report, path, spec);
    unbacked_tokens(report, &path.child("volumes"), spec);
}

fn grace(report: &mut Report, path: &Path, spec: &PodSpec) {
    match spec.termination_grace_period_seconds {
        None => report.required(path, ""),
        Some(seconds) if seconds < 0 => {
            report.invalid(path, &seconds, "must be greater than or equal to 0");
        }
        Some(_) => {}
    }
}

fn resource_claims(report: &mut Report, path: &Path, spec: &PodSpec) {
    let mut seen = BTreeSet::new();
    for (i, claim) in list(&spec.resource_claims).iter().enumerate() {
        let path = path.index(i);
        match claim.name.as_str() {
            "" => report.required(&path.child("name"), ""),
            name => report.invalid_each(&path.child("name"), name, names::dns_label(name)),
        }
        if !seen.insert(claim.name.as_str()) {
            report.duplicate(&path.child("name"), &claim.name);
        }
    }
}

/// Names of objects elsewhere that a pod may mention.
fn names_of_others(report: &mut Report, path: &Path, spec: &PodSpec) {
    for (field, name) in [
        ("serviceAccountName", &spec.service_account_name),
        ("nodeName", &spec.node_name),
        ("priorityClassName", &spec.priority_class_name),
    ] {
        let name = text(name);
        if !name.is_empty() {
            report.invalid_each(&path.child(field), name, names::dns_subdomain(name));
        }
    }
    if let Some(name) = &spec.runtime_class_name {
        report.invalid_each(
            &path.child("runtimeClassName"),
            name,
            names::dns_subdomain(name),
        );
    }
}

/// A projected token is a service account's.
fn unbacked_tokens(report: &mut Report, path: &Path, spec: &PodSpec) {
    if !text(&spec.service_account_name).is_empty() {
        return;
    }
    for (i, volume) in list(&spec.volumes).iter().enumerate() {
        let sources = volume
            .projected
            .iter()
            .flat_map(|projected| list(&projected.sources));
        for (j, source) in sources.enumerate() {
            if source.service_account_token.is_some() {
                let path = path.index(i).child("projected").child("sources").index(j);
                let path = path.child("serviceAccountToken");
                report.forbidden(
                    &path,
                    "must not be specified when serviceAccountName is not set",
                );
            }
        }
    }
}
