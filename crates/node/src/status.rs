//! The Node object as it should be, from what it is and what is known.

use std::net::IpAddr;

use async_trait::async_trait;
use jiff::Timestamp;
use krablet_linux::Machine;
use krablet_pod::api::{
    ContainerImage, DaemonEndpoint, Node, NodeDaemonEndpoints, NodeFeatures, NodeRuntimeHandler,
    NodeRuntimeHandlerFeatures, NodeStatus, NodeSwapStatus, NodeSystemInfo,
};

use crate::addresses::{addresses, provided_ip};
use crate::conditions::{ConditionInputs, NodeEvent, Pressures, conditions};
use crate::config::NodeConfig;
use crate::health::Health;
use crate::labels::{self, PROVIDED_IP};
use crate::resources::{self, ApiResources};
use crate::runtime::RuntimeFacts;

/// What the node calls itself: the kubelet whose behaviour it keeps, and its own version.
pub const KUBELET_VERSION: &str = concat!("v1.36.4+krablet.", env!("CARGO_PKG_VERSION"));

/// Names told of one image.
const NAMES_PER_IMAGE: usize = 5;

/// An image the runtime holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Image {
    pub digests: Vec<String>,
    pub tags: Vec<String>,
    pub size: u64,
}

#[async_trait]
pub trait Images: Send + Sync {
    async fn images(&self) -> Result<Vec<Image>, String>;
}

/// Everything a status follows from. What is none is not known, and stays as it was published.
pub struct StatusInputs<'a> {
    pub config: &'a NodeConfig,
    pub machine: &'a Machine,
    pub ips: Option<&'a [IpAddr]>,
    pub runtime: Option<&'a RuntimeFacts>,
    pub images: Option<&'a [ContainerImage]>,
    pub health: &'a Health,
    pub pressures: Pressures,
    pub volumes_in_use: Option<&'a [String]>,
    pub now: Timestamp,
}

/// The node with what is the agent's to say brought up to date, and what is to be told of it once
/// it is published.
pub fn updated_node(old: &Node, inputs: &StatusInputs<'_>) -> (Node, Vec<NodeEvent>) {
    let mut node = old.clone();
    let labels = node.metadata.labels.get_or_insert_default();
    for (name, value) in labels::platform(inputs.machine) {
        labels.insert(name.to_owned(), value);
    }
    let annotations = node.metadata.annotations.get_or_insert_default();
    match provided_ip(inputs.config) {
        Some(ips) => annotations.insert(PROVIDED_IP.to_owned(), ips),
        None => annotations.remove(PROVIDED_IP),
    };
    let (status, events) = status(&node.status.unwrap_or_default(), inputs);
    node.status = Some(status);
    (node, events)
}

fn status(old: &NodeStatus, inputs: &StatusInputs<'_>) -> (NodeStatus, Vec<NodeEvent>) {
    let config = inputs.config;
    let own = resources::capacity(inputs.machine, config);
    let (capacity, allocatable) = resources::merged(
        old.capacity.as_ref(),
        old.allocatable.as_ref(),
        &own,
        &config.reservations,
    );
    let (conditions, mut events) = conditions(
        old.conditions.as_deref().unwrap_or_default(),
        &ConditionInputs {
            node: &config.name,
            health: inputs.health,
            pressures: inputs.pressures,
            missing: missing(&capacity, config),
            now: inputs.now,
        },
    );
    events.extend(rebooted(old.node_info.as_ref(), inputs));
    let old_addresses = old.addresses.as_deref().unwrap_or_default();
    let mut status = NodeStatus {
        capacity: Some(capacity),
        allocatable: Some(allocatable),
        conditions: Some(conditions),
        node_info: Some(system_info(old.node_info.as_ref(), inputs)),
        daemon_endpoints: Some(NodeDaemonEndpoints {
            kubelet_endpoint: Some(DaemonEndpoint { port: config.port }),
        }),
        ..old.clone()
    };
    if let Some(addresses) = addresses(config, old_addresses, inputs.ips) {
        status.addresses = Some(addresses);
    }
    if let Some(images) = inputs.images {
        status.images = Some(images.to_vec());
    }
    if let Some(volumes) = inputs.volumes_in_use {
        let mut volumes = volumes.to_vec();
        volumes.sort();
        status.volumes_in_use = Some(volumes);
    }
    if let Some(features) = &config.declared_features {
        status.declared_features = Some(features.clone());
    }
    if let Some(runtime) = inputs.runtime {
        status.runtime_handlers = Some(runtime_handlers(runtime));
        if let Some(known) = runtime.supplemental_groups_policy {
            status.features = Some(NodeFeatures {
                supplemental_groups_policy: Some(known),
            });
        }
    }
    (status, events)
}

fn missing(capacity: &ApiResources, config: &NodeConfig) -> Vec<&'static str> {
    let disk = config
        .ephemeral_storage
        .then_some(resources::EPHEMERAL_STORAGE);
    [resources::CPU, resources::MEMORY, resources::PODS]
        .into_iter()
        .chain(disk)
        .filter(|name| !capacity.contains_key(*name))
        .collect()
}

fn rebooted(old: Option<&NodeSystemInfo>, inputs: &StatusInputs<'_>) -> Option<NodeEvent> {
    let before = old.map(|info| info.boot_id.as_str()).unwrap_or_default();
    let now = &inputs.machine.identity.boot_id;
    let rebooted = !before.is_empty() && before != now;
    rebooted.then(|| NodeEvent::rebooted(&inputs.config.name, now))
}

fn system_info(old: Option<&NodeSystemInfo>, inputs: &StatusInputs<'_>) -> NodeSystemInfo {
    let identity = &inputs.machine.identity;
    let published = old.map(|info| info.container_runtime_version.clone());
    let runtime = match inputs.runtime {
        Some(runtime) => format!("{}://{}", runtime.name, runtime.version),
        None => published.unwrap_or_default(),
    };
    NodeSystemInfo {
        architecture: identity.architecture.clone(),
        boot_id: identity.boot_id.clone(),
        container_runtime_version: runtime,
        kernel_version: identity.kernel_version.clone(),
        // Nobody knows it here; the field is kept empty.
        kube_proxy_version: String::new(),
        kubelet_version: KUBELET_VERSION.to_owned(),
        machine_id: identity.machine_id.clone(),
        operating_system: labels::OS.to_owned(),
        os_image: identity.os_image.clone(),
        swap: swap(inputs.machine.swap),
        system_uuid: identity.system_uuid.clone(),
    }
}

fn swap(bytes: u64) -> Option<NodeSwapStatus> {
    let capacity = i64::try_from(bytes).ok().filter(|bytes| *bytes > 0);
    capacity.map(|capacity| NodeSwapStatus {
        capacity: Some(capacity),
    })
}

fn runtime_handlers(runtime: &RuntimeFacts) -> Vec<NodeRuntimeHandler> {
    let handler = |handler: &crate::runtime::Handler| NodeRuntimeHandler {
        name: Some(handler.name.clone()),
        features: Some(NodeRuntimeHandlerFeatures {
            recursive_read_only_mounts: Some(handler.recursive_read_only_mounts),
            user_namespaces: Some(handler.user_namespaces),
        }),
    };
    runtime.handlers.iter().map(handler).collect()
}

/// The largest images with a few names each. Of one size, in the order of their names, so that
/// the same images always make the same list.
pub fn top_images(mut images: Vec<Image>, most: Option<usize>) -> Vec<ContainerImage> {
    for image in &mut images {
        image.digests.sort();
        image.tags.sort();
    }
    images.sort_by(|a, b| {
        let names = |i: &Image| (i.digests.clone(), i.tags.clone());
        b.size.cmp(&a.size).then_with(|| names(a).cmp(&names(b)))
    });
    images.truncate(most.unwrap_or(usize::MAX));
    let told = |image: Image| {
        let names = image.digests.into_iter().chain(image.tags);
        ContainerImage {
            names: Some(names.take(NAMES_PER_IMAGE).collect()),
            size_bytes: i64::try_from(image.size).ok(),
        }
    };
    images.into_iter().map(told).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::health::{ObserverHealth, RuntimeConditions, RuntimeHealth};
    use crate::runtime::Handler;
    use krablet_linux::MachineFacts;
    use krablet_linux::facts::MemoryFacts;

    fn image(tags: &[&str], size: u64) -> Image {
        Image {
            digests: Vec::new(),
            tags: tags.iter().map(|t| (*t).to_owned()).collect(),
            size,
        }
    }

    #[tokio::test]
    async fn a_whole_status() {
        let machine = MemoryFacts::ordinary().machine().await;
        let config = NodeConfig {
            declared_features: Some(vec!["A".to_owned()]),
            ..NodeConfig::new("n1")
        };
        let runtime = RuntimeFacts {
            name: "containerd".to_owned(),
            version: "v2.3.7".to_owned(),
            handlers: vec![Handler::default()],
            supplemental_groups_policy: Some(true),
        };
        let health = Health {
            runtime: RuntimeHealth::Answers(RuntimeConditions::ready()),
            observer: ObserverHealth::Sees,
            ..Health::default()
        };
        let images = top_images(vec![image(&["a:1"], 7)], Some(50));
        let inputs = StatusInputs {
            config: &config,
            machine: &Machine {
                swap: 1 << 30,
                ..machine
            },
            ips: Some(&[IpAddr::from([10, 0, 0, 1])]),
            runtime: Some(&runtime),
            images: Some(&images),
            health: &health,
            pressures: Pressures::default(),
            volumes_in_use: Some(&["b".to_owned(), "a".to_owned()]),
            now: Timestamp::UNIX_EPOCH,
        };
        let (node, events) = updated_node(&Node::default(), &inputs);
        let mut status = serde_json::to_value(node.status.clone()).unwrap();
        status["conditions"] = serde_json::json!("see there");
        let text = serde_json::to_string_pretty(&status).unwrap();
        let text = text.replace(env!("CARGO_PKG_VERSION"), "VERSION");
        expect_test::expect![[r#"
            {
              "addresses": [
                {
                  "address": "10.0.0.1",
                  "type": "InternalIP"
                },
                {
                  "address": "n1",
                  "type": "Hostname"
                }
              ],
              "allocatable": {
                "cpu": "4",
                "ephemeral-storage": "100Gi",
                "hugepages-2Mi": "0",
                "memory": "16Gi",
                "pods": "110"
              },
              "capacity": {
                "cpu": "4",
                "ephemeral-storage": "100Gi",
                "hugepages-2Mi": "0",
                "memory": "16Gi",
                "pods": "110"
              },
              "conditions": "see there",
              "daemonEndpoints": {
                "kubeletEndpoint": {
                  "Port": 10250
                }
              },
              "declaredFeatures": [
                "A"
              ],
              "features": {
                "supplementalGroupsPolicy": true
              },
              "images": [
                {
                  "names": [
                    "a:1"
                  ],
                  "sizeBytes": 7
                }
              ],
              "nodeInfo": {
                "architecture": "amd64",
                "bootID": "boot-1",
                "containerRuntimeVersion": "containerd://v2.3.7",
                "kernelVersion": "6.1.0",
                "kubeProxyVersion": "",
                "kubeletVersion": "v1.36.4+krablet.VERSION",
                "machineID": "machine-1",
                "operatingSystem": "linux",
                "osImage": "Tiny Linux",
                "swap": {
                  "capacity": 1073741824
                },
                "systemUUID": "uuid-1"
              },
              "runtimeHandlers": [
                {
                  "features": {
                    "recursiveReadOnlyMounts": false,
                    "userNamespaces": false
                  },
                  "name": ""
                }
              ],
              "volumesInUse": [
                "a",
                "b"
              ]
            }"#]]
        .assert_eq(&text);
        assert_eq!(events.len(), 4);

        // What is not known stays, and a new boot is told.
        let rebooted = MemoryFacts::ordinary();
        rebooted.change(|m| m.identity.boot_id = "boot-2".to_owned());
        let unknown = StatusInputs {
            machine: &rebooted.machine().await,
            ips: None,
            runtime: None,
            images: None,
            volumes_in_use: None,
            ..inputs
        };
        let (again, events) = updated_node(&node, &unknown);
        let (old, new) = (node.status.unwrap(), again.status.unwrap());
        assert_eq!(new.addresses, old.addresses);
        assert_eq!(new.images, old.images);
        assert_eq!(new.runtime_handlers, old.runtime_handlers);
        assert_eq!(new.volumes_in_use, old.volumes_in_use);
        let runtime = |s: &NodeStatus| s.node_info.clone().unwrap().container_runtime_version;
        assert_eq!(runtime(&new), runtime(&old));
        assert_eq!(events.len(), 1);
        assert_eq!(
            events[0].message,
            "Node n1 has been rebooted, boot id: boot-2"
        );
    }

    #[test]
    fn images_by_size_with_few_names() {
        let many = image(&["m:7", "m:1", "m:2", "m:3", "m:4", "m:5"], 1);
        let mut digest = image(&["d:1"], 1);
        digest.digests = vec!["d@sha256:0".to_owned()];
        let all = vec![many, image(&["b"], 2), digest, image(&["big"], 9)];
        let names = |most| -> Vec<String> {
            let images = top_images(all.clone(), most);
            let names = |i: ContainerImage| i.names.unwrap_or_default().join(" ");
            images.into_iter().map(names).collect()
        };
        assert_eq!(names(Some(2)), ["big", "b"]);
        assert_eq!(
            names(None),
            ["big", "b", "m:1 m:2 m:3 m:4 m:5", "d@sha256:0 d:1"]
        );
    }
}
