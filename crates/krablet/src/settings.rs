//! What the agent is configured with, from the kubelet's configuration, flags and feature gates.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use jiff::tz::TimeZone;
use krablet_agent::AgentConfig;
use krablet_config::{Gate, KubeletConfiguration, Loaded};
use krablet_core::backoff::BackoffLimits;
use krablet_core::gc::GcPolicy;
use krablet_core::image_gc::ImageGcPolicy;
use krablet_core::logs::RotationPolicy;
use krablet_core::restart::RestartGates;
use krablet_core::worker::Periods;
use krablet_images::Verification;
use krablet_observer::ObserverConfig;
use krablet_pod::marks::PodSource;
use krablet_pod::paths::RootDir;
use krablet_runtime::rotation::RotationConfig;
use krablet_runtime::{
    DnsSettings, ImageSettings, NodeFacts as RuntimeNode, Paths, ResourceSettings, RuntimeConfig,
};
use krablet_volumes::VolumesConfig;

use crate::cluster::{self, Ground};
use crate::machine::{self, Machine};

pub fn agent_config(ground: &Ground<'_>, machine: &Machine, runtime_name: String) -> AgentConfig {
    let Ground {
        loaded, root, seed, ..
    } = *ground;
    let config = &loaded.config;
    let gates = RestartGates {
        rules: loaded.gates.enabled(Gate::ContainerRestartRules),
        restart_all: loaded
            .gates
            .enabled(Gate::RestartAllContainersOnContainerExits),
    };
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
    AgentConfig {
        observer: ObserverConfig::default(),
        runtime: runtime_config(loaded, machine, root, gates, seed),
        volumes: VolumesConfig {
            node_memory: u64::try_from(machine.memory).ok().filter(|m| *m > 0),
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
    }
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

fn runtime_config(
    loaded: &Loaded,
    machine: &Machine,
    root: &RootDir,
    gates: RestartGates,
    seed: u64,
) -> RuntimeConfig {
    let config = &loaded.config;
    let back_off = &config.runtime.crash_loop_back_off;
    RuntimeConfig {
        paths: paths(loaded, root),
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

/// Log collectors look for links in one place, which `podLogsDir` does not move.
fn paths(loaded: &Loaded, root: &RootDir) -> Paths {
    Paths {
        root: root.clone(),
        pod_logs: PathBuf::from(&loaded.config.sources.pod_logs_dir),
        container_logs: PathBuf::from(&loaded.flags.runtime.container_logs_dir),
        node_hosts: "/etc/hosts".into(),
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::path::Path;

    use krablet_config::StdFiles;

    use super::*;

    #[test]
    fn links_to_logs_stay_where_collectors_look() {
        for (flag, links) in [
            (None, "/var/log/containers"),
            (Some("--container-logs-dir=/data/links"), "/data/links"),
        ] {
            let args: Vec<OsString> = flag.into_iter().map(Into::into).collect();
            let mut loaded = krablet_config::load(&args, &StdFiles).unwrap();
            "/data/pods".clone_into(&mut loaded.config.sources.pod_logs_dir);
            let paths = paths(&loaded, &RootDir::new("/root"));
            assert_eq!(paths.pod_logs, Path::new("/data/pods"));
            assert_eq!(paths.container_logs, Path::new(links), "{flag:?}");
        }
    }
}
