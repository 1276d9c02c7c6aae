//! Whether the pod's sandbox can be used as it is.

use krablet_pod::SandboxId;
use krablet_pod::api::PodSpec;
use krablet_pod::observed::ObservedPod;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SandboxNeed {
    /// A new sandbox must be made.
    pub create: bool,
    /// Attempt number of the sandbox to make, or of the one there is.
    pub attempt: u32,
    /// The sandbox there is.
    pub existing: Option<SandboxId>,
}

/// A sandbox is good when it is the newest, the only ready one, in the network mode the spec
/// asks for, and has an address unless it shares the host's network.
pub fn sandbox_need(spec: &PodSpec, observed: &ObservedPod) -> SandboxNeed {
    let Some(newest) = observed.sandboxes.first() else {
        return SandboxNeed {
            create: true,
            attempt: 0,
            existing: None,
        };
    };
    let host_network = spec.host_network.unwrap_or(false);
    let good = newest.ready
        && observed.ready_sandboxes().count() == 1
        && newest.host_network == host_network
        && (host_network || newest.ips.iter().any(|ip| !ip.is_empty()));
    SandboxNeed {
        create: !good,
        attempt: newest.attempt.saturating_add(u32::from(!good)),
        existing: Some(newest.id.clone()),
    }
}
