//! What this room is told about the node, and whom it works with.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use krablet_core::backoff::BackoffLimits;
use krablet_core::cgroups::{ClassRules, PodRules};
use krablet_core::image_gc::ImageGcPolicy;
use krablet_core::user_namespaces::IdSpace;
use krablet_cri::{ImageService, RuntimeService};
use krablet_events::Recorder;
use krablet_images::{Keychain, PullRecords, Verification};
use krablet_linux::{DiskSpace, Files, HostIps, Mounts, WallClock};
use krablet_metrics::RuntimeMetrics;
use krablet_net::Net;
use krablet_objects::{Objects, Services};
use krablet_pod::Quantity;
use krablet_pod::paths::RootDir;
use tokio::time::Instant;

use crate::handlers::Handlers;
use crate::runtime_class::RuntimeClasses;

/// Directories and files of the node.
#[derive(Clone, Debug)]
pub struct Paths {
    pub root: RootDir,
    /// `/var/log/pods`.
    pub pod_logs: PathBuf,
    /// `/var/log/containers`: links that log collectors follow.
    pub container_logs: PathBuf,
    /// The node's own `/etc/hosts`.
    pub node_hosts: PathBuf,
}

/// How pods resolve names.
#[derive(Clone, Debug, Default)]
pub struct DnsSettings {
    /// Cluster DNS servers; none on a node without a cluster.
    pub cluster_dns: Vec<String>,
    pub cluster_domain: String,
    /// The node's resolver file; none disables host lookups.
    pub resolv_conf: Option<PathBuf>,
    /// Pods may say their hostname themselves (gate `HostnameOverride`).
    pub hostname_override: bool,
}

/// What the node is and has.
#[derive(Clone, Debug, Default)]
pub struct NodeFacts {
    pub name: String,
    /// As they are known now.
    pub host_ips: HostIps,
    pub memory_capacity: i64,
    /// Default of resource fields whose limit is not set, by resource name.
    pub allocatable: BTreeMap<String, Quantity>,
    /// Page sizes the kernel offers, as `2MB`.
    pub huge_page_sizes: Vec<String>,
    /// `/sys/devices/system/cpu/cpu*/thermal_throttle`, where they exist: masked in containers.
    pub thermal_throttle: Vec<String>,
    /// What the runtime's handlers can do.
    pub handlers: Handlers,
    pub cgroup_v2: bool,
    /// The kernel limits swap by cgroup.
    pub swap_controller: bool,
    /// Bytes of swap.
    pub swap_capacity: i64,
    /// The ids that pods with users of their own share out.
    pub id_space: IdSpace,
}

/// How resources of a spec become limits.
#[derive(Clone, Debug)]
pub struct ResourceSettings {
    pub cpu_cfs_quota: bool,
    pub cpu_cfs_quota_period: Duration,
    /// `Some(false)`: an out-of-memory kill takes all processes of a container (cgroup v2).
    pub single_process_oom_kill: Option<bool>,
    /// The gate PodLevelResources.
    pub pod_level: bool,
    /// `podPidsLimit`, if it limits.
    pub pids: Option<i64>,
    /// Pods may use a share of the node's swap: `LimitedSwap`, with its gate.
    pub limited_swap: bool,
    /// The gate MemoryQoS on cgroup v2.
    pub memory_qos: Option<MemoryQos>,
    /// `qosReserved` of memory with its gate: percentage, and the bytes all pods may have.
    pub reserved_memory: Option<(i64, i64)>,
}

/// Protection and throttling of memory between request and limit.
#[derive(Clone, Copy, Debug)]
pub struct MemoryQos {
    /// `memoryThrottlingFactor`.
    pub throttling: f64,
    /// The policy TieredReservation.
    pub protect: bool,
}

impl ResourceSettings {
    pub fn pod_rules(&self) -> PodRules {
        PodRules {
            cpu_cfs_quota: self.cpu_cfs_quota,
            cpu_cfs_quota_period: self.cpu_cfs_quota_period,
            pod_level: self.pod_level,
            pids: self.pids,
            protect_memory: self.memory_qos.is_some_and(|m| m.protect),
        }
    }

    pub fn class_rules(&self) -> ClassRules {
        ClassRules {
            pod_level: self.pod_level,
            reserved_memory: self.reserved_memory,
            memory_qos: self.memory_qos.is_some(),
            protect_memory: self.memory_qos.is_some_and(|m| m.protect),
        }
    }
}

impl Default for ResourceSettings {
    fn default() -> Self {
        Self {
            cpu_cfs_quota: true,
            cpu_cfs_quota_period: Duration::from_millis(100),
            single_process_oom_kill: None,
            pod_level: true,
            pids: None,
            limited_swap: false,
            memory_qos: None,
            reserved_memory: None,
        }
    }
}

/// How images are pulled and kept.
#[derive(Clone, Debug)]
pub struct ImageSettings {
    pub serialize_pulls: bool,
    /// At most so many at a time when not serialised; none for no limit.
    pub max_parallel_pulls: Option<u32>,
    /// Pulls a second; 0 for no limit.
    pub qps: f64,
    pub burst: u32,
    /// Who must prove a right to an image that is there; none if nobody must.
    pub verification: Option<Verification>,
    pub gc: ImageGcPolicy,
}

impl Default for ImageSettings {
    fn default() -> Self {
        Self {
            serialize_pulls: true,
            max_parallel_pulls: None,
            qps: 5.0,
            burst: 10,
            verification: Some(Verification::default()),
            gc: ImageGcPolicy::default(),
        }
    }
}

#[derive(Clone, Debug)]
pub struct RuntimeConfig {
    pub paths: Paths,
    pub dns: DnsSettings,
    pub node: NodeFacts,
    pub resources: ResourceSettings,
    pub images: ImageSettings,
    /// Containers without a seccomp profile get the runtime's default one.
    pub seccomp_default: bool,
    /// How long a container that crashes waits for its next start.
    pub restart_back_off: BackoffLimits,
    /// Gate `ContainerRestartRules`.
    pub restart_rules: bool,
    /// Gate `RestartAllContainersOnContainerExits`.
    pub restart_all: bool,
    /// Gate `ContainerStopSignals`.
    pub stop_signals: bool,
    /// Gate `EnvFiles`.
    pub env_files: bool,
    /// Starts in flight at a time, and as many sandboxes being stopped: about two per core.
    pub starts_in_flight: usize,
    /// Seed of the names of termination message files.
    pub seed: u64,
}

impl RuntimeConfig {
    /// As an empty configuration has it, on a small node of which nothing is known.
    pub fn new(paths: Paths) -> Self {
        Self {
            paths,
            dns: DnsSettings::default(),
            node: NodeFacts::default(),
            resources: ResourceSettings::default(),
            images: ImageSettings::default(),
            seccomp_default: false,
            restart_back_off: BackoffLimits::of_restarts(None, false),
            restart_rules: true,
            restart_all: true,
            stop_signals: false,
            env_files: true,
            starts_in_flight: 2,
            seed: 1,
        }
    }
}

/// What the world outside the runtime has to do with images.
#[derive(Clone)]
pub struct ImageDeps {
    /// Credentials for registries.
    pub keychain: Arc<Keychain>,
    pub space: Arc<dyn DiskSpace>,
}

#[derive(Clone)]
pub struct RuntimeDeps {
    pub runtime: Arc<dyn RuntimeService>,
    pub images: Arc<dyn ImageService>,
    pub files: Arc<dyn Files>,
    pub mounts: Arc<dyn Mounts>,
    pub net: Arc<dyn Net>,
    /// ConfigMaps and secrets.
    pub objects: Arc<dyn Objects>,
    pub services: Arc<dyn Services>,
    /// Credentials for registries.
    pub keychain: Arc<Keychain>,
    /// Who may have which image; none if all may have all.
    pub pull_records: Option<Arc<PullRecords>>,
    pub classes: RuntimeClasses,
    pub recorder: Recorder,
    pub clock: Arc<dyn WallClock>,
    pub metrics: RuntimeMetrics,
    /// Where `Mono` counts from, the same for the whole agent.
    pub epoch: Instant,
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn config() -> RuntimeConfig {
        RuntimeConfig {
            node: NodeFacts {
                memory_capacity: 1 << 32,
                ..NodeFacts::default()
            },
            seed: 0,
            ..RuntimeConfig::new(Paths {
                root: RootDir::new("/root"),
                pod_logs: "/logs/pods".into(),
                container_logs: "/logs/containers".into(),
                node_hosts: "/etc/hosts".into(),
            })
        }
    }
}
