//! The network of the simulated node: pods answer at their addresses as the weather lets them.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use krablet_net::{GrpcHealth, HttpGet, HttpResponse, Net, NetError};

/// Whether the pod with this address answers now.
pub type Answers = Arc<dyn Fn(&str) -> bool + Send + Sync>;

/// Clones are the same network.
#[derive(Clone)]
pub struct SimNet {
    answers: Answers,
}

impl SimNet {
    pub fn new(answers: Answers) -> Self {
        Self { answers }
    }

    async fn reach(&self, host: &str) -> Result<(), NetError> {
        tokio::time::sleep(Duration::from_millis(1)).await;
        match (self.answers)(host) {
            true => Ok(()),
            false => Err(NetError::Connect(format!(
                "dial tcp {host}: connect: connection refused"
            ))),
        }
    }
}

/// `http://10.0.0.1:80/path` → `10.0.0.1`.
fn host(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let end = rest.find(['/', ':']).unwrap_or(rest.len());
    &rest[..end]
}

#[async_trait]
impl Net for SimNet {
    async fn http_get(&self, request: HttpGet) -> Result<HttpResponse, NetError> {
        self.reach(host(&request.url)).await?;
        Ok(HttpResponse {
            status: 200,
            ..Default::default()
        })
    }

    async fn tcp_connect(&self, host: &str, _port: u16, _: Duration) -> Result<(), NetError> {
        self.reach(host).await
    }

    async fn grpc_health(
        &self,
        host: &str,
        _port: u16,
        _service: &str,
        _timeout: Duration,
    ) -> Result<GrpcHealth, NetError> {
        self.reach(host).await?;
        Ok(GrpcHealth::Serving)
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn hosts_of_urls() {
        assert_eq!(super::host("http://10.64.0.1:80/ok"), "10.64.0.1");
        assert_eq!(super::host("http://10.64.0.1/ok"), "10.64.0.1");
    }
}
