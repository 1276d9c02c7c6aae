//! This process as the kernel sees it.

use std::fs;
use std::io;

/// The kernel tells CPU times and start times in hundredths of a second on every architecture.
const TICKS_PER_SECOND: f64 = 100.0;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct ProcessStats {
    pub cpu_seconds: f64,
    pub resident_bytes: u64,
    pub virtual_bytes: u64,
    /// None: no limit.
    pub virtual_limit: Option<u64>,
    pub open_files: u64,
    /// None: no limit.
    pub open_files_limit: Option<u64>,
    /// Unix time.
    pub start_seconds: f64,
    /// Of the start, from that of the machine.
    pub start_after_boot: f64,
}

impl ProcessStats {
    /// Reads a handful of small files of `/proc`, which never block.
    pub fn read() -> io::Result<Self> {
        let open_files = fs::read_dir("/proc/self/fd")?.count();
        let sources = Sources {
            stat: &fs::read_to_string("/proc/self/stat")?,
            status: &fs::read_to_string("/proc/self/status")?,
            limits: &fs::read_to_string("/proc/self/limits")?,
            system: &fs::read_to_string("/proc/stat")?,
        };
        // One of them was the directory itself.
        let open_files = open_files.saturating_sub(1) as u64;
        parse(&sources, open_files)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "unexpected text in /proc"))
    }
}

struct Sources<'a> {
    stat: &'a str,
    status: &'a str,
    limits: &'a str,
    system: &'a str,
}

fn parse(sources: &Sources<'_>, open_files: u64) -> Option<ProcessStats> {
    // The name may hold spaces and parentheses; fields are counted from behind it, at the third.
    let (_, rest) = sources.stat.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let field = |number: usize| -> Option<f64> { fields.get(number - 3)?.parse().ok() };
    let booted = after(sources.system, "btime ")?
        .trim()
        .parse::<f64>()
        .ok()?;
    let after_boot = field(22)? / TICKS_PER_SECOND;
    Some(ProcessStats {
        cpu_seconds: (field(14)? + field(15)?) / TICKS_PER_SECOND,
        resident_bytes: kilobytes(sources.status, "VmRSS:")?,
        virtual_bytes: kilobytes(sources.status, "VmSize:")?,
        virtual_limit: soft_limit(sources.limits, "Max address space"),
        open_files,
        open_files_limit: soft_limit(sources.limits, "Max open files"),
        start_seconds: booted + after_boot,
        start_after_boot: after_boot,
    })
}

/// The rest of the line that begins so.
fn after<'a>(text: &'a str, start: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(start))
}

fn kilobytes(text: &str, start: &str) -> Option<u64> {
    let number = after(text, start)?.split_whitespace().next()?;
    number.parse::<u64>().ok().map(|n| n * 1024)
}

fn soft_limit(text: &str, start: &str) -> Option<u64> {
    after(text, start)?.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &str = "42 (a) b) c) S 1 42 42 0 -1 4194304 100 0 0 0 150 50 0 0 20 0 3 0 700 1000 200 18446744073709551615";

    #[test]
    fn what_the_kernel_tells() {
        let sources = Sources {
            stat: STAT,
            status: "Name:\tx\nVmSize:\t  2048 kB\nVmRSS:\t    12 kB\n",
            limits: "Limit                     Soft Limit           Hard Limit           Units     \nMax open files            1024                 4096                 files     \nMax address space         unlimited            unlimited            bytes     \n",
            system: "cpu  1 2 3\nbtime 1700000000\nprocesses 5\n",
        };
        let expected = ProcessStats {
            cpu_seconds: 2.0,
            resident_bytes: 12 * 1024,
            virtual_bytes: 2048 * 1024,
            virtual_limit: None,
            open_files: 7,
            open_files_limit: Some(1024),
            start_seconds: 1_700_000_007.0,
            start_after_boot: 7.0,
        };
        assert_eq!(parse(&sources, 7), Some(expected));
        let broken = Sources {
            stat: "42 (x) S 1",
            ..sources
        };
        assert_eq!(parse(&broken, 7), None);
    }

    #[test]
    fn this_process() {
        let stats = ProcessStats::read().unwrap();
        assert!(stats.resident_bytes > 0 && stats.virtual_bytes >= stats.resident_bytes);
        assert!(stats.open_files > 0 && stats.start_seconds > 1e9);
    }
}
