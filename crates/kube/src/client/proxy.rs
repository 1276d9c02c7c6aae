//! A proxy between us and the API server: the connection goes through it as a tunnel (HTTP's `CONNECT`), so it sees
//! bytes of TLS and nothing else.

use std::fmt;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use krablet_linux::WallClock;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_rustls::TlsConnector;

use super::dial::{Dial, Transport};
use super::environment::Environment;
use super::server::{Server, Trust};
use super::tls;
use crate::ApiError;
use crate::kubeconfig::{Kubeconfig, Secret};

/// A proxy that answers with more than this before a tunnel is there is none.
const MAX_HEAD: usize = 8 << 10;

/// Where a proxy is, and what it wants to know of us. Printed without the latter.
#[derive(Clone, PartialEq, Eq)]
pub struct Proxy {
    server: Server,
    /// The value of `Proxy-Authorization`.
    authorization: Option<Secret>,
}

impl Proxy {
    /// `http[s]://[USER[:PASSWORD]@]HOST[:PORT]`. A complaint holds no password.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (scheme, rest) = text
            .split_once("://")
            .ok_or("a proxy is given as http://HOST:PORT")?;
        let scheme = scheme.to_ascii_lowercase();
        match scheme.as_str() {
            "http" | "https" => {}
            other => {
                let problem = "a proxy of this kind is not supported, only http and https are";
                return Err(format!("{other}: {problem}"));
            }
        }
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        let (user, host) = match authority.rsplit_once('@') {
            Some((user, host)) => (Some(user), host),
            None => (None, authority),
        };
        Ok(Self {
            server: Server::new(&format!("{scheme}://{host}"), Trust::Machine)?,
            authorization: user.map(authorization),
        })
    }

    /// The way to the server of the kubeconfig's current context: the proxy it names itself, else what the environment
    /// says. `None` is the straight way.
    pub fn of(config: &Kubeconfig, environment: &Environment) -> Result<Option<Self>, String> {
        let (cluster, _) = config.current().map_err(|e| e.to_string())?;
        if let Some(url) = &cluster.proxy_url {
            return Self::parse(url.expose()).map(Some);
        }
        let server = Server::of(config).map_err(|e| e.to_string())?;
        environment.proxy(&server)
    }

    /// Bytes to and from `to`, through the proxy.
    pub(super) async fn tunnel(
        &self,
        dial: &dyn Dial,
        to: &Server,
        clock: Arc<dyn WallClock>,
    ) -> Result<Box<dyn Transport>, ApiError> {
        let failed = |problem: &dyn fmt::Display| {
            ApiError::Connection(format!("{to}: by the proxy {self}: {problem}"))
        };
        let dialled = dial.dial(&self.server.host, self.server.port).await;
        let mut stream = dialled.map_err(|error| failed(&error))?;
        if self.server.is_tls() {
            stream = self.encrypt(stream, to, clock).await?;
        }
        let asked = self.ask(&mut stream, to).await;
        asked.map_err(|problem| failed(&problem))?;
        Ok(stream)
    }

    /// Whoever is believed to be the API server is believed to be its proxy, as Go's client does.
    async fn encrypt(
        &self,
        stream: Box<dyn Transport>,
        to: &Server,
        clock: Arc<dyn WallClock>,
    ) -> Result<Box<dyn Transport>, ApiError> {
        let proxy = Server {
            trust: to.trust.clone(),
            ..self.server.clone()
        };
        let name = tls::server_name(&proxy)?;
        let believed = proxy.clone();
        // Reads files.
        let config = tokio::task::spawn_blocking(move || {
            tls::config(&believed, None, clock, &[b"http/1.1"])
        });
        let config = config
            .await
            .map_err(|error| ApiError::Connection(error.to_string()))??;
        let connecting = TlsConnector::from(Arc::new(config)).connect(name, stream);
        let stream = connecting
            .await
            .map_err(|error| tls::failure(&proxy, &error))?;
        Ok(Box::new(stream))
    }

    async fn ask(&self, stream: &mut Box<dyn Transport>, to: &Server) -> Result<(), String> {
        let host = match to.host.contains(':') {
            true => format!("[{}]:{}", to.host, to.port),
            false => format!("{}:{}", to.host, to.port),
        };
        let mut request = format!("CONNECT {host} HTTP/1.1\r\nHost: {host}\r\n");
        if let Some(authorization) = &self.authorization {
            let value = authorization.expose();
            request.push_str(&format!("Proxy-Authorization: {value}\r\n"));
        }
        request.push_str("\r\n");
        let sent = stream.write_all(request.as_bytes()).await;
        sent.map_err(|e| e.to_string())?;
        stream.flush().await.map_err(|e| e.to_string())?;
        verdict(&head(stream).await?)
    }
}

/// The proxy's answer up to the empty line; what follows is not the proxy's any more, so no byte too many is read.
async fn head(stream: &mut Box<dyn Transport>) -> Result<Vec<u8>, String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() >= MAX_HEAD {
            return Err(format!("it answers with more than {MAX_HEAD} bytes"));
        }
        match stream.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => {
                return Err("it closed the connection".to_owned());
            }
            Err(e) => return Err(e.to_string()),
        }
    }
    Ok(head)
}

/// Whether there is a tunnel, by the first line of the answer.
fn verdict(head: &[u8]) -> Result<(), String> {
    let line = head.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let line = String::from_utf8_lossy(line);
    let (version, status) = line.split_once(' ').unwrap_or_default();
    match status.split(' ').next() {
        _ if !version.starts_with("HTTP/1.") => Err("it does not speak HTTP there".to_owned()),
        Some("200") => Ok(()),
        _ => Err(format!("it answers {}", status.trim())),
    }
}

impl fmt::Display for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.server)
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Proxy({self})")
    }
}

/// `user:password`, each as in an address.
fn authorization(user: &str) -> Secret {
    let (name, password) = user.split_once(':').unwrap_or((user, ""));
    let mut plain = decoded(name);
    plain.push(b':');
    plain.extend(decoded(password));
    Secret::new(format!("Basic {}", STANDARD.encode(plain)))
}

/// Without the `%XX` of addresses.
fn decoded(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((first, next)) = rest.split_first() {
        let hex = next.get(..2).filter(|_| *first == b'%');
        let hex = hex.and_then(|hex| std::str::from_utf8(hex).ok());
        match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = next.get(2..).unwrap_or_default();
            }
            None => {
                bytes.push(*first);
                rest = next;
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_proxies() {
        let basic = |plain: &str| Some(format!("Basic {}", STANDARD.encode(plain)));
        let cases = [
            (
                "http://proxy:3128",
                "http://proxy:3128",
                "proxy",
                3128,
                None,
            ),
            ("HTTPS://proxy/", "https://proxy", "proxy", 443, None),
            ("http://[fd00::1]", "http://[fd00::1]", "fd00::1", 80, None),
            (
                "http://me:p%40ss:w%3@p:1/x",
                "http://p:1",
                "p",
                1,
                basic("me:p@ss:w%3"),
            ),
            ("http://me@p", "http://p", "p", 80, basic("me:")),
        ];
        for (text, shown, host, port, authorization) in cases {
            let proxy = Proxy::parse(text).unwrap();
            let place = (
                proxy.to_string(),
                proxy.server.host.as_str(),
                proxy.server.port,
            );
            assert_eq!(place, (shown.to_owned(), host, port), "{text}");
            let given = proxy.authorization.as_ref().map(Secret::expose);
            assert_eq!(given, authorization.as_deref(), "{text}");
        }
        for (text, problem) in [
            ("proxy:3128", "a proxy is given as http://HOST:PORT"),
            (
                "socks5://proxy",
                "socks5: a proxy of this kind is not supported, only http and https are",
            ),
            (
                "http://me:secret@",
                "\"http://\" is no address of a server: empty string",
            ),
        ] {
            assert_eq!(Proxy::parse(text).unwrap_err(), problem);
        }
    }

    #[test]
    fn what_a_proxy_answers() {
        let cases = [
            ("HTTP/1.1 200 Connection established\r\n\r\n", None),
            ("HTTP/1.0 200\r\nVia: x\r\n\r\n", None),
            (
                "HTTP/1.1 407 Proxy Authentication Required\r\n\r\n",
                Some("it answers 407 Proxy Authentication Required"),
            ),
            ("SSH-2.0-x\r\n\r\n", Some("it does not speak HTTP there")),
            ("\r\n\r\n", Some("it does not speak HTTP there")),
        ];
        for (head, problem) in cases {
            let told = verdict(head.as_bytes()).err();
            assert_eq!(told.as_deref(), problem, "{head:?}");
        }
    }
}
