//! What `/proc` and `/sys` tell of the machine.

use std::collections::BTreeSet;

use super::v2::from_stat;
use crate::reading::{Memory, ProcessLimits};

const NANOS_PER_TICK: u64 = 10_000_000;

/// Bytes of one line of `/proc/meminfo`.
fn meminfo(text: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines();
    let rest = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    let kilobytes: u64 = rest.trim().trim_end_matches("kB").trim().parse().ok()?;
    kilobytes.checked_mul(1024)
}

/// The memory of the whole machine, for kernels whose root cgroup does not tell; `stat` is the root's `memory.stat`,
/// which most have.
pub fn memory(meminfo_text: &str, stat: &str) -> Option<Memory> {
    let get = |name| meminfo(meminfo_text, name);
    let usage = get("MemTotal")?.saturating_sub(get("MemFree")?);
    let mut memory = from_stat(stat, usage);
    memory.rss = get("AnonPages").unwrap_or(memory.rss);
    let swap = get("SwapTotal").unwrap_or_default();
    memory.swap = swap.saturating_sub(get("SwapFree").unwrap_or_default());
    if stat.is_empty() {
        memory.parts.inactive_file = get("Inactive(file)").unwrap_or_default();
        memory.parts.active_file = get("Active(file)").unwrap_or_default();
        memory.parts.cache = get("Cached").unwrap_or_default();
        memory.working_set = usage.saturating_sub(memory.parts.inactive_file);
    }
    Some(memory)
}

/// Nanoseconds the machine was busy, in user mode and in the kernel, from `/proc/stat`.
pub fn cpu_time(stat: &str) -> Option<(u64, u64)> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let ticks: Vec<u64> = line
        .split_ascii_whitespace()
        .map_while(|word| word.parse().ok())
        .collect();
    let [user, nice, system, _idle, _wait, irq, soft, ..] = ticks[..] else {
        return None;
    };
    let nanos = |ticks: u64| ticks.saturating_mul(NANOS_PER_TICK);
    Some((nanos(user + nice), nanos(system + irq + soft)))
}

/// Unix seconds of the boot, from `/proc/stat`.
pub fn boot_time(stat: &str) -> Option<i64> {
    let line = stat.lines().find_map(|line| line.strip_prefix("btime "))?;
    line.trim().parse().ok()
}

/// The lower of the two limits counts; how many tasks there are is in `/proc/loadavg`.
pub fn processes(limits: [Option<&str>; 2], loadavg: &str) -> ProcessLimits {
    let limits = limits.into_iter().flatten();
    let max = limits
        .filter_map(|text| text.trim().parse::<i64>().ok())
        .min();
    let tasks = loadavg.split_ascii_whitespace().nth(3);
    let current = tasks
        .and_then(|word| word.split_once('/'))
        .and_then(|(_, all)| all.parse().ok());
    ProcessLimits { max, current }
}

/// Numbers and names of block devices, from `/proc/diskstats`.
pub fn devices(diskstats: &str) -> Vec<(u32, u32, String)> {
    let line = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let (major, minor) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        Some((major, minor, words.next()?.to_owned()))
    };
    diskstats.lines().filter_map(line).collect()
}

/// Physical cores and sockets, from pairs of `physical_package_id` and `core_id`.
pub fn topology(cpus: &[(String, String)]) -> (u32, u32) {
    let cores: BTreeSet<_> = cpus.iter().collect();
    let sockets: BTreeSet<_> = cpus.iter().map(|(package, _)| package).collect();
    let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    (count(cores.len()), count(sockets.len()))
}

/// The path of a process's cgroup in one hierarchy, from `/proc/PID/cgroup`; an empty controller is version 2.
pub fn own_cgroup<'a>(text: &'a str, controller: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (_id, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        controllers
            .split(',')
            .any(|c| c == controller)
            .then_some(path)
    })
}

/// The soft limit of open files, from `/proc/PID/limits`.
pub fn max_open_files(limits: &str) -> Option<i64> {
    let line = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"))?;
    match line.split_ascii_whitespace().next()? {
        "unlimited" => Some(-1),
        number => number.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMINFO: &str = "MemTotal:       1000 kB\nMemFree:         200 kB\nCached:  300 kB\n\
        SwapTotal:  100 kB\nSwapFree:  60 kB\nAnonPages: 400 kB\nActive(file): 5 kB\nInactive(file): 100 kB\n";

    #[test]
    fn memory_of_the_machine() {
        let with_stat = memory(MEMINFO, "inactive_file 1024\npgfault 7\n").unwrap();
        assert_eq!(with_stat.usage, 800 * 1024);
        assert_eq!(with_stat.working_set, 799 * 1024);
        assert_eq!((with_stat.rss, with_stat.swap), (400 * 1024, 40 * 1024));
        assert_eq!(with_stat.page_faults, 7);
        let without = memory(MEMINFO, "").unwrap();
        assert_eq!(without.working_set, 700 * 1024);
        assert_eq!(memory("", ""), None);
    }

    #[test]
    fn time_of_the_machine() {
        let stat = "cpu  100 20 30 999 5 1 2 0 0 0\ncpu0 1 2 3 4 5 6 7\nbtime 1700000000\n";
        assert_eq!(cpu_time(stat), Some((1_200_000_000, 330_000_000)));
        assert_eq!(boot_time(stat), Some(1_700_000_000));
        assert_eq!(cpu_time("cpu 1 2\n"), None);
    }

    #[test]
    fn processes_devices_and_cgroups() {
        let found = processes(
            [Some("4194304\n"), Some("63000\n")],
            "3.7 2.5 2.7 5/124 8608\n",
        );
        assert_eq!((found.max, found.current), (Some(63000), Some(124)));
        assert_eq!(processes([None, None], "x").max, None);
        assert_eq!(
            devices(" 254       0 vda 1 2 3\n   7  0 loop0 0\nx\n"),
            [(254, 0, "vda".to_owned()), (7, 0, "loop0".to_owned())]
        );
        let text = "4:memory:/a\n2:cpu,cpuacct:/b\n1:name=systemd:/c\n0::/d:e\n";
        assert_eq!(own_cgroup(text, "memory"), Some("/a"));
        assert_eq!(own_cgroup(text, "cpuacct"), Some("/b"));
        assert_eq!(own_cgroup(text, ""), Some("/d:e"));
        assert_eq!(own_cgroup(text, "pids"), None);
        let limits = "Limit   Soft  Hard  Units\nMax open files            1024                 4096                 files\n";
        assert_eq!(max_open_files(limits), Some(1024));
        let cpu = |package: &str, core: &str| (package.to_owned(), core.to_owned());
        let four = [cpu("0", "0"), cpu("0", "0"), cpu("0", "1"), cpu("1", "0")];
        assert_eq!(topology(&four), (3, 2));
    }
}
