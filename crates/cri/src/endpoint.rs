//! Where the runtime listens, and how we get through to it: a unix socket, connected on first use
//! and again whenever the connection was lost. Attempts that fail are spaced out (100 ms to 3 s);
//! in between calls fail at once instead of queueing behind a dead socket.

use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tokio::time::{Instant, timeout};
use tonic::transport::{Channel, Endpoint as TonicEndpoint, Uri};

const FIRST_DELAY: Duration = Duration::from_millis(100);
const LONGEST_DELAY: Duration = Duration::from_secs(3);
/// A listener whose backlog is full neither accepts nor refuses.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// An endpoint that cannot be one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    #[error("the runtime endpoint is empty")]
    Empty,
    #[error("runtime endpoint {0:?}: only unix sockets are supported (unix:///path)")]
    Scheme(String),
    #[error("runtime endpoint {0:?}: the socket path must be absolute")]
    Relative(String),
}

/// A runtime's socket, from `unix:///path` or a bare path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    path: PathBuf,
}

impl Endpoint {
    pub fn parse(text: &str) -> Result<Self, EndpointError> {
        let path = match text.split_once("://") {
            _ if text.is_empty() => return Err(EndpointError::Empty),
            Some(("unix", path)) => path,
            Some(_) => return Err(EndpointError::Scheme(text.to_owned())),
            None => text.strip_prefix("unix:").unwrap_or(text),
        };
        if !path.starts_with('/') {
            return Err(EndpointError::Relative(text.to_owned()));
        }
        Ok(Self { path: path.into() })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A channel of its own connection, made when first used.
    pub(crate) fn channel(&self) -> Channel {
        // The URI only fills the HTTP/2 authority; gRPC names unix sockets so.
        TonicEndpoint::from_static("http://localhost").connect_with_connector_lazy(Connector {
            path: self.path.clone().into(),
            pause: Arc::default(),
        })
    }
}

/// When the next attempt may be made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Pause {
    delay: Duration,
    until: Option<Instant>,
}

impl Pause {
    fn open(self, now: Instant) -> bool {
        self.until.is_none_or(|until| now >= until)
    }

    fn after_failure(self, now: Instant) -> Self {
        let delay = (self.delay * 8 / 5).clamp(FIRST_DELAY, LONGEST_DELAY);
        Self {
            delay,
            until: Some(now + delay),
        }
    }
}

#[derive(Clone)]
struct Connector {
    path: Arc<Path>,
    pause: Arc<Mutex<Pause>>,
}

impl Connector {
    async fn connect(self) -> io::Result<TokioIo<UnixStream>> {
        let pause = *self.pause.lock().unwrap_or_else(PoisonError::into_inner);
        if !pause.open(Instant::now()) {
            let text = format!(
                "dial unix {}: waiting to connect again",
                self.path.display()
            );
            return Err(io::Error::new(io::ErrorKind::NotConnected, text));
        }
        let result = match timeout(CONNECT_TIMEOUT, UnixStream::connect(&self.path)).await {
            Ok(result) => result,
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        };
        let next = match result {
            Ok(_) => Pause::default(),
            Err(_) => pause.after_failure(Instant::now()),
        };
        *self.pause.lock().unwrap_or_else(PoisonError::into_inner) = next;
        result.map(TokioIo::new).map_err(|error| {
            io::Error::new(
                error.kind(),
                format!("dial unix {}: {error}", self.path.display()),
            )
        })
    }
}

impl tower::Service<Uri> for Connector {
    type Response = TokioIo<UnixStream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        Box::pin(self.clone().connect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints() {
        let path = |text| Endpoint::parse(text).map(|e| e.path.display().to_string());
        assert_eq!(path("unix:///run/x.sock"), Ok("/run/x.sock".to_owned()));
        assert_eq!(path("unix:/run/x.sock"), Ok("/run/x.sock".to_owned()));
        assert_eq!(path("/run/x.sock"), Ok("/run/x.sock".to_owned()));
        assert_eq!(path(""), Err(EndpointError::Empty));
        assert!(matches!(
            path("tcp://1.2.3.4:5"),
            Err(EndpointError::Scheme(_))
        ));
        assert!(matches!(
            path("run/x.sock"),
            Err(EndpointError::Relative(_))
        ));
        assert!(matches!(
            path("unix://x.sock"),
            Err(EndpointError::Relative(_))
        ));
    }

    #[tokio::test(start_paused = true)]
    async fn attempts_are_spaced_out_up_to_a_limit() {
        let now = Instant::now();
        let mut pause = Pause::default();
        assert!(pause.open(now));
        let mut delays = Vec::new();
        for _ in 0..10 {
            pause = pause.after_failure(now);
            delays.push(pause.delay.as_millis());
        }
        assert_eq!(
            delays,
            [100, 160, 256, 409, 655, 1048, 1677, 2684, 3000, 3000]
        );
        assert!(!pause.open(now + Duration::from_millis(2999)));
        assert!(pause.open(now + LONGEST_DELAY));
    }
}
