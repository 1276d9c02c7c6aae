//! The container hash, bit for bit as the kubelet writes it, so that a node can be handed over
//! and back without a container being restarted for a "changed" spec.

use crate::api::Container;

/// 32-bit FNV-1a.
pub fn fnv1a32(bytes: impl IntoIterator<Item = u8>) -> u32 {
    bytes.into_iter().fold(0x811c_9dc5, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    })
}

/// The hash of a container covers its image and name alone: other fields may change in place.
pub fn container_hash(container: &Container) -> u32 {
    // Go's encoder omits an empty image and always writes the name.
    let mut json = String::from("{");
    if let Some(image) = container.image.as_deref().filter(|i| !i.is_empty()) {
        json.push_str("\"image\":");
        push_go_json_string(&mut json, image);
        json.push(',');
    }
    json.push_str("\"name\":");
    push_go_json_string(&mut json, &container.name);
    json.push('}');

    // What is hashed is the printed form of the byte slice, "([]uint8)[123 34 …]".
    let numbers: Vec<String> = json.bytes().map(|b| b.to_string()).collect();
    fnv1a32(format!("([]uint8)[{}]", numbers.join(" ")).bytes())
}

/// The form in which the hash stands in the container's annotation.
pub fn container_hash_text(container: &Container) -> String {
    format!("{:x}", container_hash(container))
}

/// A JSON string as Go's encoder writes it, quotes included.
pub fn go_json_string(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    push_go_json_string(&mut out, text);
    out
}

/// A JSON string as Go's encoder escapes it: `<`, `>`, `&` and the two line separators too.
fn push_go_json_string(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' | '\0'..='\u{1f}' => {
                out.push_str(&format!("\\u{:04x}", c as u32));
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn container(name: &str, image: &str) -> Container {
        Container {
            name: name.into(),
            image: Some(image.into()),
            ..Container::default()
        }
    }

    #[test]
    fn hash_equals_upstream_test_vector() {
        assert_eq!(
            container_hash_text(&container("test_container", "foo/image:v1")),
            "8e45cbd0"
        );
    }

    #[test]
    fn only_name_and_image_count() {
        let mut changed = container("a", "b");
        changed.command = Some(vec!["sh".into()]);
        assert_eq!(
            container_hash(&changed),
            container_hash(&container("a", "b"))
        );
        assert_ne!(
            container_hash(&container("a", "c")),
            container_hash(&container("a", "b"))
        );
    }

    #[test]
    fn markup_is_escaped_as_go_does() {
        let mut out = String::new();
        push_go_json_string(&mut out, "<&>\u{1}\"\n");
        assert_eq!(out, r#""\u003c\u0026\u003e\u0001\"\n""#);
    }
}
