//! The HTTPS door with a pod behind it and a runtime that echoes, and clients that trust it.

#![allow(dead_code, reason = "no test needs all of it")]

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use krablet_access::{Authenticator, Authorizer};
use krablet_cri::{StreamingService, v1};
use krablet_metrics::HttpMetrics;
use krablet_server::{
    About, Access, Debug, HealthRecord, Listener, NodeLogs, SecureParts, ServingPair, TlsLimits,
    serve_secure,
};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, RootCertStore, SupportedProtocolVersion};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::node::{OneContainer, OnePod, Quiet, running_pod};

/// Serves every stream at one place.
struct Echo(SocketAddr);

#[async_trait]
impl StreamingService for Echo {
    async fn exec(&self, _: v1::ExecRequest) -> krablet_cri::Result<String> {
        Ok(format!("http://{}/exec", self.0))
    }
    async fn attach(&self, _: v1::AttachRequest) -> krablet_cri::Result<String> {
        Ok(format!("http://{}/attach", self.0))
    }
    async fn port_forward(&self, _: v1::PortForwardRequest) -> krablet_cri::Result<String> {
        Ok(format!("http://{}/forward", self.0))
    }
}

/// What it speaks over WebSocket, beside SPDY.
pub const V5: &str = "v5.channel.k8s.io";

/// The answer to who asks for a stream, if he may have one.
fn granted(head: &str) -> Option<String> {
    let (method, rest) = head.split_once(' ')?;
    let known = ["/exec ", "/attach ", "/forward "];
    if !known.iter().any(|path| rest.starts_with(path)) {
        return None;
    }
    let value = |name: &str| {
        let mut lines = rest.lines().filter_map(|line| line.split_once(": "));
        let named = lines.find(|(key, _)| key.eq_ignore_ascii_case(name));
        named.map(|(_, value)| value)
    };
    let extra = match (method, value("Upgrade")?) {
        ("POST", "SPDY/3.1") => String::new(),
        ("GET", "websocket") if value("Sec-WebSocket-Protocol") == Some(V5) => {
            let key = value("Sec-WebSocket-Key")?;
            format!("Sec-WebSocket-Protocol: {V5}\r\nSec-WebSocket-Accept: of {key}\r\n")
        }
        _ => return None,
    };
    let upgrade = value("Upgrade")?;
    let line = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade:";
    Some(format!("{line} {upgrade}\r\n{extra}\r\n"))
}

/// The runtime's streaming server: gives back what it hears, and tells how many streams are open.
async fn echo(listener: TcpListener, open: watch::Sender<usize>) {
    let mut streams = JoinSet::new();
    loop {
        let (mut stream, _) = listener.accept().await.unwrap();
        while streams.try_join_next().is_some() {}
        let open = open.clone();
        streams.spawn(async move {
            let Some(granted) = granted(&head(&mut stream).await) else {
                return;
            };
            let _ = stream.write_all(granted.as_bytes()).await;
            open.send_modify(|open| *open += 1);
            let (mut from, mut to) = stream.split();
            let _ = tokio::io::copy(&mut from, &mut to).await;
            open.send_modify(|open| *open -= 1);
        });
    }
}

/// The head of a request or an answer.
pub async fn head(stream: &mut (impl tokio::io::AsyncRead + Unpin)) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => break,
        }
    }
    String::from_utf8(head).unwrap()
}

pub struct Stage {
    pub address: SocketAddr,
    /// What is shown in the handshake, and was shown at first.
    pub pair: ServingPair,
    pub certificate: CertificateDer<'static>,
    pub connector: TlsConnector,
    /// `/var/log`, and in it `container.log`, which the container has written.
    pub logs: tempfile::TempDir,
    pub tasks: JoinSet<()>,
    pub requests: HttpMetrics,
    /// Those that are open at the runtime.
    pub streams: watch::Receiver<usize>,
}

impl Stage {
    pub async fn new() -> Self {
        Self::within(TlsLimits::default()).await
    }

    pub async fn within(limits: TlsLimits) -> Self {
        Self::shaped(limits, |_| ()).await
    }

    pub async fn shaped(limits: TlsLimits, shape: impl FnOnce(&mut SecureParts)) -> Self {
        let logs = tempfile::tempdir().unwrap();
        let mut tasks = JoinSet::new();
        let runtime = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let streaming = Arc::new(Echo(runtime.local_addr().unwrap()));
        let (open, streams) = watch::channel(0);
        tasks.spawn(echo(runtime, open));
        let listener = Listener::tcp("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (certificate, key) = pair();
        let pair = ServingPair::default();
        pair.show(key);
        let mut parts = parts(streaming, &logs);
        shape(&mut parts);
        let requests = parts.requests.clone();
        let shown = pair.clone();
        tasks.spawn(async move {
            serve_secure(listener, &shown, &limits, parts)
                .await
                .unwrap();
        });
        Self {
            address,
            pair,
            connector: connector(certificate.clone(), rustls::ALL_VERSIONS),
            certificate,
            logs,
            tasks,
            requests,
            streams,
        }
    }

    pub async fn connect(&self) -> TlsStream<TcpStream> {
        self.connect_by(&self.connector).await.unwrap()
    }

    pub async fn connect_by(
        &self,
        connector: &TlsConnector,
    ) -> std::io::Result<TlsStream<TcpStream>> {
        let stream = TcpStream::connect(self.address).await?;
        let name = ServerName::try_from("node").unwrap();
        connector.connect(name, stream).await
    }

    /// As somebody at another address of the loopback network.
    pub async fn connect_from(&self, from: IpAddr) -> TlsStream<TcpStream> {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::new(from, 0)).unwrap();
        let stream = socket.connect(self.address).await.unwrap();
        let name = ServerName::try_from("node").unwrap();
        self.connector.connect(name, stream).await.unwrap()
    }

    pub async fn ask(&self, request: &str) -> (TlsStream<TcpStream>, String) {
        let mut stream = self.connect().await;
        stream.write_all(request.as_bytes()).await.unwrap();
        let head = head(&mut stream).await;
        (stream, head)
    }

    /// The code and the whole answer.
    pub async fn page(&self, method: &str, path: &str) -> (u16, String) {
        let lines = "Host: node\r\nConnection: close\r\n\r\n";
        let request = format!("{method} {path} HTTP/1.1\r\n{lines}");
        let (mut stream, head) = self.ask(&request).await;
        let mut body = String::new();
        stream.read_to_string(&mut body).await.unwrap();
        let code = head.split(' ').nth(1).unwrap();
        (code.parse().unwrap(), body)
    }
}

/// A new certificate for the name all clients ask for.
pub fn pair() -> (CertificateDer<'static>, Arc<CertifiedKey>) {
    let made = rcgen::generate_simple_self_signed(["node".to_owned()]).unwrap();
    let certificate = made.cert.der().clone();
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let provider = aws_lc_rs::default_provider();
    let key = CertifiedKey::from_der(vec![certificate.clone()], key, &provider).unwrap();
    (certificate, Arc::new(key))
}

pub fn connector(
    certificate: CertificateDer<'static>,
    versions: &[&'static SupportedProtocolVersion],
) -> TlsConnector {
    connector_of(aws_lc_rs::default_provider(), certificate, versions)
}

/// One that knows what the provider knows.
pub fn connector_of(
    provider: CryptoProvider,
    certificate: CertificateDer<'static>,
    versions: &[&'static SupportedProtocolVersion],
) -> TlsConnector {
    let mut roots = RootCertStore::empty();
    roots.add(certificate).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(versions)
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    TlsConnector::from(Arc::new(config))
}

fn parts(streaming: Arc<Echo>, logs: &tempfile::TempDir) -> SecureParts {
    SecureParts {
        view: Quiet::with(vec![running_pod("p", "u", "c")]),
        inside: Arc::new(OnePod),
        access: Access {
            authenticator: Authenticator {
                anonymous: true,
                ..Authenticator::default()
            },
            authorizer: Authorizer::AlwaysAllow,
        },
        runtime: Arc::new(OneContainer {
            log: logs.path().join("container.log"),
        }),
        streaming,
        debugging: true,
        idle: Duration::from_secs(3600),
        record: HealthRecord::default(),
        node_logs: NodeLogs::new(logs.path().to_owned(), Vec::new()),
        split_logs: false,
        about: About::default(),
        debug: Debug::default(),
        checkpoints: None,
        statistics: None,
        requests: HttpMetrics::default(),
    }
}
