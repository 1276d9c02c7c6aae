//! The Node object a machine is registered with, and what of it an existing one takes over.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use krablet_pod::api::{Node, NodeSpec, NodeStatus, Taint};
use serde_json::Value;

use crate::conditions::NodeEvent;
use crate::config::NodeConfig;
use crate::labels::{self, CONTROLLER_ATTACHES, HOSTNAME, RENEWED, UNINITIALIZED};
use crate::patch::node_patch;
use crate::resources::{ApiResources, is_extended, is_huge_pages, same_amount};
use crate::status::{StatusInputs, updated_node};

/// The whole object, status included, and what is to be told once it is made.
pub fn initial_node(inputs: &StatusInputs<'_>) -> (Node, Vec<NodeEvent>) {
    let config = inputs.config;
    let registration = &config.registration;
    let mut labels = registration.labels.clone();
    let own = labels::platform(inputs.machine)
        .into_iter()
        .chain(labels::beta_platform(inputs.machine))
        .chain([(HOSTNAME, config.hostname.clone())]);
    for (name, value) in own {
        labels.entry(name.to_owned()).or_insert(value);
    }
    let attach = (CONTROLLER_ATTACHES.to_owned(), "true".to_owned());
    let annotations = registration.controller_attaches.then(|| [attach].into());
    let bare = Node {
        metadata: ObjectMeta {
            name: Some(config.name.clone()),
            labels: Some(labels),
            annotations,
            ..ObjectMeta::default()
        },
        spec: spec(config),
        status: None,
    };
    updated_node(&bare, inputs)
}

fn spec(config: &NodeConfig) -> Option<NodeSpec> {
    let registration = &config.registration;
    let mut taints = registration.taints.clone();
    if registration.external_cloud_provider {
        taints.push(Taint {
            key: UNINITIALIZED.to_owned(),
            value: Some("true".to_owned()),
            effect: "NoSchedule".to_owned(),
            time_added: None,
        });
    }
    let spec = NodeSpec {
        provider_id: Some(registration.provider_id.clone()).filter(|id| !id.is_empty()),
        taints: Some(taints).filter(|taints| !taints.is_empty()),
        ..NodeSpec::default()
    };
    (spec != NodeSpec::default()).then_some(spec)
}

/// What has to change on a node that was there before this life of the agent. With
/// `reset_extended` the devices of an earlier life are gone until they are found again.
pub fn reconcile_existing(existing: &Node, initial: &Node, reset_extended: bool) -> Option<Value> {
    let mut wanted = existing.clone();
    renew_labels(&mut wanted, initial);
    renew_annotation(&mut wanted, initial);
    let initial = initial.status.clone().unwrap_or_default();
    let status = wanted.status.get_or_insert_default();
    status
        .capacity
        .get_or_insert_with(|| initial.capacity.clone().unwrap_or_default());
    status
        .allocatable
        .get_or_insert_with(|| initial.allocatable.clone().unwrap_or_default());
    if reset_extended {
        zero_extended(status);
    }
    renew_huge_pages(status, &initial);
    node_patch(existing, &wanted)
}

fn renew_labels(node: &mut Node, initial: &Node) {
    let given = initial.metadata.labels.as_ref();
    let labels = node.metadata.labels.get_or_insert_default();
    for name in RENEWED {
        match given.and_then(|given| given.get(*name)) {
            Some(value) if value.is_empty() => labels.remove(*name),
            Some(value) => labels.insert((*name).to_owned(), value.clone()),
            None => continue,
        };
    }
}

fn renew_annotation(node: &mut Node, initial: &Node) {
    let wanted = initial.metadata.annotations.as_ref();
    let wanted = wanted.and_then(|all| all.get(CONTROLLER_ATTACHES));
    let annotations = node.metadata.annotations.get_or_insert_default();
    match wanted {
        Some(value) => annotations.insert(CONTROLLER_ATTACHES.to_owned(), value.clone()),
        None => annotations.remove(CONTROLLER_ATTACHES),
    };
}

fn zero_extended(status: &mut NodeStatus) {
    let extended = |amounts: &Option<ApiResources>| -> Vec<String> {
        let names = amounts.iter().flat_map(|amounts| amounts.keys());
        names.filter(|name| is_extended(name)).cloned().collect()
    };
    for name in extended(&status.capacity) {
        for amounts in [&mut status.capacity, &mut status.allocatable] {
            let amounts = amounts.get_or_insert_default();
            amounts.insert(name.clone(), ApiQuantity("0".to_owned()));
        }
    }
}

/// Sizes the kernel no longer offers go, others are as they are now.
fn renew_huge_pages(status: &mut NodeStatus, initial: &NodeStatus) {
    for (amounts, now) in [
        (&mut status.capacity, &initial.capacity),
        (&mut status.allocatable, &initial.allocatable),
    ] {
        let amounts = amounts.get_or_insert_default();
        let now = now.iter().flatten().filter(|(name, _)| is_huge_pages(name));
        let now: ApiResources = now.map(|(n, q)| (n.clone(), q.clone())).collect();
        amounts.retain(|name, _| !is_huge_pages(name) || now.contains_key(name));
        for (name, amount) in now {
            if !same_amount(amounts.get(&name), Some(&amount)) {
                amounts.insert(name, amount);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conditions::Pressures;
    use crate::health::Health;
    use jiff::Timestamp;
    use krablet_linux::MachineFacts;
    use krablet_linux::facts::{HugePages, Machine, MemoryFacts};

    async fn machine() -> Machine {
        MemoryFacts::ordinary().machine().await
    }

    fn built(config: &NodeConfig, machine: &Machine) -> Node {
        let inputs = StatusInputs {
            config,
            machine,
            ips: None,
            runtime: None,
            images: None,
            health: &Health::default(),
            pressures: Pressures::default(),
            volumes_in_use: None,
            now: Timestamp::UNIX_EPOCH,
        };
        initial_node(&inputs).0
    }

    #[tokio::test]
    async fn a_node_with_everything_a_user_can_ask_for() {
        let mut config = NodeConfig::new("n1");
        config.hostname = "host".to_owned();
        config.node_ips = vec!["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()];
        let registration = &mut config.registration;
        registration.labels = [("a".to_owned(), "1".to_owned())].into();
        registration.provider_id = "cloud://1".to_owned();
        registration.external_cloud_provider = true;
        registration.taints = vec![Taint {
            key: "k".to_owned(),
            effect: "NoExecute".to_owned(),
            ..Taint::default()
        }];
        let node = built(&config, &machine().await);
        let shown = serde_json::json!({"metadata": node.metadata, "spec": node.spec});
        expect_test::expect![[r#"
            {
              "metadata": {
                "annotations": {
                  "alpha.kubernetes.io/provided-node-ip": "10.0.0.1,fd00::1",
                  "volumes.kubernetes.io/controller-managed-attach-detach": "true"
                },
                "labels": {
                  "a": "1",
                  "beta.kubernetes.io/arch": "amd64",
                  "beta.kubernetes.io/os": "linux",
                  "kubernetes.io/arch": "amd64",
                  "kubernetes.io/hostname": "host",
                  "kubernetes.io/os": "linux"
                },
                "name": "n1"
              },
              "spec": {
                "providerID": "cloud://1",
                "taints": [
                  {
                    "effect": "NoExecute",
                    "key": "k"
                  },
                  {
                    "effect": "NoSchedule",
                    "key": "node.cloudprovider.kubernetes.io/uninitialized",
                    "value": "true"
                  }
                ]
              }
            }"#]]
        .assert_eq(&serde_json::to_string_pretty(&shown).unwrap());
    }

    #[tokio::test]
    async fn an_existing_node_is_left_alone_if_it_fits() {
        let machine = machine().await;
        let initial = built(&NodeConfig::new("n1"), &machine);
        assert_eq!(reconcile_existing(&initial, &initial, true), None);
        let mut labelled = initial.clone();
        let labels = labelled.metadata.labels.get_or_insert_default();
        labels.insert("by-a-user".to_owned(), "x".to_owned());
        assert_eq!(reconcile_existing(&labelled, &initial, false), None);
    }

    #[tokio::test]
    async fn an_existing_node_takes_over_what_is_the_machines() {
        let mut machine = machine().await;
        let mut existing = built(&NodeConfig::new("n1"), &machine);
        let labels = existing.metadata.labels.get_or_insert_default();
        labels.insert(HOSTNAME.to_owned(), "old".to_owned());
        labels.remove("kubernetes.io/arch");
        let status = existing.status.get_or_insert_default();
        for amounts in [&mut status.capacity, &mut status.allocatable] {
            let amounts = amounts.get_or_insert_default();
            amounts.insert("example.com/gpu".to_owned(), ApiQuantity("2".to_owned()));
            amounts.insert("hugepages-1Gi".to_owned(), ApiQuantity("0".to_owned()));
        }
        machine.huge_pages = vec![HugePages {
            size: 2 << 20,
            count: 4,
        }];
        let mut config = NodeConfig::new("n1");
        config.registration.controller_attaches = false;
        let initial = built(&config, &machine);
        let patch = reconcile_existing(&existing, &initial, true).unwrap();
        expect_test::expect![[r#"
            {
              "metadata": {
                "annotations": {
                  "volumes.kubernetes.io/controller-managed-attach-detach": null
                },
                "labels": {
                  "kubernetes.io/arch": "amd64",
                  "kubernetes.io/hostname": "n1"
                }
              },
              "status": {
                "allocatable": {
                  "example.com/gpu": "0",
                  "hugepages-1Gi": null,
                  "hugepages-2Mi": "8Mi"
                },
                "capacity": {
                  "example.com/gpu": "0",
                  "hugepages-1Gi": null,
                  "hugepages-2Mi": "8Mi"
                }
              }
            }"#]]
        .assert_eq(&serde_json::to_string_pretty(&patch).unwrap());
    }
}
