//! The cgroups of this machine: who makes them, what of the node all pods together may have, and what
//! the daemons beside them are held to.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use krablet_config::{Gate, HostFacts as HostKind, KubeletConfiguration, Loaded, validate_host};
use krablet_core::cgroups::{ClassRules, Enforcement, Reserved, class_limits, enforcement};
use krablet_cri::RuntimeService;
use krablet_events::{Recorder, Subject, reason};
use krablet_linux::{CgroupDriver, CgroupVersion, HostCgroups, HostFacts, MachineFacts};
use krablet_node::{NodeConfig, capacity};
use krablet_pod::Quantity;
use krablet_pod::api::Pod;
use krablet_pod::cgroups::{CgroupLimits, page_size_name};
use krablet_pod::qos::QosClass;
use krablet_pod::quantity::Format;
use krablet_pod::resources::Amounts;
use krablet_runtime::{MemoryQos, ResourceSettings, RuntimeConfig};
use tokio::task::JoinSet;

use crate::cluster::Ground;
use crate::reservations::Withheld;

const ENFORCED: &str = "NodeAllocatableEnforced";
const NOT_ENFORCED: &str = "FailedNodeAllocatableEnforcement";
const V1_DEPRECATED: &str = "cgroup v1 detected. cgroup v1 support is deprecated and will be removed in a future release. Please migrate to cgroup v2. More information at https://git.k8s.io/enhancements/keps/sig-node/5573-remove-cgroup-v1";
/// A wrong driver would put pods where nobody looks for them: a passing error is waited for.
const DRIVER_TRIES: u32 = 3;
/// From this version on upstream knows no other way to find the driver than to ask the runtime.
const DRIVER_MUST_BE_TOLD: &str = "1.37.0";
const DRIVER_RETRY: Duration = Duration::from_secs(1);
/// Until pods use less than all of them may have.
const RETRY: Duration = Duration::from_secs(60);

/// How the cgroups of this machine are made.
pub struct Detected {
    pub cgroups: Arc<HostCgroups>,
    /// The version of Kubernetes that will not work with this runtime any more, because it does not tell its driver.
    pub losing_support: Option<&'static str>,
}

/// The runtime's own cgroup driver counts; the configured one is for runtimes that cannot tell.
pub async fn detect(
    config: &KubeletConfiguration,
    client: &dyn RuntimeService,
) -> Result<Detected> {
    let cgroups = &config.cgroups;
    let told = told_driver(client).await?;
    let driver = match told.driver() {
        Some(0) => CgroupDriver::Systemd,
        Some(_) => CgroupDriver::Cgroupfs,
        None if cgroups.cgroup_driver == "systemd" => CgroupDriver::Systemd,
        None => CgroupDriver::Cgroupfs,
    };
    let host = HostCgroups::detect(driver, &cgroups.cgroup_root, cgroups.cgroups_per_qos)
        .await
        .context("cannot read the cgroups of this machine")?;
    check_host(config, &host)?;
    Ok(Detected {
        cgroups: Arc::new(host),
        losing_support: told.losing_support(),
    })
}

/// What the runtime says of its cgroup driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    Driver(i32),
    /// It can be asked, and says nothing of Linux.
    Nothing,
    /// It is too old to be asked.
    Unimplemented,
}

impl Told {
    fn driver(self) -> Option<i32> {
        match self {
            Self::Driver(driver) => Some(driver),
            Self::Nothing | Self::Unimplemented => None,
        }
    }

    fn losing_support(self) -> Option<&'static str> {
        (self == Self::Unimplemented).then_some(DRIVER_MUST_BE_TOLD)
    }
}

async fn told_driver(client: &dyn RuntimeService) -> Result<Told> {
    let mut tries = 1;
    loop {
        match client.runtime_config().await {
            Ok(told) => {
                let driver = told.linux.map(|linux| Told::Driver(linux.cgroup_driver));
                return Ok(driver.unwrap_or(Told::Nothing));
            }
            Err(e) if e.is_unimplemented() => return Ok(Told::Unimplemented),
            Err(e) if tries == DRIVER_TRIES => {
                return Err(e).context("the runtime does not tell its cgroup driver");
            }
            Err(e) => {
                tracing::warn!(err = %e, tries, "The runtime does not tell its cgroup driver, will retry")
            }
        }
        tries += 1;
        tokio::time::sleep(DRIVER_RETRY).await;
    }
}

fn check_host(config: &KubeletConfiguration, cgroups: &HostCgroups) -> Result<()> {
    let facts = HostKind {
        cgroup_v2: cgroups.version() == CgroupVersion::V2,
    };
    let problems = validate_host(config, facts);
    if problems.is_empty() {
        return Ok(());
    }
    let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
    bail!(
        "the configuration does not fit this machine: {}",
        lines.join("; ")
    )
}

/// Who runs on cgroup v1 had to allow it (`failCgroupV1`), and is to hear of it nevertheless.
pub fn warn_of_v1(version: CgroupVersion, recorder: &Recorder) {
    if version == CgroupVersion::V1 {
        recorder.warning(Subject::Node, reason::CGROUP_V1, V1_DEPRECATED);
    }
}

/// What the node has, and how it is divided.
pub struct Division {
    pods: CgroupLimits,
    reserved: Vec<Enforcement>,
    /// Bytes all pods together may have.
    memory: i64,
    swap: u64,
}

impl Division {
    /// Fails if more is reserved than there is.
    pub async fn of(ground: &Ground<'_>) -> Result<Self> {
        let config = &ground.loaded.config;
        let allocatable = &config.allocatable;
        let kept = Withheld::of(ground.loaded)?;
        let (system, kube) = (&kept.system, &kept.kube);
        let machine = HostFacts::new(ground.root.path()).machine().await;
        let mut capacity = capacity(&machine, &NodeConfig::new(ground.name));
        if let Some(why) = kept.parse()?.overdrawn(&capacity) {
            bail!("{why}");
        }
        if let Some(pids) = process_ids() {
            capacity.insert("pid".to_owned(), pids);
        }
        let reserved = |side, amounts, cgroup: &String| Reserved {
            side,
            amounts,
            cgroup: cgroup.clone(),
        };
        let sides = [
            reserved(
                "system",
                amounts(system),
                &allocatable.system_reserved_cgroup,
            ),
            reserved("kube", amounts(kube), &allocatable.kube_reserved_cgroup),
        ];
        let memory_qos = ground.loaded.gates.enabled(Gate::MemoryQoS);
        let enforce = &allocatable.enforce_node_allocatable;
        let (pods, reserved) = enforcement(&capacity, &sides, enforce, memory_qos);
        let (left, _) = enforcement(&capacity, &sides, &["pods".to_owned()], false);
        Ok(Self {
            pods,
            reserved,
            memory: left.memory.unwrap_or(0),
            swap: machine.swap,
        })
    }

    /// Makes the cgroups of the classes and holds them, and the daemons, to their limits.
    pub async fn enforce(
        &self,
        cgroups: &Arc<HostCgroups>,
        recorder: &Recorder,
        tasks: &mut JoinSet<()>,
    ) -> Result<()> {
        if !cgroups.per_qos() {
            return Ok(());
        }
        let root = QosClass::Guaranteed;
        let made = cgroups.create_class(root, &self.pods).await;
        made.with_context(|| format!("failed to create cgroup {}", cgroups.class_name(root)))?;
        for (qos, mut limits) in class_limits(Vec::<&Pod>::new(), &ClassRules::default()) {
            if qos == QosClass::Burstable && cgroups.has_class(qos).await {
                // An earlier agent's pods may run: their weight is known when they are.
                limits.cpu_shares = None;
            }
            if qos != root {
                let made = cgroups.create_class(qos, &limits).await;
                made.with_context(|| {
                    format!("failed to create top level {} QOS cgroup", qos.as_str())
                })?;
            }
        }
        let all = Kept {
            cgroups: cgroups.clone(),
            limits: self.pods.clone(),
            recorder: recorder.clone(),
        };
        tasks.spawn(all.run());
        for reserved in &self.reserved {
            hold(reserved, cgroups, recorder).await?;
        }
        Ok(())
    }

    /// Tells the runtime's room what it has to know of this machine's cgroups.
    pub async fn tell(&self, loaded: &Loaded, cgroups: &HostCgroups, runtime: &mut RuntimeConfig) {
        let v2 = cgroups.version() == CgroupVersion::V2;
        runtime.resources = settings(loaded, v2, self.memory);
        let node = &mut runtime.node;
        node.cgroup_v2 = v2;
        node.swap_controller = cgroups.limits_swap().await;
        node.swap_capacity = i64::try_from(self.swap).unwrap_or(i64::MAX);
        let sizes = cgroups.page_sizes().iter();
        node.huge_page_sizes = sizes.map(|size| page_size_name(*size)).collect();
    }
}

/// The limits of all pods together. They may use more already: then it takes until some are evicted.
struct Kept {
    cgroups: Arc<HostCgroups>,
    limits: CgroupLimits,
    recorder: Recorder,
}

impl Kept {
    async fn run(self) {
        let root = QosClass::Guaranteed;
        while let Err(e) = self.cgroups.limit_all(&self.limits).await {
            let name = self.cgroups.class_name(root);
            let message = format!("Failed to update Node Allocatable Limits {name}: {e}");
            self.recorder.warning(Subject::Node, NOT_ENFORCED, message);
            tokio::time::sleep(RETRY).await;
        }
        let message = "Updated Node Allocatable limit across pods";
        self.recorder.normal(Subject::Node, ENFORCED, message);
        // A part that ends would end the agent.
        std::future::pending().await
    }
}

async fn hold(reserved: &Enforcement, cgroups: &HostCgroups, recorder: &Recorder) -> Result<()> {
    let Enforcement {
        what, side, cgroup, ..
    } = reserved;
    match cgroups.limit_existing(cgroup, &reserved.limits).await {
        Ok(()) => {
            let message = format!("Updated limits on {side} cgroup {cgroup}");
            recorder.normal(Subject::Node, ENFORCED, message);
            Ok(())
        }
        Err(e) => {
            let message = format!("Failed to enforce {what} Cgroup Limits on {cgroup:?}: {e}");
            recorder.warning(Subject::Node, NOT_ENFORCED, message.clone());
            Err(anyhow!(message))
        }
    }
}

/// How many processes and threads the kernel can have.
fn process_ids() -> Option<Quantity> {
    let files = ["/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max"];
    let numbers = files
        .iter()
        .filter_map(|file| std::fs::read_to_string(file).ok()?.trim().parse().ok());
    let least = numbers.min()?;
    Some(Quantity::from_units(least, Format::DecimalSi))
}

/// Amounts that were found right with the rest of the configuration.
fn amounts(texts: &std::collections::BTreeMap<String, String>) -> Amounts {
    let parsed = |(name, text): (&String, &String)| Some((name.clone(), text.parse().ok()?));
    texts.iter().filter_map(parsed).collect()
}

/// Where the kernel can, a container that runs out of memory goes as a whole, unless the user said otherwise.
fn single_process_oom_kill(said: Option<bool>, v2: bool) -> Option<bool> {
    if v2 {
        Some(said.unwrap_or(false))
    } else {
        said
    }
}

fn settings(loaded: &Loaded, v2: bool, pods_memory: i64) -> ResourceSettings {
    let (config, gates) = (&loaded.config, &loaded.gates);
    let cgroups = &config.cgroups;
    let percent = cgroups.qos_reserved.get("memory");
    let percent = percent.and_then(|text| text.trim_end_matches('%').parse().ok());
    let period = cgroups.cpu_cfs_quota_period.to_std();
    let period = period.filter(|_| gates.enabled(Gate::CustomCPUCFSQuotaPeriod));
    let default = ResourceSettings::default();
    ResourceSettings {
        cpu_cfs_quota: cgroups.cpu_cfs_quota,
        cpu_cfs_quota_period: period.unwrap_or(default.cpu_cfs_quota_period),
        single_process_oom_kill: single_process_oom_kill(cgroups.single_process_oom_kill, v2),
        pod_level: gates.enabled(Gate::PodLevelResources),
        pids: Some(config.runtime.pod_pids_limit).filter(|n| *n > 0),
        limited_swap: cgroups.memory_swap.swap_behavior == "LimitedSwap",
        memory_qos: (v2 && gates.enabled(Gate::MemoryQoS)).then(|| MemoryQos {
            throttling: cgroups.memory_throttling_factor.unwrap_or(0.9),
            protect: cgroups.memory_reservation_policy == "TieredReservation",
        }),
        reserved_memory: percent
            .filter(|_| gates.enabled(Gate::QOSReserved))
            .map(|percent| (percent, pods_memory)),
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;

    fn loaded(args: &[&str]) -> Loaded {
        let args: Vec<OsString> = args.iter().map(Into::into).collect();
        krablet_config::load(&args, &krablet_config::StdFiles).unwrap()
    }

    #[test]
    fn who_is_not_supported_much_longer() {
        for (told, driver, losing) in [
            (Told::Driver(0), Some(0), None),
            (Told::Driver(1), Some(1), None),
            (Told::Nothing, None, None),
            (Told::Unimplemented, None, Some("1.37.0")),
        ] {
            let found = (told.driver(), told.losing_support());
            assert_eq!(found, (driver, losing), "{told:?}");
        }
    }

    #[test]
    fn what_the_user_said() {
        let said = loaded(&[
            "--pod-max-pids=70",
            "--cpu-cfs-quota=false",
            "--qos-reserved=memory=50%",
            "--feature-gates=QOSReserved=true,MemoryQoS=true",
        ]);
        let v1 = settings(&said, false, 1000);
        assert_eq!((v1.pids, v1.cpu_cfs_quota), (Some(70), false));
        assert_eq!(v1.reserved_memory, Some((50, 1000)));
        assert!(v1.memory_qos.is_none() && !v1.limited_swap && v1.pod_level);
        let v2 = settings(&said, true, 1000).memory_qos.unwrap();
        assert_eq!((v2.throttling, v2.protect), (0.9, false));
        let silent = settings(&loaded(&["--qos-reserved=memory=50%"]), true, 1000);
        assert_eq!((silent.pids, silent.reserved_memory), (None, None));
        assert!(silent.memory_qos.is_none() && silent.cpu_cfs_quota);
        assert_eq!(silent.single_process_oom_kill, Some(false));
    }

    #[test]
    fn the_old_version_is_warned_of() {
        let recorder = Recorder::new(|| jiff::Timestamp::UNIX_EPOCH);
        warn_of_v1(CgroupVersion::V2, &recorder);
        assert!(recorder.since(0).is_empty());
        warn_of_v1(CgroupVersion::V1, &recorder);
        let events = recorder.since(0);
        let told: Vec<_> = events
            .iter()
            .map(|e| (e.kind.as_str(), &*e.reason))
            .collect();
        assert_eq!(told, [("Warning", "CgroupV1")]);
    }

    #[test]
    fn what_is_killed_when_memory_runs_out() {
        let cases = [
            ((None, true), Some(false)),
            ((Some(true), true), Some(true)),
            ((Some(false), true), Some(false)),
            ((None, false), None),
            ((Some(true), false), Some(true)),
        ];
        for ((said, v2), expected) in cases {
            assert_eq!(
                single_process_oom_kill(said, v2),
                expected,
                "{said:?}, {v2}"
            );
        }
    }
}
