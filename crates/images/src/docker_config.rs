//! Docker's files of registry credentials, in both of their forms: `config.json` with its `auths`, and the
//! older `.dockercfg` that is nothing but them.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use serde_json::{Map, Value};

use crate::hidden::Hidden;

/// By registry or repository, as written.
pub type DockerConfig = BTreeMap<String, Login>;

/// What one registry wants to hear.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Login {
    pub username: Hidden,
    pub password: Hidden,
    pub email: Hidden,
}

/// Why a file of credentials cannot be used. Says nothing of what is in it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DockerConfigError {
    #[error("error occurred while trying to unmarshal json")]
    Json,
    #[error("illegal base64 data in the auth field of {0:?}")]
    Base64(String),
    #[error("unable to parse auth field, must be formatted as base64(username:password)")]
    Auth,
}

/// `config.json`, and secrets of type `kubernetes.io/dockerconfigjson`.
pub fn read_config_json(bytes: &[u8]) -> Result<DockerConfig, DockerConfigError> {
    let file = object(serde_json::from_slice(bytes).map_err(|_| DockerConfigError::Json)?)?;
    match field(&file, "auths") {
        Some(auths) => entries(object(auths.clone())?),
        None => Ok(DockerConfig::new()),
    }
}

/// `.dockercfg`, and secrets of type `kubernetes.io/dockercfg`.
pub fn read_dockercfg(bytes: &[u8]) -> Result<DockerConfig, DockerConfigError> {
    entries(object(
        serde_json::from_slice(bytes).map_err(|_| DockerConfigError::Json)?,
    )?)
}

fn object(value: Value) -> Result<Map<String, Value>, DockerConfigError> {
    match value {
        Value::Object(map) => Ok(map),
        Value::Null => Ok(Map::new()),
        _ => Err(DockerConfigError::Json),
    }
}

/// Go finds a field whatever the case of its letters.
fn field<'a>(map: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    let any_case = || map.iter().find(|(key, _)| key.eq_ignore_ascii_case(name));
    map.get(name).or_else(|| any_case().map(|(_, value)| value))
}

fn entries(map: Map<String, Value>) -> Result<DockerConfig, DockerConfigError> {
    let read = |(place, value): (String, Value)| {
        let login = login(&place, &object(value)?)?;
        Ok((place, login))
    };
    map.into_iter().map(read).collect()
}

fn login(place: &str, entry: &Map<String, Value>) -> Result<Login, DockerConfigError> {
    let text = |name: &str| match field(entry, name) {
        None | Some(Value::Null) => Ok(String::new()),
        Some(Value::String(text)) => Ok(text.clone()),
        Some(_) => Err(DockerConfigError::Json),
    };
    let (mut username, mut password) = (text("username")?, text("password")?);
    let auth = text("auth")?;
    if !auth.is_empty() {
        (username, password) = decode_auth(place, &auth)?;
    }
    Ok(Login {
        username: Hidden::new(username),
        password: Hidden::new(password),
        email: Hidden::new(text("email")?),
    })
}

/// `base64(username:password)`, with or without padding.
fn decode_auth(place: &str, auth: &str) -> Result<(String, String), DockerConfigError> {
    let padding = match auth.trim().ends_with('=') {
        true => DecodePaddingMode::RequireCanonical,
        false => DecodePaddingMode::RequireNone,
    };
    let lenient = GeneralPurposeConfig::new()
        .with_decode_allow_trailing_bits(true)
        .with_decode_padding_mode(padding);
    let letters: String = auth.chars().filter(|c| !matches!(c, '\r' | '\n')).collect();
    let decoded = GeneralPurpose::new(&STANDARD, lenient).decode(letters);
    let text = decoded.ok().and_then(|bytes| String::from_utf8(bytes).ok());
    let text = text.ok_or_else(|| DockerConfigError::Base64(place.to_owned()))?;
    let (username, password) = text.split_once(':').ok_or(DockerConfigError::Auth)?;
    Ok((username.to_owned(), password.to_owned()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shown(config: &DockerConfig) -> Vec<String> {
        let line = |(place, login): (&String, &Login)| {
            let words = [&login.username, &login.password, &login.email];
            format!("{place}={}", words.map(Hidden::expose).join("|"))
        };
        config.iter().map(line).collect()
    }

    #[test]
    fn both_forms() {
        let auths = r#"{"a.io": {"username": "u", "password": "p", "email": "e"},
                        "b.io": {"username": "x", "auth": "dXNlcjpwYTpzcw=="},
                        "c.io": {"auth": "dTpwYXM"}, "d.io": {}, "e.io": null}"#;
        let expected = [
            "a.io=u|p|e",
            "b.io=user|pa:ss|",
            "c.io=u|pas|",
            "d.io=||",
            "e.io=||",
        ];
        let whole = format!(r#"{{"Auths": {auths}, "credsStore": "x", "HttpHeaders": {{}}}}"#);
        assert_eq!(
            shown(&read_config_json(whole.as_bytes()).unwrap()),
            expected
        );
        assert_eq!(shown(&read_dockercfg(auths.as_bytes()).unwrap()), expected);
        assert_eq!(read_config_json(b"{}"), Ok(DockerConfig::new()));
        assert_eq!(read_config_json(b"null"), Ok(DockerConfig::new()));
    }

    #[test]
    fn what_cannot_be_read_is_told_without_its_content() {
        use DockerConfigError as E;
        let base64 = || E::Base64("r".into());
        let cases = [
            ("", E::Json),
            ("{", E::Json),
            ("[]", E::Json),
            (r#"{"auths": []}"#, E::Json),
            (r#"{"auths": {"r": "secret"}}"#, E::Json),
            (r#"{"auths": {"r": {"username": 7}}}"#, E::Json),
            (r#"{"auths": {"r": {"auth": "!!!"}}}"#, base64()),
            (r#"{"auths": {"r": {"auth": "dTpw="}}}"#, base64()),
            (r#"{"auths": {"r": {"auth": "bm90aGluZw=="}}}"#, E::Auth),
        ];
        for (text, expected) in cases {
            assert_eq!(read_config_json(text.as_bytes()), Err(expected), "{text}");
        }
    }

    #[test]
    fn a_login_is_not_printed() {
        let config = read_dockercfg(br#"{"r.io": {"auth": "dXNlcjpzZWNyZXQ="}}"#).unwrap();
        let printed = format!("{config:?}");
        assert!(
            !printed.contains("secret") && !printed.contains("user\""),
            "{printed}"
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases.max(2000)))]

        /// Whatever comes in, an answer comes out, and an error never repeats what it read.
        #[test]
        fn never_panics_never_tells(bytes in prop_oneof![
            "\\PC{0,60}".prop_map(String::into_bytes),
            prop::collection::vec(any::<u8>(), 0..60),
            "\\{\"auths\": \\{\"r\": \\{\"auth\": \"[A-Za-z0-9+/=\\\\n]{0,24}\"\\}\\}\\}".prop_map(String::into_bytes),
            // Who and what, that are no text.
            prop::collection::vec(any::<u8>(), 0..24).prop_map(|odd| {
                let odd = base64::engine::general_purpose::STANDARD.encode(odd);
                format!("{{\"auths\": {{\"r\": {{\"auth\": \"{odd}\"}}}}}}").into_bytes()
            }),
        ]) {
            let text = String::from_utf8_lossy(&bytes);
            for outcome in [read_config_json(&bytes), read_dockercfg(&bytes)] {
                if let Err(error) = outcome {
                    let told = error.to_string();
                    prop_assert!(text.len() < 12 || !told.contains(&*text));
                }
            }
        }

        /// Whoever is written down, in either way, is whom the registry hears of.
        #[test]
        fn what_was_written_is_read(
            registry in "[a-z]{1,8}\\.[a-z]{2}(:[0-9]{1,4})?",
            username in "[a-z0-9._-]{1,12}",
            password in "[a-zA-Z0-9:$!/+=]{1,16}",
        ) {
            use base64::engine::general_purpose::STANDARD as BASE64;
            let joined = BASE64.encode(format!("{username}:{password}"));
            let login = Login {
                username: Hidden::new(username.clone()),
                password: Hidden::new(password.clone()),
                ..Login::default()
            };
            for entry in [
                serde_json::json!({"auth": joined}),
                serde_json::json!({"username": username, "password": password}),
            ] {
                let auths = serde_json::json!({registry.clone(): entry});
                let file = serde_json::json!({"auths": auths});
                let expected = Ok(DockerConfig::from([(registry.clone(), login.clone())]));
                prop_assert_eq!(&read_config_json(file.to_string().as_bytes()), &expected);
                prop_assert_eq!(&read_dockercfg(auths.to_string().as_bytes()), &expected);
            }
        }
    }
}
