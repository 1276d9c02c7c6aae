//! Commands in containers, their terminals, and ports of pods: the runtime says where it serves them, and the client's
//! connection is joined to that.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Path, Query, Request, State};
use axum::response::{IntoResponse, Response};
use http::uri::Scheme;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri, header};
use hyper_util::rt::TokioIo;
use krablet_access::offered_protocols;
use krablet_cri::{Code, Error, v1};
use krablet_pod::ContainerId;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use super::place::{Place, Refused, terminal};
use super::query::{NO_STREAMS, StreamQuery, ports_query, stream_query, values};
use super::{Door, SharedDoor};
use crate::answers::refuse;
use crate::counting::Ongoing;

/// Streams at a time; who comes then is told to come again.
const MAX_STREAMS: usize = 512;
/// For the runtime to take a connection and to answer on it.
const ANSWER_DEADLINE: Duration = Duration::from_secs(30);
const BUFFER: usize = 64 * 1024;
/// For a client to read what was said last: one that is alive pings every five seconds.
const LINGER: Duration = Duration::from_secs(15);
/// When to come again to a runtime that serves too many streams: its places are kept for a minute.
const AGAIN: HeaderValue = HeaderValue::from_static("60");
/// A command that `/run` runs may take so long.
const RUN_DEADLINE: Duration = Duration::from_secs(120);

type Pairs = Vec<(String, String)>;

/// What a connection is to become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Upgrade {
    Spdy,
    WebSocket,
}

pub(super) async fn exec(
    State(door): State<SharedDoor>,
    Path(place): Path<Place>,
    Query(pairs): Query<Pairs>,
    request: Request,
) -> Response {
    let (id, query) = match wanted_streams(&door, &place, &pairs, request.headers()) {
        Ok(wanted) => wanted,
        Err(refused) => return *refused,
    };
    let command = pairs.into_iter().filter(|(key, _)| key == "command");
    let wanted = v1::ExecRequest {
        container_id: id.to_string(),
        cmd: command.map(|(_, word)| word).collect(),
        tty: query.tty,
        stdin: query.stdin,
        stdout: query.stdout,
        stderr: query.stderr,
    };
    let place = door.parts.streaming.exec(wanted).await;
    door.streams.join(request, place).await
}

pub(super) async fn attach(
    State(door): State<SharedDoor>,
    Path(place): Path<Place>,
    Query(pairs): Query<Pairs>,
    request: Request,
) -> Response {
    let (id, query) = match wanted_streams(&door, &place, &pairs, request.headers()) {
        Ok(wanted) => wanted,
        Err(refused) => return *refused,
    };
    // Whether there is a terminal was settled when the container was made.
    let pod = door.pod(&place);
    let tty = pod.and_then(|pod| terminal(&pod, &place.container));
    let tty = tty.unwrap_or(query.tty);
    let wanted = v1::AttachRequest {
        container_id: id.to_string(),
        stdin: query.stdin,
        tty,
        stdout: query.stdout,
        stderr: query.stderr && !tty,
    };
    let place = door.parts.streaming.attach(wanted).await;
    door.streams.join(request, place).await
}

pub(super) async fn port_forward(
    State(door): State<SharedDoor>,
    Path(place): Path<Place>,
    Query(pairs): Query<Pairs>,
    request: Request,
) -> Response {
    let id = match door.ready_sandbox(&place) {
        Ok(id) => id,
        Err(refused) => return *refused,
    };
    let upgrade = match wanted_upgrade(request.headers()) {
        Ok(upgrade) => upgrade,
        Err(why) => return refuse(StatusCode::BAD_REQUEST, why),
    };
    let port = match upgrade {
        // Each stream says itself which port it is for.
        Upgrade::Spdy => Ok(Vec::new()),
        Upgrade::WebSocket => ports_query(&pairs),
    };
    let wanted = match port {
        Ok(port) => v1::PortForwardRequest {
            pod_sandbox_id: id.to_string(),
            port,
        },
        Err(why) => return refuse(StatusCode::BAD_REQUEST, why),
    };
    let place = door.parts.streaming.port_forward(wanted).await;
    door.streams.join(request, place).await
}

/// Which streams of which container, for a connection that can become a stream.
fn wanted_streams(
    door: &Door,
    place: &Place,
    pairs: &Pairs,
    headers: &HeaderMap,
) -> Result<(ContainerId, StreamQuery), Refused> {
    let bad = |why| Box::new(refuse(StatusCode::BAD_REQUEST, why));
    let query = stream_query(pairs).ok_or_else(|| bad(NO_STREAMS))?;
    let id = door.running_container(place)?;
    wanted_upgrade(headers).map_err(bad)?;
    Ok((id, query))
}

/// A command to its end, and what it wrote.
pub(super) async fn run(
    State(door): State<SharedDoor>,
    Path(place): Path<Place>,
    Query(pairs): Query<Pairs>,
) -> Response {
    let id = match door.running_container(&place) {
        Ok(id) => id,
        Err(refused) => return *refused,
    };
    let command = values(&pairs, "cmd").next().unwrap_or_default();
    let asked = command.to_owned();
    let command = command.split(' ').map(str::to_owned).collect();
    let runtime = &door.parts.runtime;
    match runtime.exec_sync(id.as_str(), command, RUN_DEADLINE).await {
        Ok(done) if done.exit_code == 0 => {
            let mut out = done.stdout;
            out.extend_from_slice(&done.stderr);
            ([(header::CONTENT_TYPE, "application/json")], out).into_response()
        }
        Ok(done) => {
            let said = String::from_utf8_lossy(&done.stderr).into_owned();
            let why = format!("command '{asked}' exited with {}: {said}", done.exit_code);
            refuse(StatusCode::INTERNAL_SERVER_ERROR, why)
        }
        Err(e) => refuse(StatusCode::INTERNAL_SERVER_ERROR, e.to_string()),
    }
}

/// The streams that are joined now; dropping it parts them.
pub(crate) struct Streams {
    idle: Duration,
    places: Arc<Semaphore>,
    joined: Mutex<JoinSet<()>>,
}

impl Streams {
    pub(super) fn new(idle: Duration) -> Self {
        Self {
            idle,
            places: Arc::new(Semaphore::new(MAX_STREAMS)),
            joined: Mutex::default(),
        }
    }

    /// Asks the runtime for the same upgrade at its own place, and joins the two if it grants it.
    async fn join(&self, request: Request, url: Result<String, Error>) -> Response {
        let url = match url {
            Ok(url) => url,
            Err(e) => return runtime_refused(&e),
        };
        let Ok(place) = self.places.clone().try_acquire_owned() else {
            let why = "too many streams are open on this node, try again later";
            return refuse(StatusCode::TOO_MANY_REQUESTS, why);
        };
        let answer = timeout(ANSWER_DEADLINE, self.dial(request, &url, place)).await;
        match answer {
            Ok(Ok(response)) => response,
            Ok(Err(why)) => {
                tracing::error!(err = why, "Error while proxying request");
                refuse(StatusCode::INTERNAL_SERVER_ERROR, why)
            }
            Err(_) => {
                let why = "the runtime did not answer in time where it serves its streams";
                refuse(StatusCode::INTERNAL_SERVER_ERROR, why)
            }
        }
    }

    async fn dial(
        &self,
        mut request: Request,
        url: &str,
        place: OwnedSemaphorePermit,
    ) -> Result<Response, String> {
        let target: Uri = url.parse().map_err(|_| "the runtime's URL is none")?;
        if let Some(scheme) = target.scheme().filter(|s| **s != Scheme::HTTP) {
            return Err(format!(
                "the runtime serves its streams by {scheme}, and has to by http: turn off TLS streaming there"
            ));
        }
        let host = target.authority().ok_or("the runtime's URL has no host")?;
        let (name, port) = (host.host(), host.port_u16().unwrap_or(80));
        let name = name.trim_matches(['[', ']']);
        let stream = TcpStream::connect((name, port)).await;
        let stream = stream.map_err(|e| format!("error dialing backend: {e}"))?;
        stream.set_nodelay(true).map_err(|e| e.to_string())?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake::<_, Body>(TokioIo::new(stream))
                .await
                .map_err(|e| e.to_string())?;
        let mut joined = self.joined.lock().await;
        while joined.try_join_next().is_some() {}
        joined.spawn(async move {
            // Ends when the connection is upgraded, and then belongs to the upgrade.
            if let Err(e) = connection.with_upgrades().await {
                tracing::debug!(err = %e, "A stream of the runtime ended badly");
            }
        });
        drop(joined);
        let client = hyper::upgrade::on(&mut request);
        let asked = outgoing(&request, &target)?;
        let mut answer = sender
            .send_request(asked)
            .await
            .map_err(|e| e.to_string())?;
        if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
            let (head, body) = answer.into_parts();
            return Ok(Response::from_parts(head, Body::new(body)));
        }
        let runtime = hyper::upgrade::on(&mut answer);
        let idle = self.idle;
        // The request goes on as long as its stream.
        let ongoing = request.extensions_mut().remove::<Ongoing>();
        self.joined.lock().await.spawn(async move {
            let _held = (place, ongoing);
            let (Ok(client), Ok(runtime)) = tokio::join!(client, runtime) else {
                return;
            };
            couple(TokioIo::new(client), TokioIo::new(runtime), idle).await;
        });
        let mut response = Response::new(Body::empty());
        *response.status_mut() = answer.status();
        *response.headers_mut() = answer.headers().clone();
        Ok(response)
    }
}

fn runtime_refused(e: &Error) -> Response {
    let code = match e.code {
        Code::NotFound => StatusCode::NOT_FOUND,
        Code::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    let mut response = refuse(code, e.to_string());
    if code == StatusCode::TOO_MANY_REQUESTS {
        response.headers_mut().insert(header::RETRY_AFTER, AGAIN);
    }
    response
}

/// Whether this can become a stream at all, before the runtime prepares for one. Which of the two protocols it is does
/// not matter here: both are passed on as they are.
fn wanted_upgrade(headers: &HeaderMap) -> Result<Upgrade, &'static str> {
    let connection = headers.get_all(header::CONNECTION);
    let mut words = connection
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','));
    let upgrades = words.any(|word| word.trim().eq_ignore_ascii_case("upgrade"));
    let text = |name: &HeaderName| headers.get(name).and_then(|v| v.to_str().ok());
    let Some(protocol) = text(&header::UPGRADE).filter(|_| upgrades) else {
        return Err("Upgrade request required");
    };
    let only = |name: &HeaderName| headers.get_all(name).iter().nth(1).is_none();
    match protocol.to_ascii_lowercase().as_str() {
        "spdy/3.1" if only(&header::UPGRADE) => Ok(Upgrade::Spdy),
        "websocket" if only(&header::UPGRADE) => {
            let key = text(&header::SEC_WEBSOCKET_KEY);
            let version = text(&header::SEC_WEBSOCKET_VERSION);
            // 16 bytes in base64.
            let good = key.is_some_and(|key| key.len() == 24) && version == Some("13");
            good.then_some(Upgrade::WebSocket)
                .ok_or("malformed WebSocket handshake")
        }
        _ => Err("streams are SPDY/3.1 or WebSocket"),
    }
}

/// The client's request as the runtime gets it: its own credentials are nobody else's business.
fn outgoing(request: &Request, target: &Uri) -> Result<http::Request<Body>, String> {
    const KEPT: [HeaderName; 2] = [header::CONNECTION, header::UPGRADE];
    let path = target.path_and_query().map_or("/", |p| p.as_str());
    let host = target.authority().map_or("", |a| a.as_str());
    let mut asked = http::Request::builder()
        .method(request.method())
        .uri(path)
        .header(header::HOST, host);
    for (name, value) in request.headers() {
        let streams = name.as_str().starts_with("x-stream-protocol-version")
            || name.as_str().starts_with("sec-websocket-");
        if (KEPT.contains(name) || streams) && *name != header::SEC_WEBSOCKET_PROTOCOL {
            asked = asked.header(name, value);
        }
    }
    if let Some(protocols) = offered_protocols(request.headers()) {
        asked = asked.header(header::SEC_WEBSOCKET_PROTOCOL, protocols);
    }
    asked.body(Body::empty()).map_err(|e| e.to_string())
}

/// Copies both ways until one side ends, or nothing was said either way for as long as may be. What the runtime has said reaches
/// the client, also if the runtime hears nothing any more.
async fn couple(
    client: impl AsyncRead + AsyncWrite + Unpin,
    runtime: impl AsyncRead + AsyncWrite + Unpin,
    idle: Duration,
) {
    let (said, mut heard) = watch::channel(Instant::now());
    let (mut from_client, mut to_client) = tokio::io::split(client);
    let (mut from_runtime, mut to_runtime) = tokio::io::split(runtime);
    let quiet = async {
        loop {
            let last = *heard.borrow_and_update();
            tokio::time::sleep_until(last + idle).await;
            if *heard.borrow() == last {
                return;
            }
        }
    };
    let asked = async {
        if let Ended::Writing = copy(&mut from_client, &mut to_runtime, &said).await {
            // It has closed, and what it said last is on its way.
            discard(&mut from_client).await;
        }
    };
    let all_said = tokio::select! {
        biased;
        ended = copy(&mut from_runtime, &mut to_client, &said) => ended == Ended::Reading,
        () = asked => false,
        () = quiet, if !idle.is_zero() => false,
    };
    drop((from_runtime, to_runtime));
    if all_said {
        let _ = to_client.shutdown().await;
        // Who lets go of a connection with something unread in it resets it, and the client loses what it has yet to read.
        linger(&mut from_client).await;
    }
}

/// Which side of a copy ended it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    Reading,
    Writing,
}

async fn copy(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    said: &watch::Sender<Instant>,
) -> Ended {
    let mut buffer = vec![0; BUFFER];
    loop {
        let count = match from.read(&mut buffer).await {
            // An error is no worse an end than any: containerd closes with the client's last pings unread, and its kernel
            // resets the connection after the last bytes. Whether all was said is between the client and the runtime.
            Ok(0) | Err(_) => return Ended::Reading,
            Ok(count) => count,
        };
        said.send_replace(Instant::now());
        if to.write_all(&buffer[..count]).await.is_err() || to.flush().await.is_err() {
            return Ended::Writing;
        }
    }
}

/// Until nothing more can come.
async fn discard(from: &mut (impl AsyncRead + Unpin)) {
    let mut buffer = [0; 512];
    while !matches!(from.read(&mut buffer).await, Ok(0) | Err(_)) {}
}

/// The same, but who has been silent for long enough will not ask any more.
async fn linger(from: &mut (impl AsyncRead + Unpin)) {
    let mut buffer = [0; 512];
    while matches!(timeout(LINGER, from.read(&mut buffer)).await, Ok(Ok(1..))) {}
}

#[cfg(test)]
mod tests;
