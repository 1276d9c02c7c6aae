//! The sandbox and container configurations krablet sends, caught before they reach a runtime, so
//! that the floor asks the runtime for exactly the same.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use async_trait::async_trait;
use krablet_cri::{Code, Error, EventStream, ImageClient, ImageService, RuntimeService, v1};
use krablet_events::Recorder;
use krablet_linux::{
    CgroupDriver, Cgroups, HostCgroups, HostFiles, HostIps, SystemClock, WallClock,
};
use krablet_manifest::{Origin, Place};
use krablet_metrics::RuntimeMetrics;
use krablet_net::HostNet;
use krablet_pod::api::Pod;
use krablet_pod::observed::ObservedPod;
use krablet_pod::paths::RootDir;
use krablet_pod::qos::QosClass;
use krablet_pod::{PodRef, Ticket};
use krablet_runtime::{
    DnsSettings, NodeFacts, Paths, PodRuntime, RuntimeConfig, RuntimeDeps, SyncInputs,
};
use krablet_testbed::Bed;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::pods;

pub const NODE: &str = "floor";

/// One pod in the words of the CRI.
#[derive(Clone, Debug)]
pub struct PodCalls {
    pub sandbox: v1::PodSandboxConfig,
    pub container: v1::ContainerConfig,
}

/// What krablet would send for these manifests. The files it mounts are there afterwards.
pub async fn capture(bed: &Bed, manifests: &[Value]) -> Result<Vec<PodCalls>> {
    let dir = bed.dir().join(NODE);
    let cgroups = HostCgroups::detect(CgroupDriver::Cgroupfs, &bed.cgroup_parent(), true).await?;
    let catcher = Arc::new(Catcher {
        images: bed.images()?,
        sandboxes: Mutex::default(),
        containers: Mutex::default(),
    });
    let runtime = PodRuntime::build(
        runtime_config(&dir),
        RuntimeDeps {
            runtime: catcher.clone(),
            images: catcher.clone(),
            files: Arc::new(HostFiles),
            mounts: Arc::new(krablet_linux::HostMounts),
            net: Arc::new(HostNet::new()?),
            recorder: Recorder::new(|| SystemClock.now()),
            clock: Arc::new(SystemClock),
            objects: std::sync::Arc::new(krablet_objects::Nowhere),
            services: std::sync::Arc::new(krablet_objects::Nowhere),
            keychain: Arc::default(),
            pull_records: None,
            classes: krablet_runtime::RuntimeClasses::default(),
            metrics: RuntimeMetrics::default(),
            epoch: tokio::time::Instant::now(),
        },
    );
    for (index, manifest) in manifests.iter().enumerate() {
        let pod = decode(index, manifest)?;
        let cgroup = cgroups.cgroup_parent(&PodRef::of(&pod).uid, QosClass::BestEffort);
        start(&runtime, &pod, &cgroup).await?;
    }
    let caught = catcher.caught();
    if caught.len() != manifests.len() {
        bail!("{} of {} pods caught", caught.len(), manifests.len());
    }
    Ok(caught)
}

/// A manifest as a static pod of this node.
pub fn decode(index: usize, manifest: &Value) -> Result<Arc<Pod>> {
    let origin = Origin {
        place: Place::File(format!("{}.json", pods::name(index))),
        node_name: NODE.to_owned(),
        references: krablet_manifest::References::None,
    };
    let decoded = krablet_manifest::decode(manifest.to_string().as_bytes(), &origin)?;
    let pod = decoded.pods.into_iter().next().context("no pod")?;
    Ok(Arc::new(pod))
}

/// Starts a pod that was never seen.
pub async fn start(runtime: &PodRuntime, pod: &Arc<Pod>, cgroup_parent: &str) -> Result<()> {
    let pod_ref = PodRef::of(pod);
    let outcome = runtime
        .sync_pod(SyncInputs {
            pod,
            observed: &ObservedPod::absent(pod_ref.clone(), Ticket::default()),
            verdicts: &BTreeMap::new(),
            volumes: &[],
            cgroup_parent,
            sizes: krablet_runtime::Sizes::default(),
            on_sandbox_ready: &|_| (),
            on_killed: &|| Box::pin(async { Err("nothing is killed here".to_owned()) }),
            cancel: &CancellationToken::new(),
        })
        .await;
    match outcome.error {
        Some(error) => bail!("{pod_ref}: {error}"),
        None => Ok(()),
    }
}

/// A runtime room with all of its files below `dir`.
pub fn runtime_config(dir: &Path) -> RuntimeConfig {
    RuntimeConfig {
        dns: DnsSettings {
            resolv_conf: Some("/etc/resolv.conf".into()),
            ..DnsSettings::default()
        },
        node: NodeFacts {
            name: NODE.to_owned(),
            host_ips: HostIps::fixed([Ipv4Addr::LOCALHOST.into()]),
            memory_capacity: 8 << 30,
            ..NodeFacts::default()
        },
        starts_in_flight: 4,
        ..RuntimeConfig::new(Paths {
            root: RootDir::new(dir.join("root")),
            pod_logs: dir.join("pod-logs"),
            container_logs: dir.join("containers"),
            node_hosts: "/etc/hosts".into(),
        })
    }
}

/// A runtime that only listens. About images the real one is asked: their ids are in the configs.
struct Catcher {
    images: ImageClient,
    sandboxes: Mutex<Vec<v1::PodSandboxConfig>>,
    containers: Mutex<Vec<v1::ContainerConfig>>,
}

impl Catcher {
    fn caught(&self) -> Vec<PodCalls> {
        let sandboxes = lock(&self.sandboxes);
        let containers = lock(&self.containers);
        let both = sandboxes.iter().cloned().zip(containers.iter().cloned());
        both.map(|(sandbox, container)| PodCalls { sandbox, container })
            .collect()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn no<T>(call: &'static str) -> krablet_cri::Result<T> {
    Err(Error::new(
        call,
        Code::Unimplemented,
        "not needed for a start",
    ))
}

#[async_trait]
impl RuntimeService for Catcher {
    async fn version(&self) -> krablet_cri::Result<v1::VersionResponse> {
        no("Version")
    }

    async fn status(&self) -> krablet_cri::Result<v1::StatusResponse> {
        no("Status")
    }

    async fn runtime_config(&self) -> krablet_cri::Result<v1::RuntimeConfigResponse> {
        no("RuntimeConfig")
    }

    async fn update_runtime_config(&self, _: &str) -> krablet_cri::Result<()> {
        no("UpdateRuntimeConfig")
    }

    async fn run_pod_sandbox(
        &self,
        config: v1::PodSandboxConfig,
        _: &str,
    ) -> krablet_cri::Result<String> {
        let mut sandboxes = lock(&self.sandboxes);
        sandboxes.push(config);
        Ok(format!("sandbox-{}", sandboxes.len()))
    }

    async fn stop_pod_sandbox(&self, _: &str) -> krablet_cri::Result<()> {
        no("StopPodSandbox")
    }

    async fn remove_pod_sandbox(&self, _: &str) -> krablet_cri::Result<()> {
        no("RemovePodSandbox")
    }

    async fn pod_sandbox_status(&self, id: &str) -> krablet_cri::Result<v1::PodSandboxStatus> {
        Ok(v1::PodSandboxStatus {
            id: id.to_owned(),
            network: Some(v1::PodSandboxNetworkStatus {
                ip: "10.0.0.1".to_owned(),
                additional_ips: Vec::new(),
            }),
            ..v1::PodSandboxStatus::default()
        })
    }

    async fn list_pod_sandbox(
        &self,
        _: Option<v1::PodSandboxFilter>,
    ) -> krablet_cri::Result<Vec<v1::PodSandbox>> {
        no("ListPodSandbox")
    }

    async fn create_container(
        &self,
        _: &str,
        config: v1::ContainerConfig,
        _: v1::PodSandboxConfig,
    ) -> krablet_cri::Result<String> {
        let mut containers = lock(&self.containers);
        containers.push(config);
        Ok(format!("container-{}", containers.len()))
    }

    async fn start_container(&self, _: &str) -> krablet_cri::Result<()> {
        Ok(())
    }

    async fn stop_container(&self, _: &str, _: i64) -> krablet_cri::Result<()> {
        no("StopContainer")
    }

    async fn remove_container(&self, _: &str) -> krablet_cri::Result<()> {
        no("RemoveContainer")
    }

    async fn list_containers(
        &self,
        _: Option<v1::ContainerFilter>,
    ) -> krablet_cri::Result<Vec<v1::Container>> {
        no("ListContainers")
    }

    async fn container_status(&self, _: &str) -> krablet_cri::Result<v1::ContainerStatus> {
        no("ContainerStatus")
    }

    async fn update_container_resources(
        &self,
        _: v1::UpdateContainerResourcesRequest,
    ) -> krablet_cri::Result<()> {
        no("UpdateContainerResources")
    }

    async fn reopen_container_log(&self, _: &str) -> krablet_cri::Result<()> {
        no("ReopenContainerLog")
    }

    async fn exec_sync(
        &self,
        _: &str,
        _: Vec<String>,
        _: Duration,
    ) -> krablet_cri::Result<v1::ExecSyncResponse> {
        no("ExecSync")
    }

    async fn container_events(&self) -> krablet_cri::Result<EventStream> {
        no("GetContainerEvents")
    }
}

#[async_trait]
impl ImageService for Catcher {
    async fn list_images(&self) -> krablet_cri::Result<Vec<v1::Image>> {
        no("ListImages")
    }

    async fn image_status(&self, image: v1::ImageSpec) -> krablet_cri::Result<Option<v1::Image>> {
        self.images.image_status(image).await
    }

    async fn pull_image(
        &self,
        _: v1::ImageSpec,
        _: Option<v1::AuthConfig>,
        _: Option<v1::PodSandboxConfig>,
    ) -> krablet_cri::Result<String> {
        no("PullImage")
    }

    async fn remove_image(&self, _: v1::ImageSpec) -> krablet_cri::Result<()> {
        no("RemoveImage")
    }

    async fn image_fs_info(&self) -> krablet_cri::Result<v1::ImageFsInfoResponse> {
        no("ImageFsInfo")
    }
}
