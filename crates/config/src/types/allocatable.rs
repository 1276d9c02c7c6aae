//! What of the node is kept from pods.

use std::collections::BTreeMap;

use crate::decode::section;

section! {
    /// Reservations for the system and for the agent.
    pub struct Allocatable {
        /// cpu, memory, ephemeral-storage and pid kept for the system.
        system_reserved: BTreeMap<String, String> = "systemReserved";
        /// The same, kept for Kubernetes' own daemons.
        kube_reserved: BTreeMap<String, String> = "kubeReserved";
        /// CPUs kept from pods, such as 0-1,4; overrides the CPU counts reserved.
        reserved_system_cpus: String = "reservedSystemCPUs";
        /// Cgroup the system's reservation is enforced on.
        system_reserved_cgroup: String = "systemReservedCgroup";
        /// Cgroup the reservation for Kubernetes' daemons is enforced on.
        kube_reserved_cgroup: String = "kubeReservedCgroup";
        /// Where reservations are enforced: none, pods, system-reserved, system-reserved-compressible,
        /// kube-reserved, kube-reserved-compressible.
        enforce_node_allocatable: Vec<String> = "enforceNodeAllocatable" absent(vec!["pods".to_owned()]);
    }
}
