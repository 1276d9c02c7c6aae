//! What the environment says of proxies, read as Go's programs read it: `HTTPS_PROXY` and `NO_PROXY`, or their
//! lower-case names.

use std::net::IpAddr;

use super::proxy::Proxy;
use super::server::Server;

/// Nothing of it is printed: it may hold a password.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Environment {
    https: String,
    exempt: String,
}

impl Environment {
    /// From variables by their names.
    pub fn of(variable: impl Fn(&str) -> Option<String>) -> Self {
        let either = |upper: &str, lower: &str| {
            let upper = variable(upper).filter(|value| !value.is_empty());
            upper.or_else(|| variable(lower)).unwrap_or_default()
        };
        Self {
            https: either("HTTPS_PROXY", "https_proxy"),
            exempt: either("NO_PROXY", "no_proxy"),
        }
    }

    /// The proxy for this server. An API server without TLS is one of a test, and reached without.
    pub(super) fn proxy(&self, server: &Server) -> Result<Option<Proxy>, String> {
        let straight = self.https.is_empty()
            || !server.is_tls()
            || is_exempt(&self.exempt, &server.host, server.port);
        if straight {
            return Ok(None);
        }
        let proxy = match self.https.contains("://") {
            true => Proxy::parse(&self.https),
            false => Proxy::parse(&format!("http://{}", self.https)),
        };
        proxy.map(Some).map_err(|e| format!("HTTPS_PROXY: {e}"))
    }
}

/// Whether no proxy is asked for this host: its own machine never is by one, and the list is of hosts, addresses and
/// ranges of them.
fn is_exempt(list: &str, host: &str, port: u16) -> bool {
    let host = host.trim().to_ascii_lowercase();
    let ip = host.parse::<IpAddr>().ok().map(|ip| ip.to_canonical());
    if host == "localhost" || ip.is_some_and(|ip| ip.is_loopback()) {
        return true;
    }
    let entries = list
        .split(',')
        .map(|entry| entry.trim().to_ascii_lowercase());
    entries
        .filter(|entry| !entry.is_empty())
        .any(|entry| matches(&entry, &host, ip, port))
}

fn matches(entry: &str, host: &str, ip: Option<IpAddr>, port: u16) -> bool {
    if entry == "*" {
        return true;
    }
    if let Some((range, bits)) = range(entry) {
        return ip.is_some_and(|ip| is_within(ip, range, bits));
    }
    let (name, wanted) = with_port(entry);
    if wanted.is_some_and(|wanted| wanted != port.to_string()) {
        return false;
    }
    if let Ok(listed) = name.parse::<IpAddr>() {
        return ip == Some(listed.to_canonical());
    }
    // `.example.org` and `*.example.org` are what is below it, `example.org` is it, too.
    let below = match name.strip_prefix('*') {
        Some(below) if below.starts_with('.') => below,
        _ => name,
    };
    match below {
        "" | "." => false,
        _ if below.starts_with('.') => host.ends_with(below),
        _ => host == below || host.ends_with(&format!(".{below}")),
    }
}

/// Name and port of an entry. An address of IPv6 with a port stands in brackets.
fn with_port(entry: &str) -> (&str, Option<&str>) {
    if let Some((name, rest)) = entry.strip_prefix('[').and_then(|e| e.split_once(']')) {
        return (name, rest.strip_prefix(':'));
    }
    match entry.split_once(':') {
        Some((name, port)) if !port.contains(':') => (name, Some(port)),
        _ => (entry, None),
    }
}

fn range(entry: &str) -> Option<(IpAddr, u32)> {
    let (ip, bits) = entry.split_once('/')?;
    let (ip, bits) = (ip.parse::<IpAddr>().ok()?, bits.parse().ok()?);
    let most = if ip.is_ipv4() { 32 } else { 128 };
    (bits <= most).then_some((ip, bits))
}

fn is_within(ip: IpAddr, range: IpAddr, bits: u32) -> bool {
    match (ip, range) {
        (IpAddr::V4(ip), IpAddr::V4(range)) => {
            let differ = ip.to_bits() ^ range.to_bits();
            differ.leading_zeros() >= bits
        }
        (IpAddr::V6(ip), IpAddr::V6(range)) => {
            let differ = ip.to_bits() ^ range.to_bits();
            differ.leading_zeros() >= bits
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Trust;

    #[test]
    fn who_is_reached_without_a_proxy() {
        let cases = [
            ("", "api.example.org", false),
            ("", "localhost", true),
            ("", "127.0.0.9", true),
            ("", "::1", true),
            ("*", "api.example.org", true),
            ("example.org", "api.example.org", true),
            ("example.org", "example.org", true),
            ("example.org", "notexample.org", false),
            (".example.org", "api.example.org", true),
            (".example.org", "example.org", false),
            ("*.example.org", "api.example.org", true),
            ("*.example.org", "example.org", false),
            (" Example.ORG , other", "API.example.org", true),
            ("api.example.org:6443", "api.example.org", true),
            ("api.example.org:443", "api.example.org", false),
            ("10.0.0.1", "10.0.0.1", true),
            ("10.0.0.1:443", "10.0.0.1", false),
            ("10.0.0.1", "10.0.0.11", false),
            ("10.0.0.0/8,192.168.0.0/16", "192.168.7.7", true),
            ("10.0.0.0/8", "11.0.0.1", false),
            ("0.0.0.0/0", "11.0.0.1", true),
            ("fd00::/8", "fd12::1", true),
            ("fd00::/8", "10.0.0.1", false),
            ("fd12::1", "fd12::1", true),
            ("[fd12::1]:6443", "fd12::1", true),
            ("[fd12::1]:443", "fd12::1", false),
            ("10.0.0.0/99", "10.0.0.1", false),
            (", ,.,*.", "api", false),
        ];
        for (list, host, expected) in cases {
            assert_eq!(is_exempt(list, host, 6443), expected, "{list:?} {host}");
        }
    }

    fn environment(variables: &[(&str, &str)]) -> Environment {
        let find = |name: &str| variables.iter().find(|(n, _)| *n == name);
        Environment::of(|name| find(name).map(|(_, value)| (*value).to_owned()))
    }

    #[test]
    fn which_proxy_is_taken() {
        let proxy = |variables: &[(&str, &str)], server: &str| {
            let server = Server::new(server, Trust::Machine).unwrap();
            let found = environment(variables).proxy(&server);
            found.map(|proxy| proxy.map(|proxy| proxy.to_string()))
        };
        let api = "https://api:6443";
        let through = |proxy: &str| Ok(Some(proxy.to_owned()));
        let lower = [("https_proxy", "p:3128")];
        let both = [("HTTPS_PROXY", "https://q"), ("https_proxy", "p:3128")];
        assert_eq!(proxy(&[], api), Ok(None));
        assert_eq!(proxy(&[("HTTP_PROXY", "p:3128")], api), Ok(None));
        assert_eq!(proxy(&lower, api), through("http://p:3128"));
        assert_eq!(proxy(&both, api), through("https://q"));
        assert_eq!(proxy(&lower, "http://api:8080"), Ok(None));
        let exempt = [("HTTPS_PROXY", "p:1"), ("no_proxy", "api")];
        assert_eq!(proxy(&exempt, api), Ok(None));
        let bad = [("HTTPS_PROXY", "socks5://me:secret@p")];
        let told = proxy(&bad, api).unwrap_err();
        assert_eq!(
            told,
            "HTTPS_PROXY: socks5: a proxy of this kind is not supported, only http and https are"
        );
    }
}
