//! What the agent asks of the network on behalf of pods: HTTP GETs of probes, hooks and the URL
//! source, TCP connects, gRPC health checks. One narrow trait, a real and a simulated world behind it.
//!
//! Every call has its own connection, never a pooled one, and is safe to drop at any time: the
//! future holds the socket, nothing runs on without it.

use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;

mod dial;
mod grpc;
mod http;
mod tls;
pub mod trust;
mod url;

pub use dial::join_host_port;
pub use url::{pod_headers, pod_url};

use tls::Tls;

/// How probes name themselves.
pub const PROBE_USER_AGENT: &str = "kube-probe/1.36";
/// How lifecycle hooks name themselves.
pub const HOOK_USER_AGENT: &str = "kube-lifecycle/1.36";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Redirects {
    /// Follow up to ten, wherever they lead.
    Follow,
    /// Follow on the same host; a redirect elsewhere is returned as it is.
    SameHost,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpGet {
    /// See [`pod_url`].
    pub url: String,
    /// In order; may hold `Host`. A repeated name is sent repeatedly. See [`pod_headers`].
    pub headers: Vec<(String, String)>,
    /// For the whole of it, connect, redirects and body included.
    pub timeout: Duration,
    /// What is read of the body at most; the rest is dropped.
    pub body_limit: usize,
    /// Probes and hooks do not verify certificates; the URL source does.
    pub verify_tls: bool,
    pub redirects: Redirects,
}

impl HttpGet {
    /// A failed request in the words people know: `Get "http://…": dial tcp …`.
    pub fn failure(&self, error: &NetError) -> String {
        match error {
            NetError::ConnectTimeout(_) => format!(
                "Get {:?}: {error} (Client.Timeout exceeded while awaiting headers)",
                self.url
            ),
            NetError::Body(text) => text.clone(),
            _ => format!("Get {:?}: {error}", self.url),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HttpResponse {
    pub status: u16,
    /// Where a redirect that was not followed points to.
    pub location: Option<String>,
    pub body: Vec<u8>,
    /// The body was longer than the limit.
    pub truncated: bool,
    pub content_type: Option<String>,
    /// Since when the server has the body as it is, if it says so in a way that can be read.
    pub last_modified: Option<Timestamp>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrpcHealth {
    Serving,
    NotServing,
    /// Any other answer: `UNKNOWN`, `SERVICE_UNKNOWN`.
    Other(i32),
}

impl GrpcHealth {
    pub fn of(status: i32) -> Self {
        match status {
            1 => GrpcHealth::Serving,
            2 => GrpcHealth::NotServing,
            other => GrpcHealth::Other(other),
        }
    }

    /// As the health protocol spells it.
    pub fn name(self) -> String {
        match self {
            GrpcHealth::Serving => "SERVING".into(),
            GrpcHealth::NotServing => "NOT_SERVING".into(),
            GrpcHealth::Other(0) => "UNKNOWN".into(),
            GrpcHealth::Other(3) => "SERVICE_UNKNOWN".into(),
            GrpcHealth::Other(other) => other.to_string(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NetError {
    /// Connected, but no answer in time.
    #[error("context deadline exceeded (Client.Timeout exceeded while awaiting headers)")]
    Timeout,
    /// No connection in time; the address.
    #[error("dial tcp {0}: i/o timeout")]
    ConnectTimeout(String),
    /// No connection, in whole (`dial tcp 10.0.0.7:80: connect: connection refused`).
    #[error("{0}")]
    Connect(String),
    /// The server answered an HTTPS request in plain HTTP (hooks fall back then).
    #[error("http: server gave HTTP response to HTTPS client")]
    PlainHttp,
    /// The status line and headers came, the body did not come to its end.
    #[error("{0}")]
    Body(String),
    #[error("{0}")]
    Failed(String),
    /// The gRPC server does not implement the health protocol.
    #[error("this server does not implement the grpc health protocol (grpc.health.v1.Health): {0}")]
    HealthUnimplemented(String),
}

#[async_trait]
pub trait Net: Send + Sync {
    async fn http_get(&self, request: HttpGet) -> Result<HttpResponse, NetError>;
    /// Connects and closes again, nothing sent.
    async fn tcp_connect(&self, host: &str, port: u16, timeout: Duration) -> Result<(), NetError>;
    /// `grpc.health.v1.Health/Check` in plain text.
    async fn grpc_health(
        &self,
        host: &str,
        port: u16,
        service: &str,
        timeout: Duration,
    ) -> Result<GrpcHealth, NetError>;
}

/// The machine's own network.
#[derive(Clone)]
pub struct HostNet {
    tls: Tls,
}

impl HostNet {
    pub fn new() -> Result<Self, NetError> {
        Ok(Self { tls: Tls::new()? })
    }
}

#[async_trait]
impl Net for HostNet {
    async fn http_get(&self, request: HttpGet) -> Result<HttpResponse, NetError> {
        http::get(&self.tls, &request).await
    }

    async fn tcp_connect(&self, host: &str, port: u16, timeout: Duration) -> Result<(), NetError> {
        let deadline = tokio::time::Instant::now() + timeout;
        dial::connect(host, port, deadline).await.map(drop)
    }

    async fn grpc_health(
        &self,
        host: &str,
        port: u16,
        service: &str,
        timeout: Duration,
    ) -> Result<GrpcHealth, NetError> {
        grpc::health(host, port, service, timeout).await
    }
}
