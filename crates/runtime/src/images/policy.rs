//! Image names and pull policies.

/// When an image is asked for from its registry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PullPolicy {
    Always,
    IfNotPresent,
    Never,
}

impl PullPolicy {
    /// The policy as written; without one, `latest` and untagged images are always pulled.
    pub(crate) fn of(policy: Option<&str>, image: &str) -> Self {
        match policy {
            Some("Always") => PullPolicy::Always,
            Some("Never") => PullPolicy::Never,
            Some("IfNotPresent") => PullPolicy::IfNotPresent,
            _ => match with_default_tag(image) {
                Ok(name) if !name.contains('@') && name.ends_with(":latest") => PullPolicy::Always,
                _ => PullPolicy::IfNotPresent,
            },
        }
    }
}

const MAX_NAME: usize = 255;
const MAX_TAG: usize = 128;
const MIN_DIGEST_HEX: usize = 32;

/// The image with `:latest` where it has neither tag nor digest; the error says why it is no
/// image name at all.
pub(crate) fn with_default_tag(image: &str) -> Result<String, String> {
    let failed = |why: &str| Err(format!("couldn't parse image name {image:?}: {why}"));
    if image.len() == 64 && image.bytes().all(is_lower_hex) {
        return failed(&format!(
            "invalid repository name ({image}), cannot specify 64-byte hexadecimal strings"
        ));
    }
    let (rest, digest) = match image.split_once('@') {
        Some((rest, digest)) => (rest, Some(digest)),
        None => (image, None),
    };
    // A colon before the last slash is a port.
    let (name, tag) = match rest.rsplit_once(':') {
        Some((name, tag)) if !tag.contains('/') => (name, Some(tag)),
        _ => (rest, None),
    };
    let (domain, path) = split_domain(name);
    if path.bytes().any(|b| b.is_ascii_uppercase()) {
        return failed(&format!(
            "invalid reference format: repository name ({path}) must be lowercase"
        ));
    }
    let valid = domain.is_none_or(is_domain)
        && !path.is_empty()
        && path.split('/').all(is_path_part)
        && tag.is_none_or(is_tag)
        && digest.is_none_or(is_digest);
    if !valid {
        return failed("invalid reference format");
    }
    if name.len() > MAX_NAME {
        return failed("repository name must not be more than 255 characters");
    }
    Ok(match (tag, digest) {
        (None, None) => format!("{image}:latest"),
        _ => image.to_string(),
    })
}

fn is_lower_hex(b: u8) -> bool {
    b.is_ascii_digit() || (b'a'..=b'f').contains(&b)
}

/// The first part is a registry if it looks like a host.
fn split_domain(name: &str) -> (Option<&str>, &str) {
    match name.split_once('/') {
        Some((first, rest))
            if first.contains(['.', ':'])
                || first == "localhost"
                || first.bytes().any(|b| b.is_ascii_uppercase()) =>
        {
            (Some(first), rest)
        }
        _ => (None, name),
    }
}

fn is_domain(domain: &str) -> bool {
    let (host, port) = match domain.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((address, port)) => {
                let ok = address.bytes().all(|b| b.is_ascii_hexdigit() || b == b':');
                return ok && (port.is_empty() || port.strip_prefix(':').is_some_and(is_port));
            }
            None => return false,
        },
        None => match domain.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (domain, None),
        },
    };
    let label = |l: &str| {
        !l.is_empty()
            && !l.starts_with('-')
            && !l.ends_with('-')
            && l.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
    };
    host.split('.').all(label) && port.is_none_or(is_port)
}

fn is_port(port: &str) -> bool {
    !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit())
}

/// Lower-case letters and digits, parted by `.`, `_`, `__` or dashes.
fn is_path_part(part: &str) -> bool {
    let word = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let bytes = part.as_bytes();
    let ends = |b: Option<&u8>| b.is_some_and(|b| word(*b));
    if !ends(bytes.first()) || !ends(bytes.last()) {
        return false;
    }
    bytes.split(|b| word(*b)).all(|separator| {
        matches!(separator, b"" | b"." | b"_" | b"__") || separator.iter().all(|b| *b == b'-')
    })
}

fn is_tag(tag: &str) -> bool {
    let word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    tag.len() <= MAX_TAG
        && tag.bytes().next().is_some_and(word)
        && tag.bytes().all(|b| word(b) || b == b'.' || b == b'-')
}

fn is_digest(digest: &str) -> bool {
    let Some((algorithm, hex)) = digest.split_once(':') else {
        return false;
    };
    let word = |w: &str| {
        w.bytes().next().is_some_and(|b| b.is_ascii_alphabetic())
            && w.bytes().all(|b| b.is_ascii_alphanumeric())
    };
    algorithm.split(['-', '_', '+', '.']).all(word)
        && hex.len() >= MIN_DIGEST_HEX
        && hex.bytes().all(|b| b.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHA: &str = "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

    #[test]
    fn names_get_a_tag() {
        let digest = format!("a/b@{SHA}");
        let tagged_digest = format!("a/b:1@{SHA}");
        let cases = [
            ("busybox", "busybox:latest"),
            ("busybox:1", "busybox:1"),
            ("host:5000/a", "host:5000/a:latest"),
            ("localhost/a__b/c-d.e", "localhost/a__b/c-d.e:latest"),
            ("[fd00::1]:5000/a:x", "[fd00::1]:5000/a:x"),
            (&digest, &digest),
            (&tagged_digest, &tagged_digest),
        ];
        for (image, expected) in cases {
            assert_eq!(with_default_tag(image).as_deref(), Ok(expected));
        }
    }

    #[test]
    fn what_is_no_name() {
        let long = format!("a/{}", "b".repeat(300));
        let hex = "a".repeat(64);
        let bad = [
            "",
            ":",
            "a:",
            "a:b c",
            "A/B",
            "a//b",
            "-a",
            "a_-b",
            "a@sha256:12",
            "a b",
            "é",
            &long,
            &hex,
            "a:b:c",
            "http://a",
        ];
        for image in bad {
            assert!(with_default_tag(image).is_err(), "{image}");
        }
        assert_eq!(
            with_default_tag("Foo"),
            Err("couldn't parse image name \"Foo\": invalid reference format: repository name (Foo) must be lowercase".into())
        );
    }

    #[test]
    fn policies() {
        let digest = format!("a@{SHA}");
        let cases = [
            (Some("Always"), "a:1", PullPolicy::Always),
            (Some("Never"), "a", PullPolicy::Never),
            (Some("IfNotPresent"), "a", PullPolicy::IfNotPresent),
            (None, "a", PullPolicy::Always),
            (None, "a:latest", PullPolicy::Always),
            (None, "a:1", PullPolicy::IfNotPresent),
            (None, &digest, PullPolicy::IfNotPresent),
        ];
        for (policy, image, expected) in cases {
            assert_eq!(
                PullPolicy::of(policy, image),
                expected,
                "{policy:?} {image}"
            );
        }
    }
}
