//! A runtime with one container, which can be asked and given commands and nothing else.

use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;
use krablet_cri::{Code, Error, EventStream, Result, RuntimeService, v1};

pub struct OneContainer {
    /// What it has written.
    pub log: PathBuf,
}

fn no<T>() -> Result<T> {
    Err(Error::new("Any", Code::Unimplemented, "not done here"))
}

#[async_trait]
impl RuntimeService for OneContainer {
    async fn container_status(&self, _: &str) -> Result<v1::ContainerStatus> {
        Ok(v1::ContainerStatus {
            log_path: self.log.to_string_lossy().into_owned(),
            ..v1::ContainerStatus::default()
        })
    }

    /// `echo` and `fail` are all it knows.
    async fn exec_sync(
        &self,
        _: &str,
        command: Vec<String>,
        _: Duration,
    ) -> Result<v1::ExecSyncResponse> {
        let (name, rest) = command.split_first().unwrap();
        Ok(v1::ExecSyncResponse {
            stdout: rest.join(" ").into_bytes(),
            stderr: b"!".to_vec(),
            exit_code: i32::from(name != "echo"),
        })
    }

    async fn version(&self) -> Result<v1::VersionResponse> {
        no()
    }
    async fn status(&self) -> Result<v1::StatusResponse> {
        no()
    }
    async fn runtime_config(&self) -> Result<v1::RuntimeConfigResponse> {
        no()
    }
    async fn update_runtime_config(&self, _: &str) -> Result<()> {
        no()
    }
    async fn run_pod_sandbox(&self, _: v1::PodSandboxConfig, _: &str) -> Result<String> {
        no()
    }
    async fn stop_pod_sandbox(&self, _: &str) -> Result<()> {
        no()
    }
    async fn remove_pod_sandbox(&self, _: &str) -> Result<()> {
        no()
    }
    async fn pod_sandbox_status(&self, _: &str) -> Result<v1::PodSandboxStatus> {
        no()
    }
    async fn list_pod_sandbox(
        &self,
        _: Option<v1::PodSandboxFilter>,
    ) -> Result<Vec<v1::PodSandbox>> {
        no()
    }
    async fn create_container(
        &self,
        _: &str,
        _: v1::ContainerConfig,
        _: v1::PodSandboxConfig,
    ) -> Result<String> {
        no()
    }
    async fn start_container(&self, _: &str) -> Result<()> {
        no()
    }
    async fn stop_container(&self, _: &str, _: i64) -> Result<()> {
        no()
    }
    async fn remove_container(&self, _: &str) -> Result<()> {
        no()
    }
    async fn list_containers(&self, _: Option<v1::ContainerFilter>) -> Result<Vec<v1::Container>> {
        no()
    }
    async fn update_container_resources(
        &self,
        _: v1::UpdateContainerResourcesRequest,
    ) -> Result<()> {
        no()
    }
    async fn reopen_container_log(&self, _: &str) -> Result<()> {
        no()
    }
    async fn container_events(&self) -> Result<EventStream> {
        no()
    }
}
