//! Streams: the runtime is asked where it serves them.

use async_trait::async_trait;

use crate::client::RuntimeClient;
use crate::service::{Result, StreamingService};
use crate::{Call, v1};

#[async_trait]
impl StreamingService for RuntimeClient {
    async fn exec(&self, request: v1::ExecRequest) -> Result<String> {
        let mut rpc = self.rpc();
        let object = request.container_id.clone();
        let call = |r| async move { rpc.exec(r).await };
        let answer = self
            .caller()
            .call(Call::Exec, &object, request, call)
            .await?;
        Ok(answer.url)
    }

    async fn attach(&self, request: v1::AttachRequest) -> Result<String> {
        let mut rpc = self.rpc();
        let object = request.container_id.clone();
        let call = |r| async move { rpc.attach(r).await };
        let answer = self
            .caller()
            .call(Call::Attach, &object, request, call)
            .await?;
        Ok(answer.url)
    }

    async fn port_forward(&self, request: v1::PortForwardRequest) -> Result<String> {
        let mut rpc = self.rpc();
        let object = request.pod_sandbox_id.clone();
        let call = |r| async move { rpc.port_forward(r).await };
        let answer = self
            .caller()
            .call(Call::PortForward, &object, request, call)
            .await?;
        Ok(answer.url)
    }
}
