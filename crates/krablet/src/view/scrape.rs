//! What a scrape of the agent's metrics tells: what the rooms know at this moment, as series.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use krablet_agent::{AgentHandle, WorkingPods};
use krablet_config::gates::Stage;
use krablet_config::{FeatureGates, Gate, KUBERNETES_VERSION};
use krablet_cri::{Call, CallStats};
use krablet_identity::{Ages, IdentityHandle};
use krablet_linux::CgroupVersion;
use krablet_metrics::{Distribution, Metrics, Page, ProcessStats, RestMetrics, Series, series};
use krablet_node::{Startup, StartupMoments};
use krablet_observer::{Histogram, ObserverStats};
use krablet_pod::containers::ephemeral_containers;
use krablet_pod::observed::{ContainerState, ObservedPod};
use krablet_pod::{PodRef, marks};
use krablet_probes::{Durations, ProbeMetrics};
use krablet_stats::Storage;
use krablet_status::sender::SyncDurations;
use krablet_volumes::Census;
use tokio::time::Instant;

/// Figures of containers are read from their cgroups and told under cAdvisor's names, whatever the runtime could tell.
const METRICS_PROVIDER: &str = "cadvisor";

/// What does not change while the agent runs.
pub struct Facts {
    pub node_name: String,
    pub cgroup_version: CgroupVersion,
    /// The version of Kubernetes that will not work with this runtime any more, if one is known.
    pub losing_support: Option<&'static str>,
    pub gates: FeatureGates,
}

/// The node's own client certificate.
#[derive(Clone, Copy, Debug)]
pub struct CertificateNumbers {
    pub ttl_seconds: f64,
    pub renew_errors: u64,
}

impl CertificateNumbers {
    pub fn of(identity: &IdentityHandle) -> Self {
        Self {
            ttl_seconds: identity.ttl_seconds(),
            renew_errors: identity.renew_errors(),
        }
    }
}

/// The certificate the cluster issued to this node's server.
#[derive(Clone, Copy, Debug)]
pub struct ServingNumbers {
    pub certificate: CertificateNumbers,
    pub ages: Ages,
}

impl ServingNumbers {
    pub fn of(identity: &IdentityHandle) -> Self {
        Self {
            certificate: CertificateNumbers::of(identity),
            ages: identity.ages(),
        }
    }
}

/// What is counted of a node's ties to its cluster.
#[derive(Clone)]
pub struct ClusterCounts {
    pub calls: RestMetrics,
    pub startup: Startup,
}

/// The same, at a moment.
pub struct ClusterNumbers {
    pub calls: RestMetrics,
    pub startup: StartupMoments,
}

impl ClusterNumbers {
    pub fn of(counts: &ClusterCounts) -> Self {
        Self {
            calls: counts.calls.clone(),
            startup: counts.startup.moments(),
        }
    }
}

/// Pods from the API server, and static ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PodCount {
    pub api: u64,
    pub fixed: u64,
}

impl PodCount {
    fn add(&mut self, is_static: bool) {
        match is_static {
            true => self.fixed += 1,
            false => self.api += 1,
        }
    }
}

/// The moment a scrape is of.
pub struct Moment {
    pub now: Timestamp,
    pub instant: Instant,
    pub desired: PodCount,
    pub active: PodCount,
    pub working: BTreeMap<WorkingPods, u64>,
    /// What the runtime was last seen to hold.
    pub mirrors: u64,
    /// How long statuses took to the API server, if there is one.
    pub statuses: Option<SyncDurations>,
    pub certificate: Option<CertificateNumbers>,
    pub serving: Option<ServingNumbers>,
    pub cluster: Option<ClusterNumbers>,
    /// Ephemeral containers in the specs of wanted pods.
    pub ephemeral: u64,
    pub volumes: Census,
    /// Certificates of pods, by signer and state.
    pub certificates: BTreeMap<(String, &'static str), usize>,
    /// Volumes and logs.
    pub storage: Storage,
    pub runtime: Vec<Arc<ObservedPod>>,
    pub observer: ObserverStats,
    /// When the runtime was last observed with success.
    pub last_ok: Option<Instant>,
    pub calls: CallStats,
    /// None if the kernel does not tell.
    pub process: Option<ProcessStats>,
}

impl Moment {
    pub fn of(handle: &AgentHandle, calls: CallStats, now: Timestamp) -> Self {
        let mut desired = PodCount::default();
        let mut active = PodCount::default();
        let mut ephemeral = 0;
        let mut with_volumes = Vec::new();
        for pod in handle.desired.all() {
            let debugged = pod.spec.as_ref().map_or(&[][..], ephemeral_containers);
            ephemeral += debugged.len() as u64;
            let uid = PodRef::of(&pod).uid;
            let is_static = marks::is_static(&pod);
            desired.add(is_static);
            let status = handle.status.status(&uid);
            if handle.accounts.is_active(&uid, status.as_deref()) {
                active.add(is_static);
                with_volumes.push(pod);
            }
        }
        let wanted = |uid: &_| handle.desired.get(uid).is_some();
        Self {
            now,
            instant: Instant::now(),
            desired,
            active,
            mirrors: handle.desired.mirrors().len() as u64,
            statuses: handle.sender.as_ref().map(|s| s.numbers().durations),
            certificate: None,
            serving: None,
            cluster: None,
            ephemeral,
            volumes: handle.volumes.census(&with_volumes),
            certificates: handle.volumes.certificate_states(),
            storage: Storage::default(),
            working: handle.accounts.working_pods(wanted),
            runtime: handle.observer.all(),
            observer: handle.observer.stats(),
            last_ok: handle.observer.health().borrow().last_ok,
            calls,
            process: ProcessStats::read().ok(),
        }
    }
}

/// The text of `/metrics`.
pub fn metrics(facts: &Facts, moment: &Moment, counted: &Metrics) -> String {
    let mut page = Page::default();
    counted.put_on(&mut page);
    put_facts(&mut page, facts);
    put_cluster(&mut page, moment);
    put_pods(&mut page, moment);
    put_storage(&mut page, &moment.storage);
    put_runtime(&mut page, &moment.runtime);
    put_observer(&mut page, moment);
    put_calls(&mut page, moment);
    put_process(&mut page, moment.process.as_ref());
    page.render()
}

/// The text of `/metrics/probes`.
pub fn probe_metrics(probes: &[ProbeMetrics], process: Option<&ProcessStats>) -> String {
    let mut page = Page::default();
    // Two pods of one name (the old one is still ending) are told apart by their UID, which the
    // durations do not have.
    let mut durations: BTreeMap<[&str; 4], Distribution> = BTreeMap::new();
    for probe in probes {
        let (container, kind) = (&*probe.container, probe.kind.as_str());
        let (namespace, name) = (probe.pod.namespace.as_ref(), probe.pod.name.as_ref());
        let uid = probe.pod.uid.as_str();
        for (result, count) in [("successful", probe.successful), ("failed", probe.failed)] {
            if count > 0 {
                let labels = [container, namespace, name, uid, kind, result];
                page.count(&series::PROBE_TOTAL, &labels, count);
            }
        }
        if probe.successful > 0 {
            let labels = [container, namespace, name, kind];
            let sum = durations.entry(labels);
            sum.or_insert_with(|| Distribution::new(&series::DEFAULT))
                .merge(&of_probe(&probe.durations));
        }
    }
    for (labels, sum) in durations {
        page.distribution(&series::PROBE_DURATION, &labels, sum);
    }
    if let Some(process) = process {
        page.number(&series::PROCESS_START_TIME, &[], process.start_seconds);
    }
    page.render()
}

fn put_facts(page: &mut Page, facts: &Facts) {
    page.count(&series::NODE_NAME, &[&facts.node_name], 1);
    let version = match facts.cgroup_version {
        CgroupVersion::V1 => 1,
        CgroupVersion::V2 => 2,
    };
    page.count(&series::CGROUP_VERSION, &[], version);
    page.count(&series::METRICS_PROVIDER, &[METRICS_PROVIDER], 1);
    if let Some(version) = facts.losing_support {
        page.count(&series::CRI_LOSING_SUPPORT, &[version], 1);
    }
    let (major, minor) = major_minor(KUBERNETES_VERSION);
    let platform = format!("linux/{}", architecture());
    let build = [
        "",
        "rustc",
        "",
        "",
        KUBERNETES_VERSION,
        "",
        major,
        minor,
        &platform,
    ];
    page.count(&series::BUILD_INFO, &build, 1);
    page.count(&series::KRABLET_BUILD_INFO, &[env!("CARGO_PKG_VERSION")], 1);
    for spec in Gate::all() {
        let stage = match spec.stage {
            Stage::Alpha => "ALPHA",
            Stage::Beta => "BETA",
            Stage::Ga => "",
            Stage::Deprecated => "DEPRECATED",
        };
        let on = u64::from(facts.gates.in_effect(spec.gate));
        page.count(&series::FEATURE_ENABLED, &[spec.name, stage], on);
    }
}

fn major_minor(version: &str) -> (&str, &str) {
    let mut parts = version.trim_start_matches('v').split('.');
    (
        parts.next().unwrap_or_default(),
        parts.next().unwrap_or_default(),
    )
}

/// As Go names it.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

fn put_pods(page: &mut Page, moment: &Moment) {
    for (series, count) in [
        (&series::DESIRED_PODS, moment.desired),
        (&series::ACTIVE_PODS, moment.active),
    ] {
        page.count(series, &[""], count.api);
        page.count(series, &["true"], count.fixed);
    }
    page.count(&series::MIRROR_PODS, &[], moment.mirrors);
    let ephemeral = &series::MANAGED_EPHEMERAL_CONTAINERS;
    page.count(ephemeral, &[], moment.ephemeral);
    for ((plugin, state), count) in &moment.volumes {
        page.count(&series::TOTAL_VOLUMES, &[plugin, state], *count);
    }
    for ((signer, state), count) in &moment.certificates {
        page.count(&series::POD_CERTIFICATES, &[signer, state], *count as u64);
    }
    for (group, count) in &moment.working {
        let labels = [group.config, group.lifecycle, group.is_static];
        page.count(&series::WORKING_PODS, &labels, *count);
    }
}

fn put_runtime(page: &mut Page, pods: &[Arc<ObservedPod>]) {
    let ready = pods.iter().filter(|p| p.ready_sandboxes().next().is_some());
    page.count(&series::RUNNING_PODS, &[], ready.count() as u64);
    for (state, name) in [
        (ContainerState::Created, "created"),
        (ContainerState::Running, "running"),
        (ContainerState::Exited, "exited"),
        (ContainerState::Unknown, "unknown"),
    ] {
        let containers = pods.iter().flat_map(|p| &p.containers);
        let count = containers.filter(|c| c.state == state).count();
        page.count(&series::RUNNING_CONTAINERS, &[name], count as u64);
    }
}

/// What only a node of a cluster has to tell.
fn put_cluster(page: &mut Page, moment: &Moment) {
    if let Some(seen) = &moment.statuses {
        let seen = Distribution::of(&series::STATUS_SYNC, &seen.buckets, seen.count, seen.sum);
        page.distribution(&series::POD_STATUS_SYNC_DURATION, &[], seen);
    }
    if let Some(own) = &moment.certificate {
        page.number(&series::CERTIFICATE_TTL, &[], own.ttl_seconds);
        page.count(&series::CERTIFICATE_RENEW_ERRORS, &[], own.renew_errors);
    }
    if let Some(serving) = &moment.serving {
        put_serving(page, serving);
    }
    if let Some(cluster) = &moment.cluster {
        cluster.calls.put_on(page);
        if let Some(process) = &moment.process {
            put_startup(page, moment, &cluster.startup, process);
        }
    }
}

/// How the node came to be, once it has come so far. Told only of a node that was made in this life of the agent.
fn put_startup(page: &mut Page, moment: &Moment, node: &StartupMoments, process: &ProcessStats) {
    let (Some(attempted), Some(registered)) = (node.attempted, node.registered) else {
        return;
    };
    let between = |from: Instant, to: Instant| to.saturating_duration_since(from).as_secs_f64();
    let before = process.start_after_boot;
    // Both the time and that of the start go by the clock of the wall as it is now.
    let age = moment.now.as_duration().as_secs_f64() - process.start_seconds;
    let since_attempt = between(attempted, moment.instant);
    let first = (age - since_attempt).max(0.0);
    let second = between(attempted, registered);
    page.number(&series::STARTUP_PRE_KUBELET, &[], before);
    page.number(&series::STARTUP_PRE_REGISTRATION, &[], first);
    page.number(&series::STARTUP_REGISTRATION, &[], second);
    if let Some(ready) = node.ready {
        let third = between(registered, ready);
        let total = before + first + second + third;
        page.number(&series::STARTUP_POST_REGISTRATION, &[], third);
        page.number(&series::STARTUP_TOTAL, &[], total);
    }
}

fn put_serving(page: &mut Page, serving: &ServingNumbers) {
    let ServingNumbers { certificate, ages } = serving;
    let ttl = &series::SERVER_CERTIFICATE_TTL;
    page.number(ttl, &[], certificate.ttl_seconds);
    let errors = &series::SERVER_CERTIFICATE_RENEW_ERRORS;
    page.count(errors, &[], certificate.renew_errors);
    let bounds = &series::CERTIFICATE_AGE;
    let ages = Distribution::of(bounds, &ages.buckets, ages.count, ages.sum);
    page.distribution(&series::SERVER_CERTIFICATE_ROTATION, &[], ages);
}

fn put_storage(page: &mut Page, storage: &Storage) {
    for ((namespace, claim), volume) in &storage.claims {
        let fs = &volume.file_system;
        for (series, count) in [
            (&series::VOLUME_CAPACITY, fs.capacity),
            (&series::VOLUME_AVAILABLE, fs.available),
            (&series::VOLUME_USED, volume.usage.bytes),
            (&series::VOLUME_INODES, fs.inodes),
            (&series::VOLUME_INODES_FREE, fs.inodes_free),
            (&series::VOLUME_INODES_USED, volume.usage.inodes),
        ] {
            page.count(series, &[namespace, claim], count);
        }
    }
    for log in &storage.logs {
        let (pod, used) = (&log.pod, log.usage.bytes);
        let labels = [&*log.container, &pod.namespace, &pod.name, pod.uid.as_str()];
        page.count(&series::CONTAINER_LOG_USED, &labels, used);
    }
}

fn put_observer(page: &mut Page, moment: &Moment) {
    let stats = &moment.observer;
    for (series, seen) in [
        (&series::PLEG_RELIST_DURATION, &stats.audit_durations),
        (&series::PLEG_RELIST_INTERVAL, &stats.audit_intervals),
        (&series::PLEG_POD_RELIST_DURATION, &stats.refresh_durations),
        (&series::EVENTED_PLEG_LATENCY, &stats.event_ages),
    ] {
        page.distribution(series, &[], of_observer(seen));
    }
    if let Some(last) = moment.last_ok {
        let ago = moment.instant.saturating_duration_since(last);
        let at = moment.now.as_duration().as_secs_f64() - ago.as_secs_f64();
        page.number(&series::PLEG_LAST_SEEN, &[], at);
    }
    let opened = moment.calls.calls.get(&Call::GetContainerEvents);
    let (ended, failed) = opened.map_or((0, 0), |c| (c.ended, c.failed));
    let counts: [(&'static Series, u64); 8] = [
        (&series::PLEG_DISCARD_EVENTS, 0),
        (
            &series::EVENTED_PLEG_CONNECTIONS,
            ended.saturating_sub(failed),
        ),
        (
            &series::EVENTED_PLEG_CONNECTION_ERRORS,
            failed + stats.stream_losses,
        ),
        (&series::KRABLET_AUDIT_DISCREPANCIES, stats.discrepancies),
        (&series::KRABLET_AUDIT_FAILURES, stats.audit_failures),
        (&series::KRABLET_LOOKS, stats.refreshes),
        (&series::KRABLET_LOOK_FAILURES, stats.refresh_failures),
        (&series::KRABLET_EVENTS, stats.events),
    ];
    for (series, count) in counts {
        page.count(series, &[], count);
    }
}

fn put_calls(page: &mut Page, moment: &Moment) {
    let CallStats {
        calls,
        in_flight,
        unlisted,
    } = &moment.calls;
    for (call, counters) in calls {
        let labels = [call.operation()];
        page.count(&series::RUNTIME_OPERATIONS, &labels, counters.ended);
        if counters.failed > 0 {
            page.count(&series::RUNTIME_OPERATIONS_ERRORS, &labels, counters.failed);
        }
        let sum = counters.total.as_secs_f64();
        let seen = Distribution::of(
            &series::RUNTIME_CALL,
            &counters.buckets,
            counters.ended,
            sum,
        );
        page.distribution(&series::RUNTIME_OPERATIONS_DURATION, &labels, seen);
    }
    let mut oldest: BTreeMap<&str, (u64, Instant)> = BTreeMap::new();
    for call in in_flight {
        let (count, since) = oldest
            .entry(call.call.operation())
            .or_insert((0, call.since));
        *count += 1;
        *since = call.since.min(*since);
    }
    for (operation, (count, since)) in oldest {
        let age = moment.instant.saturating_duration_since(since);
        page.count(&series::KRABLET_CALLS_IN_FLIGHT, &[operation], count);
        page.number(&series::KRABLET_CALL_AGE, &[operation], age.as_secs_f64());
    }
    page.count(&series::KRABLET_CALLS_UNLISTED, &[], *unlisted as u64);
}

fn put_process(page: &mut Page, process: Option<&ProcessStats>) {
    let Some(process) = process else {
        return;
    };
    let limit = |limit: Option<u64>| limit.map_or(-1.0, |l| l as f64);
    let numbers: [(&'static Series, f64); 7] = [
        (&series::PROCESS_CPU, process.cpu_seconds),
        (
            &series::PROCESS_RESIDENT_MEMORY,
            process.resident_bytes as f64,
        ),
        (
            &series::PROCESS_VIRTUAL_MEMORY,
            process.virtual_bytes as f64,
        ),
        (
            &series::PROCESS_VIRTUAL_MEMORY_MAX,
            limit(process.virtual_limit),
        ),
        (&series::PROCESS_OPEN_FDS, process.open_files as f64),
        (&series::PROCESS_MAX_FDS, limit(process.open_files_limit)),
        (&series::PROCESS_START_TIME, process.start_seconds),
    ];
    for (series, number) in numbers {
        page.number(series, &[], number);
    }
}

fn of_observer(seen: &Histogram) -> Distribution {
    let sum = seen.sum.as_secs_f64();
    Distribution::of(&series::DEFAULT, &seen.buckets, seen.count, sum)
}

fn of_probe(seen: &Durations) -> Distribution {
    Distribution::of(&series::DEFAULT, &seen.buckets, seen.count, seen.sum)
}

#[cfg(test)]
mod tests;
