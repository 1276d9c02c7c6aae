//! What cgroups are held to and what they use, read back from the kernel.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use krablet_pod::ContainerId;
use krablet_pod::cgroups::{CgroupLimits, CpuQuota};

use super::CgroupVersion;
use super::hierarchy::{Hierarchy, limiting};
use crate::failure::{naming, refuse};

/// A kernel's way to say that there is no limit: the largest number of whole pages.
const UNLIMITED: i64 = i64::MAX - (1 << 20);

/// Of cpu and memory. What is not limited is not set, but for the period.
pub(super) fn limits(
    version: CgroupVersion,
    all: &[Hierarchy],
    name: &str,
) -> io::Result<CgroupLimits> {
    let cpu = dir(version, all, "cpu", name)?;
    let memory = dir(version, all, "memory", name)?;
    let (cpu_shares, cpu_quota, bytes) = match version {
        CgroupVersion::V1 => {
            let shares = number(&cpu.join("cpu.shares"))?;
            let quota = number(&cpu.join("cpu.cfs_quota_us"))?;
            let period = number(&cpu.join("cpu.cfs_period_us"))?;
            let bytes = number(&memory.join("memory.limit_in_bytes"))?;
            (shares, quota_of(quota, period), Some(bytes))
        }
        CgroupVersion::V2 => {
            let weight = number(&cpu.join("cpu.weight"))?;
            let max = text(&cpu.join("cpu.max"))?;
            let bytes = text(&memory.join("memory.max"))?.parse().ok();
            (shares_of(weight), quota_of_max(&max), bytes)
        }
    };
    Ok(CgroupLimits {
        cpu_shares: u64::try_from(cpu_shares).ok(),
        cpu_quota: Some(cpu_quota),
        memory: bytes.filter(|b| *b < UNLIMITED),
        ..CgroupLimits::default()
    })
}

/// None if the cgroup is not there. A container's is named after its id, alone or among other words.
pub(super) fn memory_used(
    version: CgroupVersion,
    all: &[Hierarchy],
    pod: &str,
    container: Option<&ContainerId>,
) -> io::Result<Option<u64>> {
    let mut dir = dir(version, all, "memory", pod)?;
    if let Some(id) = container {
        let found = super::child_names(&dir)?;
        let Some(name) = found.into_iter().find(|name| name.contains(id.as_str())) else {
            return Ok(None);
        };
        dir.push(name);
    }
    let file = dir.join(match version {
        CgroupVersion::V1 => "memory.usage_in_bytes",
        CgroupVersion::V2 => "memory.current",
    });
    match number(&file) {
        Ok(bytes) => Ok(u64::try_from(bytes).ok()),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

fn dir(
    version: CgroupVersion,
    all: &[Hierarchy],
    controller: &str,
    name: &str,
) -> io::Result<PathBuf> {
    let found = limiting(version, all).find(|h| h.has(controller));
    let missing = || {
        let why = "the controller is not there";
        refuse(io::ErrorKind::NotFound, "read", Path::new(controller), why)
    };
    found.map(|h| h.dir(name)).ok_or_else(missing)
}

fn text(file: &Path) -> io::Result<String> {
    let text = fs::read_to_string(file).map_err(naming("read", file))?;
    Ok(text.trim().to_owned())
}

fn number(file: &Path) -> io::Result<i64> {
    let no_number = |_| refuse(io::ErrorKind::InvalidData, "read", file, "no number");
    text(file)?.parse().map_err(no_number)
}

fn quota_of(micros: i64, period: i64) -> CpuQuota {
    CpuQuota {
        micros: Some(micros).filter(|m| *m >= 0),
        period_micros: u64::try_from(period).unwrap_or(100_000),
    }
}

/// `max 100000` or `50000 100000`.
fn quota_of_max(text: &str) -> CpuQuota {
    let mut words = text.split_whitespace();
    let micros = words.next().and_then(|w| w.parse().ok()).unwrap_or(-1);
    let period = words.next().and_then(|w| w.parse().ok());
    quota_of(micros, period.unwrap_or(100_000))
}

/// As `cpu.shares` would count; about, for there are fewer weights.
fn shares_of(weight: i64) -> i64 {
    2 + (weight - 1) * 262_142 / 9999
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hierarchy(mount: &Path, controllers: &[&str], unified: bool) -> Hierarchy {
        Hierarchy {
            mount: mount.to_owned(),
            controllers: controllers.iter().map(|c| (*c).to_owned()).collect(),
            unified,
        }
    }

    fn with(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (file, content) in files {
            let file = root.path().join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, format!("{content}\n")).unwrap();
        }
        root
    }

    fn shown(limits: &CgroupLimits) -> String {
        let quota = limits.cpu_quota.unwrap();
        let Some(shares) = limits.cpu_shares else {
            return String::new();
        };
        format!(
            "{shares} {:?}/{} {:?}",
            quota.micros, quota.period_micros, limits.memory
        )
    }

    #[test]
    fn limits_of_both_versions() {
        let v1 = |quota, memory| {
            with(&[
                ("p/cpu.shares", "512"),
                ("p/cpu.cfs_quota_us", quota),
                ("p/cpu.cfs_period_us", "100000"),
                ("p/memory.limit_in_bytes", memory),
            ])
        };
        let v2 = |max, memory| {
            let weight = ("p/cpu.weight", "20");
            with(&[weight, ("p/cpu.max", max), ("p/memory.max", memory)])
        };
        let (one, two) = (CgroupVersion::V1, CgroupVersion::V2);
        let cases = [
            (
                one,
                v1("50000", "4096"),
                "512 Some(50000)/100000 Some(4096)",
            ),
            (one, v1("-1", "9223372036854771712"), "512 None/100000 None"),
            (
                two,
                v2("50000 100000", "4096"),
                "500 Some(50000)/100000 Some(4096)",
            ),
            (two, v2("max 100000", "max"), "500 None/100000 None"),
        ];
        for (version, root, expected) in cases {
            let all = [hierarchy(root.path(), &["cpu", "memory"], version == two)];
            let got = limits(version, &all, "/p").unwrap();
            assert_eq!(shown(&got), expected);
        }
        let all = [hierarchy(Path::new("/nowhere"), &["cpu"], false)];
        assert!(limits(one, &all, "/p").is_err());
    }

    #[test]
    fn memory_of_pods_and_containers() {
        let root = with(&[
            ("p/memory.current", "70"),
            ("p/cri-containerd-abc.scope/memory.current", "30"),
        ]);
        let all = [hierarchy(root.path(), &["memory"], true)];
        let used = |pod: &str, container: Option<&str>| {
            let container = container.map(ContainerId::from);
            memory_used(CgroupVersion::V2, &all, pod, container.as_ref()).unwrap()
        };
        assert_eq!(used("/p", None), Some(70));
        assert_eq!(used("/p", Some("abc")), Some(30));
        assert_eq!(used("/p", Some("xyz")), None);
        assert_eq!(used("/q", None), None);
    }
}
