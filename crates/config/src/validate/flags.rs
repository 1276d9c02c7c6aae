//! Settings that exist only as flags.

use crate::flags::{KubeletFlags, is_ip};
use crate::labels::{key_fault, namespace, value_fault};
use crate::load::flag_problem;
use crate::problem::Problem;

/// Labels of the kubernetes.io and k8s.io names that a node may set on itself.
const OWN_LABELS: &[&str] = &[
    "beta.kubernetes.io/arch",
    "beta.kubernetes.io/instance-type",
    "beta.kubernetes.io/os",
    "failure-domain.beta.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "kubernetes.io/arch",
    "kubernetes.io/hostname",
    "kubernetes.io/os",
    "node.kubernetes.io/instance-type",
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
];

/// Every problem of the flags.
#[must_use]
pub fn validate_flags(flags: &KubeletFlags) -> Vec<Problem> {
    let mut found = Vec::new();
    for (key, value) in &flags.node_labels {
        let faults = [key_fault(key), value_fault(value), reserved_fault(key)];
        found.extend(
            faults
                .into_iter()
                .flatten()
                .map(|fault| flag_problem("node-labels", fault)),
        );
    }
    if !matches!(flags.cloud_provider.as_str(), "" | "external") {
        let reason = format!("{:?} must be empty or external", flags.cloud_provider);
        found.push(flag_problem("cloud-provider", reason));
    }
    if flags.exit_on_lock_contention && flags.lock_file.is_empty() {
        found.push(flag_problem("exit-on-lock-contention", "needs --lock-file"));
    }
    let in_cluster = !flags.kubeconfig.is_empty() || !flags.bootstrap_kubeconfig.is_empty();
    if in_cluster && !flags.local_objects_dir.is_empty() {
        let reason = "is for a node without an API server; leave it or --kubeconfig and --bootstrap-kubeconfig out";
        found.push(flag_problem("local-objects-dir", reason));
    }
    if !flags.runtime.container_logs_dir.starts_with('/') {
        let reason = format!(
            "{:?} must be an absolute path",
            flags.runtime.container_logs_dir
        );
        found.push(flag_problem("container-logs-dir", reason));
    }
    if let Some(fault) = node_ip_fault(&flags.node_ip) {
        found.push(flag_problem("node-ip", fault));
    }
    found
}

/// A node may not give itself labels that others take decisions by.
fn reserved_fault(key: &str) -> Option<String> {
    let within = |domain: &str| {
        let namespace = namespace(key);
        namespace == domain
            || namespace
                .strip_suffix(domain)
                .is_some_and(|rest| rest.ends_with('.'))
    };
    let reserved = within("kubernetes.io") || within("k8s.io");
    let own = OWN_LABELS.contains(&key)
        || within("kubelet.kubernetes.io")
        || within("node.kubernetes.io");
    (reserved && !own).then(|| {
        format!(
            "{key:?} is reserved; of the kubernetes.io and k8s.io labels a node may set those under kubelet.kubernetes.io and node.kubernetes.io, and {}",
            OWN_LABELS.join(", ")
        )
    })
}

/// One address, or one of each family. Texts that are no address are passed over here, as upstream does.
fn node_ip_fault(text: &str) -> Option<&'static str> {
    let addresses: Vec<&str> = text
        .split(',')
        .map(str::trim)
        .filter(|address| is_ip(address))
        .collect();
    let v6 = addresses
        .iter()
        .filter(|address| address.contains(':'))
        .count();
    match addresses.len() {
        0 | 1 => None,
        2 if v6 == 1 => addresses
            .iter()
            .any(|address| matches!(*address, "0.0.0.0" | "::"))
            .then_some("a pair of addresses cannot hold 0.0.0.0 or ::"),
        _ => Some("want a single address, or an IPv4 and an IPv6 one"),
    }
}
