//! Strategic merge patches between two JSON objects, as the API server reads them. One differ for
//! every kind of object: a [`Schema`] says which lists are merged by a key and which are replaced.
//!
//! [`two_way`] makes a patch, [`apply`] does with it what the API server does.

use std::collections::BTreeSet;

use krablet_pod::api::PodStatus;
use serde_json::{Map, Value, json};

use crate::status::canonical;

#[cfg(test)]
mod tests;

const DIRECTIVE: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const ORDER_PREFIX: &str = "$setElementOrder/";

/// How a list is patched. Lists that no table names are replaced as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListRule {
    /// Elements are told apart by the value of this field.
    Merge { key: &'static str },
    /// The same; an element keeps only the fields the patch says it has.
    MergeRetainKeys { key: &'static str },
    /// The server would merge by this key, though several elements may have one value of it; a change
    /// therefore tells the server to replace the list.
    Replace { key: &'static str },
}

impl ListRule {
    fn key(self) -> &'static str {
        match self {
            ListRule::Merge { key }
            | ListRule::MergeRetainKeys { key }
            | ListRule::Replace { key } => key,
        }
    }
}

/// The lists of a kind of object that are not simply replaced: each with its path from the object's
/// root, names joined by dots.
pub type Schema = [(&'static str, ListRule)];

/// The `status` of a pod.
pub static POD_STATUS: &Schema = &[
    ("conditions", ListRule::Merge { key: "type" }),
    ("hostIPs", ListRule::Merge { key: "ip" }),
    ("podIPs", ListRule::Merge { key: "ip" }),
    (
        "resourceClaimStatuses",
        ListRule::MergeRetainKeys { key: "name" },
    ),
];

/// The `status` of a node.
pub static NODE_STATUS: &Schema = &[
    ("addresses", ListRule::Replace { key: "type" }),
    ("conditions", ListRule::Merge { key: "type" }),
];

/// The patch that turns the pod status `old` into `new`, if they differ. It carries the UID, so that
/// the server refuses it for any other pod of that name; with a version, also for that pod once
/// anybody has written to it since.
pub fn pod_status_patch(
    uid: &str,
    version: Option<&str>,
    old: &PodStatus,
    new: &PodStatus,
) -> Option<Value> {
    let status = two_way(&canonical(old), &canonical(new), POD_STATUS)?;
    let mut metadata = json!({ "uid": uid });
    if let Some(version) = version {
        metadata["resourceVersion"] = version.into();
    }
    Some(json!({"metadata": metadata, "status": status}))
}

/// The patch that turns one object into another; `None` if there is nothing to change.
pub fn two_way(old: &Value, new: &Value, schema: &Schema) -> Option<Value> {
    let empty = Map::new();
    let old = old.as_object().unwrap_or(&empty);
    let new = new.as_object().unwrap_or(&empty);
    let patch = diff_objects(old, new, "", schema);
    (!patch.is_empty()).then_some(Value::Object(patch))
}

fn join(path: &str, name: &str) -> String {
    match path {
        "" => name.to_owned(),
        _ => format!("{path}.{name}"),
    }
}

fn rule(path: &str, schema: &Schema) -> Option<ListRule> {
    let found = schema.iter().find(|(at, _)| *at == path);
    found.map(|(_, rule)| *rule)
}

type Object = Map<String, Value>;

fn diff_objects(old: &Object, new: &Object, path: &str, schema: &Schema) -> Object {
    let mut patch = Map::new();
    for (name, value) in new {
        let before = old.get(name).unwrap_or(&Value::Null);
        if before == value {
            continue;
        }
        let path = join(path, name);
        match (before, value) {
            (Value::Object(before), Value::Object(value)) => {
                let inner = diff_objects(before, value, &path, schema);
                patch.insert(name.clone(), Value::Object(inner));
            }
            (Value::Array(before), Value::Array(value)) => match rule(&path, schema) {
                Some(rule) => diff_lists(before, value, name, rule, (&path, schema), &mut patch),
                None => drop(patch.insert(name.clone(), json!(value))),
            },
            _ => drop(patch.insert(name.clone(), value.clone())),
        }
    }
    for name in old.keys().filter(|name| !new.contains_key(*name)) {
        patch.insert(name.clone(), Value::Null);
    }
    patch
}

/// The elements of a list with the values of their merge key, if each has one of its own.
fn keyed<'a>(list: &'a [Value], key: &str) -> Option<Vec<(&'a str, &'a Object)>> {
    let of = |element: &'a Value| {
        let object = element.as_object()?;
        Some((object.get(key)?.as_str()?, object))
    };
    let elements: Vec<_> = list.iter().map(of).collect::<Option<_>>()?;
    let keys: BTreeSet<&str> = elements.iter().map(|(key, _)| *key).collect();
    (keys.len() == elements.len()).then_some(elements)
}

fn find<'a>(list: &[(&str, &'a Object)], key: &str) -> Option<&'a Object> {
    list.iter().find(|(k, _)| *k == key).map(|(_, o)| *o)
}

fn diff_lists(
    old: &[Value],
    new: &[Value],
    name: &str,
    rule: ListRule,
    place: (&str, &Schema),
    patch: &mut Object,
) {
    let key = rule.key();
    let elements = keyed(old, key).zip(keyed(new, key));
    let merged = elements.filter(|_| !matches!(rule, ListRule::Replace { .. }));
    let Some((before, after)) = merged else {
        let mut list = new.to_vec();
        list.push(json!({DIRECTIVE: "replace"}));
        patch.insert(name.to_owned(), Value::Array(list));
        return;
    };
    if before.is_empty() {
        patch.insert(name.to_owned(), json!(new));
        return;
    }
    let mut changes = changed_elements(&before, &after, rule, place);
    let gone = before.iter().filter(|(v, _)| find(&after, v).is_none());
    let mut gone: Vec<&str> = gone.map(|(value, _)| *value).collect();
    gone.sort_unstable();
    changes.extend(gone.iter().map(|v| json!({DIRECTIVE: "delete", key: v})));
    if !after.is_empty() {
        // The list differs, be it only in its order, so its order is told.
        let order: Vec<Value> = after.iter().map(|(value, _)| json!({key: value})).collect();
        patch.insert(format!("{ORDER_PREFIX}{name}"), Value::Array(order));
    }
    if !changes.is_empty() {
        patch.insert(name.to_owned(), Value::Array(changes));
    }
}

/// Elements that are new, and the changes of those that were there, in the order of the new list.
fn changed_elements(
    before: &[(&str, &Object)],
    after: &[(&str, &Object)],
    rule: ListRule,
    (path, schema): (&str, &Schema),
) -> Vec<Value> {
    let mut changes = Vec::new();
    for (value, element) in after {
        let Some(was) = find(before, value) else {
            changes.push(json!(element));
            continue;
        };
        let mut change = diff_objects(was, element, path, schema);
        if change.is_empty() {
            continue;
        }
        if matches!(rule, ListRule::MergeRetainKeys { .. }) {
            let names: Vec<&String> = element.keys().collect();
            change.insert(RETAIN_KEYS.to_owned(), json!(names));
        }
        change.insert(rule.key().to_owned(), json!(value));
        changes.push(Value::Object(change));
    }
    changes
}

/// What the API server makes of an object and a patch. Elements of merged lists that the patch does
/// not know of stay.
pub fn apply(base: &Value, patch: &Value, schema: &Schema) -> Value {
    let mut result = base.as_object().cloned().unwrap_or_default();
    if let Some(patch) = patch.as_object() {
        apply_object(&mut result, patch, "", schema);
    }
    Value::Object(result)
}

fn apply_object(base: &mut Object, patch: &Object, path: &str, schema: &Schema) {
    match patch.get(DIRECTIVE).and_then(Value::as_str) {
        Some("delete") => return base.clear(),
        Some("replace") => base.clear(),
        _ => {}
    }
    if let Some(retained) = patch.get(RETAIN_KEYS).and_then(Value::as_array) {
        base.retain(|name, _| retained.iter().any(|r| r == name));
    }
    let orders = orders(base, patch, path, schema);
    for (name, value) in patch.iter().filter(|(name, _)| !name.starts_with('$')) {
        let path = join(path, name);
        match value {
            Value::Null => drop(base.remove(name)),
            Value::Object(value) => {
                let inner = base.entry(name.clone()).or_insert(Value::Null);
                let mut object = inner.as_object().cloned().unwrap_or_default();
                apply_object(&mut object, value, &path, schema);
                *inner = Value::Object(object);
            }
            Value::Array(list) => {
                let old = base.get(name).and_then(Value::as_array);
                let new = match rule(&path, schema) {
                    Some(rule) => merge_lists(
                        old.map_or(&[], Vec::as_slice),
                        list,
                        rule.key(),
                        (&path, schema),
                    ),
                    None => list.clone(),
                };
                base.insert(name.clone(), Value::Array(new));
            }
            _ => drop(base.insert(name.clone(), value.clone())),
        }
    }
    for order in orders {
        if let Some(list) = base.get_mut(order.name).and_then(Value::as_array_mut) {
            *list = order.arrange(std::mem::take(list));
        }
    }
}

fn directive(element: &Value) -> Option<&str> {
    element.get(DIRECTIVE).and_then(Value::as_str)
}

fn merge_lists(
    old: &[Value],
    patch: &[Value],
    key: &str,
    (path, schema): (&str, &Schema),
) -> Vec<Value> {
    let replace = patch.iter().any(|e| directive(e) == Some("replace"));
    let mut list = if replace { Vec::new() } else { old.to_vec() };
    for element in patch {
        let same = |e: &Value| e.get(key) == element.get(key);
        match directive(element) {
            Some("delete") => list.retain(|e| !same(e)),
            Some(_) => {}
            None => {
                let found = list.iter_mut().find(|e| !replace && same(e));
                let found = found.and_then(Value::as_object_mut);
                match (found, element.as_object()) {
                    (Some(found), Some(change)) => apply_object(found, change, path, schema),
                    (None, Some(change)) => {
                        let mut fresh = Map::new();
                        apply_object(&mut fresh, change, path, schema);
                        list.push(Value::Object(fresh));
                    }
                    (_, None) => list.push(element.clone()),
                }
            }
        }
    }
    list
}

/// The order a patch gives to a list.
struct Order<'a> {
    name: &'a str,
    key: &'static str,
    told: &'a [Value],
    /// The list before the patch.
    was: Vec<Value>,
}

/// Where no order is told, that of the patch counts.
fn orders<'a>(base: &Object, patch: &'a Object, path: &str, schema: &Schema) -> Vec<Order<'a>> {
    let of = |(field, value): (&'a String, &'a Value)| {
        let told = field.strip_prefix(ORDER_PREFIX);
        let name = told.unwrap_or(field);
        if told.is_none() && patch.contains_key(&format!("{ORDER_PREFIX}{name}")) {
            return None;
        }
        let was = base.get(name).and_then(Value::as_array);
        Some(Order {
            name,
            key: rule(&join(path, name), schema)?.key(),
            told: value.as_array()?,
            was: was.cloned().unwrap_or_default(),
        })
    };
    patch.iter().filter_map(of).collect()
}

impl Order<'_> {
    fn place(&self, among: &[Value], element: &Value) -> Option<usize> {
        let key = element.get(self.key);
        among.iter().position(|e| e.get(self.key) == key)
    }

    /// The elements that are told stand in that order; any other one stays in front of the first of
    /// them that it stood in front of before.
    fn arrange(&self, list: Vec<Value>) -> Vec<Value> {
        let (mut told, others): (Vec<_>, Vec<_>) = list
            .into_iter()
            .partition(|e| self.place(self.told, e).is_some());
        told.sort_by_key(|e| self.place(self.told, e));
        let mut others = others.into_iter().peekable();
        let mut sorted = Vec::new();
        for element in told {
            if let Some(here) = self.place(&self.was, &element) {
                while let Some(other) = others.next_if(|o| self.place(&self.was, o) < Some(here)) {
                    sorted.push(other);
                }
            }
            sorted.push(element);
        }
        sorted.extend(others);
        sorted
    }
}
