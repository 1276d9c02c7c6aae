//! Listening and serving with limits: a door that is opened wide costs the node nothing.

use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt as _;
use tracing::{debug, warn};

use crate::secure::PeerCertificates;

/// Connections served at a time at one door; more wait in the kernel's queue.
const MAX_CONNECTIONS: usize = 256;
/// A client that has not sent its request head by then is dropped.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);

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
        let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        let mut connections = JoinSet::new();
        loop {
            let Ok(permit) = permits.clone().acquire_owned().await else {
                return;
            };
            while connections.try_join_next().is_some() {}
            let router = router.clone();
            match &self {
                Listener::Tcp(listener) => match listener.accept().await {
                    Ok((stream, _)) => {
                        connections.spawn(async move {
                            connection(stream, router).await;
                            drop(permit);
                        });
                    }
                    Err(e) => accept_failed(&e).await,
                },
                Listener::Unix(listener) => match listener.accept().await {
                    Ok((stream, _)) => {
                        connections.spawn(async move {
                            connection(stream, router).await;
                            drop(permit);
                        });
                    }
                    Err(e) => accept_failed(&e).await,
                },
            }
        }
    }
}

/// Connections served at a time at the HTTPS door; more wait in the kernel's queue.
const MAX_SECURE_CONNECTIONS: usize = 1024;
/// One that says nothing for so long is closed.
const SECURE_IDLE: Duration = Duration::from_secs(90);

impl Listener {
    /// Serves with TLS until dropped. What a client shows of itself goes with each of its requests.
    pub(crate) async fn serve_tls(self, config: Arc<ServerConfig>, router: Router) {
        let Listener::Tcp(listener) = self else {
            return;
        };
        let acceptor = TlsAcceptor::from(config);
        let permits = Arc::new(Semaphore::new(MAX_SECURE_CONNECTIONS));
        let mut connections = JoinSet::new();
        loop {
            let Ok(permit) = permits.clone().acquire_owned().await else {
                return;
            };
            while connections.try_join_next().is_some() {}
            match listener.accept().await {
                Ok((stream, _)) => {
                    let (acceptor, router) = (acceptor.clone(), router.clone());
                    connections.spawn(async move {
                        secure_connection(stream, &acceptor, router).await;
                        drop(permit);
                    });
                }
                Err(e) => accept_failed(&e).await,
            }
        }
    }
}

async fn secure_connection(stream: TcpStream, acceptor: &TlsAcceptor, router: Router) {
    // Small answers, such as a typed letter's echo, are not held back.
    if stream.set_nodelay(true).is_err() {
        return;
    }
    let stream = match timeout(HEAD_TIMEOUT, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(e)) => return debug!(err = %e, "A TLS handshake failed"),
        Err(_) => return debug!("A TLS handshake took too long"),
    };
    let shown = stream.get_ref().1.peer_certificates();
    let shown = shown
        .unwrap_or_default()
        .iter()
        .map(|c| c.clone().into_owned());
    let shown = PeerCertificates(Arc::new(shown.collect()));
    let service = hyper::service::service_fn(move |mut request: http::Request<Incoming>| {
        request.extensions_mut().insert(shown.clone());
        let router = router.clone();
        async move { router.oneshot(request).await }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(SECURE_IDLE)
        .max_buf_size(64 * 1024);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(128)
        .max_header_list_size(32 * 1024)
        .keep_alive_interval(SECURE_IDLE / 3)
        .keep_alive_timeout(SECURE_IDLE / 3);
    let served = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
    if let Err(e) = served.await {
        debug!(err = %e, "A connection ended badly");
    }
}

/// Out of file descriptors, most likely: wait a little instead of spinning.
async fn accept_failed(e: &io::Error) {
    warn!(err = %e, "Could not accept a connection");
    tokio::time::sleep(Duration::from_millis(100)).await;
}

async fn connection(stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static, router: Router) {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(64 * 1024);
    let service = TowerToHyperService::new(router);
    if let Err(e) = builder
        .serve_connection(TokioIo::new(stream), service)
        .await
    {
        debug!(err = %e, "A connection ended badly");
    }
}
