//! What the runtime knows of its containers in figures, and of a sandbox beyond what the interface promises.

use std::collections::BTreeMap;

use async_trait::async_trait;

use crate::client::RuntimeClient;
use crate::service::Result;
use crate::{Call, v1};

/// Figures the runtime keeps.
#[async_trait]
pub trait StatsService: Send + Sync {
    /// One entry per container that runs.
    async fn list_container_stats(&self) -> Result<Vec<v1::ContainerStats>>;
    /// What the runtime tells of a sandbox to those who look closely: its own words, often JSON under `info`.
    async fn pod_sandbox_info(&self, sandbox_id: &str) -> Result<BTreeMap<String, String>>;
}

#[async_trait]
impl StatsService for RuntimeClient {
    async fn list_container_stats(&self) -> Result<Vec<v1::ContainerStats>> {
        let mut rpc = self.rpc();
        let request = v1::ListContainerStatsRequest::default();
        let call = |r| async move { rpc.list_container_stats(r).await };
        let answer = self
            .caller()
            .call(Call::ListContainerStats, "", request, call);
        Ok(answer.await?.stats)
    }

    async fn pod_sandbox_info(&self, sandbox_id: &str) -> Result<BTreeMap<String, String>> {
        let mut rpc = self.rpc();
        let request = v1::PodSandboxStatusRequest {
            pod_sandbox_id: sandbox_id.to_owned(),
            verbose: true,
        };
        let call = |r| async move { rpc.pod_sandbox_status(r).await };
        let answer = self
            .caller()
            .call(Call::PodSandboxStatus, sandbox_id, request, call);
        Ok(answer.await?.info)
    }
}
