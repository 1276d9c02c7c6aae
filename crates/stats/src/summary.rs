//! From what was read to the summary. Pure.

use serde::ser::SerializeStruct as _;
use serde::{Serialize, Serializer};

use crate::api::{
    ContainerStats, CpuStats, FsStats, InterfaceStats, IoStats, MemoryStats, NetworkStats,
    NodeStats, PodReference, PodStats, ProcessStats, PsiData, PsiStats, PvcReference, RlimitStats,
    RuntimeStats, SwapStats, Time, VolumeStats,
};
use crate::reading::{
    Cgroup, Container, Depth, FileSystem, Interface, Pod, Psi, PsiLine, Snapshot, Usage, Volume,
};

/// The interface that leads out of a pod or a node, wherever there is one of this name.
const DEFAULT_INTERFACE: &str = "eth0";

/// The summary of a reading, made as it is written: of one pod after the other, so that a node with many needs no more
/// memory for it than the text itself.
pub fn summary(snapshot: &Snapshot, depth: Depth) -> Summary<'_> {
    Summary(Scene {
        snapshot,
        time: Time::of(snapshot.at),
        full: depth >= Depth::Summary,
    })
}

pub struct Summary<'a>(Scene<'a>);

impl Serialize for Summary<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut whole = serializer.serialize_struct("Summary", 2)?;
        whole.serialize_field("node", &self.0.node())?;
        whole.serialize_field("pods", &Pods(&self.0))?;
        whole.end()
    }
}

struct Pods<'a>(&'a Scene<'a>);

impl Serialize for Pods<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let pods = self.0.snapshot.pods.iter();
        serializer.collect_seq(pods.filter_map(|pod| self.0.pod(pod)))
    }
}

struct Scene<'a> {
    snapshot: &'a Snapshot,
    time: Time,
    full: bool,
}

impl Scene<'_> {
    fn node(&self) -> NodeStats {
        let Snapshot { facts, node, .. } = self.snapshot;
        let of = |fs: &(FileSystem, Option<Usage>)| self.shared_fs(&fs.0, fs.1);
        let image_fs = self.snapshot.image_fs.as_ref().map(of);
        let container_fs = self.snapshot.container_fs.as_ref().map(of);
        NodeStats {
            node_name: facts.node_name.clone(),
            system_containers: self.systems(),
            start_time: facts.booted.map(Time::of),
            cpu: self.cpu(node),
            memory: self.memory(node),
            io: self.io(node),
            network: self.network(&self.snapshot.network),
            fs: self.root_fs().map(|fs| self.whole_fs(fs)),
            runtime: self.full.then(|| RuntimeStats {
                container_fs: container_fs.or_else(|| image_fs.clone()),
                image_fs,
            }),
            rlimit: self.full.then(|| RlimitStats {
                time: self.time.clone(),
                maxpid: self.snapshot.processes.max,
                curproc: self.snapshot.processes.current,
            }),
            swap: self.swap(node),
        }
    }

    fn root_fs(&self) -> Option<&FileSystem> {
        self.snapshot.root_fs.as_ref().filter(|_| self.full)
    }

    fn systems(&self) -> Vec<ContainerStats> {
        let named = self.snapshot.systems.iter();
        let named = named.filter_map(|system| Some((system.name?, system)));
        let stats = named.map(|(name, system)| ContainerStats {
            name: name.into(),
            start_time: system.started.map(Time::of),
            cpu: self.cpu(&system.cgroup),
            memory: self.memory(&system.cgroup),
            io: self.io(&system.cgroup),
            rootfs: None,
            logs: None,
            swap: self.swap(&system.cgroup),
        });
        stats.collect()
    }

    /// A pod whose start nobody has told of yet is left out of the full summary.
    fn pod(&self, pod: &Pod) -> Option<PodStats> {
        if self.full && pod.started.is_none() {
            return None;
        }
        let sandbox = pod.sandbox.as_ref().and_then(|s| s.started);
        let start_time = pod.started.or(sandbox).map(Time::of);
        let containers = pod.containers.iter().map(|c| self.container(c)).collect();
        let own = pod.cgroup.as_ref();
        Some(PodStats {
            pod_ref: PodReference {
                name: pod.pod.name.to_string(),
                namespace: pod.pod.namespace.to_string(),
                uid: pod.pod.uid.to_string(),
            },
            start_time,
            containers,
            cpu: own.and_then(|c| self.cpu(c)),
            memory: own.and_then(|c| self.memory(c)),
            io: own.and_then(|c| self.io(c)),
            network: self.network(&pod.network),
            volumes: match self.full {
                true => pod.volumes.iter().map(volume).collect(),
                false => Vec::new(),
            },
            ephemeral_storage: self.ephemeral_storage(pod),
            processes: processes(pod).filter(|_| self.full),
            swap: own.and_then(|c| self.swap(c)),
        })
    }

    fn container(&self, container: &Container) -> ContainerStats {
        let holder = self.snapshot.container_fs.as_ref();
        let holder = holder.or(self.snapshot.image_fs.as_ref());
        let rootfs = holder.map(|(fs, _)| self.part_of(fs, container.writable));
        let logs = self.root_fs().zip(container.logs);
        ContainerStats {
            name: container.name.to_string(),
            start_time: container.started.map(Time::of),
            cpu: self.cpu(&container.cgroup),
            memory: self.memory(&container.cgroup),
            io: self.io(&container.cgroup),
            rootfs: rootfs.filter(|_| self.full),
            logs: logs.map(|(fs, usage)| self.part_of(fs, Some(usage))),
            swap: self.swap(&container.cgroup),
        }
    }

    fn cpu(&self, cgroup: &Cgroup) -> Option<CpuStats> {
        let cpu = cgroup.cpu.as_ref()?;
        Some(CpuStats {
            time: self.time.clone(),
            usage_nano_cores: cpu.nano_cores,
            usage_core_nano_seconds: cpu.usage,
            psi: cgroup.pressure.cpu.as_ref().map(psi),
        })
    }

    fn memory(&self, cgroup: &Cgroup) -> Option<MemoryStats> {
        let memory = cgroup.memory.as_ref()?;
        let limit = memory.limits.memory;
        Some(MemoryStats {
            time: self.time.clone(),
            available_bytes: limit.map(|limit| limit.saturating_sub(memory.working_set)),
            usage_bytes: memory.usage,
            working_set_bytes: memory.working_set,
            rss_bytes: memory.rss,
            page_faults: memory.page_faults,
            major_page_faults: memory.major_page_faults,
            psi: cgroup.pressure.memory.as_ref().map(psi),
        })
    }

    fn swap(&self, cgroup: &Cgroup) -> Option<SwapStats> {
        let memory = cgroup.memory.as_ref()?;
        let limit = memory.limits.swap;
        Some(SwapStats {
            time: self.time.clone(),
            swap_available_bytes: limit.map(|limit| limit.saturating_sub(memory.swap)),
            swap_usage_bytes: memory.swap,
        })
    }

    fn io(&self, cgroup: &Cgroup) -> Option<IoStats> {
        let pressure = cgroup.pressure.io.as_ref().filter(|_| self.full)?;
        Some(IoStats {
            time: self.time.clone(),
            psi: psi(pressure),
        })
    }

    fn network(&self, interfaces: &[Interface]) -> Option<NetworkStats> {
        if interfaces.is_empty() || !self.full {
            return None;
        }
        let all: Vec<InterfaceStats> = interfaces.iter().map(interface).collect();
        let default = all.iter().find(|i| i.name == DEFAULT_INTERFACE);
        Some(NetworkStats {
            time: self.time.clone(),
            default: default.cloned().unwrap_or_default(),
            interfaces: all,
        })
    }

    fn whole_fs(&self, fs: &FileSystem) -> FsStats {
        let used = fs.inodes.saturating_sub(fs.inodes_free);
        self.fs(fs, Some(fs.used), Some(used))
    }

    /// What images or containers take is told in bytes; inodes are of all.
    fn shared_fs(&self, fs: &FileSystem, usage: Option<Usage>) -> FsStats {
        let used = fs.inodes.saturating_sub(fs.inodes_free);
        self.fs(fs, usage.map(|u| u.bytes), Some(used))
    }

    fn part_of(&self, fs: &FileSystem, usage: Option<Usage>) -> FsStats {
        self.fs(fs, usage.map(|u| u.bytes), usage.map(|u| u.inodes))
    }

    fn fs(&self, fs: &FileSystem, used: Option<u64>, inodes_used: Option<u64>) -> FsStats {
        fs_at(self.time.clone(), fs, used, inodes_used)
    }

    fn ephemeral_storage(&self, pod: &Pod) -> Option<FsStats> {
        let fs = self.root_fs()?;
        let mut sum = pod.other;
        for container in &pod.containers {
            sum.add(container.writable.unwrap_or_default());
            sum.add(container.logs.unwrap_or_default());
        }
        for volume in pod.volumes.iter().filter(|v| v.ephemeral) {
            sum.add(volume.usage);
        }
        Some(self.part_of(fs, Some(sum)))
    }
}

fn fs_at(time: Time, fs: &FileSystem, used: Option<u64>, inodes_used: Option<u64>) -> FsStats {
    FsStats {
        time,
        available_bytes: Some(fs.available),
        capacity_bytes: Some(fs.capacity),
        used_bytes: used,
        inodes_free: Some(fs.inodes_free),
        inodes: Some(fs.inodes),
        inodes_used,
    }
}

fn volume(volume: &Volume) -> VolumeStats {
    let usage = volume.usage;
    let time = Time::of(volume.at);
    let claim = volume.claim.clone();
    VolumeStats {
        fs: fs_at(
            time,
            &volume.file_system,
            Some(usage.bytes),
            Some(usage.inodes),
        ),
        name: volume.name.clone(),
        pvc_ref: claim.map(|(namespace, name)| PvcReference { name, namespace }),
    }
}

fn processes(pod: &Pod) -> Option<ProcessStats> {
    let all = pod.containers.iter().chain(&pod.sandbox);
    let counts: Vec<u64> = all
        .filter_map(|c| Some(c.cgroup.tasks?.processes))
        .collect();
    (!counts.is_empty()).then(|| ProcessStats {
        process_count: counts.iter().sum(),
    })
}

fn interface(interface: &Interface) -> InterfaceStats {
    InterfaceStats {
        name: interface.name.clone(),
        rx_bytes: Some(interface.received.bytes),
        rx_errors: Some(interface.received.errors),
        tx_bytes: Some(interface.sent.bytes),
        tx_errors: Some(interface.sent.errors),
    }
}

fn psi(psi: &Psi) -> PsiStats {
    let line = |line: &PsiLine| PsiData {
        // In microseconds, as the kernel counts and the kubelet passes on.
        total: line.total,
        avg10: line.avg10,
        avg60: line.avg60,
        avg300: line.avg300,
    };
    PsiStats {
        full: line(&psi.full),
        some: line(&psi.some),
    }
}

#[cfg(test)]
#[path = "summary_tests.rs"]
mod tests;
