//! A runtime that holds one pod, whose container it never tells anything of, and that tells for which
//! pods it is asked to make a sandbox.

use std::collections::BTreeMap;
use std::future::pending;
use std::time::Duration;

use async_trait::async_trait;
use krablet_cri::{Code, Error, EventStream, ImageService, Result, RuntimeService, v1};
use krablet_pod::PodRef;
use krablet_pod::labels;
use tokio::sync::mpsc;

pub struct StuckRuntime {
    pub stuck: PodRef,
    /// UIDs of the pods that are to get a sandbox. None does: its test is over then.
    pub asked: mpsc::UnboundedSender<String>,
}

impl StuckRuntime {
    fn labels(&self) -> BTreeMap<String, String> {
        let pod = &self.stuck;
        let pairs = [
            (labels::POD_UID, pod.uid.as_str()),
            (labels::POD_NAMESPACE, &pod.namespace),
            (labels::POD_NAME, &pod.name),
            (labels::CONTAINER_NAME, "c"),
        ];
        pairs.map(|(k, v)| (k.to_owned(), v.to_owned())).into()
    }

    /// Whether the pod is among what is asked for.
    fn selected(&self, selector: Option<BTreeMap<String, String>>) -> bool {
        let own = self.labels();
        let wanted = selector.unwrap_or_default();
        wanted
            .iter()
            .all(|(key, value)| own.get(key) == Some(value))
    }
}

fn unused<T>(call: &'static str) -> Result<T> {
    Err(Error::new(call, Code::Unimplemented, "not in this world"))
}

#[async_trait]
impl RuntimeService for StuckRuntime {
    async fn version(&self) -> Result<v1::VersionResponse> {
        Ok(v1::VersionResponse::default())
    }

    async fn status(&self) -> Result<v1::StatusResponse> {
        Ok(v1::StatusResponse::default())
    }

    async fn runtime_config(&self) -> Result<v1::RuntimeConfigResponse> {
        unused("RuntimeConfig")
    }

    async fn update_runtime_config(&self, _: &str) -> Result<()> {
        unused("UpdateRuntimeConfig")
    }

    async fn run_pod_sandbox(&self, config: v1::PodSandboxConfig, _: &str) -> Result<String> {
        let uid = config.metadata.unwrap_or_default().uid;
        // The test may have seen enough.
        let _ = self.asked.send(uid);
        pending().await
    }

    async fn stop_pod_sandbox(&self, _: &str) -> Result<()> {
        unused("StopPodSandbox")
    }

    async fn remove_pod_sandbox(&self, _: &str) -> Result<()> {
        unused("RemovePodSandbox")
    }

    async fn pod_sandbox_status(&self, id: &str) -> Result<v1::PodSandboxStatus> {
        Ok(v1::PodSandboxStatus {
            id: id.to_owned(),
            labels: self.labels(),
            ..v1::PodSandboxStatus::default()
        })
    }

    async fn list_pod_sandbox(
        &self,
        filter: Option<v1::PodSandboxFilter>,
    ) -> Result<Vec<v1::PodSandbox>> {
        let sandbox = v1::PodSandbox {
            id: "stuck-sandbox".to_owned(),
            state: v1::PodSandboxState::SandboxReady.into(),
            labels: self.labels(),
            ..v1::PodSandbox::default()
        };
        let shown = self.selected(filter.map(|f| f.label_selector));
        Ok(shown.then_some(sandbox).into_iter().collect())
    }

    async fn create_container(
        &self,
        _: &str,
        _: v1::ContainerConfig,
        _: v1::PodSandboxConfig,
    ) -> Result<String> {
        unused("CreateContainer")
    }

    async fn start_container(&self, _: &str) -> Result<()> {
        unused("StartContainer")
    }

    async fn stop_container(&self, _: &str, _: i64) -> Result<()> {
        unused("StopContainer")
    }

    async fn remove_container(&self, _: &str) -> Result<()> {
        unused("RemoveContainer")
    }

    async fn list_containers(
        &self,
        filter: Option<v1::ContainerFilter>,
    ) -> Result<Vec<v1::Container>> {
        let container = v1::Container {
            id: "stuck-container".to_owned(),
            pod_sandbox_id: "stuck-sandbox".to_owned(),
            state: v1::ContainerState::ContainerRunning.into(),
            labels: self.labels(),
            ..v1::Container::default()
        };
        let shown = self.selected(filter.map(|f| f.label_selector));
        Ok(shown.then_some(container).into_iter().collect())
    }

    async fn container_status(&self, _: &str) -> Result<v1::ContainerStatus> {
        pending().await
    }

    async fn update_container_resources(
        &self,
        _: v1::UpdateContainerResourcesRequest,
    ) -> Result<()> {
        unused("UpdateContainerResources")
    }

    async fn reopen_container_log(&self, _: &str) -> Result<()> {
        unused("ReopenContainerLog")
    }

    async fn exec_sync(
        &self,
        _: &str,
        _: Vec<String>,
        _: Duration,
    ) -> Result<v1::ExecSyncResponse> {
        unused("ExecSync")
    }

    async fn container_events(&self) -> Result<EventStream> {
        unused("GetContainerEvents")
    }
}

/// Without images.
pub struct NoImages;

#[async_trait]
impl ImageService for NoImages {
    async fn list_images(&self) -> Result<Vec<v1::Image>> {
        Ok(Vec::new())
    }

    async fn image_status(&self, _: v1::ImageSpec) -> Result<Option<v1::Image>> {
        Ok(None)
    }

    async fn pull_image(
        &self,
        _: v1::ImageSpec,
        _: Option<v1::AuthConfig>,
        _: Option<v1::PodSandboxConfig>,
    ) -> Result<String> {
        unused("PullImage")
    }

    async fn remove_image(&self, _: v1::ImageSpec) -> Result<()> {
        unused("RemoveImage")
    }

    async fn image_fs_info(&self) -> Result<v1::ImageFsInfoResponse> {
        unused("ImageFsInfo")
    }
}
