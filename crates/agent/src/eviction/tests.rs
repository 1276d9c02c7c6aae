//! Evictions as the sync loop carries them out. What the steps do is told to the workers by hand:
//! nothing here reaches a runtime.

use std::time::Duration;

use krablet_core::worker::{Outcome, UpdateKind};
use krablet_cri::{CallLog, Deadlines, Endpoint, ImageClient, RuntimeClient};
use krablet_events::Recorder;
use krablet_linux::fake::{FixedClock, MemoryFiles};
use krablet_metrics::Page;
use krablet_net::HostNet;
use krablet_pod::api::Pod;
use krablet_pod::paths::RootDir;
use krablet_runtime::{Paths, RuntimeConfig};
use serde_json::json;
use tokio::time::Instant;

use super::*;
use crate::{Agent, AgentConfig, AgentDeps, AgentHandle, fake};

const UID: &str = "u";
const NODE: &str = "node";

struct Bench {
    sync_loop: SyncLoop,
    handle: AgentHandle,
    recorder: Recorder,
    /// What the loop talks to is there, and silent.
    _agent: AgentRest,
}

type AgentRest = (krablet_observer::Observer, krablet_probes::Probes);

impl Bench {
    /// A node with one pod that a worker has taken up.
    fn with_pod() -> Self {
        let deps = deps();
        let recorder = deps.recorder.clone();
        let (agent, handle) = Agent::build(config(), deps);
        let mut bench = Self {
            sync_loop: agent.sync_loop,
            handle,
            recorder,
            _agent: (agent.observer, agent.probes),
        };
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "ns", "uid": UID},
            "spec": {
                "nodeName": NODE,
                "terminationGracePeriodSeconds": 30,
                "containers": [{"name": "c", "image": "img:1"}],
            },
        }))
        .unwrap();
        let pod = Arc::new(pod);
        bench.sync_loop.pod_wanted(&pod, UpdateKind::Create);
        assert_eq!(bench.stage(), Some(Stage::Sync));
        bench
    }

    fn stage(&self) -> Option<Stage> {
        self.sync_loop.workers.stage(&UID.into())
    }

    fn evict(&mut self, message: &str) {
        self.sync_loop.evict(&Eviction {
            pod: UID.into(),
            why: Exceeded {
                signal: "ephemeralpodfs.limit",
                message: message.to_owned(),
            },
        });
    }

    /// The step in flight has ended so.
    fn step_ends(&mut self, outcome: Outcome) {
        let now = self.sync_loop.parts.mono.now();
        let workers = &mut self.sync_loop.workers;
        let effects = workers.completed(&UID.into(), outcome, now, 0.0);
        self.sync_loop.carry_out(effects);
    }

    /// Message and number of the events with this reason.
    fn events(&self, reason: &str) -> Vec<(String, u32)> {
        let events = self.recorder.since(0).into_iter();
        let same = events.filter(|e| e.reason == reason);
        same.map(|e| (e.message, e.count)).collect()
    }

    fn counted(&self) -> Vec<String> {
        let mut page = Page::default();
        self.handle.metrics.put_on(&mut page);
        let text = page.render();
        let lines = text.lines().filter(|l| l.starts_with("kubelet_evictions{"));
        lines.map(str::to_owned).collect()
    }
}

fn deps() -> AgentDeps {
    let endpoint = Endpoint::parse("unix:///nobody/listens/here").unwrap();
    let (deadlines, log) = (Deadlines::default(), CallLog::default());
    fake::deps(
        NODE,
        Arc::new(RuntimeClient::new(&endpoint, deadlines, log.clone())),
        Arc::new(ImageClient::new(&endpoint, deadlines, log)),
        &MemoryFiles::default(),
        Arc::new(HostNet::new().unwrap()),
        Arc::new(FixedClock::default()),
    )
}

fn config() -> AgentConfig {
    AgentConfig::new(RuntimeConfig::new(Paths {
        root: RootDir::new("/root"),
        pod_logs: "/logs/pods".into(),
        container_logs: "/logs/containers".into(),
        node_hosts: "/etc/hosts".into(),
    }))
}

const COUNTED: &str = "kubelet_evictions{eviction_signal=\"ephemeralpodfs.limit\"} 1";

#[tokio::test(start_paused = true)]
async fn two_evictions_of_a_pod_are_one() {
    let mut bench = Bench::with_pod();
    bench.evict("too much");
    assert!(matches!(bench.stage(), Some(Stage::Terminating { .. })));
    bench.evict("still too much");
    assert_eq!(bench.events(EVICTED), [("too much".to_owned(), 1)]);
    assert_eq!(bench.counted(), [COUNTED]);
    bench.step_ends(Outcome::Cancelled);
    bench.step_ends(Outcome::Done);
    assert_eq!(bench.stage(), Some(Stage::Terminated));
    bench.evict("too much");
    assert_eq!(bench.events(EVICTED), [("too much".to_owned(), 1)]);
    assert_eq!(bench.counted(), [COUNTED]);
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_ends_already_goes_on_doing_so() {
    let mut bench = Bench::with_pod();
    bench.step_ends(Outcome::Terminal);
    let stage = bench.stage();
    assert!(matches!(stage, Some(Stage::Terminating { .. })));
    bench.evict("too much");
    assert_eq!(bench.stage(), stage);
    assert!(bench.events(EVICTED).is_empty() && bench.counted().is_empty());
    assert_eq!(bench.sync_loop.kill_waits.next(), None);
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_the_runtime_does_not_kill_in_time_is_told_of_once() {
    const EXCEEDED: &str = "ExceededGracePeriod";
    let patience = Duration::from_secs(10);
    // Its containers stop in time, or not.
    for in_time in [true, false] {
        let mut bench = Bench::with_pod();
        bench.evict("too much");
        bench.step_ends(Outcome::Cancelled);
        assert_eq!(bench.sync_loop.next_wake(), Instant::now() + patience);
        tokio::time::advance(patience - Duration::from_millis(1)).await;
        bench.sync_loop.wake_due();
        assert!(bench.events(EXCEEDED).is_empty());
        if in_time {
            bench.step_ends(Outcome::Done);
        }
        tokio::time::advance(patience).await;
        bench.sync_loop.wake_due();
        bench.sync_loop.wake_due();
        let message = "Container runtime did not kill the pod within specified grace period.";
        let expected = [(message.to_owned(), 1)];
        let expected = if in_time { &[][..] } else { &expected };
        assert_eq!(bench.events(EXCEEDED), expected);
        assert!(matches!(
            (in_time, bench.stage()),
            (true, Some(Stage::Terminated)) | (false, Some(Stage::Terminating { .. }))
        ));
    }
}
