//! An in-memory runtime that keeps a diary of what it was asked, with faults on demand.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use krablet_cri::{Code, Error, EventStream, ImageService, Result, RuntimeService, v1};
use krablet_pod::observed::{
    ContainerExit, ContainerMemory, ContainerState, ObservedContainer, ObservedPod, ObservedSandbox,
};
use krablet_pod::{PodRef, Ticket, labels};

use crate::files::MemFiles;

/// Nanoseconds of the wall clock when a test begins.
pub const WALL_START: i64 = 1_700_000_000_000_000_000;

#[derive(Clone)]
pub struct FakeContainer {
    pub id: String,
    pub name: String,
    pub sandbox: String,
    pub config: v1::ContainerConfig,
    pub state: ContainerState,
    pub order: i64,
    pub exit_code: i32,
    pub finished_at: i64,
}

pub struct FakeSandbox {
    pub id: String,
    pub config: v1::PodSandboxConfig,
    pub ready: bool,
}

/// One call that goes wrong.
pub struct Fault {
    call: &'static str,
    after_effect: bool,
    error: Error,
}

#[derive(Default)]
pub struct State {
    pub diary: Vec<String>,
    pub sandboxes: Vec<FakeSandbox>,
    pub containers: Vec<FakeContainer>,
    /// On the node.
    pub images: BTreeMap<String, v1::Image>,
    /// In the registry, and how long a pull takes.
    pub remote: BTreeMap<String, Duration>,
    /// The password the registry wants to hear, by image.
    pub passwords: BTreeMap<String, String>,
    /// Seconds a container takes to end, by name.
    pub slow_to_stop: BTreeMap<String, u64>,
    pub faults: Vec<Fault>,
    /// How long a sandbox takes.
    pub sandbox_takes: Duration,
    /// Whether the runtime can give pods users of their own.
    pub user_namespaces: bool,
    /// Handlers by name, the default one without, and whether they make read-only mounts so all the way down.
    pub handlers: BTreeMap<String, bool>,
    pub running_pulls: usize,
    pub most_pulls: usize,
    pub starting: usize,
    pub most_starting: usize,
    counter: i64,
}

#[derive(Clone)]
pub struct World {
    state: Arc<Mutex<State>>,
    files: Arc<MemFiles>,
    begun: tokio::time::Instant,
}

impl World {
    pub fn new(files: Arc<MemFiles>) -> Self {
        Self {
            state: Arc::default(),
            files,
            begun: tokio::time::Instant::now(),
        }
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Wall-clock nanoseconds now.
    pub fn wall(&self) -> i64 {
        WALL_START + i64::try_from(self.begun.elapsed().as_nanos()).unwrap()
    }

    pub fn has_image(&self, name: &str) {
        let image = v1::Image {
            id: format!("sha256:{name}"),
            repo_tags: vec![name.into()],
            size: 42,
            uid: Some(v1::Int64Value { value: 0 }),
            ..v1::Image::default()
        };
        self.state().images.insert(name.into(), image);
    }

    pub fn has_remote(&self, name: &str, takes: Duration) {
        self.state().remote.insert(name.into(), takes);
    }

    pub fn fail(&self, call: &'static str, message: &str) {
        self.fault(call, Code::Unknown, message, false);
    }

    pub fn fail_after_effect(&self, call: &'static str) {
        self.fault(
            call,
            Code::DeadlineExceeded,
            "context deadline exceeded",
            true,
        );
    }

    pub fn fault(&self, call: &'static str, code: Code, message: &str, after_effect: bool) {
        let error = Error::new(call, code, message);
        self.state().faults.push(Fault {
            call,
            after_effect,
            error,
        });
    }

    pub fn diary(&self) -> Vec<String> {
        std::mem::take(&mut self.state().diary)
    }

    fn write(&self, line: impl Into<String>) {
        self.state().diary.push(line.into());
    }

    fn faulty(&self, call: &str, after_effect: bool) -> Result<()> {
        let mut state = self.state();
        let at = state
            .faults
            .iter()
            .position(|f| f.call == call && f.after_effect == after_effect);
        match at {
            Some(at) => Err(state.faults.remove(at).error),
            None => Ok(()),
        }
    }

    pub fn exit(&self, name: &str, exit_code: i32) {
        let now = self.wall();
        let mut state = self.state();
        let found = state.containers.iter_mut().rev().find(|c| c.name == name);
        let container = found.expect("a container of that name");
        container.state = ContainerState::Exited;
        container.exit_code = exit_code;
        container.finished_at = now;
    }

    pub fn kill_sandbox(&self) {
        let mut state = self.state();
        state.sandboxes.last_mut().expect("a sandbox").ready = false;
    }

    /// `name/attempt` of a container.
    fn shown(&self, id: &str) -> String {
        let state = self.state();
        let found = state.containers.iter().find(|c| c.id == id);
        found.map_or(id.to_string(), |c| {
            let attempt = c.config.metadata.as_ref().map_or(0, |m| m.attempt);
            format!("{}/{attempt}", c.name)
        })
    }

    /// What an observer would see.
    pub fn observed(&self, pod: &PodRef) -> ObservedPod {
        let state = self.state();
        let sandboxes = state.sandboxes.iter().rev();
        let containers = state.containers.iter().rev();
        ObservedPod {
            pod: pod.clone(),
            ticket: Ticket(1),
            sandboxes: sandboxes.map(observed_sandbox).collect(),
            containers: containers.map(observed_container).collect(),
        }
    }
}

fn observed_sandbox(sandbox: &FakeSandbox) -> ObservedSandbox {
    let network = network_mode(&sandbox.config);
    let host_network = network == v1::NamespaceMode::Node as i32;
    ObservedSandbox {
        id: sandbox.id.as_str().into(),
        ready: sandbox.ready,
        attempt: sandbox.config.metadata.as_ref().map_or(0, |m| m.attempt),
        created_at: 1,
        ips: match host_network {
            true => Vec::new(),
            false => vec!["10.0.0.7".into()],
        },
        host_network,
        source: None,
    }
}

fn network_mode(config: &v1::PodSandboxConfig) -> i32 {
    let linux = config.linux.as_ref();
    let context = linux.and_then(|l| l.security_context.as_ref());
    let options = context.and_then(|c| c.namespace_options.as_ref());
    options.map_or(0, |o| o.network)
}

fn observed_container(c: &FakeContainer) -> ObservedContainer {
    let notes = &c.config.annotations;
    let note = |key: &str| notes.get(key).cloned();
    let number = |key: &str| notes.get(key).and_then(|v| v.parse().ok());
    let attempt = c.config.metadata.as_ref().map_or(0, |m| m.attempt);
    ObservedContainer {
        id: c.id.as_str().into(),
        name: c.name.as_str().into(),
        sandbox_id: c.sandbox.as_str().into(),
        state: c.state,
        attempt,
        created_at: c.order,
        started_at: c.order,
        exit: (c.state == ContainerState::Exited).then(|| ContainerExit {
            exit_code: c.exit_code,
            started_at: c.order,
            finished_at: c.finished_at,
            ..ContainerExit::default()
        }),
        image: c
            .config
            .image
            .as_ref()
            .map_or("", |i| &i.user_specified_image)
            .into(),
        image_ref: c.config.image.as_ref().map_or("", |i| &i.image).into(),
        user: None,
        resources: None,
        memory: ContainerMemory {
            hash: note(labels::CONTAINER_HASH),
            restart_count: attempt,
            pre_stop: note(labels::PRE_STOP_HANDLER),
            ports: note(labels::CONTAINER_PORTS),
            resources: note(labels::CONTAINER_RESOURCES),
            deletion_grace_seconds: number(labels::POD_DELETION_GRACE),
            termination_grace_seconds: number(labels::POD_TERMINATION_GRACE),
            ..ContainerMemory::default()
        },
        log_path: format!("/logs/pods/ns_web_u/{}", c.config.log_path),
    }
}

/// Counts what is going on at a time, also when given up.
struct Busy<'a>(&'a World, fn(&mut State) -> &mut usize);

impl<'a> Busy<'a> {
    fn new(world: &'a World, what: fn(&mut State) -> &mut usize) -> Self {
        *what(&mut world.state()) += 1;
        Self(world, what)
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        *(self.1)(&mut self.0.state()) -= 1;
    }
}

fn unused<T>(call: &'static str) -> Result<T> {
    Err(Error::new(call, Code::Unimplemented, "not in this world"))
}

#[async_trait]
impl RuntimeService for World {
    async fn version(&self) -> Result<v1::VersionResponse> {
        unused("Version")
    }

    async fn status(&self) -> Result<v1::StatusResponse> {
        self.faulty("Status", false)?;
        let state = self.state();
        let mut handlers = state.handlers.clone();
        handlers.entry(String::new()).or_default();
        let handler = |(name, recursive_read_only_mounts)| v1::RuntimeHandler {
            name,
            features: Some(v1::RuntimeHandlerFeatures {
                user_namespaces: state.user_namespaces,
                recursive_read_only_mounts,
            }),
        };
        Ok(v1::StatusResponse {
            runtime_handlers: handlers.into_iter().map(handler).collect(),
            ..v1::StatusResponse::default()
        })
    }

    async fn runtime_config(&self) -> Result<v1::RuntimeConfigResponse> {
        unused("RuntimeConfig")
    }

    async fn update_runtime_config(&self, _pod_cidr: &str) -> Result<()> {
        unused("UpdateRuntimeConfig")
    }

    async fn run_pod_sandbox(
        &self,
        config: v1::PodSandboxConfig,
        _runtime_handler: &str,
    ) -> Result<String> {
        let metadata = config.metadata.clone().unwrap_or_default();
        self.write(format!(
            "RunPodSandbox {}/{}",
            metadata.name, metadata.attempt
        ));
        let _busy = Busy::new(self, |s| &mut s.starting);
        let takes = {
            let mut state = self.state();
            state.most_starting = state.most_starting.max(state.starting);
            state.sandbox_takes
        };
        tokio::time::sleep(takes).await;
        self.faulty("RunPodSandbox", false)?;
        let id = {
            let mut state = self.state();
            let id = format!("sandbox-{}", state.sandboxes.len());
            state.sandboxes.push(FakeSandbox {
                id: id.clone(),
                config,
                ready: true,
            });
            id
        };
        self.faulty("RunPodSandbox", true)?;
        Ok(id)
    }

    async fn stop_pod_sandbox(&self, id: &str) -> Result<()> {
        self.write(format!("StopPodSandbox {id}"));
        self.faulty("StopPodSandbox", false)?;
        let mut state = self.state();
        let found = state.sandboxes.iter_mut().find(|s| s.id == id);
        found.expect("a sandbox of that id").ready = false;
        Ok(())
    }

    async fn remove_pod_sandbox(&self, _id: &str) -> Result<()> {
        unused("RemovePodSandbox")
    }

    async fn pod_sandbox_status(&self, id: &str) -> Result<v1::PodSandboxStatus> {
        self.write(format!("PodSandboxStatus {id}"));
        self.faulty("PodSandboxStatus", false)?;
        Ok(v1::PodSandboxStatus {
            id: id.to_string(),
            network: Some(v1::PodSandboxNetworkStatus {
                ip: "10.0.0.7".into(),
                ..v1::PodSandboxNetworkStatus::default()
            }),
            ..v1::PodSandboxStatus::default()
        })
    }

    async fn list_pod_sandbox(
        &self,
        _filter: Option<v1::PodSandboxFilter>,
    ) -> Result<Vec<v1::PodSandbox>> {
        unused("ListPodSandbox")
    }

    async fn create_container(
        &self,
        sandbox: &str,
        config: v1::ContainerConfig,
        _sandbox_config: v1::PodSandboxConfig,
    ) -> Result<String> {
        let metadata = config.metadata.clone().unwrap_or_default();
        self.write(format!(
            "CreateContainer {}/{}",
            metadata.name, metadata.attempt
        ));
        self.faulty("CreateContainer", false)?;
        let id = {
            let mut state = self.state();
            state.counter += 1;
            let order = state.counter;
            let id = format!("id-{order}");
            state.containers.push(FakeContainer {
                id: id.clone(),
                name: metadata.name,
                sandbox: sandbox.to_string(),
                config,
                state: ContainerState::Created,
                order,
                exit_code: 0,
                finished_at: 0,
            });
            id
        };
        self.faulty("CreateContainer", true)?;
        Ok(id)
    }

    async fn start_container(&self, id: &str) -> Result<()> {
        self.write(format!("StartContainer {}", self.shown(id)));
        self.faulty("StartContainer", false)?;
        let log = {
            let mut state = self.state();
            let found = state.containers.iter_mut().find(|c| c.id == id);
            let container = found.expect("a container of that id");
            container.state = ContainerState::Running;
            format!("/logs/pods/ns_web_u/{}", container.config.log_path)
        };
        self.files.put(&log, b"");
        self.faulty("StartContainer", true)
    }

    async fn stop_container(&self, id: &str, grace_seconds: i64) -> Result<()> {
        self.write(format!("StopContainer {} {grace_seconds}s", self.shown(id)));
        self.faulty("StopContainer", false)?;
        let takes = {
            let state = self.state();
            let name = state
                .containers
                .iter()
                .find(|c| c.id == id)
                .map(|c| c.name.clone());
            let needs = name
                .and_then(|n| state.slow_to_stop.get(&n).copied())
                .unwrap_or(0);
            needs.min(u64::try_from(grace_seconds).unwrap_or(0))
        };
        tokio::time::sleep(Duration::from_secs(takes)).await;
        let now = self.wall();
        let mut state = self.state();
        let found = state.containers.iter_mut().find(|c| c.id == id);
        let container = found.expect("a container of that id");
        container.state = ContainerState::Exited;
        container.exit_code = 143;
        container.finished_at = now;
        let line = format!("(stopped {})", container.name);
        state.diary.push(line);
        Ok(())
    }

    async fn remove_container(&self, id: &str) -> Result<()> {
        self.write(format!("RemoveContainer {}", self.shown(id)));
        self.faulty("RemoveContainer", false)?;
        self.state().containers.retain(|c| c.id != id);
        Ok(())
    }

    async fn list_containers(
        &self,
        _filter: Option<v1::ContainerFilter>,
    ) -> Result<Vec<v1::Container>> {
        let state = self.state();
        let listed = |c: &FakeContainer| v1::Container {
            id: c.id.clone(),
            image: c.config.image.clone(),
            image_ref: c.config.image.as_ref().map_or("", |i| &i.image).to_owned(),
            ..v1::Container::default()
        };
        Ok(state.containers.iter().map(listed).collect())
    }

    async fn container_status(&self, id: &str) -> Result<v1::ContainerStatus> {
        let state = self.state();
        let found = state.containers.iter().find(|c| c.id == id);
        let found = found.ok_or_else(|| Error::new("ContainerStatus", Code::NotFound, id))?;
        let raw = match found.state {
            ContainerState::Created => v1::ContainerState::ContainerCreated,
            ContainerState::Running => v1::ContainerState::ContainerRunning,
            ContainerState::Exited => v1::ContainerState::ContainerExited,
            ContainerState::Unknown => v1::ContainerState::ContainerUnknown,
        };
        Ok(v1::ContainerStatus {
            id: id.to_owned(),
            state: raw.into(),
            ..v1::ContainerStatus::default()
        })
    }

    async fn update_container_resources(
        &self,
        request: v1::UpdateContainerResourcesRequest,
    ) -> Result<()> {
        let shown = self.shown(&request.container_id);
        let held = request.linux.unwrap_or_default();
        let (shares, quota) = (held.cpu_shares, held.cpu_quota);
        let memory = held.memory_limit_in_bytes >> 20;
        self.write(format!("Update {shown} {shares} {quota} {memory}Mi"));
        self.faulty("UpdateContainerResources", false)
    }

    async fn reopen_container_log(&self, _id: &str) -> Result<()> {
        unused("ReopenContainerLog")
    }

    /// Knows `true`, `false` and `sleep SECONDS`.
    async fn exec_sync(
        &self,
        id: &str,
        command: Vec<String>,
        _timeout: Duration,
    ) -> Result<v1::ExecSyncResponse> {
        self.write(format!("ExecSync {} {}", self.shown(id), command.join(" ")));
        self.faulty("ExecSync", false)?;
        let mut answer = v1::ExecSyncResponse::default();
        match command.first().map(String::as_str) {
            Some("sleep") => {
                let seconds = command[1].parse().unwrap();
                tokio::time::sleep(Duration::from_secs(seconds)).await;
            }
            Some("false") => {
                answer.exit_code = 1;
                answer.stderr = b"no".to_vec();
            }
            _ => {}
        }
        Ok(answer)
    }

    async fn container_events(&self) -> Result<EventStream> {
        unused("GetContainerEvents")
    }
}

#[async_trait]
impl ImageService for World {
    async fn list_images(&self) -> Result<Vec<v1::Image>> {
        self.faulty("ListImages", false)?;
        Ok(self.state().images.values().cloned().collect())
    }

    async fn image_status(&self, image: v1::ImageSpec) -> Result<Option<v1::Image>> {
        self.faulty("ImageStatus", false)?;
        Ok(self.state().images.get(&image.image).cloned())
    }

    async fn pull_image(
        &self,
        image: v1::ImageSpec,
        auth: Option<v1::AuthConfig>,
        _sandbox_config: Option<v1::PodSandboxConfig>,
    ) -> Result<String> {
        self.write(format!("PullImage {}", image.image));
        let wanted = self.state().passwords.get(&image.image).cloned();
        if wanted.is_some() && wanted != auth.map(|a| a.password) {
            let text = format!("pull access denied for {}", image.image);
            return Err(Error::new("PullImage", Code::Unknown, text));
        }
        self.faulty("PullImage", false)?;
        let takes = self.state().remote.get(&image.image).copied();
        let Some(takes) = takes else {
            let text = format!("failed to resolve {}", image.image);
            return Err(Error::new("PullImage", Code::NotFound, text));
        };
        let _busy = Busy::new(self, |s| &mut s.running_pulls);
        {
            let mut state = self.state();
            state.most_pulls = state.most_pulls.max(state.running_pulls);
        }
        tokio::time::sleep(takes).await;
        self.has_image(&image.image);
        Ok(format!("sha256:{}", image.image))
    }

    async fn remove_image(&self, image: v1::ImageSpec) -> Result<()> {
        self.write(format!("RemoveImage {}", image.image));
        self.faulty("RemoveImage", false)?;
        self.state().images.retain(|_, i| i.id != image.image);
        Ok(())
    }

    async fn image_fs_info(&self) -> Result<v1::ImageFsInfoResponse> {
        self.faulty("ImageFsInfo", false)?;
        let usage = v1::FilesystemUsage {
            fs_id: Some(v1::FilesystemIdentifier {
                mountpoint: "/images".into(),
            }),
            ..v1::FilesystemUsage::default()
        };
        Ok(v1::ImageFsInfoResponse {
            image_filesystems: vec![usage],
            ..v1::ImageFsInfoResponse::default()
        })
    }
}

/// Names of running containers.
pub fn running(observed: &ObservedPod) -> BTreeSet<String> {
    observed.running().map(|c| c.name.to_string()).collect()
}
