//! The bytes of a manifest become configMaps and secrets, or a reason why not. Pure.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash as _, Hasher as _};
use std::sync::Arc;

use k8s_openapi::ByteString;
use krablet_pod::api::{ConfigMap, Secret};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::object::{Object, slim};
use crate::{Kind, ObjectKey};

/// YAML or JSON; several documents, or a `List`.
pub(super) fn decode(bytes: &[u8]) -> Result<Vec<(ObjectKey, Object)>, String> {
    let documents = krablet_yaml::parse_documents(bytes).map_err(|e| e.to_string())?;
    let mut found = Vec::new();
    for document in documents {
        let line = document.nearest_line("");
        for value in items(document.value) {
            let one = one(value).map_err(|problem| format!("line {line}: {problem}"))?;
            found.push(one);
        }
    }
    Ok(found)
}

fn items(document: Value) -> Vec<Value> {
    match document {
        Value::Null => Vec::new(),
        Value::Object(mut map) if map.get("kind").and_then(Value::as_str) == Some("List") => {
            match map.remove("items") {
                Some(Value::Array(items)) => items,
                _ => Vec::new(),
            }
        }
        other => vec![other],
    }
}

fn one(value: Value) -> Result<(ObjectKey, Object), String> {
    let text = |path: &str| value.pointer(path).and_then(Value::as_str);
    let version = text("/apiVersion").unwrap_or_default();
    let kind = text("/kind").unwrap_or_default();
    let kind = match (version, kind) {
        ("v1", "ConfigMap") => Kind::ConfigMap,
        ("v1", "Secret") => Kind::Secret,
        _ => {
            return Err(format!(
                "kind {kind:?} of apiVersion {version:?} is neither ConfigMap nor Secret of v1"
            ));
        }
    };
    let name = text("/metadata/name").unwrap_or_default();
    if name.is_empty() {
        return Err("metadata.name: Required value".to_owned());
    }
    let namespace = text("/metadata/namespace").filter(|n| !n.is_empty());
    let key = ObjectKey::new(kind, namespace.unwrap_or("default"), name);
    let version = digest(&value);
    let object = match kind {
        Kind::ConfigMap => {
            let mut object: ConfigMap = typed(value)?;
            slim(&mut object);
            object.metadata.namespace = Some(key.namespace.clone());
            object.metadata.resource_version = Some(version);
            Object::ConfigMap(Arc::new(object))
        }
        Kind::Secret => {
            let mut object: Secret = typed(value)?;
            slim(&mut object);
            object.metadata.namespace = Some(key.namespace.clone());
            object.metadata.resource_version = Some(version);
            take_string_data(&mut object);
            Object::Secret(Arc::new(object))
        }
    };
    Ok((key, object))
}

fn typed<T: DeserializeOwned>(value: Value) -> Result<T, String> {
    serde_json::from_value(value).map_err(|e| e.to_string())
}

/// As the API server does on a write: text wins over what is encoded.
fn take_string_data(secret: &mut Secret) {
    for (key, text) in secret.string_data.take().unwrap_or_default() {
        let data = secret.data.get_or_insert_default();
        data.insert(key, ByteString(text.into_bytes()));
    }
}

/// Stands for the version an API server would give it.
fn digest(value: &Value) -> String {
    let mut hasher = DefaultHasher::new();
    value.to_string().hash(&mut hasher);
    hasher.finish().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_lists_and_defaults() {
        let text = "
apiVersion: v1
kind: ConfigMap
metadata: {name: cfg, annotations: {a: b}}
data: {key: value}
---
apiVersion: v1
kind: List
items:
- apiVersion: v1
  kind: Secret
  metadata: {name: s, namespace: ns}
  data: {a: MQ==, b: Mg==}
  stringData: {b: two, c: three}
---
";
        let found = decode(text.as_bytes()).unwrap();
        let keys: Vec<String> = found.iter().map(|(key, _)| key.to_string()).collect();
        assert_eq!(keys, ["configmap default/cfg", "secret ns/s"]);
        let (Object::ConfigMap(cfg), Object::Secret(secret)) = (&found[0].1, &found[1].1) else {
            panic!("{found:?}");
        };
        assert_eq!(cfg.data.as_ref().unwrap()["key"], "value");
        assert_eq!(cfg.metadata.annotations, None);
        let data = secret.data.as_ref().unwrap();
        let data: Vec<(&str, &[u8])> = data.iter().map(|(k, v)| (k.as_str(), &*v.0)).collect();
        assert_eq!(data, [("a", &b"1"[..]), ("b", b"two"), ("c", b"three")]);
    }

    #[test]
    fn what_is_none() {
        let cases = [
            ("a: [", "line 1"),
            (
                "{apiVersion: v1, kind: Pod, metadata: {name: p}}",
                r#"kind "Pod" of apiVersion "v1" is neither ConfigMap nor Secret of v1"#,
            ),
            (
                "{apiVersion: v1, kind: Secret}",
                "metadata.name: Required value",
            ),
            (
                "{apiVersion: v1, kind: Secret, metadata: {name: s}, data: {a: '%'}}",
                "line 1",
            ),
            ("text", "is neither"),
        ];
        for (text, expected) in cases {
            let got = decode(text.as_bytes()).unwrap_err();
            assert!(got.contains(expected), "{text}: {got}");
        }
        assert_eq!(decode(b"").unwrap(), []);
    }

    proptest::proptest! {
        /// What is read has a name, and belongs to a namespace.
        #[test]
        fn any_file_is_read_or_refused(
            kind in "(ConfigMap|Secret|List|[a-z]{0,3})",
            rest in "((metadata|data|stringData|items|name|namespace| |  |- |: |\\n|[a-z0-9=]{0,4}|\"|\\{|\\}|---\\n){0,3}){0,10}",
        ) {
            let text = format!("apiVersion: v1\nkind: {kind}\nmetadata: {{name: x}}\n{rest}");
            for (key, _) in decode(text.as_bytes()).unwrap_or_default() {
                proptest::prop_assert!(!key.name.is_empty() && !key.namespace.is_empty());
            }
        }
    }
}
