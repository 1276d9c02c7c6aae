//! The doors as clients find them: over real sockets.

#![allow(clippy::unwrap_used, clippy::expect_used)] // helpers of tests

mod node;

use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use http_body_util::{BodyExt, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use krablet_events::{Subject, reason};
use krablet_metrics::HttpMetrics;
use krablet_pod::PodRef;
use krablet_pod::api::Pod;
use krablet_server::{
    EventLine, HealthRecord, Listener, OpenParts, Pieces, PodRow, Statistics, serve_control,
    serve_healthz, serve_read_only,
};
use node::Quiet;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::task::JoinSet;

/// Says which page it was asked for.
struct Figures;

#[async_trait]
impl Statistics for Figures {
    async fn summary(&self, _: bool) -> Result<Vec<u8>, String> {
        Ok(b"summary".to_vec())
    }
    async fn resource_metrics(&self) -> String {
        "resource".to_owned()
    }
    async fn cadvisor_metrics(&self) -> Pieces {
        Box::new(std::iter::once("cadvisor".to_owned()))
    }
}

fn pod(name: &str) -> Pod {
    node::pod(name, &format!("uid-{name}"), "c")
}

async fn ask(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    path: &str,
) -> Response<Incoming> {
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .unwrap();
    tokio::spawn(connection);
    let request = Request::get(path)
        .header("Host", "x")
        .body(Empty::<Bytes>::new())
        .unwrap();
    sender.send_request(request).await.unwrap()
}

async fn text(response: Response<Incoming>) -> (u16, String) {
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

async fn tcp() -> (Listener, std::net::SocketAddr) {
    let listener = Listener::tcp("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

#[tokio::test]
async fn health_tells_which_check_fails() {
    let node = Quiet::with(Vec::new());
    let (listener, address) = tcp().await;
    let mut door = JoinSet::new();
    door.spawn(serve_healthz(
        listener,
        node.clone(),
        HealthRecord::default(),
    ));
    let get = |path: &'static str| async move {
        text(ask(TcpStream::connect(address).await.unwrap(), path).await).await
    };
    assert_eq!(get("/healthz").await, (200, "ok".into()));
    assert_eq!(
        get("/healthz?verbose").await,
        (
            200,
            "[+]ping ok\n[+]syncloop ok\nhealthz check passed\n".into()
        )
    );
    assert_eq!(get("/healthz?verbosely=1").await, (200, "ok".into()));
    *node.failing.lock().unwrap() = vec![("syncloop", "stuck".into())];
    assert_eq!(
        get("/healthz").await,
        (
            500,
            "[+]ping ok\n[-]syncloop failed: reason withheld\nhealthz check failed\n".into()
        )
    );
    assert_eq!(get("/healthz?exclude=syncloop").await, (200, "ok".into()));
    assert_eq!(
        get("/healthz?verbose=1&exclude=syncloop").await,
        (
            200,
            "[+]ping ok\n[+]syncloop excluded: ok\nhealthz check passed\n".into()
        )
    );
    assert_eq!(get("/healthz/ping").await, (200, "ok".into()));
    assert_eq!(
        get("/healthz/syncloop").await,
        (500, "internal server error: stuck\n".into())
    );
    assert_eq!(get("/healthz/other").await.0, 404);
    assert_eq!(
        get("/pods").await.0,
        404,
        "the health port shows nothing else"
    );
}

#[tokio::test]
async fn the_read_only_port_serves_pods_and_metrics() {
    let node = Quiet::with(Vec::new());
    node.add(pod("web"));
    let requests = HttpMetrics::default();
    let (listener, address) = tcp().await;
    let mut door = JoinSet::new();
    door.spawn(serve_read_only(
        listener,
        OpenParts {
            view: node,
            record: HealthRecord::default(),
            statistics: Some(Arc::new(Figures)),
        },
        requests.clone(),
    ));
    let (status, body) = text(ask(TcpStream::connect(address).await.unwrap(), "/pods").await).await;
    assert_eq!(status, 200);
    let list: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!(list["kind"], "PodList");
    assert_eq!(list["items"][0]["metadata"]["name"], "web");
    let (_, metrics) =
        text(ask(TcpStream::connect(address).await.unwrap(), "/metrics").await).await;
    assert!(metrics.starts_with("kubelet_node_name"));
    let get =
        async |path: &str| text(ask(TcpStream::connect(address).await.unwrap(), path).await).await;
    assert_eq!(get("/healthz").await, (200, "ok".into()));
    let (_, slis) = get("/metrics/slis").await;
    assert!(slis.contains(r#"kubernetes_healthcheck{name="ping",type="healthz"} 1"#));
    for page in ["summary", "resource", "cadvisor"] {
        let path = match page {
            "summary" => "/stats/summary".to_owned(),
            page => format!("/metrics/{page}"),
        };
        assert_eq!(get(&path).await, (200, page.into()));
    }
    assert_eq!(get("/metrics/probes").await.0, 200);
    let shut = "Debug endpoints are disabled.";
    for path in [
        "/exec/ns/web/c",
        "/run/ns/web/c",
        "/containerLogs/ns/web/c",
        "/runningpods/",
        "/logs/",
        "/logs/syslog",
        "/debug/pprof/profile",
    ] {
        assert_eq!(get(path).await, (405, shut.into()), "{path}");
    }
    for path in [
        "/configz",
        "/flagz",
        "/debug/flags/v",
        "/checkpoint/ns/web/c",
    ] {
        let expected = (404, "404 page not found\n".into());
        assert_eq!(get(path).await, expected, "{path}");
    }
    let counted = |path: &str| {
        let counts = requests.get().into_iter();
        let mut of_path = counts.filter(|(labels, _)| labels.path == path);
        let (labels, counts) = of_path.next().unwrap();
        assert_eq!((labels.server_type, labels.method), ("readonly", "GET"));
        assert!(of_path.next().is_none());
        counts.begun
    };
    for (path, count) in [("pods", 1), ("metrics", 1), ("logs", 2), ("other", 6)] {
        assert_eq!(counted(path), count, "{path}");
    }
}

/// A client of HTTP/2 could put many requests on one connection, and take the answer to none.
#[tokio::test]
async fn the_doors_for_everybody_speak_http_1_alone() {
    let (health, health_address) = tcp().await;
    let (open, open_address) = tcp().await;
    let node = Quiet::with(Vec::new());
    let parts = OpenParts {
        view: node.clone(),
        record: HealthRecord::default(),
        statistics: None,
    };
    let mut doors = JoinSet::new();
    doors.spawn(serve_healthz(health, node, HealthRecord::default()));
    doors.spawn(serve_read_only(open, parts, HttpMetrics::default()));
    for address in [health_address, open_address] {
        let stream = TokioIo::new(TcpStream::connect(address).await.unwrap());
        let shaken = hyper::client::conn::http2::handshake(TokioExecutor::new(), stream).await;
        let (mut sender, connection) = shaken.unwrap();
        tokio::spawn(connection);
        let request = Request::get(format!("http://{address}/healthz"));
        let request = request.body(Empty::<Bytes>::new()).unwrap();
        assert!(sender.send_request(request).await.is_err());
    }
}

#[tokio::test]
async fn nonsense_and_silence_cost_nobody_else_anything() {
    let (listener, address) = tcp().await;
    let mut door = JoinSet::new();
    door.spawn(serve_healthz(
        listener,
        Quiet::with(Vec::new()),
        HealthRecord::default(),
    ));
    let mut silent = Vec::new();
    for _ in 0..50 {
        silent.push(TcpStream::connect(address).await.unwrap());
    }
    let mut nonsense = TcpStream::connect(address).await.unwrap();
    nonsense
        .write_all(b"\x16\x03\x01 no http\r\n\r\n")
        .await
        .unwrap();
    let mut answer = Vec::new();
    let _ = nonsense.read_to_end(&mut answer).await;
    let mut huge = TcpStream::connect(address).await.unwrap();
    let head = format!("GET / HTTP/1.1\r\nX: {}\r\n", "a".repeat(1 << 20));
    let _ = huge.write_all(head.as_bytes()).await;
    let mut answer = Vec::new();
    let _ = huge.read_to_end(&mut answer).await;
    let fine = text(ask(TcpStream::connect(address).await.unwrap(), "/healthz").await).await;
    assert_eq!(fine, (200, "ok".into()));
}

#[tokio::test]
async fn the_command_socket_is_private_and_streams_changes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("krablet.sock");
    std::fs::write(&path, "left over").unwrap();
    let listener = Listener::unix(&path).unwrap();
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let node = Quiet::with(Vec::new());
    let mut door = JoinSet::new();
    door.spawn(serve_control(listener, node.clone()));

    node.add(pod("a"));
    let mut rows = ask(
        UnixStream::connect(&path).await.unwrap(),
        "/v1/rows?watch=true",
    )
    .await;
    let mut next = async || {
        let frame = tokio::time::timeout(Duration::from_secs(30), rows.body_mut().frame()).await;
        let data = frame.unwrap().unwrap().unwrap().into_data().unwrap();
        serde_json::from_slice::<Vec<PodRow>>(&data).unwrap()
    };
    assert_eq!(next().await.len(), 1);
    node.add(pod("b"));
    assert_eq!(next().await.len(), 2);
    let subject = Subject::Pod(PodRef::new("uid-b", "ns", "b"));
    node.recorder
        .normal(subject, reason::STARTED, "Container started");
    assert_eq!(next().await[1].last_event, "Started: Container started");

    let (_, lines) = text(ask(UnixStream::connect(&path).await.unwrap(), "/v1/events").await).await;
    let event: EventLine = serde_json::from_str(lines.trim()).unwrap();
    assert_eq!(
        (event.object.as_str(), event.reason.as_str()),
        ("ns/b", "Started")
    );
}
