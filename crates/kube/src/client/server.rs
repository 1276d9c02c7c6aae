//! Where the API server is, and whom we trust to be it.

use http::Uri;
use http::uri::{Authority, Scheme};

use crate::kubeconfig::{Kubeconfig, KubeconfigError, Pem};

/// Whose word we take for it that a server is the right one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trust {
    /// These authorities; a file is read anew for each connection.
    Authority(Pem),
    /// Those the machine trusts.
    Machine,
    /// Anybody's.
    Blind,
}

/// An API server's address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    pub(super) scheme: Scheme,
    /// Without the brackets of an IPv6 address.
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) authority: Authority,
    /// What paths begin with, such as `/k8s/clusters/c-1`; mostly nothing.
    pub(super) prefix: String,
    pub(super) trust: Trust,
    /// Whom the certificate must name, if not the host.
    pub(super) tls_name: Option<String>,
}

impl Server {
    /// `https://HOST[:PORT][/PREFIX]`; also `http://`, for tests. An address without a scheme is `https`.
    pub fn new(address: &str, trust: Trust) -> Result<Self, String> {
        let whole = match address.contains("://") {
            true => address.to_owned(),
            false => format!("https://{address}"),
        };
        let bad = |problem: &str| format!("{address:?} is no address of a server: {problem}");
        let uri: Uri = whole.parse().map_err(|e| bad(&format!("{e}")))?;
        let parts = uri.into_parts();
        let scheme = parts.scheme.unwrap_or(Scheme::HTTPS);
        let port = match scheme.as_str() {
            "https" => 443,
            "http" => 80,
            _ => return Err(bad("want https://HOST:PORT")),
        };
        let authority = parts.authority.ok_or_else(|| bad("there is no host"))?;
        let host = authority.host().trim_matches(['[', ']']);
        if host.is_empty() {
            return Err(bad("there is no host"));
        }
        let path = parts.path_and_query;
        let prefix = path.as_ref().map_or("", |path| path.path());
        Ok(Self {
            host: host.to_owned(),
            port: authority.port_u16().unwrap_or(port),
            prefix: prefix.trim_end_matches('/').to_owned(),
            scheme,
            authority,
            trust,
            tls_name: None,
        })
    }

    /// The certificate must name this, whatever host the server is reached by.
    pub fn tls_name(mut self, name: impl Into<String>) -> Self {
        self.tls_name = Some(name.into());
        self
    }

    /// That of the kubeconfig's current context.
    pub fn of(config: &Kubeconfig) -> Result<Self, KubeconfigError> {
        let (cluster, _) = config.current()?;
        let trust = match &cluster.certificate_authority {
            _ if cluster.insecure_skip_tls_verify => Trust::Blind,
            Some(pem) => Trust::Authority(pem.clone()),
            None => Trust::Machine,
        };
        let bad = |name: &str, problem| config.bad(config.cluster_field(cluster, name), problem);
        if let Trust::Authority(pem) = &trust {
            let read = super::tls::authorities(pem);
            read.map_err(|problem| bad("certificate-authority", problem))?;
        }
        let mut server = Self::new(&cluster.server, trust).map_err(|e| bad("server", e))?;
        server.tls_name = cluster.tls_server_name.clone();
        Ok(server)
    }

    pub(super) fn is_tls(&self) -> bool {
        self.scheme == Scheme::HTTPS
    }
}

impl std::fmt::Display for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}://{}{}", self.scheme, self.authority, self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        let cases = [
            ("https://10.0.0.1:6443", Some(("10.0.0.1", 6443, ""))),
            ("https://api.example", Some(("api.example", 443, ""))),
            ("https://[fd00::1]:6443/", Some(("fd00::1", 6443, ""))),
            ("http://localhost:8080", Some(("localhost", 8080, ""))),
            (
                "https://r/k8s/clusters/c-1/",
                Some(("r", 443, "/k8s/clusters/c-1")),
            ),
            ("api:6443", Some(("api", 6443, ""))),
            ("unix:///run/api", None),
            ("https://", None),
            ("https://a b", None),
            ("", None),
        ];
        for (address, expected) in cases {
            let server = Server::new(address, Trust::Machine);
            let found = server.as_ref().ok();
            let found = found.map(|s| (s.host.as_str(), s.port, s.prefix.as_str()));
            assert_eq!(found, expected, "{address}: {server:?}");
        }
    }
}
