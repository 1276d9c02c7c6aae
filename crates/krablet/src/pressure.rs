//! What this machine runs short of, for its conditions and for the door.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use async_trait::async_trait;
use krablet_agent::Conditions;
use krablet_config::Loaded;
use krablet_core::admission::{NodeConditions, Pressure};
use krablet_cri::{ImageClient, ImageService as _};
use krablet_node::{
    Observation, Observations, PressureConfig, PressureWatch, Pressures, Signal, Signals,
};
use krablet_stats::parse::machine;
use rustix::fs::statvfs;
use tokio::sync::{Mutex, OnceCell, watch};
use tokio::task::{JoinHandle, JoinSet, spawn_blocking};

use crate::cluster::Ground;

/// A file system or a runtime that does not answer is not looked at this time.
const LIMIT: Duration = Duration::from_secs(2);

/// Looks once, and then again and again.
pub async fn watch(
    ground: &Ground<'_>,
    tasks: &mut JoinSet<()>,
) -> Result<watch::Receiver<Pressures>> {
    let signals = HostSignals {
        root: ground.root.path().to_owned(),
        images: ground.images.clone(),
        image_fs: OnceCell::new(),
        reading: Mutex::default(),
    };
    let config = config(ground.loaded)?;
    let (task, pressures) = PressureWatch::build(config, Arc::new(signals)).await;
    tasks.spawn(task.run());
    Ok(pressures)
}

fn config(loaded: &Loaded) -> Result<PressureConfig> {
    let eviction = &loaded.config.eviction;
    let transition = eviction.pressure_transition_period.to_std();
    Ok(PressureConfig::parse(
        &eviction.hard,
        &eviction.soft,
        &eviction.minimum_reclaim,
        transition.unwrap_or_default(),
    )?)
}

/// In the words of the door.
pub fn conditions(pressures: watch::Receiver<Pressures>) -> Conditions {
    Arc::new(move || node_conditions(*pressures.borrow()))
}

fn node_conditions(now: Pressures) -> NodeConditions {
    let all = [
        (now.memory, Pressure::Memory),
        (now.disk, Pressure::Disk),
        (now.pid, Pressure::Pid),
    ];
    let on = all.into_iter().filter_map(|(is, kind)| is.then_some(kind));
    NodeConditions {
        pressures: on.collect(),
        shutting_down: false,
    }
}

struct HostSignals {
    root: PathBuf,
    images: ImageClient,
    /// Where the runtime keeps its images, which does not change while it runs.
    image_fs: OnceCell<PathBuf>,
    /// The look under way: one that hangs keeps one thread, however often it is asked for.
    reading: Mutex<Option<JoinHandle<Observations>>>,
}

#[async_trait]
impl Signals for HostSignals {
    async fn observe(&self) -> Observations {
        let image_fs = tokio::time::timeout(LIMIT, self.image_fs()).await;
        let image_fs = image_fs.ok().flatten();
        let mut reading = self.reading.lock().await;
        let root = self.root.clone();
        let look =
            reading.get_or_insert_with(|| spawn_blocking(move || read(&root, image_fs.as_deref())));
        // What hangs is waited for again next time; nothing is short that cannot be seen.
        let seen = tokio::time::timeout(LIMIT, look).await;
        if seen.is_ok() {
            *reading = None;
        }
        seen.ok().and_then(Result::ok).unwrap_or_default()
    }
}

impl HostSignals {
    async fn image_fs(&self) -> Option<PathBuf> {
        let ask = async || {
            let info = self.images.image_fs_info().await.map_err(drop)?;
            let place = info.image_filesystems.into_iter().find_map(|fs| fs.fs_id);
            place.map(|id| PathBuf::from(id.mountpoint)).ok_or(())
        };
        self.image_fs.get_or_try_init(ask).await.ok().cloned()
    }
}

fn read(root: &Path, image_fs: Option<&Path>) -> Observations {
    let text = |path: &str| std::fs::read_to_string(path).ok();
    let mut seen = Observations::new();
    seen.extend(memory(text).map(|seen| (Signal::Memory, seen)));
    seen.extend(pids(text).map(|seen| (Signal::Pids, seen)));
    if let Some((bytes, inodes)) = space(root) {
        seen.extend([(Signal::NodeFs, bytes), (Signal::NodeFsInodes, inodes)]);
    }
    if let Some((bytes, inodes)) = image_fs.and_then(space) {
        seen.extend([(Signal::ImageFs, bytes), (Signal::ImageFsInodes, inodes)]);
    }
    seen
}

/// Of all memory, what is not in the working set: files that were not used lately can go. The root cgroup tells, and
/// where it does not, `/proc`.
fn memory(text: impl Fn(&str) -> Option<String>) -> Option<Observation> {
    let meminfo = text("/proc/meminfo")?;
    let capacity = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    let capacity: u64 = capacity.trim().trim_end_matches("kB").trim().parse().ok()?;
    let capacity = capacity.checked_mul(1024)?;
    let v1 = || {
        let usage = text("/sys/fs/cgroup/memory/memory.usage_in_bytes")?;
        let stat = text("/sys/fs/cgroup/memory/memory.stat")?;
        let inactive = stat
            .lines()
            .find_map(|line| line.strip_prefix("total_inactive_file "))?;
        let usage: u64 = usage.trim().parse().ok()?;
        Some(usage.saturating_sub(inactive.trim().parse().ok()?))
    };
    let v2 = || {
        let stat = text("/sys/fs/cgroup/memory.stat").unwrap_or_default();
        machine::memory(&meminfo, &stat).map(|memory| memory.working_set)
    };
    let working_set = v1().or_else(v2)?;
    Some(Observation {
        available: capacity.saturating_sub(working_set),
        capacity,
    })
}

fn pids(text: impl Fn(&str) -> Option<String>) -> Option<Observation> {
    let limits = ["/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max"].map(&text);
    let limits = limits.each_ref().map(Option::as_deref);
    let found = machine::processes(limits, &text("/proc/loadavg")?);
    let (capacity, current) = (found.max?, found.current?);
    Some(Observation {
        available: u64::try_from(capacity.saturating_sub(current)).unwrap_or_default(),
        capacity: u64::try_from(capacity).ok()?,
    })
}

/// Bytes and inodes.
fn space(path: &Path) -> Option<(Observation, Observation)> {
    let found = statvfs(path).ok()?;
    let bytes = |blocks: u64| found.f_frsize.saturating_mul(blocks);
    Some((
        Observation {
            available: bytes(found.f_bavail),
            capacity: bytes(found.f_blocks),
        },
        Observation {
            available: found.f_ffree,
            capacity: found.f_files,
        },
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMINFO: &str = "MemTotal: 1000 kB\nMemFree: 100 kB\nInactive(file): 300 kB\n";

    fn files<'a>(all: &'a [(&'a str, &'a str)]) -> impl Fn(&str) -> Option<String> + 'a {
        |path| {
            let found = all.iter().find(|(at, _)| *at == path);
            found.map(|(_, text)| (*text).to_owned())
        }
    }

    #[test]
    fn memory_that_can_be_had() {
        let kib = |n: u64| n * 1024;
        let v1 = [
            ("/proc/meminfo", MEMINFO),
            ("/sys/fs/cgroup/memory/memory.usage_in_bytes", "614400\n"),
            (
                "/sys/fs/cgroup/memory/memory.stat",
                "inactive_file 1\ntotal_inactive_file 204800\n",
            ),
        ];
        let v2 = [
            ("/proc/meminfo", MEMINFO),
            (
                "/sys/fs/cgroup/memory.stat",
                "anon 1\ninactive_file 409600\n",
            ),
        ];
        for (all, available) in [
            (&v1[..], Some(kib(600))),
            (&v2[..], Some(kib(500))),
            (&v2[..1], Some(kib(400))),
            (&[][..], None),
        ] {
            let seen = memory(files(all));
            assert_eq!(seen.map(|s| s.available), available);
            assert!(seen.is_none_or(|s| s.capacity == kib(1000)));
        }
    }

    #[test]
    fn processes_that_can_be_had() {
        let all = [
            ("/proc/sys/kernel/pid_max", "32768\n"),
            ("/proc/sys/kernel/threads-max", "1000\n"),
            ("/proc/loadavg", "0.1 0.2 0.3 2/400 77\n"),
        ];
        let seen = pids(files(&all)).map(|s| (s.available, s.capacity));
        assert_eq!(seen, Some((600, 1000)));
        assert!(pids(files(&all[..2])).is_none());
    }

    #[test]
    fn this_machine_can_be_looked_at() {
        let seen = read(Path::new("/"), Some(Path::new("/")));
        assert_eq!(seen.len(), 6, "{seen:?}");
        assert!(read(Path::new("/no/such/place"), None).len() <= 2);
    }

    #[test]
    fn pressures_at_the_door() {
        let named = |memory, disk, pid| {
            let now = node_conditions(Pressures { memory, disk, pid });
            let names = now.pressures.iter().map(|p| p.as_str());
            names.collect::<Vec<_>>().join(" ")
        };
        assert_eq!(named(false, false, false), "");
        assert_eq!(named(true, false, false), "MemoryPressure");
        assert_eq!(
            named(true, true, true),
            "MemoryPressure DiskPressure PIDPressure"
        );
    }
}
