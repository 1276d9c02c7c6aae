//! Streams through the HTTPS door, with a runtime that echoes: what a thousand dropped ones leave behind, and what readers
//! cost who do not read.

#![allow(clippy::unwrap_used, clippy::expect_used)] // helpers of tests

mod node;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use krablet_access::{Authenticator, Authorizer};
use krablet_cri::{CallLog, Deadlines, Endpoint, RuntimeClient, StreamingService, v1};
use krablet_pod::api::PodStatus;
use krablet_pod::observed::{ObservedPod, ObservedSandbox};
use krablet_pod::{PodRef, PodUid, Ticket};
use krablet_server::{
    About, Access, Debug, HealthRecord, Inside, Listener, NodeLogs, SecureParts, ServingPair,
    TlsLimits, serve_secure,
};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

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

/// The runtime's streaming server: grants every upgrade, and gives back what it hears.
async fn echo(listener: TcpListener) {
    let mut streams = JoinSet::new();
    loop {
        let (mut stream, _) = listener.accept().await.unwrap();
        while streams.try_join_next().is_some() {}
        streams.spawn(async move {
            if !head(&mut stream).await.starts_with("POST /forward") {
                return;
            }
            let granted = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n";
            let _ = stream.write_all(granted.as_bytes()).await;
            let (mut from, mut to) = stream.split();
            let _ = tokio::io::copy(&mut from, &mut to).await;
        });
    }
}

async fn head(stream: &mut (impl tokio::io::AsyncRead + Unpin)) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => break,
        }
    }
    String::from_utf8(head).unwrap()
}

struct OnePod;

impl Inside for OnePod {
    fn observed(&self, uid: &PodUid) -> Option<Arc<ObservedPod>> {
        let pod = PodRef::new(uid.as_str(), "ns", "p");
        let mut observed = ObservedPod::absent(pod, Ticket::default());
        observed.sandboxes.push(ObservedSandbox {
            id: "sandbox".into(),
            ready: true,
            attempt: 0,
            created_at: 0,
            ips: Vec::new(),
            host_network: false,
        });
        Some(Arc::new(observed))
    }
    fn all_observed(&self) -> Vec<Arc<ObservedPod>> {
        Vec::new()
    }
    fn status(&self, _: &PodUid) -> Option<Arc<PodStatus>> {
        None
    }
    fn configuration(&self) -> serde_json::Value {
        serde_json::Value::Null
    }
    fn api_uid(&self, _: &PodUid) -> Option<PodUid> {
        None
    }
}

/// The door, and a client that trusts it.
struct Stage {
    address: SocketAddr,
    connector: TlsConnector,
    logs: tempfile::TempDir,
    tasks: JoinSet<()>,
}

impl Stage {
    async fn new() -> Self {
        let logs = tempfile::tempdir().unwrap();
        let mut tasks = JoinSet::new();
        let runtime = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let streaming = Arc::new(Echo(runtime.local_addr().unwrap()));
        tasks.spawn(echo(runtime));
        let listener = Listener::tcp("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (certificate, pair) = pair();
        let parts = parts(streaming, NodeLogs::new(logs.path().to_owned(), Vec::new()));
        tasks.spawn(async move {
            let limits = TlsLimits::default();
            serve_secure(listener, &pair, &limits, parts).await.unwrap();
        });
        Self {
            address,
            connector: connector(certificate),
            logs,
            tasks,
        }
    }

    async fn connect(&self) -> TlsStream<TcpStream> {
        let stream = TcpStream::connect(self.address).await.unwrap();
        let name = ServerName::try_from("node").unwrap();
        self.connector.connect(name, stream).await.unwrap()
    }

    async fn ask(&self, request: &str) -> (TlsStream<TcpStream>, String) {
        let mut stream = self.connect().await;
        stream.write_all(request.as_bytes()).await.unwrap();
        let head = head(&mut stream).await;
        (stream, head)
    }
}

fn pair() -> (CertificateDer<'static>, ServingPair) {
    let made = rcgen::generate_simple_self_signed(["node".to_owned()]).unwrap();
    let certificate = made.cert.der().clone();
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let provider = aws_lc_rs::default_provider();
    let key = CertifiedKey::from_der(vec![certificate.clone()], key, &provider).unwrap();
    let pair = ServingPair::default();
    pair.show(Arc::new(key));
    (certificate, pair)
}

fn connector(certificate: CertificateDer<'static>) -> TlsConnector {
    let mut roots = RootCertStore::empty();
    roots.add(certificate).unwrap();
    let provider = Arc::new(aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    TlsConnector::from(Arc::new(config))
}

fn parts(streaming: Arc<Echo>, node_logs: NodeLogs) -> SecureParts {
    let endpoint = Endpoint::parse("unix:///nonexistent/runtime.sock").unwrap();
    let runtime = RuntimeClient::new(&endpoint, Deadlines::default(), CallLog::default());
    SecureParts {
        view: node::Quiet::with(vec![node::pod("p", "u", "c")]),
        inside: Arc::new(OnePod),
        access: Access {
            authenticator: Authenticator {
                anonymous: true,
                ..Authenticator::default()
            },
            authorizer: Authorizer::AlwaysAllow,
        },
        runtime: Arc::new(runtime),
        streaming,
        debugging: true,
        idle: Duration::from_secs(3600),
        record: HealthRecord::default(),
        node_logs,
        about: About::default(),
        debug: Debug::default(),
        checkpoints: None,
        statistics: None,
    }
}

const FORWARD: &str = "POST /portForward/ns/p HTTP/1.1\r\nHost: node\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n";

/// Without any stream: the door with its watch over logs, the runtime, and the two channels to one that is not there.
const QUIET: usize = 5;

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn tasks() -> usize {
    tokio::runtime::Handle::current()
        .metrics()
        .num_alive_tasks()
}

fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find(|l| l.starts_with("VmRSS:")).unwrap();
    let number = line.split_whitespace().nth(1).unwrap();
    number.parse::<u64>().unwrap() * 1024
}

async fn eventually(what: &str, is: impl Fn() -> bool) {
    let wait = async {
        while !is() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(60), wait).await;
    assert!(
        waited.is_ok(),
        "{what}: {} tasks, {} descriptors",
        tasks(),
        descriptors()
    );
}

/// One after the other in one process: they count its descriptors and its memory.
#[tokio::test]
async fn what_streams_and_readers_cost() {
    let mut stage = Stage::new().await;
    a_thousand_dropped_streams(&stage).await;
    malformed_upgrades(&stage).await;
    readers_who_do_not_read(&stage).await;
    stage.tasks.shutdown().await;
}

async fn a_thousand_dropped_streams(stage: &Stage) {
    let (mut stream, head) = stage.ask(FORWARD).await;
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    stream.write_all(b"ping").await.unwrap();
    let mut heard = [0; 4];
    stream.read_exact(&mut heard).await.unwrap();
    assert_eq!(&heard, b"ping");
    drop(stream);
    eventually("the first stream is gone", || tasks() == QUIET).await;
    let before = descriptors();
    for _ in 0..50 {
        let twenty = (0..20).map(|_| stage.ask(FORWARD));
        let streams = futures::future::join_all(twenty).await;
        assert!(
            streams
                .iter()
                .all(|(_, head)| head.starts_with("HTTP/1.1 101 "))
        );
    }
    eventually("all streams are gone", || {
        tasks() == QUIET && descriptors() <= before
    })
    .await;
}

async fn malformed_upgrades(stage: &Stage) {
    for lines in [
        "",
        "Connection: Upgrade\r\n",
        "Upgrade: SPDY/3.1\r\n",
        "Connection: Upgrade\r\nUpgrade: smoke-signals\r\n",
        "Connection: Upgrade\r\nUpgrade: websocket\r\n",
        "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\nSec-WebSocket-Version: 13\r\n",
    ] {
        let request = format!("POST /portForward/ns/p HTTP/1.1\r\nHost: node\r\n{lines}\r\n");
        let (_, head) = stage.ask(&request).await;
        assert!(head.starts_with("HTTP/1.1 400 "), "{lines}: {head}");
    }
}

async fn readers_who_do_not_read(stage: &Stage) {
    const SIZE: u64 = 256 << 20;
    let file = std::fs::File::create(stage.logs.path().join("large")).unwrap();
    file.set_len(SIZE).unwrap();
    let before = resident();
    let request = "GET /logs/large HTTP/1.1\r\nHost: node\r\n\r\n";
    let readers = (0..20).map(|_| stage.ask(request));
    let mut readers = futures::future::join_all(readers).await;
    assert!(
        readers
            .iter()
            .all(|(_, head)| head.starts_with("HTTP/1.1 200 "))
    );
    // One of them takes it all, so the others had the time to be given too much.
    let (mut reader, _) = readers.remove(0);
    let mut taken = 0;
    let mut buffer = vec![0; 1 << 16];
    while taken < SIZE {
        let count = reader.read(&mut buffer).await.unwrap();
        assert!(count > 0, "{taken} of {SIZE}");
        taken += count as u64;
    }
    let grown = resident().saturating_sub(before);
    assert!(
        grown < 64 << 20,
        "{grown} bytes for readers who do not read"
    );
}
