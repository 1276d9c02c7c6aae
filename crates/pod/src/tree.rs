//! Objects as trees of JSON, to be compared, patched or counted.

use serde::Serialize;
use serde_json::Value;

/// By way of the text: the types of Kubernetes are many, every one is written and read as text anyway, and a second way of
/// writing them would be half a megabyte of program.
pub fn tree<T: Serialize>(object: &T) -> Value {
    let read = |text: Vec<u8>| serde_json::from_slice(&text);
    serde_json::to_vec(object)
        .and_then(read)
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::api::Pod;

    #[test]
    fn an_object_is_what_was_written() {
        let text = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "web", "labels": {"a": "ü\n\"", "b": ""}},
            "spec": {"containers": [{"name": "c", "ports": [{"containerPort": 80}]}], "priority": -2147483648},
        });
        let pod: Pod = serde_json::from_value(text.clone()).unwrap();
        assert_eq!(tree(&pod), text);
    }
}
