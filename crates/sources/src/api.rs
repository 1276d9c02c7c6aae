//! The API server as a source: the pods bound to this node.

use std::sync::Arc;

use async_trait::async_trait;
use krablet_checkpoint::{DesiredPods, Saver};
use krablet_core::merge;
use krablet_kube::{Api, Reach, Reflector, ReflectorConfig, Sink, paths};
use krablet_linux::WallClock;
use krablet_pod::api::Pod;
use krablet_pod::marks::{self, PodSource};
use krablet_pod::trim;
use tokio::sync::{mpsc, watch};

use crate::SourceSet;

/// Takes the pods of the API server to the merge, and writes down what it was last told.
pub struct ApiSource {
    sets: mpsc::Sender<SourceSet>,
    /// The node must be known first: who may run here depends on its labels and taints.
    open: watch::Receiver<bool>,
    saver: Option<Saver<DesiredPods>>,
}

impl ApiSource {
    pub fn new(
        sets: mpsc::Sender<SourceSet>,
        open: watch::Receiver<bool>,
        saver: Option<Saver<DesiredPods>>,
    ) -> Self {
        Self { sets, open, saver }
    }

    /// The task that lists and watches, with what it knows of the way to the server.
    pub fn reflector(
        self,
        api: Arc<dyn Api>,
        clock: Arc<dyn WallClock>,
        node_name: &str,
        seed: u64,
    ) -> (Reflector<Pod, Self>, watch::Receiver<Reach>) {
        let config = ReflectorConfig {
            path: paths::PODS.to_owned(),
            query: vec![("fieldSelector", format!("spec.nodeName={node_name}"))],
            slim: Box::new(move |pod, before| slim(pod, before, &*clock)),
            seed,
        };
        let (reflector, reach) = Reflector::new(api, config, self);
        // A list older than what an earlier life of this agent acted on would bring back pods that
        // ended, and take away ones that run.
        (reflector.from_now(), reach)
    }
}

/// The pod as everybody keeps it who keeps it. Marked here and not by the merge, it need not be copied for it there.
fn slim(pod: &mut Pod, before: Option<&Pod>, clock: &dyn WallClock) {
    let seen = before.and_then(|pod| marks::annotation(pod, marks::CONFIG_SEEN));
    let seen = seen.map_or_else(|| clock.now().to_string(), str::to_owned);
    merge::mark(pod, PodSource::Api, &seen);
    trim(pod);
}

#[async_trait]
impl Sink<Pod> for ApiSource {
    async fn set(&mut self, pods: Vec<Arc<Pod>>) {
        if self.open.wait_for(|open| *open).await.is_err() {
            return;
        }
        if let Some(saver) = &self.saver {
            saver.set(DesiredPods { pods: pods.clone() });
        }
        let set = SourceSet {
            source: PodSource::Api,
            pods,
            restored: false,
        };
        // A closed merge means that the agent ends, and with it this task.
        let _ = self.sets.send(set).await;
    }
}
