//! What a cgroup is held to, free of the files in which a kernel keeps it.

use std::collections::BTreeMap;

/// Limits of one cgroup. What is not set is left as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CgroupLimits {
    /// Weight against siblings, 2 to 262144, as `cpu.shares` counts.
    pub cpu_shares: Option<u64>,
    pub cpu_quota: Option<CpuQuota>,
    /// Bytes.
    pub memory: Option<i64>,
    /// Bytes that are never reclaimed. Cgroup v2 alone.
    pub memory_min: Option<i64>,
    /// Bytes that are reclaimed last. Cgroup v2 alone.
    pub memory_low: Option<i64>,
    /// Processes and threads.
    pub pids: Option<i64>,
    pub huge_pages: HugePageLimits,
}

/// CPU time in a period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuQuota {
    /// Microseconds; none for as much as there is.
    pub micros: Option<i64>,
    pub period_micros: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum HugePageLimits {
    #[default]
    Untouched,
    /// Of each size as much as there is.
    Unbounded,
    /// Bytes by the size of a page in bytes; of sizes that are not named, nothing.
    Only(BTreeMap<u64, u64>),
}

impl CgroupLimits {
    /// The weight as `cpu.weight` counts, 1 to 10000.
    pub fn cpu_weight(&self) -> Option<u64> {
        let weight = |shares: u64| 1 + (shares.clamp(2, 262_144) - 2) * 9999 / 262_142;
        self.cpu_shares.map(weight)
    }
}

/// As the kernel's cgroup files name the size of a huge page: `2MB`, `1GB`.
pub fn page_size_name(bytes: u64) -> String {
    let units = ["B", "KB", "MB", "GB", "TB", "PB"];
    let mut size = bytes;
    let mut unit = 0;
    while size >= 1024 && size.is_multiple_of(1024) && unit + 1 < units.len() {
        size /= 1024;
        unit += 1;
    }
    format!("{size}{}", units[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_of_shares() {
        for (shares, weight) in [
            (2, 1),
            (102, 4),
            (1024, 39),
            (262_143, 9999),
            (262_144, 10_000),
        ] {
            let limits = CgroupLimits {
                cpu_shares: Some(shares),
                ..CgroupLimits::default()
            };
            assert_eq!(limits.cpu_weight(), Some(weight), "{shares}");
        }
        assert_eq!(CgroupLimits::default().cpu_weight(), None);
    }

    #[test]
    fn names_of_page_sizes() {
        for (bytes, name) in [
            (2 << 20, "2MB"),
            (1 << 30, "1GB"),
            (64 << 10, "64KB"),
            (1536, "1536B"),
        ] {
            assert_eq!(page_size_name(bytes), name);
        }
    }
}
