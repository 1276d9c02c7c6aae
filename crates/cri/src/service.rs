//! The runtime as the rest of the house sees it: two narrow traits in the words of CRI v1. The
//! gRPC client implements them over a socket, the simulated world in memory.

use async_trait::async_trait;
use futures::stream::BoxStream;

use crate::v1;
use crate::{Code, Error};

pub type Result<T> = std::result::Result<T, Error>;

/// Runtime events, in the order the runtime sent them. The stream ends or fails when the
/// connection does; whoever reads it subscribes again.
pub type EventStream = BoxStream<'static, Result<v1::ContainerEventResponse>>;

/// Where the runtime serves streams of its own: each answer is a URL, good for one connection.
#[async_trait]
pub trait StreamingService: Send + Sync {
    async fn exec(&self, request: v1::ExecRequest) -> Result<String>;
    async fn attach(&self, request: v1::AttachRequest) -> Result<String>;
    async fn port_forward(&self, request: v1::PortForwardRequest) -> Result<String>;
}

/// Pods and containers. Every call carries its own deadline inside the implementation.
#[async_trait]
pub trait RuntimeService: Send + Sync {
    async fn version(&self) -> Result<v1::VersionResponse>;
    async fn status(&self) -> Result<v1::StatusResponse>;
    /// `Unimplemented` on runtimes older than CRI 1.28.
    async fn runtime_config(&self) -> Result<v1::RuntimeConfigResponse>;
    async fn update_runtime_config(&self, pod_cidr: &str) -> Result<()>;

    async fn run_pod_sandbox(
        &self,
        config: v1::PodSandboxConfig,
        runtime_handler: &str,
    ) -> Result<String>;
    async fn stop_pod_sandbox(&self, sandbox_id: &str) -> Result<()>;
    async fn remove_pod_sandbox(&self, sandbox_id: &str) -> Result<()>;
    async fn pod_sandbox_status(&self, sandbox_id: &str) -> Result<v1::PodSandboxStatus>;
    async fn list_pod_sandbox(
        &self,
        filter: Option<v1::PodSandboxFilter>,
    ) -> Result<Vec<v1::PodSandbox>>;

    /// Tells the runtime what a pod will be held to, before it is. `Unimplemented` on many runtimes.
    async fn update_pod_sandbox_resources(
        &self,
        _request: v1::UpdatePodSandboxResourcesRequest,
    ) -> Result<()> {
        let call = "UpdatePodSandboxResources";
        Err(Error::new(call, Code::Unimplemented, "not implemented"))
    }

    async fn create_container(
        &self,
        sandbox_id: &str,
        config: v1::ContainerConfig,
        sandbox_config: v1::PodSandboxConfig,
    ) -> Result<String>;
    async fn start_container(&self, container_id: &str) -> Result<()>;
    /// The deadline is the grace period plus the ordinary one.
    async fn stop_container(&self, container_id: &str, grace_seconds: i64) -> Result<()>;
    async fn remove_container(&self, container_id: &str) -> Result<()>;
    async fn list_containers(
        &self,
        filter: Option<v1::ContainerFilter>,
    ) -> Result<Vec<v1::Container>>;
    async fn container_status(&self, container_id: &str) -> Result<v1::ContainerStatus>;
    async fn update_container_resources(
        &self,
        request: v1::UpdateContainerResourcesRequest,
    ) -> Result<()>;
    async fn reopen_container_log(&self, container_id: &str) -> Result<()>;
    /// Runs a command to its end. `timeout` is enforced by the runtime, and by us shortly after it.
    /// Output is capped by the implementation.
    async fn exec_sync(
        &self,
        container_id: &str,
        command: Vec<String>,
        timeout: std::time::Duration,
    ) -> Result<v1::ExecSyncResponse>;
    async fn container_events(&self) -> Result<EventStream>;
}

/// Images.
#[async_trait]
pub trait ImageService: Send + Sync {
    async fn list_images(&self) -> Result<Vec<v1::Image>>;
    /// `None`: the image is not present.
    async fn image_status(&self, image: v1::ImageSpec) -> Result<Option<v1::Image>>;
    /// Returns the resolved reference. Takes as long as the registry does: no deadline but the
    /// caller's.
    async fn pull_image(
        &self,
        image: v1::ImageSpec,
        auth: Option<v1::AuthConfig>,
        sandbox_config: Option<v1::PodSandboxConfig>,
    ) -> Result<String>;
    async fn remove_image(&self, image: v1::ImageSpec) -> Result<()>;
    async fn image_fs_info(&self) -> Result<v1::ImageFsInfoResponse>;
}
