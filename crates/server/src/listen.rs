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
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt as _;
use tracing::{debug, warn};

use crate::secure::PeerCertificates;

/// Connections served at a time at one door; more wait in the kernel's queue.
const MAX_CONNECTIONS: usize = 256;
/// The same of the HTTPS door.
const MAX_SECURE_CONNECTIONS: usize = 1024;
/// A client that has not sent its request head by then is dropped.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Clients of the HTTPS door keep their connections; one that says nothing for so long is closed, and one whose request
/// head is not whole by then as well.
const SECURE_IDLE: Duration = Duration::from_secs(90);
/// Larger request heads are refused.
const MAX_HEAD: usize = 64 * 1024;

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

/// Who came in.
enum Accepted {
    Tcp(TcpStream),
    Unix(UnixStream),
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
        let serve = move |accepted| {
            let router = router.clone();
            async move {
                match accepted {
                    Accepted::Tcp(stream) => connection(stream, router).await,
                    Accepted::Unix(stream) => connection(stream, router).await,
                }
            }
        };
        self.serve_each(MAX_CONNECTIONS, serve).await;
    }

    /// Serves with TLS until dropped. What a client shows of itself goes with each of its requests.
    pub(crate) async fn serve_tls(self, config: Arc<ServerConfig>, router: Router) {
        let acceptor = TlsAcceptor::from(config);
        let serve = move |accepted| {
            let (acceptor, router) = (acceptor.clone(), router.clone());
            async move {
                match accepted {
                    // Small answers, such as a typed letter's echo, are not held back.
                    Accepted::Tcp(stream) if stream.set_nodelay(true).is_ok() => {
                        secure_connection(stream, &acceptor, router).await;
                    }
                    Accepted::Tcp(_) => {}
                    Accepted::Unix(stream) => secure_connection(stream, &acceptor, router).await,
                }
            }
        };
        self.serve_each(MAX_SECURE_CONNECTIONS, serve).await;
    }

    async fn accept(&self) -> io::Result<Accepted> {
        Ok(match self {
            Listener::Tcp(listener) => Accepted::Tcp(listener.accept().await?.0),
            Listener::Unix(listener) => Accepted::Unix(listener.accept().await?.0),
        })
    }

    async fn serve_each<F>(self, most: usize, serve: impl Fn(Accepted) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let permits = Arc::new(Semaphore::new(most));
        let mut connections = JoinSet::new();
        loop {
            let Ok(permit) = permits.clone().acquire_owned().await else {
                return;
            };
            while connections.try_join_next().is_some() {}
            match self.accept().await {
                Ok(accepted) => {
                    let served = serve(accepted);
                    connections.spawn(async move {
                        served.await;
                        drop(permit);
                    });
                }
                Err(e) => accept_failed(&e).await,
            }
        }
    }
}

/// Out of file descriptors, most likely: wait a little instead of spinning.
async fn accept_failed(e: &io::Error) {
    warn!(err = %e, "Could not accept a connection");
    tokio::time::sleep(Duration::from_millis(100)).await;
}

async fn secure_connection(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    acceptor: &TlsAcceptor,
    router: Router,
) {
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
    talk(stream, router, shown, SECURE_IDLE).await;
}

async fn connection(stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static, router: Router) {
    talk(stream, router, PeerCertificates::default(), HEAD_TIMEOUT).await;
}

/// Requests and answers, in HTTP/1.1 or HTTP/2 as the client begins. Each of its requests gets so much patience to come
/// whole, and the first of them no more than that after the connection was made.
async fn talk(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    router: Router,
    shown: PeerCertificates,
    patience: Duration,
) {
    let begun = Arc::new(Notify::new());
    let asked = begun.clone();
    let service = hyper::service::service_fn(move |mut request: http::Request<Incoming>| {
        asked.notify_one();
        request.extensions_mut().insert(shown.clone());
        let router = router.clone();
        async move { router.oneshot(request).await }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(patience)
        .max_buf_size(MAX_HEAD);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(128)
        .max_header_list_size(32 * 1024)
        .keep_alive_interval(SECURE_IDLE / 3)
        .keep_alive_timeout(SECURE_IDLE / 3);
    let silent = async {
        if timeout(patience, begun.notified()).await.is_ok() {
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        biased;
        served = builder.serve_connection_with_upgrades(TokioIo::new(stream), service) => {
            if let Err(e) = served {
                debug!(err = %e, "A connection ended badly");
            }
        }
        () = silent => debug!("A connection was made and nothing asked on it"),
    }
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use rustls::ClientConfig;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
    use tokio::time::Instant;
    use tokio_rustls::TlsConnector;
    use tokio_rustls::client::TlsStream;

    use super::*;

    fn pair() -> (CertificateDer<'static>, TlsAcceptor) {
        let made = rcgen::generate_simple_self_signed(["node".to_owned()]).unwrap();
        let certificate = made.cert.der().clone();
        let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.clone()], key)
            .unwrap();
        (certificate, TlsAcceptor::from(Arc::new(config)))
    }

    /// A client at the HTTPS door, and the door's side of it.
    async fn client(tasks: &mut JoinSet<()>) -> TlsStream<DuplexStream> {
        let (certificate, acceptor) = pair();
        let (here, there) = tokio::io::duplex(4096);
        let router = Router::new().route("/", get(async || "fine"));
        tasks.spawn(async move { secure_connection(there, &acceptor, router).await });
        let mut roots = rustls::RootCertStore::empty();
        roots.add(certificate).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = ServerName::try_from("node").unwrap();
        let connector = TlsConnector::from(Arc::new(config));
        connector.connect(name, here).await.unwrap()
    }

    async fn rest(mut stream: TlsStream<DuplexStream>) -> String {
        let mut rest = Vec::new();
        // A door that is shut without a farewell is shut all the same.
        let _ = stream.read_to_end(&mut rest).await;
        String::from_utf8_lossy(&rest).into_owned()
    }

    #[tokio::test(start_paused = true)]
    async fn a_head_that_comes_letter_by_letter_is_cut_off() {
        let begun = Instant::now();
        let mut tasks = JoinSet::new();
        let mut stream = client(&mut tasks).await;
        stream.write_all(b"GET / HTTP/1.1\r\n").await.unwrap();
        loop {
            tokio::time::sleep(Duration::from_secs(5)).await;
            let sent = stream.write_all(b"X: y\r\n").await;
            if sent.is_err() || tasks.try_join_next().is_some() {
                break;
            }
        }
        assert!(begun.elapsed() <= SECURE_IDLE + HEAD_TIMEOUT);
        assert!(!rest(stream).await.contains("fine"));
    }

    #[tokio::test(start_paused = true)]
    async fn who_never_begins_the_handshake_is_cut_off() {
        let (_, acceptor) = pair();
        let (_here, there) = tokio::io::duplex(4096);
        let begun = Instant::now();
        secure_connection(there, &acceptor, Router::new()).await;
        assert_eq!(begun.elapsed(), HEAD_TIMEOUT);
    }

    #[tokio::test(start_paused = true)]
    async fn who_says_nothing_is_let_go() {
        let mut tasks = JoinSet::new();
        let stream = client(&mut tasks).await;
        tasks.join_next().await.unwrap().unwrap();
        assert_eq!(rest(stream).await, "");
    }

    #[tokio::test]
    async fn a_head_that_is_too_large_is_refused() {
        let mut tasks = JoinSet::new();
        let stream = client(&mut tasks).await;
        let (mut from, mut to) = tokio::io::split(stream);
        let said = async {
            let _ = to.write_all(b"GET / HTTP/1.1\r\nHost: node\r\n").await;
            for n in 0..90 {
                let line = format!("X-{n}: {}\r\n", "a".repeat(1000));
                if to.write_all(line.as_bytes()).await.is_err() {
                    return;
                }
            }
            let _ = to.flush().await;
        };
        let mut heard = vec![0; 64];
        let (count, ()) = tokio::join!(from.read(&mut heard), said);
        let heard = String::from_utf8_lossy(&heard[..count.unwrap()]).into_owned();
        assert!(heard.starts_with("HTTP/1.1 431 "), "{heard}");
    }

    #[tokio::test]
    async fn a_request_is_answered() {
        let mut tasks = JoinSet::new();
        let mut stream = client(&mut tasks).await;
        let ask = b"GET / HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n";
        stream.write_all(ask).await.unwrap();
        assert!(rest(stream).await.ends_with("fine"));
    }
}
