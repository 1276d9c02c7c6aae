//! The simulated node: what an agent is configured with and built over. It outlives agents.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

use async_trait::async_trait;
use jiff::SignedDuration;
use jiff::tz::TimeZone;
use k8s_openapi::ByteString;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use krablet_agent::{AgentConfig, AgentDeps, DoorDeps};
use krablet_core::admission::NodeView;
use krablet_core::backoff::BackoffLimits;
use krablet_core::gc::GcPolicy;
use krablet_core::logs::RotationPolicy;
use krablet_core::restart::RestartGates;
use krablet_core::worker::Periods;
use krablet_events::Recorder;
use krablet_linux::fake::{FakeTools, MemoryCgroups, MemoryFiles};
use krablet_linux::{Cgroups, EntryKind, HostIps, Mounts, WallClock};
use krablet_objects::{FakeObjects, FakeServices};
use krablet_observer::ObserverConfig;
use krablet_pod::api::{ConfigMap, Secret};
use krablet_pod::cgroups::CgroupLimits;
use krablet_pod::marks::PodSource;
use krablet_pod::paths::{self, RootDir};
use krablet_pod::qos::QosClass;
use krablet_pod::{ContainerId, PodUid, Quantity};
use krablet_runtime::rotation::RotationConfig;
use krablet_runtime::{
    DnsSettings, ImageSettings, NodeFacts as RuntimeNode, Paths, ResourceSettings, RuntimeConfig,
};
use krablet_volumes::VolumesConfig;

use crate::clock::SimClock;
use crate::laws::Leftovers;
use crate::mutation::Mutation;
use crate::net::SimNet;
use crate::pods;
use crate::runtime::{SimOptions, SimRuntime};
use crate::world::World;

pub(crate) const ROOT: &str = "/var/lib/kubelet";
pub(crate) const PODS_DIR: &str = "/var/lib/kubelet/pods";
pub(crate) const NODE_NAME: &str = "node";
const POD_LOGS: &str = "/var/log/pods";

pub(crate) fn sources() -> BTreeSet<PodSource> {
    BTreeSet::from([PodSource::File, PodSource::Api])
}

pub(crate) struct Node {
    pub(crate) runtime: SimRuntime,
    pub(crate) files: MemoryFiles,
    pub(crate) cgroups: SimCgroups,
    pub(crate) clock: SimClock,
    pub(crate) objects: FakeObjects,
    net: SimNet,
    world: Arc<World>,
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node").finish_non_exhaustive()
    }
}

impl Node {
    pub(crate) fn new(world: &Arc<World>, clock: SimClock, deadline: Duration) -> Self {
        let files = MemoryFiles::new(Arc::new(clock.clone()));
        let runtime = SimRuntime::new(SimOptions {
            clock: Arc::new(clock.clone()),
            weather: world.clone(),
            files: Some(files.clone()),
            deadline,
        });
        let (watcher, seen) = (Arc::downgrade(world), runtime.clone());
        files.set_faults(move |call, path| {
            let world = watcher.upgrade()?;
            seen.with_machine(|machine| world.file_fault(machine, call, path))
        });
        let (watcher, seen) = (world.clone(), runtime.clone());
        let net = SimNet::new(Arc::new(move |ip| {
            seen.with_machine(|machine| watcher.net_answers(machine, ip))
        }));
        let cgroups = SimCgroups {
            cgroups: world.cgroups.clone(),
            runtime: runtime.clone(),
            world: world.clone(),
        };
        Self {
            runtime,
            files,
            cgroups,
            clock,
            objects: objects(),
            net,
            world: world.clone(),
        }
    }

    /// The world as the agent with this number sees it.
    pub(crate) fn deps(&self, caller: u64) -> AgentDeps {
        let runtime = Arc::new(self.runtime.called_by(caller));
        let clock = match self.world.mutation() {
            Some(Mutation::FastClock) => self.clock.ahead(SignedDuration::from_hours(1)),
            _ => self.clock.clone(),
        };
        AgentDeps {
            images: runtime.clone(),
            runtime,
            files: Arc::new(self.files.clone()),
            trees: Arc::new(self.files.clone()),
            mounts: Arc::new(self.files.mounts()),
            tools: Arc::new(FakeTools::default()),
            cgroups: Arc::new(self.cgroups.clone()),
            net: Arc::new(self.net.clone()),
            clock: Arc::new(clock.clone()),
            recorder: Recorder::new(move || clock.now()),
            referents: self.objects.referents(&FakeServices::new(Vec::new())),
            image_deps: krablet_runtime::ImageDeps {
                keychain: Arc::default(),
                space: Arc::new(krablet_linux::fake::MemorySpace::default()),
            },
            door: DoorDeps::of(roomy_node()),
            cluster: None,
        }
    }

    /// What a reboot takes with it, beside all processes.
    pub(crate) async fn lose_memory(&self) {
        let mounts = self.files.mounts();
        // A failure leaves a mount that a real reboot would not: the harder case for the agent.
        for mount in mounts.below(Path::new(ROOT)).await.unwrap_or_default() {
            let _ = mounts.unmount(&mount.point).await;
        }
        self.cgroups.clear().await;
    }

    pub(crate) async fn leftovers(&self) -> Leftovers {
        let mounts = self.files.mounts().below(Path::new(PODS_DIR)).await;
        let mounts = mounts.unwrap_or_default().into_iter();
        let mut left = Leftovers {
            cgroups: self.cgroups.uids().await,
            mounts: mounts.filter_map(|m| pod_of_path(&m.point)).collect(),
            ..Leftovers::default()
        };
        for path in self.files.paths() {
            let name = path.file_name().and_then(|n| n.to_str());
            match (path.parent().and_then(Path::to_str), name) {
                (Some(PODS_DIR), Some(name)) => left.directories.push(name.into()),
                (Some(POD_LOGS), Some(name)) => left.logs.extend(paths::uid_of_log_dir(name)),
                _ => {}
            }
        }
        left
    }
}

/// What pods refer to.
fn objects() -> FakeObjects {
    let objects = FakeObjects::new();
    let named = |name: &str| ObjectMeta {
        name: Some(name.to_owned()),
        namespace: Some(pods::NAMESPACE.to_owned()),
        ..ObjectMeta::default()
    };
    objects.put_config_map(ConfigMap {
        metadata: named(pods::SETTINGS),
        data: Some([("key".to_owned(), "value".to_owned())].into()),
        ..ConfigMap::default()
    });
    objects.put_secret(Secret {
        metadata: named(pods::KEYS),
        data: Some([("word".to_owned(), ByteString(b"hidden".to_vec()))].into()),
        ..Secret::default()
    });
    objects
}

/// The pod whose directory a path is in.
pub(crate) fn pod_of_path(path: &Path) -> Option<PodUid> {
    let below = path.strip_prefix(PODS_DIR).ok()?;
    let first = below.components().next()?;
    first.as_os_str().to_str().map(PodUid::from)
}

/// Cgroups that cannot be removed while something is in them.
#[derive(Clone)]
pub(crate) struct SimCgroups {
    cgroups: MemoryCgroups,
    runtime: SimRuntime,
    world: Arc<World>,
}

impl SimCgroups {
    async fn uids(&self) -> Vec<PodUid> {
        let all = self.cgroups.list_pods().await.unwrap_or_default();
        all.into_iter().map(|(uid, _)| uid).collect()
    }

    async fn clear(&self) {
        for (uid, qos) in self.cgroups.list_pods().await.unwrap_or_default() {
            let _ = self.cgroups.remove(&uid, qos).await;
        }
    }
}

#[async_trait]
impl Cgroups for SimCgroups {
    fn cgroup_parent(&self, uid: &PodUid, qos: QosClass) -> String {
        self.cgroups.cgroup_parent(uid, qos)
    }

    async fn create(&self, uid: &PodUid, qos: QosClass, limits: &CgroupLimits) -> io::Result<()> {
        self.cgroups.create(uid, qos, limits).await
    }

    async fn limits(&self, uid: &PodUid, qos: QosClass) -> io::Result<Option<CgroupLimits>> {
        self.cgroups.limits(uid, qos).await
    }

    async fn update(&self, uid: &PodUid, qos: QosClass, limits: &CgroupLimits) -> io::Result<()> {
        self.cgroups.update(uid, qos, limits).await
    }

    async fn memory_used(
        &self,
        uid: &PodUid,
        qos: QosClass,
        container: Option<&ContainerId>,
    ) -> io::Result<Option<u64>> {
        self.cgroups.memory_used(uid, qos, container).await
    }

    async fn limit_class(&self, qos: QosClass, limits: &CgroupLimits) -> io::Result<()> {
        self.cgroups.limit_class(qos, limits).await
    }

    async fn exists(&self, uid: &PodUid, qos: QosClass) -> io::Result<bool> {
        self.cgroups.exists(uid, qos).await
    }

    async fn remove(&self, uid: &PodUid, qos: QosClass) -> io::Result<()> {
        self.world.note(format_args!("remove cgroup of {uid}"));
        if self.runtime.with_machine(|m| m.is_alive(uid)) {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        if self.world.mutation() == Some(Mutation::LeakCgroup) {
            return Ok(());
        }
        self.cgroups.remove(uid, qos).await
    }

    async fn list_pods(&self) -> io::Result<Vec<(PodUid, QosClass)>> {
        self.cgroups.list_pods().await
    }
}

/// A node on which there is room for every pod.
pub fn roomy_node() -> NodeView {
    let plenty = ["cpu", "memory", "ephemeral-storage", "pods"];
    let plenty = plenty.map(|name| (name.to_owned(), Quantity::from_millis(1 << 50)));
    NodeView {
        name: NODE_NAME.to_owned(),
        allocatable: plenty.into(),
        os: "linux".to_owned(),
        ..NodeView::default()
    }
}

pub(crate) fn agent_config(seed: u64) -> AgentConfig {
    let root = RootDir::new(ROOT);
    let host = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
    AgentConfig {
        observer: ObserverConfig::default(),
        runtime: RuntimeConfig {
            paths: Paths {
                root: root.clone(),
                pod_logs: POD_LOGS.into(),
                container_logs: "/var/log/containers".into(),
                node_hosts: "/etc/hosts".into(),
            },
            dns: DnsSettings::default(),
            node: RuntimeNode {
                name: NODE_NAME.to_owned(),
                host_ips: HostIps::fixed([host]),
                memory_capacity: 8 << 30,
                ..RuntimeNode::default()
            },
            resources: ResourceSettings::default(),
            images: ImageSettings::default(),
            seccomp_default: false,
            restart_back_off: BackoffLimits::of_restarts(Some(Duration::from_secs(60)), false),
            restart_rules: true,
            restart_all: true,
            stop_signals: false,
            env_files: true,
            starts_in_flight: 4,
            seed,
        },
        volumes: VolumesConfig::new(root),
        periods: Periods::default(),
        gc: GcPolicy::default(),
        rotation: RotationConfig {
            policy: RotationPolicy {
                max_size: 10 << 20,
                max_files: 5,
            },
            period: Duration::from_secs(10),
            workers: 1,
            time_zone: TimeZone::UTC,
        },
        sources: sources(),
        runtime_name: "sim".to_owned(),
        gates: RestartGates::default(),
        seed,
    }
}

/// The log directories of pods, made by whoever sets the node up.
pub(crate) fn prepare(files: &MemoryFiles) -> io::Result<()> {
    files.put(Path::new(POD_LOGS), EntryKind::Directory)?;
    files.put(Path::new(PODS_DIR), EntryKind::Directory)?;
    files.put_file(Path::new("/etc/hosts"), b"127.0.0.1 localhost\n")
}

#[cfg(test)]
mod tests {
    use krablet_agent::{Agent, AgentHandle};
    use krablet_pod::api::{ConfigMap, ContainerState, Pod};
    use krablet_sources::SourceSet;
    use rand::SeedableRng as _;
    use rand::rngs::StdRng;
    use tokio::task::JoinSet;
    use tokio::time::{sleep, timeout};

    use super::*;
    use crate::laws::Laws;
    use crate::pods::SERVE;
    use crate::story::Severity;
    use crate::trace::Trace;

    const NEVER: Duration = Duration::from_secs(1 << 20);

    fn calm_node() -> Node {
        let severity = Severity {
            calls: 0.0,
            files: 0.0,
            events: 0.0,
            answers: 0.0,
            crashes: 0.0,
            api: 0.0,
        };
        let clock = SimClock::start();
        let world = Arc::new(World::new(
            Trace::new(false),
            Laws::new(sources(), clock.clone()),
            StdRng::seed_from_u64(1),
            severity,
            NEVER,
            None,
        ));
        Node::new(&world, clock, NEVER)
    }

    async fn until(handle: &AgentHandle, what: impl Fn(&ContainerState) -> bool) {
        let reached = async {
            loop {
                let status = handle.status.status(&"u".into());
                let containers = status.and_then(|s| s.container_statuses.clone());
                let state = containers.and_then(|c| c.first()?.state.clone());
                if state.is_some_and(|s| what(&s)) {
                    return;
                }
                sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(NEVER / 2, reached).await.unwrap();
    }

    /// Nobody looks at the pod again by himself: only the object can have woken it.
    #[tokio::test(start_paused = true)]
    async fn a_pod_that_lacks_an_object_is_woken_when_it_comes() {
        let node = calm_node();
        prepare(&node.files).unwrap();
        node.runtime.load_image(&format!("{SERVE}:1"));
        let mut config = agent_config(1);
        config.sources = BTreeSet::from([PodSource::File]);
        config.periods = Periods {
            resync: NEVER,
            error: NEVER,
            network: NEVER,
            first_retry: NEVER,
        };
        let (agent, handle) = Agent::build(config, node.deps(1));
        let mut tasks = JoinSet::new();
        tasks.spawn(agent.run());
        let pod: Pod = serde_json::from_value(serde_json::json!({
            "metadata": {
                "name": "p", "namespace": "ns", "uid": "u",
                "annotations": {"kubernetes.io/config.source": "file"},
            },
            "spec": {"nodeName": NODE_NAME, "dnsPolicy": "Default", "containers": [{
                "name": "c",
                "image": format!("{SERVE}:1"),
                "imagePullPolicy": "IfNotPresent",
                "env": [{"name": "X", "valueFrom": {"configMapKeyRef": {"name": "cfg", "key": "k"}}}],
            }]},
        }))
        .unwrap();
        let set = |pods| SourceSet {
            source: PodSource::File,
            pods,
            restored: false,
        };
        handle.sets.send(set(vec![Arc::new(pod)])).await.unwrap();
        until(&handle, |state| {
            let waiting = state.waiting.as_ref();
            let message = waiting.and_then(|w| w.message.as_deref());
            message == Some("configmap \"cfg\" not found")
        })
        .await;
        let mut object = ConfigMap::default();
        object.metadata.namespace = Some("ns".to_owned());
        object.metadata.name = Some("cfg".to_owned());
        object.data = Some([("k".to_owned(), "v".to_owned())].into());
        node.objects.put_config_map(object);
        until(&handle, |state| state.running.is_some()).await;
        // Once it has ended, nothing is kept ready for it.
        assert_eq!(node.objects.wanted().len(), 1);
        handle.sets.send(set(Vec::new())).await.unwrap();
        let forgotten = async {
            while !node.objects.wanted().is_empty() {
                sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(NEVER / 2, forgotten).await.unwrap();
    }
}
