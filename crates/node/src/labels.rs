//! Names of labels, annotations and taints a node carries.

use krablet_linux::Machine;

pub(crate) const OS: &str = "linux";
pub(crate) const HOSTNAME: &str = "kubernetes.io/hostname";
const OS_LABEL: &str = "kubernetes.io/os";
const ARCH_LABEL: &str = "kubernetes.io/arch";
const BETA_OS_LABEL: &str = "beta.kubernetes.io/os";
const BETA_ARCH_LABEL: &str = "beta.kubernetes.io/arch";

pub(crate) const CONTROLLER_ATTACHES: &str =
    "volumes.kubernetes.io/controller-managed-attach-detach";
pub(crate) const PROVIDED_IP: &str = "alpha.kubernetes.io/provided-node-ip";
pub(crate) const UNINITIALIZED: &str = "node.cloudprovider.kubernetes.io/uninitialized";

/// Labels that are set anew on a node that exists already, when they are among the given ones.
pub(crate) const RENEWED: &[&str] = &[
    HOSTNAME,
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "node.kubernetes.io/instance-type",
    "beta.kubernetes.io/instance-type",
    OS_LABEL,
    ARCH_LABEL,
    "node.kubernetes.io/windows-build",
    BETA_OS_LABEL,
    BETA_ARCH_LABEL,
];

/// What every node says of its platform, always.
pub(crate) fn platform(machine: &Machine) -> [(&'static str, String); 2] {
    [
        (OS_LABEL, OS.to_owned()),
        (ARCH_LABEL, machine.identity.architecture.clone()),
    ]
}

/// The older names of the same.
pub(crate) fn beta_platform(machine: &Machine) -> [(&'static str, String); 2] {
    [
        (BETA_OS_LABEL, OS.to_owned()),
        (BETA_ARCH_LABEL, machine.identity.architecture.clone()),
    ]
}
