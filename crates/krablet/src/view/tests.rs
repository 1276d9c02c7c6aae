//! The view of an agent that runs in a simulated world.

use std::net::Ipv4Addr;
use std::path::Path;

use krablet_agent::{Agent, AgentConfig, fake};
use krablet_config::FeatureGates;
use krablet_linux::fake::MemoryFiles;
use krablet_linux::{CgroupVersion, EntryKind, HostIps};
use krablet_manifest::{Origin, Place};
use krablet_metrics::exposition;
use krablet_pod::marks::PodSource;
use krablet_pod::paths::RootDir;
use krablet_runtime::{NodeFacts as RuntimeNode, Paths, RuntimeConfig};
use krablet_sim::{SimClock, SimNet, SimOptions, SimRuntime};
use krablet_sources::SourceSet;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::*;

const MANIFEST: &str = "
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: ns}
spec:
  containers:
  - name: a
    image: img:1
    readinessProbe: {tcpSocket: {port: 80}, periodSeconds: 1}
  - name: b
    image: img:1
";

struct World {
    view: AgentView,
    handle: AgentHandle,
    _tasks: JoinSet<()>,
}

fn world() -> World {
    let clock = SimClock::start();
    let files = MemoryFiles::new(Arc::new(clock.clone()));
    for directory in ["/logs/pods", "/logs/containers", "/root/pods"] {
        files
            .put(Path::new(directory), EntryKind::Directory)
            .unwrap();
    }
    files.put_file(Path::new("/etc/hosts"), b"").unwrap();
    let runtime = Arc::new(SimRuntime::new(SimOptions::calm(Arc::new(clock.clone()))));
    let deps = fake::deps(
        "node",
        runtime.clone(),
        runtime,
        &files,
        Arc::new(SimNet::new(Arc::new(|_| true))),
        Arc::new(clock.clone()),
    );
    let recorder = deps.recorder.clone();
    let (agent, handle) = Agent::build(agent_config(), deps);
    let mut tasks = JoinSet::new();
    tasks.spawn(agent.run());
    let view = AgentView::new(
        handle.clone(),
        recorder,
        Arc::new(clock),
        CallLog::default(),
        facts(),
        &KubeletConfiguration::default(),
    );
    World {
        view,
        handle,
        _tasks: tasks,
    }
}

fn facts() -> Facts {
    Facts {
        node_name: "node".into(),
        cgroup_version: CgroupVersion::V2,
        losing_support: None,
        gates: FeatureGates::defaults(),
    }
}

fn agent_config() -> AgentConfig {
    AgentConfig::new(RuntimeConfig {
        node: RuntimeNode {
            host_ips: HostIps::fixed([Ipv4Addr::LOCALHOST.into()]),
            ..RuntimeNode::default()
        },
        ..RuntimeConfig::new(Paths {
            root: RootDir::new("/root"),
            pod_logs: "/logs/pods".into(),
            container_logs: "/logs/containers".into(),
            node_hosts: "/etc/hosts".into(),
        })
    })
}

impl World {
    async fn want(&self, pods: Vec<Arc<Pod>>) {
        let set = SourceSet {
            source: PodSource::File,
            pods,
            restored: false,
        };
        self.handle.sets.send(set).await.unwrap();
    }

    /// Waits until a scrape holds these lines.
    async fn eventually(&self, scrape: impl AsyncFn(&AgentView) -> String, lines: &[&str]) {
        let mut text = String::new();
        let mut missing = Vec::new();
        let mut wait = async || loop {
            text = scrape(&self.view).await;
            exposition::parse(&text).unwrap();
            let told = |line: &str| text.lines().any(|l| l == line);
            missing = lines.iter().filter(|l| !told(l)).collect();
            if missing.is_empty() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        };
        let waited = timeout(Duration::from_secs(120), wait()).await;
        assert!(waited.is_ok(), "{missing:#?} not in\n{text}");
    }
}

fn pods() -> Vec<Arc<Pod>> {
    decoded(MANIFEST)
}

fn decoded(manifest: &str) -> Vec<Arc<Pod>> {
    let origin = Origin {
        place: Place::File("/manifests/web.yaml".into()),
        node_name: "node".into(),
        references: krablet_manifest::References::None,
    };
    let decoded = krablet_manifest::decode(manifest.as_bytes(), &origin).unwrap();
    decoded.pods.into_iter().map(Into::into).collect()
}

#[tokio::test(start_paused = true)]
async fn a_pod_s_life_is_counted() {
    let world = world();
    world.want(pods()).await;
    let running = [
        "kubelet_running_pods 1",
        "kubelet_running_containers{container_state=\"running\"} 2",
        "kubelet_desired_pods{static=\"true\"} 1",
        "kubelet_active_pods{static=\"true\"} 1",
        "kubelet_working_pods{config=\"desired\",lifecycle=\"sync\",static=\"true\"} 1",
        "kubelet_started_pods_total 1",
        "kubelet_started_pods_errors_total 0",
        "kubelet_started_containers_total{container_type=\"container\"} 2",
        "kubelet_containers_per_pod_count_sum 2",
        "kubelet_containers_per_pod_count_count 1",
        "kubelet_pod_worker_start_duration_seconds_count 1",
        "kubelet_pod_start_duration_seconds_count 1",
        "kubelet_pod_start_total_duration_seconds_count 1",
        "kubelet_run_podsandbox_duration_seconds_count{runtime_handler=\"\"} 1",
        "krablet_audit_discrepancies_total 0",
    ];
    world
        .eventually(async |view: &AgentView| view.metrics().await, &running)
        .await;
    let probed = "prober_probe_duration_seconds_count{container=\"a\",namespace=\"ns\",pod=\"web-node\",probe_type=\"Readiness\"} 3";
    let probes = async |view: &AgentView| view.probe_metrics();
    world.eventually(probes, &[probed]).await;

    world.want(Vec::new()).await;
    let gone = [
        "kubelet_running_pods 0",
        "kubelet_running_containers{container_state=\"running\"} 0",
        "kubelet_desired_pods{static=\"true\"} 0",
        "kubelet_active_pods{static=\"true\"} 0",
        "kubelet_working_pods{config=\"desired\",lifecycle=\"sync\",static=\"true\"} 0",
        "kubelet_working_pods{config=\"orphan\",lifecycle=\"terminating\",static=\"true\"} 0",
        "kubelet_pod_worker_duration_seconds_count{operation_type=\"terminated\"} 1",
    ];
    world
        .eventually(async |view: &AgentView| view.metrics().await, &gone)
        .await;
    assert!(!world.view.probe_metrics().contains("prober_"));
}

/// One that takes its time to end.
const SLOW: &str = "
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: ns}
spec:
  terminationGracePeriodSeconds: 60
  containers:
  - name: a
    image: img:1
    lifecycle: {preStop: {sleep: {seconds: 20}}}
";

impl World {
    /// The table of `krablet pods`: name, UID and status of each.
    fn table(&self) -> Vec<(String, String, String)> {
        let (pods, ending) = (self.view.pods(), self.view.ending());
        let rows = krablet_server::pod_rows(&pods, &ending, self.view.events(), self.view.now());
        let told = rows.into_iter().map(|r| (r.name, r.uid, r.status));
        told.collect()
    }

    async fn shows(&self, expected: &[(&Pod, &str)]) {
        let told = |(pod, status): &(&Pod, &str)| {
            let uid = pod.metadata.uid.clone().unwrap();
            ("web-node".to_owned(), uid, (*status).to_owned())
        };
        let expected: Vec<_> = expected.iter().map(told).collect();
        let mut last = Vec::new();
        let mut wait = async || loop {
            last = self.table();
            if last == expected {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        };
        let waited = timeout(Duration::from_secs(120), wait()).await;
        assert!(waited.is_ok(), "{last:#?} is not {expected:#?}");
    }
}

/// A static pod has no time of deletion; it is in the table all the same until it has ended, above its successor.
#[tokio::test(start_paused = true)]
async fn pods_that_end_are_in_the_table_and_not_in_the_list() {
    let world = world();
    let first = decoded(SLOW);
    let second = decoded(&SLOW.replace("img:1", "img:2"));
    world.want(first.clone()).await;
    world.shows(&[(&first[0], "Running")]).await;

    let mut ends = world.view.ends().unwrap();
    world.want(second.clone()).await;
    let both = [(&*first[0], "Terminating"), (&*second[0], "Pending")];
    world.shows(&both).await;
    assert_eq!(world.view.pods().len(), 1);
    // It is there as long as its hook runs.
    tokio::time::sleep(Duration::from_secs(15)).await;
    assert_eq!(world.table().len(), 2);
    ends.mark_unchanged();
    world.shows(&[(&second[0], "Running")]).await;
    assert!(
        ends.has_changed().unwrap(),
        "tables that are watched follow"
    );

    world.want(Vec::new()).await;
    world.shows(&[(&second[0], "Terminating")]).await;
    assert_eq!(world.view.pods(), Vec::new());
    world.shows(&[]).await;
}

/// Five minutes, or two sync periods where these are longer.
#[tokio::test(start_paused = true)]
async fn a_sync_loop_that_does_not_turn_is_told() {
    let world = world();
    for (sync, limit) in [("1m", 300), ("2m30s", 300), ("10m", 1200)] {
        let mut config = KubeletConfiguration::default();
        config.sources.sync_frequency = sync.parse().unwrap();
        let stuck = watch::Sender::new(tokio::time::Instant::now());
        let handle = AgentHandle {
            turn: stuck.subscribe(),
            ..world.handle.clone()
        };
        let view = AgentView::new(
            handle,
            world.view.recorder.clone(),
            world.view.clock.clone(),
            CallLog::default(),
            facts(),
            &config,
        );
        let failing = || {
            let failing = view.failing_checks().into_iter();
            failing.map(|(name, _)| name).collect::<Vec<_>>()
        };
        tokio::time::advance(Duration::from_secs(limit)).await;
        assert_eq!(failing(), [""; 0], "{sync}");
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(failing(), ["syncloop"], "{sync}");
        stuck.send_replace(tokio::time::Instant::now());
        assert_eq!(failing(), [""; 0], "{sync}: it turns again");
    }
}
