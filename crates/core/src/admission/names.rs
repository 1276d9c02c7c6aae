//! Names of resources and labels, as far as matching depends on whether they are well-formed.

/// A resource that is neither the API's own nor a quota on one, such as `example.com/gpu`.
pub(super) fn is_extended_resource(name: &str) -> bool {
    is_foreign(name)
        && !name.starts_with("requests.")
        && is_qualified_name(&format!("requests.{name}"))
}

fn is_foreign(name: &str) -> bool {
    name.contains('/') && !name.contains("kubernetes.io/")
}

/// Resources counted in whole units beside cpu, memory and storage.
pub(super) fn is_scalar_resource(name: &str) -> bool {
    is_extended_resource(name)
        || name.starts_with("hugepages-")
        || name.contains("kubernetes.io/")
        || name.starts_with("attachable-volumes-")
}

/// `[prefix/]name`: a DNS subdomain, then at most 63 letters, digits, `-`, `_`, `.`.
pub(super) fn is_qualified_name(text: &str) -> bool {
    let (prefix, name) = match text.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, text),
    };
    prefix.is_none_or(is_subdomain) && !name.is_empty() && is_word(name)
}

pub(super) fn is_label_value(text: &str) -> bool {
    text.is_empty() || is_word(text)
}

fn is_word(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    let bytes = text.as_bytes();
    let outer = |b: Option<&u8>| b.is_some_and(u8::is_ascii_alphanumeric);
    text.len() <= 63
        && bytes.iter().all(|b| inner(*b))
        && outer(bytes.first())
        && outer(bytes.last())
}

fn is_subdomain(text: &str) -> bool {
    let label = |label: &str| {
        let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        !label.is_empty()
            && label.bytes().all(inner)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    text.len() <= 253 && text.split('.').all(label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_of_resources() {
        for (name, extended, scalar) in [
            ("cpu", false, false),
            ("foo", false, false),
            ("example.com/gpu", true, true),
            ("Example.com/gpu", false, false),
            ("example.com/", false, false),
            ("requests.example.com/gpu", false, false),
            ("hugepages-2Mi", false, true),
            ("attachable-volumes-x", false, true),
            ("scheduling.k8s.io/foo", true, true),
            ("kubernetes.io/batch", false, true),
            ("pod.alpha.kubernetes.io/x", false, true),
        ] {
            assert_eq!(is_extended_resource(name), extended, "{name}");
            assert_eq!(is_scalar_resource(name), scalar, "{name}");
        }
    }

    #[test]
    fn label_keys_and_values() {
        for (text, key, value) in [
            ("a", true, true),
            ("", false, true),
            ("a.b_c-d", true, true),
            ("-a", false, false),
            ("a-", false, false),
            ("x.y/z", true, false),
            ("x/y/z", false, false),
            ("/z", false, false),
            ("x/", false, false),
        ] {
            assert_eq!(is_qualified_name(text), key, "{text}");
            assert_eq!(is_label_value(text), value, "{text}");
        }
        assert!(!is_label_value(&"a".repeat(64)));
        assert!(is_label_value(&"a".repeat(63)));
    }
}
