//! A node of a cluster: who it is, how it reaches the API server, its Node object and heartbeat.

mod adapters;
mod identity;
mod memory;
mod node;

use std::sync::Arc;

use anyhow::{Context, Result};
use krablet_agent::{AgentHandle, Cluster, DoorDeps, node_view};
use krablet_config::{Gate, Loaded};
use krablet_core::admission::{AdmissionSettings, KernelVersion, NodeView, SysctlAllowlist};
use krablet_core::resize::ResizeSettings;
use krablet_cri::{ImageClient, RuntimeClient, RuntimeService};
use krablet_events::Recorder;
use krablet_events::sink::SinkConfig;
use krablet_identity::rotation::IdentityHandle;
use krablet_kube::Kube;
use krablet_linux::{Files, HostFacts, MachineFacts, WallClock};
use krablet_node::{
    HealthBoard, LeaseConfig, LeaseDeps, LeaseTask, NodeConfig, NodeDeps, NodeHandle, NodeInputs,
    NodeTask, ObserverHealth, RuntimeWatch, RuntimeWatchConfig,
};
use krablet_objects::Referents;
use krablet_pod::api::Node;
use krablet_pod::paths::RootDir;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing::warn;

use crate::parts::Parts;
use crate::referents;

use adapters::{HeldImages, RuntimeReports};

/// What the node is built from, in a cluster or on its own.
pub struct Ground<'a> {
    pub loaded: &'a Loaded,
    pub name: &'a str,
    pub host_ips: &'a [std::net::IpAddr],
    pub root: &'a RootDir,
    pub files: Arc<dyn Files>,
    pub clock: Arc<dyn WallClock>,
    pub recorder: Recorder,
    pub runtime: RuntimeClient,
    pub images: ImageClient,
    pub seed: u64,
}

/// The node's ties to its cluster, not yet running.
pub struct Ties {
    board: HealthBoard,
    node: NodeTask,
    lease: LeaseTask,
    runtime: RuntimeWatch,
    identity: identity::Keeper,
    /// What is counted of the node's certificate, if it has one of its own.
    pub certificate: Option<IdentityHandle>,
    /// What pods refer to.
    pub referents: Referents,
    pod_network: PodNetwork,
    clock: Arc<dyn WallClock>,
}

/// Tells the runtime which addresses the cluster gave to the pods of this node.
struct PodNetwork {
    node: watch::Receiver<Option<Arc<Node>>>,
    runtime: RuntimeClient,
}

impl PodNetwork {
    async fn run(mut self) {
        let mut told = String::new();
        loop {
            let node = self.node.borrow_and_update().clone();
            let spec = node.as_ref().and_then(|node| node.spec.as_ref());
            let ranges = spec.and_then(|s| s.pod_cidrs.as_ref().map(|c| c.join(",")));
            let ranges = ranges.unwrap_or_default();
            if !ranges.is_empty() && ranges != told {
                match self.runtime.update_runtime_config(&ranges).await {
                    Ok(()) => told = ranges,
                    Err(e) => warn!(err = %e, "Could not tell the runtime the addresses of pods"),
                }
            }
            if self.node.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }
}

/// Whether the user wants the node to be part of a cluster.
pub fn is_wanted(loaded: &Loaded) -> bool {
    !loaded.flags.kubeconfig.is_empty() || !loaded.flags.bootstrap_kubeconfig.is_empty()
}

/// A node on its own: the door looks at what the node would tell of itself.
pub async fn alone(ground: &Ground<'_>, parts: &mut Parts) -> Result<DoorDeps> {
    let view = own_view(ground).await?;
    let (admitted, savers) = memory::admitted(ground, &mut parts.savers).await;
    Ok(DoorDeps {
        settings: settings(ground)?,
        admitted,
        savers,
        ..DoorDeps::of(view)
    })
}

/// All that can be wrong with what the user says of a cluster, found before anything else is waited for.
pub struct Invitation {
    identity: identity::Built,
    node: NodeConfig,
    admission: AdmissionSettings,
}

impl Invitation {
    pub fn kube(&self) -> &Kube {
        &self.identity.0
    }
}

pub async fn invitation(ground: &Ground<'_>) -> Result<Invitation> {
    Ok(Invitation {
        identity: identity::build(ground).await?,
        node: node::config(ground)?,
        admission: settings(ground)?,
    })
}

/// A node of a cluster. Nothing is asked of the API server yet.
pub async fn join(
    ground: &Ground<'_>,
    invitation: Invitation,
    parts: &mut Parts,
) -> Result<(Cluster, DoorDeps, Ties)> {
    let Invitation {
        identity: (kube, identity, certificate),
        node: config,
        admission,
    } = invitation;
    let board = HealthBoard::default();
    let (runtime, facts) = RuntimeWatch::build(
        RuntimeWatchConfig::default(),
        Arc::new(RuntimeReports(ground.runtime.clone())),
        ground.clock.clone(),
        board.clone(),
    );
    let registers = config.registration.register;
    let (node, handle) = NodeTask::build(
        config,
        NodeDeps {
            kube: kube.clone(),
            machine: machine(ground),
            images: Arc::new(HeldImages(ground.images.clone())),
            inputs: NodeInputs {
                health: board.subscribe(),
                runtime: facts,
                pressures: watch::Sender::new(Default::default()).subscribe(),
                volumes_in_use: watch::Sender::new(Some(Vec::new())).subscribe(),
            },
            recorder: ground.recorder.clone(),
            clock: ground.clock.clone(),
        },
    );
    let lease = LeaseTask::build(
        LeaseConfig {
            duration_seconds: ground.loaded.config.node.node_lease_duration_seconds,
            seed: ground.seed,
            ..LeaseConfig::new(ground.name)
        },
        LeaseDeps {
            kube: kube.clone(),
            node: handle.node(),
            clock: ground.clock.clone(),
        },
    );
    let (door, open) = door(ground, &handle, registers, admission, parts).await?;
    let cluster = cluster(ground, kube.clone(), &handle, open, parts).await;
    let memory = referents::Memories {
        services: memory::services(ground, &mut parts.savers).await,
        objects: cluster.keepsakes.clone(),
    };
    let referents = referents::of_cluster(ground, &kube, handle.node(), memory, &mut parts.tasks);
    let pod_network = PodNetwork {
        node: handle.node(),
        runtime: ground.runtime.clone(),
    };
    let ties = Ties {
        board,
        pod_network,
        node,
        lease,
        runtime,
        identity,
        certificate,
        referents,
        clock: ground.clock.clone(),
    };
    Ok((cluster, door, ties))
}

async fn cluster(
    ground: &Ground<'_>,
    kube: Kube,
    handle: &NodeHandle,
    open: watch::Receiver<bool>,
    parts: &mut Parts,
) -> Cluster {
    let node = &ground.loaded.config.node;
    let remembered = memory::desired(ground, &mut parts.savers).await;
    let pods = &remembered.value.pods;
    let keepsakes = memory::keepsakes(ground, pods, &mut parts.savers).await;
    Cluster {
        kube,
        node_name: ground.name.to_owned(),
        node: handle.node(),
        open,
        remembered: remembered.value.pods,
        saver: Some(remembered.saver),
        keepsakes,
        events: SinkConfig {
            node_name: ground.name.to_owned(),
            rate: u32::try_from(node.event_record_qps).unwrap_or_default(),
            burst: u32::try_from(node.event_burst).unwrap_or_default(),
            seed: ground.seed,
        },
        recorder: ground.recorder.clone(),
    }
}

/// The door looks at the Node object, and at what the node would tell of itself until there is one.
/// Pods of the API server are taken once it is known.
async fn door(
    ground: &Ground<'_>,
    handle: &NodeHandle,
    registers: bool,
    settings: AdmissionSettings,
    parts: &mut Parts,
) -> Result<(DoorDeps, watch::Receiver<bool>)> {
    let (admitted, savers) = memory::admitted(ground, &mut parts.savers).await;
    let (view, views) = watch::channel(Arc::new(own_view(ground).await?));
    let (open, opened) = watch::channel(!registers);
    let mut node = handle.node();
    parts.tasks.spawn(async move {
        loop {
            let known = node.borrow_and_update().clone();
            if let Some(node) = known {
                view.send_replace(Arc::new(node_view(&node)));
                open.send_replace(true);
            }
            if node.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    });
    let deps = DoorDeps {
        node: views,
        settings,
        admitted,
        savers,
    };
    Ok((deps, opened))
}

fn settings(ground: &Ground<'_>) -> Result<AdmissionSettings> {
    let release = rustix::system::uname()
        .release()
        .to_string_lossy()
        .into_owned();
    let unsafe_ones = &ground.loaded.config.runtime.allowed_unsafe_sysctls;
    let sysctls = SysctlAllowlist::new(unsafe_ones, KernelVersion::parse(&release))
        .context("allowedUnsafeSysctls")?;
    Ok(AdmissionSettings {
        sysctls,
        apparmor: std::fs::read_to_string("/sys/module/apparmor/parameters/enabled")
            .is_ok_and(|text| text.starts_with('Y')),
        resize: resize_settings(ground.loaded),
        ..AdmissionSettings::default()
    })
}

fn resize_settings(loaded: &Loaded) -> ResizeSettings {
    let on = |gate| loaded.gates.enabled(gate);
    let managers = &loaded.config.managers;
    ResizeSettings {
        pod_level: on(Gate::InPlacePodLevelResourcesVerticalScaling),
        static_cpus: managers.cpu_manager_policy == "static"
            && !on(Gate::InPlacePodVerticalScalingExclusiveCPUs),
        static_memory: managers.memory_manager_policy == "Static"
            && !on(Gate::InPlacePodVerticalScalingExclusiveMemory),
        limited_swap: loaded.config.cgroups.memory_swap.swap_behavior == "LimitedSwap",
    }
}

fn machine(ground: &Ground<'_>) -> Arc<dyn MachineFacts> {
    Arc::new(HostFacts::new(ground.root.path()))
}

async fn own_view(ground: &Ground<'_>) -> Result<NodeView> {
    let node: Node = node::initial(ground, &*machine(ground)).await?;
    Ok(node_view(&node))
}

impl Ties {
    /// Starts what ties the node to its cluster.
    pub fn spawn(self, agent: &AgentHandle, tasks: &mut JoinSet<()>) {
        let Self {
            board,
            node,
            lease,
            runtime,
            identity,
            pod_network,
            clock,
            certificate: _,
            referents: _,
        } = self;
        tasks.spawn(pod_network.run());
        tasks.spawn(identity.run());
        tasks.spawn(node.run());
        tasks.spawn(lease.run());
        tasks.spawn(runtime.run());
        tasks.spawn(watch_observer(agent.clone(), board, clock));
    }
}

/// Tells the node whether what the runtime holds can be seen.
async fn watch_observer(agent: AgentHandle, board: HealthBoard, clock: Arc<dyn WallClock>) {
    let mut health = agent.observer.health();
    loop {
        let seen = health.borrow_and_update().clone();
        let error = match (&seen.error, seen.audit_overdue) {
            (Some(error), _) => Some(error.clone()),
            (None, true) => Some("no list of all pods has succeeded for too long".to_owned()),
            (None, false) => None,
        };
        board.set(|board| {
            board.observer = match (error, &board.observer) {
                (None, _) if seen.last_ok.is_none() => ObserverHealth::Unknown,
                (None, _) => ObserverHealth::Sees,
                (Some(culprit), ObserverHealth::Blind { since, .. }) => ObserverHealth::Blind {
                    culprit,
                    since: *since,
                },
                (Some(culprit), _) => ObserverHealth::Blind {
                    culprit,
                    since: clock.now(),
                },
            };
        });
        if health.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
