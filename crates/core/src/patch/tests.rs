use std::collections::BTreeMap;

use expect_test::{Expect, expect};
use proptest::prelude::*;

use super::*;

fn check(schema: &Schema, old: Value, new: Value, expected: Expect) {
    let patch = two_way(&old, &new, schema);
    if let Some(patch) = &patch {
        assert_eq!(apply(&old, patch, schema), new, "applied");
    }
    let text = patch.map_or("nothing".into(), |p| format!("{p:#}"));
    expected.assert_eq(&text);
}

#[test]
fn equal_objects_need_no_patch() {
    let status = json!({"phase": "Running", "podIPs": [{"ip": "10.0.0.1"}]});
    check(POD_STATUS, status.clone(), status, expect!["nothing"]);
}

#[test]
fn fields_are_set_and_removed() {
    check(
        POD_STATUS,
        json!({"phase": "Pending", "reason": "r", "resources": {"limits": {"cpu": "1", "memory": "1Gi"}}}),
        json!({"phase": "Running", "hostIP": "10.0.0.9", "resources": {"limits": {"cpu": "2"}}}),
        expect![[r#"
            {
              "hostIP": "10.0.0.9",
              "phase": "Running",
              "reason": null,
              "resources": {
                "limits": {
                  "cpu": "2",
                  "memory": null
                }
              }
            }"#]],
    );
}

#[test]
fn conditions_are_merged_by_type() {
    check(
        POD_STATUS,
        json!({"conditions": [
            {"type": "Ready", "status": "False", "reason": "ContainersNotReady"},
            {"type": "Gone", "status": "True"},
            {"type": "PodScheduled", "status": "True"},
        ]}),
        json!({"conditions": [
            {"type": "PodScheduled", "status": "True"},
            {"type": "Ready", "status": "True"},
            {"type": "New", "status": "True"},
        ]}),
        expect![[r#"
            {
              "$setElementOrder/conditions": [
                {
                  "type": "PodScheduled"
                },
                {
                  "type": "Ready"
                },
                {
                  "type": "New"
                }
              ],
              "conditions": [
                {
                  "reason": null,
                  "status": "True",
                  "type": "Ready"
                },
                {
                  "status": "True",
                  "type": "New"
                },
                {
                  "$patch": "delete",
                  "type": "Gone"
                }
              ]
            }"#]],
    );
}

#[test]
fn a_change_of_order_alone_tells_the_order_alone() {
    check(
        POD_STATUS,
        json!({"podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}]}),
        json!({"podIPs": [{"ip": "fd00::1"}, {"ip": "10.0.0.1"}]}),
        expect![[r#"
            {
              "$setElementOrder/podIPs": [
                {
                  "ip": "fd00::1"
                },
                {
                  "ip": "10.0.0.1"
                }
              ]
            }"#]],
    );
}

#[test]
fn container_statuses_are_replaced_and_new_lists_told_whole() {
    check(
        POD_STATUS,
        json!({"containerStatuses": [{"name": "a", "ready": false}]}),
        json!({"containerStatuses": [{"name": "a", "ready": true}], "podIPs": [{"ip": "10.0.0.1"}]}),
        expect![[r#"
            {
              "containerStatuses": [
                {
                  "name": "a",
                  "ready": true
                }
              ],
              "podIPs": [
                {
                  "ip": "10.0.0.1"
                }
              ]
            }"#]],
    );
}

#[test]
fn claims_retain_the_keys_they_have() {
    check(
        POD_STATUS,
        json!({"resourceClaimStatuses": [{"name": "a", "resourceClaimName": "x"}]}),
        json!({"resourceClaimStatuses": [{"name": "a"}]}),
        expect![[r#"
            {
              "$setElementOrder/resourceClaimStatuses": [
                {
                  "name": "a"
                }
              ],
              "resourceClaimStatuses": [
                {
                  "$retainKeys": [
                    "name"
                  ],
                  "name": "a",
                  "resourceClaimName": null
                }
              ]
            }"#]],
    );
}

#[test]
fn addresses_of_a_node_are_replaced_for_several_may_have_one_type() {
    check(
        NODE_STATUS,
        json!({"addresses": [{"type": "InternalIP", "address": "10.0.0.1"}]}),
        json!({"addresses": [
            {"type": "InternalIP", "address": "10.0.0.2"},
            {"type": "InternalIP", "address": "fd00::2"},
        ]}),
        expect![[r#"
            {
              "addresses": [
                {
                  "address": "10.0.0.2",
                  "type": "InternalIP"
                },
                {
                  "address": "fd00::2",
                  "type": "InternalIP"
                },
                {
                  "$patch": "replace"
                }
              ]
            }"#]],
    );
}

#[test]
fn the_patch_of_a_pod_is_for_that_pod_alone() {
    let status = |phase: &str| PodStatus {
        phase: Some(phase.into()),
        ..PodStatus::default()
    };
    assert_eq!(
        pod_status_patch("u", None, &status("a"), &status("a")),
        None
    );
    assert_eq!(
        pod_status_patch("u", None, &status("a"), &status("b")),
        Some(json!({"metadata": {"uid": "u"}, "status": {"phase": "b"}}))
    );
}

#[test]
fn what_the_patch_does_not_know_of_stays_in_its_place() {
    let of = |types: &[&str]| json!({"conditions": types.iter().map(|t| json!({"type": t})).collect::<Vec<_>>()});
    let patch = two_way(&of(&["A", "B"]), &of(&["C", "B", "A"]), POD_STATUS).unwrap();
    let there = of(&["Foreign1", "A", "B", "Foreign2"]);
    assert_eq!(
        apply(&there, &patch, POD_STATUS),
        of(&["C", "Foreign1", "B", "A", "Foreign2"])
    );
    // A list that was not there is told whole, and comes first.
    let patch = two_way(&json!({}), &of(&["A", "B"]), POD_STATUS).unwrap();
    let there = of(&["Foreign"]);
    assert_eq!(
        apply(&there, &patch, POD_STATUS),
        of(&["A", "B", "Foreign"])
    );
}

/// A list of elements with distinct keys.
fn elements(key: &'static str) -> impl Strategy<Value = Value> {
    let element = ("[a-f]", prop::option::of("[xyz]"), any::<bool>());
    prop::collection::vec(element, 0..5).prop_map(move |elements| {
        let mut seen = BTreeMap::new();
        for (id, text, flag) in elements {
            let mut element = json!({key: id, "status": flag});
            if let Some(text) = text {
                element["reason"] = json!(text);
            }
            seen.entry(id).or_insert(element);
        }
        let mut list: Vec<Value> = seen.into_values().collect();
        // Not always in the order of the keys.
        list.sort_by_key(|e| e.get("reason").map(Value::to_string));
        Value::Array(list)
    })
}

fn status() -> impl Strategy<Value = Value> {
    let maybe = |list| prop::option::of(list);
    (
        prop::option::of("[xyz]"),
        maybe(elements("type").boxed()),
        maybe(elements("ip").boxed()),
        maybe(elements("name").boxed()),
        maybe(elements("name").boxed()),
        prop::option::of(prop::collection::btree_map("[abc]", "[12]", 0..3)),
    )
        .prop_map(|(phase, conditions, ips, claims, containers, resources)| {
            let mut status = Map::new();
            let lists = [
                ("conditions", conditions),
                ("podIPs", ips),
                ("resourceClaimStatuses", claims),
                ("containerStatuses", containers),
                ("phase", phase.map(Value::from)),
                ("resources", resources.map(|r| json!({"limits": r}))),
            ];
            for (name, value) in lists {
                if let Some(value) = value {
                    status.insert(name.to_owned(), value);
                }
            }
            Value::Object(status)
        })
}

proptest! {
    #[test]
    fn a_patch_leads_from_the_old_to_the_new(old in status(), new in status()) {
        for schema in [POD_STATUS, NODE_STATUS] {
            match two_way(&old, &new, schema) {
                None => prop_assert_eq!(&old, &new),
                Some(patch) => prop_assert_eq!(&apply(&old, &patch, schema), &new),
            }
        }
    }

    #[test]
    fn elements_of_others_survive(old in status(), new in status()) {
        let Some(patch) = two_way(&old, &new, POD_STATUS) else { return Ok(()) };
        // A list that one side does not have is removed or set as a whole.
        prop_assume!(old.get("conditions").is_some() && new.get("conditions").is_some());
        let mut there = old.clone();
        there["conditions"].as_array_mut().unwrap().push(json!({"type": "foreign"}));
        let result = apply(&there, &patch, POD_STATUS);
        let list = result["conditions"].as_array().unwrap();
        prop_assert!(list.iter().any(|c| c["type"] == "foreign"));
        let mut ours = list.clone();
        ours.retain(|c| c["type"] != "foreign");
        prop_assert_eq!(&Value::Array(ours), &new["conditions"]);
    }
}
