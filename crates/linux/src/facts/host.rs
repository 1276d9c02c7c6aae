//! The facts of the machine we run on.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, ToSocketAddrs, UdpSocket};
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use rustix::fs::statvfs;
use rustix::system::uname;

use super::{HugePages, Identity, Machine, MachineFacts, parse};
use crate::failure::blocking;

const MACHINE_ID: &[&str] = &["etc/machine-id", "var/lib/dbus/machine-id"];
const BOOT_ID: &[&str] = &["proc/sys/kernel/random/boot_id"];
/// The firmware's tables, where POWER machines keep theirs, and what must do without them.
const SYSTEM_UUID: &[&str] = &[
    "sys/class/dmi/id/product_uuid",
    "proc/device-tree/system-id",
    "proc/device-tree/vm,uuid",
    "etc/machine-id",
];
const OS_RELEASE: &[&str] = &["etc/os-release", "usr/lib/os-release"];
const HUGE_PAGES: &str = "sys/kernel/mm/hugepages";

/// Addresses nobody has, only to ask which way the default route goes.
const BEYOND_V4: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 1);
const BEYOND_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);

/// The machine's own facts.
#[derive(Clone, Debug)]
pub struct HostFacts {
    /// Where `/proc`, `/sys` and `/etc` are.
    root: PathBuf,
    /// The agent's root directory.
    root_dir: PathBuf,
}

impl HostFacts {
    pub fn new(root_dir: impl Into<PathBuf>) -> Self {
        Self {
            root: "/".into(),
            root_dir: root_dir.into(),
        }
    }

    fn read(&self) -> Machine {
        let meminfo = self.text("proc/meminfo").unwrap_or_default();
        Machine {
            cpus: self.cpus(),
            memory: parse::meminfo(&meminfo, "MemTotal"),
            swap: parse::meminfo(&meminfo, "SwapTotal"),
            huge_pages: self.huge_pages(),
            root_capacity: capacity(&self.root_dir),
            identity: self.identity(),
        }
    }

    fn identity(&self) -> Identity {
        let os_image = match self.first(OS_RELEASE) {
            Some(text) => parse::pretty_name(&text),
            None => "Unknown".to_owned(),
        };
        Identity {
            machine_id: self.id(MACHINE_ID),
            system_uuid: self.id(SYSTEM_UUID),
            boot_id: self.id(BOOT_ID),
            kernel_version: uname().release().to_string_lossy().into_owned(),
            os_image,
            architecture: parse::architecture(std::env::consts::ARCH).to_owned(),
        }
    }

    fn cpus(&self) -> u32 {
        let online = self.text("sys/devices/system/cpu/online");
        let online = online.and_then(|text| parse::list_length(&text));
        online.unwrap_or_else(|| {
            let allowed = std::thread::available_parallelism().map_or(1, usize::from);
            u32::try_from(allowed).unwrap_or(1)
        })
    }

    fn huge_pages(&self) -> Vec<HugePages> {
        let Ok(sizes) = fs::read_dir(self.root.join(HUGE_PAGES)) else {
            return Vec::new();
        };
        let mut found: Vec<HugePages> = sizes
            .filter_map(|entry| {
                let name = entry.ok()?.file_name();
                let name = name.to_str()?;
                let count = self.text(&format!("{HUGE_PAGES}/{name}/nr_hugepages"))?;
                Some(HugePages {
                    size: parse::huge_page_size(name)?,
                    count: count.trim().parse().ok()?,
                })
            })
            .collect();
        found.sort_by_key(|pages| pages.size);
        found
    }

    fn text(&self, path: &str) -> Option<String> {
        let bytes = fs::read(self.root.join(path)).ok()?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The first of the files that can be read.
    fn first(&self, paths: &[&str]) -> Option<String> {
        paths.iter().find_map(|path| self.text(path))
    }

    fn id(&self, paths: &[&str]) -> String {
        let text = self.first(paths).unwrap_or_default();
        text.trim_end_matches('\0').trim().to_owned()
    }
}

fn capacity(root_dir: &Path) -> Option<u64> {
    let found = statvfs(root_dir).ok()?;
    Some(found.f_frsize.saturating_mul(found.f_blocks))
}

/// A socket may be bound only to an address of the machine. Nothing is sent.
fn is_own(ip: IpAddr) -> bool {
    UdpSocket::bind((ip, 0)).is_ok()
}

/// Connecting a datagram socket chooses the way and the own address on it. Nothing is sent.
fn outbound(v6: bool) -> Option<IpAddr> {
    let (any, beyond): (IpAddr, IpAddr) = match v6 {
        true => (Ipv6Addr::UNSPECIFIED.into(), BEYOND_V6.into()),
        false => (Ipv4Addr::UNSPECIFIED.into(), BEYOND_V4.into()),
    };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect((beyond, 9)).ok()?;
    let ip = socket.local_addr().ok()?.ip();
    (!ip.is_unspecified() && !ip.is_loopback()).then_some(ip)
}

#[async_trait]
impl MachineFacts for HostFacts {
    async fn machine(&self) -> Machine {
        let facts = self.clone();
        blocking(move || Ok(facts.read())).await.unwrap_or_default()
    }

    async fn owns(&self, ip: IpAddr) -> bool {
        is_own(ip)
    }

    async fn lookup(&self, name: &str) -> Vec<IpAddr> {
        let name = name.to_owned();
        let found = blocking(move || {
            let found = (name.as_str(), 0).to_socket_addrs()?;
            Ok(found.map(|address| address.ip()).collect::<Vec<_>>())
        });
        found.await.unwrap_or_default()
    }

    async fn default_ip(&self, v6: bool) -> Option<IpAddr> {
        outbound(v6)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine_at(files: &[(&str, &str)]) -> Machine {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let facts = HostFacts {
            root: dir.path().to_owned(),
            root_dir: dir.path().join("absent"),
        };
        facts.read()
    }

    #[test]
    fn a_machine_is_read_from_its_files() {
        let machine = machine_at(&[
            ("proc/meminfo", "MemTotal: 8 kB\nSwapTotal: 2 kB\n"),
            ("sys/devices/system/cpu/online", "0-2\n"),
            (
                "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages",
                "3\n",
            ),
            ("sys/kernel/mm/hugepages/hugepages-64kB/nr_hugepages", "0\n"),
            ("var/lib/dbus/machine-id", "m1\n"),
            ("sys/class/dmi/id/product_uuid", "u1\n"),
            ("proc/sys/kernel/random/boot_id", "b1\n"),
            ("usr/lib/os-release", "PRETTY_NAME=\"Tiny\"\n"),
        ]);
        let size_and_count = |h: &HugePages| (h.size, h.count);
        assert_eq!(
            (machine.cpus, machine.memory, machine.swap),
            (3, 8192, 2048)
        );
        assert_eq!(
            machine
                .huge_pages
                .iter()
                .map(size_and_count)
                .collect::<Vec<_>>(),
            [(64 << 10, 0), (2 << 20, 3)]
        );
        assert_eq!(machine.root_capacity, None);
        let identity = machine.identity;
        assert_eq!(identity.machine_id, "m1");
        assert_eq!(identity.system_uuid, "u1");
        assert_eq!(identity.boot_id, "b1");
        assert_eq!(identity.os_image, "Tiny");
        assert!(!identity.kernel_version.is_empty());
    }

    #[test]
    fn what_is_missing_is_empty() {
        let machine = machine_at(&[]);
        assert_eq!((machine.memory, machine.swap), (0, 0));
        assert!(machine.cpus > 0 && machine.huge_pages.is_empty());
        assert_eq!(machine.identity.system_uuid, "");
        assert_eq!(machine.identity.os_image, "Unknown");
    }

    #[tokio::test]
    async fn this_machine_has_facts() {
        let facts = HostFacts::new("/");
        let machine = facts.machine().await;
        assert!(machine.cpus > 0 && machine.memory > 0);
        assert!(machine.root_capacity > Some(0));
        assert!(facts.owns(Ipv4Addr::LOCALHOST.into()).await);
        assert!(!facts.owns(BEYOND_V4.into()).await);
        if let Some(ip) = facts.default_ip(false).await {
            assert!(ip.is_ipv4() && facts.owns(ip).await);
        }
    }
}
