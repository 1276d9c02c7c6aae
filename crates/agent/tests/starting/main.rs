//! An agent that starts on a node where an earlier one left a pod of which the runtime tells nothing more
//! than that it is there.

// Panicking is how a test fails.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod runtime;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use krablet_agent::{Agent, AgentConfig, AgentHandle, fake};
use krablet_linux::fake::{FixedClock, MemoryFiles};
use krablet_net::HostNet;
use krablet_pod::PodRef;
use krablet_pod::api::Pod;
use krablet_pod::marks::PodSource;
use krablet_pod::paths::RootDir;
use krablet_runtime::{Paths, RuntimeConfig};
use krablet_sources::SourceSet;
use serde_json::json;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use runtime::{NoImages, StuckRuntime};

const NODE: &str = "node";
const STUCK: &str = "left-behind";
/// Less than it takes until the call about the container is given up.
const SOON: Duration = Duration::from_secs(10);
const LONG: Duration = Duration::from_secs(600);

struct Bed {
    handle: AgentHandle,
    source: PodSource,
    /// UIDs of the pods that are to get a sandbox.
    sandboxes: mpsc::UnboundedReceiver<String>,
    _tasks: JoinSet<()>,
}

impl Bed {
    /// Starts beside the stuck pod `ns/web`, with pods from this source only.
    fn start(source: PodSource) -> Self {
        let (asked, sandboxes) = mpsc::unbounded_channel();
        let runtime = StuckRuntime {
            stuck: PodRef::new(STUCK, "ns", "web"),
            asked,
        };
        let deps = fake::deps(
            NODE,
            Arc::new(runtime),
            Arc::new(NoImages),
            &MemoryFiles::default(),
            Arc::new(HostNet::new().unwrap()),
            Arc::new(FixedClock::default()),
        );
        let mut config = AgentConfig::new(RuntimeConfig::new(Paths {
            root: RootDir::new("/root"),
            pod_logs: "/logs/pods".into(),
            container_logs: "/logs/containers".into(),
            node_hosts: "/etc/hosts".into(),
        }));
        config.sources = BTreeSet::from([source]);
        let (agent, handle) = Agent::build(config, deps);
        let mut tasks = JoinSet::new();
        tasks.spawn(agent.run());
        Self {
            handle,
            source,
            sandboxes,
            _tasks: tasks,
        }
    }

    /// The source speaks.
    async fn want(&self, pods: impl IntoIterator<Item = Pod>) {
        let set = SourceSet {
            source: self.source,
            pods: pods.into_iter().map(Arc::new).collect(),
            restored: false,
        };
        self.handle.sets.send(set).await.unwrap();
    }

    /// The next pod that is to get a sandbox, if there is one in this time.
    async fn starts(&mut self, within: Duration) -> Option<String> {
        timeout(within, self.sandboxes.recv()).await.ok()?
    }

    /// What the only worker is at.
    async fn only_worker(&self) -> &'static str {
        let taken_up = async {
            loop {
                let pods = self.handle.accounts.working_pods(|_| true);
                if let Some((group, _)) = pods.into_iter().find(|(_, count)| *count > 0) {
                    return group.lifecycle;
                }
                sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(SOON, taken_up).await.expect("no worker took it up")
    }
}

fn pod(uid: &str, name: &str, source: PodSource) -> Pod {
    serde_json::from_value(json!({
        "metadata": {
            "name": name, "namespace": "ns", "uid": uid,
            "annotations": {"kubernetes.io/config.source": source.as_str()},
        },
        "spec": {
            "nodeName": NODE,
            "dnsPolicy": "Default",
            "containers": [{"name": "c", "image": "img:1"}],
        },
    }))
    .unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_stuck_pod_delays_no_other_and_nothing_starts_beside_it() {
    let mut bed = Bed::start(PodSource::File);
    let pods = [("new", "web"), ("other", "db")];
    let pods = pods.map(|(uid, name)| pod(uid, name, PodSource::File));
    bed.want(pods).await;
    assert_eq!(bed.starts(SOON).await.as_deref(), Some("other"));
    // It has the name of the one that is stuck, which is not known to have ended.
    assert_eq!(bed.starts(LONG).await, None);
}

#[tokio::test(start_paused = true)]
async fn a_stuck_pod_that_has_ended_by_its_status_is_stopped_first() {
    let bed = Bed::start(PodSource::Api);
    let mut ended = pod(STUCK, "web", PodSource::Api);
    ended.status.get_or_insert_default().phase = Some("Failed".to_owned());
    bed.want([ended]).await;
    assert_eq!(bed.only_worker().await, "terminating");
}
