//! Wiring: from a loaded configuration to a running agent, until a signal ends it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use jiff::tz::TimeZone;
use krablet_agent::{Adoption, Agent, AgentConfig, AgentDeps, AgentHandle};
use krablet_config::{Gate, KubeletConfiguration, Loaded};
use krablet_core::backoff::BackoffLimits;
use krablet_core::gc::GcPolicy;
use krablet_core::image_gc::ImageGcPolicy;
use krablet_core::logs::RotationPolicy;
use krablet_core::restart::RestartGates;
use krablet_core::worker::Periods;
use krablet_cri::{CallLog, Deadlines, Endpoint, ImageClient, RuntimeClient, RuntimeService};
use krablet_events::{Recorder, Subject, reason};
use krablet_images::Verification;
use krablet_linux::{
    Files, HostFiles, HostMounts, HostSpace, HostTools, InotifyWatch, PatientMounts, SystemClock,
    WallClock,
};
use krablet_manifest::{Place, References};
use krablet_metrics::RestMetrics;
use krablet_net::HostNet;
use krablet_observer::ObserverConfig;
use krablet_pod::marks::PodSource;
use krablet_pod::paths::RootDir;
use krablet_runtime::dns::check_node_resolver;
use krablet_runtime::rotation::RotationConfig;
use krablet_runtime::{
    DnsSettings, ImageDeps, ImageSettings, NodeFacts as RuntimeNode, Paths, ResourceSettings,
    RuntimeConfig,
};
use krablet_server::NodeView as _;
use krablet_sources::{
    Decode, FileSource, FileSourceConfig, Origin, TakeOver, UrlSource, UrlSourceConfig,
};
use krablet_volumes::VolumesConfig;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;
use tracing::{info, warn};

use crate::cgroups::{self, Division};
use crate::cluster::{self, Ground, Known};
use crate::doors::{ClusterDoor, Doors};
use crate::logging::Verbosity;
use crate::parts::Parts;
use crate::preflight::{self, LockFile};
use crate::resolver::ResolverWatch;
use crate::systemd::ServiceManager;
use crate::view::{AgentView, Facts};
use crate::{keychain, lock, machine, memory, pressure, referents, run_once, stats, user_ids};

/// What is known of the machine before anything is built.
struct Machine {
    name: String,
    memory: i64,
    cores: usize,
}

/// Runs the agent until SIGTERM or SIGINT, or until a run-once has ended.
pub async fn run(loaded: Loaded, verbosity: Verbosity) -> Result<ExitCode> {
    let config = &loaded.config;
    let manager = ServiceManager::of_process(&loaded.gates)?;
    let machine = Machine {
        name: machine::node_name(&loaded.flags.hostname_override)?,
        memory: machine::memory(),
        cores: std::thread::available_parallelism().map_or(1, |n| n.get()),
    };
    let lock_file = match loaded.flags.lock_file.as_str() {
        "" => None,
        path => Some(LockFile::acquire(path, loaded.flags.exit_on_lock_contention).await?),
    };
    let root = prepare_root(&loaded.flags.root_dir)?;
    let _lock = lock::take(&root.path().join("krablet.lock"))?;
    let clock: Arc<dyn WallClock> = Arc::new(SystemClock);
    let event_clock = clock.clone();
    let recorder = Recorder::new(move || event_clock.now());

    let calls = CallLog::default();
    let (client, images) = connect(config, &calls)?;
    let files: Arc<dyn Files> = Arc::new(HostFiles);
    let mut parts = Parts::default();
    manager.start(&mut parts.tasks);
    let ground = Ground {
        loaded: &loaded,
        name: &machine.name,
        root: &root,
        files: files.clone(),
        clock: clock.clone(),
        recorder: recorder.clone(),
        runtime: client.clone(),
        images: images.clone(),
        calls_out: RestMetrics::default(),
        seed: fresh_seed(),
    };
    // What the user has to set right is told before the runtime is waited for.
    preflight::check(&loaded)?;
    let node_config = cluster::node_config(&ground)?;
    let id_space = user_ids::space(&loaded)?;
    let division = Division::of(&ground).await?;
    let invitation = match cluster::is_wanted(&loaded) {
        true => Some(cluster::invitation(&ground).await?),
        false => None,
    };
    let door_runtime = Arc::new(client.clone());
    let keychain = keychain::build(&ground, invitation.as_ref().map(|i| i.kube())).await?;
    // A resolver that takes its time is asked while the runtime is waited for.
    let own_ips = cluster::own_ips(&ground, &node_config);
    let (runtime_name, ips) = tokio::join!(runtime_name(&client), own_ips);
    let recursive_read_only = can_mount_recursively_read_only(&client).await;
    let cgroups = cgroups::detect(config, &client).await?;
    let tasks = &mut parts.tasks;
    division.enforce(&cgroups, &recorder, tasks).await?;
    let known = Known {
        ips: ips.clone(),
        pressures: pressure::watch(&ground, tasks).await?,
    };
    let (joined, door, ties, host_ips) = match invitation {
        Some(invitation) => {
            let joined = cluster::join(&ground, invitation, known, &mut parts).await?;
            let (joined, door, ties) = joined;
            let host_ips = ties.host_ips.clone();
            (Some(joined), door, Some(ties), host_ips)
        }
        None => {
            let (door, host_ips) = cluster::alone(&ground, known, &mut parts).await?;
            (None, door, None, host_ips)
        }
    };
    let referents = match &ties {
        Some(ties) => ties.referents.clone(),
        None => referents::of_directory(&ground, &mut parts.tasks),
    };
    let deps = AgentDeps {
        runtime: Arc::new(client),
        images: Arc::new(images),
        files,
        trees: Arc::new(HostFiles),
        mounts: Arc::new(PatientMounts::over(Arc::new(HostMounts))),
        tools: Arc::new(HostTools),
        cgroups: cgroups.clone(),
        net: Arc::new(HostNet::new().context("cannot set up TLS")?),
        clock: clock.clone(),
        recorder: recorder.clone(),
        referents,
        image_deps: ImageDeps {
            keychain,
            space: Arc::new(HostSpace),
        },
        door,
        cluster: joined,
    };
    let mut agent_config = agent_config(&loaded, &machine, &root, runtime_name)?;
    agent_config.runtime.node.recursive_read_only = recursive_read_only;
    agent_config.runtime.node.host_ips = host_ips;
    let runtime = &mut agent_config.runtime;
    division.tell(&loaded, &cgroups, runtime).await;
    runtime.node.id_space = id_space;
    let sources = agent_config.sources.clone();
    let gates = agent_config.gates;
    check_node_resolver(&agent_config.runtime.dns, &*deps.files, &recorder).await;
    let resolver = agent_config.runtime.dns.resolv_conf.clone();
    let (agent, handle) = Agent::build(agent_config, deps.clone());
    recorder.normal(Subject::Node, reason::STARTING, "Starting kubelet.");

    let tasks = &mut parts.tasks;
    tasks.spawn(agent.run());
    tasks.spawn(memory::tend(handle.status.changes()));
    if let Some(file) = resolver {
        tasks.spawn(ResolverWatch::new(file, &deps, &handle).run());
    }
    let certificate = ties.as_ref().and_then(|t| t.certificate.clone());
    let counts = ties.as_ref().map(|t| t.counts.clone());
    if let Some(ties) = ties {
        ties.spawn(&handle, tasks);
    }
    start_sources(&loaded, &machine, &root, &deps, &handle, tasks);
    let statistics = stats::build(stats::Sources {
        loaded: &loaded,
        node_name: &machine.name,
        root: &root,
        version: cgroups.version(),
        deps: &deps,
        handle: &handle,
        runtime: door_runtime.clone(),
    });
    let joined = deps.cluster.as_ref().map(|joined| ClusterDoor {
        kube: joined.kube.clone(),
        node: joined.node.clone(),
    });
    drop(deps);
    let view = AgentView::new(
        handle.clone(),
        recorder,
        clock,
        calls,
        Facts {
            node_name: machine.name.clone(),
            cgroup_version: cgroups.version(),
            gates: loaded.gates.clone(),
        },
        config,
    );
    let view = view.with_certificate(certificate).with_cluster(counts);
    let view = Arc::new(view.with_figures(statistics.clone()));
    let doors = Doors {
        loaded: &loaded,
        root: &root,
        node_name: &machine.name,
        node_ips: &ips,
        view: view.clone(),
        handle: &handle,
        cluster: joined,
        runtime: door_runtime,
        statistics,
        verbosity,
    };
    doors.open(tasks).await?;
    manager.ready(move || view.failing_checks());

    let ended = match config.sources.run_once {
        true => Ok(run_once::wait(&handle, &sources, gates).await),
        false => wait_for_end(tasks, lock_file).await,
    };
    drop((handle, manager));
    parts.end().await;
    ended
}

/// Until a signal, until another agent wants the lock file, or until a part of the agent ends, which none does by
/// itself.
async fn wait_for_end(tasks: &mut JoinSet<()>, lock_file: Option<LockFile>) -> Result<ExitCode> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
    tokio::select! {
        biased;
        _ = terminate.recv() => info!("SIGTERM: stopping; the pods go on"),
        _ = interrupt.recv() => info!("SIGINT: stopping; the pods go on"),
        () = contended(&lock_file) => {}
        ended = tasks.join_next() => match ended {
            Some(Err(e)) => bail!("a part of the agent failed: {e}"),
            _ => bail!("a part of the agent ended"),
        },
    }
    Ok(ExitCode::SUCCESS)
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

/// Whether what is mounted below a read-only mount can be made read-only too. Runtimes of old cannot tell, nor do it.
async fn can_mount_recursively_read_only(client: &dyn RuntimeService) -> bool {
    let status = client.status().await.unwrap_or_default();
    let mut handlers = status.runtime_handlers.into_iter();
    let default = handlers
        .find(|h| h.name.is_empty())
        .and_then(|h| h.features);
    default.is_some_and(|features| features.recursive_read_only_mounts)
}

fn agent_config(
    loaded: &Loaded,
    machine: &Machine,
    root: &RootDir,
    runtime_name: String,
) -> Result<AgentConfig> {
    let config = &loaded.config;
    let gates = RestartGates {
        rules: loaded.gates.enabled(Gate::ContainerRestartRules),
        restart_all: loaded
            .gates
            .enabled(Gate::RestartAllContainersOnContainerExits),
    };
    let seed = fresh_seed();
    let mut sources = BTreeSet::new();
    if !config.sources.static_pod_path.is_empty() {
        sources.insert(PodSource::File);
    }
    if !config.sources.static_pod_url.is_empty() {
        sources.insert(PodSource::Http);
    }
    if cluster::is_wanted(loaded) {
        sources.insert(PodSource::Api);
    }
    Ok(AgentConfig {
        observer: ObserverConfig::default(),
        runtime: runtime_config(loaded, machine, root, gates, seed),
        volumes: VolumesConfig {
            node_memory: u64::try_from(machine.memory).ok().filter(|m| *m > 0),
            trust_bundles: loaded.gates.enabled(Gate::ClusterTrustBundleProjection),
            ..VolumesConfig::new(root.clone())
        },
        periods: Periods {
            resync: config
                .sources
                .sync_frequency
                .to_std()
                .unwrap_or(Periods::default().resync),
            ..Periods::default()
        },
        gc: gc_policy(&loaded.flags.runtime),
        rotation: rotation(config),
        sources,
        runtime_name,
        gates,
        seed,
    })
}

/// Negative numbers stand for no limit.
fn gc_policy(flags: &krablet_config::flags::RuntimeFlags) -> GcPolicy {
    GcPolicy {
        min_age: flags.minimum_container_ttl.to_std().unwrap_or_default(),
        per_container: usize::try_from(flags.max_dead_containers_per_container).ok(),
        total: usize::try_from(flags.max_dead_containers).ok(),
    }
}

/// A negative size turns rotation off.
fn rotation(config: &KubeletConfiguration) -> RotationConfig {
    let runtime = &config.runtime;
    let size = runtime
        .container_log_max_size
        .parse::<krablet_pod::Quantity>();
    let size = size.map_or(10 << 20, krablet_pod::Quantity::value);
    let period = runtime.container_log_monitor_interval.to_std();
    RotationConfig {
        policy: RotationPolicy {
            max_size: u64::try_from(size).unwrap_or(u64::MAX),
            max_files: usize::try_from(runtime.container_log_max_files).unwrap_or(5),
        },
        period: period.unwrap_or(Duration::from_secs(10)),
        workers: usize::try_from(runtime.container_log_max_workers).unwrap_or(1),
        time_zone: TimeZone::system(),
    }
}

/// A number that differs from start to start.
fn fresh_seed() -> u64 {
    SystemClock.now().as_nanosecond() as u64 ^ u64::from(std::process::id())
}

fn runtime_config(
    loaded: &Loaded,
    machine: &Machine,
    root: &RootDir,
    gates: RestartGates,
    seed: u64,
) -> RuntimeConfig {
    let config = &loaded.config;
    let back_off = &config.runtime.crash_loop_back_off;
    let pod_logs = PathBuf::from(&config.sources.pod_logs_dir);
    RuntimeConfig {
        paths: Paths {
            root: root.clone(),
            container_logs: container_logs(&pod_logs),
            pod_logs,
            node_hosts: "/etc/hosts".into(),
        },
        dns: DnsSettings {
            cluster_dns: config.network.cluster_dns.clone(),
            cluster_domain: config.network.cluster_domain.clone(),
            resolv_conf: Some(config.network.resolv_conf.clone())
                .filter(|p| !p.is_empty())
                .map(Into::into),
            hostname_override: loaded.gates.enabled(Gate::HostnameOverride),
        },
        node: RuntimeNode {
            name: machine.name.clone(),
            memory_capacity: machine.memory,
            thermal_throttle: machine::thermal_throttle(),
            ..RuntimeNode::default()
        },
        resources: ResourceSettings::default(),
        images: ImageSettings {
            serialize_pulls: config.images.serialize_image_pulls,
            max_parallel_pulls: config
                .images
                .max_parallel_image_pulls
                .and_then(|n| u32::try_from(n).ok()),
            qps: f64::from(config.images.registry_pull_qps),
            burst: u32::try_from(config.images.registry_burst).unwrap_or_default(),
            verification: verification(loaded),
            gc: image_gc(&config.images),
        },
        seccomp_default: config.runtime.seccomp_default,
        restart_back_off: BackoffLimits::of_restarts(
            back_off
                .max_container_restart_period
                .and_then(krablet_config::Duration::to_std),
            loaded
                .gates
                .enabled(Gate::ReduceDefaultCrashLoopBackOffDecay),
        ),
        restart_rules: gates.rules,
        restart_all: gates.restart_all,
        stop_signals: loaded.gates.enabled(Gate::ContainerStopSignals),
        env_files: loaded.gates.enabled(Gate::EnvFiles),
        starts_in_flight: 2 * machine.cores,
        seed,
    }
}

/// Without the gate whoever runs on the node may have what is on it.
fn verification(loaded: &Loaded) -> Option<Verification> {
    let images = &loaded.config.images;
    let verified = loaded.gates.enabled(Gate::KubeletEnsureSecretPulledImages);
    verified.then(|| {
        let policy = &images.pull_credentials_verification_policy;
        let list = &images.preloaded_images_verification_allowlist;
        // One that is not known was refused with the rest of the configuration.
        Verification::parse(policy, list).unwrap_or_default()
    })
}

fn image_gc(images: &krablet_config::types::images::Images) -> ImageGcPolicy {
    let percent = |value: i32| u8::try_from(value).unwrap_or(100);
    ImageGcPolicy {
        high_percent: percent(images.gc_high_threshold_percent),
        low_percent: percent(images.gc_low_threshold_percent),
        min_age: images.minimum_gc_age.to_std().unwrap_or_default(),
        max_age: images.maximum_gc_age.to_std().filter(|age| !age.is_zero()),
    }
}

/// Links for log collectors stand beside the pod logs: `/var/log/containers` for `/var/log/pods`.
fn container_logs(pod_logs: &Path) -> PathBuf {
    pod_logs.parent().unwrap_or(pod_logs).join("containers")
}

fn start_sources(
    loaded: &Loaded,
    machine: &Machine,
    root: &RootDir,
    deps: &AgentDeps,
    handle: &AgentHandle,
    tasks: &mut JoinSet<()>,
) {
    let sources = &loaded.config.sources;
    let decode = decoder(&machine.name, references_of(loaded));
    let default = Duration::from_secs(20);
    let adoption = Adoption::new(handle.observer.clone(), deps.files.clone(), root.clone());
    let adoption: Option<Arc<dyn TakeOver>> = Some(Arc::new(adoption));
    if !sources.static_pod_path.is_empty() {
        let source = FileSource::new(
            FileSourceConfig {
                path: sources.static_pod_path.clone().into(),
                check_frequency: sources.file_check_frequency.to_std().unwrap_or(default),
            },
            deps.files.clone(),
            Arc::new(InotifyWatch),
            decode.clone(),
            adoption.clone(),
        );
        tasks.spawn(source.run(handle.sets.clone()));
    }
    if !sources.static_pod_url.is_empty() {
        let headers = sources.static_pod_url_header.iter();
        let headers = headers
            .flat_map(|(name, values)| values.iter().map(move |v| (name.clone(), v.clone())));
        let source = UrlSource::new(
            UrlSourceConfig {
                url: sources.static_pod_url.clone(),
                headers: headers.collect(),
                check_frequency: sources.http_check_frequency.to_std().unwrap_or(default),
            },
            deps.net.clone(),
            decode,
            adoption,
        );
        tasks.spawn(source.run(handle.sets.clone()));
    }
    let none = sources.static_pod_path.is_empty() && sources.static_pod_url.is_empty();
    if none && deps.cluster.is_none() {
        warn!("Neither staticPodPath nor staticPodURL is set: this node will run no pods");
    }
}

/// What static pods of this node may refer to.
fn references_of(loaded: &Loaded) -> References {
    let refused = loaded.gates.enabled(Gate::PreventStaticPodAPIReferences);
    match (refused, loaded.flags.local_objects_dir.is_empty()) {
        (false, _) => References::All,
        (true, false) => References::LocalObjects,
        (true, true) => References::None,
    }
}

/// Manifests become static pods of this node; what has no effect in them is told in the log.
fn decoder(node_name: &str, references: References) -> Decode {
    let node_name = node_name.to_owned();
    Arc::new(move |bytes, origin| {
        let place = match origin {
            Origin::File(path) => Place::File(path.display().to_string()),
            Origin::Url(url) => Place::Url(url.clone()),
        };
        let origin = krablet_manifest::Origin {
            place,
            node_name: node_name.clone(),
            references,
        };
        let decoded = krablet_manifest::decode(bytes, &origin).map_err(|e| e.to_string())?;
        for warning in &decoded.warnings {
            warn!(manifest = ?origin.place, "Manifest: {warning}");
        }
        Ok(decoded.pods)
    })
}
