//! The HTTPS door as a client meets it: what is shown in the handshake, and what is behind it.

#![allow(clippy::unwrap_used, clippy::expect_used)] // helpers of tests

mod node;
mod stage;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use krablet_access::{Authenticator, TokenReviews};
use krablet_kube::{Api, ApiError, Call, Kube, Watch};
use krablet_server::TlsLimits;
use rustls::NamedGroup;
use rustls::crypto::aws_lc_rs::{self, kx_group};
use rustls::version::{TLS12, TLS13};
use serde_json::{Value, json};
use stage::{Stage, connector, connector_of, head, pair};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{advance, resume, timeout};
use tokio_rustls::client::TlsStream;

/// On a connection that stays open.
async fn is_well(stream: &mut TlsStream<TcpStream>) -> bool {
    let request = b"GET /healthz HTTP/1.1\r\nHost: node\r\n\r\n";
    stream.write_all(request).await.unwrap();
    let head = head(stream).await;
    let mut body = [0; 2];
    stream.read_exact(&mut body).await.unwrap();
    head.starts_with("HTTP/1.1 200 ") && &body == b"ok"
}

#[tokio::test]
async fn a_new_pair_is_for_those_who_come_next() {
    let stage = Stage::new().await;
    let mut old = stage.connect().await;
    assert!(is_well(&mut old).await);
    let (certificate, key) = pair();
    stage.pair.show(key);
    assert!(is_well(&mut old).await, "what is open stays open");
    // One that was here before would go on where it was, and be shown nothing.
    let stranger = connector(stage.certificate.clone(), rustls::ALL_VERSIONS);
    assert!(stage.connect_by(&stranger).await.is_err());
    let newer = connector(certificate.clone(), rustls::ALL_VERSIONS);
    let mut new = stage.connect_by(&newer).await.unwrap();
    let shown = new.get_ref().1.peer_certificates().unwrap();
    assert_eq!(shown, [certificate]);
    assert!(is_well(&mut new).await);
    assert!(is_well(&mut old).await);
}

#[tokio::test]
async fn older_versions_are_refused_where_they_are_to_be() {
    for (min_version, older) in [("VersionTLS13", false), ("VersionTLS12", true), ("", true)] {
        let limits = TlsLimits {
            min_version: min_version.to_owned(),
            ..TlsLimits::default()
        };
        let stage = Stage::within(limits).await;
        for (version, expected) in [(&TLS12, older), (&TLS13, true)] {
            let client = connector(stage.certificate.clone(), &[version]);
            let got_in = match stage.connect_by(&client).await {
                Ok(mut stream) => is_well(&mut stream).await,
                Err(_) => false,
            };
            assert_eq!(got_in, expected, "{min_version:?}: {:?}", version.version);
        }
    }
}

#[tokio::test]
async fn keys_are_exchanged_by_the_groups_that_are_wanted() {
    let limits = TlsLimits {
        // The first of these is not known here.
        groups: vec![25, 24],
        ..TlsLimits::default()
    };
    let stage = Stage::within(limits).await;
    for version in [&TLS12, &TLS13] {
        let client = connector(stage.certificate.clone(), &[version]);
        let mut stream = stage.connect_by(&client).await.unwrap();
        assert!(is_well(&mut stream).await);
        let group = stream.get_ref().1.negotiated_key_exchange_group();
        assert_eq!(group.unwrap().name(), NamedGroup::secp384r1);
        let mut other = aws_lc_rs::default_provider();
        other.kx_groups = vec![kx_group::X25519];
        let client = connector_of(other, stage.certificate.clone(), &[version]);
        let refused = match stage.connect_by(&client).await {
            Ok(mut stream) => !is_well(&mut stream).await,
            Err(_) => true,
        };
        assert!(refused, "{:?}", version.version);
    }
}

#[tokio::test]
async fn what_is_told_of_pods_and_settings() {
    let stage = Stage::new().await;
    let (code, text) = stage.page("GET", "/configz").await;
    let told: Value = serde_json::from_str(&text).unwrap();
    let settings = &told["kubeletconfig"];
    assert_eq!(
        (code, &settings["kind"]),
        (200, &json!("KubeletConfiguration"))
    );
    assert_eq!(settings["authentication"]["anonymous"]["enabled"], false);

    let (code, text) = stage.page("GET", "/runningpods/").await;
    let told: Value = serde_json::from_str(&text).unwrap();
    let pod = json!({
        "metadata": {"name": "p", "namespace": "ns", "uid": "u"},
        "spec": {"containers": [{"name": "c", "image": "busybox:1", "resources": {}}]},
        "status": {},
    });
    assert_eq!((code, &told["items"]), (200, &json!([pod])));
}

#[tokio::test]
async fn commands_are_run_to_their_end() {
    let stage = Stage::new().await;
    for (path, expected) in [
        ("/run/ns/p/c?cmd=echo+so+be+it", (200, "so be it!")),
        ("/run/ns/p/u/c?cmd=echo+so", (200, "so!")),
        (
            "/run/ns/p/c?cmd=fail",
            (500, "command 'fail' exited with 1: !"),
        ),
        ("/run/ns/p/other/c?cmd=echo", (404, "pod not found")),
    ] {
        let (code, text) = stage.page("POST", path).await;
        assert_eq!((code, text.as_str()), expected, "{path}");
    }
}

/// As long as this is held, nobody moves the clock but the test: what comes through sockets does not come at once, and a
/// clock that stands still would take the wait for idleness.
fn hold_the_clock() -> std::sync::mpsc::Sender<()> {
    let (held, until_dropped) = std::sync::mpsc::channel();
    tokio::task::spawn_blocking(move || until_dropped.recv());
    held
}

/// `streamingConnectionIdleTimeout`: what is said is heard at the runtime, and comes back.
#[tokio::test(start_paused = true)]
async fn silence_ends_a_stream_at_both_sides() {
    const IDLE: Duration = Duration::from_secs(3600);
    for path in [
        "/portForward/ns/p",
        "/exec/ns/p/c?command=sh&input=1&output=1",
        "/attach/ns/p/c?input=1&output=1",
    ] {
        let _held = hold_the_clock();
        let mut stage = Stage::shaped(TlsLimits::default(), |parts| parts.idle = IDLE).await;
        let upgrade = "Host: node\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n";
        let (mut stream, head) = stage
            .ask(&format!("POST {path} HTTP/1.1\r\n{upgrade}"))
            .await;
        assert!(head.starts_with("HTTP/1.1 101 "), "{path}: {head}");
        for word in [b"once", b"more", b"last"] {
            advance(IDLE * 3 / 4).await;
            stream.write_all(word).await.unwrap();
            let mut heard = [0; 4];
            stream.read_exact(&mut heard).await.unwrap();
            assert_eq!(&heard, word, "{path}");
        }
        assert_eq!(*stage.streams.borrow(), 1, "{path}");
        advance(IDLE + Duration::from_secs(1)).await;
        resume();
        let both = async {
            let end = stream.read(&mut [0; 4]).await;
            let at_runtime = stage.streams.wait_for(|open| *open == 0).await;
            (end, at_runtime.is_ok())
        };
        let (end, gone) = timeout(Duration::from_secs(60), both).await.unwrap();
        assert!(gone && matches!(end, Ok(0) | Err(_)), "{path}: {end:?}");
        tokio::time::pause();
    }
}

/// Never says a word about a token that begins with `slow`, and knows all others; tells how often it was asked.
struct Slow(watch::Sender<usize>);

#[async_trait::async_trait]
impl Api for Slow {
    async fn call(&self, call: Call) -> Result<Bytes, ApiError> {
        self.0.send_modify(|asked| *asked += 1);
        let body: Value = serde_json::from_slice(&call.body.unwrap()).unwrap();
        let token = body["spec"]["token"].as_str().unwrap();
        if token.starts_with("slow") {
            std::future::pending::<()>().await;
        }
        let status = json!({"authenticated": true, "user": {"username": token}});
        Ok(json!({"status": status}).to_string().into())
    }

    async fn watch(&self, _: Call) -> Result<Watch, ApiError> {
        Err(ApiError::Connection("nothing to watch".into()))
    }

    fn reconnect(&self) {}
}

fn showing(token: &str) -> String {
    format!("GET /healthz HTTP/1.1\r\nHost: node\r\nAuthorization: Bearer {token}\r\n\r\n")
}

#[tokio::test]
async fn tokens_of_one_address_do_not_shut_out_another() {
    let (asked, mut heard) = watch::channel(0);
    let kube = Kube::new(Arc::new(Slow(asked)));
    let stage = Stage::shaped(TlsLimits::default(), |parts| {
        parts.access.authenticator = Authenticator {
            tokens: Some(TokenReviews::new(kube, Duration::from_secs(60))),
            ..Authenticator::default()
        };
    });
    let stage = stage.await;
    let mut waiting = Vec::new();
    for number in 1..=8 {
        let mut stream = stage.connect().await;
        let request = showing(&format!("slow-{number}"));
        stream.write_all(request.as_bytes()).await.unwrap();
        waiting.push(stream);
        heard.wait_for(|asked| *asked == number).await.unwrap();
    }
    for (last, expected) in [(1, 429), (2, 200)] {
        let mut stream = stage.connect_from(IpAddr::from([127, 0, 0, last])).await;
        let request = showing("good");
        stream.write_all(request.as_bytes()).await.unwrap();
        let head = head(&mut stream).await;
        assert!(head.starts_with(&format!("HTTP/1.1 {expected} ")), "{head}");
        let told = head.to_ascii_lowercase().contains("retry-after: 1\r\n");
        assert_eq!(told, expected == 429, "{head}");
    }
}
