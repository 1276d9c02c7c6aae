//! Ports on the node's own addresses.

use krablet_pod::api::{Container, PodSpec};
use krablet_pod::containers::{init_containers, is_sidecar};

const ANY_ADDRESS: &str = "0.0.0.0";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HostPort {
    address: String,
    protocol: String,
    port: i32,
}

impl HostPort {
    fn conflicts(&self, other: &Self) -> bool {
        let address = self.address == other.address
            || self.address == ANY_ADDRESS
            || other.address == ANY_ADDRESS;
        address && self.protocol == other.protocol && self.port == other.port
    }
}

/// Ports held as long as the pod runs; those of init containers that end are not.
pub(super) fn host_ports(spec: &PodSpec) -> Vec<HostPort> {
    let lasting = init_containers(spec).iter().filter(|c| is_sidecar(c));
    lasting.chain(&spec.containers).flat_map(ports).collect()
}

fn ports(container: &Container) -> impl Iterator<Item = HostPort> {
    let or = |text: &Option<String>, default: &str| match text.as_deref() {
        None | Some("") => default.to_owned(),
        Some(text) => text.to_owned(),
    };
    container.ports.iter().flatten().filter_map(move |p| {
        let port = p.host_port.filter(|port| *port > 0)?;
        Some(HostPort {
            address: or(&p.host_ip, ANY_ADDRESS),
            protocol: or(&p.protocol, "TCP"),
            port,
        })
    })
}

pub(super) fn any_conflict(wanted: &[HostPort], held: &[HostPort]) -> bool {
    wanted.iter().any(|w| held.iter().any(|h| w.conflicts(h)))
}
