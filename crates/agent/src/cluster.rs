//! The agent's ties to an API server: its pods come in, statuses, events and mirror pods go out.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use krablet_checkpoint::{DesiredPods as Remembered, Saver, Shelf};
use krablet_events::sink::{Sink, SinkConfig, SinkDeps};
use krablet_kube::{Kube, Reach, Reflector};
use krablet_linux::WallClock;
use krablet_pod::PodUid;
use krablet_pod::api::{Node, Pod};
use krablet_pod::marks::PodSource;
use krablet_runtime::ClassTeller;
use krablet_sources::{ApiSource, SourceSet};
use krablet_status::sender::{ApiPods, Sender, SenderConfig, SenderDeps, SenderHandle};
use krablet_tokens::{KubeIssuer, Tokens};
use krablet_volumes::{ClusterObjects, KubeObjects};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::AgentHandle;
use crate::accounts::Accounts;
use crate::classes::ClassTasks;
use crate::mirrors::Mirrors;
use crate::pod_set::DesiredPods;
use crate::projections::Offers;

/// So long an API server that may be there has for its first word.
const FIRST_WORD: Duration = Duration::from_secs(10);
/// So long one that cannot be reached has to come: on a machine that has just started, the network may be late.
const REACHABLE: Duration = Duration::from_secs(3);

/// What the agent needs of a cluster.
#[derive(Clone)]
pub struct Cluster {
    pub kube: Kube,
    pub node_name: String,
    /// The Node object of this node, once it is known.
    pub node: watch::Receiver<Option<Arc<Node>>>,
    /// Whether pods of the API server may be taken yet.
    pub open: watch::Receiver<bool>,
    /// What the API server wanted when this agent last knew.
    pub remembered: Vec<Arc<Pod>>,
    /// Where that is written down.
    pub saver: Option<Saver<Remembered>>,
    pub keepsakes: Keepsakes,
    pub offers: Offers,
    pub events: SinkConfig,
    pub recorder: krablet_events::Recorder,
}

/// Where things that pods need are kept for a start without an API server.
#[derive(Clone, Default)]
pub struct Keepsakes {
    pub open: Option<Shelf>,
    /// Of what nobody else may see.
    pub secret: Option<Shelf>,
}

pub(crate) struct ClusterTasks {
    pods: Reflector<Pod, ApiSource>,
    reach: watch::Receiver<Reach>,
    remembered: SourceSet,
    sets: mpsc::Sender<SourceSet>,
    sender: Sender,
    sender_handle: SenderHandle,
    sink: Sink,
    mirrors: Mirrors,
    classes: ClassTasks,
}

impl Cluster {
    /// What volumes ask of the API server.
    pub(crate) fn volume_objects(&self) -> Arc<dyn ClusterObjects> {
        Arc::new(KubeObjects {
            kube: self.kube.clone(),
            shelf: self.keepsakes.open.clone(),
        })
    }

    pub(crate) fn tokens(&self, clock: &Arc<dyn WallClock>, seed: u64) -> Tokens {
        let issuer = Arc::new(KubeIssuer(self.kube.clone()));
        Tokens::new(issuer, clock.clone(), seed, self.keepsakes.secret.clone())
    }

    pub(crate) fn build(
        self,
        handle: &AgentHandle,
        sources: &BTreeSet<PodSource>,
        clock: &Arc<dyn WallClock>,
        seed: u64,
        classes: ClassTeller,
        crowds: watch::Receiver<usize>,
    ) -> (ClusterTasks, SenderHandle) {
        let wall = clock.clone();
        let (sender, sender_handle) = krablet_status::sender::build(
            SenderConfig {
                seed,
                ..SenderConfig::default()
            },
            SenderDeps {
                store: handle.status.clone(),
                pods: Arc::new(KnownPods {
                    desired: handle.desired.clone(),
                    accounts: handle.accounts.clone(),
                    sources: sources.clone(),
                }),
                kube: self.kube.clone(),
                clock: Arc::new(move || wall.now()),
            },
        );
        let source = ApiSource::new(handle.sets.clone(), self.open, self.saver);
        let api = self.kube.api().clone();
        let (pods, reach) = source.reflector(api, clock.clone(), &self.node_name, seed);
        let desired = handle.desired.clone();
        let sink = Sink::new(
            self.events,
            SinkDeps {
                recorder: self.recorder,
                kube: self.kube.clone(),
                resource_version: Arc::new(move |uid| {
                    desired.get(uid)?.metadata.resource_version.clone()
                }),
                crowds,
            },
        );
        let shelf = self.keepsakes.open;
        let classes = ClassTasks::build(&self.kube, classes, shelf, seed);
        let tasks = ClusterTasks {
            pods,
            reach,
            remembered: SourceSet {
                source: PodSource::Api,
                pods: self.remembered,
                restored: true,
            },
            sets: handle.sets.clone(),
            sender,
            sender_handle: sender_handle.clone(),
            sink,
            mirrors: Mirrors {
                desired: handle.desired.clone(),
                kube: self.kube,
                node: self.node,
                sources: sources.clone(),
            },
            classes,
        };
        (tasks, sender_handle)
    }
}

impl ClusterTasks {
    pub(crate) fn spawn(self, tasks: &mut JoinSet<()>) {
        let Self {
            pods,
            mut reach,
            remembered,
            sets,
            sender,
            sender_handle,
            sink,
            mirrors,
            classes,
        } = self;
        tasks.spawn(pods.run());
        tasks.spawn(remember(remembered, sets, reach.clone()));
        tasks.spawn(sender.run());
        tasks.spawn(sink.run());
        tasks.spawn(mirrors.run());
        tasks.spawn(classes.run());
        tasks.spawn(async move {
            while reach.changed().await.is_ok() {
                if reach.borrow_and_update().is_reached() {
                    sender_handle.reached();
                }
            }
            std::future::pending().await
        });
    }
}

/// What was true when this agent last lived is asked only if the API server does not tell what is true now: pods may
/// have been deleted since, and their successors run elsewhere. Once it has spoken, the merge takes nothing of this.
async fn remember(
    remembered: SourceSet,
    sets: mpsc::Sender<SourceSet>,
    mut reach: watch::Receiver<Reach>,
) {
    if !remembered.pods.is_empty() {
        let away = |reach: &Reach| reach.error.as_ref().is_some_and(|e| !e.is_answer());
        let stays_away = async {
            let _ = reach.wait_for(away).await;
            tokio::time::sleep(REACHABLE).await;
        };
        let _ = timeout(FIRST_WORD, stays_away).await;
        // A closed merge means that the agent ends, and with it this task.
        let _ = sets.send(remembered).await;
    }
    std::future::pending().await
}

/// What the agent knows of the API server's pods.
struct KnownPods {
    desired: DesiredPods,
    accounts: Accounts,
    sources: BTreeSet<PodSource>,
}

impl ApiPods for KnownPods {
    fn pod(&self, uid: &PodUid) -> Option<Arc<Pod>> {
        self.desired
            .get(uid)
            .filter(|pod| PodSource::of(pod) == Some(PodSource::Api))
    }

    fn mirror_of(&self, static_uid: &PodUid) -> Option<Arc<Pod>> {
        self.desired.mirror_of(static_uid)
    }

    fn could_have_running_containers(&self, uid: &PodUid) -> bool {
        if self.desired.is_refused(uid) {
            return false;
        }
        match self.accounts.may_run(uid) {
            Some(may_run) => may_run,
            None => !self.desired.sources_ready(&self.sources),
        }
    }
}
