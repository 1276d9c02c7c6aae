//! Asks the runtime to write a container to a file. A call of its own connection: it may take minutes, and is made when
//! somebody asks for it by hand.

use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;
use hyper_util::rt::TokioIo;
use krablet_cri::Endpoint;
use krablet_server::Checkpointer;
use tokio::net::UnixStream;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint as Transport, Uri};
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;

const METHOD: &str = "/runtime.v1.RuntimeService/CheckpointContainer";

/// Names and numbers are those of CRI v1.
#[derive(Clone, PartialEq, prost::Message)]
struct CheckpointContainerRequest {
    #[prost(string, tag = "1")]
    container_id: String,
    #[prost(string, tag = "2")]
    location: String,
    /// Seconds; 0 is the runtime's own.
    #[prost(int64, tag = "3")]
    timeout: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct CheckpointContainerResponse {}

pub struct Runtime {
    channel: Channel,
    /// `runtimeRequestTimeout`
    deadline: Duration,
}

impl Runtime {
    pub fn new(endpoint: &Endpoint, deadline: Duration) -> Self {
        let path: PathBuf = endpoint.path().to_owned();
        let connect = move |_: Uri| {
            let path = path.clone();
            async move { UnixStream::connect(path).await.map(TokioIo::new) }
        };
        let transport = Transport::from_static("http://localhost");
        let channel = transport.connect_with_connector_lazy(tower::service_fn(connect));
        Self { channel, deadline }
    }

    async fn call(&self, wanted: CheckpointContainerRequest) -> Result<(), Status> {
        let given = u64::try_from(wanted.timeout).unwrap_or_default();
        let deadline = self.deadline.max(Duration::from_secs(given));
        let mut request = Request::new(wanted);
        request.set_timeout(deadline);
        let answer = async {
            let mut grpc = Grpc::new(self.channel.clone());
            let ready = grpc.ready().await;
            ready.map_err(|e| Status::unavailable(e.to_string()))?;
            let path = PathAndQuery::from_static(METHOD);
            let codec = ProstCodec::<_, CheckpointContainerResponse>::default();
            grpc.unary(request, path, codec).await
        };
        let late = || Status::deadline_exceeded("context deadline exceeded");
        let answer = tokio::time::timeout(deadline, answer).await;
        answer.map_err(|_| late())?.map(drop)
    }
}

#[async_trait]
impl Checkpointer for Runtime {
    async fn checkpoint(
        &self,
        container: &str,
        location: &Path,
        seconds: i64,
    ) -> Result<(), String> {
        let wanted = CheckpointContainerRequest {
            container_id: container.to_owned(),
            location: location.to_string_lossy().into_owned(),
            timeout: seconds,
        };
        self.call(wanted).await.map_err(|status| {
            let code = name(status.code());
            format!("rpc error: code = {code} desc = {}", status.message())
        })
    }
}

/// As gRPC's libraries in Go write it.
fn name(code: Code) -> String {
    match code {
        Code::Ok => "OK".to_owned(),
        Code::Cancelled => "Canceled".to_owned(),
        other => format!("{other:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_runtime_that_is_not_there() {
        let endpoint = Endpoint::parse("unix:///nonexistent/runtime.sock").unwrap();
        let runtime = Runtime::new(&endpoint, Duration::from_secs(60));
        let why = runtime.checkpoint("c", Path::new("/x"), 0).await;
        let why = why.unwrap_err();
        assert!(why.starts_with("rpc error: code = Unavailable"), "{why}");
    }
}
