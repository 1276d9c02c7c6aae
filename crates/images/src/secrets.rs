//! The pull secrets of a pod.

use std::sync::Arc;

use krablet_pod::api::Secret;

use crate::docker_config::{DockerConfig, DockerConfigError, read_config_json, read_dockercfg};
use crate::keyring::{Coordinates, Keyring, Source};

const CONFIG_JSON: (&str, &str) = ("kubernetes.io/dockerconfigjson", ".dockerconfigjson");
const DOCKERCFG: (&str, &str) = ("kubernetes.io/dockercfg", ".dockercfg");

/// A pull secret whose content is no file of credentials.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("pull secret {namespace}/{name}: {source}")]
pub struct BadSecret {
    namespace: String,
    name: String,
    source: DockerConfigError,
}

/// The credentials of secrets, in their order. Secrets of another type, and empty ones, have none.
pub fn keyring_of(secrets: &[Arc<Secret>]) -> Result<Keyring, BadSecret> {
    let mut ring = Keyring::default();
    for secret in secrets {
        let metadata = &secret.metadata;
        let (namespace, name) = (
            metadata.namespace.clone().unwrap_or_default(),
            metadata.name.clone().unwrap_or_default(),
        );
        let config = match content(secret) {
            Some(Ok(config)) => config,
            Some(Err(source)) => {
                return Err(BadSecret {
                    namespace,
                    name,
                    source,
                });
            }
            None => continue,
        };
        let source = Source::Secret(Coordinates {
            namespace,
            name,
            uid: metadata.uid.clone().unwrap_or_default(),
        });
        ring.add(Some(&source), &config);
    }
    Ok(ring)
}

fn content(secret: &Secret) -> Option<Result<DockerConfig, DockerConfigError>> {
    let held = |(kind, key): (&str, &str)| {
        let bytes = secret.data.as_ref()?.get(key)?;
        (secret.type_.as_deref() == Some(kind) && !bytes.0.is_empty()).then_some(&bytes.0)
    };
    match (held(CONFIG_JSON), held(DOCKERCFG)) {
        (Some(bytes), _) => Some(read_config_json(bytes)),
        (None, Some(bytes)) => Some(read_dockercfg(bytes)),
        (None, None) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(kind: &str, key: &str, content: &str) -> Arc<Secret> {
        let json = serde_json::json!({
            "metadata": {"namespace": "ns", "name": "s", "uid": "u"},
            "type": kind,
        });
        let mut secret: Secret = serde_json::from_value(json).unwrap();
        let bytes = serde_json::from_value(serde_json::json!(base64::Engine::encode(
            &base64::prelude::BASE64_STANDARD,
            content
        )));
        secret.data = Some([(key.to_owned(), bytes.unwrap())].into());
        Arc::new(secret)
    }

    #[test]
    fn types_and_keys_must_fit() {
        let auths = r#"{"r.io": {"username": "u", "password": "p"}}"#;
        let whole = format!(r#"{{"auths": {auths}}}"#);
        let cases = [
            (CONFIG_JSON.0, CONFIG_JSON.1, whole.as_str(), 1),
            (DOCKERCFG.0, DOCKERCFG.1, auths, 1),
            ("Opaque", CONFIG_JSON.1, &whole, 0),
            (CONFIG_JSON.0, "other", &whole, 0),
            (CONFIG_JSON.0, CONFIG_JSON.1, "", 0),
        ];
        for (kind, key, text, count) in cases {
            let ring = keyring_of(&[secret(kind, key, text)]).unwrap();
            let found = ring.lookup("r.io/a");
            assert_eq!(found.len(), count, "{kind} {key}");
            let source = found.first().and_then(|c| c.source.clone());
            let expected = (count == 1).then(|| {
                Source::Secret(Coordinates {
                    namespace: "ns".into(),
                    name: "s".into(),
                    uid: "u".into(),
                })
            });
            assert_eq!(source, expected);
        }
    }

    #[test]
    fn a_broken_secret_is_named_and_not_shown() {
        let broken = secret(CONFIG_JSON.0, CONFIG_JSON.1, "{\"auths\": geheim");
        let error = keyring_of(&[broken]).unwrap_err().to_string();
        assert_eq!(
            error,
            "pull secret ns/s: error occurred while trying to unmarshal json"
        );
    }
}
