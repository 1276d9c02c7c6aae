//! Tokens of those who can set no header: a browser's WebSocket offers its token as one of the protocols it speaks.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::{HeaderMap, HeaderValue, header};

/// What stands before a token, which is in base64 for URLs without padding.
const TOKEN: &str = "base64url.bearer.authorization.k8s.io.";

/// The token among the protocols of who asks for a WebSocket, if there is one.
pub fn offered_token(headers: &HeaderMap) -> Result<Option<String>, &'static str> {
    if !asks_for_web_socket(headers) {
        return Ok(None);
    }
    let (mut token, mut protocols) = (None, 0);
    for name in names(headers) {
        match name.strip_prefix(TOKEN) {
            None => protocols += 1,
            Some(_) if token.is_some() => return Err("more than one token among the protocols"),
            Some(encoded) => token = Some(decoded(encoded)?),
        }
    }
    let token = token.filter(|token| !token.is_empty());
    match token.is_some() && protocols == 0 {
        true => Err("no protocol beside the token, and a token cannot be answered with"),
        false => Ok(token),
    }
}

/// The protocols that are none but that: who speaks them need not know the token.
pub fn offered_protocols(headers: &HeaderMap) -> Option<HeaderValue> {
    let spoken = names(headers).filter(|name| !name.is_empty() && !name.starts_with(TOKEN));
    let spoken = spoken.collect::<Vec<_>>().join(", ");
    HeaderValue::from_str(&spoken)
        .ok()
        .filter(|spoken| !spoken.is_empty())
}

/// Those of a line that is no text are nobody's.
fn names(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let lines = headers.get_all(header::SEC_WEBSOCKET_PROTOCOL).iter();
    let lines = lines.filter_map(|line| line.to_str().ok());
    lines.flat_map(|line| line.split(',')).map(str::trim)
}

fn decoded(encoded: &str) -> Result<String, &'static str> {
    let bytes = URL_SAFE_NO_PAD.decode(encoded).ok();
    let text = bytes.and_then(|bytes| String::from_utf8(bytes).ok());
    text.ok_or("a token among the protocols that is no base64 of a text")
}

fn asks_for_web_socket(headers: &HeaderMap) -> bool {
    let has = |name, word: &str| {
        let lines = headers.get_all(name).iter();
        let lines = lines.filter_map(|line| line.to_str().ok());
        let mut words = lines.flat_map(|line| line.split(','));
        words.any(|w| w.trim().eq_ignore_ascii_case(word))
    };
    has(header::UPGRADE, "websocket") && has(header::CONNECTION, "upgrade")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn asked(upgrade: &str, lines: &[String]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONNECTION, "keep-alive, Upgrade".parse().unwrap());
        headers.insert(header::UPGRADE, upgrade.parse().unwrap());
        for line in lines {
            headers.append(header::SEC_WEBSOCKET_PROTOCOL, line.parse().unwrap());
        }
        headers
    }

    fn as_protocol(token: &str) -> String {
        format!("{TOKEN}{}", URL_SAFE_NO_PAD.encode(token))
    }

    #[test]
    fn tokens_among_protocols() {
        let (token, other) = (as_protocol("secret~?"), as_protocol("other"));
        let v5 = "v5.channel.k8s.io";
        let line = |words: &[&str]| words.join(", ");
        let found = |text: &str| Ok(Some(text.to_owned()));
        let table = [
            (Vec::<String>::new(), Ok(None), None),
            (vec![v5.into()], Ok(None), Some(v5)),
            (vec![line(&[v5, &token])], found("secret~?"), Some(v5)),
            (vec![token.clone(), v5.into()], found("secret~?"), Some(v5)),
            (vec![token.clone()], Err(()), None),
            (vec![line(&[v5, &token, &other])], Err(()), Some(v5)),
            (vec![line(&[v5, &format!("{TOKEN}a=")])], Err(()), Some(v5)),
            (vec![line(&[v5, &format!("{TOKEN}_w")])], Err(()), Some(v5)),
            (vec![line(&[v5, TOKEN])], Ok(None), Some(v5)),
        ];
        for (lines, token, protocols) in table {
            let headers = asked("WebSocket", &lines);
            assert_eq!(offered_token(&headers).map_err(drop), token, "{lines:?}");
            let others = asked("SPDY/3.1", &lines);
            assert_eq!(offered_token(&others), Ok(None), "{lines:?}");
            for headers in [headers, others] {
                let passed = offered_protocols(&headers);
                assert_eq!(passed.as_ref().map(|p| p.to_str().unwrap()), protocols);
            }
        }
    }

    proptest! {
        #[test]
        fn any_protocols_hide_no_token(lines in proptest::collection::vec(
            "((base64url\\.bearer\\.authorization\\.k8s\\.io\\.)?[ -~]{0,12},? ?){0,4}", 0..3,
        )) {
            let lines: Vec<String> = lines.iter().map(|line| line.trim().to_owned()).collect();
            let headers = asked("websocket", &lines);
            let _ = offered_token(&headers);
            let passed = offered_protocols(&headers);
            for name in passed.iter().flat_map(|p| p.to_str().unwrap().split(',')) {
                prop_assert!(!name.trim().starts_with(TOKEN), "{name}");
            }
        }
    }
}
