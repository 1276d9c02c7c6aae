//! What was read, as values: of one cgroup, of the network, of file systems, of the whole node.

use std::sync::Arc;

use jiff::Timestamp;
use krablet_pod::PodRef;

/// How much is read. Each has all of those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Depth {
    /// What schedulers and autoscalers look at.
    CpuAndMemory,
    /// What the summary tells.
    Summary,
    /// Everything, for `/metrics/cadvisor`.
    Full,
}

/// One cgroup. What its kernel or its controllers do not tell is absent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cgroup {
    pub cpu: Option<Cpu>,
    pub memory: Option<Memory>,
    pub tasks: Option<Tasks>,
    pub io: Vec<DeviceIo>,
    pub pressure: Pressure,
}

/// Times in nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cpu {
    pub usage: u64,
    pub user: u64,
    pub system: u64,
    /// Over the last seconds; from two readings.
    pub nano_cores: Option<u64>,
    /// Counted where there is a quota.
    pub throttling: Option<Throttling>,
    /// In the unit of cgroup v1, `cpu.shares`.
    pub shares: u64,
    /// Microseconds.
    pub period: u64,
    pub quota: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Throttling {
    pub periods: u64,
    pub throttled_periods: u64,
    /// Nanoseconds.
    pub throttled_time: u64,
}

/// In bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    pub usage: u64,
    /// Without file pages that nobody has looked at for a while.
    pub working_set: u64,
    pub rss: u64,
    pub swap: u64,
    pub page_faults: u64,
    pub major_page_faults: u64,
    pub parts: MemoryParts,
    pub limits: MemoryLimits,
    /// The most there ever was.
    pub peak: u64,
    /// How often the limit was hit.
    pub failures: u64,
    pub oom_kills: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryParts {
    pub cache: u64,
    pub mapped_file: u64,
    pub active_file: u64,
    pub inactive_file: u64,
    pub kernel: u64,
}

/// None: without limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryLimits {
    pub memory: Option<u64>,
    pub swap: Option<u64>,
    pub reservation: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tasks {
    pub processes: u64,
    pub threads: u64,
    /// 0: without limit.
    pub threads_max: u64,
    pub files: Option<OpenFiles>,
}

/// Of all processes in a cgroup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenFiles {
    pub descriptors: u64,
    pub sockets: u64,
    /// Soft limit of the first process; -1: without.
    pub limit: Option<i64>,
}

/// Bytes and operations of one block device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceIo {
    pub major: u32,
    pub minor: u32,
    pub read_bytes: u64,
    pub write_bytes: u64,
    pub reads: u64,
    pub writes: u64,
    pub cost: IoCost,
}

/// What the kernel's model of a device's cost says, in microseconds; each as far as the kernel tells it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoCost {
    pub usage: Option<u64>,
    pub wait: Option<u64>,
    pub in_debt: Option<u64>,
    pub in_delay: Option<u64>,
}

/// Pressure stall information, where the kernel has it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pressure {
    pub cpu: Option<Psi>,
    pub memory: Option<Psi>,
    pub io: Option<Psi>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Psi {
    pub full: PsiLine,
    pub some: PsiLine,
}

/// Averages in per cent, the total in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PsiLine {
    pub avg10: f64,
    pub avg60: f64,
    pub avg300: f64,
    pub total: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interface {
    pub name: String,
    pub received: Traffic,
    pub sent: Traffic,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    pub bytes: u64,
    pub packets: u64,
    pub errors: u64,
    pub dropped: u64,
}

/// A file system as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileSystem {
    /// What it is mounted from, such as `/dev/sda1`.
    pub device: String,
    pub capacity: u64,
    /// For those without special rights.
    pub available: u64,
    pub used: u64,
    pub inodes: u64,
    pub inodes_free: u64,
}

/// What a part of a file system takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub bytes: u64,
    pub inodes: u64,
}

impl Usage {
    pub fn add(&mut self, other: Usage) {
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.inodes = self.inodes.saturating_add(other.inodes);
    }
}

/// One container, or the sandbox of a pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Container {
    pub name: Arc<str>,
    pub id: String,
    pub image: String,
    /// Its cgroup, as a path below the hierarchy.
    pub path: String,
    pub started: Option<Timestamp>,
    pub cgroup: Cgroup,
    pub writable: Option<Usage>,
    pub logs: Option<Usage>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Volume {
    pub name: String,
    /// Namespace and name of the claim behind it.
    pub claim: Option<(String, String)>,
    /// Its bytes are the pod's own on the node's disk.
    pub ephemeral: bool,
    pub file_system: FileSystem,
    pub usage: Usage,
    /// When the usage was found.
    pub at: Timestamp,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Pod {
    pub pod: PodRef,
    pub started: Option<Timestamp>,
    pub path: String,
    pub cgroup: Option<Cgroup>,
    pub sandbox: Option<Container>,
    pub network: Vec<Interface>,
    pub containers: Vec<Container>,
    pub volumes: Vec<Volume>,
    /// Logs that are no container's, and the hosts file.
    pub other: Usage,
}

/// A cgroup of the node that is no pod's.
#[derive(Clone, Debug, PartialEq)]
pub struct System {
    /// By which the summary knows it: `kubelet`, `runtime`, `misc`, `pods`; others are only counted.
    pub name: Option<&'static str>,
    pub path: String,
    pub started: Option<Timestamp>,
    pub cgroup: Cgroup,
}

/// What does not change while the node is up.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Facts {
    pub node_name: String,
    pub booted: Option<Timestamp>,
    pub boot_id: String,
    pub machine_id: String,
    pub system_uuid: String,
    pub kernel_version: String,
    pub os_image: String,
    pub cpus: u32,
    pub physical_cores: u32,
    pub sockets: u32,
    pub memory: u64,
    pub swap: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessLimits {
    pub max: Option<i64>,
    pub current: Option<i64>,
}

/// Everything one scrape read.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    pub at: Timestamp,
    pub facts: Arc<Facts>,
    pub node: Cgroup,
    pub network: Vec<Interface>,
    /// The file system of the agent's directory.
    pub root_fs: Option<FileSystem>,
    /// With what images take of it.
    pub image_fs: Option<(FileSystem, Option<Usage>)>,
    /// With what containers write, where that is another one.
    pub container_fs: Option<(FileSystem, Option<Usage>)>,
    pub processes: ProcessLimits,
    pub systems: Vec<System>,
    pub pods: Vec<Pod>,
    /// Names of block devices by their numbers.
    pub devices: Vec<(u32, u32, String)>,
}
