//! What the user said of the node, in the words of the node.

use std::net::IpAddr;
use std::path::Path;

use anyhow::{Context, Result};
use krablet_config::{Gate, Loaded};
use krablet_linux::MachineFacts;
use krablet_node::{
    Health, NodeConfig, Periods, PodLimit, Pressures, Registration, StatusInputs, initial_node,
};
use krablet_pod::api::{Node, Taint};

use super::Ground;
use crate::machine::interface_ips;
use crate::reservations::Withheld;

pub fn config(ground: &Ground<'_>) -> Result<NodeConfig> {
    let kept = Withheld::of(ground.loaded)?;
    let new = is_new(ground.root.path());
    let config = of(ground.loaded, ground.name, &kept, new)?;
    Ok(NodeConfig {
        interface_ips,
        seed: ground.seed,
        ..config
    })
}

/// What follows from flags and configuration alone.
fn of(loaded: &Loaded, name: &str, kept: &Withheld, new: bool) -> Result<NodeConfig> {
    let (flags, config) = (&loaded.flags, &loaded.config);
    let node = &config.node;
    let default = Periods::default();
    Ok(NodeConfig {
        hostname: hostname(&flags.hostname_override, name),
        registration: Registration {
            register: node.register_node,
            labels: flags.node_labels.clone(),
            taints: node.register_with_taints.iter().map(taint).collect(),
            provider_id: node.provider_id.clone(),
            external_cloud_provider: flags.cloud_provider == "external",
            controller_attaches: config.storage.enable_controller_attach_detach,
            reset_extended_resources: new,
        },
        node_ips: node_ips(&flags.node_ip)?,
        pod_limit: PodLimit {
            max_pods: u32::try_from(config.runtime.max_pods).unwrap_or_default(),
            pods_per_core: u32::try_from(config.runtime.pods_per_core).unwrap_or_default(),
        },
        reservations: kept.parse()?,
        ephemeral_storage: config.storage.local_storage_capacity_isolation,
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
        declared_features: declared_features(loaded),
        ..NodeConfig::new(name)
    })
}

/// Whether no agent has lived on this machine before, so that a Node of this name is of another one and its devices are
/// not here. A kubelet leaves something of its devices behind, this agent its own directory.
fn is_new(root: &Path) -> bool {
    let has_entries = |name: &str| {
        let entries = std::fs::read_dir(root.join(name));
        let names = entries.into_iter().flatten().flatten();
        // What begins with a dot was being written when the kubelet ended.
        names.into_iter().any(|e| {
            let name = e.file_name();
            !name.as_encoded_bytes().starts_with(b".")
        })
    };
    !has_entries("device-plugins") && !has_entries("krablet")
}

/// What the API server has to know of the node before it lets pods ask for it.
pub fn declared_features(loaded: &Loaded) -> Option<Vec<String>> {
    let all = [
        Gate::InPlacePodLevelResourcesVerticalScaling,
        Gate::InPlacePodVerticalScalingInitContainers,
        Gate::RestartAllContainersOnContainerExits,
    ];
    let on = all.into_iter().filter(|gate| loaded.gates.enabled(*gate));
    let declared = loaded.gates.enabled(Gate::NodeDeclaredFeatures);
    declared.then(|| on.map(|gate| gate.name().to_owned()).collect())
}

/// The node as it would register now, as far as the door looks at it.
pub async fn initial(ground: &Ground<'_>, machine: &dyn MachineFacts) -> Result<Node> {
    let config = config(ground)?;
    let machine = machine.machine().await;
    let inputs = StatusInputs {
        config: &config,
        machine: &machine,
        ips: None,
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::cluster::tests::loaded;

    fn built(args: &[&str]) -> NodeConfig {
        let loaded = loaded(args);
        of(&loaded, "n1", &Withheld::of(&loaded).unwrap(), false).unwrap()
    }

    #[test]
    fn everything_that_can_be_said_of_a_node() {
        let config = built(&[
            "--hostname-override=Host.Example",
            "--register-node=false",
            "--node-labels=a=1",
            "--register-with-taints=k=v:NoExecute",
            "--provider-id=cloud://1",
            "--cloud-provider=external",
            "--node-ip=fd00::1,10.0.0.1",
            "--max-pods=30",
            "--pods-per-core=5",
            "--port=10260",
            "--node-status-max-images=-1",
            "--node-status-update-frequency=7s",
            "--enable-controller-attach-detach=false",
            "--local-storage-capacity-isolation=false",
        ]);
        assert_eq!(config.name, "n1");
        assert_eq!(config.hostname, "host.example");
        let registration = &config.registration;
        assert!(!registration.register && registration.external_cloud_provider);
        assert!(!registration.controller_attaches && !registration.reset_extended_resources);
        assert_eq!(registration.labels["a"], "1");
        let taints = registration.taints.iter();
        let taints: Vec<_> = taints
            .map(|t| (t.key.as_str(), t.value.as_deref(), t.effect.as_str()))
            .collect();
        assert_eq!(taints, [("k", Some("v"), "NoExecute")]);
        assert_eq!(registration.provider_id, "cloud://1");
        let ips: Vec<String> = config.node_ips.iter().map(IpAddr::to_string).collect();
        assert_eq!(ips, ["fd00::1", "10.0.0.1"]);
        assert_eq!(
            (config.pod_limit.max_pods, config.pod_limit.pods_per_core),
            (30, 5)
        );
        assert_eq!((config.port, config.max_images), (10260, None));
        assert_eq!(config.periods.update, Duration::from_secs(7));
        assert!(!config.ephemeral_storage);
    }

    #[test]
    fn what_a_node_is_when_nothing_is_said() {
        let (config, plain) = (built(&[]), NodeConfig::new("n1"));
        assert_eq!(config.hostname, plain.hostname);
        assert!(config.registration.register && config.registration.controller_attaches);
        assert!(!config.registration.external_cloud_provider);
        assert!(config.ephemeral_storage && config.node_ips.is_empty());
        assert_eq!(config.pod_limit.max_pods, plain.pod_limit.max_pods);
        assert_eq!((config.port, config.max_images), (10250, Some(50)));
        assert_eq!(config.periods.update, plain.periods.update);
        assert_eq!(config.periods.report, plain.periods.report);
        let declared = config.declared_features.unwrap_or_default();
        assert!(declared.contains(&"RestartAllContainersOnContainerExits".to_owned()));
    }

    #[test]
    fn features_are_declared_by_their_gates() {
        let none = "--feature-gates=NodeDeclaredFeatures=false,ExtendWebSocketsToKubelet=false,\
                    InPlacePodLevelResourcesVerticalScaling=false,\
                    InPlacePodVerticalScalingInitContainers=false,\
                    RestartAllContainersOnContainerExits=false";
        assert_eq!(declared_features(&loaded(&[none])), None);
        let one = "--feature-gates=InPlacePodLevelResourcesVerticalScaling=false,\
                   InPlacePodVerticalScalingInitContainers=false";
        assert_eq!(
            declared_features(&loaded(&[one])).unwrap_or_default(),
            ["RestartAllContainersOnContainerExits"]
        );
    }

    #[test]
    fn devices_are_unknown_on_a_machine_no_agent_has_lived_on() {
        for (path, new) in [
            ("", true),
            ("pods/u", true),
            ("device-plugins/.tmp", true),
            ("device-plugins/kubelet_internal_checkpoint", false),
            ("krablet/admitted_pods.json", false),
        ] {
            let root = tempfile::tempdir().unwrap();
            std::fs::create_dir_all(root.path().join(path)).unwrap();
            assert_eq!(is_new(root.path()), new, "{path:?}");
        }
    }

    #[test]
    fn addresses_that_are_none() {
        let refused = node_ips("10.0.0").unwrap_err().to_string();
        assert_eq!(refused, "--node-ip: \"10.0.0\" is no address");
    }
}
