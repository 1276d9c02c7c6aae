//! Taking the devices of a disk off the node, once nobody uses it: what the fabric shows again is found by the next who
//! looks. What is gone already stays gone, so it may be done again.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use krablet_linux::{Files, Mounts, Tools};
use krablet_pod::paths::RootDir;

use crate::device::{self, BLOCK};
use crate::record::DEVICES;
use crate::tool::{Failed, try_run};

const DEADLINE: Duration = Duration::from_secs(60);
/// How long what joins the ways of a disk may be busy after the disk was unmounted.
const BUSY_WITHIN: Duration = Duration::from_secs(30);
const TRY_EVERY: Duration = Duration::from_secs(2);
const MAX_NUMBER: usize = 64;

/// The machine that a disk is taken off.
pub(crate) struct Detach<'a> {
    pub files: &'a dyn Files,
    pub tools: &'a dyn Tools,
    pub mounts: &'a dyn Mounts,
    pub root: &'a RootDir,
}

/// A disk, as the kernel calls its parts.
#[derive(Debug, PartialEq, Eq)]
struct Parts {
    /// What joins the ways to it, e.g. `dm-3`.
    joined: Option<String>,
    /// E.g. `sdb`.
    ways: Vec<String>,
}

impl Detach<'_> {
    /// Takes the disk with these devices off the node. `flush`: what was written to a device is sent on first.
    pub async fn run(&self, devices: BTreeSet<String>, flush: bool) -> io::Result<()> {
        let parts = self.parts(devices).await?;
        if parts.ways.is_empty() {
            return Ok(());
        }
        if let Some(who) = self.user(&parts).await? {
            tracing::info!(
                ?parts,
                who,
                "A disk is used by others and stays on the node"
            );
            return Ok(());
        }
        if let Some(joined) = &parts.joined
            && let Err(why) = self.part(joined).await
        {
            // The ways must not go behind its back.
            tracing::warn!(err = why, "A disk stays on the node");
            return Ok(());
        }
        for way in &parts.ways {
            if flush {
                let arguments = ["--flushbufs".to_owned(), format!("/dev/{way}")];
                self.try_to("blockdev", &arguments, way).await;
            }
            self.try_to("sh", &removal(way), way).await;
        }
        Ok(())
    }

    async fn parts(&self, devices: BTreeSet<String>) -> io::Result<Parts> {
        let devices: Vec<String> = devices.into_iter().filter(|d| is_name(d)).collect();
        let paths: Vec<PathBuf> = devices.iter().map(|d| Path::new("/dev").join(d)).collect();
        let joined = device::multipath(self.files, &paths).await?;
        let joined = joined.and_then(|path| Some(path.file_name()?.to_str()?.to_owned()));
        let ways = match &joined {
            None => devices,
            Some(joined) => {
                self.names(&Path::new(BLOCK).join(joined).join("slaves"))
                    .await?
            }
        };
        let ways = ways.into_iter().filter(|way| is_name(way)).collect();
        Ok(Parts { joined, ways })
    }

    /// Who still uses the disk, under whatever name.
    async fn user(&self, parts: &Parts) -> io::Result<Option<String>> {
        let numbers = self.numbers(parts).await?;
        let mut mounted = self.mounts.below(Path::new("/")).await?.into_iter();
        if let Some(mount) = mounted.find(|m| numbers.contains(&m.device)) {
            return Ok(Some(mount.point.display().to_string()));
        }
        for link in self.links_of_pods().await? {
            let name = device::name_of(self.files, &link).await;
            if name.is_some_and(|n| parts.all().any(|part| *part == n)) {
                return Ok(Some(link.display().to_string()));
            }
        }
        if parts.joined.is_none() {
            for way in &parts.ways {
                let holders = Path::new(BLOCK).join(way).join("holders");
                if let Some(holder) = self.names(&holders).await?.into_iter().next() {
                    return Ok(Some(holder));
                }
            }
        }
        Ok(None)
    }

    /// The numbers of its devices, and of their partitions.
    async fn numbers(&self, parts: &Parts) -> io::Result<BTreeSet<String>> {
        let mut numbers = BTreeSet::new();
        for part in parts.all() {
            let dir = Path::new(BLOCK).join(part);
            let below = self.names(&dir).await?.into_iter();
            let partitions = below.filter(|name| name.starts_with(part.as_str()));
            let partitions = partitions.map(|name| dir.join(name).join("dev"));
            for path in partitions.chain([dir.join("dev")]) {
                if let Ok(bytes) = self.files.read(&path, MAX_NUMBER).await {
                    numbers.insert(String::from_utf8_lossy(&bytes).trim().to_owned());
                }
            }
        }
        Ok(numbers)
    }

    /// Links to devices that pods have, of whatever kind of volume.
    async fn links_of_pods(&self) -> io::Result<Vec<PathBuf>> {
        let pods = self.root.pods();
        let mut links = Vec::new();
        for pod in self.names(&pods).await? {
            let devices = pods.join(pod).join(DEVICES);
            for plugin in self.names(&devices).await? {
                let dir = devices.join(plugin);
                let names = self.names(&dir).await?;
                links.extend(names.into_iter().map(|name| dir.join(name)));
            }
        }
        Ok(links)
    }

    async fn names(&self, dir: &Path) -> io::Result<Vec<String>> {
        let entries = match self.files.list(dir).await {
            Ok(entries) => entries,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) if e.kind() == io::ErrorKind::NotADirectory => return Ok(Vec::new()),
            Err(e) => return Err(e),
        };
        let names = entries.iter().filter_map(|e| e.path.file_name()?.to_str());
        Ok(names.map(str::to_owned).collect())
    }

    /// Flushes and removes what joins the ways. It may be busy for a while after the unmount.
    async fn part(&self, joined: &str) -> Result<(), String> {
        let device = format!("/dev/{joined}");
        let arguments = ["-f".to_owned(), device.clone()];
        let deadline = tokio::time::Instant::now() + BUSY_WITHIN;
        loop {
            let done = try_run(self.tools, "multipath", &arguments, DEADLINE).await;
            let Err(Failed {
                code,
                status,
                output,
            }) = done
            else {
                return Ok(());
            };
            if code.is_none() || tokio::time::Instant::now() >= deadline {
                let output = output.trim_end();
                return Err(format!(
                    "failed to flush multipath device {device}: {status}\n{output}"
                ));
            }
            tokio::time::sleep(TRY_EVERY).await;
        }
    }

    async fn try_to(&self, program: &str, arguments: &[String], way: &str) {
        let done = try_run(self.tools, program, arguments, DEADLINE).await;
        if let Err(Failed { status, output, .. }) = done {
            let output = output.trim_end();
            tracing::warn!(device = way, program, err = %status, output, "Could not take a device off the node");
        }
    }
}

impl Parts {
    fn all(&self) -> impl Iterator<Item = &String> {
        self.ways.iter().chain(&self.joined)
    }
}

/// Has the kernel forget a device. Its files take no rename, as ours are written.
fn removal(way: &str) -> Vec<String> {
    let file = format!("{BLOCK}/{way}/device/delete");
    vec![
        "-c".to_owned(),
        format!("[ ! -w {file} ] || echo 1 > {file}"),
    ]
}

/// Names of devices become part of command lines.
fn is_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    !name.is_empty() && !name.starts_with('-') && name.chars().all(plain)
}

#[cfg(test)]
#[path = "detach_tests.rs"]
mod tests;
