//! Pull policies.

use krablet_images::reference::{DEFAULT_TAG, Normal};

/// When an image is asked for from its registry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PullPolicy {
    Always,
    IfNotPresent,
    Never,
}

impl PullPolicy {
    /// As metrics name it.
    pub(crate) fn label(self) -> &'static str {
        match self {
            PullPolicy::Always => "always",
            PullPolicy::IfNotPresent => "ifnotpresent",
            PullPolicy::Never => "never",
        }
    }

    /// The policy as written; without one, `latest` and untagged images are always pulled.
    pub(crate) fn of(policy: Option<&str>, image: &str) -> Self {
        match policy {
            Some("Always") => PullPolicy::Always,
            Some("Never") => PullPolicy::Never,
            Some("IfNotPresent") => PullPolicy::IfNotPresent,
            _ => match Normal::parse(image) {
                Ok(name)
                    if name.digest.is_none()
                        && name.tag.as_deref().unwrap_or(DEFAULT_TAG) == DEFAULT_TAG =>
                {
                    PullPolicy::Always
                }
                _ => PullPolicy::IfNotPresent,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies() {
        let digest = format!("a@sha256:{}", "a".repeat(64));
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
