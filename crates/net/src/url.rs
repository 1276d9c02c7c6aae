//! URLs and headers of requests to pods, put together as upstream does.

use crate::dial::join_host_port;

/// The URL of an `httpGet` action. The path may carry a query; whatever is not fit for a URL is
/// escaped, as it is too late to refuse it.
pub fn pod_url(scheme: &str, host: &str, port: u16, path: &str) -> String {
    let scheme = match scheme {
        "" => "http".to_string(),
        other => other.to_lowercase(),
    };
    // A whole URL given as a path lends its path alone.
    let path = match path.split_once("://") {
        Some((before, rest)) if is_scheme(before) => {
            rest.find('/').map_or("", |slash| &rest[slash..])
        }
        _ => path,
    };
    let path = path.split_once('#').map_or(path, |(p, _)| p);
    let slash = if path.starts_with('/') || path.is_empty() || path.starts_with('?') {
        ""
    } else {
        "/"
    };
    let path = escape(path);
    format!("{scheme}://{}{slash}{path}", join_host_port(host, port))
}

fn is_scheme(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.'))
}

/// Percent-escapes what may not stand in a path or query; what is escaped already stays.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'"' | b'<' | b'>' | b'\\' | b'^' | b'`' | b'{' | b'|' | b'}' => push(&mut out, byte),
            0x21..=0x7e => out.push(char::from(byte)),
            _ => push(&mut out, byte),
        }
    }
    out
}

fn push(out: &mut String, byte: u8) {
    use std::fmt::Write as _;
    let _ = write!(out, "%{byte:02X}");
}

/// The headers of an `httpGet` action: those of the spec, the user agent and `Accept: */*` unless
/// the spec says otherwise (an empty `Accept` takes it away).
pub fn pod_headers<'a>(
    user_agent: &str,
    headers: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> Vec<(String, String)> {
    let mut all: Vec<(String, String)> = headers
        .into_iter()
        .map(|(name, value)| (name.to_string(), value.to_string()))
        .collect();
    let first = |all: &[(String, String)], name: &str| {
        all.iter()
            .find(|(n, _)| n.eq_ignore_ascii_case(name))
            .map(|(_, v)| v.is_empty())
    };
    if first(&all, "User-Agent").is_none() {
        all.push(("User-Agent".into(), user_agent.into()));
    }
    match first(&all, "Accept") {
        None => all.push(("Accept".into(), "*/*".into())),
        Some(true) => all.retain(|(n, _)| !n.eq_ignore_ascii_case("Accept")),
        Some(false) => {}
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls() {
        for (scheme, host, path, url) in [
            ("", "10.0.0.1", "", "http://10.0.0.1:80"),
            ("HTTPS", "10.0.0.1", "/", "https://10.0.0.1:80/"),
            (
                "HTTP",
                "fd00::1",
                "/x?a=b c",
                "http://[fd00::1]:80/x?a=b%20c",
            ),
            ("HTTP", "[fd00::1]", "/", "http://[fd00::1]:80/"),
            ("HTTP", "h", "healthz", "http://h:80/healthz"),
            ("HTTP", "h", "/a%20b/ü", "http://h:80/a%20b/%C3%BC"),
            ("HTTP", "h", "/x#frag", "http://h:80/x"),
            ("HTTP", "h", "http://other/x?y", "http://h:80/x?y"),
            ("HTTP", "h", "?next=http://x/", "http://h:80?next=http://x/"),
        ] {
            assert_eq!(pod_url(scheme, host, 80, path), url);
        }
    }

    #[test]
    fn headers() {
        let of = |headers: &[(&'static str, &'static str)]| {
            let all = pod_headers("kube-probe/1.36", headers.iter().copied());
            let lines: Vec<String> = all.iter().map(|(n, v)| format!("{n}: {v}")).collect();
            lines.join(", ")
        };
        assert_eq!(of(&[]), "User-Agent: kube-probe/1.36, Accept: */*");
        assert_eq!(
            of(&[("user-agent", "me"), ("X", "1"), ("X", "2"), ("accept", "")]),
            "user-agent: me, X: 1, X: 2"
        );
    }
}
