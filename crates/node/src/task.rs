//! The node's own life: it registers, tells how it is, and comes back when it is deleted.

use std::sync::Arc;
use std::time::Duration;

use krablet_events::{Kind, Recorder, Subject};
use krablet_kube::Kube;
use krablet_linux::{HostIps, MachineFacts, WallClock};
use krablet_pod::api::{ContainerImage, Node};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::sync::{Notify, watch};
use tracing::debug;

use crate::conditions::{NodeEvent, Pressures};
use crate::config::NodeConfig;
use crate::health::Health;
use crate::host_ips::HostIpWatch;
use crate::reporter::Reporter;
use crate::runtime::RuntimeFacts;
use crate::sight::{NodeWatch, Sight};
use crate::startup::Startup;
use crate::status::{Images, top_images};

/// What changes while the node lives; every change is looked at, at once.
#[derive(Clone)]
pub struct NodeInputs {
    pub health: watch::Receiver<Health>,
    pub runtime: watch::Receiver<Option<RuntimeFacts>>,
    pub pressures: watch::Receiver<Pressures>,
    /// None until it is known what was mounted before this life of the agent.
    pub volumes_in_use: watch::Receiver<Option<Vec<String>>>,
}

pub struct NodeDeps {
    pub kube: Kube,
    pub machine: Arc<dyn MachineFacts>,
    pub images: Arc<dyn Images>,
    pub inputs: NodeInputs,
    pub recorder: Recorder,
    pub clock: Arc<dyn WallClock>,
}

/// The node as others hold it.
#[derive(Clone)]
pub struct NodeHandle {
    node: watch::Receiver<Option<Arc<Node>>>,
    bell: Arc<Notify>,
    host_ips: HostIps,
    synced: watch::Receiver<bool>,
    startup: Startup,
}

impl NodeHandle {
    /// The Node object as last seen; none before that, and while there is none.
    pub fn node(&self) -> watch::Receiver<Option<Arc<Node>>> {
        self.node.clone()
    }

    pub fn current(&self) -> Option<Arc<Node>> {
        self.node.borrow().clone()
    }

    /// Whether it is known if there is a Node object: one was seen, or a list held none.
    pub fn synced(&self) -> watch::Receiver<bool> {
        self.synced.clone()
    }

    /// The addresses pods are told as their host's.
    pub fn host_ips(&self) -> HostIps {
        self.host_ips.clone()
    }

    /// How the node came to be.
    pub fn startup(&self) -> Startup {
        self.startup.clone()
    }

    /// Something the status tells of may have changed: it is computed now.
    pub fn ring(&self) {
        self.bell.notify_one();
    }
}

pub struct NodeTask {
    watch: NodeWatch,
    reporter: Reporter,
    images: ImageWatch,
    host_ips: HostIpWatch,
    register: bool,
}

impl NodeTask {
    pub fn build(config: NodeConfig, deps: NodeDeps) -> (Self, NodeHandle) {
        let mut dice = StdRng::seed_from_u64(config.seed);
        let sight = Arc::new(Sight::new());
        let bell = Arc::new(Notify::new());
        let images = ImageWatch {
            images: deps.images.clone(),
            period: config.periods.images,
            most: config.max_images,
            list: watch::Sender::new(None),
        };
        let watch_dice = StdRng::seed_from_u64(dice.random());
        let watch = NodeWatch::new(
            deps.kube.clone(),
            config.name.clone(),
            sight.clone(),
            watch_dice,
        );
        let register = config.registration.register;
        let (node, synced) = (sight.subscribe(), sight.synced());
        let list = images.list.subscribe();
        let reporter = Reporter::new(config.clone(), deps, sight, bell.clone(), list, dice);
        let own_ips = reporter.own_ips();
        let (host_ip_watch, host_ips) = HostIpWatch::build(&config, node.clone(), own_ips);
        let handle = NodeHandle {
            node,
            bell,
            host_ips,
            synced,
            startup: reporter.startup(),
        };
        let task = Self {
            watch,
            reporter,
            images,
            host_ips: host_ip_watch,
            register,
        };
        (task, handle)
    }

    pub async fn run(self) {
        let register = self.register;
        tokio::join!(
            self.watch.run(register),
            self.images.run(),
            self.host_ips.run(),
            self.reporter.run(),
        );
    }
}

/// Looks at the images now and then; a runtime that is slow to list them holds up nothing else.
struct ImageWatch {
    images: Arc<dyn Images>,
    period: Duration,
    most: Option<usize>,
    list: watch::Sender<Option<Vec<ContainerImage>>>,
}

impl ImageWatch {
    async fn run(self) {
        loop {
            match self.images.images().await {
                Ok(images) => {
                    self.list.send_replace(Some(top_images(images, self.most)));
                }
                Err(error) => debug!(err = error, "Cannot list the images"),
            }
            tokio::time::sleep(self.period).await;
        }
    }
}

pub(crate) fn record(recorder: &Recorder, events: Vec<NodeEvent>) {
    for event in events {
        match event.kind {
            Kind::Normal => recorder.normal(Subject::Node, event.reason, event.message),
            Kind::Warning => recorder.warning(Subject::Node, event.reason, event.message),
        }
    }
}
