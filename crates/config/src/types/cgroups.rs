//! Cgroups, CPU quota, memory and swap.

use std::collections::BTreeMap;

use crate::decode::section;
use crate::duration::Duration;

section! {
    /// How the node's resources are divided by the kernel.
    pub struct Cgroups {
        /// Cgroup the agent itself moves into.
        kubelet_cgroups: String = "kubeletCgroups";
        /// Cgroup for processes outside any other; needs cgroupRoot.
        system_cgroups: String = "systemCgroups";
        /// Cgroup all pods live under.
        cgroup_root: String = "cgroupRoot";
        /// Keep a cgroup per QoS class and pod.
        cgroups_per_qos: bool = "cgroupsPerQOS" absent(true);
        /// cgroupfs or systemd; a runtime that names its driver over CRI is followed instead.
        cgroup_driver: String = "cgroupDriver" empty("cgroupfs".to_owned());
        /// Refuse to run on cgroup v1.
        fail_cgroup_v1: bool = "failCgroupV1" absent(true);
        /// On cgroup v2, an out-of-memory kill ends one process instead of the container.
        single_process_oom_kill: Option<bool> = "singleProcessOOMKill";
        /// Enforce CPU limits by CFS quota.
        cpu_cfs_quota: bool = "cpuCFSQuota" absent(true);
        /// Period of the CFS quota, 1ms to 1s.
        cpu_cfs_quota_period: Duration = "cpuCFSQuotaPeriod" absent(Duration::from_millis(100));
        /// The agent's own oom_score_adj, -1000 to 1000.
        oom_score_adj: i32 = "oomScoreAdj" absent(-999);
        /// Share of a resource held back for higher QoS classes, such as memory: 50%.
        qos_reserved: BTreeMap<String, String> = "qosReserved";
        /// Where between request and limit memory is throttled, above 0 up to 1.
        memory_throttling_factor: Option<f64> = "memoryThrottlingFactor" absent(Some(0.9));
        /// Protection of requested memory: None or TieredReservation.
        memory_reservation_policy: String = "memoryReservationPolicy" empty("None".to_owned());
        /// Refuse to run while swap is on.
        fail_swap_on: bool = "failSwapOn" absent(true);
        /// Pods' use of swap.
        memory_swap: MemorySwap = "memorySwap";
    }
}

section! {
    /// Swap.
    pub struct MemorySwap {
        /// Empty or NoSwap for none, LimitedSwap for a share of the node's.
        swap_behavior: String = "swapBehavior";
    }
}
