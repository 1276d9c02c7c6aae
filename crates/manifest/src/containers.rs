//! Containers: regular, init and sidecar.

use std::collections::BTreeSet;

use krablet_pod::api::{Container, ContainerPort, ContainerRestartRule, PodSpec};
use krablet_pod::containers::{ephemeral_containers, init_containers, is_sidecar};

use crate::probes::{self, Kind, Surroundings};
use crate::problem::{Path, Report, list, text};
use crate::resources::{self, Asker};
use crate::volumes::{Known, PULL_POLICIES};
use crate::{env, mounts, names, security};

const RESTART_POLICIES: [&str; 3] = ["Always", "Never", "OnFailure"];
const RULES_MAX: usize = 20;
const EXIT_CODES_MAX: usize = 255;
const INIT_ONLY: &str = "may not be set for init containers without restartPolicy=Always";

/// What a container is judged against.
struct Pod<'p> {
    spec: &'p PodSpec,
    volumes: &'p Known<'p>,
    claims: &'p BTreeSet<&'p str>,
}

impl Pod<'_> {
    fn surroundings(&self) -> Surroundings<'_> {
        Surroundings {
            grace: self.spec.termination_grace_period_seconds,
            os: self.spec.os.as_ref().map(|os| os.name.as_str()),
        }
    }
}

/// Every init and regular container with its path.
pub(crate) fn all<'s>(path: &Path, spec: &'s PodSpec) -> Vec<(Path, &'s Container)> {
    let (init, regular) = (path.child("initContainers"), path.child("containers"));
    let init = init_containers(spec)
        .iter()
        .enumerate()
        .map(move |(i, c)| (init.index(i), c));
    let regular = spec
        .containers
        .iter()
        .enumerate()
        .map(move |(i, c)| (regular.index(i), c));
    init.chain(regular).collect()
}

pub(crate) fn check(
    report: &mut Report,
    path: &Path,
    spec: &PodSpec,
    volumes: &Known<'_>,
    claims: &BTreeSet<&str>,
) {
    let pod = Pod {
        spec,
        volumes,
        claims,
    };
    let mut names_seen = BTreeSet::new();
    regular(report, &path.child("containers"), &pod, &mut names_seen);
    init(report, &path.child("initContainers"), &pod, &mut names_seen);
    let path = path.child("ephemeralContainers");
    for (i, container) in ephemeral_containers(spec).iter().enumerate() {
        if !names_seen.insert(container.name.clone()) {
            report.duplicate(&path.index(i).child("name"), &container.name);
        }
    }
    if !ephemeral_containers(spec).is_empty() {
        report.forbidden(&path, "cannot be set on create");
    }
}

fn regular(report: &mut Report, path: &Path, pod: &Pod<'_>, names_seen: &mut BTreeSet<String>) {
    if pod.spec.containers.is_empty() {
        return report.required(path, "");
    }
    let mut host_ports = BTreeSet::new();
    for (i, container) in pod.spec.containers.iter().enumerate() {
        let path = path.index(i);
        common(report, &path, container, pod);
        unique_name(report, &path, container, names_seen);
        handlers(report, &path, container, pod);
        restart_policy(report, &path, container);
        host_ports_unique(report, &path, list(&container.ports), &mut host_ports);
    }
}

fn init(report: &mut Report, path: &Path, pod: &Pod<'_>, names_seen: &mut BTreeSet<String>) {
    for (i, container) in init_containers(pod.spec).iter().enumerate() {
        let path = path.index(i);
        common(report, &path, container, pod);
        restart_policy(report, &path, container);
        unique_name(report, &path, container, names_seen);
        // One after another they run, so their ports only meet their own.
        host_ports_unique(report, &path, list(&container.ports), &mut BTreeSet::new());
        if is_sidecar(container) {
            handlers(report, &path, container, pod);
            continue;
        }
        for (field, present) in [
            ("lifecycle", container.lifecycle.is_some()),
            ("livenessProbe", container.liveness_probe.is_some()),
            ("readinessProbe", container.readiness_probe.is_some()),
            ("startupProbe", container.startup_probe.is_some()),
        ] {
            if present {
                report.forbidden(&path.child(field), INIT_ONLY);
            }
        }
        for (i, policy) in list(&container.resize_policy).iter().enumerate() {
            if policy.restart_policy == "RestartContainer" {
                let path = path.child("resizePolicy").index(i).child("restartPolicy");
                let detail = "must not be set to 'RestartContainer' for non-sidecar initContainers";
                report.invalid(&path, &policy.restart_policy, detail);
            }
        }
    }
}

fn common(report: &mut Report, path: &Path, container: &Container, pod: &Pod<'_>) {
    match container.name.as_str() {
        "" => report.required(&path.child("name"), ""),
        name => report.invalid_each(&path.child("name"), name, names::dns_label(name)),
    }
    match text(&container.image) {
        "" => report.required(&path.child("image"), ""),
        image if image.trim() != image => {
            report.invalid(
                &path.child("image"),
                image,
                "must not have leading or trailing whitespace",
            );
        }
        _ => {}
    }
    report.one_of(
        &path.child("terminationMessagePolicy"),
        text(&container.termination_message_policy),
        &["File", "FallbackToLogsOnError"],
    );
    ports(report, &path.child("ports"), list(&container.ports));
    env::variables(report, &path.child("env"), list(&container.env));
    env::whole_sources(report, &path.child("envFrom"), list(&container.env_from));
    mounts::check(report, path, container, pod.volumes);
    report.one_of(
        &path.child("imagePullPolicy"),
        text(&container.image_pull_policy),
        &PULL_POLICIES,
    );
    if let Some(wanted) = &container.resources {
        resources::requirements(
            report,
            &path.child("resources"),
            wanted,
            Asker::Container,
            pod.claims,
        );
    }
    resize_policy(
        report,
        &path.child("resizePolicy"),
        container,
        text(&pod.spec.restart_policy),
    );
    if let Some(context) = &container.security_context {
        let host_users = pod.spec.host_users.unwrap_or(true);
        security::container(report, &path.child("securityContext"), context, host_users);
    }
    file_keys(report, path, container, pod.volumes);
}

fn unique_name(
    report: &mut Report,
    path: &Path,
    container: &Container,
    seen: &mut BTreeSet<String>,
) {
    if !container.name.is_empty() && !seen.insert(container.name.clone()) {
        report.duplicate(&path.child("name"), &container.name);
    }
}

fn handlers(report: &mut Report, path: &Path, container: &Container, pod: &Pod<'_>) {
    if let Some(hooks) = &container.lifecycle {
        probes::lifecycle(report, &path.child("lifecycle"), hooks, pod.surroundings());
    }
    for (kind, probe) in [
        (Kind::Liveness, &container.liveness_probe),
        (Kind::Readiness, &container.readiness_probe),
        (Kind::Startup, &container.startup_probe),
    ] {
        if let Some(probe) = probe {
            probes::probe(report, &path.child(kind.field()), probe, kind);
        }
    }
}

fn ports(report: &mut Report, path: &Path, ports: &[ContainerPort]) {
    let mut names_seen = BTreeSet::new();
    for (i, port) in ports.iter().enumerate() {
        let path = path.index(i);
        let name = text(&port.name);
        if !name.is_empty() {
            let wrong = names::port_name(name);
            if !wrong.is_empty() {
                report.invalid_each(&path.child("name"), name, wrong);
            } else if !names_seen.insert(name) {
                report.duplicate(&path.child("name"), name);
            }
        }
        match port.container_port {
            0 => report.required(&path.child("containerPort"), ""),
            number => {
                let wrong = names::port_number(i64::from(number));
                report.invalid_each(&path.child("containerPort"), &number, wrong);
            }
        }
        if let Some(number) = port.host_port.filter(|number| *number != 0) {
            let wrong = names::port_number(i64::from(number));
            report.invalid_each(&path.child("hostPort"), &number, wrong);
        }
        report.one_of(
            &path.child("protocol"),
            text(&port.protocol),
            &["SCTP", "TCP", "UDP"],
        );
    }
}

fn host_ports_unique(
    report: &mut Report,
    path: &Path,
    ports: &[ContainerPort],
    taken: &mut BTreeSet<String>,
) {
    for (i, port) in ports.iter().enumerate() {
        let number = port.host_port.unwrap_or_default();
        if number == 0 {
            continue;
        }
        let place = format!("{}/{}/{number}", text(&port.protocol), text(&port.host_ip));
        if taken.contains(&place) {
            report.duplicate(&path.child("ports").index(i).child("hostPort"), &place);
        }
        taken.insert(place);
    }
}

fn restart_policy(report: &mut Report, path: &Path, container: &Container) {
    let rules = list(&container.restart_policy_rules);
    let policy_path = path.child("restartPolicy");
    match container.restart_policy.as_deref() {
        None if rules.is_empty() => return,
        None => report.required(
            &policy_path,
            "must specify restartPolicy when restart rules are used",
        ),
        Some(policy) if !RESTART_POLICIES.contains(&policy) => {
            report.unsupported(&policy_path, policy, &RESTART_POLICIES);
        }
        Some(_) => {}
    }
    let path = path.child("restartPolicyRules");
    if rules.len() > RULES_MAX {
        report.too_many(&path, rules.len(), RULES_MAX);
    }
    for (i, rule) in rules.iter().enumerate() {
        restart_rule(report, &path.index(i), rule);
    }
}

fn restart_rule(report: &mut Report, path: &Path, rule: &ContainerRestartRule) {
    let actions = ["Restart", "RestartAllContainers"];
    if !actions.contains(&rule.action.as_str()) {
        report.unsupported(&path.child("action"), &rule.action, &actions);
    }
    let path = path.child("exitCodes");
    let Some(codes) = &rule.exit_codes else {
        return report.required(&path, "must be specified");
    };
    if !matches!(codes.operator.as_str(), "In" | "NotIn") {
        report.unsupported(&path.child("operator"), &codes.operator, &["In", "NotIn"]);
    }
    let values = list(&codes.values).len();
    if values > EXIT_CODES_MAX {
        report.too_many(&path.child("values"), values, EXIT_CODES_MAX);
    }
}

fn resize_policy(report: &mut Report, path: &Path, container: &Container, pod_policy: &str) {
    let mut seen = BTreeSet::new();
    for (i, policy) in list(&container.resize_policy).iter().enumerate() {
        let path = path.index(i);
        let restart = policy.restart_policy.as_str();
        if !seen.insert(policy.resource_name.as_str()) {
            report.duplicate(&path, &policy.resource_name);
        }
        report.one_of(
            &path.child("resourceName"),
            &policy.resource_name,
            &["cpu", "memory"],
        );
        report.one_of(
            &path.child("restartPolicy"),
            restart,
            &["NotRequired", "RestartContainer"],
        );
        if pod_policy == "Never" && restart != "NotRequired" {
            let detail = "must be 'NotRequired' when pod `restartPolicy` is 'Never'";
            report.invalid(&path.child("restartPolicy"), restart, detail);
        }
    }
}

/// Variables read from a file need that file on an emptyDir of the pod.
fn file_keys(report: &mut Report, path: &Path, container: &Container, known: &Known<'_>) {
    for (i, variable) in list(&container.env).iter().enumerate() {
        let source = variable
            .value_from
            .as_ref()
            .and_then(|source| source.file_key_ref.as_ref());
        let Some(file) = source else { continue };
        let path = path
            .child("env")
            .index(i)
            .child("valueFrom")
            .child("fileKeyRef")
            .child("volumeName");
        match known.get(file.volume_name.as_str()) {
            None => report.not_found(&path, &file.volume_name),
            Some(volume) if volume.empty_dir.is_none() => {
                report.invalid(
                    &path,
                    &file.volume_name,
                    "referenced volume must be of type emptyDir",
                );
            }
            Some(_) => {}
        }
    }
}
