//! Wiring: from a loaded configuration to a running agent, until a signal ends it.

use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use krablet_agent::{Agent, AgentConfig, AgentDeps, AgentHandle, Cluster, DoorDeps};
use krablet_config::{KubeletConfiguration, Loaded};
use krablet_cri::{CallLog, Deadlines, Endpoint, ImageClient, RuntimeClient, RuntimeService};
use krablet_events::{Recorder, Subject, reason};
use krablet_identity::rotation::IdentityHandle;
use krablet_linux::{
    CgroupVersion, HostFiles, HostIps, HostMounts, HostSpace, HostTools, PatientMounts,
    SystemClock, WallClock,
};
use krablet_metrics::RestMetrics;
use krablet_net::HostNet;
use krablet_objects::Referents;
use krablet_pod::paths::RootDir;
use krablet_runtime::dns::check_node_resolver;
use krablet_runtime::{Handlers, ImageDeps};
use krablet_server::NodeView as _;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinSet;
use tracing::{info, warn};

use crate::cgroups::{self, Detected, Division};
use crate::cluster::{self, Ground, Invitation, Known, Ties};
use crate::doors::{ClusterDoor, Doors};
use crate::logging::Verbosity;
use crate::machine::Machine;
use crate::parts::Parts;
use crate::preflight::{self, LockFile};
use crate::resolver::ResolverWatch;
use crate::stats::Figures;
use crate::systemd::ServiceManager;
use crate::view::{AgentView, ClusterCounts, Facts};
use crate::{
    keychain, local_storage, lock, memory, pressure, referents, run_once, settings, static_pods,
    stats, user_ids,
};

/// Runs the agent until SIGTERM or SIGINT, or until a run-once has ended.
pub async fn run(loaded: Loaded, verbosity: Verbosity) -> Result<ExitCode> {
    // From the first moment on: who stops an agent that is still starting finds it ended in good order, too.
    let mut stop = StopSignals::listen()?;
    let mut parts = Parts::default();
    let ended = tokio::select! {
        biased;
        name = stop.next() => {
            info!("{name}: stopping; the pods go on");
            // A run-once that was cut short has not shown that its pods run.
            Ok(ExitCode::from(u8::from(loaded.config.sources.run_once)))
        }
        ended = live(&loaded, verbosity, &mut parts) => ended,
    };
    parts.end().await;
    ended
}

/// An agent's life, which ends by itself only where something is wrong, or was to be done once.
async fn live(loaded: &Loaded, verbosity: Verbosity, parts: &mut Parts) -> Result<ExitCode> {
    let manager = ServiceManager::of_process(&loaded.gates)?;
    let machine = Machine::of(loaded)?;
    parts.lock_file = match loaded.flags.lock_file.as_str() {
        "" => None,
        path => Some(LockFile::acquire(path, loaded.flags.exit_on_lock_contention).await?),
    };
    let root = prepare_root(&loaded.flags.root_dir)?;
    parts.root_lock = Some(lock::take(&root.path().join("krablet.lock"))?);
    let clock: Arc<dyn WallClock> = Arc::new(SystemClock);
    let event_clock = clock.clone();
    let calls = CallLog::default();
    let (runtime, images) = connect(&loaded.config, &calls)?;
    manager.start(&mut parts.tasks);
    let ground = Ground {
        loaded,
        name: &machine.name,
        root: &root,
        files: Arc::new(HostFiles),
        clock,
        recorder: Recorder::new(move || event_clock.now()),
        runtime,
        images,
        calls_out: RestMetrics::default(),
        seed: fresh_seed(),
    };
    // What the user has to set right is told before the runtime is waited for.
    preflight::check(loaded)?;
    let place = Place::find(&ground, &machine, parts).await?;
    let sources = place.config.sources.clone();
    let gates = place.config.gates;
    let node = Node::start(&ground, place, &machine, &mut parts.tasks).await;
    let (handle, view) = node
        .open(&ground, calls, verbosity, &mut parts.tasks)
        .await?;
    manager.ready(move || view.failing_checks());

    match loaded.config.sources.run_once {
        true => Ok(run_once::wait(&handle, &sources, gates).await),
        false => wait_for_end(parts).await,
    }
}

/// The signals that end the agent.
struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl StopSignals {
    fn listen() -> Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?,
            interrupt: signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?,
        })
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            biased;
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

/// What the agent is to be built from, once the runtime has answered.
struct Place {
    config: AgentConfig,
    deps: AgentDeps,
    ties: Option<Ties>,
    cgroup_version: CgroupVersion,
    losing_support: Option<&'static str>,
    /// The machine's own addresses.
    ips: Vec<IpAddr>,
}

impl Place {
    async fn find(ground: &Ground<'_>, machine: &Machine, parts: &mut Parts) -> Result<Self> {
        let loaded = ground.loaded;
        let node_config = cluster::node_config(ground)?;
        let id_space = user_ids::space(loaded)?;
        let division = Division::of(ground).await?;
        let invitation = match cluster::is_wanted(loaded) {
            true => Some(cluster::invitation(ground).await?),
            false => None,
        };
        let keychain = keychain::build(ground, invitation.as_ref().map(|i| i.kube())).await?;
        // A resolver that takes its time is asked while the runtime is waited for.
        let own_ips = cluster::own_ips(ground, &node_config);
        let (runtime_name, ips) = tokio::join!(runtime_name(&ground.runtime), own_ips);
        let handlers = Handlers::default();
        if let Err(e) = handlers.ask(&ground.runtime).await {
            warn!(err = %e, "The container runtime does not tell what its handlers can do");
        }
        let Detected {
            cgroups,
            losing_support,
        } = cgroups::detect(&loaded.config, &ground.runtime).await?;
        let tasks = &mut parts.tasks;
        division.enforce(&cgroups, &ground.recorder, tasks).await?;
        let known = Known {
            ips: ips.clone(),
            pressures: pressure::watch(ground, tasks).await?,
        };
        let member = membership(ground, invitation, known, parts).await?;
        let mut config = settings::agent_config(ground, machine, runtime_name);
        division.tell(loaded, &cgroups, &mut config.runtime).await;
        let node = &mut config.runtime.node;
        node.handlers = handlers;
        node.host_ips = member.host_ips;
        node.id_space = id_space;
        let cgroup_version = cgroups.version();
        let deps = AgentDeps {
            runtime: Arc::new(ground.runtime.clone()),
            images: Arc::new(ground.images.clone()),
            files: ground.files.clone(),
            trees: Arc::new(HostFiles),
            mounts: Arc::new(PatientMounts::over(Arc::new(HostMounts))),
            tools: Arc::new(HostTools),
            cgroups,
            net: Arc::new(HostNet::new().context("cannot set up TLS")?),
            clock: ground.clock.clone(),
            recorder: ground.recorder.clone(),
            referents: member.referents,
            image_deps: ImageDeps {
                keychain,
                space: Arc::new(HostSpace),
            },
            door: member.door,
            cluster: member.cluster,
        };
        Ok(Self {
            config,
            deps,
            ties: member.ties,
            cgroup_version,
            losing_support,
            ips,
        })
    }
}

/// What a node has of its cluster, or instead of one.
struct Membership {
    cluster: Option<Cluster>,
    door: DoorDeps,
    ties: Option<Ties>,
    host_ips: HostIps,
    referents: Referents,
}

async fn membership(
    ground: &Ground<'_>,
    invitation: Option<Invitation>,
    known: Known,
    parts: &mut Parts,
) -> Result<Membership> {
    let Some(invitation) = invitation else {
        let (door, host_ips) = cluster::alone(ground, known, parts).await?;
        return Ok(Membership {
            cluster: None,
            door,
            ties: None,
            host_ips,
            referents: referents::of_directory(ground, &mut parts.tasks),
        });
    };
    let (cluster, door, ties) = cluster::join(ground, invitation, known, parts).await?;
    Ok(Membership {
        cluster: Some(cluster),
        door,
        host_ips: ties.host_ips.clone(),
        referents: ties.referents.clone(),
        ties: Some(ties),
    })
}

/// A node whose agent runs, and whose doors are still shut.
struct Node {
    handle: AgentHandle,
    statistics: Arc<Figures>,
    cluster: Option<ClusterDoor>,
    certificate: Option<IdentityHandle>,
    counts: Option<ClusterCounts>,
    cgroup_version: CgroupVersion,
    losing_support: Option<&'static str>,
    ips: Vec<IpAddr>,
}

impl Node {
    async fn start(
        ground: &Ground<'_>,
        place: Place,
        machine: &Machine,
        tasks: &mut JoinSet<()>,
    ) -> Self {
        let Place { config, deps, .. } = place;
        let dns = &config.runtime.dns;
        check_node_resolver(dns, &*deps.files, &ground.recorder).await;
        let resolver = dns.resolv_conf.clone();
        let (agent, handle) = Agent::build(config, deps.clone());
        let recorder = &ground.recorder;
        recorder.normal(Subject::Node, reason::STARTING, "Starting kubelet.");
        cgroups::warn_of_v1(place.cgroup_version, recorder);
        preflight::warn_of_swap(recorder);

        tasks.spawn(agent.run());
        if let Some(file) = resolver {
            tasks.spawn(ResolverWatch::new(file, &deps, &handle).run());
        }
        let ties = place.ties.as_ref();
        let certificate = ties.and_then(|t| t.certificate.clone());
        let counts = ties.map(|t| t.counts.clone());
        if let Some(ties) = place.ties {
            ties.spawn(&handle, tasks);
        }
        static_pods::start(ground, &deps, &handle, tasks);
        let cgroup_version = place.cgroup_version;
        let statistics = stats::build(stats::Sources {
            loaded: ground.loaded,
            node_name: &machine.name,
            root: ground.root,
            version: cgroup_version,
            deps: &deps,
            handle: &handle,
            runtime: Arc::new(ground.runtime.clone()),
        });
        if ground
            .loaded
            .config
            .storage
            .local_storage_capacity_isolation
        {
            tasks.spawn(local_storage::watch(handle.clone(), statistics.clone()));
        }
        tasks.spawn(memory::tend(handle.status.changes(), statistics.readings()));
        let cluster = deps.cluster.as_ref().map(|joined| ClusterDoor {
            kube: joined.kube.clone(),
            node: joined.node.clone(),
        });
        Self {
            handle,
            statistics,
            cluster,
            certificate,
            counts,
            cgroup_version,
            losing_support: place.losing_support,
            ips: place.ips,
        }
    }

    async fn open(
        self,
        ground: &Ground<'_>,
        calls: CallLog,
        verbosity: Verbosity,
        tasks: &mut JoinSet<()>,
    ) -> Result<(AgentHandle, Arc<AgentView>)> {
        let loaded = ground.loaded;
        let facts = Facts {
            node_name: ground.name.to_owned(),
            cgroup_version: self.cgroup_version,
            losing_support: self.losing_support,
            gates: loaded.gates.clone(),
        };
        let (recorder, clock) = (ground.recorder.clone(), ground.clock.clone());
        let handle = self.handle.clone();
        let view = AgentView::new(handle, recorder, clock, calls, facts, &loaded.config)
            .with_certificate(self.certificate)
            .with_cluster(self.counts)
            .with_figures(self.statistics.clone());
        let view = Arc::new(view);
        let doors = Doors {
            loaded,
            root: ground.root,
            node_name: ground.name,
            node_ips: &self.ips,
            view: view.clone(),
            handle: &self.handle,
            cluster: self.cluster,
            runtime: Arc::new(ground.runtime.clone()),
            statistics: self.statistics,
            verbosity,
        };
        doors.open(tasks).await?;
        Ok((self.handle, view))
    }
}

/// Until another agent wants the lock file, or until a part of the agent ends, which none does by itself.
async fn wait_for_end(parts: &mut Parts) -> Result<ExitCode> {
    tokio::select! {
        biased;
        () = contended(&parts.lock_file) => Ok(ExitCode::SUCCESS),
        ended = parts.tasks.join_next() => match ended {
            Some(Err(e)) => bail!("a part of the agent failed: {e}"),
            _ => bail!("a part of the agent ended"),
        },
    }
}

async fn contended(lock_file: &Option<LockFile>) {
    match lock_file {
        Some(file) => file.contended().await,
        None => std::future::pending().await,
    }
}

fn prepare_root(root_dir: &str) -> Result<RootDir> {
    let path = PathBuf::from(root_dir);
    std::fs::create_dir_all(&path)
        .with_context(|| format!("--root-dir: cannot create {}", path.display()))?;
    let path = path
        .canonicalize()
        .with_context(|| format!("--root-dir: cannot resolve {}", path.display()))?;
    Ok(RootDir::new(path))
}

/// Clients of the runtime and of the image service, which are mostly one.
fn connect(config: &KubeletConfiguration, calls: &CallLog) -> Result<(RuntimeClient, ImageClient)> {
    let runtime = &config.runtime;
    let endpoint =
        Endpoint::parse(&runtime.container_runtime_endpoint).context("containerRuntimeEndpoint")?;
    let image_endpoint = match runtime.image_service_endpoint.as_str() {
        "" => endpoint.clone(),
        other => Endpoint::parse(other).context("imageServiceEndpoint")?,
    };
    let mut deadlines = Deadlines::default();
    if let Some(request) = runtime.runtime_request_timeout.to_std() {
        deadlines.request = request;
    }
    Ok((
        RuntimeClient::new(&endpoint, deadlines, calls.clone()),
        ImageClient::new(&image_endpoint, deadlines, calls.clone()),
    ))
}

/// The scheme of container ids. The runtime may still be starting; it is asked for a while.
async fn runtime_name(client: &dyn RuntimeService) -> String {
    let mut told = false;
    loop {
        match client.version().await {
            Ok(version) => {
                info!(
                    runtime = version.runtime_name,
                    version = version.runtime_version,
                    "The container runtime answers"
                );
                return version.runtime_name;
            }
            Err(e) if !told => {
                warn!(err = %e, "The container runtime does not answer yet, waiting for it");
                told = true;
            }
            Err(_) => {}
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

/// A number that differs from start to start.
fn fresh_seed() -> u64 {
    SystemClock.now().as_nanosecond() as u64 ^ u64::from(std::process::id())
}
