//! Image references, as far as the default pull policy depends on them.

/// The pull policy of a container that names none: `Always` for the tag `latest`, written or implied, else
/// `IfNotPresent`. A reference that cannot be parsed counts as not `latest`.
#[must_use]
pub fn default_pull_policy(image: &str) -> &'static str {
    match tag(image) {
        Some("latest") => "Always",
        _ => "IfNotPresent",
    }
}

/// The tag of a well-formed reference; `latest` when it has neither tag nor digest.
fn tag(image: &str) -> Option<&str> {
    let (named, digest) = match image.split_once('@') {
        Some((named, digest)) => (named, Some(digest)),
        None => (image, None),
    };
    if digest.is_some_and(|digest| !is_digest(digest)) {
        return None;
    }
    let last_slash = named.rfind('/').map_or(0, |at| at + 1);
    let (repository, tag) = match named.get(last_slash..)?.split_once(':') {
        Some((last, tag)) => (named.get(..last_slash + last.len())?, Some(tag)),
        None => (named, None),
    };
    if !is_repository(repository) || tag.is_some_and(|tag| !is_tag(tag)) {
        return None;
    }
    match (tag, digest) {
        (None, None) => Some("latest"),
        (tag, _) => tag,
    }
}

fn is_digest(text: &str) -> bool {
    text.split_once(':').is_some_and(|(algorithm, hex)| {
        algorithm.starts_with(|c: char| c.is_ascii_alphabetic())
            && hex.len() >= 32
            && hex.bytes().all(|byte| byte.is_ascii_hexdigit())
    })
}

fn is_tag(text: &str) -> bool {
    let word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    text.len() <= 128
        && text.bytes().next().is_some_and(word)
        && text
            .bytes()
            .all(|byte| word(byte) || byte == b'.' || byte == b'-')
}

fn is_repository(text: &str) -> bool {
    // A bare 64-digit hexadecimal name would be mistaken for an image id.
    if text.len() == 64
        && text
            .bytes()
            .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
    {
        return false;
    }
    let mut parts = text.split('/').peekable();
    let first = parts.peek().copied().unwrap_or_default();
    let is_domain = first.contains(['.', ':'])
        || first == "localhost"
        || first.bytes().any(|byte| byte.is_ascii_uppercase());
    if is_domain && text.contains('/') {
        parts.next();
        let domain = |byte: u8| byte.is_ascii_alphanumeric() || b".:-[]".contains(&byte);
        if first.is_empty() || !first.bytes().all(domain) {
            return false;
        }
    }
    parts.all(is_component)
}

/// Runs of lower case letters and digits, joined by one '.', one or two '_', or any number of '-'.
fn is_component(text: &str) -> bool {
    let alnum = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = text.as_bytes();
    let edges =
        bytes.first().copied().is_some_and(alnum) && bytes.last().copied().is_some_and(alnum);
    edges
        && text
            .split(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
            .all(|joint| {
                matches!(joint, "" | "." | "_" | "__") || joint.bytes().all(|byte| byte == b'-')
            })
}

#[cfg(test)]
mod tests {
    use super::default_pull_policy;

    #[test]
    fn latest_is_pulled_always() {
        let digest = format!("sha256:{}", "0".repeat(64));
        for (image, want) in [
            ("busybox", "Always"),
            ("busybox:latest", "Always"),
            ("localhost:5000/a/b", "Always"),
            ("registry.example.com/a__b.c--d:latest", "Always"),
            ("busybox:1.36", "IfNotPresent"),
            ("localhost:5000/a:1", "IfNotPresent"),
            (&format!("busybox@{digest}"), "IfNotPresent"),
            (&format!("busybox:latest@{digest}"), "Always"),
            ("Busybox", "IfNotPresent"),
            ("a//b", "IfNotPresent"),
            ("", "IfNotPresent"),
            ("busy box", "IfNotPresent"),
            ("busybox@sha256:zz", "IfNotPresent"),
            (&"a".repeat(64), "IfNotPresent"),
        ] {
            assert_eq!(default_pull_policy(image), want, "{image}");
        }
    }
}
