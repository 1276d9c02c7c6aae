//! An API server within the test: HTTP over TLS over a pipe in memory. Nothing leaves the process, so time can be
//! virtual.

use std::convert::Infallible;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::StreamBody;
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use krablet_kube::client::{Dial, Transport};
use rustls::ServerConfig;
use rustls::pki_types::CertificateDer;
use tokio::io::DuplexStream;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

type Body = StreamBody<futures::stream::BoxStream<'static, Result<Frame<Bytes>, Infallible>>>;

/// What one request was like.
#[derive(Clone, Debug)]
pub struct Seen {
    pub authorization: Option<String>,
    pub user_agent: String,
    pub peer: Option<CertificateDer<'static>>,
}

pub struct TestServer {
    /// `None`: plain HTTP/1.1.
    tls: Option<Arc<ServerConfig>>,
    pub dialled: AtomicUsize,
    pub open: watch::Sender<usize>,
    pub seen: Mutex<Vec<Seen>>,
    /// Answers `401` to requests without this.
    pub wanted: Mutex<Option<String>>,
    /// Watches that are open.
    pub watches: watch::Sender<Vec<mpsc::Sender<Bytes>>>,
    /// Bytes stop to flow, and nobody is told.
    pub freeze: Notify,
    /// HTTP/2's way to say that no more requests are taken.
    pub go_away: Arc<Notify>,
    tasks: Mutex<JoinSet<()>>,
}

impl TestServer {
    pub fn new(tls: Option<ServerConfig>) -> Arc<Self> {
        Arc::new(Self {
            tls: tls.map(Arc::new),
            dialled: AtomicUsize::new(0),
            open: watch::Sender::new(0),
            seen: Mutex::default(),
            wanted: Mutex::default(),
            watches: watch::Sender::new(Vec::new()),
            freeze: Notify::new(),
            go_away: Arc::default(),
            tasks: Mutex::default(),
        })
    }

    pub fn dialled(&self) -> usize {
        self.dialled.load(Ordering::Relaxed)
    }

    pub fn last(&self) -> Seen {
        self.seen.lock().unwrap().last().cloned().unwrap()
    }

    /// The watch that was opened as the `at`th.
    pub async fn watch(&self, at: usize) -> mpsc::Sender<Bytes> {
        let mut watches = self.watches.subscribe();
        let watches = watches.wait_for(|watches| watches.len() > at).await;
        watches.unwrap()[at].clone()
    }

    async fn serve(self: Arc<Self>, stream: DuplexStream) {
        self.open.send_modify(|open| *open += 1);
        match &self.tls {
            Some(config) => {
                let acceptor = TlsAcceptor::from(config.clone());
                match acceptor.accept(stream).into_fallible().await {
                    Ok(stream) => {
                        let session = stream.get_ref().1;
                        let peer = session.peer_certificates().and_then(|c| c.first().cloned());
                        let peer = peer.map(CertificateDer::into_owned);
                        let http2 = session.alpn_protocol() == Some(b"h2");
                        self.http(stream, http2, peer).await;
                    }
                    Err((_, mut stream)) => {
                        // Closing at once would take back the alert that was just sent.
                        let _ = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
                    }
                }
            }
            None => self.http(stream, false, None).await,
        }
        self.open.send_modify(|open| *open -= 1);
    }

    async fn http<S: Transport + 'static>(
        self: &Arc<Self>,
        stream: S,
        http2: bool,
        peer: Option<CertificateDer<'static>>,
    ) {
        let service = service_fn(|request| {
            let (server, peer) = (self.clone(), peer.clone());
            async move { server.answer(request, peer).await }
        });
        let stream = TokioIo::new(stream);
        if http2 {
            let mut builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            // As many as an API server takes.
            builder.max_concurrent_streams(100);
            let mut serving = std::pin::pin!(builder.serve_connection(stream, service));
            tokio::select! {
                biased;
                () = self.go_away.notified() => serving.as_mut().graceful_shutdown(),
                _ = &mut serving => return,
            }
            let _ = serving.await;
        } else {
            let builder = hyper::server::conn::http1::Builder::new();
            let _ = builder.serve_connection(stream, service).await;
        }
    }

    async fn answer(
        self: Arc<Self>,
        request: Request<Incoming>,
        peer: Option<CertificateDer<'static>>,
    ) -> Result<Response<Body>, Infallible> {
        let header = |name: &str| {
            let value = request.headers().get(name)?;
            Some(value.to_str().unwrap().to_owned())
        };
        let authorization = header("authorization");
        self.seen.lock().unwrap().push(Seen {
            authorization: authorization.clone(),
            user_agent: header("user-agent").unwrap_or_default(),
            peer,
        });
        let wanted = self.wanted.lock().unwrap().clone();
        if wanted.is_some() && wanted != authorization {
            return Ok(response(401, text("{\"message\":\"Unauthorized\"}")));
        }
        Ok(match request.uri().path() {
            "/hang" => futures::future::pending().await,
            "/busy" => {
                let mut busy = response(429, text("{\"message\":\"later\"}"));
                let after = http::HeaderValue::from_static("7");
                busy.headers_mut().insert("retry-after", after);
                busy
            }
            "/huge" => {
                let mut huge = response(200, Box::pin(futures::stream::pending()));
                let length = http::HeaderValue::from_static("1000000000");
                huge.headers_mut().insert("content-length", length);
                huge
            }
            "/watch" => {
                let (sender, receiver) = mpsc::channel(16);
                self.watches.send_modify(|watches| watches.push(sender));
                let lines = futures::stream::unfold(receiver, |mut lines| async move {
                    let line = lines.recv().await?;
                    Some((Ok(Frame::data(line)), lines))
                });
                response(200, Box::pin(lines))
            }
            _ => response(200, text("{\"ok\":true}")),
        })
    }
}

fn text(
    text: &'static str,
) -> futures::stream::BoxStream<'static, Result<Frame<Bytes>, Infallible>> {
    let frame = Frame::data(Bytes::from_static(text.as_bytes()));
    Box::pin(futures::stream::iter([Ok(frame)]))
}

fn response(
    status: u16,
    body: futures::stream::BoxStream<'static, Result<Frame<Bytes>, Infallible>>,
) -> Response<Body> {
    let response = Response::builder().status(status);
    response.body(StreamBody::new(body)).unwrap()
}

/// A handle that can be dialled.
pub struct Line(pub Arc<TestServer>);

#[async_trait]
impl Dial for Line {
    async fn dial(&self, _: &str, _: u16) -> io::Result<Box<dyn Transport>> {
        let server = self.0.clone();
        server.dialled.fetch_add(1, Ordering::Relaxed);
        let (ours, mut near) = tokio::io::duplex(1 << 16);
        let (mut far, theirs) = tokio::io::duplex(1 << 16);
        let mut tasks = server.tasks.lock().unwrap();
        let frozen = server.clone();
        tasks.spawn(async move {
            let freeze = frozen.freeze.notified();
            let copied = tokio::io::copy_bidirectional(&mut near, &mut far);
            tokio::select! {
                biased;
                () = freeze => futures::future::pending().await,
                _ = copied => {}
            }
        });
        tasks.spawn(server.clone().serve(theirs));
        Ok(Box::new(ours))
    }
}
