//! Strategic merge patches from one state of a Node to another: as little as the difference.

use krablet_pod::api::{Node, NodeStatus};
use krablet_pod::tree;
use serde_json::{Map, Value, json};

/// A patch of metadata and status; none if they are the same. The spec is not the agent's.
pub fn node_patch(old: &Node, new: &Node) -> Option<Value> {
    let mut patch = Map::new();
    let labels = difference(
        &canonical(&old.metadata.labels),
        &canonical(&new.metadata.labels),
    );
    let annotations = difference(
        &canonical(&old.metadata.annotations),
        &canonical(&new.metadata.annotations),
    );
    let metadata: Map<String, Value> = [("labels", labels), ("annotations", annotations)]
        .into_iter()
        .filter_map(|(name, changed)| Some((name.to_owned(), changed?)))
        .collect();
    if !metadata.is_empty() {
        patch.insert("metadata".to_owned(), Value::Object(metadata));
    }
    let none = NodeStatus::default();
    let (old, new) = (old.status.as_ref(), new.status.as_ref());
    if let Some(status) = status_patch(old.unwrap_or(&none), new.unwrap_or(&none)) {
        patch.insert("status".to_owned(), status);
    }
    (!patch.is_empty()).then_some(Value::Object(patch))
}

/// What goes under `status`; none if nothing differs, times of heartbeat included.
pub fn status_patch(old: &NodeStatus, new: &NodeStatus) -> Option<Value> {
    let (mut old, mut new) = (canonical(old), canonical(new));
    let conditions = by_type(&take(&mut old, "conditions"), &take(&mut new, "conditions"));
    let addresses = (take(&mut old, "addresses"), take(&mut new, "addresses"));
    // The list of attached volumes is another's, whatever we saw of it.
    take(&mut old, "volumesAttached");
    take(&mut new, "volumesAttached");
    let mut patch = match difference(&old, &new) {
        Some(Value::Object(patch)) => patch,
        _ => Map::new(),
    };
    if !conditions.is_empty() {
        patch.insert("conditions".to_owned(), Value::Array(conditions));
    }
    if addresses.0 != addresses.1 {
        // Addresses are said to merge by type, of which there may be two: replaced as a whole.
        let mut list = addresses.1.as_array().cloned().unwrap_or_default();
        list.push(json!({"$patch": "replace"}));
        patch.insert("addresses".to_owned(), Value::Array(list));
    }
    (!patch.is_empty()).then_some(Value::Object(patch))
}

/// Whether a status has to be told before its time: anything but the heartbeat differs.
pub fn changed_enough(old: &Node, new: &Node) -> bool {
    let without_heartbeat = |node: &Node| {
        let mut node = node.clone();
        let status = node.status.as_mut();
        let mut conditions = status.and_then(|s| s.conditions.take()).unwrap_or_default();
        for condition in &mut conditions {
            condition.last_heartbeat_time = None;
        }
        conditions.sort_by(|a, b| a.type_.cmp(&b.type_));
        (node, canonical(&conditions))
    };
    let ((old, old_conditions), (new, new_conditions)) =
        (without_heartbeat(old), without_heartbeat(new));
    old_conditions != new_conditions || node_patch(&old, &new).is_some()
}

/// As JSON, with what is empty left out: to the API server both are the same.
fn canonical<T: serde::Serialize>(object: &T) -> Value {
    let mut value = tree(object);
    prune(&mut value);
    value
}

fn prune(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for field in fields.values_mut() {
                prune(field);
            }
            fields.retain(|_, field| !is_empty(field));
        }
        Value::Array(items) => items.iter_mut().for_each(prune),
        _ => {}
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::Number(number) => number.as_i64() == Some(0),
        Value::Bool(_) => false,
    }
}

fn take(value: &mut Value, field: &str) -> Value {
    let fields = value.as_object_mut();
    fields
        .and_then(|fields| fields.remove(field))
        .unwrap_or_default()
}

/// Field by field; what is gone is null; lists are replaced.
fn difference(old: &Value, new: &Value) -> Option<Value> {
    if old == new {
        return None;
    }
    let empty = Map::new();
    let (Some(old), Some(new)) = (fields(old, &empty), fields(new, &empty)) else {
        return Some(new.clone());
    };
    let mut patch = Map::new();
    for name in old.keys().filter(|name| !new.contains_key(*name)) {
        patch.insert(name.clone(), Value::Null);
    }
    for (name, value) in new {
        let before = old.get(name).unwrap_or(&Value::Null);
        let changed = match value {
            Value::Object(_) => difference(before, value),
            _ => (before != value).then(|| value.clone()),
        };
        if let Some(changed) = changed {
            patch.insert(name.clone(), changed);
        }
    }
    Some(Value::Object(patch))
}

/// Nothing counts as an object without fields.
fn fields<'a>(value: &'a Value, empty: &'a Map<String, Value>) -> Option<&'a Map<String, Value>> {
    match value {
        Value::Object(fields) => Some(fields),
        Value::Null => Some(empty),
        _ => None,
    }
}

/// The items that differ, each with its type, which is the key they merge by.
fn by_type(old: &Value, new: &Value) -> Vec<Value> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let (old, new) = (list(old), list(new));
    let same = |a: &Value, b: &Value| a["type"] == b["type"];
    let gone = old.iter().filter(|o| !new.iter().any(|n| same(o, n)));
    let mut patch: Vec<Value> = gone
        .map(|item| json!({"$patch": "delete", "type": item["type"]}))
        .collect();
    for item in &new {
        let before = old.iter().find(|o| same(o, item)).unwrap_or(&Value::Null);
        if let Some(Value::Object(mut changed)) = difference(before, item) {
            changed.insert("type".to_owned(), item["type"].clone());
            patch.push(Value::Object(changed));
        }
    }
    patch
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::Timestamp;
    use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use krablet_pod::api::{
        AttachedVolume, ContainerImage, NodeAddress, NodeCondition, NodeSystemInfo,
    };

    fn status() -> NodeStatus {
        let condition = |kind: &str, status: &str| NodeCondition {
            type_: kind.to_owned(),
            status: status.to_owned(),
            last_heartbeat_time: Some(Time(Timestamp::UNIX_EPOCH)),
            ..NodeCondition::default()
        };
        let amount = |n: &str| Quantity(n.to_owned());
        NodeStatus {
            capacity: Some([("cpu".into(), amount("2")), ("x/y".into(), amount("1"))].into()),
            conditions: Some(vec![condition("Odd", "True"), condition("Ready", "True")]),
            addresses: Some(vec![NodeAddress {
                type_: "InternalIP".to_owned(),
                address: "10.0.0.1".to_owned(),
            }]),
            images: Some(vec![ContainerImage::default()]),
            node_info: Some(NodeSystemInfo::default()),
            ..NodeStatus::default()
        }
    }

    fn shown(patch: Option<Value>) -> String {
        patch.map_or("none".to_owned(), |patch| patch.to_string())
    }

    #[test]
    fn a_patch_holds_the_difference_only() {
        let old = status();
        assert_eq!(status_patch(&old, &old), None);
        let mut new = old.clone();
        let conditions = new.conditions.as_mut().unwrap();
        conditions.remove(0);
        conditions[0].last_heartbeat_time = Some(Time(Timestamp::from_second(9).unwrap()));
        new.capacity.as_mut().unwrap().remove("x/y");
        new.node_info.as_mut().unwrap().boot_id = "b".to_owned();
        new.images = None;
        expect_test::expect![[r#"{"capacity":{"x/y":null},"conditions":[{"$patch":"delete","type":"Odd"},{"lastHeartbeatTime":"1970-01-01T00:00:09Z","type":"Ready"}],"images":null,"nodeInfo":{"bootID":"b"}}"#]]
            .assert_eq(&shown(status_patch(&old, &new)));
    }

    #[test]
    fn addresses_are_replaced_and_attached_volumes_left_alone() {
        let old = status();
        let mut new = old.clone();
        new.volumes_attached = Some(vec![AttachedVolume::default()]);
        assert_eq!(status_patch(&old, &new), None);
        new.addresses.as_mut().unwrap()[0].address = "10.0.0.2".to_owned();
        expect_test::expect![[
            r#"{"addresses":[{"address":"10.0.0.2","type":"InternalIP"},{"$patch":"replace"}]}"#
        ]]
        .assert_eq(&shown(status_patch(&old, &new)));
    }

    #[test]
    fn a_first_status_is_told_whole() {
        let patch = status_patch(&NodeStatus::default(), &status()).unwrap();
        let mut names: Vec<_> = patch.as_object().unwrap().keys().cloned().collect();
        names.sort();
        assert_eq!(names, ["addresses", "capacity", "conditions", "images"]);
        assert_eq!(patch["conditions"][1]["status"], "True");
    }

    #[test]
    fn heartbeats_and_empty_fields_are_no_change() {
        let node = |status: NodeStatus| Node {
            status: Some(status),
            ..Node::default()
        };
        let old = status();
        let mut new = old.clone();
        new.volumes_in_use = Some(Vec::new());
        new.images.as_mut().unwrap()[0].size_bytes = Some(0);
        let conditions = new.conditions.as_mut().unwrap();
        conditions[1].last_heartbeat_time = Some(Time(Timestamp::from_second(9).unwrap()));
        conditions.reverse();
        assert!(!changed_enough(&node(old.clone()), &node(new.clone())));
        new.conditions.as_mut().unwrap()[0].message = Some("m".to_owned());
        assert!(changed_enough(&node(old.clone()), &node(new)));
        let mut labelled = node(old.clone());
        labelled.metadata.labels = Some([("a".to_owned(), "b".to_owned())].into());
        assert!(changed_enough(&node(old), &labelled));
    }
}
