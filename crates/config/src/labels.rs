//! Label keys and values, as far as taints and node labels in the configuration need them.

/// What is wrong with a label key, if anything.
pub(crate) fn key_fault(key: &str) -> Option<String> {
    let (prefix, name) = match key.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, key),
    };
    if let Some(prefix) = prefix
        && !is_dns_subdomain(prefix)
    {
        return Some(format!(
            "{key:?}: the part before the / must be a DNS name of at most 253 lower-case letters, digits, '-' and '.'"
        ));
    }
    if name.is_empty() || name.len() > 63 || !is_label_text(name) {
        return Some(format!(
            "{key:?}: the name must be 1 to 63 letters, digits, '-', '_' and '.', and begin and end with a letter or digit"
        ));
    }
    None
}

/// What is wrong with a label value, if anything.
pub(crate) fn value_fault(value: &str) -> Option<String> {
    let fine = value.is_empty() || (value.len() <= 63 && is_label_text(value));
    (!fine).then(|| {
        format!(
            "{value:?}: a value must be empty or at most 63 letters, digits, '-', '_' and '.', and begin and end with a letter or digit"
        )
    })
}

fn is_label_text(text: &str) -> bool {
    let edges = [text.bytes().next(), text.bytes().last()];
    edges
        .into_iter()
        .all(|edge| edge.is_some_and(|b| b.is_ascii_alphanumeric()))
        && text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
}

fn is_dns_subdomain(text: &str) -> bool {
    text.len() <= 253
        && text.split('.').all(|part| {
            let edges = [part.bytes().next(), part.bytes().last()];
            edges
                .into_iter()
                .all(|edge| edge.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit()))
                && part
                    .bytes()
                    .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        })
}

/// The namespace of a label key: what stands before the slash.
pub(crate) fn namespace(key: &str) -> &str {
    key.split_once('/').map_or("", |(namespace, _)| namespace)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_values() {
        for key in [
            "a",
            "a.b/c",
            "example.com/My_Key.1",
            "x-y",
            "node.kubernetes.io/x",
        ] {
            assert_eq!(key_fault(key), None, "{key}");
        }
        for key in ["", "/a", "a/", "a/b/c", "-a", "a-", "A.b/c", "a b", "ä"] {
            assert!(key_fault(key).is_some(), "{key}");
        }
        assert!(key_fault(&"a".repeat(64)).is_some());
        for value in ["", "a", "A_b-c.1"] {
            assert_eq!(value_fault(value), None, "{value}");
        }
        for value in ["-", "a b", "a/", "=", ".x"] {
            assert!(value_fault(value).is_some(), "{value}");
        }
    }
}
