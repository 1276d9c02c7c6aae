//! Names, addresses and packet rules of pods.

use crate::decode::section;

section! {
    /// DNS, pod addresses and iptables.
    pub struct Network {
        /// Domain of the cluster, searched by pods besides the host's.
        cluster_domain: String = "clusterDomain";
        /// DNS servers of pods with the policy ClusterFirst.
        cluster_dns: Vec<String> = "clusterDNS";
        /// Host file the pods' DNS settings start from; empty takes nothing from the host.
        resolv_conf: String = "resolvConf" absent("/etc/resolv.conf".to_owned());
        /// How pods reach themselves through their own service: promiscuous-bridge, hairpin-veth or none.
        hairpin_mode: String = "hairpinMode" empty("promiscuous-bridge".to_owned());
        /// Address range of pods when no API server hands one out.
        pod_cidr: String = "podCIDR";
        /// Keep the agent's iptables chains in place.
        make_iptables_util_chains: bool = "makeIPTablesUtilChains" absent(true);
        /// Packet mark bit for source NAT, 0 to 31.
        iptables_masquerade_bit: i32 = "iptablesMasqueradeBit" absent(14);
        /// Packet mark bit for dropping, 0 to 31.
        iptables_drop_bit: i32 = "iptablesDropBit" absent(15);
    }
}
