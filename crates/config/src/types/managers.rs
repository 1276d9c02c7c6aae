//! Exclusive CPUs, memory and topology.

use std::collections::BTreeMap;

use crate::decode::section;
use crate::duration::Duration;
use crate::quantity::Quantity;

section! {
    /// The CPU, memory and topology managers.
    pub struct ResourceManagers {
        /// none, or static for exclusive CPUs.
        cpu_manager_policy: String = "cpuManagerPolicy" empty("none".to_owned());
        /// Fine tuning of the CPU manager policy.
        cpu_manager_policy_options: BTreeMap<String, String> = "cpuManagerPolicyOptions";
        /// How often CPU sets are compared with what they should be.
        cpu_manager_reconcile_period: Duration = "cpuManagerReconcilePeriod" empty(Duration::from_secs(10));
        /// None, or Static for memory of guaranteed pods from chosen NUMA nodes.
        memory_manager_policy: String = "memoryManagerPolicy" empty("None".to_owned());
        /// Memory of each NUMA node that pods do not get.
        reserved_memory: Vec<MemoryReservation> = "reservedMemory";
        /// none, best-effort, restricted or single-numa-node.
        topology_manager_policy: String = "topologyManagerPolicy" empty("none".to_owned());
        /// What is aligned: each container or the whole pod.
        topology_manager_scope: String = "topologyManagerScope" empty("container".to_owned());
        /// Fine tuning of the topology manager policy.
        topology_manager_policy_options: BTreeMap<String, String> = "topologyManagerPolicyOptions";
    }
}

section! {
    /// Reserved memory of one NUMA node.
    pub struct MemoryReservation {
        /// Number of the NUMA node.
        numa_node: i32 = "numaNode" always;
        /// Amount of memory and of huge pages, by name.
        limits: BTreeMap<String, Quantity> = "limits" always;
    }
}
