//! Statistics of the node, its pods, their containers and volumes: read when somebody asks, from cgroups, `/proc` and file
//! systems, and told as the summary, as `/metrics/resource` and as `/metrics/cadvisor`. Two scrapes that come close together
//! share one reading, and nothing happens here between two readings, but for pods that are held to a limit of what they
//! keep on the disk: somebody asks for those all the time.

pub mod api;
mod cadvisor;
mod collect;
mod devices;
mod files;
mod habit;
mod home;
mod local;
mod measure;
pub mod parse;
mod rates;
pub mod reading;
mod resource;
mod runtime;
mod settings;
mod storage;
mod summary;
#[cfg(test)]
mod testing;
mod text;
mod walk;

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::Timestamp;
use krablet_cri::{ImageService, StatsService};
use krablet_linux::{CgroupVersion, MachineFacts, Threads, WallClock};
use krablet_metrics::HistogramVec;
use krablet_pod::PodUid;
use krablet_pod::observed::ObservedPod;
use krablet_pod::paths::RootDir;
use krablet_pod::qos::QosClass;
use tokio::sync::watch;
use tokio::time::Instant;

pub use cadvisor::cadvisor_metrics;
pub use local::CountedVolumes;
pub use resource::resource_metrics;
pub use storage::{ContainerLog, Storage};
pub use summary::summary;

use collect::Reading;
use devices::Devices;
use files::Kernel;
use habit::{Habit, Use};
use measure::Measure;
use rates::Rates;
use reading::{Depth, Facts, Snapshot};
use runtime::Runtime;
use settings::Settings;

/// How long one reading serves all who ask.
const FRESH: Duration = Duration::from_secs(2);

/// Readings that have not come back, since a file system hangs: each keeps a thread, and more are not begun. Who scrapes and
/// who holds pods to limits do not count together.
const MOST_READINGS: usize = 4;

/// More bytes than the summary has of most pods: what is not written to takes no memory, while a text that outgrows its
/// place is there twice.
const PAGE_OF_A_POD: usize = 8 << 10;

#[derive(Debug, thiserror::Error)]
pub enum StatsError {
    #[error("reading statistics was cut off: {0}")]
    Lost(#[from] tokio::task::JoinError),
    #[error("reading statistics: {0}")]
    Stuck(#[from] std::io::Error),
    #[error("writing the summary: {0}")]
    Json(#[from] serde_json::Error),
}

/// What the rest of the agent knows of its pods.
pub trait Pods: Send + Sync {
    /// What the runtime was last seen to hold.
    fn observed(&self) -> Vec<Arc<ObservedPod>>;
    /// The start in the pod's status.
    fn started(&self, uid: &PodUid) -> Option<Timestamp>;
    /// Where the pod's volumes are. May read files.
    fn volumes(&self, uid: &PodUid) -> Vec<VolumePlace>;
}

/// One volume of a pod on the node's disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumePlace {
    /// As the pod's spec names it.
    pub name: String,
    pub path: PathBuf,
    /// Namespace and name of the claim behind it.
    pub claim: Option<(String, String)>,
    /// Its bytes are the pod's own on the node's disk.
    pub ephemeral: bool,
}

/// Cgroups of those who are no pods; empty: not known.
#[derive(Clone, Debug, Default)]
pub struct SystemCgroups {
    /// `kubeletCgroups`; without it, the one the agent is in.
    pub kubelet: String,
    /// `--runtime-cgroups`
    pub runtime: String,
    /// `systemCgroups`
    pub misc: String,
}

/// The path of a pod's cgroup below the hierarchy, were the pod of this class; empty if pods have none of their own.
pub type PodPath = Arc<dyn Fn(&PodUid, QosClass) -> String + Send + Sync>;

#[derive(Clone)]
pub struct StatsConfig {
    pub node_name: String,
    pub root: RootDir,
    pub pod_logs: PathBuf,
    pub version: CgroupVersion,
    pub pod_path: PodPath,
    pub systems: SystemCgroups,
    /// When the agent was started.
    pub started: Timestamp,
}

pub struct StatsDeps {
    pub pods: Arc<dyn Pods>,
    pub runtime: Arc<dyn StatsService>,
    pub images: Arc<dyn ImageService>,
    pub machine: Arc<dyn MachineFacts>,
    pub clock: Arc<dyn WallClock>,
    /// How long volumes took to measure, by the source of the figure.
    pub measured: HistogramVec,
}

/// The statistics of this machine.
pub struct Stats {
    config: Arc<StatsConfig>,
    kernel: Kernel,
    pods: Arc<dyn Pods>,
    machine: Arc<dyn MachineFacts>,
    clock: Arc<dyn WallClock>,
    rates: Arc<Mutex<Rates>>,
    settings: Arc<Mutex<Settings>>,
    measure: Arc<Measure>,
    devices: Arc<Devices>,
    /// Whether it was not known, when last asked, which disk containers write to.
    disk_unknown: AtomicBool,
    /// Rings after every reading.
    readings: watch::Sender<u64>,
    /// Of those who scrape: file systems are asked there.
    scrapes: Threads,
    /// Of those who hold pods to limits.
    limits: Threads,
    /// Held while reading, so that one reads and the others wait for what it finds.
    desk: tokio::sync::Mutex<Desk>,
}

struct Desk {
    runtime: Runtime,
    facts: Option<Arc<Facts>>,
    latest: Option<Latest>,
    habit: Habit,
}

struct Latest {
    depth: Depth,
    /// What the one who wanted most of it wanted.
    wanted: Depth,
    taken: Instant,
    snapshot: Arc<Snapshot>,
}

impl Latest {
    fn is_fresh(&self) -> bool {
        self.taken.elapsed() < FRESH
    }

    fn used(&self) -> Use {
        Use {
            read: self.depth,
            wanted: self.wanted,
            fresh: self.is_fresh(),
        }
    }
}

impl Stats {
    pub fn new(config: StatsConfig, deps: StatsDeps) -> Self {
        let kernel = Kernel::of_this_machine(config.version);
        Self::of(config, deps, kernel, Threads::new)
    }

    fn of(
        config: StatsConfig,
        deps: StatsDeps,
        kernel: Kernel,
        threads: fn(usize) -> Threads,
    ) -> Self {
        let measure = Measure::new(deps.clock.clone(), deps.measured, threads);
        Self {
            kernel,
            config: Arc::new(config),
            pods: deps.pods,
            machine: deps.machine,
            rates: Arc::default(),
            settings: Arc::default(),
            devices: Arc::default(),
            disk_unknown: AtomicBool::new(false),
            measure: Arc::new(measure),
            clock: deps.clock,
            readings: watch::Sender::new(0),
            scrapes: threads(MOST_READINGS),
            limits: threads(MOST_READINGS),
            desk: tokio::sync::Mutex::new(Desk {
                runtime: Runtime::new(deps.runtime, deps.images),
                facts: None,
                latest: None,
                habit: Habit::default(),
            }),
        }
    }

    /// Rings after every reading; the number only tells that there was one.
    pub fn readings(&self) -> watch::Receiver<u64> {
        self.readings.subscribe()
    }

    /// The JSON of `/stats/summary`.
    pub async fn summary(&self, depth: Depth) -> Result<Vec<u8>, StatsError> {
        let snapshot = self.snapshot(depth).await?;
        let mut text = Vec::with_capacity(PAGE_OF_A_POD * (snapshot.pods.len() + 1));
        serde_json::to_writer(&mut text, &summary(&snapshot, depth))?;
        Ok(text)
    }

    /// The text of `/metrics/resource`.
    pub async fn resource_metrics(&self) -> String {
        let snapshot = self.told(self.snapshot(Depth::CpuAndMemory).await);
        resource_metrics(snapshot.as_deref())
    }

    /// The text of `/metrics/cadvisor`, in pieces.
    pub async fn cadvisor_metrics(&self) -> impl Iterator<Item = String> + Send + use<> {
        let snapshot = self.told(self.snapshot(Depth::Full).await);
        cadvisor_metrics(snapshot.as_deref())
    }

    /// What pods keep on disks, from the figures that the summary tells of volumes too.
    pub async fn storage(&self) -> Result<Storage, StatsError> {
        let observed = self.alive();
        let (config, pods, measure) =
            (self.config.clone(), self.pods.clone(), self.measure.clone());
        let read = move || Storage::read(&*pods, &observed, &measure, &config.pod_logs);
        Ok(self.scrapes.alone(read).await?)
    }

    fn alive(&self) -> Vec<Arc<ObservedPod>> {
        let mut observed = self.pods.observed();
        observed.retain(|pod| pod.is_alive());
        observed
    }

    /// Pages say themselves that there was an error; the log says which.
    fn told(&self, read: Result<Arc<Snapshot>, StatsError>) -> Option<Arc<Snapshot>> {
        read.inspect_err(|e| tracing::error!(err = %e, "Statistics cannot be read"))
            .ok()
    }

    /// A reading of at least this depth that is no older than a moment.
    pub async fn snapshot(&self, depth: Depth) -> Result<Arc<Snapshot>, StatsError> {
        let mut desk = self.desk.lock().await;
        let desk = &mut *desk;
        if let Some(latest) = &mut desk.latest
            && latest.depth >= depth
            && latest.is_fresh()
        {
            latest.wanted = latest.wanted.max(depth);
            return Ok(latest.snapshot.clone());
        }
        let wanted = depth;
        // Nobody is given the last one any more: its room is for the next.
        let last = desk.latest.take();
        let depth = desk.habit.depth(wanted, last.as_ref().map(Latest::used));
        drop(last);
        let facts = match &desk.facts {
            Some(facts) => facts.clone(),
            None => desk.facts.insert(self.facts().await).clone(),
        };
        let observed = self.alive();
        let told = match depth {
            Depth::Summary | Depth::Full => {
                let sandboxes = observed.iter().flat_map(|pod| pod.ready_sandboxes());
                let sandboxes = sandboxes.map(|s| s.id.to_string()).collect();
                desk.runtime.figures(&sandboxes).await
            }
            Depth::CpuAndMemory => Arc::default(),
        };
        let reading = Reading {
            config: self.config.clone(),
            kernel: self.kernel.clone(),
            pods: self.pods.clone(),
            observed,
            told,
            facts,
            rates: self.rates.clone(),
            settings: self.settings.clone(),
            measure: self.measure.clone(),
            devices: self.devices.clone(),
            depth,
            now: self.clock.now(),
            scheme: Mutex::default(),
        };
        let taken = Instant::now();
        let read = move || reading.take();
        let snapshot = match depth {
            Depth::Summary | Depth::Full => self.scrapes.alone(read).await?,
            // The kernel answers whatever hangs.
            Depth::CpuAndMemory => tokio::task::spawn_blocking(read).await?,
        };
        let snapshot = Arc::new(snapshot);
        self.readings.send_modify(|n| *n = n.wrapping_add(1));
        desk.latest = Some(Latest {
            depth,
            wanted,
            taken,
            snapshot: snapshot.clone(),
        });
        Ok(snapshot)
    }

    async fn facts(&self) -> Arc<Facts> {
        let machine = self.machine.machine().await;
        let (physical_cores, sockets) = self.kernel.topology();
        Arc::new(Facts {
            node_name: self.config.node_name.clone(),
            booted: self.kernel.booted(),
            boot_id: machine.identity.boot_id,
            machine_id: machine.identity.machine_id,
            system_uuid: machine.identity.system_uuid,
            kernel_version: machine.identity.kernel_version,
            os_image: machine.identity.os_image,
            cpus: machine.cpus,
            physical_cores,
            sockets,
            memory: machine.memory,
            swap: machine.swap,
        })
    }
}
