//! Pods of all sorts, drawn by dice.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use krablet_pod::api::{
    ConfigMapVolumeSource, Container, ContainerResizePolicy, ContainerRestartRule,
    ContainerRestartRuleOnExitCodes, EmptyDirVolumeSource, EphemeralContainer, ExecAction,
    HTTPGetAction, Lifecycle, LifecycleHandler, Pod, PodSpec, Probe, ResourceRequirements,
    SecretVolumeSource, SleepAction, TCPSocketAction, Volume, VolumeMount,
};
use rand::RngExt;
use rand::rngs::StdRng;

use crate::node::NODE_NAME;

/// Runs until something ends it.
pub(crate) const SERVE: &str = "serve";
/// Ends by itself.
pub(crate) const JOB: &str = "job";

/// How names of ephemeral containers begin.
pub(crate) const EPHEMERAL: &str = "debug";
const MOST_EPHEMERAL: usize = 3;

pub(crate) const NAMESPACE: &str = "sim";

/// A pod as a source would deliver it. Its UID tells name and variant.
pub(crate) fn draw(dice: &mut StdRng, name: &str, variant: u32) -> Pod {
    let mut pod = Pod::default();
    pod.metadata.name = Some(name.to_owned());
    pod.metadata.namespace = Some(NAMESPACE.to_owned());
    pod.metadata.uid = Some(format!("{name}-v{variant}"));
    pod.metadata.labels = Some(BTreeMap::from([("v".to_owned(), variant.to_string())]));
    let policy = *pick(dice, &["Always", "Always", "OnFailure", "Never"]);
    // Whether containers have a say of their own.
    let own = dice.random_bool(0.35);
    let volumes = volumes(dice);
    let mut init = init_containers(dice, own, &volumes);
    let mut regular: Vec<Container> = (0..dice.random_range(1..=2))
        .map(|i| {
            let mut container = container(dice, ["web", "log"][i], SERVE, &volumes);
            if own {
                add_own_restarts(dice, &mut container, &["Always", "OnFailure", "Never"]);
            }
            // What always runs again must be able to stay.
            let again = container.restart_policy.as_deref().unwrap_or(policy) == "Always";
            if !again && dice.random_bool(0.5) {
                container.image = container.image.map(|image| image.replace(SERVE, JOB));
            }
            add_probes(dice, &mut container);
            add_hooks(dice, &mut container);
            container
        })
        .collect();
    if dice.random_bool(0.75) {
        for container in init.iter_mut().chain(&mut regular) {
            container.resources = Some(resources(dice));
            container.resize_policy = resize_policy(dice);
        }
    }
    pod.spec = Some(PodSpec {
        containers: regular,
        init_containers: Some(init).filter(|i| !i.is_empty()),
        restart_policy: Some(policy.to_owned()),
        termination_grace_period_seconds: Some(*pick(dice, &[0, 1, 2, 5, 30])),
        volumes: Some(volumes).filter(|v| !v.is_empty()),
        node_name: Some(NODE_NAME.to_owned()),
        dns_policy: Some("Default".to_owned()),
        active_deadline_seconds: active_deadline(dice),
        ..PodSpec::default()
    });
    pod
}

fn init_containers(dice: &mut StdRng, own: bool, volumes: &[Volume]) -> Vec<Container> {
    let mut init: Vec<Container> = (0..*pick(dice, &[0, 0, 1, 1, 2]))
        .map(|i| {
            let mut container = container(dice, &format!("init{i}"), JOB, volumes);
            if own {
                add_own_restarts(dice, &mut container, &["OnFailure", "Never"]);
            }
            container
        })
        .collect();
    if dice.random_bool(0.3) {
        let mut sidecar = container(dice, "side", SERVE, volumes);
        sidecar.restart_policy = Some("Always".to_owned());
        if own && dice.random_bool(0.4) {
            sidecar.restart_policy_rules = Some(vec![restart_rule(dice)]);
        }
        add_probes(dice, &mut sidecar);
        let at = dice.random_range(0..=init.len());
        init.insert(at, sidecar);
    }
    init
}

/// Maybe a policy of the container's own, and maybe rules with it.
fn add_own_restarts(dice: &mut StdRng, container: &mut Container, policies: &[&str]) {
    if !dice.random_bool(0.6) {
        return;
    }
    container.restart_policy = Some(pick(dice, policies).to_string());
    let rules: Vec<_> = (0..*pick(dice, &[0, 1, 1, 2]))
        .map(|_| restart_rule(dice))
        .collect();
    container.restart_policy_rules = Some(rules).filter(|rules| !rules.is_empty());
}

/// None speaks of a container that ended well: it would be started again for ever.
fn restart_rule(dice: &mut StdRng) -> ContainerRestartRule {
    let codes: [(&str, &[i32]); 6] = [
        ("In", &[1, 2]),
        ("In", &[42]),
        ("In", &[42, 255]),
        ("In", &[137, 143]),
        ("NotIn", &[0]),
        ("NotIn", &[0, 1, 42]),
    ];
    let (operator, values) = *pick(dice, &codes);
    let actions = ["Restart", "RestartAllContainers", "RestartAllContainers"];
    ContainerRestartRule {
        action: pick(dice, &actions).to_string(),
        exit_codes: Some(ContainerRestartRuleOnExitCodes {
            operator: operator.to_owned(),
            values: Some(values.to_vec()),
        }),
    }
}

/// Who wants to be heard before the object of a pod goes; of most nobody.
pub(crate) fn finalizers(dice: &mut StdRng) -> Option<Vec<String>> {
    let all = *pick(dice, &[0, 0, 0, 0, 1, 2]);
    let all: Vec<String> = (1..=all).map(|n| format!("sim.example/{n}")).collect();
    Some(all).filter(|all| !all.is_empty())
}

/// Most pods have none. The longest is reached only if the clock is set forward.
fn active_deadline(dice: &mut StdRng) -> Option<i64> {
    let deadline = *pick(dice, &[3, 15, 40, 90, 200, 3000]);
    dice.random_bool(0.15).then_some(deadline)
}

fn pick<'a, T>(dice: &mut StdRng, from: &'a [T]) -> &'a T {
    &from[dice.random_range(0..from.len())]
}

fn volumes(dice: &mut StdRng) -> Vec<Volume> {
    let volume = |name: &str, medium: Option<&str>| Volume {
        name: name.to_owned(),
        empty_dir: Some(EmptyDirVolumeSource {
            medium: medium.map(str::to_owned),
            ..EmptyDirVolumeSource::default()
        }),
        ..Volume::default()
    };
    match dice.random_range(0..4) {
        0 => vec![volume("disk", None), of_config_map()],
        1 => vec![volume("memory", Some("Memory"))],
        2 => vec![
            volume("disk", None),
            volume("memory", Some("Memory")),
            of_secret(),
        ],
        _ => vec![],
    }
}

/// A configMap and a secret that are always there.
pub(crate) const SETTINGS: &str = "settings";
pub(crate) const KEYS: &str = "keys";

fn of_config_map() -> Volume {
    Volume {
        name: SETTINGS.to_owned(),
        config_map: Some(ConfigMapVolumeSource {
            name: SETTINGS.to_owned(),
            ..ConfigMapVolumeSource::default()
        }),
        ..Volume::default()
    }
}

fn of_secret() -> Volume {
    Volume {
        name: KEYS.to_owned(),
        secret: Some(SecretVolumeSource {
            secret_name: Some(KEYS.to_owned()),
            ..SecretVolumeSource::default()
        }),
        ..Volume::default()
    }
}

fn container(dice: &mut StdRng, name: &str, image: &str, volumes: &[Volume]) -> Container {
    let mounts: Vec<VolumeMount> = volumes
        .iter()
        .map(|v| VolumeMount {
            name: v.name.clone(),
            mount_path: format!("/{}", v.name),
            ..VolumeMount::default()
        })
        .collect();
    Container {
        name: name.to_owned(),
        image: Some(format!("{image}:{}", dice.random_range(1..=2))),
        image_pull_policy: Some(pick(dice, &["IfNotPresent", "Always"]).to_string()),
        termination_message_path: Some("/dev/termination-log".to_owned()),
        termination_message_policy: Some(
            pick(dice, &["File", "FallbackToLogsOnError"]).to_string(),
        ),
        volume_mounts: Some(mounts).filter(|m| !m.is_empty()),
        ..Container::default()
    }
}

fn exec(word: &str) -> ExecAction {
    ExecAction {
        command: Some(vec![word.to_owned()]),
    }
}

fn probe(dice: &mut StdRng) -> Probe {
    let mut probe = Probe {
        initial_delay_seconds: Some(dice.random_range(0..3)),
        period_seconds: Some(dice.random_range(3..10)),
        timeout_seconds: Some(1),
        failure_threshold: Some(dice.random_range(1..4)),
        success_threshold: Some(1),
        ..Probe::default()
    };
    match dice.random_range(0..3) {
        0 => probe.exec = Some(exec("probe")),
        1 => {
            probe.http_get = Some(HTTPGetAction {
                port: IntOrString::Int(80),
                path: Some("/ok".to_owned()),
                ..HTTPGetAction::default()
            });
        }
        _ => {
            probe.tcp_socket = Some(TCPSocketAction {
                port: IntOrString::Int(80),
                ..TCPSocketAction::default()
            });
        }
    }
    probe
}

fn add_probes(dice: &mut StdRng, container: &mut Container) {
    if dice.random_bool(0.2) {
        container.startup_probe = Some(probe(dice));
    }
    if dice.random_bool(0.25) {
        container.liveness_probe = Some(probe(dice));
    }
    if dice.random_bool(0.25) {
        container.readiness_probe = Some(probe(dice));
    }
}

fn add_hooks(dice: &mut StdRng, container: &mut Container) {
    if !dice.random_bool(0.15) {
        return;
    }
    let mut hook = || match dice.random_bool(0.5) {
        true => LifecycleHandler {
            exec: Some(exec("hook")),
            ..LifecycleHandler::default()
        },
        false => LifecycleHandler {
            sleep: Some(SleepAction { seconds: 1 }),
            ..LifecycleHandler::default()
        },
    };
    container.lifecycle = Some(Lifecycle {
        post_start: Some(hook()),
        pre_stop: Some(hook()),
        ..Lifecycle::default()
    });
}

/// Always less asked for than may be used: the class of a pod never changes.
fn resources(dice: &mut StdRng) -> ResourceRequirements {
    let mut list = |milli: i64, mebibytes: i64| {
        let cpu = milli + dice.random_range(0..8) * 10;
        let memory = mebibytes + dice.random_range(0..8);
        let amounts = [
            ("cpu", format!("{cpu}m")),
            ("memory", format!("{memory}Mi")),
        ];
        let amounts = amounts.map(|(name, amount)| (name.to_owned(), Quantity(amount)));
        Some(BTreeMap::from(amounts))
    };
    ResourceRequirements {
        requests: list(100, 16),
        limits: list(500, 64),
        ..ResourceRequirements::default()
    }
}

fn resize_policy(dice: &mut StdRng) -> Option<Vec<ContainerResizePolicy>> {
    let policy = ContainerResizePolicy {
        resource_name: pick(dice, &["cpu", "memory"]).to_string(),
        restart_policy: "RestartContainer".to_owned(),
    };
    dice.random_bool(0.3).then(|| vec![policy])
}

/// The same pod, if it asks for anything, with other resources for some of its containers.
pub(crate) fn resized(dice: &mut StdRng, pod: &Pod) -> Pod {
    let mut pod = pod.clone();
    let sized = |spec: &&mut PodSpec| spec.containers.iter().all(|c| c.resources.is_some());
    if let Some(spec) = pod.spec.as_mut().filter(sized) {
        let sidecars = spec.init_containers.iter_mut().flatten();
        let sidecars = sidecars.filter(|c| c.restart_policy.is_some());
        for container in sidecars.chain(&mut spec.containers) {
            if dice.random_bool(0.6) {
                container.resources = Some(resources(dice));
            }
        }
    }
    pod
}

/// The same pod with another image in one of its containers: the container is to be restarted.
pub(crate) fn with_new_image(dice: &mut StdRng, pod: &Pod) -> Pod {
    let mut pod = pod.clone();
    if let Some(spec) = &mut pod.spec {
        let at = dice.random_range(0..spec.containers.len());
        let container = &mut spec.containers[at];
        let image = container.image.clone().unwrap_or_default();
        let kind = image.split(':').next().unwrap_or_default().to_owned();
        container.image = Some(format!("{kind}:{}", dice.random_range(1..=4)));
    }
    pod
}

/// The same pod with one more ephemeral container, if it has not had its share of them.
pub(crate) fn debugged(dice: &mut StdRng, pod: &Pod) -> Pod {
    let mut pod = pod.clone();
    if let Some(spec) = &mut pod.spec {
        let target = spec.containers.first().map(|c| c.name.clone());
        let all = spec.ephemeral_containers.get_or_insert_default();
        if all.len() < MOST_EPHEMERAL {
            let kind = *pick(dice, &[SERVE, JOB]);
            all.push(EphemeralContainer {
                name: format!("{EPHEMERAL}{}", all.len()),
                image: Some(format!("{kind}:{}", dice.random_range(1..=2))),
                image_pull_policy: Some("IfNotPresent".to_owned()),
                target_container_name: target.filter(|_| dice.random_bool(0.3)),
                ..EphemeralContainer::default()
            });
        }
    }
    pod
}
