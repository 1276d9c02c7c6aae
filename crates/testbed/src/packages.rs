//! What comes from the distribution: found by the command it provides, installed when missing.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::cache;

/// A Debian package and the command that shows that it is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Package {
    pub name: &'static str,
    pub command: &'static str,
}

const fn package(name: &'static str, command: &'static str) -> Package {
    Package { name, command }
}

pub const RUNC: Package = package("runc", "runc");
pub const BUSYBOX: Package = package("busybox-static", "busybox");
pub const IPROUTE: Package = package("iproute2", "ip");
pub const IPTABLES: Package = package("iptables", "iptables");
pub const GCC: Package = package("gcc", "gcc");
pub const QEMU: Package = package("qemu-system-x86", "qemu-system-x86_64");
pub const DEBOOTSTRAP: Package = package("debootstrap", "debootstrap");
pub const E2FSPROGS: Package = package("e2fsprogs", "mke2fs");

/// What a bed needs.
pub const BED: [Package; 5] = [RUNC, BUSYBOX, IPROUTE, IPTABLES, GCC];
/// What the virtual machine needs.
pub const VM: [Package; 4] = [QEMU, DEBOOTSTRAP, E2FSPROGS, BUSYBOX];

/// Finds a command in `PATH` or in the places only root's `PATH` has.
pub fn find(command: &str) -> Option<PathBuf> {
    let path = std::env::var("PATH").unwrap_or_default();
    path.split(':')
        .chain(["/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/bin", "/bin"])
        .map(|dir| Path::new(dir).join(command))
        .find(|file| file.is_file())
}

/// Installs what is missing when run as root; otherwise names it and fails.
pub fn ensure(packages: &[Package]) -> Result<()> {
    if missing(packages).is_empty() {
        return Ok(());
    }
    let _one_at_a_time = cache::lock("packages")?;
    let names = missing(packages);
    if names.is_empty() {
        return Ok(());
    }
    let list = names.join(" ");
    if !rustix::process::geteuid().is_root() {
        bail!(
            "missing packages: {list}\nInstall them, for example with: apt-get install --no-install-recommends {list}"
        );
    }
    cache::progress(&format!("installing {list}"));
    if install(&names).is_err() {
        // The package lists may be absent or old.
        apt(&["update"])?;
        install(&names)?;
    }
    match missing(packages).as_slice() {
        [] => Ok(()),
        still => bail!(
            "{} installed, but the command of {} is not there",
            list,
            still.join(", ")
        ),
    }
}

fn missing(packages: &[Package]) -> Vec<&'static str> {
    packages
        .iter()
        .filter(|package| find(package.command).is_none())
        .map(|package| package.name)
        .collect()
}

fn install(names: &[&str]) -> Result<()> {
    let mut arguments = vec!["install", "-y", "--no-install-recommends"];
    arguments.extend(names);
    apt(&arguments)
}

/// Downloads a package and unpacks it into a new directory, without installing it.
pub(crate) fn unpack(name: &str, into: &Path) -> Result<()> {
    std::fs::create_dir_all(into)?;
    // The download is done by an unprivileged user where it can be.
    let mut download = Command::new("apt-get");
    download.current_dir(into).args(["-q", "download", name]);
    if cache::run(&mut download).is_err() {
        apt(&["update"])?;
        cache::run(&mut download)?;
    }
    let archive = std::fs::read_dir(into)?
        .next()
        .context("apt-get left no file")??
        .path();
    cache::run(Command::new("dpkg-deb").arg("-x").arg(&archive).arg(into))?;
    Ok(std::fs::remove_file(archive)?)
}

pub(crate) fn apt(arguments: &[&str]) -> Result<()> {
    let mut command = Command::new("apt-get");
    command
        .env("DEBIAN_FRONTEND", "noninteractive")
        .args(["-q", "-o", "DPkg::Lock::Timeout=600"])
        .args(arguments);
    cache::run(&mut command).map(drop)
}
