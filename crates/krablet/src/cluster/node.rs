//! What the user said of the node, in the words of the node.

use std::collections::BTreeMap;
use std::net::IpAddr;

use anyhow::{Context, Result};
use krablet_config::{Gate, Loaded};
use krablet_linux::MachineFacts;
use krablet_node::{
    Health, NodeConfig, Periods, PodLimit, Pressures, Registration, Reservations, StatusInputs,
    initial_node,
};
use krablet_pod::api::{Node, Taint};

use super::Ground;

pub fn config(ground: &Ground<'_>) -> Result<NodeConfig> {
    let (flags, config) = (&ground.loaded.flags, &ground.loaded.config);
    let node = &config.node;
    let default = Periods::default();
    let reservations = Reservations::parse(
        &config.allocatable.kube_reserved,
        &config.allocatable.system_reserved,
        &eviction_hard(ground),
    )?;
    Ok(NodeConfig {
        hostname: hostname(&flags.hostname_override, ground.name),
        registration: Registration {
            register: node.register_node,
            labels: flags.node_labels.clone(),
            taints: node.register_with_taints.iter().map(taint).collect(),
            provider_id: node.provider_id.clone(),
            external_cloud_provider: flags.cloud_provider == "external",
            controller_attaches: config.storage.enable_controller_attach_detach,
            ..Registration::default()
        },
        node_ips: node_ips(&flags.node_ip)?,
        host_ips: ground.host_ips.to_vec(),
        pod_limit: PodLimit {
            max_pods: u32::try_from(config.runtime.max_pods).unwrap_or_default(),
            pods_per_core: u32::try_from(config.runtime.pods_per_core).unwrap_or_default(),
        },
        reservations,
        port: config.server.port,
        max_images: usize::try_from(node.node_status_max_images).ok(),
        periods: Periods {
            update: node
                .node_status_update_frequency
                .to_std()
                .unwrap_or(default.update),
            report: node
                .node_status_report_frequency
                .to_std()
                .unwrap_or(default.report),
            ..default
        },
        declared_features: declared_features(ground.loaded),
        seed: ground.seed,
        ..NodeConfig::new(ground.name)
    })
}

/// What the API server has to know of the node before it lets pods ask for it.
fn declared_features(loaded: &Loaded) -> Option<Vec<String>> {
    let all = [
        Gate::InPlacePodLevelResourcesVerticalScaling,
        Gate::InPlacePodVerticalScalingInitContainers,
        Gate::RestartAllContainersOnContainerExits,
    ];
    let on = all.into_iter().filter(|gate| loaded.gates.enabled(*gate));
    let declared = loaded.gates.enabled(Gate::NodeDeclaredFeatures);
    declared.then(|| on.map(|gate| gate.name().to_owned()).collect())
}

/// The node as it would register now.
pub async fn initial(ground: &Ground<'_>, machine: &dyn MachineFacts) -> Result<Node> {
    let config = config(ground)?;
    let machine = machine.machine().await;
    let inputs = StatusInputs {
        config: &config,
        machine: &machine,
        ips: Some(ground.host_ips),
        runtime: None,
        images: None,
        health: &Health::default(),
        pressures: Pressures::default(),
        volumes_in_use: None,
        now: ground.clock.now(),
    };
    Ok(initial_node(&inputs).0)
}

fn hostname(given: &str, name: &str) -> String {
    match given.trim() {
        "" => name.to_owned(),
        given => given.to_lowercase(),
    }
}

fn node_ips(text: &str) -> Result<Vec<IpAddr>> {
    let ips = text.split(',').map(str::trim).filter(|ip| !ip.is_empty());
    let parse = |ip: &str| {
        ip.parse()
            .with_context(|| format!("--node-ip: {ip:?} is no address"))
    };
    ips.map(parse).collect()
}

fn taint(taint: &krablet_config::types::node::Taint) -> Taint {
    Taint {
        key: taint.key.clone(),
        value: Some(taint.value.clone()).filter(|v| !v.is_empty()),
        effect: taint.effect.clone(),
        time_added: None,
    }
}

fn eviction_hard(ground: &Ground<'_>) -> BTreeMap<String, String> {
    ground.loaded.config.eviction.hard.clone()
}
