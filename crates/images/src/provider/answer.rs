//! What a plugin is asked, and how its answer is read. Answers hold passwords: no error repeats one.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::docker_config::{DockerConfig, Login};
use crate::hidden::Hidden;

const GROUP: &str = "credentialprovider.kubelet.k8s.io";
const KIND: &str = "CredentialProviderResponse";

/// Which images an answer holds for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyType {
    Image,
    Registry,
    Global,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub key_type: KeyType,
    /// Without one, the plugin's configured duration.
    pub duration: Option<Duration>,
    pub logins: DockerConfig,
}

/// Why an answer is not used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AnswerError {
    #[error("error reading GVK from response")]
    NoVersion,
    #[error(
        "apiVersion from credential plugin response did not match expected apiVersion:{expected}, actual apiVersion:{actual}"
    )]
    Version { expected: String, actual: String },
    #[error("error decoding credential provider plugin response from stdout")]
    Decode,
    #[error("credential provider plugin did not return a valid cacheKeyType: {0}")]
    KeyType(String),
    #[error(
        "credential provider plugin returned the service account token as the password which is not allowed when service account cache type is not set to 'Token'"
    )]
    Echo,
}

/// The request, as a plugin reads it from its standard input.
pub fn request(
    api_version: &str,
    image: &str,
    token: Option<&Hidden>,
    annotations: &BTreeMap<String, String>,
) -> Vec<u8> {
    let mut request = json!({
        "kind": "CredentialProviderRequest",
        "apiVersion": api_version,
        "image": image,
    });
    if let Some(token) = token {
        request["serviceAccountToken"] = json!(token.expose());
    }
    if !annotations.is_empty() {
        request["serviceAccountAnnotations"] = json!(annotations);
    }
    let mut bytes = request.to_string().into_bytes();
    bytes.push(b'\n');
    bytes
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Written {
    #[serde(rename = "apiVersion")]
    _api_version: String,
    kind: String,
    #[serde(default)]
    cache_key_type: String,
    cache_duration: Option<String>,
    auth: Option<BTreeMap<String, WrittenLogin>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenLogin {
    #[serde(default)]
    username: String,
    #[serde(default)]
    password: String,
}

/// Reads what a plugin printed.
pub fn read(api_version: &str, bytes: &[u8]) -> Result<Answer, AnswerError> {
    let value: Value = serde_json::from_slice(bytes).map_err(|_| AnswerError::NoVersion)?;
    let actual = value.get("apiVersion").and_then(Value::as_str);
    let actual = actual.unwrap_or_default();
    if actual != api_version {
        return Err(AnswerError::Version {
            expected: api_version.to_owned(),
            actual: actual.to_owned(),
        });
    }
    let written: Written = serde_json::from_value(value).map_err(|_| AnswerError::Decode)?;
    if written.kind != KIND || !api_version.starts_with(GROUP) {
        return Err(AnswerError::Decode);
    }
    let key_type = match written.cache_key_type.as_str() {
        "Image" => KeyType::Image,
        "Registry" => KeyType::Registry,
        "Global" => KeyType::Global,
        // Plugins have printed stranger things than a word here.
        other => return Err(AnswerError::KeyType(other.chars().take(32).collect())),
    };
    let duration = written.cache_duration.map(|text| {
        let parsed = text.parse::<krablet_config::Duration>();
        // A negative one is over before it begins.
        parsed.map(|d| d.to_std().unwrap_or_default())
    });
    let logins = written.auth.unwrap_or_default().into_iter();
    let login = |(place, login): (String, WrittenLogin)| {
        let login = Login {
            username: Hidden::new(login.username),
            password: Hidden::new(login.password),
            email: Hidden::default(),
        };
        (place, login)
    };
    Ok(Answer {
        key_type,
        duration: duration.transpose().map_err(|_| AnswerError::Decode)?,
        logins: logins.map(login).collect(),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const V1: &str = "credentialprovider.kubelet.k8s.io/v1";

    fn answer(rest: &str) -> String {
        format!(r#"{{"kind": "{KIND}", "apiVersion": "{V1}"{rest}}}"#)
    }

    #[test]
    fn requests() {
        let text = |token: Option<&Hidden>, notes: &[(&str, &str)]| {
            let notes = notes.iter().map(|(k, v)| (k.to_string(), v.to_string()));
            String::from_utf8(request(V1, "r.io/a", token, &notes.collect())).unwrap()
        };
        let bare: Value = serde_json::from_str(&text(None, &[])).unwrap();
        assert_eq!(
            bare,
            json!({"kind": "CredentialProviderRequest", "apiVersion": V1, "image": "r.io/a"})
        );
        let token = Hidden::new("t");
        let full: Value = serde_json::from_str(&text(Some(&token), &[("k", "v")])).unwrap();
        assert_eq!(full["serviceAccountToken"], "t");
        assert_eq!(full["serviceAccountAnnotations"], json!({"k": "v"}));
    }

    #[test]
    fn good_answers() {
        let text = answer(
            r#", "cacheKeyType": "Registry", "cacheDuration": "1h30m0s",
               "auth": {"*.r.io": {"username": "u", "password": "p"}}"#,
        );
        let read_it = read(V1, text.as_bytes()).unwrap();
        assert_eq!(read_it.key_type, KeyType::Registry);
        assert_eq!(read_it.duration, Some(Duration::from_secs(5400)));
        assert_eq!(read_it.logins["*.r.io"].password.expose(), "p");
        let bare = read(
            V1,
            answer(r#", "cacheKeyType": "Image", "auth": null"#).as_bytes(),
        );
        assert_eq!(bare.map(|a| (a.duration, a.logins.len())), Ok((None, 0)));
    }

    #[test]
    fn bad_answers() {
        use AnswerError as E;
        let auth = r#", "cacheKeyType": "Image", "auth": {"r.io": {"password": "geheim""#;
        let cases = [
            ("".to_owned(), E::NoVersion),
            ("geheim".to_owned(), E::NoVersion),
            (
                "[]".to_owned(),
                E::Version {
                    expected: V1.into(),
                    actual: String::new(),
                },
            ),
            (
                r#"{"apiVersion": "x/v1"}"#.to_owned(),
                E::Version {
                    expected: V1.into(),
                    actual: "x/v1".into(),
                },
            ),
            (answer("").replace(KIND, "Other"), E::Decode),
            (answer(""), E::KeyType(String::new())),
            (
                answer(r#", "cacheKeyType": "Pod""#),
                E::KeyType("Pod".into()),
            ),
            (answer(&format!("{auth}, \"x\": 1}}}}")), E::Decode),
            (answer(r#", "cacheKeyType": "Image", "more": 1"#), E::Decode),
            (
                answer(r#", "cacheKeyType": "Image", "cacheDuration": "soon""#),
                E::Decode,
            ),
            (
                answer(r#", "cacheKeyType": "Image", "auth": {"r": "geheim"}"#),
                E::Decode,
            ),
        ];
        for (text, expected) in cases {
            let found = read(V1, text.as_bytes());
            assert!(!format!("{found:?}").contains("geheim"));
            assert_eq!(found, Err(expected), "{text}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases.max(2000)))]

        #[test]
        fn never_panics(bytes in prop_oneof![
            "\\PC{0,60}".prop_map(String::into_bytes),
            prop::collection::vec(any::<u8>(), 0..60),
            // Bytes that are no text, where text is read.
            prop::collection::vec(any::<u8>(), 0..12)
                .prop_map(|odd| [br#"{"kind": ""#.as_slice(), &odd, b"\"}"].concat()),
            "[{}\\[\\],:\"a-z0-9]{0,40}".prop_map(|rest| answer(&format!(", \"auth\": {rest}")).into_bytes()),
            "[a-zA-Z0-9.-]{0,12}".prop_map(|d| answer(&format!(", \"cacheKeyType\": \"Image\", \"cacheDuration\": \"{d}\"")).into_bytes()),
        ]) {
            let _ = read(V1, &bytes);
        }

        #[test]
        fn what_was_answered_is_read(
            logins in prop::collection::btree_map("[a-z*.]{1,12}", ("[a-z]{0,8}", "\\PC{0,12}"), 0..4),
            seconds in 0_u64..100_000,
        ) {
            let auth: BTreeMap<&String, Value> = logins
                .iter()
                .map(|(image, (user, word))| (image, json!({"username": user, "password": word})))
                .collect();
            let rest = format!(", \"cacheKeyType\": \"Registry\", \"cacheDuration\": \"{seconds}s\", \"auth\": {}", json!(auth));
            let found = read(V1, answer(&rest).as_bytes()).unwrap();
            prop_assert_eq!(found.key_type, KeyType::Registry);
            prop_assert_eq!(found.duration, Some(Duration::from_secs(seconds)));
            let found: BTreeMap<String, (String, String)> = found
                .logins
                .into_iter()
                .map(|(image, login)| {
                    let word = |hidden: Hidden| hidden.expose().to_owned();
                    (image, (word(login.username), word(login.password)))
                })
                .collect();
            prop_assert_eq!(found, logins);
        }
    }
}
