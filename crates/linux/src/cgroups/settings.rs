//! Limits as the files of the kernel's two kinds of cgroups say them.

use krablet_pod::cgroups::{CgroupLimits, CpuQuota, HugePageLimits, page_size_name};

use super::CgroupVersion;

/// More huge pages than any machine has.
const UNBOUNDED: u64 = 1 << 62;

/// One file to write. They are written in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Setting {
    pub(super) controller: &'static str,
    pub(super) file: String,
    pub(super) value: String,
    /// Kernels of old do not have the file.
    pub(super) recent: bool,
}

impl Setting {
    fn new(controller: &'static str, file: impl Into<String>, value: impl ToString) -> Self {
        Self {
            controller,
            file: file.into(),
            value: value.to_string(),
            recent: false,
        }
    }
}

/// `page_sizes` are the sizes of huge pages the kernel offers, in bytes.
pub(super) fn settings(
    version: CgroupVersion,
    limits: &CgroupLimits,
    page_sizes: &[u64],
) -> Vec<Setting> {
    let memory = limits.memory.filter(|bytes| *bytes > 0);
    let mut all = match version {
        CgroupVersion::V1 => {
            let mut all = Vec::new();
            all.extend(
                limits
                    .cpu_shares
                    .map(|n| Setting::new("cpu", "cpu.shares", n)),
            );
            all.extend(limits.cpu_quota.into_iter().flat_map(quota_v1));
            all.extend(memory.map(|n| Setting::new("memory", "memory.limit_in_bytes", n)));
            all
        }
        CgroupVersion::V2 => {
            let protected =
                |file, bytes: Option<i64>| bytes.map(|n| Setting::new("memory", file, n));
            let mut all = Vec::new();
            all.extend(
                limits
                    .cpu_weight()
                    .map(|n| Setting::new("cpu", "cpu.weight", n)),
            );
            all.extend(limits.cpu_quota.map(quota_v2));
            all.extend(memory.map(|n| Setting::new("memory", "memory.max", n)));
            all.extend(protected("memory.min", limits.memory_min));
            all.extend(protected("memory.low", limits.memory_low));
            all
        }
    };
    // The kernel knows no limit of zero processes that systemd knows, too.
    all.extend(
        limits
            .pids
            .map(|n| Setting::new("pids", "pids.max", n.max(1))),
    );
    all.extend(huge_pages(version, &limits.huge_pages, page_sizes));
    all
}

/// A kernel may refuse a shorter period while the quota is still the old one.
fn quota_v1(quota: CpuQuota) -> Vec<Setting> {
    vec![
        Setting::new("cpu", "cpu.cfs_period_us", quota.period_micros),
        Setting::new("cpu", "cpu.cfs_quota_us", quota.micros.unwrap_or(-1)),
    ]
}

fn quota_v2(quota: CpuQuota) -> Setting {
    let micros = quota.micros.map_or("max".to_owned(), |n| n.to_string());
    Setting::new(
        "cpu",
        "cpu.max",
        format!("{micros} {}", quota.period_micros),
    )
}

fn huge_pages(version: CgroupVersion, limits: &HugePageLimits, sizes: &[u64]) -> Vec<Setting> {
    let limit = |size: &u64| match limits {
        HugePageLimits::Untouched => None,
        HugePageLimits::Unbounded => Some(UNBOUNDED),
        HugePageLimits::Only(some) => Some(some.get(size).copied().unwrap_or(0)),
    };
    let suffix = match version {
        CgroupVersion::V1 => "limit_in_bytes",
        CgroupVersion::V2 => "max",
    };
    let mut all = Vec::new();
    for size in sizes {
        let Some(limit) = limit(size) else { continue };
        let name = page_size_name(*size);
        let used = Setting::new("hugetlb", format!("hugetlb.{name}.{suffix}"), limit);
        let reserved = Setting {
            file: format!("hugetlb.{name}.rsvd.{suffix}"),
            recent: true,
            ..used.clone()
        };
        all.extend([used, reserved]);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(version: CgroupVersion, limits: &CgroupLimits, sizes: &[u64]) -> Vec<String> {
        let all = settings(version, limits, sizes);
        all.iter()
            .map(|s| format!("{}={}", s.file, s.value))
            .collect()
    }

    fn limits() -> CgroupLimits {
        CgroupLimits {
            cpu_shares: Some(1024),
            cpu_quota: Some(CpuQuota {
                micros: Some(50_000),
                period_micros: 100_000,
            }),
            memory: Some(1 << 20),
            memory_min: Some(4096),
            memory_low: None,
            pids: Some(100),
            huge_pages: HugePageLimits::Only([(2 << 20, 4 << 20)].into()),
        }
    }

    #[test]
    fn files_of_both_versions() {
        let sizes = [2 << 20, 1 << 30];
        assert_eq!(
            shown(CgroupVersion::V1, &limits(), &sizes),
            [
                "cpu.shares=1024",
                "cpu.cfs_period_us=100000",
                "cpu.cfs_quota_us=50000",
                "memory.limit_in_bytes=1048576",
                "pids.max=100",
                "hugetlb.2MB.limit_in_bytes=4194304",
                "hugetlb.2MB.rsvd.limit_in_bytes=4194304",
                "hugetlb.1GB.limit_in_bytes=0",
                "hugetlb.1GB.rsvd.limit_in_bytes=0",
            ]
        );
        assert_eq!(
            shown(CgroupVersion::V2, &limits(), &sizes[..1]),
            [
                "cpu.weight=39",
                "cpu.max=50000 100000",
                "memory.max=1048576",
                "memory.min=4096",
                "pids.max=100",
                "hugetlb.2MB.max=4194304",
                "hugetlb.2MB.rsvd.max=4194304",
            ]
        );
    }

    #[test]
    fn what_is_not_set_is_not_written() {
        let none = CgroupLimits::default();
        let sizes = [2 << 20];
        for version in [CgroupVersion::V1, CgroupVersion::V2] {
            assert_eq!(shown(version, &none, &sizes), [""; 0]);
        }
        let free = CgroupLimits {
            cpu_quota: Some(CpuQuota {
                micros: None,
                period_micros: 5000,
            }),
            memory: Some(0),
            huge_pages: HugePageLimits::Unbounded,
            ..none
        };
        assert_eq!(
            shown(CgroupVersion::V1, &free, &[]),
            ["cpu.cfs_period_us=5000", "cpu.cfs_quota_us=-1"]
        );
        assert_eq!(
            shown(CgroupVersion::V2, &free, &sizes),
            [
                "cpu.max=max 5000",
                "hugetlb.2MB.max=4611686018427387904",
                "hugetlb.2MB.rsvd.max=4611686018427387904"
            ]
        );
    }
}
