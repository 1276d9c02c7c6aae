//! What the API server fills in before anyone looks at a pod.

use krablet_pod::Quantity;
use krablet_pod::api::{
    Container, DownwardAPIVolumeFile, EnvVar, HTTPGetAction, LifecycleHandler, Pod, PodSpec, Probe,
    ResourceFieldSelector, ResourceRequirements, Volume,
};

use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Written;

use crate::default_pull_policy;
use crate::problem::on;
use crate::resources::{self, Amounts};

const GRACE_SECONDS: i64 = 30;
const SHORTEST_GRACE_SECONDS: i64 = 1;
const FILE_MODE: i32 = 0o644;
const TOKEN_SECONDS: i64 = 3600;
const TERMINATION_MESSAGE: &str = "/dev/termination-log";

/// Fills every default of the API that the node acts on. Doing it twice changes nothing more.
pub fn apply(pod: &mut Pod) {
    let spec = pod.spec.get_or_insert_default();
    fill(&mut spec.dns_policy, "ClusterFirst");
    fill(&mut spec.restart_policy, "Always");
    fill(&mut spec.scheduler_name, "default-scheduler");
    spec.security_context.get_or_insert_default();
    // A negative grace period has always meant the shortest one.
    let grace = spec
        .termination_grace_period_seconds
        .get_or_insert(GRACE_SECONDS);
    if *grace < 0 {
        *grace = SHORTEST_GRACE_SECONDS;
    }
    spec.enable_service_links.get_or_insert(true);
    // The old name of the field still counts where the new one is empty.
    if let Some(account) = spec.service_account.clone() {
        fill(&mut spec.service_account_name, &account);
    }
    spec.volumes.iter_mut().flatten().for_each(volume);
    let host_network = on(spec.host_network);
    let init = spec.init_containers.iter_mut().flatten();
    for container in init.chain(spec.containers.iter_mut()) {
        self::container(container, host_network);
    }
    pod_resources(spec);
    spec.overhead.iter_mut().for_each(round_up);
}

/// Sets a text that is absent or empty.
fn fill(field: &mut Option<String>, default: &str) {
    if field.as_deref().is_none_or(str::is_empty) {
        *field = Some(default.to_owned());
    }
}

/// Sets a number that is absent or zero.
fn fill_number(field: &mut Option<i32>, default: i32) {
    if field.unwrap_or_default() == 0 {
        *field = Some(default);
    }
}

fn container(container: &mut Container, host_network: bool) {
    let image = container.image.clone().unwrap_or_default();
    fill(
        &mut container.image_pull_policy,
        default_pull_policy(&image),
    );
    fill(&mut container.termination_message_path, TERMINATION_MESSAGE);
    fill(&mut container.termination_message_policy, "File");
    for port in container.ports.iter_mut().flatten() {
        fill(&mut port.protocol, "TCP");
        if host_network {
            fill_number(&mut port.host_port, port.container_port);
        }
    }
    container.env.iter_mut().flatten().for_each(variable);
    if let Some(wanted) = &mut container.resources {
        requests_from_limits(wanted);
    }
    for probe in [
        &mut container.liveness_probe,
        &mut container.readiness_probe,
        &mut container.startup_probe,
    ] {
        probe.iter_mut().for_each(self::probe);
    }
    if let Some(hooks) = &mut container.lifecycle {
        hooks.post_start.iter_mut().for_each(hook);
        hooks.pre_stop.iter_mut().for_each(hook);
    }
}

fn variable(variable: &mut EnvVar) {
    let Some(source) = &mut variable.value_from else {
        return;
    };
    if let Some(field) = &mut source.field_ref {
        fill(&mut field.api_version, "v1");
    }
    source
        .resource_field_ref
        .iter_mut()
        .for_each(resource_field);
    if let Some(file) = &mut source.file_key_ref {
        file.optional.get_or_insert(false);
    }
}

fn probe(probe: &mut Probe) {
    fill_number(&mut probe.timeout_seconds, 1);
    fill_number(&mut probe.period_seconds, 10);
    fill_number(&mut probe.success_threshold, 1);
    fill_number(&mut probe.failure_threshold, 3);
    probe.http_get.iter_mut().for_each(http_get);
    if let Some(grpc) = &mut probe.grpc {
        grpc.service.get_or_insert_default();
    }
}

fn hook(hook: &mut LifecycleHandler) {
    hook.http_get.iter_mut().for_each(http_get);
}

fn http_get(action: &mut HTTPGetAction) {
    fill(&mut action.path, "/");
    fill(&mut action.scheme, "HTTP");
}

fn volume(volume: &mut Volume) {
    if crate::volumes::sources(volume).is_empty() {
        volume.empty_dir.get_or_insert_default();
    }
    if let Some(limit) = volume
        .empty_dir
        .as_mut()
        .and_then(|source| source.size_limit.as_mut())
    {
        canonical(limit);
    }
    if let Some(source) = &mut volume.host_path {
        source.type_.get_or_insert_default();
    }
    if let Some(source) = &mut volume.image {
        let reference = source.reference.clone().unwrap_or_default();
        fill(&mut source.pull_policy, default_pull_policy(&reference));
    }
    if let Some(source) = &mut volume.secret {
        source.default_mode.get_or_insert(FILE_MODE);
    }
    if let Some(source) = &mut volume.config_map {
        source.default_mode.get_or_insert(FILE_MODE);
    }
    if let Some(source) = &mut volume.downward_api {
        source.default_mode.get_or_insert(FILE_MODE);
        source.items.iter_mut().flatten().for_each(downward_file);
    }
    if let Some(projected) = &mut volume.projected {
        projected.default_mode.get_or_insert(FILE_MODE);
        for source in projected.sources.iter_mut().flatten() {
            if let Some(downward) = &mut source.downward_api {
                downward.items.iter_mut().flatten().for_each(downward_file);
            }
            if let Some(token) = &mut source.service_account_token {
                token.expiration_seconds.get_or_insert(TOKEN_SECONDS);
            }
        }
    }
}

fn downward_file(file: &mut DownwardAPIVolumeFile) {
    if let Some(field) = &mut file.field_ref {
        fill(&mut field.api_version, "v1");
    }
    file.resource_field_ref.iter_mut().for_each(resource_field);
}

/// What is limited but not asked for is asked for in full.
fn requests_from_limits(wanted: &mut ResourceRequirements) {
    if let Some(limits) = wanted.limits.as_mut().filter(|limits| !limits.is_empty()) {
        let requests = wanted.requests.get_or_insert_default();
        for (name, limit) in limits.iter() {
            if !requests.contains_key(name) {
                requests.insert(name.clone(), limit.clone());
            }
        }
        round_up(limits);
    }
    wanted.requests.iter_mut().for_each(round_up);
}

/// Amounts below a thousandth are rounded up to one, and all take their canonical form.
fn round_up(amounts: &mut Amounts) {
    const MILLI: i128 = 1_000_000;
    for written in amounts.values_mut() {
        if let Ok(amount) = written.0.parse::<Quantity>() {
            let exact = amount.nano_value() % MILLI == 0;
            let rounded = if exact {
                amount
            } else {
                Quantity::from_millis(amount.milli_value())
            };
            written.0 = rounded.to_string();
        }
    }
}

/// One way of writing each quantity (`1500m`, not `1.5`), so that equal pods are equal.
fn canonical(written: &mut Written) {
    if let Ok(amount) = written.0.parse::<Quantity>() {
        written.0 = amount.to_string();
    }
}

fn resource_field(field: &mut ResourceFieldSelector) {
    canonical(field.divisor.get_or_insert_with(|| Written("0".to_owned())));
}

/// Requests of the pod as a whole, where only its limits are written: those of the containers together, else the
/// limits. Huge pages of containers become a limit of the pod first.
fn pod_resources(spec: &mut PodSpec) {
    if spec.resources.is_none() {
        return;
    }
    let asked = resources::aggregate(spec, |resources| resources.requests.as_ref());
    let limited = resources::aggregate(spec, |resources| resources.limits.as_ref());
    let Some(wanted) = &mut spec.resources else {
        return;
    };
    let is_empty = |amounts: &Option<Amounts>| amounts.as_ref().is_none_or(Amounts::is_empty);
    if is_empty(&wanted.limits) && is_empty(&wanted.requests) {
        return;
    }
    for (name, sum) in limited {
        let asked_for = wanted
            .requests
            .as_ref()
            .is_some_and(|requests| requests.contains_key(&name));
        if resources::is_huge_page(&name) && !asked_for {
            let limits = wanted.limits.get_or_insert_default();
            limits
                .entry(name)
                .or_insert_with(|| Written(sum.to_string()));
        }
    }
    if is_empty(&wanted.limits) {
        return;
    }
    let requests = wanted.requests.get_or_insert_default();
    for (name, sum) in asked {
        if resources::fits_pod_level(&name) && resources::may_overcommit(&name) {
            requests
                .entry(name)
                .or_insert_with(|| Written(sum.to_string()));
        }
    }
    for (name, limit) in wanted.limits.iter().flatten() {
        if resources::fits_pod_level(name) && !requests.contains_key(name) {
            requests.insert(name.clone(), limit.clone());
        }
    }
    wanted.limits.iter_mut().for_each(round_up);
    wanted.requests.iter_mut().for_each(round_up);
}
