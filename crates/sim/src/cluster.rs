//! What an agent that belongs to a cluster has beside: the API server, its Node object, a door that
//! remembers, and files in which both memories survive it.

use std::sync::Arc;
use std::time::Duration;

use krablet_agent::{Cluster, DoorDeps, Keepsakes, Offers};
use krablet_checkpoint::{AdmittedPods, Checkpoint, DesiredPods, Saver, State, saver};
use krablet_events::sink::SinkConfig;
use krablet_kube::Kube;
use krablet_pod::api::Node as NodeObject;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::api::ApiServer;
use crate::node::{NODE_NAME, Node, ROOT, roomy_node};

/// How an agent finds the cluster.
pub(crate) struct Joining<'a> {
    pub(crate) server: &'a ApiServer,
    pub(crate) caller: u64,
    pub(crate) seed: u64,
    /// When the Node object is known.
    pub(crate) late: Duration,
}

/// Tasks go with the agent.
pub(crate) async fn join(
    node: &Node,
    joining: Joining<'_>,
    recorder: krablet_events::Recorder,
    tasks: &mut JoinSet<()>,
) -> (Cluster, DoorDeps) {
    let (admitted, admitted_saver) =
        remember::<AdmittedPods>(node, "admitted_pods.json", tasks).await;
    let (desired, desired_saver) = remember::<DesiredPods>(node, "desired_pods.json", tasks).await;
    let (object, known) = watch::channel(None);
    let (open, opened) = watch::channel(false);
    tasks.spawn(async move {
        sleep(joining.late).await;
        object.send_replace(Some(Arc::new(node_object())));
        open.send_replace(true);
        object.closed().await;
    });
    let cluster = Cluster {
        kube: Kube::new(joining.server.client(joining.caller)),
        node_name: NODE_NAME.to_owned(),
        node: known,
        open: opened,
        remembered: desired.pods,
        saver: Some(desired_saver),
        keepsakes: Keepsakes::default(),
        offers: Offers::default(),
        events: SinkConfig {
            node_name: NODE_NAME.to_owned(),
            rate: 50,
            burst: 100,
            seed: joining.seed,
        },
        recorder,
    };
    let door = DoorDeps {
        admitted,
        savers: vec![admitted_saver],
        ..DoorDeps::of(roomy_node())
    };
    (cluster, door)
}

fn node_object() -> NodeObject {
    let mut node = NodeObject::default();
    node.metadata.name = Some(NODE_NAME.to_owned());
    node.metadata.uid = Some("uid-of-the-node".to_owned());
    node
}

async fn remember<T: State + Default>(
    node: &Node,
    name: &str,
    tasks: &mut JoinSet<()>,
) -> (T, Saver<T>) {
    let path = format!("{ROOT}/krablet/{name}");
    let mut file = Checkpoint::<T>::new(Arc::new(node.files.clone()), path);
    let value = file.load().await.valid().unwrap_or_default();
    let (saver, task) = saver(file);
    tasks.spawn(task.run());
    (value, saver)
}
