//! One connection: opened with a deadline, kept alive by pings, gone when nobody uses it any more.

use std::error::Error as _;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, Version};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper::rt::Executor;
use hyper_util::rt::{TokioIo, TokioTimer};
use krablet_linux::WallClock;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;

use super::dial::{Dial, Transport};
use super::pool::Streams;
use super::proxy::Proxy;
use super::server::Server;
use super::tls;
use crate::ApiError;
use crate::credentials::Identity;

/// From the look-up of the host to the end of the handshake.
pub(super) const CONNECT_DEADLINE: Duration = Duration::from_secs(10);
/// When nothing came for so long while somebody waits (a watch always does), the server is asked whether it is
/// there. A dead one is so found within 25 seconds, before a lease of 40 runs out; Go's client takes 45.
const PING_AFTER: Duration = Duration::from_secs(15);
const PONG_WITHIN: Duration = Duration::from_secs(10);
/// What a server may send of one answer before we read it: a list of a full node comes without a pause.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 4 << 20;

const H2: &[u8] = b"h2";
const HTTP_1_1: &[u8] = b"http/1.1";

type Outgoing = Request<Full<Bytes>>;

enum Sender {
    /// Any number of requests at the same time.
    Http2(http2::SendRequest<Full<Bytes>>),
    /// One request, then none.
    Http1(Mutex<Option<http1::SendRequest<Full<Bytes>>>>),
}

pub(super) struct Connection {
    sender: Sender,
    pub(super) streams: Streams,
    identity: Option<Identity>,
    server: String,
    /// What broke it, in more words than those who use it are told.
    broken: Arc<OnceLock<ApiError>>,
    /// Whatever moves the bytes; ends with this.
    _tasks: Arc<Mutex<JoinSet<()>>>,
}

/// Why a request brought no answer.
pub(super) enum Unanswered {
    /// The server has not begun to work on it: it may be sent again, by another connection.
    Unseen,
    Failed(ApiError),
}

/// What it takes to open a connection.
pub(super) struct Opener {
    pub(super) server: Server,
    pub(super) dial: Arc<dyn Dial>,
    pub(super) proxy: Option<Proxy>,
    pub(super) clock: Arc<dyn WallClock>,
}

impl Opener {
    /// HTTP/2 if the server can, else HTTP/1.1.
    pub(super) async fn open(&self, identity: Option<Identity>) -> Result<Connection, ApiError> {
        let opening = self.open_unbounded(identity);
        match tokio::time::timeout(CONNECT_DEADLINE, opening).await {
            Ok(opened) => opened,
            Err(_) => {
                let server = &self.server;
                let problem = format!("{server}: no connection within {CONNECT_DEADLINE:?}");
                Err(ApiError::Connection(problem))
            }
        }
    }

    async fn open_unbounded(&self, identity: Option<Identity>) -> Result<Connection, ApiError> {
        let server = &self.server;
        let failed =
            |error: &dyn std::fmt::Display| ApiError::Connection(format!("{server}: {error}"));
        let stream = match &self.proxy {
            Some(proxy) => {
                let clock = self.clock.clone();
                proxy.tunnel(&*self.dial, server, clock).await?
            }
            None => {
                let dialled = self.dial.dial(&server.host, server.port).await;
                dialled.map_err(|error| failed(&error))?
            }
        };
        let (stream, version): (Box<dyn Transport>, _) = match server.is_tls() {
            true => self.handshake(stream, identity.clone()).await?,
            false => (stream, Version::HTTP_11),
        };
        let broken = Arc::default();
        let wire = TokioIo::new(Wire {
            stream,
            server: server.clone(),
            broken: Arc::clone(&broken),
        });
        let tasks = Arc::new(Mutex::new(JoinSet::new()));
        let sender = match version {
            Version::HTTP_2 => {
                let handshake = http2_builder(&tasks).handshake(wire).await;
                let (sender, driver) = handshake.map_err(|error| failed(&chain(&error)))?;
                // How it ended is told to those who wait for answers.
                spawn(&tasks, async { drop(driver.await) });
                Sender::Http2(sender)
            }
            _ => {
                let handshake = http1::handshake(wire).await;
                let (sender, driver) = handshake.map_err(|error| failed(&chain(&error)))?;
                spawn(&tasks, async { drop(driver.await) });
                Sender::Http1(Mutex::new(Some(sender)))
            }
        };
        Ok(Connection {
            sender,
            streams: Streams::default(),
            identity,
            server: server.to_string(),
            broken,
            _tasks: tasks,
        })
    }

    async fn handshake(
        &self,
        stream: Box<dyn Transport>,
        identity: Option<Identity>,
    ) -> Result<(Box<dyn Transport>, Version), ApiError> {
        let (server, clock) = (self.server.clone(), self.clock.clone());
        // Reads files.
        let config = tokio::task::spawn_blocking(move || {
            tls::config(&server, identity, clock, &[H2, HTTP_1_1])
        });
        let config = config
            .await
            .map_err(|error| ApiError::Connection(error.to_string()))??;
        let name = tls::server_name(&self.server)?;
        let connecting = TlsConnector::from(Arc::new(config)).connect(name, stream);
        let stream = connecting
            .await
            .map_err(|error| tls::failure(&self.server, &error))?;
        let version = match stream.get_ref().1.alpn_protocol() {
            Some(H2) => Version::HTTP_2,
            _ => Version::HTTP_11,
        };
        Ok((Box::new(stream), version))
    }
}

fn http2_builder(tasks: &Arc<Mutex<JoinSet<()>>>) -> http2::Builder<Tasks> {
    let mut builder = http2::Builder::new(Tasks(Arc::downgrade(tasks)));
    builder
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_AFTER)
        .keep_alive_timeout(PONG_WITHIN)
        .keep_alive_while_idle(false)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW);
    builder
}

impl Connection {
    pub(super) fn version(&self) -> Version {
        match self.sender {
            Sender::Http2(_) => Version::HTTP_2,
            Sender::Http1(_) => Version::HTTP_11,
        }
    }

    /// New requests may go by it, shown as `identity`.
    pub(super) fn serves(&self, identity: Option<&Identity>) -> bool {
        let same = match (&self.identity, identity) {
            (None, None) => true,
            (Some(ours), Some(wanted)) => Arc::ptr_eq(ours, wanted),
            _ => false,
        };
        let open = match &self.sender {
            Sender::Http2(sender) => !sender.is_closed(),
            Sender::Http1(_) => false,
        };
        same && open
    }

    pub(super) async fn send(&self, request: Outgoing) -> Result<Response<Incoming>, Unanswered> {
        let mut error = match &self.sender {
            Sender::Http2(sender) => match sender.clone().try_send_request(request).await {
                Ok(response) => return Ok(response),
                Err(error) => error,
            },
            Sender::Http1(sender) => {
                let sender = sender.lock().unwrap_or_else(PoisonError::into_inner).take();
                let mut sender = sender.ok_or(Unanswered::Unseen)?;
                match sender.try_send_request(request).await {
                    Ok(response) => return Ok(response),
                    Err(error) => error,
                }
            }
        };
        // A server that refuses our certificate would refuse it again.
        let hopeless = matches!(self.broken.get(), Some(ApiError::Tls(_)));
        let unseen = error.take_message().is_some() || was_refused(error.error());
        match unseen && !hopeless {
            true => Err(Unanswered::Unseen),
            false => Err(Unanswered::Failed(self.failure(error.error()))),
        }
    }

    /// The words for an error of a request or an answer by this connection.
    pub(super) fn failure(&self, error: &hyper::Error) -> ApiError {
        if let Some(broken) = self.broken.get() {
            return broken.clone();
        }
        ApiError::Connection(format!("{}: {}", self.server, chain(error)))
    }
}

/// The server says that it did not look at the request.
fn was_refused(error: &hyper::Error) -> bool {
    let mut source = error.source();
    while let Some(error) = source {
        if let Some(error) = error.downcast_ref::<h2::Error>() {
            let going = error.is_go_away() && error.reason() == Some(h2::Reason::NO_ERROR);
            let refused = error.is_reset() && error.reason() == Some(h2::Reason::REFUSED_STREAM);
            return error.is_remote() && (going || refused);
        }
        source = error.source();
    }
    false
}

/// An error with its causes.
fn chain(error: &hyper::Error) -> String {
    let mut words = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        words.push_str(": ");
        words.push_str(&error.to_string());
        source = error.source();
    }
    words
}

/// Runs what a connection needs to run, for as long as the connection is there.
#[derive(Clone)]
struct Tasks(Weak<Mutex<JoinSet<()>>>);

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Tasks {
    fn execute(&self, future: F) {
        if let Some(tasks) = self.0.upgrade() {
            spawn(&tasks, future);
        }
    }
}

fn spawn(tasks: &Mutex<JoinSet<()>>, future: impl Future<Output = ()> + Send + 'static) {
    let mut tasks = tasks.lock().unwrap_or_else(PoisonError::into_inner);
    while tasks.try_join_next().is_some() {}
    tasks.spawn(future);
}

/// Notes what breaks the connection. HTTP/2 passes only a summary on to its streams, and a refused client
/// certificate first shows when the server's answer is read.
struct Wire {
    stream: Box<dyn Transport>,
    server: Server,
    broken: Arc<OnceLock<ApiError>>,
}

impl Wire {
    fn note<T>(&self, outcome: io::Result<T>) -> io::Result<T> {
        if let Err(error) = &outcome {
            // The first is the cause of those that follow.
            let _ = self.broken.set(tls::failure(&self.server, error));
        }
        outcome
    }
}

impl AsyncRead for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let outcome = ready!(Pin::new(&mut self.stream).poll_read(cx, buf));
        Poll::Ready(self.note(outcome))
    }
}

impl AsyncWrite for Wire {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        // A failed write is followed by a read that tells why.
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
