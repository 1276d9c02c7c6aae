//! A node of a cluster: who it is, how it reaches the API server, its Node object and heartbeat.

mod adapters;
mod identity;
mod memory;
mod node;
mod pod_network;
mod trouble;

use std::net::IpAddr;
use std::sync::Arc;

use anyhow::{Context, Result};
use krablet_agent::{AgentHandle, Cluster, DoorDeps, Offers, node_view};
use krablet_config::{Gate, Loaded};
use krablet_core::admission::{
    AdmissionSettings, KernelVersion, NodeConditions, NodeView, SysctlAllowlist,
};
use krablet_core::resize::ResizeSettings;
use krablet_cri::{ImageClient, RuntimeClient};
use krablet_events::Recorder;
use krablet_events::sink::SinkConfig;
use krablet_identity::rotation::IdentityHandle;
use krablet_kube::Kube;
use krablet_linux::{Files, HostFacts, HostIps, MachineFacts, WallClock};
use krablet_metrics::RestMetrics;
use krablet_node::{
    HealthBoard, LeaseConfig, LeaseDeps, LeaseTask, NodeConfig, NodeDeps, NodeHandle, NodeInputs,
    NodeTask, OwnIps, Pressures, RuntimeWatch, RuntimeWatchConfig, node_ips,
};
use krablet_objects::Referents;
use krablet_pod::api::Node;
use krablet_pod::paths::RootDir;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing::warn;

use crate::parts::Parts;
use crate::view::ClusterCounts;
use crate::{pressure, referents};

use adapters::{HeldImages, RuntimeReports};
pub use node::config as node_config;
use pod_network::PodNetwork;
use trouble::RuntimeTrouble;

/// What the node is built from, in a cluster or on its own.
pub struct Ground<'a> {
    pub loaded: &'a Loaded,
    pub name: &'a str,
    pub root: &'a RootDir,
    pub files: Arc<dyn Files>,
    pub clock: Arc<dyn WallClock>,
    pub recorder: Recorder,
    pub runtime: RuntimeClient,
    pub images: ImageClient,
    /// Where calls to the API server are counted.
    pub calls_out: RestMetrics,
    pub seed: u64,
}

/// What is known of the machine once the runtime answers.
pub struct Known {
    /// Its own addresses.
    pub ips: Vec<IpAddr>,
    pub pressures: watch::Receiver<Pressures>,
}

/// The node's ties to its cluster, not yet running.
pub struct Ties {
    trouble: RuntimeTrouble,
    node: NodeTask,
    lease: LeaseTask,
    runtime: RuntimeWatch,
    identity: identity::Keeper,
    /// What is counted of the node's certificate, if it has one of its own.
    pub certificate: Option<IdentityHandle>,
    pub counts: ClusterCounts,
    /// What pods refer to.
    pub referents: Referents,
    /// What pods are told as their host's addresses.
    pub host_ips: HostIps,
    volumes_in_use: watch::Sender<Option<Vec<String>>>,
    pod_network: PodNetwork<RuntimeClient>,
}

/// Whether the user wants the node to be part of a cluster.
pub fn is_wanted(loaded: &Loaded) -> bool {
    !loaded.flags.kubeconfig.is_empty() || !loaded.flags.bootstrap_kubeconfig.is_empty()
}

/// The addresses this machine has now, by the rules the Node object is made by.
pub async fn own_ips(ground: &Ground<'_>, config: &NodeConfig) -> Vec<IpAddr> {
    let found = node_ips(config, &*machine(ground), &[]).await;
    found.unwrap_or_else(|why| {
        warn!(err = why, "The node has no address yet");
        Vec::new()
    })
}

/// A node on its own: the door looks at what the node would tell of itself.
pub async fn alone(
    ground: &Ground<'_>,
    known: Known,
    parts: &mut Parts,
) -> Result<(DoorDeps, HostIps)> {
    let view = own_view(ground).await?;
    let (admitted, savers) = memory::admitted(ground, &mut parts.savers).await;
    let mut config = node::config(ground)?;
    config.found_ips = known.ips;
    // Nobody else would name them.
    config.registration.external_cloud_provider = false;
    let (task, host_ips) = OwnIps::build(config, machine(ground));
    parts.tasks.spawn(task.run());
    let door = DoorDeps {
        conditions: pressure::conditions(known.pressures),
        settings: settings(ground)?,
        admitted,
        savers,
        ..DoorDeps::of(view)
    };
    Ok((door, host_ips))
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
    known: Known,
    parts: &mut Parts,
) -> Result<(Cluster, DoorDeps, Ties)> {
    let Invitation {
        identity: (kube, identity, certificate),
        node: mut config,
        admission,
    } = invitation;
    config.found_ips.clone_from(&known.ips);
    let board = HealthBoard::default();
    let (runtime, facts) = RuntimeWatch::build(
        RuntimeWatchConfig::default(),
        Arc::new(RuntimeReports(ground.runtime.clone())),
        ground.clock.clone(),
        board.clone(),
    );
    let registers = config.registration.register;
    // Not known before the agent has looked: until then stands what a kubelet before it told.
    let volumes_in_use = watch::Sender::new(None);
    let (node, handle) = NodeTask::build(
        config,
        NodeDeps {
            kube: kube.clone(),
            machine: machine(ground),
            images: Arc::new(HeldImages(ground.images.clone())),
            inputs: NodeInputs {
                health: board.subscribe(),
                runtime: facts,
                pressures: known.pressures.clone(),
                volumes_in_use: volumes_in_use.subscribe(),
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
    let conditions = pressure::conditions(known.pressures);
    let (door, open) = door(ground, &handle, registers, admission, parts).await?;
    let door = DoorDeps { conditions, ..door };
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
    let trouble = RuntimeTrouble {
        board,
        calls: ground.runtime.log().clone(),
        clock: ground.clock.clone(),
    };
    let ties = Ties {
        trouble,
        pod_network,
        node,
        lease,
        runtime,
        identity,
        certificate,
        counts: ClusterCounts {
            calls: ground.calls_out.clone(),
            startup: handle.startup(),
        },
        referents,
        host_ips: handle.host_ips(),
        volumes_in_use,
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
        offers: Offers {
            certificates: ground.loaded.gates.enabled(Gate::PodCertificateRequest),
            trust_bundles: ground
                .loaded
                .gates
                .enabled(Gate::ClusterTrustBundleProjection),
        },
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
/// Pods of the API server are taken once it is known; a node that does not register takes them also once it is known
/// that there is none.
async fn door(
    ground: &Ground<'_>,
    handle: &NodeHandle,
    registers: bool,
    settings: AdmissionSettings,
    parts: &mut Parts,
) -> Result<(DoorDeps, watch::Receiver<bool>)> {
    let (admitted, savers) = memory::admitted(ground, &mut parts.savers).await;
    let (view, views) = watch::channel(Arc::new(own_view(ground).await?));
    let (open, opened) = watch::channel(false);
    let (mut node, mut synced) = (handle.node(), handle.synced());
    parts.tasks.spawn(async move {
        loop {
            let known = node.borrow_and_update().clone();
            let none_needed = !registers && *synced.borrow_and_update();
            if let Some(node) = &known {
                view.send_replace(Arc::new(node_view(node)));
            }
            if known.is_some() || none_needed {
                open.send_replace(true);
            }
            view.send_if_modified(|view| {
                let settled = known.is_none() && none_needed && view.provisional;
                if settled {
                    Arc::make_mut(view).provisional = false;
                }
                settled
            });
            tokio::select! {
                Ok(()) = node.changed() => {}
                Ok(()) = synced.changed() => {}
                else => std::future::pending().await,
            }
        }
    });
    let deps = DoorDeps {
        node: views,
        conditions: Arc::new(NodeConditions::default),
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
    let apparmor = std::fs::read_to_string("/sys/module/apparmor/parameters/enabled")
        .is_ok_and(|text| text.starts_with('Y'));
    Ok(admission_settings(ground.loaded, sysctls, apparmor))
}

/// What the door is told by the gates.
fn admission_settings(
    loaded: &Loaded,
    sysctls: SysctlAllowlist,
    apparmor: bool,
) -> AdmissionSettings {
    let on = |gate| loaded.gates.enabled(gate);
    let declared = node::declared_features(loaded);
    AdmissionSettings {
        sysctls,
        apparmor,
        pod_level_resources: on(Gate::PodLevelResources),
        toleration_comparison: on(Gate::TaintTolerationComparisonOperators),
        dra_extended_resources: on(Gate::DRAExtendedResource),
        declared_features: declared.map(|all| all.into_iter().collect()),
        resize: resize_settings(loaded),
    }
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
    Ok(NodeView {
        provisional: true,
        ..node_view(&node)
    })
}

impl Ties {
    /// Starts what ties the node to its cluster.
    pub fn spawn(self, agent: &AgentHandle, tasks: &mut JoinSet<()>) {
        let Self {
            trouble,
            node,
            lease,
            runtime,
            identity,
            pod_network,
            volumes_in_use,
            certificate: _,
            counts: _,
            referents: _,
            host_ips: _,
        } = self;
        tasks.spawn(tell(agent.volumes_in_use.clone(), volumes_in_use));
        tasks.spawn(pod_network.run());
        tasks.spawn(identity.run());
        tasks.spawn(node.run());
        tasks.spawn(lease.run());
        tasks.spawn(runtime.run());
        tasks.spawn(trouble.run(agent.clone()));
    }
}

/// Hands on what somebody who is made later finds out.
async fn tell<T: Clone>(mut from: watch::Receiver<T>, to: watch::Sender<T>) {
    loop {
        let now = from.borrow_and_update().clone();
        to.send_replace(now);
        if from.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;

    pub(super) fn loaded(args: &[&str]) -> Loaded {
        let args: Vec<OsString> = args.iter().map(Into::into).collect();
        krablet_config::load(&args, &krablet_config::StdFiles).unwrap()
    }

    #[test]
    fn what_gates_tell_the_door() {
        let of =
            |args: &[&str]| admission_settings(&loaded(args), SysctlAllowlist::default(), false);
        let plain = of(&[]);
        assert!(plain.pod_level_resources && plain.dra_extended_resources);
        assert!(!plain.toleration_comparison);
        let declared = plain.declared_features.unwrap_or_default();
        assert!(declared.contains("RestartAllContainersOnContainerExits"));
        let other = of(&["--feature-gates=PodLevelResources=false,\
             InPlacePodLevelResourcesVerticalScaling=false,DRAExtendedResource=false,\
             TaintTolerationComparisonOperators=true,RestartAllContainersOnContainerExits=false"]);
        assert!(!other.pod_level_resources && !other.dra_extended_resources);
        assert!(other.toleration_comparison);
        let declared = other.declared_features.unwrap_or_default();
        assert!(!declared.contains("RestartAllContainersOnContainerExits"));
    }
}
