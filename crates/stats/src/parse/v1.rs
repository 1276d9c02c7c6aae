//! A cgroup of version 1: a directory in the hierarchy of each controller. Files are asked for as `controller/file`.

use super::{Files, device, keyed, limit, pairs, tasks};
use crate::reading::{Cgroup, Cpu, Depth, DeviceIo, Memory, MemoryParts, Throttling};

/// The controllers that are looked at.
pub const CONTROLLERS: [&str; 5] = ["cpu", "cpuacct", "memory", "pids", "blkio"];

/// Processes, threads, and the most threads there may be.
pub(crate) const TASKS: [&str; 3] = ["memory/cgroup.procs", "pids/pids.current", "pids/pids.max"];

/// `USER_HZ` is 100 wherever Linux runs.
const NANOS_PER_TICK: u64 = 10_000_000;

pub fn read(files: &mut dyn Files, depth: Depth) -> Cgroup {
    let full = depth == Depth::Full;
    let mut found = Cgroup {
        cpu: cpu(files, full),
        memory: memory(files, full),
        ..Cgroup::default()
    };
    if full {
        found.tasks = tasks(files, TASKS, depth);
        found.io = io(files);
    }
    found
}

fn cpu(files: &mut dyn Files, full: bool) -> Option<Cpu> {
    let mut cpu = Cpu {
        usage: files.number("cpuacct/cpuacct.usage")?,
        ..Cpu::default()
    };
    if !full {
        return Some(cpu);
    }
    let ticks = files.text("cpuacct/cpuacct.stat").unwrap_or_default();
    cpu.user = nanos(ticks, "user");
    cpu.system = nanos(ticks, "system");
    cpu.shares = files.setting("cpu/cpu.shares").unwrap_or_default();
    cpu.period = files.setting("cpu/cpu.cfs_period_us").unwrap_or_default();
    // -1 is no quota, and no number here.
    cpu.quota = files.setting("cpu/cpu.cfs_quota_us");
    if cpu.quota.is_some() {
        let stat = files.text("cpu/cpu.stat").unwrap_or_default();
        cpu.throttling = keyed(stat, "nr_periods").map(|periods| Throttling {
            periods,
            throttled_periods: keyed(stat, "nr_throttled").unwrap_or_default(),
            throttled_time: keyed(stat, "throttled_time").unwrap_or_default(),
        });
    }
    Some(cpu)
}

fn nanos(ticks: &str, key: &str) -> u64 {
    let ticks = keyed(ticks, key).unwrap_or_default();
    ticks.saturating_mul(NANOS_PER_TICK)
}

fn memory(files: &mut dyn Files, full: bool) -> Option<Memory> {
    let usage = files.number("memory/memory.usage_in_bytes")?;
    let stat = files.text("memory/memory.stat").unwrap_or_default();
    let (mut memory, holding) = from_stat(stat, usage);
    let mut own = |name: &'static str, holds: bool| match holds {
        true => files.setting(name).and_then(limit),
        false => None,
    };
    memory.limits.memory = own("memory/memory.limit_in_bytes", holding.memory);
    memory.limits.swap = own("memory/memory.memsw.limit_in_bytes", holding.swap);
    if full {
        let reservation = files.setting("memory/memory.soft_limit_in_bytes");
        memory.limits.reservation = reservation.and_then(limit).unwrap_or_default();
        memory.peak = files
            .number("memory/memory.max_usage_in_bytes")
            .unwrap_or_default();
        memory.failures = files.number("memory/memory.failcnt").unwrap_or_default();
        memory.parts.kernel = files
            .number("memory/memory.kmem.usage_in_bytes")
            .unwrap_or_default();
        let oom = files.text("memory/memory.oom_control").unwrap_or_default();
        memory.oom_kills = keyed(oom, "oom_kill").unwrap_or_default();
    }
    Some(memory)
}

/// Whether there may be a limit here, or on any cgroup above; one without need not be asked for its own.
struct Holding {
    memory: bool,
    swap: bool,
}

/// The totals are of the cgroup and all below it.
fn from_stat(stat: &str, usage: u64) -> (Memory, Holding) {
    let mut holding = Holding {
        memory: true,
        swap: true,
    };
    let mut parts = MemoryParts::default();
    let mut memory = Memory {
        usage,
        ..Memory::default()
    };
    for (key, value) in pairs(stat) {
        match key {
            "total_rss" => value.into(&mut memory.rss),
            "total_swap" => value.into(&mut memory.swap),
            "total_cache" => value.into(&mut parts.cache),
            "total_mapped_file" => value.into(&mut parts.mapped_file),
            "total_active_file" => value.into(&mut parts.active_file),
            "total_inactive_file" => value.into(&mut parts.inactive_file),
            "pgfault" => value.into(&mut memory.page_faults),
            "pgmajfault" => value.into(&mut memory.major_page_faults),
            "hierarchical_memory_limit" => holding.memory = value.limits(),
            "hierarchical_memsw_limit" => holding.swap = value.limits(),
            _ => {}
        }
    }
    memory.working_set = usage.saturating_sub(parts.inactive_file);
    memory.parts = parts;
    (memory, holding)
}

fn io(files: &mut dyn Files) -> Vec<DeviceIo> {
    let mut found: Vec<DeviceIo> = Vec::new();
    let bytes = files
        .text("blkio/blkio.throttle.io_service_bytes_recursive")
        .unwrap_or_default();
    for ((major, minor), operation, value) in per_device(bytes) {
        let io = entry(&mut found, major, minor);
        match operation {
            "Read" => io.read_bytes = value,
            "Write" => io.write_bytes = value,
            _ => {}
        }
    }
    if found.is_empty() {
        // Both files have a line for each device that was ever used.
        return found;
    }
    let operations = files
        .text("blkio/blkio.throttle.io_serviced_recursive")
        .unwrap_or_default();
    for ((major, minor), operation, value) in per_device(operations) {
        let io = entry(&mut found, major, minor);
        match operation {
            "Read" => io.reads = value,
            "Write" => io.writes = value,
            _ => {}
        }
    }
    found
}

fn entry(found: &mut Vec<DeviceIo>, major: u32, minor: u32) -> &mut DeviceIo {
    let at = found
        .iter()
        .position(|io| (io.major, io.minor) == (major, minor));
    let at = at.unwrap_or_else(|| {
        found.push(DeviceIo {
            major,
            minor,
            ..DeviceIo::default()
        });
        found.len() - 1
    });
    &mut found[at]
}

/// Lines such as `253:0 Read 4096`.
fn per_device(text: &str) -> impl Iterator<Item = ((u32, u32), &str, u64)> {
    text.lines().filter_map(|line| {
        let mut words = line.split_ascii_whitespace();
        let numbers = device(words.next()?)?;
        Some((numbers, words.next()?, words.next()?.parse().ok()?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse::testing::files;

    /// Of a container on a 6.18 kernel with version 1 mounted.
    const CONTAINER: &[(&str, &str)] = &[
        ("cpuacct/cpuacct.usage", "2500000000\n"),
        ("cpuacct/cpuacct.stat", "user 150\nsystem 100\n"),
        ("cpu/cpu.shares", "102\n"),
        ("cpu/cpu.cfs_period_us", "100000\n"),
        ("cpu/cpu.cfs_quota_us", "20000\n"),
        (
            "cpu/cpu.stat",
            "nr_periods 8\nnr_throttled 2\nthrottled_time 123456\n",
        ),
        ("memory/cgroup.procs", "7\n"),
        ("memory/memory.usage_in_bytes", "8388608\n"),
        (
            "memory/memory.stat",
            "cache 1\nrss 2\npgfault 100\npgmajfault 3\ninactive_file 9\ntotal_cache 3000000\n\
             total_rss 5000000\ntotal_mapped_file 4096\ntotal_swap 8192\ntotal_inactive_file 388608\n\
             total_active_file 2000000\ntotal_pgfault 999\n",
        ),
        ("memory/memory.limit_in_bytes", "33554432\n"),
        (
            "memory/memory.memsw.limit_in_bytes",
            "9223372036854771712\n",
        ),
        ("memory/memory.soft_limit_in_bytes", "9223372036854771712\n"),
        ("memory/memory.max_usage_in_bytes", "9000000\n"),
        ("memory/memory.failcnt", "4\n"),
        ("memory/memory.kmem.usage_in_bytes", "65536\n"),
        (
            "memory/memory.oom_control",
            "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
        ),
        ("pids/pids.current", "3\n"),
        ("pids/pids.max", "100\n"),
        (
            "blkio/blkio.throttle.io_service_bytes_recursive",
            "253:0 Read 4096\n253:0 Write 0\n253:0 Total 4096\n8:16 Write 512\nTotal 4608\n",
        ),
        (
            "blkio/blkio.throttle.io_serviced_recursive",
            "253:0 Read 1\n8:16 Write 1\nTotal 2\n",
        ),
    ];

    #[test]
    fn a_container_in_full() {
        let found = read(&mut files(CONTAINER), Depth::Full);
        let cpu = found.cpu.unwrap();
        assert_eq!(
            (cpu.usage, cpu.user, cpu.system),
            (2_500_000_000, 1_500_000_000, 1_000_000_000)
        );
        assert_eq!(
            (cpu.shares, cpu.period, cpu.quota),
            (102, 100_000, Some(20_000))
        );
        assert_eq!(cpu.throttling.unwrap().throttled_time, 123_456);
        let memory = found.memory.unwrap();
        assert_eq!((memory.usage, memory.working_set), (8_388_608, 8_000_000));
        assert_eq!(
            (memory.rss, memory.swap, memory.page_faults),
            (5_000_000, 8192, 100)
        );
        assert_eq!(
            (memory.limits.memory, memory.limits.swap),
            (Some(32 << 20), None)
        );
        assert_eq!(memory.limits.reservation, 0);
        assert_eq!(
            (memory.peak, memory.failures, memory.oom_kills),
            (9_000_000, 4, 2)
        );
        assert_eq!(memory.parts.kernel, 65536);
        let tasks = found.tasks.unwrap();
        assert_eq!(
            (tasks.processes, tasks.threads, tasks.threads_max),
            (1, 3, 100)
        );
        assert_eq!(found.io.len(), 2);
        assert_eq!((found.io[0].read_bytes, found.io[0].reads), (4096, 1));
        assert_eq!((found.io[1].write_bytes, found.io[1].writes), (512, 1));
    }

    #[test]
    fn no_quota_and_no_controllers() {
        let texts = [
            ("cpuacct/cpuacct.usage", "1\n"),
            ("cpu/cpu.cfs_quota_us", "-1\n"),
        ];
        assert_eq!(
            read(&mut files(&texts), Depth::Full).cpu.unwrap().quota,
            None
        );
        assert_eq!(read(&mut files(&[]), Depth::Full), Cgroup::default());
    }
}
