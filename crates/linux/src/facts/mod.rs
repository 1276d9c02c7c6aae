//! What the machine is and has: the facts a node tells the cluster about itself. Read whenever they
//! are asked for, because memory, processors and addresses come and go. What cannot be read is
//! empty; nothing here fails.

mod fake;
mod host;
mod host_ips;
pub(crate) mod parse;

use std::net::IpAddr;

use async_trait::async_trait;

pub use fake::MemoryFacts;
pub use host::HostFacts;
pub use host_ips::HostIps;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    /// Logical processors that are online.
    pub cpus: u32,
    /// Bytes of memory the kernel manages.
    pub memory: u64,
    /// Bytes of swap.
    pub swap: u64,
    /// One entry per size the kernel offers, smallest first.
    pub huge_pages: Vec<HugePages>,
    /// Bytes of the file system that holds the agent's root directory.
    pub root_capacity: Option<u64>,
    pub identity: Identity,
}

/// The pages of one size set aside at boot or later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HugePages {
    /// Bytes of one page.
    pub size: u64,
    pub count: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    pub machine_id: String,
    pub system_uuid: String,
    pub boot_id: String,
    pub kernel_version: String,
    pub os_image: String,
    /// In the names images use: `amd64`, `arm64`.
    pub architecture: String,
}

#[async_trait]
pub trait MachineFacts: Send + Sync {
    async fn machine(&self) -> Machine;
    /// Whether one of this machine's interfaces has the address.
    async fn owns(&self, ip: IpAddr) -> bool;
    /// The addresses a name resolves to. Takes as long as the resolver does.
    async fn lookup(&self, name: &str) -> Vec<IpAddr>;
    /// The own address on the way out by the default route, of the wanted family.
    async fn default_ip(&self, v6: bool) -> Option<IpAddr>;
}
