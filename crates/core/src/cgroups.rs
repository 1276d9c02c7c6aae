//! The numbers of the cgroups this agent keeps: those of a pod, of the QoS classes, and of what is
//! reserved of the node. A kubelet writes the same ones.

mod classes;
mod node;
mod pod;

pub use classes::{ClassRules, class_limits};
pub use node::{Enforcement, Reserved, enforcement};
pub use pod::{PodRules, pod_limits};

const MIN_SHARES: i64 = 2;
const MAX_SHARES: i64 = 262_144;
const MIN_QUOTA_MICROS: i64 = 1000;
const HUGE_PAGES: &str = "hugepages-";

/// The kernel's weight of so many thousandths of a CPU.
pub fn cpu_shares(milli: i64) -> i64 {
    (milli.saturating_mul(1024) / 1000).clamp(MIN_SHARES, MAX_SHARES)
}

/// Microseconds of CPU time in a period; 0 for no limit.
pub fn cpu_quota(milli: i64, period_micros: i64) -> i64 {
    match milli {
        0 => 0,
        milli => (milli.saturating_mul(period_micros) / 1000).max(MIN_QUOTA_MICROS),
    }
}

fn shares(milli: i64) -> u64 {
    u64::try_from(cpu_shares(milli)).unwrap_or(2)
}

/// Of a list of resources, the huge pages: bytes by the size of a page.
fn huge_pages(amounts: &krablet_pod::resources::Amounts) -> krablet_pod::cgroups::HugePageLimits {
    let bytes = |q: krablet_pod::Quantity| u64::try_from(q.value()).unwrap_or(0);
    let mut limits = std::collections::BTreeMap::new();
    for (name, amount) in amounts {
        if let Some(Ok(size)) = name.strip_prefix(HUGE_PAGES).map(str::parse) {
            *limits.entry(bytes(size)).or_insert(0) += bytes(*amount);
        }
    }
    krablet_pod::cgroups::HugePageLimits::Only(limits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_and_quota() {
        for (milli, shares) in [
            (0, 2),
            (1, 2),
            (100, 102),
            (1000, 1024),
            (10_000_000, 262_144),
        ] {
            assert_eq!(cpu_shares(milli), shares, "{milli}");
        }
        for (milli, quota) in [
            (0, 0),
            (1, 1000),
            (10, 1000),
            (200, 20_000),
            (1500, 150_000),
        ] {
            assert_eq!(cpu_quota(milli, 100_000), quota, "{milli}");
        }
    }
}
