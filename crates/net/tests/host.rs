//! The real network against servers in this process: what a pod may answer, good and bad.
#![allow(clippy::unwrap_used)] // the servers' own plumbing

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Response};
use krablet_net::{
    GrpcHealth, HostNet, HttpGet, HttpResponse, Net as _, NetError, PROBE_USER_AGENT, Redirects,
    pod_headers,
};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

const PATIENT: Duration = Duration::from_secs(20);
const IMPATIENT: Duration = Duration::from_millis(100);

/// Accepts connections on loopback and hands each to `serve`, until dropped.
struct Server {
    address: SocketAddr,
    _accepting: JoinSet<()>,
}

impl Server {
    async fn start<F>(serve: impl Fn(TcpStream) -> F + Send + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut accepting = JoinSet::new();
        accepting.spawn(async move {
            let mut open = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                open.spawn(serve(stream));
            }
        });
        Self {
            address,
            _accepting: accepting,
        }
    }

    /// Answers every request by its first line and headers, then closes.
    async fn http(answer: impl Fn(&str) -> String + Clone + Send + Sync + 'static) -> Self {
        Self::start(move |stream| converse(stream, answer.clone())).await
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }
}

async fn converse<S>(mut stream: S, answer: impl Fn(&str) -> String)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let request = read_head(&mut stream).await;
    let _ = stream.write_all(answer(&request).as_bytes()).await;
    let _ = stream.shutdown().await;
}

async fn read_head(stream: &mut (impl AsyncRead + Unpin)) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => break,
        }
    }
    String::from_utf8(head).unwrap()
}

fn get(url: String) -> HttpGet {
    HttpGet {
        url,
        headers: pod_headers(PROBE_USER_AGENT, []),
        timeout: PATIENT,
        body_limit: 10 * 1024,
        verify_tls: false,
        redirects: Redirects::SameHost,
    }
}

async fn fetch(request: HttpGet) -> Result<HttpResponse, NetError> {
    HostNet::new().unwrap().http_get(request).await
}

fn ok(body: &str) -> String {
    format!(
        "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

fn redirect(to: &str) -> String {
    format!("HTTP/1.1 302 Found\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n")
}

/// A port nobody listens on.
async fn free_port() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0")
        .await
        .unwrap()
        .local_addr()
        .unwrap()
}

#[tokio::test]
async fn the_request_is_what_a_probe_sends() {
    let server = Server::http(ok).await;
    let mut request = get(server.url("/healthz?full=1"));
    request.headers.push(("X-Twice".into(), "a".into()));
    request.headers.push(("x-twice".into(), "b".into()));
    let response = fetch(request).await.unwrap();
    assert_eq!(response.status, 200);
    assert_eq!(response.content_type.as_deref(), Some("text/plain"));
    let echo = String::from_utf8(response.body).unwrap();
    let mut lines: Vec<&str> = echo.trim_end().split("\r\n").collect();
    assert_eq!(lines.remove(0), "GET /healthz?full=1 HTTP/1.1");
    lines.sort();
    let host = format!("Host: {}", server.address);
    assert_eq!(
        lines,
        [
            "Accept: */*",
            "Connection: close",
            host.as_str(),
            "User-Agent: kube-probe/1.36",
            "X-Twice: a",
            "X-Twice: b",
        ]
    );
}

#[tokio::test]
async fn the_host_header_is_the_callers() {
    let server = Server::http(ok).await;
    let mut request = get(server.url(""));
    request.headers.push(("host".into(), "web.example".into()));
    let response = fetch(request).await.unwrap();
    let echo = String::from_utf8(response.body).unwrap();
    assert!(echo.starts_with("GET / HTTP/1.1\r\n"), "{echo}");
    assert!(echo.contains("Host: web.example\r\n"), "{echo}");
    assert!(!echo.contains("127.0.0.1"), "{echo}");
}

#[tokio::test]
async fn failures_are_answers_too() {
    let server = Server::http(|_| "HTTP/1.0 503 Busy\r\n\r\nlater".into()).await;
    let response = fetch(get(server.url("/"))).await.unwrap();
    assert_eq!(
        (response.status, response.body.as_slice()),
        (503, &b"later"[..])
    );
}

#[tokio::test]
async fn the_age_of_a_body_is_told_if_it_can_be_read() {
    for (header, seconds) in [
        (
            "Last-Modified: Sun, 06 Nov 1994 08:49:37 GMT\r\n",
            Some(784_111_777),
        ),
        ("Last-Modified: yesterday\r\n", None),
        ("Last-Modified: \r\n", None),
        ("", None),
    ] {
        let answer = format!("HTTP/1.1 200 OK\r\n{header}Content-Length: 0\r\n\r\n");
        let server = Server::http(move |_| answer.clone()).await;
        let response = fetch(get(server.url("/"))).await.unwrap();
        let told = response.last_modified.map(|at| at.as_second());
        assert_eq!(told, seconds, "{header:?}");
    }
}

#[tokio::test]
async fn redirects_on_the_same_host_are_followed() {
    let server = Server::http(|request| match request {
        r if r.starts_with("GET /a/b ") => redirect("c"),
        r if r.starts_with("GET /a/c ") => redirect("/end?x"),
        r => ok(r.split("\r\n").next().unwrap()),
    })
    .await;
    let response = fetch(get(server.url("/a/b"))).await.unwrap();
    assert_eq!(response.body, b"GET /end?x HTTP/1.1");
}

#[tokio::test]
async fn redirects_elsewhere_are_returned_or_followed() {
    let target = Server::http(|request| {
        assert!(!request.contains("Authorization") && !request.contains("named.example"));
        ok("there")
    })
    .await;
    let elsewhere = format!("http://localhost:{}/", target.address.port());
    let server = Server::http({
        let elsewhere = elsewhere.clone();
        move |_| redirect(&elsewhere)
    })
    .await;
    let mut request = get(server.url("/"));
    request
        .headers
        .push(("Authorization".into(), "secret".into()));
    request
        .headers
        .push(("Host".into(), "named.example".into()));
    let response = fetch(request.clone()).await.unwrap();
    assert_eq!((response.status, response.location), (302, Some(elsewhere)));
    request.redirects = Redirects::Follow;
    let response = fetch(request).await.unwrap();
    assert_eq!(response.body, b"there");
}

#[tokio::test]
async fn circles_end() {
    let server = Server::http(|_| redirect("/again")).await;
    let error = fetch(get(server.url("/"))).await.unwrap_err();
    assert_eq!(error, NetError::Failed("stopped after 10 redirects".into()));
}

#[tokio::test]
async fn huge_bodies_are_cut() {
    let server = Server::start(|mut stream| async move {
        read_head(&mut stream).await;
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await;
        while stream.write_all(&[b'x'; 4096]).await.is_ok() {}
    })
    .await;
    let mut request = get(server.url("/"));
    request.body_limit = 10_000;
    let response = fetch(request).await.unwrap();
    assert_eq!((response.body.len(), response.truncated), (10_000, true));
}

#[tokio::test]
async fn servers_that_never_answer_time_out() {
    let server = Server::start(|stream| async move {
        let _held = stream;
        std::future::pending().await
    })
    .await;
    let mut request = get(server.url("/"));
    request.timeout = IMPATIENT;
    let error = fetch(request.clone()).await.unwrap_err();
    assert_eq!(error, NetError::Timeout);
    assert_eq!(
        request.failure(&error),
        format!(
            "Get \"{}\": context deadline exceeded (Client.Timeout exceeded while awaiting headers)",
            request.url
        )
    );
    request.url = request.url.replace("http:", "https:");
    assert_eq!(fetch(request).await.unwrap_err(), NetError::Timeout);
}

#[tokio::test]
async fn bodies_that_do_not_end_are_told_apart() {
    let server = Server::start(|mut stream| async move {
        let head = read_head(&mut stream).await;
        let _ = stream
            .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\npart")
            .await;
        if head.starts_with("GET /hang") {
            std::future::pending::<()>().await;
        }
    })
    .await;
    let mut request = get(server.url("/hang"));
    request.timeout = IMPATIENT;
    assert!(
        matches!(fetch(request).await, Err(NetError::Body(text)) if text.contains("while reading body"))
    );
    let cut = fetch(get(server.url("/cut"))).await;
    assert_eq!(cut, Err(NetError::Body("unexpected EOF".into())));
}

#[tokio::test]
async fn garbage_is_an_error() {
    for (garbage, text) in [
        ("", "EOF"),
        ("HTTP/1.1 200", "EOF"),
        ("SSH-2.0-OpenSSH_9\r\n\r\n", "malformed HTTP response"),
        ("HTTP/9.9 200 OK\r\n\r\n", "malformed HTTP response"),
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
            "malformed HTTP response",
        ),
    ] {
        let server = Server::http(move |_| garbage.into()).await;
        let error = fetch(get(server.url("/"))).await.unwrap_err().to_string();
        assert!(error.contains(text), "{garbage:?}: {error}");
    }
}

#[tokio::test]
async fn endless_headers_are_an_error() {
    let server = Server::start(|mut stream| async move {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nX: ").await;
        while stream.write_all(&[b'x'; 4096]).await.is_ok() {}
    })
    .await;
    assert!(matches!(
        fetch(get(server.url("/"))).await,
        Err(NetError::Failed(_))
    ));
}

#[tokio::test]
async fn refused_connections_in_upstreams_words() {
    let address = free_port().await;
    let request = get(format!("http://{address}/"));
    let error = fetch(request.clone()).await.unwrap_err();
    assert_eq!(
        request.failure(&error),
        format!("Get \"http://{address}/\": dial tcp {address}: connect: connection refused")
    );
    let net = HostNet::new().unwrap();
    let error = net
        .tcp_connect("127.0.0.1", address.port(), PATIENT)
        .await
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("dial tcp {address}: connect: connection refused")
    );
    let error = net
        .grpc_health("127.0.0.1", address.port(), "", PATIENT)
        .await
        .unwrap_err();
    assert!(matches!(error, NetError::Connect(_)), "{error}");
    for bad in ["ftp://x/", "nonsense", "http:///x", "http://[::1/"] {
        assert!(fetch(get(bad.into())).await.is_err(), "{bad}");
    }
}

#[tokio::test]
async fn tcp_connects_and_closes() {
    let (closed, mut seen) = tokio::sync::mpsc::channel(1);
    let server = Server::start(move |mut stream| {
        let closed = closed.clone();
        async move {
            let read = stream.read(&mut [0; 8]).await;
            closed.send(read.map_err(|e| e.kind())).await.unwrap();
        }
    })
    .await;
    let net = HostNet::new().unwrap();
    for host in ["127.0.0.1", "localhost"] {
        net.tcp_connect(host, server.address.port(), PATIENT)
            .await
            .unwrap();
        // An orderly end, not a reset.
        assert_eq!(seen.recv().await, Some(Ok(0)));
    }
}

#[tokio::test]
async fn dropping_the_request_closes_the_connection() {
    let (events, mut seen) = tokio::sync::mpsc::channel(4);
    let server = Server::start(move |mut stream| {
        let events = events.clone();
        async move {
            read_head(&mut stream).await;
            events.send("asked").await.unwrap();
            let end = stream.read(&mut [0; 8]).await;
            events
                .send(if matches!(end, Ok(0)) {
                    "closed"
                } else {
                    "odd"
                })
                .await
                .unwrap();
        }
    })
    .await;
    let mut probing = JoinSet::new();
    probing.spawn(fetch(get(server.url("/"))));
    assert_eq!(seen.recv().await, Some("asked"));
    probing.abort_all();
    assert_eq!(seen.recv().await, Some("closed"));
}

/// A TLS server with a certificate of its own making.
async fn tls_server() -> Server {
    let made = rcgen::generate_simple_self_signed(["localhost".to_string()]).unwrap();
    let key = rustls::pki_types::PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    Server::start(move |stream| {
        let acceptor = acceptor.clone();
        async move {
            if let Ok(stream) = acceptor.accept(stream).await {
                converse(stream, |_| ok("secret")).await;
            }
        }
    })
    .await
}

#[tokio::test]
async fn tls_is_verified_when_asked() {
    let server = tls_server().await;
    for host in ["127.0.0.1", "localhost"] {
        let mut request = get(format!("https://{host}:{}/", server.address.port()));
        let response = fetch(request.clone()).await.unwrap();
        assert_eq!(response.body, b"secret");
        request.verify_tls = true;
        let error = fetch(request).await.unwrap_err().to_string();
        assert!(
            error.starts_with("tls: ") && error.contains("certificate"),
            "{error}"
        );
    }
}

#[tokio::test]
async fn plain_http_where_tls_was_asked_for_is_named() {
    let server = Server::start(|mut stream| async move {
        let _ = stream.read(&mut [0; 16]).await;
        let _ = stream
            .write_all(b"HTTP/1.0 400 Bad Request\r\n\r\nno")
            .await;
        let _ = stream.shutdown().await;
        while matches!(stream.read(&mut [0; 512]).await, Ok(n) if n > 0) {}
    })
    .await;
    let request = get(format!("https://{}/", server.address));
    assert_eq!(fetch(request).await, Err(NetError::PlainHttp));

    let server = Server::start(|mut stream| async move {
        let _ = stream.write_all(b"220 mail ready\r\n").await;
        while matches!(stream.read(&mut [0; 512]).await, Ok(n) if n > 0) {}
    })
    .await;
    let request = get(format!("https://{}/", server.address));
    assert!(matches!(fetch(request).await, Err(NetError::Failed(_))));
}

/// A gRPC server that answers with `message` and `trailers`, whatever is asked.
async fn grpc_server(
    message: &'static [u8],
    trailers: &'static [(&'static str, &'static str)],
) -> Server {
    Server::start(move |stream| async move {
        let Ok(mut connection) = h2::server::handshake(stream).await else {
            return;
        };
        while let Some(Ok((request, mut respond))) = connection.accept().await {
            assert_eq!(request.uri().path(), "/grpc.health.v1.Health/Check");
            assert_eq!(request.headers()["user-agent"], PROBE_USER_AGENT);
            let trailers: HeaderMap = trailers
                .iter()
                .map(|(n, v)| (n.parse().unwrap(), v.parse().unwrap()))
                .collect();
            let mut head = Response::new(());
            if message.is_empty() {
                *head.headers_mut() = trailers;
                let _ = respond.send_response(head, true);
            } else if let Ok(mut body) = respond.send_response(head, false) {
                let _ = body.send_data(Bytes::from_static(message), false);
                let _ = body.send_trailers(trailers);
            }
        }
    })
    .await
}

/// Message, trailers, and what comes of it.
type Case = (
    &'static [u8],
    &'static [(&'static str, &'static str)],
    Result<GrpcHealth, NetError>,
);

#[tokio::test]
async fn grpc_health_answers() {
    let net = HostNet::new().unwrap();
    let failed = |text: &str| Err(NetError::Failed(text.to_string()));
    let fine: &'static [(&str, &str)] = &[("grpc-status", "0")];
    let cases: [Case; 9] = [
        (&[0, 0, 0, 0, 2, 8, 1], fine, Ok(GrpcHealth::Serving)),
        (&[0, 0, 0, 0, 2, 8, 2], fine, Ok(GrpcHealth::NotServing)),
        (&[0, 0, 0, 0, 2, 8, 3], fine, Ok(GrpcHealth::Other(3))),
        (&[0, 0, 0, 0, 0], fine, Ok(GrpcHealth::Other(0))),
        (
            &[],
            &[("grpc-status", "5"), ("grpc-message", "unknown%20service")],
            failed("rpc error: code = NotFound desc = unknown service"),
        ),
        (
            &[],
            &[("grpc-status", "12"), ("grpc-message", "unknown service x")],
            Err(NetError::HealthUnimplemented("unknown service x".into())),
        ),
        (&[], &[("grpc-status", "4")], Err(NetError::Timeout)),
        (
            &[0, 0, 0],
            fine,
            failed("rpc error: code = Internal desc = malformed health answer"),
        ),
        (
            &[1, 0, 0, 0, 0],
            fine,
            failed("rpc error: code = Internal desc = malformed health answer"),
        ),
    ];
    for (message, trailers, expected) in cases {
        let server = grpc_server(message, trailers).await;
        let port = server.address.port();
        let got = net.grpc_health("127.0.0.1", port, "svc", PATIENT).await;
        assert_eq!(got, expected);
    }
}

#[tokio::test]
async fn grpc_of_those_who_do_not_speak_it() {
    let net = HostNet::new().unwrap();
    let silent = Server::start(|stream| async move {
        let _held = stream;
        std::future::pending().await
    })
    .await;
    let got = net
        .grpc_health("127.0.0.1", silent.address.port(), "", IMPATIENT)
        .await;
    assert_eq!(got, Err(NetError::Timeout));
    let http = Server::start(|mut stream| async move {
        let _ = stream.write_all(ok("hello").as_bytes()).await;
        let _ = stream.shutdown().await;
        while matches!(stream.read(&mut [0; 512]).await, Ok(n) if n > 0) {}
    })
    .await;
    let got = net
        .grpc_health("127.0.0.1", http.address.port(), "", PATIENT)
        .await;
    assert!(
        matches!(&got, Err(NetError::Failed(t)) if t.starts_with("rpc error: code = Unavailable")),
        "{got:?}"
    );
}
