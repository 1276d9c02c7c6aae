//! Where a bed's things are and what they are called: directory, network, cgroup, configuration.

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::SystemTime;

use anyhow::{Context, Result};
use serde_json::json;

use crate::bed::{BedOptions, Containerd};
use crate::parts::{Bins, NEXT_RUNC, Part};
use crate::{cache, images};

/// As many beds can be up at once: each gets a 1,022-address network out of 10.230.0.0/16.
const PLACES: u8 = 64;

/// The directory below which beds live, `$KRABLET_BEDS` if it is set. Short, since paths of unix sockets
/// must be.
pub fn beds_root() -> PathBuf {
    let named = std::env::var_os("KRABLET_BEDS").map(PathBuf::from);
    let named = named.filter(|path| path.is_absolute());
    named.unwrap_or_else(|| PathBuf::from("/var/tmp/krablet"))
}

/// A bed's claimed number, which all of its names follow from.
pub struct Place {
    number: u8,
    pub name: String,
    pub dir: PathBuf,
}

pub fn socket(dir: &Path) -> PathBuf {
    dir.join("containerd.sock")
}

pub fn cgroup(name: &str) -> String {
    format!("krablet-{name}")
}

pub fn bridge(name: &str) -> String {
    format!("kr-{name}")
}

fn network(name: &str) -> String {
    format!("krablet-{name}")
}

fn subnet(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 230, number * 4, 0)
}

/// Takes the first free place. The caller holds the registry's lock.
pub fn claim() -> Result<Place> {
    let root = beds_root();
    fs::create_dir_all(&root).with_context(|| format!("making {}", root.display()))?;
    let routes = fs::read_to_string("/proc/net/route").unwrap_or_default();
    let beds: Vec<String> = fs::read_dir(&root)?
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    for number in 0..PLACES {
        // A place is used again, a name is not: what is left of one bed is never taken for another's.
        let prefix = format!("bed{number:02}");
        if beds.iter().any(|bed| bed.starts_with(&prefix)) {
            continue;
        }
        let name = format!("{prefix}{}", unique());
        let dir = root.join(&name);
        let taken = Path::new("/sys/class/net").join(bridge(&name)).exists()
            || routed(&routes, subnet(number));
        if !taken && fs::create_dir(&dir).is_ok() {
            return Ok(Place { number, name, dir });
        }
    }
    anyhow::bail!(
        "all {PLACES} places for beds are taken; `krablet-lab clean` frees those of dead tests"
    )
}

/// Four characters that differ from bed to bed.
pub fn unique() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    let seed = format!(
        "{} {} {}",
        std::process::id(),
        now.as_nanos(),
        COUNT.fetch_add(1, Ordering::Relaxed)
    );
    cache::sha256(seed.as_bytes()).split_off(60)
}

/// Whether the machine routes any part of the bed's /22 to somewhere, the default route aside.
fn routed(table: &str, subnet: Ipv4Addr) -> bool {
    table.lines().skip(1).any(|line| {
        // The kernel prints the bytes of addresses in memory order.
        let field = |index: usize| {
            line.split_whitespace()
                .nth(index)
                .and_then(|hex| u32::from_str_radix(hex, 16).ok())
        };
        let (Some(destination), Some(mask)) =
            (field(1).map(u32::from_be), field(7).map(u32::from_be))
        else {
            return false;
        };
        let common = mask & 0xffff_fc00;
        mask != 0 && destination & common == subnet.to_bits() & common
    })
}

/// Writes the keeper's spec, containerd's command line and configuration and the network's.
pub fn write_files(place: &Place, bins: &Bins, options: &BedOptions) -> Result<()> {
    let dir = &place.dir;
    for sub in ["root", "state", "s", "cni", "ipam", "certs.d", "opt"] {
        fs::create_dir(dir.join(sub))?;
    }
    fs::write(
        dir.join("cni/10-bed.conflist"),
        network_config(place).to_string(),
    )?;
    fs::write(
        dir.join("containerd.toml"),
        containerd_config(dir, bins, options)?,
    )?;
    let spec = format!(
        "registry={}\nbridge={}\nnetwork={}\ncgroup={}\npath={}\n",
        cache::lock_path("beds")?.display(),
        bridge(&place.name),
        network(&place.name),
        cgroup(&place.name),
        bins.path_variable(),
    );
    let command = format!(
        "program={}\narg=--config\narg={}\n",
        bins.path("containerd")?.display(),
        dir.join("containerd.toml").display(),
    );
    fs::write(dir.join("containerd.command"), command)?;
    Ok(fs::write(dir.join("bed.spec"), spec)?)
}

fn network_config(place: &Place) -> serde_json::Value {
    json!({
        "cniVersion": "1.0.0",
        "name": network(&place.name),
        "plugins": [
            {
                "type": "bridge",
                "bridge": bridge(&place.name),
                "isGateway": true,
                "ipMasq": false,
                "ipam": {
                    "type": "host-local",
                    "dataDir": place.dir.join("ipam"),
                    "ranges": [[{"subnet": format!("{}/22", subnet(place.number))}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                },
            },
            {"type": "portmap", "backend": "iptables", "capabilities": {"portMappings": true}},
        ],
    })
}

fn containerd_config(dir: &Path, bins: &Bins, options: &BedOptions) -> Result<String> {
    let cni = bins.path("bridge")?;
    let cni = cni
        .parent()
        .context("no directory of CNI plugins")?
        .display();
    let runc = crate::packages::find("runc").context("no runc")?;
    let template = match options.containerd {
        Containerd::Pinned => PINNED_CONFIG,
        Containerd::Debian => DEBIAN_CONFIG,
    };
    let config = template.to_owned() + &next_runc(bins, options)?;
    let config = config
        .replace("{dir}", &dir.display().to_string())
        .replace("{cni}", &cni.to_string())
        .replace("{runc}", &runc.display().to_string())
        .replace("{pause}", images::PAUSE)
        .replace("{restrict}", &(!can_lower_oom_scores()).to_string());
    Ok(config + &options.containerd_config)
}

/// The second runtime handler, of a bed that has the binary for it.
fn next_runc(bins: &Bins, options: &BedOptions) -> Result<String> {
    if !options.parts.contains(&Part::Runc) {
        return Ok(String::new());
    }
    let plugin = match options.containerd {
        Containerd::Pinned => "io.containerd.cri.v1.runtime",
        Containerd::Debian => "io.containerd.grpc.v1.cri",
    };
    let program = bins.path(NEXT_RUNC)?;
    Ok(NEXT_RUNC_CONFIG
        .replace("{plugin}", plugin)
        .replace("{name}", NEXT_RUNC)
        .replace("{program}", &program.display().to_string()))
}

const NEXT_RUNC_CONFIG: &str = r#"[plugins."{plugin}".containerd.runtimes.{name}]
runtime_type = "io.containerd.runc.v2"
[plugins."{plugin}".containerd.runtimes.{name}.options]
BinaryName = "{program}"
Root = "{dir}/state/{name}"
SystemdCgroup = false
"#;

const PINNED_CONFIG: &str = r#"version = 3
root = "{dir}/root"
state = "{dir}/state"
disabled_plugins = [
  "io.containerd.internal.v1.tracing", "io.containerd.tracing.processor.v1.otlp",
  "io.containerd.nri.v1.nri", "io.containerd.differ.v1.erofs", "io.containerd.mount-handler.v1.erofs",
  "io.containerd.snapshotter.v1.blockfile", "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.erofs",
  "io.containerd.snapshotter.v1.zfs",
]
[grpc]
address = "{dir}/containerd.sock"
[plugins."io.containerd.internal.v1.opt"]
path = "{dir}/opt"
[plugins."io.containerd.shim.v1.manager"]
socket_dir = "{dir}/s"
[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{pause}"
[plugins."io.containerd.cri.v1.images".registry]
config_path = "{dir}/certs.d"
[plugins."io.containerd.cri.v1.runtime"]
restrict_oom_score_adj = {restrict}
netns_mounts_under_state_dir = true
[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = ["{cni}"]
conf_dir = "{dir}/cni"
use_internal_loopback = true
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
BinaryName = "{runc}"
Root = "{dir}/state/runc"
SystemdCgroup = false
[plugins."io.containerd.grpc.v1.cri"]
stream_server_address = "127.0.0.1"
stream_server_port = "0"
"#;

/// The same for containerd 1.6. The place of its shims' sockets cannot be set.
const DEBIAN_CONFIG: &str = r#"version = 2
root = "{dir}/root"
state = "{dir}/state"
disabled_plugins = [
  "io.containerd.internal.v1.tracing", "io.containerd.tracing.processor.v1.otlp",
  "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.aufs",
]
[grpc]
address = "{dir}/containerd.sock"
[plugins."io.containerd.internal.v1.opt"]
path = "{dir}/opt"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{pause}"
restrict_oom_score_adj = {restrict}
netns_mounts_under_state_dir = true
stream_server_address = "127.0.0.1"
stream_server_port = "0"
[plugins."io.containerd.grpc.v1.cri".registry]
config_path = "{dir}/certs.d"
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{cni}"
conf_dir = "{dir}/cni"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
BinaryName = "{runc}"
Root = "{dir}/state/runc"
SystemdCgroup = false
"#;

/// Without CAP_SYS_RESOURCE the runtime must not try to lower a score, or no sandbox starts.
fn can_lower_oom_scores() -> bool {
    const CAP_SYS_RESOURCE: u32 = 24;
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    effective
        .and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())
        .is_some_and(|set| set & 1 << CAP_SYS_RESOURCE != 0)
}

/// The root of each cgroup hierarchy: one with cgroup v2, one per controller with v1.
pub fn cgroup_roots() -> Vec<PathBuf> {
    let base = Path::new("/sys/fs/cgroup");
    if base.join("cgroup.controllers").exists() {
        return vec![base.to_owned()];
    }
    let entries = fs::read_dir(base)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path());
    let mut roots: Vec<PathBuf> = entries
        .filter(|path| !path.is_symlink() && path.join("cgroup.procs").exists())
        .collect();
    roots.sort();
    roots
}

/// Makes the bed's cgroup in every hierarchy, as usable as the root it stands in for.
pub fn make_cgroups(name: &str) -> Result<()> {
    for root in cgroup_roots() {
        let dir = root.join(name);
        if !dir.exists() {
            fs::create_dir(&dir).with_context(|| format!("making {}", dir.display()))?;
        }
        // A v1 cpuset takes no process before it is told its processors and memory nodes.
        for file in ["cpuset.cpus", "cpuset.mems"] {
            if let Ok(value) = fs::read_to_string(root.join(file)) {
                fs::write(dir.join(file), value.trim())
                    .with_context(|| format!("{file} of {}", dir.display()))?;
            }
        }
        if root.join("cgroup.subtree_control").exists() {
            let controllers =
                fs::read_to_string(dir.join("cgroup.controllers")).unwrap_or_default();
            let all: Vec<String> = controllers
                .split_whitespace()
                .map(|name| format!("+{name}"))
                .collect();
            fs::write(dir.join("cgroup.subtree_control"), all.join(" "))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_routed_network_is_not_taken_again() {
        let table = "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n\
                     eth0 00000000 0100A8C0 0003 0 0 0 00000000 0 0 0\n\
                     krab 0004E60A 00000000 0001 0 0 0 00FCFFFF 0 0 0\n";
        assert!(routed(table, Ipv4Addr::new(10, 230, 4, 0)));
        assert!(!routed(table, Ipv4Addr::new(10, 230, 8, 0)));
        let wide = "head\nvpn 0000000A 00000000 0001 0 0 0 000000FF 0 0 0\n";
        assert!(routed(wide, Ipv4Addr::new(10, 230, 8, 0)));
    }
}
