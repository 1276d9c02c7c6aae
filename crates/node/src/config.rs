//! What the node is told about itself by its user.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use krablet_pod::api::Taint;

use crate::resources::Reservations;

#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// The Node object's name.
    pub name: String,
    /// What the label and the address of kind Hostname say.
    pub hostname: String,
    pub registration: Registration,
    /// As given with `--node-ip`: none, one, or one of each family. An unspecified address asks for
    /// a family only.
    pub node_ips: Vec<IpAddr>,
    /// Addresses that were found before; one is kept while the machine has it.
    pub found_ips: Vec<IpAddr>,
    /// Tells the addresses of the interfaces, for when neither the name nor the default route tells one.
    pub interface_ips: fn() -> Vec<IpAddr>,
    pub pod_limit: PodLimit,
    pub reservations: Reservations,
    /// Count and share out the root file system as ephemeral storage.
    pub ephemeral_storage: bool,
    /// Where the agent serves HTTPS.
    pub port: i32,
    /// Most images in the status; none lists all.
    pub max_images: Option<usize>,
    /// Told in the status as they are, if the node declares features at all.
    pub declared_features: Option<Vec<String>>,
    pub periods: Periods,
    /// For jitter.
    pub seed: u64,
}

impl NodeConfig {
    /// A node of this name with a kubelet's defaults.
    pub fn new(name: impl Into<String>) -> Self {
        let name = name.into();
        Self {
            hostname: name.clone(),
            name,
            registration: Registration::default(),
            node_ips: Vec::new(),
            found_ips: Vec::new(),
            interface_ips: Vec::new,
            pod_limit: PodLimit::default(),
            reservations: Reservations::default(),
            ephemeral_storage: true,
            port: 10250,
            max_images: Some(50),
            declared_features: None,
            periods: Periods::default(),
            seed: 0,
        }
    }
}

/// What goes into the Node object when it is made.
#[derive(Clone, Debug)]
pub struct Registration {
    /// Make the Node object if it is missing.
    pub register: bool,
    pub labels: BTreeMap<String, String>,
    pub taints: Vec<Taint>,
    pub provider_id: String,
    /// `--cloud-provider=external`: a controller will fill in addresses and lift the taint.
    pub external_cloud_provider: bool,
    /// A controller attaches volumes, not this node.
    pub controller_attaches: bool,
    /// Devices of an earlier life are unknown: their amounts start at zero.
    pub reset_extended_resources: bool,
}

impl Default for Registration {
    fn default() -> Self {
        Self {
            register: true,
            labels: BTreeMap::new(),
            taints: Vec::new(),
            provider_id: String::new(),
            external_cloud_provider: false,
            controller_attaches: true,
            reset_extended_resources: false,
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct PodLimit {
    pub max_pods: u32,
    /// 0 sets no such limit.
    pub pods_per_core: u32,
}

impl Default for PodLimit {
    fn default() -> Self {
        Self {
            max_pods: 110,
            pods_per_core: 0,
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Periods {
    /// Between computations of the status when nothing rings.
    pub update: Duration,
    /// Between reports of an unchanged status.
    pub report: Duration,
    /// Between looks at the images.
    pub images: Duration,
}

impl Default for Periods {
    fn default() -> Self {
        Self {
            update: Duration::from_secs(10),
            report: Duration::from_secs(300),
            images: Duration::from_secs(30),
        }
    }
}
