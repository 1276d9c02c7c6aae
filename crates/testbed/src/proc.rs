//! What the kernel says of a process: its memory and the processor time it used.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};

/// Resident memory in bytes.
pub fn rss(pid: u32) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))
        .with_context(|| format!("process {pid}"))?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .context("no VmRSS")?;
    let kib: u64 = line
        .trim()
        .trim_end_matches(" kB")
        .parse()
        .context("VmRSS")?;
    Ok(kib * 1024)
}

/// User and system time of the process and its threads.
pub fn cpu_time(pid: u32) -> Result<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))
        .with_context(|| format!("process {pid}"))?;
    // Fields 14 and 15, counted past the name, which may hold anything.
    let (_, fields) = stat.rsplit_once(") ").context("stat")?;
    let ticks: u64 = fields
        .split(' ')
        .skip(11)
        .take(2)
        .filter_map(|field| field.parse::<u64>().ok())
        .sum();
    Ok(Duration::from_secs_f64(
        ticks as f64 / rustix::param::clock_ticks_per_second() as f64,
    ))
}

#[cfg(test)]
mod tests {
    #[test]
    fn this_process_uses_memory_and_time() {
        let own = std::process::id();
        assert!(super::rss(own).unwrap() > 100_000);
        super::cpu_time(own).unwrap();
        assert!(super::rss(u32::MAX).is_err());
    }
}
