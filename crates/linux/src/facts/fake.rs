//! Facts that are whatever a test or the simulated world says.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;

use super::{HugePages, Identity, Machine, MachineFacts};

#[derive(Default)]
struct Told {
    machine: Machine,
    addresses: Vec<IpAddr>,
    names: BTreeMap<String, Vec<IpAddr>>,
}

/// A machine that is only told of. Clones share it.
#[derive(Clone, Default)]
pub struct MemoryFacts(Arc<Mutex<Told>>);

impl MemoryFacts {
    /// An ordinary machine: four processors, 16 GiB, 100 GiB of disk, one address.
    pub fn ordinary() -> Self {
        let facts = Self::default();
        facts.change(|machine| {
            *machine = Machine {
                cpus: 4,
                memory: 16 << 30,
                swap: 0,
                huge_pages: vec![HugePages {
                    size: 2 << 20,
                    count: 0,
                }],
                root_capacity: Some(100 << 30),
                identity: Identity {
                    machine_id: "machine-1".to_owned(),
                    system_uuid: "uuid-1".to_owned(),
                    boot_id: "boot-1".to_owned(),
                    kernel_version: "6.1.0".to_owned(),
                    os_image: "Tiny Linux".to_owned(),
                    architecture: "amd64".to_owned(),
                },
            };
        });
        facts.set_addresses(vec![IpAddr::from([10, 0, 0, 1])]);
        facts
    }

    pub fn change(&self, change: impl FnOnce(&mut Machine)) {
        change(&mut self.told().machine);
    }

    /// The addresses of the interfaces; the first of a family is on the default route.
    pub fn set_addresses(&self, addresses: Vec<IpAddr>) {
        self.told().addresses = addresses;
    }

    pub fn set_name(&self, name: &str, addresses: Vec<IpAddr>) {
        self.told().names.insert(name.to_owned(), addresses);
    }

    fn told(&self) -> MutexGuard<'_, Told> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl MachineFacts for MemoryFacts {
    async fn machine(&self) -> Machine {
        self.told().machine.clone()
    }

    async fn owns(&self, ip: IpAddr) -> bool {
        self.told().addresses.contains(&ip)
    }

    async fn lookup(&self, name: &str) -> Vec<IpAddr> {
        self.told().names.get(name).cloned().unwrap_or_default()
    }

    async fn default_ip(&self, v6: bool) -> Option<IpAddr> {
        let told = self.told();
        told.addresses.iter().find(|ip| ip.is_ipv6() == v6).copied()
    }
}
