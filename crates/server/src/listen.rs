//! Listening and serving with limits: a door that is opened wide costs the node nothing.

use std::convert::Infallible;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use futures::FutureExt as _;
use http::StatusCode;
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt as _;
use tracing::{debug, warn};

use crate::guests::{Doings, Guest, Guests, Held, UnderWay};
use crate::secure::Peer;

/// Connections served at a time at one door; who comes then gets the place of one that is idle or takes nothing of its
/// answers, or waits.
const MAX_CONNECTIONS: usize = 256;
/// The same of the HTTPS door.
const MAX_SECURE_CONNECTIONS: usize = 1024;
/// A client that has not sent its request head by then is dropped, and one that takes nothing of its answer for so long if
/// its place is needed.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// The same of the HTTPS door, whose clients keep their connections: one on which nothing is under way for so long is
/// closed.
const SECURE_IDLE: Duration = Duration::from_secs(90);
/// A connection that was told to end is cut off then, or a little later than at once if its place is needed.
const FAREWELL: Duration = Duration::from_secs(30);
const HURRIED_FAREWELL: Duration = Duration::from_secs(1);
/// Larger request heads are refused.
const MAX_HEAD: usize = 64 * 1024;
/// A peer that says nothing for so long is asked whether it is still there, so often and so many times: who waits for the
/// next line of a log never says anything, and never notices that the client is gone.
const KEEPALIVE: (Duration, u32) = (Duration::from_secs(15), 9);

#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    #[error("cannot listen on {address}: {source}")]
    Tcp {
        address: SocketAddr,
        source: io::Error,
    },
    #[error("cannot listen on {}: {source}", path.display())]
    Unix { path: PathBuf, source: io::Error },
}

/// A door that is open but not yet served.
pub enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// What is spoken at a door.
#[derive(Clone, Copy, Debug)]
enum Speech {
    /// HTTP/1.1 alone, where one request goes after the other and each is a client's only one.
    Old,
    /// That or HTTP/2, as the client begins.
    Any,
}

/// Who came in.
enum Accepted {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// Bytes to and from a client.
trait Wire: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Wire for T {}

impl Accepted {
    fn from(&self) -> Option<IpAddr> {
        match self {
            Accepted::Tcp(stream) => Some(stream.peer_addr().ok()?.ip()),
            Accepted::Unix(_) => None,
        }
    }

    /// Of one type for all doors: HTTP is a lot of code, and would be there once for each.
    fn wire(self) -> Box<dyn Wire> {
        match self {
            Accepted::Tcp(stream) => Box::new(stream),
            Accepted::Unix(stream) => Box::new(stream),
        }
    }
}

impl Listener {
    pub async fn tcp(address: SocketAddr) -> Result<Self, ListenError> {
        TcpListener::bind(address)
            .await
            .map(Listener::Tcp)
            .map_err(|source| ListenError::Tcp { address, source })
    }

    /// A socket that only the owner may use. One left over by an earlier agent is replaced.
    pub fn unix(path: &Path) -> Result<Self, ListenError> {
        let open = || {
            match std::fs::remove_file(path) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
                _ => {}
            }
            let listener = UnixListener::bind(path)?;
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
            Ok(listener)
        };
        open()
            .map(Listener::Unix)
            .map_err(|source| ListenError::Unix {
                path: path.to_owned(),
                source,
            })
    }

    pub fn local_addr(&self) -> Option<SocketAddr> {
        match self {
            Listener::Tcp(listener) => listener.local_addr().ok(),
            Listener::Unix(_) => None,
        }
    }

    /// Serves until dropped; dropping it closes every connection.
    pub async fn serve(self, router: Router) {
        self.serve_in(Speech::Any, router).await;
    }

    /// The same for a door that is open to everybody: HTTP/1.1 alone, as the kubelet's are.
    pub(crate) async fn serve_everybody(self, router: Router) {
        self.serve_in(Speech::Old, router).await;
    }

    async fn serve_in(self, speech: Speech, router: Router) {
        let serve = move |accepted: Accepted, guest: Guest| {
            let router = router.clone();
            async move { connection(accepted.wire(), speech, router, &guest).await }
        };
        let guests = Guests::new(MAX_CONNECTIONS, HEAD_TIMEOUT);
        self.serve_each(&guests, serve).await;
    }

    /// Serves with TLS until dropped. What a client shows of itself goes with each of its requests.
    pub(crate) async fn serve_tls(self, config: Arc<ServerConfig>, router: Router) {
        let acceptor = TlsAcceptor::from(config);
        let serve = move |accepted: Accepted, guest: Guest| {
            let (acceptor, router) = (acceptor.clone(), router.clone());
            async move {
                // Small answers, such as a typed letter's echo, are not held back.
                if let Accepted::Tcp(stream) = &accepted
                    && stream.set_nodelay(true).is_err()
                {
                    return;
                }
                let from = accepted.from();
                secure_connection(accepted.wire(), from, &acceptor, router, &guest).await;
            }
        };
        let guests = Guests::new(MAX_SECURE_CONNECTIONS, SECURE_IDLE);
        self.serve_each(&guests, serve).await;
    }

    async fn accept(&self) -> io::Result<Accepted> {
        Ok(match self {
            Listener::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                if let Err(e) = keep_alive(&stream) {
                    debug!(err = %e, "A connection does without keep-alive");
                }
                Accepted::Tcp(stream)
            }
            Listener::Unix(listener) => Accepted::Unix(listener.accept().await?.0),
        })
    }

    /// One is let in and then finds a place: what waits beyond that waits in the kernel's queue.
    async fn serve_each<F>(self, guests: &Guests, serve: impl Fn(Accepted, Guest) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let mut connections = JoinSet::new();
        loop {
            match self.accept().await {
                Ok(accepted) => {
                    let guest = guests.enter().await;
                    while connections.try_join_next().is_some() {}
                    connections.spawn(serve(accepted, guest));
                }
                Err(e) => accept_failed(&e).await,
            }
        }
    }
}

fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    use rustix::net::sockopt;
    let (time, times) = KEEPALIVE;
    sockopt::set_tcp_keepidle(stream, time)?;
    sockopt::set_tcp_keepintvl(stream, time)?;
    sockopt::set_tcp_keepcnt(stream, times)?;
    Ok(sockopt::set_socket_keepalive(stream, true)?)
}

/// Out of file descriptors, most likely: wait a little instead of spinning.
async fn accept_failed(e: &io::Error) {
    warn!(err = %e, "Could not accept a connection");
    tokio::time::sleep(Duration::from_millis(100)).await;
}

async fn secure_connection(
    wire: Box<dyn Wire>,
    from: Option<IpAddr>,
    acceptor: &TlsAcceptor,
    router: Router,
    guest: &Guest,
) {
    let shaken = tokio::select! {
        biased;
        shaken = timeout(HEAD_TIMEOUT, acceptor.accept(wire)) => shaken,
        () = guest.is_unwanted() => return debug!("A TLS handshake gave way to others"),
    };
    let stream = match shaken {
        Ok(Ok(stream)) => stream,
        Ok(Err(e)) => return debug!(err = %e, "A TLS handshake failed"),
        Err(_) => return debug!("A TLS handshake took too long"),
    };
    let shown = stream.get_ref().1.peer_certificates();
    let shown = shown
        .unwrap_or_default()
        .iter()
        .map(|c| c.clone().into_owned());
    let peer = Peer {
        address: from,
        certificates: Arc::new(shown.collect()),
    };
    talk(Box::new(stream), Speech::Any, router, peer, guest).await;
}

async fn connection(wire: Box<dyn Wire>, speech: Speech, router: Router, guest: &Guest) {
    // Nobody is asked who he is at such a door.
    talk(wire, speech, router, Peer::default(), guest).await;
}

/// Requests and answers. Each of its requests gets the door's patience to come whole, and so long may nothing be under way.
async fn talk(wire: Box<dyn Wire>, speech: Speech, router: Router, peer: Peer, guest: &Guest) {
    let stream = TokioIo::new(wire);
    let (doings, refused) = (guest.doings(), RefusedUpgrade::default());
    let refusals = refused.clone();
    let service = hyper::service::service_fn(move |mut request: http::Request<Incoming>| {
        request.extensions_mut().insert(peer.clone());
        answer(router.clone(), request, doings.clone(), refusals.clone())
    });
    match speech {
        Speech::Old => {
            let builder = builder(guest).http1_only();
            let served = builder.serve_connection(stream, service);
            until_it_ends(served, |served| served.graceful_shutdown(), guest).await;
        }
        Speech::Any => {
            let builder = builder(guest);
            let served = builder.serve_connection_with_upgrades(stream, service);
            until_it_ends(served, |served| served.graceful_shutdown(), guest).await;
        }
    }
    refused.take_leave().await;
}

/// A connection whose client wanted to speak something else and was not let. At its end HTTP would hand it on for that, and
/// who has nobody to hand it to would drop it: a client of TLS could not tell that from an answer that was cut off.
#[derive(Clone, Default)]
struct RefusedUpgrade(Arc<Mutex<Option<OnUpgrade>>>);

impl RefusedUpgrade {
    fn note(&self, upgrade: OnUpgrade) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(upgrade);
    }

    async fn take_leave(self) {
        let noted = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        // Handed over by now, if ever: the connection has ended.
        if let Some(Some(Ok(wire))) = noted.map(OnUpgrade::now_or_never) {
            let mut wire = TokioIo::new(wire);
            let _ = timeout(HURRIED_FAREWELL, wire.shutdown()).await;
        }
    }
}

fn builder(guest: &Guest) -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(guest.patience())
        .max_buf_size(MAX_HEAD);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(128)
        .max_header_list_size(32 * 1024)
        .keep_alive_interval(SECURE_IDLE / 3)
        .keep_alive_timeout(SECURE_IDLE / 3);
    builder
}

/// Serves a connection until its client or its time is gone; `shut` tells the client that it is.
async fn until_it_ends<C, E>(served: C, shut: impl FnOnce(Pin<&mut C>), guest: &Guest)
where
    C: Future<Output = Result<(), E>>,
    E: fmt::Display,
{
    let mut served = std::pin::pin!(served);
    let ended = tokio::select! {
        biased;
        ended = served.as_mut() => ended,
        () = guest.has_to_go() => {
            shut(served.as_mut());
            tokio::select! {
                biased;
                ended = served => ended,
                () = farewell(guest) => return debug!("A connection was cut off"),
            }
        }
    };
    if let Err(e) = ended {
        debug!(err = %e, "A connection ended badly");
    }
}

/// A client that was told to go may take what was said last, if nobody needs the place. What it asked before it heard of
/// that is answered first, if it takes the answer.
async fn farewell(guest: &Guest) {
    let needed = async {
        guest.is_unwanted().await;
        tokio::time::sleep(HURRIED_FAREWELL).await;
    };
    let said = async {
        let _ = timeout(FAREWELL, needed).await;
        guest.idle_for(Duration::ZERO).await;
    };
    tokio::select! {
        () = said => {}
        () = guest.is_given_up() => {}
    }
}

/// Under way until the client has taken all of it. Refusals are short: who does not take one keeps no place by that, or
/// somebody who is let in nowhere could stay for ever.
async fn answer(
    router: Router,
    request: http::Request<Incoming>,
    doings: Doings,
    refusals: RefusedUpgrade,
) -> Result<http::Response<Held<UnderWay>>, Infallible> {
    let under_way = doings.begin();
    let upgrade = request.extensions().get::<OnUpgrade>().cloned();
    let response = router.oneshot(request).await?;
    let status = response.status();
    if let Some(upgrade) = upgrade
        && status != StatusCode::SWITCHING_PROTOCOLS
    {
        refusals.note(upgrade);
    }
    let refused = status.is_client_error() || status.is_server_error();
    let under_way = (!refused).then_some(under_way);
    Ok(response.map(|body| Held::new(body, under_way)))
}

#[cfg(test)]
mod tests;
