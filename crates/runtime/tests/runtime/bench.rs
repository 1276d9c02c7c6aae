//! One pod on an in-memory node: a runtime room with everything around it made up.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use krablet_core::probe::Verdicts;
use krablet_events::Recorder;
use krablet_images::{PullRecords, Verification};
use krablet_linux::fake::MemoryFiles;
use krablet_linux::{EntryKind, WallClock};
use krablet_metrics::RuntimeMetrics;
use krablet_net::{GrpcHealth, HttpGet, HttpResponse, Net, NetError};
use krablet_objects::{FakeObjects, FakeServices, ObjectError, Objects};
use krablet_pod::api::{ConfigMap, Container, Lifecycle, LifecycleHandler, Pod, PodSpec, Secret};
use krablet_pod::observed::ObservedPod;
use krablet_pod::paths::RootDir;
use krablet_pod::paths::restart_mark;
use krablet_pod::{PodRef, PodUid, Ticket};
use krablet_runtime::{
    NodeFacts, Paths, PodRuntime, RuntimeClasses, RuntimeConfig, RuntimeDeps, Sizes, SyncInputs,
    SyncOutcome, VolumeSource,
};

use crate::files::MemFiles;
use crate::world::World;

struct Clock(World);

impl WallClock for Clock {
    fn now(&self) -> Timestamp {
        Timestamp::from_nanosecond(i128::from(self.0.wall())).unwrap()
    }
}

/// Answers HTTP GETs from a list; anything else is connection refused.
#[derive(Default)]
pub struct FakeNet {
    pub asked: Mutex<Vec<HttpGet>>,
    pub answers: Mutex<BTreeMap<String, Result<u16, NetError>>>,
}

#[async_trait]
impl Net for FakeNet {
    async fn http_get(&self, request: HttpGet) -> Result<HttpResponse, NetError> {
        let answer = self.answers.lock().unwrap().get(&request.url).cloned();
        self.asked.lock().unwrap().push(request);
        let refused = Err(NetError::Failed("connection refused".into()));
        let status = answer.unwrap_or(refused)?;
        Ok(HttpResponse {
            status,
            ..HttpResponse::default()
        })
    }

    async fn tcp_connect(&self, _: &str, _: u16, _: Duration) -> Result<(), NetError> {
        Err(NetError::Timeout)
    }

    async fn grpc_health(
        &self,
        _: &str,
        _: u16,
        _: &str,
        _: Duration,
    ) -> Result<GrpcHealth, NetError> {
        Err(NetError::Timeout)
    }
}

/// Objects that are told of only after a while.
struct LateObjects {
    objects: FakeObjects,
    take: Arc<Mutex<Duration>>,
}

impl LateObjects {
    async fn wait(&self) {
        let takes = *self.take.lock().unwrap();
        if !takes.is_zero() {
            tokio::time::sleep(takes).await;
        }
    }
}

#[async_trait]
impl Objects for LateObjects {
    async fn config_map(&self, namespace: &str, name: &str) -> Result<Arc<ConfigMap>, ObjectError> {
        self.wait().await;
        self.objects.config_map(namespace, name).await
    }

    async fn secret(&self, namespace: &str, name: &str) -> Result<Arc<Secret>, ObjectError> {
        self.wait().await;
        self.objects.secret(namespace, name).await
    }

    fn want(&self, pod: &Pod) {
        self.objects.want(pod);
    }

    fn forget(&self, uid: &PodUid) {
        self.objects.forget(uid);
    }
}

pub fn config() -> RuntimeConfig {
    RuntimeConfig {
        node: NodeFacts {
            name: "node".into(),
            host_ips: krablet_linux::HostIps::fixed(["192.0.2.1".parse().unwrap()]),
            memory_capacity: 1 << 32,
            ..NodeFacts::default()
        },
        seed: 7,
        ..RuntimeConfig::new(Paths {
            root: RootDir::new("/root"),
            pod_logs: "/logs/pods".into(),
            container_logs: "/logs/containers".into(),
            node_hosts: "/etc/hosts".into(),
        })
    }
}

pub struct Bench {
    pub world: World,
    pub files: Arc<MemFiles>,
    pub net: Arc<FakeNet>,
    pub objects: FakeObjects,
    /// How long who asks for one of them waits.
    pub objects_take: Arc<Mutex<Duration>>,
    pub services: FakeServices,
    pub recorder: Recorder,
    pub runtime: PodRuntime,
    pub metrics: RuntimeMetrics,
    pub records: Arc<PullRecords>,
    pub clock: Arc<dyn WallClock>,
    told: Mutex<u64>,
}

/// A disk for mounts, with one volume on it.
fn disk_with_volume() -> MemoryFiles {
    let disk = MemoryFiles::default();
    let volume = std::path::Path::new("/vol");
    disk.put(volume, EntryKind::Directory).unwrap();
    disk
}

impl Bench {
    /// Needs a tokio runtime with paused time.
    pub fn new() -> Self {
        Self::with(config())
    }

    pub fn with(config: RuntimeConfig) -> Self {
        Self::with_classes(config, RuntimeClasses::default())
    }

    pub fn with_classes(config: RuntimeConfig, classes: RuntimeClasses) -> Self {
        let files = Arc::new(MemFiles::default());
        files.put("/etc/hosts", b"127.0.0.1 localhost\n");
        let world = World::new(files.clone());
        world.has_image("img:1");
        let net = Arc::new(FakeNet::default());
        let objects = FakeObjects::new();
        let objects_take = Arc::<Mutex<Duration>>::default();
        let services = FakeServices::new(Vec::new());
        let clock = Arc::new(Clock(world.clone()));
        let wall = Clock(world.clone());
        let recorder = {
            let clock = clock.clone();
            Recorder::new(move || clock.now())
        };
        let metrics = RuntimeMetrics::default();
        let records = Arc::new(PullRecords::new(
            Verification::default(),
            config.paths.root.path(),
            files.clone(),
            clock.clone(),
        ));
        let runtime = PodRuntime::build(
            config,
            RuntimeDeps {
                runtime: Arc::new(world.clone()),
                images: Arc::new(world.clone()),
                files: files.clone(),
                mounts: Arc::new(disk_with_volume().mounts()),
                net: net.clone(),
                objects: Arc::new(LateObjects {
                    objects: objects.clone(),
                    take: objects_take.clone(),
                }),
                services: Arc::new(services.clone()),
                keychain: Arc::default(),
                pull_records: Some(records.clone()),
                classes,
                recorder: recorder.clone(),
                clock,
                metrics: metrics.clone(),
                epoch: tokio::time::Instant::now(),
            },
        );
        Self {
            world,
            files,
            net,
            objects,
            objects_take,
            services,
            recorder,
            runtime,
            metrics,
            records,
            clock: Arc::new(wall),
            told: Mutex::new(0),
        }
    }

    pub fn observed(&self, pod: &Pod) -> ObservedPod {
        let mut seen = self.world.observed(&PodRef::of(pod));
        for container in &mut seen.containers {
            let mark = restart_mark(Path::new(&container.log_path)).unwrap();
            let marked = self.files.get(mark.to_str().unwrap()).is_some();
            let exits = container.exit.iter_mut();
            exits.for_each(|exit| exit.stopped_to_restart = marked);
        }
        seen
    }

    pub async fn sync(&self, pod: &Pod) -> SyncOutcome {
        self.sync_with(pod, &Verdicts::new(), &[]).await
    }

    /// A first sync: the world holds one pod's things, so others are taken as never seen.
    pub async fn sync_fresh(&self, pod: &Pod) -> SyncOutcome {
        let observed = ObservedPod::absent(PodRef::of(pod), Ticket(1));
        self.sync_seen(pod, &observed, &Verdicts::new(), &[]).await
    }

    pub async fn sync_with(
        &self,
        pod: &Pod,
        verdicts: &Verdicts,
        volumes: &[VolumeSource],
    ) -> SyncOutcome {
        self.sync_seen(pod, &self.observed(pod), verdicts, volumes)
            .await
    }

    pub async fn sync_seen(
        &self,
        pod: &Pod,
        observed: &ObservedPod,
        verdicts: &Verdicts,
        volumes: &[VolumeSource],
    ) -> SyncOutcome {
        let sizes = Sizes::default();
        self.sync_sized(pod, observed, verdicts, volumes, sizes)
            .await
    }

    pub async fn sync_sized(
        &self,
        pod: &Pod,
        observed: &ObservedPod,
        verdicts: &Verdicts,
        volumes: &[VolumeSource],
        sizes: Sizes<'_>,
    ) -> SyncOutcome {
        let pod = Arc::new(pod.clone());
        let inputs = SyncInputs {
            pod: &pod,
            observed,
            verdicts,
            volumes,
            cgroup_parent: "/kubepods/besteffort/podu",
            sizes,
            on_sandbox_ready: &|_| {},
            on_killed: &|| Box::pin(std::future::ready(Ok(Arc::new(self.observed(&pod))))),
            cancel: &tokio_util::sync::CancellationToken::new(),
        };
        self.runtime.sync_pod(inputs).await
    }

    /// Events since they were last asked for: `Reason: message`.
    pub fn events(&self) -> Vec<String> {
        let mut told = self.told.lock().unwrap();
        let new = self.recorder.since(*told);
        *told = new.last().map_or(*told, |e| e.sequence);
        new.into_iter()
            .map(|e| format!("{}: {}", e.reason, e.message))
            .collect()
    }
}

pub fn container(name: &str) -> Container {
    Container {
        name: name.into(),
        image: Some("img:1".into()),
        image_pull_policy: Some("IfNotPresent".into()),
        ..Container::default()
    }
}

pub fn sidecar(name: &str) -> Container {
    Container {
        restart_policy: Some("Always".into()),
        ..container(name)
    }
}

pub fn pod(init: Vec<Container>, regular: Vec<Container>) -> Pod {
    let mut pod = Pod {
        spec: Some(PodSpec {
            init_containers: Some(init),
            containers: regular,
            dns_policy: Some("Default".into()),
            termination_grace_period_seconds: Some(30),
            ..PodSpec::default()
        }),
        ..Pod::default()
    };
    pod.metadata.name = Some("web".into());
    pod.metadata.namespace = Some("ns".into());
    pod.metadata.uid = Some("u".into());
    pod
}

pub fn with_hooks(
    container: Container,
    post_start: Option<LifecycleHandler>,
    pre_stop: Option<LifecycleHandler>,
) -> Container {
    Container {
        lifecycle: Some(Lifecycle {
            post_start,
            pre_stop,
            ..Lifecycle::default()
        }),
        ..container
    }
}

pub fn exec(command: &str) -> LifecycleHandler {
    LifecycleHandler {
        exec: Some(krablet_pod::api::ExecAction {
            command: Some(command.split(' ').map(String::from).collect()),
        }),
        ..LifecycleHandler::default()
    }
}
