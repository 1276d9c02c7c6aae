//! Flags of the node: registration, API calls, reservations, cgroups and managers.

use super::Flag;
use super::Slot::{
    Bool, Duration, Gates, Int32, Int64, List, OnePair, Pairs, ReservedMemory, Taints, Text,
};

pub(super) const FLAGS: &[Flag] = &[
    Flag::of_field(
        "register-node",
        "registerNode",
        Bool(|s| &mut s.config.node.register_node),
        "Create the Node object if it is missing.",
    ),
    Flag::of_field(
        "register-with-taints",
        "registerWithTaints",
        Taints(|s| &mut s.config.node.register_with_taints),
        "Taints the node is registered with.",
    ),
    Flag::of_field(
        "provider-id",
        "providerID",
        Text(|s| &mut s.config.node.provider_id),
        "Name of the machine at its cloud provider.",
    )
    .current(),
    Flag::of_field(
        "node-status-update-frequency",
        "nodeStatusUpdateFrequency",
        Duration(|s| &mut s.config.node.node_status_update_frequency),
        "How often the node status is computed.",
    ),
    Flag::of_field(
        "node-status-max-images",
        "nodeStatusMaxImages",
        Int32(|s| &mut s.config.node.node_status_max_images),
        "Most images listed in the node status; -1 lists all.",
    ),
    Flag::of_field(
        "kube-api-content-type",
        "contentType",
        Text(|s| &mut s.config.node.content_type),
        "Encoding of API requests.",
    ),
    Flag::of_field(
        "kube-api-qps",
        "kubeAPIQPS",
        Int32(|s| &mut s.config.node.kube_api_qps),
        "API requests per second.",
    ),
    Flag::of_field(
        "kube-api-burst",
        "kubeAPIBurst",
        Int32(|s| &mut s.config.node.kube_api_burst),
        "API requests in a burst.",
    ),
    Flag::of_field(
        "event-qps",
        "eventRecordQPS",
        Int32(|s| &mut s.config.node.event_record_qps),
        "Events per second; 0 takes the limit off.",
    ),
    Flag::of_field(
        "event-burst",
        "eventBurst",
        Int32(|s| &mut s.config.node.event_burst),
        "Events in a burst.",
    ),
    Flag::of_field(
        "feature-gates",
        "featureGates",
        Gates(|s| &mut s.config.process.feature_gates),
        "Feature gates set to another value than their default; merged with those of the configuration file.",
    ),
    Flag::of_field(
        "max-open-files",
        "maxOpenFiles",
        Int64(|s| &mut s.config.process.max_open_files),
        "Most files the agent may have open.",
    ),
    Flag::of_field(
        "protect-kernel-defaults",
        "protectKernelDefaults",
        Bool(|s| &mut s.config.process.protect_kernel_defaults),
        "Fail instead of changing kernel settings that are not as needed.",
    ),
];

pub(super) const RESOURCES: &[Flag] = &[
    Flag::of_field(
        "kubelet-cgroups",
        "kubeletCgroups",
        Text(|s| &mut s.config.cgroups.kubelet_cgroups),
        "Cgroup the agent itself moves into.",
    ),
    Flag::of_field(
        "system-cgroups",
        "systemCgroups",
        Text(|s| &mut s.config.cgroups.system_cgroups),
        "Cgroup for processes outside any other; needs --cgroup-root.",
    ),
    Flag::of_field(
        "cgroup-root",
        "cgroupRoot",
        Text(|s| &mut s.config.cgroups.cgroup_root),
        "Cgroup all pods live under.",
    ),
    Flag::of_field(
        "cgroups-per-qos",
        "cgroupsPerQOS",
        Bool(|s| &mut s.config.cgroups.cgroups_per_qos),
        "Keep a cgroup per QoS class and pod.",
    ),
    Flag::of_field(
        "cgroup-driver",
        "cgroupDriver",
        Text(|s| &mut s.config.cgroups.cgroup_driver),
        "cgroupfs or systemd.",
    ),
    Flag::of_field(
        "fail-cgroupv1",
        "failCgroupV1",
        Bool(|s| &mut s.config.cgroups.fail_cgroup_v1),
        "Refuse to run on cgroup v1.",
    )
    .current(),
    Flag::of_field(
        "fail-swap-on",
        "failSwapOn",
        Bool(|s| &mut s.config.cgroups.fail_swap_on),
        "Refuse to run while swap is on.",
    ),
    Flag::of_field(
        "cpu-cfs-quota",
        "cpuCFSQuota",
        Bool(|s| &mut s.config.cgroups.cpu_cfs_quota),
        "Enforce CPU limits by CFS quota.",
    ),
    Flag::of_field(
        "cpu-cfs-quota-period",
        "cpuCFSQuotaPeriod",
        Duration(|s| &mut s.config.cgroups.cpu_cfs_quota_period),
        "Period of the CFS quota, 1ms to 1s.",
    ),
    Flag::of_field(
        "oom-score-adj",
        "oomScoreAdj",
        Int32(|s| &mut s.config.cgroups.oom_score_adj),
        "The agent's own oom_score_adj, -1000 to 1000.",
    ),
    Flag::of_field(
        "qos-reserved",
        "qosReserved",
        Pairs(|s| &mut s.config.cgroups.qos_reserved),
        "Share of a resource held back for higher QoS classes, such as memory=50%. Needs the gate QOSReserved.",
    ),
    Flag::of_field(
        "cpu-manager-policy",
        "cpuManagerPolicy",
        Text(|s| &mut s.config.managers.cpu_manager_policy),
        "none, or static for exclusive CPUs.",
    ),
    Flag::of_field(
        "cpu-manager-policy-options",
        "cpuManagerPolicyOptions",
        OnePair(|s| &mut s.config.managers.cpu_manager_policy_options),
        "Fine tuning of the CPU manager policy.",
    ),
    Flag::of_field(
        "cpu-manager-reconcile-period",
        "cpuManagerReconcilePeriod",
        Duration(|s| &mut s.config.managers.cpu_manager_reconcile_period),
        "How often CPU sets are compared with what they should be.",
    ),
    Flag::of_field(
        "memory-manager-policy",
        "memoryManagerPolicy",
        Text(|s| &mut s.config.managers.memory_manager_policy),
        "None, or Static for memory of guaranteed pods from chosen NUMA nodes.",
    ),
    Flag::of_field(
        "reserved-memory",
        "reservedMemory",
        ReservedMemory(|s| &mut s.config.managers.reserved_memory),
        "Memory of each NUMA node that pods do not get, such as 0:memory=1Gi,hugepages-1Gi=2Gi.",
    ),
    Flag::of_field(
        "topology-manager-policy",
        "topologyManagerPolicy",
        Text(|s| &mut s.config.managers.topology_manager_policy),
        "none, best-effort, restricted or single-numa-node.",
    ),
    Flag::of_field(
        "topology-manager-scope",
        "topologyManagerScope",
        Text(|s| &mut s.config.managers.topology_manager_scope),
        "What is aligned: container or pod.",
    ),
    Flag::of_field(
        "topology-manager-policy-options",
        "topologyManagerPolicyOptions",
        Pairs(|s| &mut s.config.managers.topology_manager_policy_options),
        "Fine tuning of the topology manager policy.",
    ),
    Flag::of_field(
        "system-reserved",
        "systemReserved",
        Pairs(|s| &mut s.config.allocatable.system_reserved),
        "cpu, memory, ephemeral-storage and pid kept for the system.",
    ),
    Flag::of_field(
        "kube-reserved",
        "kubeReserved",
        Pairs(|s| &mut s.config.allocatable.kube_reserved),
        "cpu, memory, ephemeral-storage and pid kept for Kubernetes' own daemons.",
    ),
    Flag::of_field(
        "reserved-cpus",
        "reservedSystemCPUs",
        Text(|s| &mut s.config.allocatable.reserved_system_cpus),
        "CPUs kept from pods, such as 0-1,4.",
    ),
    Flag::of_field(
        "system-reserved-cgroup",
        "systemReservedCgroup",
        Text(|s| &mut s.config.allocatable.system_reserved_cgroup),
        "Cgroup the system's reservation is enforced on.",
    ),
    Flag::of_field(
        "kube-reserved-cgroup",
        "kubeReservedCgroup",
        Text(|s| &mut s.config.allocatable.kube_reserved_cgroup),
        "Cgroup the reservation for Kubernetes' daemons is enforced on.",
    ),
    Flag::of_field(
        "enforce-node-allocatable",
        "enforceNodeAllocatable",
        List(|s| &mut s.config.allocatable.enforce_node_allocatable),
        "Where reservations are enforced: none, pods, system-reserved, system-reserved-compressible, kube-reserved, kube-reserved-compressible.",
    ),
];
