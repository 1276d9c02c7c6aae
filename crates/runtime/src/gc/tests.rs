use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use async_trait::async_trait;
use krablet_cri::{Code, Error, EventStream, Result as CriResult, v1};
use krablet_linux::fake::{FixedClock, MemoryFiles};
use krablet_pod::Ticket;
use krablet_pod::observed::{ContainerMemory, ContainerState, ObservedContainer, ObservedSandbox};

use super::*;

type Effect = Box<dyn Fn(&str) + Send + Sync>;

/// A runtime that writes down what it is asked to do, and fails where told.
#[derive(Default)]
pub(crate) struct ScriptedRuntime {
    calls: Mutex<Vec<String>>,
    failures: Mutex<BTreeMap<String, Code>>,
    /// Run when a call succeeds, with its text.
    effect: Option<Effect>,
}

impl ScriptedRuntime {
    pub(crate) fn with_effect(effect: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self {
            effect: Some(Box::new(effect)),
            ..Self::default()
        }
    }

    pub(crate) fn fail(&self, call: &str, code: Code) {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        failures.insert(call.to_owned(), code);
    }

    pub(crate) fn heal(&self) {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        failures.clear();
    }

    pub(crate) fn take_calls(&self) -> Vec<String> {
        std::mem::take(&mut *self.calls.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn called(&self, call: String) -> CriResult<()> {
        let failure = {
            let failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
            failures.get(&call).copied()
        };
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        calls.push(call.clone());
        match failure {
            Some(code) => Err(Error::new("Scripted", code, "scripted")),
            None => {
                if let Some(effect) = &self.effect {
                    effect(&call);
                }
                Ok(())
            }
        }
    }

    fn unscripted<T>(&self) -> CriResult<T> {
        Err(Error::new("Unscripted", Code::Unimplemented, "unscripted"))
    }
}

#[async_trait]
impl RuntimeService for ScriptedRuntime {
    async fn version(&self) -> CriResult<v1::VersionResponse> {
        self.unscripted()
    }
    async fn status(&self) -> CriResult<v1::StatusResponse> {
        self.unscripted()
    }
    async fn runtime_config(&self) -> CriResult<v1::RuntimeConfigResponse> {
        self.unscripted()
    }
    async fn update_runtime_config(&self, _: &str) -> CriResult<()> {
        self.unscripted()
    }
    async fn run_pod_sandbox(&self, _: v1::PodSandboxConfig, _: &str) -> CriResult<String> {
        self.unscripted()
    }
    async fn stop_pod_sandbox(&self, id: &str) -> CriResult<()> {
        self.called(format!("stop sandbox {id}"))
    }
    async fn remove_pod_sandbox(&self, id: &str) -> CriResult<()> {
        self.called(format!("remove sandbox {id}"))
    }
    async fn pod_sandbox_status(&self, _: &str) -> CriResult<v1::PodSandboxStatus> {
        self.unscripted()
    }
    async fn list_pod_sandbox(
        &self,
        _: Option<v1::PodSandboxFilter>,
    ) -> CriResult<Vec<v1::PodSandbox>> {
        self.unscripted()
    }
    async fn create_container(
        &self,
        _: &str,
        _: v1::ContainerConfig,
        _: v1::PodSandboxConfig,
    ) -> CriResult<String> {
        self.unscripted()
    }
    async fn start_container(&self, _: &str) -> CriResult<()> {
        self.unscripted()
    }
    async fn stop_container(&self, id: &str, grace: i64) -> CriResult<()> {
        self.called(format!("stop container {id} {grace}"))
    }
    async fn remove_container(&self, id: &str) -> CriResult<()> {
        self.called(format!("remove container {id}"))
    }
    async fn list_containers(
        &self,
        _: Option<v1::ContainerFilter>,
    ) -> CriResult<Vec<v1::Container>> {
        self.unscripted()
    }
    async fn container_status(&self, _: &str) -> CriResult<v1::ContainerStatus> {
        self.unscripted()
    }
    async fn update_container_resources(
        &self,
        _: v1::UpdateContainerResourcesRequest,
    ) -> CriResult<()> {
        self.unscripted()
    }
    async fn reopen_container_log(&self, id: &str) -> CriResult<()> {
        self.called(format!("reopen {id}"))
    }
    async fn exec_sync(
        &self,
        _: &str,
        _: Vec<String>,
        _: std::time::Duration,
    ) -> CriResult<v1::ExecSyncResponse> {
        self.unscripted()
    }
    async fn container_events(&self) -> CriResult<EventStream> {
        self.unscripted()
    }
}

/// Instance `n` of container `c` of a pod; its log is `<n>.log`.
pub(crate) fn container(pod: &PodRef, n: u32, state: ContainerState) -> ObservedContainer {
    ObservedContainer {
        id: format!("{}-c{n}", pod.uid).into(),
        name: "c".into(),
        sandbox_id: format!("{}-s0", pod.uid).into(),
        state,
        attempt: n,
        created_at: i64::from(n),
        started_at: i64::from(n),
        exit: None,
        image: "i".into(),
        image_ref: "i".into(),
        user: None,
        resources: None,
        memory: ContainerMemory::default(),
        log_path: format!("/logs/ns_{}_{}/c/{n}.log", pod.name, pod.uid),
    }
}

fn sandbox(pod: &PodRef, n: u32, ready: bool) -> ObservedSandbox {
    ObservedSandbox {
        id: format!("{}-s{n}", pod.uid).into(),
        ready,
        attempt: n,
        created_at: i64::from(n),
        ips: Vec::new(),
        host_network: false,
        source: None,
    }
}

/// A pod with dead instances `dead` (newest first) and perhaps a running one, in a sandbox.
fn pod(uid: &str, running: Option<u32>, dead: &[u32]) -> Arc<ObservedPod> {
    let pod = PodRef::new(uid, "ns", "p");
    let mut seen = ObservedPod::absent(pod.clone(), Ticket(1));
    let live = running.map(|n| container(&pod, n, ContainerState::Running));
    seen.containers = live
        .into_iter()
        .chain(
            dead.iter()
                .map(|n| container(&pod, *n, ContainerState::Exited)),
        )
        .collect();
    seen.sandboxes = vec![sandbox(&pod, 0, running.is_some())];
    Arc::new(seen)
}

struct World {
    files: MemoryFiles,
    runtime: Arc<ScriptedRuntime>,
    gc: ContainerGc,
}

fn world(pods: &[Arc<ObservedPod>]) -> World {
    let files = MemoryFiles::default();
    for pod in pods {
        for c in &pod.containers {
            files.put_file(Path::new(&c.log_path), b"x").unwrap();
        }
    }
    let runtime = Arc::new(ScriptedRuntime::default());
    let settings = GcSettings {
        policy: GcPolicy::default(),
        pod_logs: "/logs".into(),
        container_logs: "/links".into(),
    };
    let clock = Arc::new(FixedClock::default());
    clock.advance(std::time::Duration::from_secs(1));
    let gc = ContainerGc::new(settings, runtime.clone(), Arc::new(files.clone()), clock);
    World { files, runtime, gc }
}

fn round<'a>(
    pods: &'a [Arc<ObservedPod>],
    fate: &'a (dyn Fn(&PodUid) -> Fate + Sync),
) -> GcRound<'a> {
    GcRound {
        pods,
        fate,
        recorded: &|_| true,
        claim: &|_| Some(Box::new(())),
        sources_ready: true,
        evict_terminated: false,
    }
}

fn only_live_lives(uid: &PodUid) -> Fate {
    match uid.as_str() {
        "live" => Fate::Live,
        _ => Fate::ContentRemovable,
    }
}

fn logs(files: &MemoryFiles) -> Vec<String> {
    let paths = files.paths().into_iter().map(|p| p.display().to_string());
    paths.filter(|p| p.contains(".log")).collect()
}

#[tokio::test]
async fn dead_containers_go_with_their_logs_and_links_and_leave_empty_sandboxes() {
    let pods = [pod("live", Some(3), &[2, 1, 0]), pod("gone", None, &[1, 0])];
    let w = world(&pods);
    let link = Path::new("/links/p_ns_c-live-c0.log");
    w.files
        .put(Path::new("/links"), EntryKind::Directory)
        .unwrap();
    w.files
        .symlink(Path::new("/logs/ns_p_live/c/0.log"), link)
        .await
        .unwrap();
    for rotated in ["0.log.20260101-000000.gz", "10.log", "0.logical"] {
        let path = Path::new("/logs/ns_p_live/c").join(rotated);
        w.files.put_file(&path, b"x").unwrap();
    }
    let report = w.gc.run(&round(&pods, &only_live_lives)).await;
    assert_eq!(report.failures, Vec::<String>::new());
    // Pods are cleaned side by side, each in its own order.
    let (gone, live): (Vec<_>, Vec<_>) = w
        .runtime
        .take_calls()
        .into_iter()
        .partition(|call| call.contains("gone"));
    assert_eq!(
        gone,
        [
            "remove container gone-c1",
            "remove container gone-c0",
            "stop sandbox gone-s0",
            "remove sandbox gone-s0",
        ]
    );
    assert_eq!(
        live,
        ["remove container live-c1", "remove container live-c0"]
    );
    assert_eq!(
        logs(&w.files),
        [
            "/logs/ns_p_live/c/0.logical",
            "/logs/ns_p_live/c/10.log",
            "/logs/ns_p_live/c/2.log",
            "/logs/ns_p_live/c/3.log",
        ]
    );
    assert_eq!((report.log_dirs, report.links), (1, 0));
    assert!(!w.files.paths().contains(&link.to_path_buf()));
}

#[tokio::test]
async fn what_fails_keeps_its_sandbox_and_does_not_keep_others() {
    let pods = [pod("gone", None, &[1, 0]), pod("gone2", None, &[0])];
    let w = world(&pods);
    w.runtime
        .fail("remove container gone-c0", Code::Unavailable);
    w.runtime.fail("remove container gone2-c0", Code::NotFound);
    w.runtime.fail("stop sandbox gone2-s0", Code::NotFound);
    let report = w.gc.run(&round(&pods, &only_live_lives)).await;
    assert_eq!(
        report.containers,
        ["gone-c1".into(), "gone2-c0".into()].into()
    );
    assert_eq!(report.sandboxes, ["gone2-s0".into()].into());
    assert_eq!(
        report.failures,
        [
            "failed to remove container \"c\" (gone-c0) of pod ns/p: rpc error: code = Unavailable desc = scripted"
        ]
    );
    w.runtime.heal();
    let report = w.gc.run(&round(&pods, &only_live_lives)).await;
    assert_eq!(report.failures, Vec::<String>::new());
    assert!(report.sandboxes.contains(&SandboxId::from("gone-s0")));
}

#[tokio::test]
async fn a_container_of_unknown_state_is_stopped_first() {
    let pod_ref = PodRef::new("gone", "ns", "p");
    let mut seen = ObservedPod::absent(pod_ref.clone(), Ticket(1));
    seen.containers = vec![container(&pod_ref, 0, ContainerState::Unknown)];
    let pods = [Arc::new(seen)];
    let w = world(&pods);
    w.runtime
        .fail("stop container gone-c0 2", Code::DeadlineExceeded);
    assert_eq!(
        w.gc.run(&round(&pods, &only_live_lives))
            .await
            .failures
            .len(),
        1
    );
    assert_eq!(w.runtime.take_calls(), ["stop container gone-c0 2"]);
    w.runtime.heal();
    w.gc.run(&round(&pods, &only_live_lives)).await;
    assert_eq!(
        w.runtime.take_calls(),
        ["stop container gone-c0 2", "remove container gone-c0"]
    );
}

#[tokio::test]
async fn nothing_of_unknown_pods_goes_before_the_sources_are_ready() {
    let pods = [pod("gone", None, &[0])];
    let w = world(&pods);
    let early = GcRound {
        sources_ready: false,
        ..round(&pods, &only_live_lives)
    };
    assert_eq!(w.gc.run(&early).await, GcReport::default());
    assert_eq!(w.runtime.take_calls(), Vec::<String>::new());
    assert_eq!(logs(&w.files).len(), 1);
}

#[tokio::test]
async fn links_go_that_lead_nowhere_unless_their_container_still_runs() {
    let pods = [pod("live", Some(0), &[])];
    let w = world(&pods);
    w.files
        .put(Path::new("/links"), EntryKind::Directory)
        .unwrap();
    for (link, target) in [
        ("p_ns_c-live-c0.log", "/logs/rotating-right-now"),
        ("p_ns_c-old.log", "/logs/nowhere"),
        ("p_ns_c-fine.log", "/logs/ns_p_live/c/0.log"),
        ("unrelated", "/nowhere"),
    ] {
        let link = Path::new("/links").join(link);
        w.files.symlink(Path::new(target), &link).await.unwrap();
    }
    let report = w.gc.run(&round(&pods, &only_live_lives)).await;
    assert_eq!(report.links, 1);
    let paths = w.files.paths();
    assert!(!paths.contains(&PathBuf::from("/links/p_ns_c-old.log")));
    assert!(paths.contains(&PathBuf::from("/links/p_ns_c-live-c0.log")));
    assert!(paths.contains(&PathBuf::from("/links/unrelated")));
}

#[tokio::test]
async fn absent_log_directories_are_fine_and_broken_ones_are_told() {
    let w = world(&[]);
    assert_eq!(
        w.gc.run(&round(&[], &only_live_lives)).await,
        GcReport::default()
    );
    w.files.put(Path::new("/logs"), EntryKind::File).unwrap();
    let report = w.gc.run(&round(&[], &only_live_lives)).await;
    assert_eq!(report.failures.len(), 1, "{report:?}");
}
