//! The node agent: joins the rooms into one. Desired pods come in from the sources, observed ones
//! from the runtime; the sync loop and its pod workers make the second like the first.

mod accounts;
mod classes;
mod clean_up;
mod clearing;
mod cluster;
mod counted_cgroups;
mod door;
mod entry;
mod eviction;
pub mod fake;
mod held_volumes;
mod housekeeping;
mod mirrors;
mod mono;
mod network;
mod pod_set;
mod projections;
mod resizes;
mod steps;
mod sync_loop;
mod take_over;
mod wakes;
mod wiring;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use krablet_core::gc::GcPolicy;
use krablet_core::restart::RestartGates;
use krablet_core::worker::{Periods, PodWorkers};
use krablet_cri::{ImageService, RuntimeService};
use krablet_events::Recorder;
use krablet_linux::{Cgroups, Files, Mounts, Tools, Trees, WallClock};
use krablet_metrics::Metrics;
use krablet_net::Net;
use krablet_objects::{Bell, Referents};
use krablet_observer::{Observer, ObserverConfig, ObserverHandle};
use krablet_pod::marks::PodSource;
use krablet_probes::{Probes, ProbesHandle};
use krablet_runtime::images::gc::ImageGc;
use krablet_runtime::rotation::{LogRotation, RotationConfig};
use krablet_runtime::{ClassTeller, ImageDeps, RuntimeConfig};
use krablet_sources::{SourceSet, Sources, SourcesEnds};
use krablet_status::StatusStore;
use krablet_status::sender::SenderHandle;
use krablet_volumes::{Volumes, VolumesConfig};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

pub use accounts::{Accounts, WorkingPods};
pub use classes::KEPT_CLASSES;
pub use cluster::{Cluster, Keepsakes};
pub use door::{Conditions, DoorDeps, node_view};
pub use eviction::Eviction;
pub use mono::MonoClock;
pub use pod_set::DesiredPods;
pub use projections::Offers;
pub use take_over::Adoption;

use cluster::ClusterTasks;
use door::Door;
use housekeeping::{Housekeeping, Places};
use network::NetworkReadiness;
use projections::ProjectionTasks;
use resizes::ResizeBook;
use steps::{NodeStatusFacts, StepParts, Steps};
use sync_loop::{Inputs, Parts, SyncLoop};

/// Between looks for volumes in use on a disk that cannot be read.
const FIND_AGAIN: Duration = Duration::from_secs(60);

#[derive(Clone, Debug)]
pub struct AgentConfig {
    pub observer: ObserverConfig,
    pub runtime: RuntimeConfig,
    pub volumes: VolumesConfig,
    pub periods: Periods,
    pub gc: GcPolicy,
    pub rotation: RotationConfig,
    /// The sources that must have spoken before anything unknown is removed.
    pub sources: BTreeSet<PodSource>,
    /// As the runtime calls itself.
    pub runtime_name: String,
    pub gates: RestartGates,
    /// Of every random number the agent draws.
    pub seed: u64,
}

impl AgentConfig {
    /// As an empty configuration has it: static pods of a directory, no others.
    pub fn new(runtime: RuntimeConfig) -> Self {
        Self {
            observer: ObserverConfig::default(),
            volumes: VolumesConfig::new(runtime.paths.root.clone()),
            runtime,
            periods: Periods::default(),
            gc: GcPolicy::default(),
            rotation: RotationConfig::default(),
            sources: BTreeSet::from([PodSource::File]),
            runtime_name: String::new(),
            gates: RestartGates::default(),
            seed: 1,
        }
    }
}

/// The world as the agent sees it: the real one, or a simulated one.
#[derive(Clone)]
pub struct AgentDeps {
    pub runtime: Arc<dyn RuntimeService>,
    pub images: Arc<dyn ImageService>,
    pub files: Arc<dyn Files>,
    pub trees: Arc<dyn Trees>,
    pub mounts: Arc<dyn Mounts>,
    /// Programs of the host.
    pub tools: Arc<dyn Tools>,
    pub cgroups: Arc<dyn Cgroups>,
    pub net: Arc<dyn Net>,
    pub clock: Arc<dyn WallClock>,
    pub recorder: Recorder,
    /// ConfigMaps, secrets and services that pods refer to.
    pub referents: Referents,
    pub image_deps: ImageDeps,
    /// Who may run here.
    pub door: DoorDeps,
    /// The cluster the node belongs to, if it belongs to one.
    pub cluster: Option<Cluster>,
}

/// What others hold of a running agent.
#[derive(Clone)]
pub struct AgentHandle {
    pub desired: DesiredPods,
    pub status: StatusStore,
    pub observer: ObserverHandle,
    pub probes: ProbesHandle,
    /// Sources send what they want here.
    pub sets: mpsc::Sender<SourceSet>,
    /// Pods that were found over their limits are sent here.
    pub evictions: mpsc::Sender<Eviction>,
    /// When the sync loop last turned.
    pub turn: watch::Receiver<Instant>,
    /// What is counted where it happens.
    pub metrics: Metrics,
    /// What is counted when somebody asks.
    pub accounts: Accounts,
    /// Volumes in use that a controller attaches; none until it is known which.
    pub volumes_in_use: watch::Receiver<Option<Vec<String>>>,
    pub volumes: Arc<Volumes>,
    /// Who brings statuses to the API server, if there is one.
    pub sender: Option<SenderHandle>,
}

/// A built agent, not yet running.
pub struct Agent {
    observer: Observer,
    probes: Probes,
    sources: Sources,
    rotation: LogRotation,
    image_gc: ImageGc,
    sync_loop: SyncLoop,
    inputs: Inputs,
    volumes: Arc<Volumes>,
    projections: ProjectionTasks,
    bell: Bell,
    cluster: Option<ClusterTasks>,
}

impl Agent {
    pub fn build(mut config: AgentConfig, deps: AgentDeps) -> (Self, AgentHandle) {
        let node = deps.door.node.borrow().clone();
        let allocatable = &mut config.runtime.node.allocatable;
        if allocatable.is_empty() {
            allocatable.clone_from(&node.allocatable);
        }
        let mono = MonoClock::start();
        let desired = DesiredPods::default();
        let mirrors = desired.clone();
        let status = StatusStore::new(config.gates)
            .with_mirrors(Arc::new(move |pod| mirrors.mirror_of(&pod.uid)));
        let (observer, observer_handle) = wiring::observer(config.observer, &deps, config.seed);
        let (probes, probes_handle) = wiring::probes(&deps, config.seed);
        let metrics = Metrics {
            images: deps.image_deps.keychain.metrics().clone(),
            ..Metrics::default()
        };
        let (volumes, projections) = wiring::volumes(config.volumes, &deps, &metrics, config.seed);
        let gc = wiring::container_gc(config.gc, &config.runtime.paths, &deps);
        let started = Arc::new(Notify::new());
        let views = observer_handle.clone();
        let rotation = wiring::rotation(config.rotation, &deps, views, started.clone());
        let records = wiring::pull_records(&config.runtime, &deps, &metrics);
        let mounted = desired.clone();
        let image_gc = wiring::image_gc(&config.runtime, &deps, &metrics, records.clone(), mounted);
        let classes = ClassTeller::default();
        let cgroups = wiring::pod_cgroups(&config.runtime, &deps, &metrics);
        let node = NodeStatusFacts {
            host_ips: config.runtime.node.host_ips.clone(),
            runtime_name: config.runtime_name,
            in_cluster: deps.cluster.is_some(),
        };
        let runtime = wiring::runtime(config.runtime, &deps, &metrics, records, &classes, mono);
        let crowds = runtime.crowds();
        let accounts = Accounts::new(metrics.workers.clone());
        let door = Door::new(deps.door);
        let resizes = ResizeBook::new(metrics.workers.resizes.clone(), door.savers());
        let steps = Arc::new(Steps::new(StepParts {
            observer: observer_handle.clone(),
            runtime,
            volumes: volumes.clone(),
            cgroups,
            objects: deps.referents.objects.clone(),
            gc,
            desired: desired.clone(),
            probes: probes_handle.clone(),
            status: status.clone(),
            recorder: deps.recorder.clone(),
            network: NetworkReadiness::new(deps.runtime.clone()),
            clock: deps.clock.clone(),
            mono,
            node,
            gates: config.gates,
            accounts: accounts.clone(),
            resizes: resizes.clone(),
        }));
        let (sources, SourcesEnds { sets, updates }) =
            Sources::build(deps.recorder.clone(), deps.clock.clone());
        let turn = watch::Sender::new(Instant::now());
        let (evictions, evicted) = eviction::channel();
        let mut handle = AgentHandle {
            desired: desired.clone(),
            status: status.clone(),
            observer: observer_handle.clone(),
            probes: probes_handle.clone(),
            sets,
            evictions,
            turn: turn.subscribe(),
            metrics,
            accounts: accounts.clone(),
            volumes_in_use: volumes.in_use(),
            volumes: volumes.clone(),
            sender: None,
        };
        let (cluster, sender) = match deps.cluster {
            Some(cluster) => {
                let (clock, seed) = (&deps.clock, config.seed);
                let (tasks, sender) =
                    cluster.build(&handle, &config.sources, clock, seed, classes, crowds);
                (Some(tasks), Some(sender))
            }
            None => (None, None),
        };
        handle.sender.clone_from(&sender);
        let inputs = Inputs {
            updates,
            changes: observer_handle.take_changes(),
            probes: probes_handle.take_updates(),
            objects: deps.referents.bell.clone(),
            evictions: evicted,
            health: observer_handle.health(),
        };
        let housekeeping = Housekeeping::new(Places {
            observer: observer_handle.clone(),
            volumes: volumes.clone(),
            cgroups: deps.cgroups.clone(),
        });
        let parts = Parts {
            desired,
            status,
            observer: observer_handle,
            probes: probes_handle,
            steps,
            clock: deps.clock,
            mono,
            sources: config.sources,
            accounts,
            recorder: deps.recorder,
            sender,
            resizes,
            started,
        };
        let workers = PodWorkers::new(config.periods);
        let agent = Self {
            observer,
            probes,
            sources,
            rotation,
            image_gc,
            sync_loop: SyncLoop::new(parts, workers, housekeeping, door, turn, config.seed),
            inputs,
            volumes,
            projections,
            bell: deps.referents.bell,
            cluster,
        };
        (agent, handle)
    }

    /// Runs until one of its parts ends, which none does by itself. Dropping it drops all of its
    /// tasks, wherever they are.
    pub async fn run(self) {
        let mut tasks = JoinSet::new();
        tasks.spawn(self.observer.run());
        tasks.spawn(self.probes.run());
        tasks.spawn(self.sources.run());
        tasks.spawn(self.rotation.run());
        tasks.spawn(self.image_gc.run());
        tasks.spawn(self.sync_loop.run(self.inputs));
        tasks.spawn(find_volumes(self.volumes));
        self.projections.spawn(&self.bell, &mut tasks);
        if let Some(cluster) = self.cluster {
            cluster.spawn(&mut tasks);
        }
        tasks.join_next().await;
    }
}

/// Finds out which volumes are in use, until it is known.
async fn find_volumes(volumes: Arc<Volumes>) {
    while let Err(e) = volumes.find_in_use().await {
        tracing::warn!(err = %e, "The volumes in use cannot be found");
        tokio::time::sleep(FIND_AGAIN).await;
    }
    std::future::pending().await
}
