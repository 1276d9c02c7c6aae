//! The formats of names: DNS labels and subdomains, label keys and values, ports, environment variables,
//! sysctls, addresses. Each check returns what is wrong, nothing when all is well.

use std::net::IpAddr;

const LABEL_MAX: usize = 63;
const SUBDOMAIN_MAX: usize = 253;
const PORT_NAME_MAX: usize = 15;
pub(crate) const SYSCTL_MAX: usize = 253;

const LABEL_RULE: &str = "must be a lowercase RFC 1123 label: lower case letters, digits and '-', beginning \
     and ending with a letter or digit (e.g. 'my-name', '123-abc', regex '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
const SUBDOMAIN_RULE: &str = "must be a lowercase RFC 1123 subdomain: lower case letters, digits, '-' and '.', beginning \
     and ending with a letter or digit (e.g. 'example.com', regex \
     '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const KEY_RULE: &str = "must be letters, digits, '-', '_' and '.', beginning and ending with a letter or digit \
     (e.g. 'MyName', 'my.name', '123-abc', regex '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";

fn too_long(limit: usize) -> String {
    format!("must be no more than {limit} characters")
}

fn is_alnum(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit()
}

/// Not empty, ends fitting `edge`, everything between fitting `middle` too.
fn shaped(text: &str, edge: impl Fn(u8) -> bool, middle: impl Fn(u8) -> bool) -> bool {
    let bytes = text.as_bytes();
    match (bytes.first(), bytes.last()) {
        (Some(first), Some(last)) => {
            edge(*first) && edge(*last) && bytes.iter().all(|byte| edge(*byte) || middle(*byte))
        }
        _ => false,
    }
}

fn label_shaped(text: &str) -> bool {
    shaped(text, is_alnum, |byte| byte == b'-')
}

fn subdomain_shaped(text: &str) -> bool {
    text.split('.').all(label_shaped)
}

pub(crate) fn dns_label(text: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    if text.len() > LABEL_MAX {
        wrong.push(too_long(LABEL_MAX));
    }
    if !label_shaped(text) {
        wrong.push(if subdomain_shaped(text) {
            "must not contain dots".to_owned()
        } else {
            LABEL_RULE.to_owned()
        });
    }
    wrong
}

pub(crate) fn dns_subdomain(text: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    if text.len() > SUBDOMAIN_MAX {
        wrong.push(too_long(SUBDOMAIN_MAX));
    }
    if !subdomain_shaped(text) {
        wrong.push(SUBDOMAIN_RULE.to_owned());
    }
    wrong
}

/// A DNS search path: a subdomain whose labels may hold and begin with an underscore.
pub(crate) fn dns_search(text: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    if text.len() > SUBDOMAIN_MAX {
        wrong.push(too_long(SUBDOMAIN_MAX));
    }
    let fits = |label: &str| {
        let label = label.strip_prefix('_').unwrap_or(label);
        shaped(label, is_alnum, |byte| byte == b'-' || byte == b'_')
    };
    if !text.split('.').all(fits) {
        wrong.push(
            "must be a lowercase RFC 1123 subdomain, in which '_' is allowed as well \
             (e.g. 'example.com', '_tcp.example.com')"
                .to_owned(),
        );
    }
    wrong
}

fn key_shaped(text: &str) -> bool {
    shaped(
        text,
        |byte| byte.is_ascii_alphanumeric(),
        |byte| matches!(byte, b'-' | b'_' | b'.'),
    )
}

/// A label key: a name, with or without a DNS subdomain and '/' before it.
pub(crate) fn qualified_name(text: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut parts = text.split('/');
    let name = match (parts.next(), parts.next(), parts.next()) {
        (Some(name), None, _) => name,
        (Some(prefix), Some(name), None) => {
            if prefix.is_empty() {
                wrong.push("prefix part must be non-empty".to_owned());
            } else {
                wrong.extend(
                    dns_subdomain(prefix)
                        .into_iter()
                        .map(|message| format!("prefix part {message}")),
                );
            }
            name
        }
        _ => {
            wrong.push(format!(
                "must have at most one '/', between a DNS subdomain and a name (e.g. 'example.com/MyName'); the name {KEY_RULE}"
            ));
            return wrong;
        }
    };
    if name.is_empty() {
        wrong.push("name part must be non-empty".to_owned());
    } else if name.len() > LABEL_MAX {
        wrong.push(format!("name part {}", too_long(LABEL_MAX)));
    }
    if !key_shaped(name) {
        wrong.push(format!("name part {KEY_RULE}"));
    }
    wrong
}

pub(crate) fn label_value(text: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    if text.len() > LABEL_MAX {
        wrong.push(too_long(LABEL_MAX));
    }
    if !text.is_empty() && !key_shaped(text) {
        wrong.push(format!("a label value must be empty or {KEY_RULE}"));
    }
    wrong
}

pub(crate) fn port_number(port: i64) -> Vec<String> {
    if (1..=65535).contains(&port) {
        Vec::new()
    } else {
        vec!["must be between 1 and 65535, inclusive".to_owned()]
    }
}

pub(crate) fn port_name(text: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    if text.len() > PORT_NAME_MAX {
        wrong.push(too_long(PORT_NAME_MAX));
    }
    if text.is_empty() || !text.bytes().all(|byte| is_alnum(byte) || byte == b'-') {
        wrong.push(
            "must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)".to_owned(),
        );
    }
    if !text.bytes().any(|byte| byte.is_ascii_lowercase()) {
        wrong.push("must contain at least one letter (a-z)".to_owned());
    }
    if text.contains("--") {
        wrong.push("must not contain consecutive hyphens".to_owned());
    }
    if text.starts_with('-') || text.ends_with('-') {
        wrong.push("must not begin or end with a hyphen".to_owned());
    }
    wrong
}

/// An environment variable: printable ASCII without '=' (the relaxed rule, fixed since 1.34).
pub(crate) fn env_name(text: &str) -> Vec<String> {
    if text
        .bytes()
        .all(|byte| (0x20..0x7f).contains(&byte) && byte != b'=')
    {
        Vec::new()
    } else {
        vec!["must consist only of printable ASCII characters other than '='".to_owned()]
    }
}

pub(crate) fn header_name(text: &str) -> Vec<String> {
    if !text.is_empty()
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    {
        Vec::new()
    } else {
        vec!["an HTTP header name must consist of letters, digits or '-' (e.g. 'X-Header-Name', regex '[-A-Za-z0-9]+')".to_owned()]
    }
}

/// A key of a config map or secret.
pub(crate) fn config_key(text: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    if text.len() > SUBDOMAIN_MAX {
        wrong.push(too_long(SUBDOMAIN_MAX));
    }
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if text.is_empty() || !text.bytes().all(fits) {
        wrong.push(
            "a config key must consist of letters, digits, '-', '_' or '.' (regex '[-._a-zA-Z0-9]+')"
                .to_owned(),
        );
    }
    match text {
        "." => wrong.push("must not be '.'".to_owned()),
        ".." => wrong.push("must not be '..'".to_owned()),
        text if text.starts_with("..") => wrong.push("must not start with '..'".to_owned()),
        _ => {}
    }
    wrong
}

pub(crate) fn is_sysctl(text: &str) -> bool {
    text.len() <= SYSCTL_MAX
        && text
            .split(['.', '/'])
            .all(|part| shaped(part, is_alnum, |byte| byte == b'-' || byte == b'_'))
}

/// An IP address, strictly: no leading zeros, no IPv4 inside IPv6.
pub(crate) fn ip_address(text: &str) -> Vec<String> {
    match text.parse::<IpAddr>() {
        Ok(IpAddr::V6(address)) if address.to_ipv4_mapped().is_some() => {
            vec!["must not be an IPv4-mapped IPv6 address".to_owned()]
        }
        Ok(_) => Vec::new(),
        Err(_) => vec!["must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)".to_owned()],
    }
}

/// User and group ids as the runtimes take them.
pub(crate) fn user_or_group_id(id: i64) -> Vec<String> {
    if (0..=i64::from(i32::MAX)).contains(&id) {
        Vec::new()
    } else {
        vec![format!("must be between 0 and {}, inclusive", i32::MAX)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(messages: Vec<String>) -> bool {
        !messages.is_empty()
    }

    #[test]
    fn labels_and_subdomains() {
        let long = "a".repeat(64);
        for (text, label, subdomain) in [
            ("a", true, true),
            ("a-b", true, true),
            ("0", true, true),
            ("a.b", false, true),
            ("", false, false),
            ("-a", false, false),
            ("a-", false, false),
            ("A", false, false),
            ("a_b", false, false),
            ("a..b", false, false),
            (long.as_str(), false, true),
        ] {
            assert_eq!(!wrong(dns_label(text)), label, "label {text}");
            assert_eq!(!wrong(dns_subdomain(text)), subdomain, "subdomain {text}");
        }
        assert_eq!(dns_label("a.b"), ["must not contain dots"]);
    }

    #[test]
    fn keys_and_values() {
        for (text, fits) in [
            ("app", true),
            ("example.com/App_1.x", true),
            ("/app", false),
            ("example.com/", false),
            ("a/b/c", false),
            ("Example.com/app", false),
            ("", false),
            ("-app", false),
        ] {
            assert_eq!(!wrong(qualified_name(text)), fits, "{text}");
        }
        assert!(!wrong(label_value("")));
        assert!(wrong(label_value("a b")));
        assert!(wrong(label_value(&"a".repeat(64))));
    }

    #[test]
    fn the_rest() {
        assert!(!wrong(port_name("http-1")));
        for text in ["", "HTTP", "1", "a--b", "-a", "a-", "abcdefghijklmnop"] {
            assert!(wrong(port_name(text)), "{text}");
        }
        assert!(!wrong(env_name("1.a-b C")));
        assert!(wrong(env_name("a=b")));
        assert!(wrong(env_name("é")));
        assert!(is_sysctl("net.ipv4.conf/eth0.1"));
        assert!(!is_sysctl("net..x"));
        assert!(!is_sysctl("Net.x"));
        for text in ["", "1.2.3", "01.2.3.4", "::ffff:1.2.3.4", "1.2.3.4/8"] {
            assert!(wrong(ip_address(text)), "{text}");
        }
        assert!(!wrong(ip_address("fd00::1")));
        assert!(!wrong(dns_search("_tcp.a_b.c")));
        assert!(wrong(dns_search("a..b")));
        assert!(wrong(config_key("..a")));
        assert!(wrong(header_name("a b")));
        assert!(wrong(user_or_group_id(-1)));
    }
}
