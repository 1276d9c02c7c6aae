//! A runtime in memory for the tests of this crate: it counts calls, and hangs, fails, loses
//! events and changes under one's hands as told.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt;
use krablet_cri::{Code, Error, EventStream, Result, RuntimeService, v1};
use krablet_linux::{Entry, EntryKind, Files};
use krablet_pod::observed::{ContainerState, ObservedContainer, ObservedPod, ObservedSandbox};
use krablet_pod::{PodRef, Ticket, labels};
use tokio::sync::mpsc;

/// A view in short: `s1+` a ready sandbox, `s1-` one that is not; containers `c1` created (`c`),
/// running (`r`), exited (`x`).
pub fn seen(short: &str) -> ObservedPod {
    let mut pod = ObservedPod::absent(PodRef::new("u1", "ns", "web"), Ticket(1));
    for word in short.split_whitespace() {
        let (id, mark) = word.split_at(word.len() - 1);
        let state = match mark {
            "+" | "-" => {
                pod.sandboxes.push(ObservedSandbox {
                    id: id.into(),
                    ready: mark == "+",
                    attempt: 0,
                    created_at: 0,
                    ips: Vec::new(),
                    host_network: false,
                    source: None,
                });
                continue;
            }
            "c" => ContainerState::Created,
            "r" => ContainerState::Running,
            _ => ContainerState::Exited,
        };
        pod.containers.push(ObservedContainer {
            id: id.into(),
            name: id.into(),
            sandbox_id: "s1".into(),
            state,
            attempt: 0,
            created_at: 0,
            started_at: 0,
            exit: (state == ContainerState::Exited).then(Default::default),
            image: "".into(),
            image_ref: "".into(),
            user: None,
            resources: None,
            memory: Default::default(),
            log_path: String::new(),
        });
    }
    pod
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Events {
    Flow,
    Unimplemented,
    Refused,
}

type Sender = mpsc::UnboundedSender<Result<v1::ContainerEventResponse>>;
type Hook = Box<dyn FnOnce(&mut World) + Send>;

pub struct World {
    pub sandboxes: BTreeMap<String, v1::PodSandbox>,
    pub containers: BTreeMap<String, (v1::Container, i32)>,
    pub calls: Vec<String>,
    /// `Call` or `Call object`.
    pub hanging: BTreeSet<String>,
    /// `Call object`, and how long the answer takes.
    pub slow: BTreeMap<String, Duration>,
    pub down: bool,
    pub events: Events,
    pub muted: bool,
    /// How long a list takes to come back after it was made.
    pub list_delay: Duration,
    /// Done once, right after the next list of containers was made.
    pub after_list: Option<Hook>,
    pub mounts: Vec<v1::Mount>,
    subscribers: Vec<Sender>,
    clock: i64,
}

impl World {
    fn tick(&mut self) -> i64 {
        self.clock += 1;
        self.clock
    }

    pub fn add_pod(&mut self, uid: &str) {
        let id = format!("{uid}-sandbox");
        let created_at = self.tick();
        let sandbox = v1::PodSandbox {
            id: id.clone(),
            created_at,
            labels: pod_labels(uid),
            ..Default::default()
        };
        self.sandboxes.insert(id.clone(), sandbox);
        self.emit(uid, &id);
        self.add_container(uid, &format!("{uid}-c"));
    }

    pub fn add_container(&mut self, uid: &str, id: &str) {
        let mut labels = pod_labels(uid);
        labels.insert(labels::CONTAINER_NAME.to_owned(), "main".to_owned());
        let container = v1::Container {
            id: id.to_owned(),
            pod_sandbox_id: format!("{uid}-sandbox"),
            created_at: self.tick(),
            state: v1::ContainerState::ContainerRunning.into(),
            labels,
            ..Default::default()
        };
        self.containers.insert(id.to_owned(), (container, 0));
        self.emit(uid, id);
    }

    pub fn exit(&mut self, id: &str, code: i32) {
        let (container, exit) = self.containers.get_mut(id).unwrap();
        container.state = v1::ContainerState::ContainerExited.into();
        *exit = code;
        let uid = container.labels[labels::POD_UID].clone();
        self.emit(&uid, id);
    }

    pub fn remove_pod(&mut self, uid: &str) {
        let ours = |of: &BTreeMap<String, String>| of[labels::POD_UID] == uid;
        self.containers.retain(|_, (c, _)| !ours(&c.labels));
        self.sandboxes.retain(|_, s| !ours(&s.labels));
        self.emit(uid, &format!("{uid}-sandbox"));
    }

    pub fn emit(&mut self, uid: &str, id: &str) {
        if self.muted {
            return;
        }
        let event = v1::ContainerEventResponse {
            container_id: id.to_owned(),
            pod_sandbox_status: Some(v1::PodSandboxStatus {
                labels: pod_labels(uid),
                ..Default::default()
            }),
            ..Default::default()
        };
        self.subscribers
            .retain(|subscriber| subscriber.send(Ok(event.clone())).is_ok());
    }

    /// An event that does not say of which pod it is.
    pub fn emit_nameless(&mut self, id: &str) {
        let event = v1::ContainerEventResponse {
            container_id: id.to_owned(),
            ..Default::default()
        };
        self.subscribers
            .retain(|subscriber| subscriber.send(Ok(event.clone())).is_ok());
    }

    pub fn cut_stream(&mut self) {
        self.subscribers.clear();
    }

    fn find(&self, id: &str) -> Result<v1::ContainerStatus> {
        let (c, exit_code) = self
            .containers
            .get(id)
            .ok_or_else(|| Error::new("ContainerStatus", Code::NotFound, "no such container"))?;
        Ok(v1::ContainerStatus {
            id: c.id.clone(),
            metadata: c.metadata.clone(),
            state: c.state,
            created_at: c.created_at,
            exit_code: *exit_code,
            labels: c.labels.clone(),
            annotations: [(
                labels::TERMINATION_MESSAGE_PATH.to_owned(),
                "/dev/termination-log".to_owned(),
            )]
            .into(),
            mounts: self.mounts.clone(),
            ..Default::default()
        })
    }
}

pub fn pod_labels(uid: &str) -> BTreeMap<String, String> {
    let pairs = [
        (labels::POD_UID, uid),
        (labels::POD_NAMESPACE, "ns"),
        (labels::POD_NAME, uid),
    ];
    pairs.map(|(k, v)| (k.to_owned(), v.to_owned())).into()
}

pub struct FakeRuntime(Mutex<World>);

impl FakeRuntime {
    pub fn new() -> Self {
        Self(Mutex::new(World {
            sandboxes: BTreeMap::new(),
            containers: BTreeMap::new(),
            calls: Vec::new(),
            hanging: BTreeSet::new(),
            slow: BTreeMap::new(),
            down: false,
            events: Events::Flow,
            muted: false,
            list_delay: Duration::ZERO,
            after_list: None,
            mounts: Vec::new(),
            subscribers: Vec::new(),
            clock: 0,
        }))
    }

    pub fn world(&self) -> MutexGuard<'_, World> {
        self.0.lock().unwrap()
    }

    /// Calls since the last time this was asked.
    pub fn take_calls(&self) -> Vec<String> {
        std::mem::take(&mut self.world().calls)
    }

    async fn enter(&self, call: &'static str, object: &str) -> Result<()> {
        let (hangs, takes) = {
            let mut world = self.world();
            let full = format!("{call} {object}");
            world.calls.push(full.trim_end().to_owned());
            if world.down {
                return Err(Error::new(call, Code::Unavailable, "connection refused"));
            }
            let hangs = world.hanging.contains(call) || world.hanging.contains(&full);
            (hangs, world.slow.get(&full).copied())
        };
        if hangs {
            std::future::pending::<()>().await;
        }
        if let Some(takes) = takes {
            tokio::time::sleep(takes).await;
        }
        Ok(())
    }

    async fn delay(&self) {
        let delay = self.world().list_delay;
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
    }
}

fn selected(of: &BTreeMap<String, String>, wanted: Option<&BTreeMap<String, String>>) -> bool {
    wanted.is_none_or(|wanted| wanted.iter().all(|(k, v)| of.get(k) == Some(v)))
}

fn object(selector: Option<&BTreeMap<String, String>>) -> String {
    let uid = selector.and_then(|labels| labels.get(labels::POD_UID));
    uid.cloned().unwrap_or_default()
}

fn none<T>(call: &'static str) -> Result<T> {
    Err(Error::new(call, Code::Unimplemented, "not in this fake"))
}

#[async_trait]
impl RuntimeService for FakeRuntime {
    async fn version(&self) -> Result<v1::VersionResponse> {
        self.enter("Version", "").await?;
        Ok(v1::VersionResponse::default())
    }

    async fn pod_sandbox_status(&self, sandbox_id: &str) -> Result<v1::PodSandboxStatus> {
        self.enter("PodSandboxStatus", sandbox_id).await?;
        let world = self.world();
        let sandbox = world
            .sandboxes
            .get(sandbox_id)
            .ok_or_else(|| Error::new("PodSandboxStatus", Code::NotFound, "no such sandbox"))?;
        Ok(v1::PodSandboxStatus {
            id: sandbox.id.clone(),
            state: sandbox.state,
            created_at: sandbox.created_at,
            labels: sandbox.labels.clone(),
            network: Some(v1::PodSandboxNetworkStatus {
                ip: "10.0.0.1".to_owned(),
                ..Default::default()
            }),
            ..Default::default()
        })
    }

    async fn list_pod_sandbox(
        &self,
        filter: Option<v1::PodSandboxFilter>,
    ) -> Result<Vec<v1::PodSandbox>> {
        let selector = filter.map(|f| f.label_selector);
        let selector = selector.as_ref();
        self.enter("ListPodSandbox", &object(selector)).await?;
        let listed = {
            let world = self.world();
            let all = world.sandboxes.values();
            all.filter(|s| selected(&s.labels, selector))
                .cloned()
                .collect()
        };
        self.delay().await;
        Ok(listed)
    }

    async fn list_containers(
        &self,
        filter: Option<v1::ContainerFilter>,
    ) -> Result<Vec<v1::Container>> {
        let selector = filter.map(|f| f.label_selector);
        let selector = selector.as_ref();
        self.enter("ListContainers", &object(selector)).await?;
        let listed = {
            let mut world = self.world();
            let all = world.containers.values().map(|(c, _)| c);
            let listed = all
                .filter(|c| selected(&c.labels, selector))
                .cloned()
                .collect();
            if let Some(hook) = world.after_list.take() {
                hook(&mut world);
            }
            listed
        };
        self.delay().await;
        Ok(listed)
    }

    async fn container_status(&self, container_id: &str) -> Result<v1::ContainerStatus> {
        self.enter("ContainerStatus", container_id).await?;
        self.world().find(container_id)
    }

    async fn container_events(&self) -> Result<EventStream> {
        self.enter("GetContainerEvents", "").await?;
        let mut world = self.world();
        let code = match world.events {
            Events::Flow => {
                let (sender, receiver) = mpsc::unbounded_channel();
                world.subscribers.push(sender);
                let stream = futures::stream::unfold(receiver, |mut receiver| async {
                    receiver.recv().await.map(|event| (event, receiver))
                });
                return Ok(stream.boxed());
            }
            Events::Unimplemented => Code::Unimplemented,
            Events::Refused => Code::Unavailable,
        };
        Err(Error::new("GetContainerEvents", code, "no events"))
    }

    async fn status(&self) -> Result<v1::StatusResponse> {
        none("Status")
    }

    async fn runtime_config(&self) -> Result<v1::RuntimeConfigResponse> {
        none("RuntimeConfig")
    }

    async fn update_runtime_config(&self, _: &str) -> Result<()> {
        none("UpdateRuntimeConfig")
    }

    async fn run_pod_sandbox(&self, _: v1::PodSandboxConfig, _: &str) -> Result<String> {
        none("RunPodSandbox")
    }

    async fn stop_pod_sandbox(&self, _: &str) -> Result<()> {
        none("StopPodSandbox")
    }

    async fn remove_pod_sandbox(&self, _: &str) -> Result<()> {
        none("RemovePodSandbox")
    }

    async fn create_container(
        &self,
        _: &str,
        _: v1::ContainerConfig,
        _: v1::PodSandboxConfig,
    ) -> Result<String> {
        none("CreateContainer")
    }

    async fn start_container(&self, _: &str) -> Result<()> {
        none("StartContainer")
    }

    async fn stop_container(&self, _: &str, _: i64) -> Result<()> {
        none("StopContainer")
    }

    async fn remove_container(&self, _: &str) -> Result<()> {
        none("RemoveContainer")
    }

    async fn update_container_resources(
        &self,
        _: v1::UpdateContainerResourcesRequest,
    ) -> Result<()> {
        none("UpdateContainerResources")
    }

    async fn reopen_container_log(&self, _: &str) -> Result<()> {
        none("ReopenContainerLog")
    }

    async fn exec_sync(
        &self,
        _: &str,
        _: Vec<String>,
        _: Duration,
    ) -> Result<v1::ExecSyncResponse> {
        none("ExecSync")
    }
}

/// Files that can be read, and a path that hangs.
#[derive(Default)]
pub struct MemoryFiles {
    files: Mutex<BTreeMap<PathBuf, Vec<u8>>>,
    hanging: Mutex<BTreeSet<PathBuf>>,
}

impl MemoryFiles {
    pub fn write(&self, path: &str, bytes: &[u8]) {
        let mut files = self.files.lock().unwrap();
        files.insert(path.into(), bytes.to_vec());
    }

    pub fn hang(&self, path: &str) {
        self.hanging.lock().unwrap().insert(path.into());
    }
}

fn unsupported<T>() -> io::Result<T> {
    Err(io::ErrorKind::Unsupported.into())
}

#[async_trait]
impl Files for MemoryFiles {
    async fn read_tail(&self, path: &Path, limit: usize) -> io::Result<Vec<u8>> {
        let hangs = self.hanging.lock().unwrap().contains(path);
        if hangs {
            std::future::pending::<()>().await;
        }
        let files = self.files.lock().unwrap();
        let bytes = files.get(path).ok_or(io::ErrorKind::NotFound)?;
        Ok(bytes[bytes.len().saturating_sub(limit)..].to_vec())
    }

    async fn stat(&self, _: &Path) -> io::Result<Entry> {
        unsupported()
    }

    async fn lstat(&self, path: &Path) -> io::Result<Entry> {
        let hangs = self.hanging.lock().unwrap().contains(path);
        if hangs {
            std::future::pending::<()>().await;
        }
        let files = self.files.lock().unwrap();
        let bytes = files.get(path).ok_or(io::ErrorKind::NotFound)?;
        Ok(Entry {
            path: path.into(),
            kind: EntryKind::File,
            size: bytes.len() as u64,
            modified: 0,
        })
    }

    async fn list(&self, _: &Path) -> io::Result<Vec<Entry>> {
        unsupported()
    }

    async fn read(&self, _: &Path, _: usize) -> io::Result<Vec<u8>> {
        unsupported()
    }

    async fn create_dir_all(&self, _: &Path, _: u32) -> io::Result<()> {
        unsupported()
    }

    async fn write_atomic(&self, _: &Path, _: &[u8], _: u32) -> io::Result<()> {
        unsupported()
    }

    async fn touch(&self, _: &Path, _: u32) -> io::Result<()> {
        unsupported()
    }

    async fn symlink(&self, _: &Path, _: &Path) -> io::Result<()> {
        unsupported()
    }

    async fn read_link(&self, _: &Path) -> io::Result<PathBuf> {
        unsupported()
    }

    async fn rename(&self, _: &Path, _: &Path) -> io::Result<()> {
        unsupported()
    }

    async fn remove_file(&self, _: &Path) -> io::Result<()> {
        unsupported()
    }

    async fn remove_dir(&self, _: &Path) -> io::Result<()> {
        unsupported()
    }

    async fn remove_tree(&self, _: &Path) -> io::Result<()> {
        unsupported()
    }

    async fn gzip(&self, _: &Path, _: &Path) -> io::Result<()> {
        unsupported()
    }

    async fn set_mode(&self, _: &Path, _: u32) -> io::Result<()> {
        unsupported()
    }

    async fn set_group(&self, _: &Path, _: u32) -> io::Result<()> {
        unsupported()
    }
}
