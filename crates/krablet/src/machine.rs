//! What this machine is: its name, its addresses, its memory.

use std::fs;
use std::net::IpAddr;

use anyhow::{Result, bail};
use krablet_config::Loaded;
use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;

/// What is known of the machine before anything is built.
pub struct Machine {
    pub name: String,
    pub memory: i64,
    pub cores: usize,
}

impl Machine {
    pub fn of(loaded: &Loaded) -> Result<Self> {
        Ok(Self {
            name: node_name(&loaded.flags.hostname_override)?,
            memory: memory(),
            cores: std::thread::available_parallelism().map_or(1, |n| n.get()),
        })
    }
}

/// The node's name: what the user said, else the host's name in lower case.
pub fn node_name(hostname_override: &str) -> Result<String> {
    let given = hostname_override.trim();
    let name = if given.is_empty() {
        let uname = rustix::system::uname();
        uname.nodename().to_string_lossy().trim().to_lowercase()
    } else {
        given.to_lowercase()
    };
    if name.is_empty() {
        bail!("this machine has no host name: give one with --hostname-override");
    }
    Ok(name)
}

/// The addresses of this machine's interfaces, the first of each family that is neither loopback nor link-local; none
/// if the kernel does not tell.
pub fn interface_ips() -> Vec<IpAddr> {
    let mut found: Vec<IpAddr> = Vec::new();
    for interface in getifaddrs().into_iter().flatten() {
        let up = interface.flags.contains(InterfaceFlags::IFF_UP);
        let loopback = interface.flags.contains(InterfaceFlags::IFF_LOOPBACK);
        let Some(address) = interface.address else {
            continue;
        };
        let v4 = address.as_sockaddr_in().map(|a| IpAddr::V4(a.ip()));
        let v6 = address.as_sockaddr_in6().map(|a| IpAddr::V6(a.ip()));
        let Some(ip) = v4.or(v6) else { continue };
        let family_taken = found.iter().any(|f| f.is_ipv4() == ip.is_ipv4());
        if up && !loopback && !family_taken && is_routable(&ip) {
            found.push(ip);
        }
    }
    found
}

/// What tells of the processors' heat, which is hidden from containers.
pub fn thermal_throttle() -> Vec<String> {
    let entries = fs::read_dir("/sys/devices/system/cpu");
    let entries = entries.into_iter().flatten().flatten();
    let is_cpu = |name: &str| {
        let number = name.strip_prefix("cpu").unwrap_or_default();
        !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit())
    };
    let cpus = entries.filter(|e| e.file_name().to_str().is_some_and(is_cpu));
    let throttles = cpus.map(|e| e.path().join("thermal_throttle"));
    let mut paths: Vec<String> = throttles
        .filter(|path| path.exists())
        .map(|path| path.display().to_string())
        .collect();
    paths.sort();
    paths
}

fn is_routable(ip: &IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => !ip.is_loopback() && !ip.is_link_local(),
        IpAddr::V6(ip) => !ip.is_loopback() && !ip.is_unicast_link_local(),
    }
}

/// Bytes of memory, 0 if the kernel does not tell.
pub fn memory() -> i64 {
    fs::read_to_string("/proc/meminfo").map_or(0, |text| total_memory(&text))
}

fn total_memory(meminfo: &str) -> i64 {
    let kilobytes = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))
        .and_then(|rest| {
            rest.trim()
                .trim_end_matches("kB")
                .trim()
                .parse::<i64>()
                .ok()
        });
    kilobytes.unwrap_or(0).saturating_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_lower_case_and_given_ones_win() {
        assert_eq!(node_name(" Node-1 ").unwrap(), "node-1");
        assert!(!node_name("").unwrap().is_empty());
    }

    #[test]
    fn interfaces_have_at_most_one_address_of_a_family() {
        let ips = interface_ips();
        assert!(ips.iter().filter(|ip| ip.is_ipv4()).count() <= 1, "{ips:?}");
        assert!(ips.iter().filter(|ip| ip.is_ipv6()).count() <= 1, "{ips:?}");
        assert!(ips.iter().all(is_routable), "{ips:?}");
    }

    #[test]
    fn memory_is_read_from_its_line() {
        assert_eq!(
            total_memory("MemTotal:       24 kB\nMemFree: 1 kB\n"),
            24 * 1024
        );
        assert_eq!(total_memory("nothing"), 0);
    }
}
