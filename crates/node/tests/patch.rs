//! A patch, merged the way an API server does it, makes the old node the new one.

#![allow(clippy::unwrap_used)]

mod common;

use krablet_node::{changed_enough, node_patch};
use krablet_pod::api::Node;
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use serde_json::{Value, json};

fn amounts() -> impl Strategy<Value = Value> {
    let name = prop::sample::select(vec!["cpu", "memory", "hugepages-2Mi", "example.com/gpu"]);
    btree_map(name, "[0-3]", 0..4).prop_map(|map| json!(map))
}

fn labels() -> impl Strategy<Value = Value> {
    btree_map("[abc]", "[xy]", 0..3).prop_map(|map| json!(map))
}

fn conditions() -> impl Strategy<Value = Value> {
    let kind = prop::sample::select(vec!["Ready", "MemoryPressure", "NetworkUnavailable"]);
    let condition = (prop::bool::ANY, 0..3_u8, prop::option::of("[mn]"));
    btree_map(kind, condition, 0..4).prop_map(|map| {
        let condition = |(kind, (status, second, message)): (&str, (bool, u8, Option<String>))| {
            json!({
                "type": kind,
                "status": if status { "True" } else { "False" },
                "lastHeartbeatTime": format!("2026-01-01T00:00:0{second}Z"),
                "message": message,
            })
        };
        map.into_iter().map(condition).collect()
    })
}

fn addresses() -> impl Strategy<Value = Value> {
    let kind = prop::sample::select(vec!["InternalIP", "Hostname"]);
    let address = (kind, "[12]").prop_map(|(kind, a)| json!({"type": kind, "address": a}));
    vec(address, 0..4).prop_map(Value::Array)
}

fn node() -> impl Strategy<Value = Node> {
    let lists = (
        vec("[ab]", 0..3),
        vec("[ab]", 0..3),
        prop::option::of(0..2_i64),
    );
    let parts = (
        labels(),
        labels(),
        amounts(),
        conditions(),
        addresses(),
        lists,
    );
    parts.prop_map(
        |(labels, annotations, capacity, conditions, addresses, lists)| {
            let (volumes, images, swap) = lists;
            let images = images
                .iter()
                .map(|name| json!({"names": [name], "sizeBytes": 1}));
            let node = json!({
                "metadata": {"labels": labels, "annotations": annotations},
                "status": {
                    "capacity": capacity,
                    "conditions": conditions,
                    "addresses": addresses,
                    "volumesInUse": volumes,
                    "images": images.collect::<Vec<_>>(),
                    "nodeInfo": {"bootID": "b", "swap": swap.map(|s| json!({"capacity": s}))},
                },
            });
            serde_json::from_value(node).unwrap()
        },
    )
}

proptest! {
    #[test]
    fn a_patch_makes_the_old_the_new(old in node(), new in node()) {
        let Some(patch) = node_patch(&old, &new) else {
            prop_assert!(!changed_enough(&old, &new));
            return Ok(());
        };
        let mut merged = serde_json::to_value(&old).unwrap();
        common::merge(&mut merged, &patch, "");
        let merged: Node = serde_json::from_value(merged).unwrap();
        prop_assert_eq!(node_patch(&merged, &new), None);
        prop_assert!(!changed_enough(&merged, &new));
    }
}
