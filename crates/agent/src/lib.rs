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
mod held_volumes;
mod housekeeping;
mod mirrors;
mod mono;
mod network;
mod pod_set;
mod resizes;
mod steps;
mod sync_loop;
mod take_over;
mod wakes;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use krablet_core::gc::GcPolicy;
use krablet_core::restart::RestartGates;
use krablet_core::worker::{Periods, PodWorkers};
use krablet_cri::{ImageService, RuntimeService};
use krablet_events::Recorder;
use krablet_images::PullRecords;
use krablet_linux::{Cgroups, Files, Mounts, Tools, Trees, WallClock};
use krablet_metrics::Metrics;
use krablet_net::Net;
use krablet_objects::Referents;
use krablet_observer::{Observer, ObserverConfig, ObserverDeps, ObserverHandle};
use krablet_pod::marks::PodSource;
use krablet_probes::{Probes, ProbesConfig, ProbesDeps, ProbesHandle};
use krablet_runtime::gc::{ContainerGc, GcSettings};
use krablet_runtime::images::gc::{ImageGc, ImageGcDeps};
use krablet_runtime::rotation::{Bells, LogRotation, RotationConfig, RotationDeps};
use krablet_runtime::{
    ClassTeller, ImageDeps, PodRuntime, RuntimeClasses, RuntimeConfig, RuntimeDeps,
};
use krablet_sources::{SourceSet, Sources, SourcesEnds};
use krablet_status::StatusStore;
use krablet_status::sender::SenderHandle;
use krablet_volumes::{Volumes, VolumesConfig, VolumesDeps};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

pub use accounts::{Accounts, WorkingPods};
pub use classes::KEPT_CLASSES;
pub use cluster::{Cluster, Keepsakes};
pub use door::{Conditions, DoorDeps, node_view};
pub use mono::MonoClock;
pub use pod_set::DesiredPods;
pub use take_over::Adoption;

use cluster::ClusterTasks;
use counted_cgroups::CountedCgroups;
use door::Door;
use housekeeping::{Housekeeping, Places};
use network::NetworkReadiness;
use resizes::ResizeBook;
use steps::cgroups::PodCgroups;
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
        let (observer, observer_handle) = krablet_observer::build(
            config.observer,
            ObserverDeps {
                runtime: deps.runtime.clone(),
                files: deps.files.clone(),
                clock: deps.clock.clone(),
                seed: config.seed,
            },
        );
        let clock = deps.clock.clone();
        let (probes, probes_handle) = krablet_probes::build(
            ProbesConfig::default(),
            ProbesDeps {
                runtime: deps.runtime.clone(),
                net: deps.net.clone(),
                recorder: deps.recorder.clone(),
                clock: Arc::new(move || clock.now()),
                seed: config.seed,
            },
        );
        let metrics = Metrics {
            images: deps.image_deps.keychain.metrics().clone(),
            ..Metrics::default()
        };
        let volumes = Arc::new(Volumes::new(
            config.volumes,
            VolumesDeps {
                files: deps.files.clone(),
                trees: deps.trees.clone(),
                mounts: deps.mounts.clone(),
                tools: deps.tools.clone(),
                clock: deps.clock.clone(),
                objects: deps.referents.objects.clone(),
                cluster: deps.cluster.as_ref().map(Cluster::volume_objects),
                tokens: deps
                    .cluster
                    .as_ref()
                    .map(|c| c.tokens(&deps.clock, config.seed)),
                node: deps.door.node.clone(),
                metrics: metrics.volumes.clone(),
            },
        ));
        let gc = ContainerGc::new(
            GcSettings {
                policy: config.gc,
                pod_logs: config.runtime.paths.pod_logs.clone(),
                container_logs: config.runtime.paths.container_logs.clone(),
            },
            deps.runtime.clone(),
            deps.files.clone(),
            deps.clock.clone(),
        );
        let views = observer_handle.clone();
        let started = Arc::new(Notify::new());
        let rotation = LogRotation::new(
            config.rotation,
            RotationDeps {
                runtime: deps.runtime.clone(),
                files: deps.files.clone(),
                clock: deps.clock.clone(),
                pods: Arc::new(move || views.all()),
            },
            Bells {
                writes: deps.files.first_writes(),
                pods: started.clone(),
            },
        );
        let verification = config.runtime.images.verification.clone();
        let root = config.runtime.paths.root.path();
        let pull_records = verification.map(|policy| {
            let (files, clock) = (deps.files.clone(), deps.clock.clone());
            Arc::new(PullRecords::new(policy, root, files, clock))
        });
        let mounted = desired.clone();
        let image_gc = ImageGc::new(
            config.runtime.images.gc,
            ImageGcDeps {
                runtime: deps.runtime.clone(),
                images: deps.images.clone(),
                space: deps.image_deps.space.clone(),
                recorder: deps.recorder.clone(),
                clock: deps.clock.clone(),
                metrics: metrics.images.clone(),
                records: pull_records.clone(),
                mounted: Arc::new(move || mounted.image_volumes()),
            },
        );
        let classes = ClassTeller::default();
        let accounts = Accounts::new(metrics.workers.clone());
        let door = Door::new(deps.door);
        let resizes = ResizeBook::new(metrics.workers.resizes.clone(), door.savers());
        let counted = CountedCgroups::over(deps.cgroups.clone(), metrics.cgroups.clone());
        let cgroups = PodCgroups::new(
            Arc::new(counted),
            config.runtime.resources.pod_rules(),
            config.runtime.resources.class_rules(),
        );
        let node = NodeStatusFacts {
            host_ips: config.runtime.node.host_ips.clone(),
            runtime_name: config.runtime_name,
            recursive_read_only: config.runtime.node.recursive_read_only,
        };
        let runtime = PodRuntime::build(
            config.runtime,
            RuntimeDeps {
                runtime: deps.runtime.clone(),
                images: deps.images.clone(),
                files: deps.files.clone(),
                mounts: deps.mounts.clone(),
                net: deps.net.clone(),
                recorder: deps.recorder.clone(),
                clock: deps.clock.clone(),
                objects: deps.referents.objects.clone(),
                services: deps.referents.services.clone(),
                keychain: deps.image_deps.keychain.clone(),
                pull_records,
                classes: match deps.cluster {
                    Some(_) => classes.listener(),
                    None => RuntimeClasses::Ignored,
                },
                metrics: metrics.runtime.clone(),
                epoch: mono.epoch(),
            },
        );
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
        let mut handle = AgentHandle {
            desired: desired.clone(),
            status: status.clone(),
            observer: observer_handle.clone(),
            probes: probes_handle.clone(),
            sets,
            turn: turn.subscribe(),
            metrics,
            accounts: accounts.clone(),
            volumes_in_use: volumes.in_use(),
            volumes: volumes.clone(),
            sender: None,
        };
        let (cluster, sender) = match deps.cluster {
            Some(cluster) => {
                let (tasks, sender) =
                    cluster.build(&handle, &config.sources, &deps.clock, config.seed, classes);
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
