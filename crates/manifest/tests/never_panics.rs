//! Whatever the bytes are, the answer is pods or a refusal; and defaults settle at once.

mod common;

use common::{CASES, file_origin, overlay, url_origin};
use krablet_manifest::{api_references, decode, defaults, make_static, validate};
use krablet_pod::api::Pod;
use proptest::prelude::*;
use serde_json::Value;

const EVERYTHING: &str = include_str!("good/everything.yaml");

fn check(bytes: &[u8]) {
    for origin in [file_origin(), url_origin()] {
        match decode(bytes, &origin) {
            Ok(decoded) => {
                for pod in &decoded.pods {
                    settled(pod);
                    assert_eq!(validate(pod), []);
                }
            }
            Err(refusal) => assert!(!refusal.to_string().is_empty()),
        }
    }
}

/// Defaults change nothing the second time, and no step minds an odd pod.
fn settled(pod: &Pod) {
    let mut once = pod.clone();
    defaults::apply(&mut once);
    let mut twice = once.clone();
    defaults::apply(&mut twice);
    assert_eq!(once, twice);
    let mut marked = once.clone();
    make_static(&mut marked, &file_origin());
    let _ = (validate(&marked), api_references(&marked));
}

#[test]
fn defaults_settle_on_every_case() {
    for (_, text) in CASES {
        for case in krablet_yaml::parse(text.as_bytes())
            .unwrap()
            .value
            .as_array()
            .unwrap()
        {
            settled(&serde_json::from_value(overlay(case)).unwrap());
        }
    }
}

/// Puts `value` at the `nth` place of a document, counted depth first.
fn replace(document: &mut Value, nth: &mut usize, value: &Value) {
    if *nth == 0 {
        *document = value.clone();
    }
    *nth = nth.wrapping_sub(1);
    match document {
        Value::Array(items) => items.iter_mut().for_each(|item| replace(item, nth, value)),
        Value::Object(fields) => fields
            .values_mut()
            .for_each(|field| replace(field, nth, value)),
        _ => {}
    }
}

fn odd_value() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "[-a-zA-Z0-9./: ]{0,12}".prop_map(Value::from),
        any::<String>().prop_map(Value::from),
        Just(Value::Array(Vec::new())),
        Just(serde_json::json!({})),
        Just(serde_json::json!([{}])),
        Just(serde_json::json!({"name": "x"})),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn on_random_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        check(&bytes);
    }

    #[test]
    fn on_random_bytes_behind_a_head(text in "[-a-z0-9:{}\\[\\],'\" \n]{0,120}") {
        check(format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: a}}\nspec:\n{text}").as_bytes());
    }

    #[test]
    fn on_mutated_bytes(edits in proptest::collection::vec((any::<prop::sample::Index>(), 0u8..3, any::<u8>()), 1..6)) {
        let mut bytes = EVERYTHING.as_bytes().to_vec();
        for (index, kind, byte) in edits {
            if bytes.is_empty() {
                break;
            }
            let at = index.index(bytes.len());
            match kind {
                0 => bytes[at] = byte,
                1 => { bytes.remove(at); }
                _ => bytes.truncate(at.max(1)),
            }
        }
        check(&bytes);
    }

    #[test]
    fn on_odd_values_anywhere(edits in proptest::collection::vec((0usize..420, odd_value()), 1..5)) {
        let mut document = krablet_yaml::parse(EVERYTHING.as_bytes()).unwrap().value;
        for (mut nth, value) in edits {
            replace(&mut document, &mut nth, &value);
        }
        check(document.to_string().as_bytes());
        if let Ok(pod) = serde_json::from_value::<Pod>(document) {
            settled(&pod);
        }
    }
}
