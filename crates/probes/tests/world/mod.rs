//! A world for probes: a scripted network and runtime, and pods to look at.
#![allow(clippy::unwrap_used)]

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use krablet_core::probe::{ContainerVerdicts, Verdict};
use krablet_cri::{Code, Error, EventStream, Result, RuntimeService, v1};
use krablet_events::Recorder;
use krablet_net::{GrpcHealth, HttpGet, HttpResponse, Net, NetError};
use krablet_pod::api::{Pod, PodStatus};
use krablet_pod::observed::{
    ContainerMemory, ContainerState, ObservedContainer, ObservedPod, ObservedSandbox,
};
use krablet_pod::{PodRef, PodUid, Ticket};
use krablet_probes::{ProbeUpdate, ProbeUpdates, ProbesConfig, ProbesDeps, ProbesHandle, build};
use tokio::task::JoinSet;
use tokio::time::Instant;

/// One answer of the world to one probe.
#[derive(Clone)]
pub enum Answer {
    Status(u16),
    Fails(NetError),
    Health(GrpcHealth),
    Exit(i32, &'static str),
    ExecFails(Code, &'static str),
    Never,
    Panic,
}

#[derive(Default)]
pub struct Script {
    pub answers: VecDeque<Answer>,
    /// When the answers have run out.
    pub always: Option<Answer>,
    /// Seconds since the start, and what was asked.
    pub asked: Vec<(u64, String)>,
    pub under_way: usize,
    pub most: usize,
    pub dropped: usize,
}

#[derive(Clone)]
pub struct Fake {
    pub script: Arc<Mutex<Script>>,
    born: Instant,
}

/// Notes when a call is given up.
struct Call {
    script: Arc<Mutex<Script>>,
    done: bool,
}

impl Drop for Call {
    fn drop(&mut self) {
        let mut script = self.script.lock().unwrap();
        script.under_way -= 1;
        script.dropped += usize::from(!self.done);
    }
}

impl Fake {
    async fn ask(&self, what: String) -> Answer {
        let mut call = Call {
            script: self.script.clone(),
            done: false,
        };
        let answer = {
            let mut script = self.script.lock().unwrap();
            script.asked.push((self.born.elapsed().as_secs(), what));
            script.under_way += 1;
            script.most = script.most.max(script.under_way);
            let always = script.always.clone();
            script.answers.pop_front().or(always)
        };
        let answer = answer.unwrap_or(Answer::Status(200));
        if let Answer::Never = answer {
            std::future::pending::<()>().await;
        }
        tokio::task::yield_now().await;
        call.done = true;
        answer
    }
}

#[async_trait]
impl Net for Fake {
    async fn http_get(&self, request: HttpGet) -> std::result::Result<HttpResponse, NetError> {
        let headers: Vec<String> = request
            .headers
            .iter()
            .map(|(n, v)| format!(" {n}:{v}"))
            .collect();
        match self
            .ask(format!("{}{}", request.url, headers.concat()))
            .await
        {
            Answer::Fails(e) => Err(e),
            Answer::Status(status) => Ok(HttpResponse {
                status,
                body: b"body".to_vec(),
                ..HttpResponse::default()
            }),
            Answer::Panic => panic!("a bug in a probe"),
            _ => Err(NetError::Failed("no such answer".into())),
        }
    }

    async fn tcp_connect(
        &self,
        host: &str,
        port: u16,
        _: Duration,
    ) -> std::result::Result<(), NetError> {
        match self.ask(format!("tcp {host} {port}")).await {
            Answer::Fails(e) => Err(e),
            _ => Ok(()),
        }
    }

    async fn grpc_health(
        &self,
        host: &str,
        port: u16,
        service: &str,
        _: Duration,
    ) -> std::result::Result<GrpcHealth, NetError> {
        match self.ask(format!("grpc {host} {port} {service}")).await {
            Answer::Fails(e) => Err(e),
            Answer::Health(health) => Ok(health),
            _ => Ok(GrpcHealth::Serving),
        }
    }
}

fn no<T>(call: &'static str) -> Result<T> {
    Err(Error::new(call, Code::Unimplemented, ""))
}

#[async_trait]
impl RuntimeService for Fake {
    async fn exec_sync(
        &self,
        container_id: &str,
        command: Vec<String>,
        timeout: Duration,
    ) -> Result<v1::ExecSyncResponse> {
        let what = format!(
            "exec {container_id} {} {}s",
            command.join(" "),
            timeout.as_secs()
        );
        match self.ask(what).await {
            Answer::Exit(exit_code, text) => Ok(v1::ExecSyncResponse {
                stdout: text.into(),
                stderr: Vec::new(),
                exit_code,
            }),
            Answer::ExecFails(code, text) => Err(Error::new("ExecSync", code, text)),
            _ => Ok(v1::ExecSyncResponse::default()),
        }
    }

    async fn version(&self) -> Result<v1::VersionResponse> {
        no("Version")
    }
    async fn status(&self) -> Result<v1::StatusResponse> {
        no("Status")
    }
    async fn runtime_config(&self) -> Result<v1::RuntimeConfigResponse> {
        no("RuntimeConfig")
    }
    async fn update_runtime_config(&self, _: &str) -> Result<()> {
        no("UpdateRuntimeConfig")
    }
    async fn run_pod_sandbox(&self, _: v1::PodSandboxConfig, _: &str) -> Result<String> {
        no("RunPodSandbox")
    }
    async fn stop_pod_sandbox(&self, _: &str) -> Result<()> {
        no("StopPodSandbox")
    }
    async fn remove_pod_sandbox(&self, _: &str) -> Result<()> {
        no("RemovePodSandbox")
    }
    async fn pod_sandbox_status(&self, _: &str) -> Result<v1::PodSandboxStatus> {
        no("PodSandboxStatus")
    }
    async fn list_pod_sandbox(
        &self,
        _: Option<v1::PodSandboxFilter>,
    ) -> Result<Vec<v1::PodSandbox>> {
        no("ListPodSandbox")
    }
    async fn create_container(
        &self,
        _: &str,
        _: v1::ContainerConfig,
        _: v1::PodSandboxConfig,
    ) -> Result<String> {
        no("CreateContainer")
    }
    async fn start_container(&self, _: &str) -> Result<()> {
        no("StartContainer")
    }
    async fn stop_container(&self, _: &str, _: i64) -> Result<()> {
        no("StopContainer")
    }
    async fn remove_container(&self, _: &str) -> Result<()> {
        no("RemoveContainer")
    }
    async fn list_containers(&self, _: Option<v1::ContainerFilter>) -> Result<Vec<v1::Container>> {
        no("ListContainers")
    }
    async fn container_status(&self, _: &str) -> Result<v1::ContainerStatus> {
        no("ContainerStatus")
    }
    async fn update_container_resources(
        &self,
        _: v1::UpdateContainerResourcesRequest,
    ) -> Result<()> {
        no("UpdateContainerResources")
    }
    async fn reopen_container_log(&self, _: &str) -> Result<()> {
        no("ReopenContainerLog")
    }
    async fn container_events(&self) -> Result<EventStream> {
        no("GetContainerEvents")
    }
}

pub struct World {
    pub fake: Fake,
    pub probes: ProbesHandle,
    pub updates: ProbeUpdates,
    pub recorder: Recorder,
    _task: JoinSet<()>,
}

pub fn wall(born: Instant) -> Timestamp {
    let elapsed = i64::try_from(born.elapsed().as_nanos()).unwrap();
    Timestamp::from_nanosecond(i128::from(EPOCH + elapsed)).unwrap()
}

/// The wall clock when the agent starts, in unix nanoseconds.
pub const EPOCH: i64 = 1_000_000 * SECOND;
pub const SECOND: i64 = 1_000_000_000;

impl World {
    pub fn new() -> Self {
        Self::with(ProbesConfig::default(), 7)
    }

    pub fn with(config: ProbesConfig, seed: u64) -> Self {
        let born = Instant::now();
        let fake = Fake {
            script: Arc::default(),
            born,
        };
        let recorder = Recorder::new(move || wall(born));
        let deps = ProbesDeps {
            runtime: Arc::new(fake.clone()),
            net: Arc::new(fake.clone()),
            recorder: recorder.clone(),
            clock: Arc::new(move || wall(born)),
            seed,
        };
        let (task, probes) = build(config, deps);
        let updates = probes.take_updates();
        let mut tasks = JoinSet::new();
        tasks.spawn(task.run());
        Self {
            fake,
            probes,
            updates,
            recorder,
            _task: tasks,
        }
    }

    pub fn answers(&self, answers: impl IntoIterator<Item = Answer>) {
        self.fake.script.lock().unwrap().answers.extend(answers);
    }

    pub fn always(&self, answer: Answer) {
        self.fake.script.lock().unwrap().always = Some(answer);
    }

    /// What was asked since the last call.
    pub fn asked(&self) -> Vec<(u64, String)> {
        std::mem::take(&mut self.fake.script.lock().unwrap().asked)
    }

    /// The seconds at which something was asked since the last call.
    pub fn asked_at(&self) -> Vec<u64> {
        self.asked().into_iter().map(|(at, _)| at).collect()
    }

    /// Lets virtual time pass.
    pub async fn pass(&self, seconds: u64) {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
    }

    pub fn set(&self, pod: &Arc<Pod>, observed: &ObservedPod) {
        self.probes.set_pod(pod, observed, &PodStatus::default());
    }

    pub fn verdicts(&self, id: &str) -> Option<ContainerVerdicts> {
        self.probes.verdicts(&PodUid::from("u")).get(id).copied()
    }

    pub fn readiness(&self, id: &str) -> Option<Verdict> {
        self.verdicts(id).and_then(|v| v.readiness)
    }

    pub async fn next_update(&mut self) -> ProbeUpdate {
        self.updates.next().await.unwrap()
    }

    pub fn events(&self) -> Vec<String> {
        let events = self.recorder.since(0).into_iter();
        events
            .map(|e| format!("{} {}", e.reason, e.message))
            .collect()
    }
}

/// A pod `u` of one container `c` with the probes given as JSON (`"readinessProbe": {…}`).
pub fn pod(probes: &str) -> Arc<Pod> {
    pod_of(
        "u",
        &format!(
            r#"{{"containers": [{{"name": "c", "env": [{{"name": "A", "value": "b"}}],
            "ports": [{{"name": "web", "containerPort": 8080}}], {probes}}}]}}"#
        ),
    )
}

pub fn pod_of(uid: &str, spec: &str) -> Arc<Pod> {
    let text = format!(
        r#"{{"metadata": {{"uid": "{uid}", "name": "p", "namespace": "ns"}}, "spec": {spec}}}"#
    );
    Arc::new(serde_json::from_str(&text).unwrap())
}

/// Container `c` of pod `u` as instance `id`, started so many seconds after the agent.
pub fn running(id: &str, started: i64) -> ObservedPod {
    observed("u", "c", id, ContainerState::Running, started)
}

pub fn absent() -> ObservedPod {
    ObservedPod::absent(PodRef::new("u", "ns", "p"), Ticket(1))
}

pub fn observed(
    uid: &str,
    name: &str,
    id: &str,
    state: ContainerState,
    started: i64,
) -> ObservedPod {
    ObservedPod {
        pod: PodRef::new(uid, "ns", "p"),
        ticket: Ticket(1),
        sandboxes: vec![ObservedSandbox {
            id: "s".into(),
            ready: true,
            attempt: 0,
            created_at: 0,
            ips: vec!["10.0.0.7".into()],
            host_network: false,
            source: None,
        }],
        containers: vec![ObservedContainer {
            id: id.into(),
            name: name.into(),
            sandbox_id: "s".into(),
            state,
            attempt: 0,
            created_at: EPOCH + started * SECOND,
            started_at: EPOCH + started * SECOND,
            exit: None,
            image: "".into(),
            image_ref: "".into(),
            user: None,
            resources: None,
            memory: ContainerMemory::default(),
            log_path: String::new(),
        }],
    }
}
