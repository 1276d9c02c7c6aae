//! A cgroup of version 2: one directory, every controller's files in it.

use super::{Files, device, keyed, limit, pairs, pressure, tasks};
use crate::reading::{Cgroup, Cpu, Depth, DeviceIo, Memory, MemoryParts, Pressure, Throttling};

const MICRO: u64 = 1000;
/// Processes, threads, and the most threads there may be.
pub(crate) const TASKS: [&str; 3] = ["cgroup.procs", "pids.current", "pids.max"];

pub fn read(files: &mut dyn Files, depth: Depth) -> Cgroup {
    let full = depth == Depth::Full;
    let mut found = Cgroup {
        cpu: cpu(files, full),
        memory: memory(files, full),
        ..Cgroup::default()
    };
    if full {
        found.tasks = tasks(files, TASKS, depth);
        found.io = files.text("io.stat").map(io).unwrap_or_default();
    }
    if depth >= Depth::Summary {
        found.pressure = Pressure {
            cpu: files.text("cpu.pressure").and_then(pressure),
            memory: files.text("memory.pressure").and_then(pressure),
            io: files.text("io.pressure").and_then(pressure),
        };
    }
    found
}

fn cpu(files: &mut dyn Files, full: bool) -> Option<Cpu> {
    let stat = files.text("cpu.stat")?;
    let micro = |key: &str| Some(keyed(stat, key)?.saturating_mul(MICRO));
    let mut cpu = Cpu {
        usage: micro("usage_usec")?,
        user: micro("user_usec").unwrap_or_default(),
        system: micro("system_usec").unwrap_or_default(),
        ..Cpu::default()
    };
    if !full {
        return Some(cpu);
    }
    cpu.throttling = keyed(stat, "nr_periods").map(|periods| Throttling {
        periods,
        throttled_periods: keyed(stat, "nr_throttled").unwrap_or_default(),
        throttled_time: micro("throttled_usec").unwrap_or_default(),
    });
    let weight = files.setting("cpu.weight");
    cpu.shares = weight.map_or(0, shares);
    if let Some(max) = files.text("cpu.max")
        && let Some((quota, period)) = max.trim().split_once(' ')
    {
        cpu.quota = quota.parse().ok();
        cpu.period = period.parse().unwrap_or_default();
    }
    Some(cpu)
}

/// What a weight would have been in `cpu.shares`.
fn shares(weight: u64) -> u64 {
    2 + weight.saturating_sub(1).saturating_mul(262_142) / 9999
}

fn memory(files: &mut dyn Files, full: bool) -> Option<Memory> {
    let usage = files.number("memory.current")?;
    let stat = files.text("memory.stat").unwrap_or_default();
    let mut memory = from_stat(stat, usage);
    memory.swap = files.number("memory.swap.current").unwrap_or_default();
    memory.limits.memory = files.setting("memory.max").and_then(limit);
    memory.limits.swap = files.setting("memory.swap.max").and_then(limit);
    if full {
        memory.limits.reservation = files.setting("memory.min").unwrap_or_default();
        memory.peak = files.number("memory.peak").unwrap_or_default();
        let events = files.text("memory.events").unwrap_or_default();
        memory.failures = keyed(events, "max").unwrap_or_default();
        memory.oom_kills = keyed(events, "oom_kill").unwrap_or_default();
    }
    Some(memory)
}

/// What `memory.stat` tells of a usage.
pub(crate) fn from_stat(stat: &str, usage: u64) -> Memory {
    let mut parts = MemoryParts::default();
    let mut memory = Memory {
        usage,
        ..Memory::default()
    };
    for (key, value) in pairs(stat) {
        match key {
            "anon" => value.into(&mut memory.rss),
            "file" => value.into(&mut parts.cache),
            "file_mapped" => value.into(&mut parts.mapped_file),
            "active_file" => value.into(&mut parts.active_file),
            "inactive_file" => value.into(&mut parts.inactive_file),
            "kernel" => value.into(&mut parts.kernel),
            "pgfault" => value.into(&mut memory.page_faults),
            "pgmajfault" => value.into(&mut memory.major_page_faults),
            _ => {}
        }
    }
    memory.working_set = usage.saturating_sub(parts.inactive_file);
    memory.parts = parts;
    memory
}

/// Lines such as `253:0 rbytes=1 wbytes=2 rios=3 wios=4`.
pub(crate) fn io(text: &str) -> Vec<DeviceIo> {
    let line = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let (major, minor) = device(words.next()?)?;
        let mut io = DeviceIo {
            major,
            minor,
            ..DeviceIo::default()
        };
        for (key, value) in words.filter_map(|word| word.split_once('=')) {
            let value = value.parse().unwrap_or_default();
            match key {
                "rbytes" => io.read_bytes = value,
                "wbytes" => io.write_bytes = value,
                "rios" => io.reads = value,
                "wios" => io.writes = value,
                "cost.usage" => io.cost.usage = Some(value),
                "cost.wait" => io.cost.wait = Some(value),
                "cost.indebt" => io.cost.in_debt = Some(value),
                "cost.indelay" => io.cost.in_delay = Some(value),
                _ => {}
            }
        }
        Some(io)
    };
    text.lines().filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse::testing::files;

    /// Of a container on a 6.1 kernel.
    const CONTAINER: &[(&str, &str)] = &[
        (
            "cpu.stat",
            "usage_usec 5000123\nuser_usec 3000000\nsystem_usec 2000123\nnr_periods 40\n\
             nr_throttled 3\nthrottled_usec 70000\nnr_bursts 0\nburst_usec 0\n",
        ),
        ("cpu.weight", "4\n"),
        ("cpu.max", "50000 100000\n"),
        ("memory.current", "40960000\n"),
        (
            "memory.stat",
            "anon 30000000\nfile 9000000\nkernel 1500000\nfile_mapped 4096\ninactive_file 960000\n\
             active_file 8040000\npgfault 777\npgmajfault 5\n",
        ),
        ("memory.max", "67108864\n"),
        ("memory.min", "0\n"),
        ("memory.peak", "50000000\n"),
        ("memory.swap.current", "4096\n"),
        ("memory.swap.max", "max\n"),
        (
            "memory.events",
            "low 0\nhigh 0\nmax 12\noom 1\noom_kill 1\n",
        ),
        ("cgroup.procs", "12\n34\n"),
        ("pids.current", "9\n"),
        ("pids.max", "max\n"),
        (
            "io.stat",
            "254:0 rbytes=4096 wbytes=8192 rios=1 wios=2 dbytes=0 dios=0\n7:0 \nnonsense\n",
        ),
        (
            "memory.pressure",
            "some avg10=0.00 avg60=0.00 avg300=0.00 total=11\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=10\n",
        ),
    ];

    #[test]
    fn a_container_in_full() {
        let found = read(&mut files(CONTAINER), Depth::Full);
        let cpu = found.cpu.unwrap();
        assert_eq!(
            (cpu.usage, cpu.user, cpu.system),
            (5_000_123_000, 3_000_000_000, 2_000_123_000)
        );
        assert_eq!(
            (cpu.shares, cpu.period, cpu.quota),
            (80, 100_000, Some(50_000))
        );
        let throttling = cpu.throttling.unwrap();
        assert_eq!((throttling.periods, throttling.throttled_periods), (40, 3));
        assert_eq!(throttling.throttled_time, 70_000_000);
        let memory = found.memory.unwrap();
        assert_eq!((memory.usage, memory.working_set), (40_960_000, 40_000_000));
        assert_eq!((memory.rss, memory.swap), (30_000_000, 4096));
        assert_eq!((memory.page_faults, memory.major_page_faults), (777, 5));
        assert_eq!(memory.limits.memory, Some(64 << 20));
        assert_eq!(memory.limits.swap, None);
        assert_eq!(
            (memory.peak, memory.failures, memory.oom_kills),
            (50_000_000, 12, 1)
        );
        assert_eq!(
            (memory.parts.cache, memory.parts.kernel),
            (9_000_000, 1_500_000)
        );
        let tasks = found.tasks.unwrap();
        assert_eq!(
            (tasks.processes, tasks.threads, tasks.threads_max),
            (2, 9, 0)
        );
        assert_eq!(found.io.len(), 2);
        assert_eq!((found.io[0].read_bytes, found.io[0].writes), (4096, 2));
        assert_eq!(found.pressure.cpu, None);
        assert_eq!(found.pressure.memory.unwrap().full.total, 10);
    }

    /// `cost.usage` is there where the model is on, the rest only where its details are as well.
    #[test]
    fn what_io_cost() {
        for (words, expected) in [
            ("wios=2", [None; 4]),
            ("cost.usage=7", [Some(7), None, None, None]),
            (
                "cost.vrate=100.00 cost.usage=7 cost.wait=6 cost.indebt=5 cost.indelay=4",
                [Some(7), Some(6), Some(5), Some(4)],
            ),
        ] {
            let found = io(&format!("254:0 rbytes=1 {words}\n"));
            let cost = found[0].cost;
            let cost = [cost.usage, cost.wait, cost.in_debt, cost.in_delay];
            assert_eq!(cost, expected, "{words}");
        }
    }

    #[test]
    fn cpu_and_memory_alone() {
        let found = read(&mut files(CONTAINER), Depth::CpuAndMemory);
        assert_eq!(found.cpu.unwrap().throttling, None);
        assert_eq!(found.memory.unwrap().limits.memory, Some(64 << 20));
        assert_eq!((found.tasks, found.io.len()), (None, 0));
    }

    #[test]
    fn what_is_not_there_is_absent() {
        assert_eq!(read(&mut files(&[]), Depth::Full), Cgroup::default());
        let found = read(&mut files(&[("memory.current", "5\n")]), Depth::Full);
        assert_eq!(found.memory.unwrap().working_set, 5);
    }
}
