//! Pods' cgroups: what the runtime is told as parent, their limits, which are there, and their removal.

mod dbus;
mod hierarchy;
mod reading;
mod settings;
mod systemd;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use krablet_pod::cgroups::CgroupLimits;
use krablet_pod::qos::QosClass;
use krablet_pod::{ContainerId, PodUid};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use tracing::warn;

use crate::cgroup_names::{CLASSES, CgroupDriver, CgroupNames};
use crate::facts::parse::huge_page_size;
use crate::failure::{blocking, naming};
use crate::mountinfo;

use hierarchy::Hierarchy;
use systemd::Systemd;

/// Where every distribution mounts cgroups.
const MOUNT: &str = "/sys/fs/cgroup";
const HUGE_PAGES: &str = "/sys/kernel/mm/hugepages";
/// How often a cgroup is emptied by force before its removal is given up for now.
const KILLS: usize = 10;
/// What a killed process may need to be gone.
const KILL_PAUSE: Duration = Duration::from_millis(20);
/// `CGROUP2_SUPER_MAGIC`.
const UNIFIED_MAGIC: i64 = 0x6367_7270;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CgroupVersion {
    V1,
    V2,
}

#[async_trait]
pub trait Cgroups: Send + Sync {
    /// The pod's cgroup in the words of the runtime's sandbox configuration.
    fn cgroup_parent(&self, uid: &PodUid, qos: QosClass) -> String;
    /// Makes the pod's cgroup, or finds it, and gives it its limits. One that the kernel refuses is told
    /// in the log, for the others are better than none.
    async fn create(&self, uid: &PodUid, qos: QosClass, limits: &CgroupLimits) -> io::Result<()>;
    /// What the pod's cgroup is held to now, of cpu and memory; what is not limited is not set. None if
    /// pods have no cgroups.
    async fn limits(&self, uid: &PodUid, qos: QosClass) -> io::Result<Option<CgroupLimits>>;
    /// Gives the pod's cgroup other limits while it is in use.
    async fn update(&self, uid: &PodUid, qos: QosClass, limits: &CgroupLimits) -> io::Result<()>;
    /// Bytes the pod uses, or one of its containers. None if there is no such cgroup.
    async fn memory_used(
        &self,
        uid: &PodUid,
        qos: QosClass,
        container: Option<&ContainerId>,
    ) -> io::Result<Option<u64>>;
    /// Gives limits to the cgroup of all pods of a class. That of Guaranteed pods holds the others.
    async fn limit_class(&self, qos: QosClass, limits: &CgroupLimits) -> io::Result<()>;
    /// True if any hierarchy holds the pod's cgroup.
    async fn exists(&self, uid: &PodUid, qos: QosClass) -> io::Result<bool>;
    /// Removes the pod's cgroup and those below it from every hierarchy. Absent is fine; one with
    /// processes in it is an error of kind `ResourceBusy`.
    async fn remove(&self, uid: &PodUid, qos: QosClass) -> io::Result<()>;
    /// Pods whose cgroup is there, by UID.
    async fn list_pods(&self) -> io::Result<Vec<(PodUid, QosClass)>>;
}

/// The machine's own cgroups.
#[derive(Clone, Debug)]
pub struct HostCgroups {
    names: CgroupNames,
    version: CgroupVersion,
    hierarchies: Arc<[Hierarchy]>,
    /// Sizes of huge pages the kernel offers, in bytes.
    page_sizes: Arc<[u64]>,
    /// With its driver, and if it runs.
    systemd: Option<Arc<Systemd>>,
}

impl HostCgroups {
    /// Looks once at what is mounted.
    pub async fn detect(driver: CgroupDriver, root: &str, per_qos: bool) -> io::Result<Self> {
        let names = CgroupNames::new(driver, root, per_qos);
        blocking(move || {
            let version = version()?;
            let hierarchies = match version {
                CgroupVersion::V2 => vec![Hierarchy::unified()?],
                CgroupVersion::V1 => hierarchy::of_table(&mountinfo::read()?),
            };
            Ok(Self {
                names,
                version,
                hierarchies: hierarchies.into(),
                page_sizes: page_sizes().into(),
                systemd: (driver == CgroupDriver::Systemd)
                    .then(|| Systemd::find(version))
                    .flatten()
                    .map(Arc::new),
            })
        })
        .await
    }

    pub fn version(&self) -> CgroupVersion {
        self.version
    }

    /// Whether pods have cgroups of their own.
    pub fn per_qos(&self) -> bool {
        self.names.per_qos()
    }

    /// Sizes of huge pages the kernel offers, in bytes.
    pub fn page_sizes(&self) -> &[u64] {
        &self.page_sizes
    }

    /// The cgroup of a class as messages tell it: `["kubepods" "burstable"]`.
    pub fn class_name(&self, qos: QosClass) -> String {
        hierarchy::quoted(&self.names.plain_class(qos))
    }

    /// Whether the kernel counts swap by cgroup.
    pub async fn limits_swap(&self) -> bool {
        let (version, hierarchies) = (self.version, self.hierarchies.clone());
        let look = move || Ok(hierarchy::limits_swap(version, &hierarchies));
        blocking(look).await.unwrap_or(false)
    }

    /// Whether the cgroup of a class is there in full.
    pub async fn has_class(&self, qos: QosClass) -> bool {
        let (version, hierarchies) = (self.version, self.hierarchies.clone());
        let name = self.names.class(qos);
        let look = move || Ok(hierarchy::check(version, &hierarchies, &name).is_ok());
        blocking(look).await.unwrap_or(false)
    }

    /// Makes the cgroup of a class, or finds it, and gives it its limits.
    pub async fn create_class(&self, qos: QosClass, limits: &CgroupLimits) -> io::Result<()> {
        self.make(self.names.class(qos), limits.clone()).await
    }

    /// Gives limits to the cgroup that holds all pods.
    pub async fn limit_all(&self, limits: &CgroupLimits) -> io::Result<()> {
        let name = self.names.class(QosClass::Guaranteed);
        self.set(name, limits.clone()).await
    }

    /// Gives limits to a cgroup that others made, which the user names: a path, or a slice with the
    /// systemd driver. Fails if it is not there.
    pub async fn limit_existing(&self, given: &str, limits: &CgroupLimits) -> io::Result<()> {
        let name = self.names.given(given);
        let (version, hierarchies) = (self.version, self.hierarchies.clone());
        let checked = name.clone();
        blocking(move || {
            let there = hierarchy::check(version, &hierarchies, &checked);
            there.map_err(|why| io::Error::new(io::ErrorKind::NotFound, why))
        })
        .await?;
        self.set(name, limits.clone()).await
    }

    /// Limits that are refused are told in the log.
    async fn make(&self, name: String, limits: CgroupLimits) -> io::Result<()> {
        let this = self.clone();
        blocking(move || {
            if let Some(systemd) = &this.systemd
                && let Err(e) = systemd.start(&name, &limits)
            {
                warn!(cgroup = name, err = %e, "Could not tell systemd of a slice");
            }
            hierarchy::make(this.version, &this.hierarchies, &name)?;
            if let Err(e) = this.write(&name, &limits) {
                warn!(cgroup = name, err = %e, "Could not set all limits of a cgroup");
            }
            Ok(())
        })
        .await
    }

    async fn set(&self, name: String, limits: CgroupLimits) -> io::Result<()> {
        let this = self.clone();
        blocking(move || {
            if let Some(systemd) = &this.systemd
                && let Err(e) = systemd.set(&name, &limits)
            {
                warn!(cgroup = name, err = %e, "Could not tell systemd of the limits of a slice");
            }
            this.write(&name, &limits)
        })
        .await
    }

    /// A class may already use more memory than it is to have: then it may have no more than it uses.
    async fn limit_used(&self, name: String, limits: &CgroupLimits) -> io::Result<()> {
        let set = self.set(name.clone(), limits.clone()).await;
        let busy = set
            .as_ref()
            .is_err_and(|e| e.kind() == io::ErrorKind::ResourceBusy);
        let (true, Some(wanted)) = (busy, limits.memory) else {
            return set;
        };
        let this = self.clone();
        let mut limits = limits.clone();
        blocking(move || {
            let used = hierarchy::memory_used(this.version, &this.hierarchies, &name)?;
            limits.memory = Some(used.max(wanted));
            this.write(&name, &limits)
        })
        .await
    }

    fn write(&self, name: &str, limits: &CgroupLimits) -> io::Result<()> {
        let settings = settings::settings(self.version, limits, &self.page_sizes);
        hierarchy::write(self.version, &self.hierarchies, name, &settings)
    }

    fn dirs(&self, name: &str) -> Vec<PathBuf> {
        self.hierarchies.iter().map(|h| h.dir(name)).collect()
    }

    fn pod_dirs(&self, uid: &PodUid, qos: QosClass) -> Vec<PathBuf> {
        match self.names.per_qos() {
            true => self.dirs(&self.names.pod(uid, qos)),
            false => Vec::new(),
        }
    }
}

/// Of huge pages the kernel offers, in bytes.
fn page_sizes() -> Vec<u64> {
    let entries = std::fs::read_dir(HUGE_PAGES)
        .into_iter()
        .flatten()
        .flatten();
    let size = |name: std::ffi::OsString| huge_page_size(name.to_str()?);
    let mut sizes: Vec<u64> = entries.filter_map(|e| size(e.file_name())).collect();
    sizes.sort_unstable();
    sizes
}

fn version() -> io::Result<CgroupVersion> {
    let mount = Path::new(MOUNT);
    let found = rustix::fs::statfs(mount).map_err(naming("stat file system of", mount))?;
    Ok(match found.f_type {
        UNIFIED_MAGIC => CgroupVersion::V2,
        _ => CgroupVersion::V1,
    })
}

#[async_trait]
impl Cgroups for HostCgroups {
    fn cgroup_parent(&self, uid: &PodUid, qos: QosClass) -> String {
        self.names.pod(uid, qos)
    }

    async fn create(&self, uid: &PodUid, qos: QosClass, limits: &CgroupLimits) -> io::Result<()> {
        match self.names.per_qos() {
            true => self.make(self.names.pod(uid, qos), limits.clone()).await,
            false => Ok(()),
        }
    }

    async fn limits(&self, uid: &PodUid, qos: QosClass) -> io::Result<Option<CgroupLimits>> {
        if !self.names.per_qos() {
            return Ok(None);
        }
        let (version, hierarchies) = (self.version, self.hierarchies.clone());
        let name = self.names.pod(uid, qos);
        blocking(move || reading::limits(version, &hierarchies, &name).map(Some)).await
    }

    async fn update(&self, uid: &PodUid, qos: QosClass, limits: &CgroupLimits) -> io::Result<()> {
        match self.names.per_qos() {
            true => self.set(self.names.pod(uid, qos), limits.clone()).await,
            false => Ok(()),
        }
    }

    async fn memory_used(
        &self,
        uid: &PodUid,
        qos: QosClass,
        container: Option<&ContainerId>,
    ) -> io::Result<Option<u64>> {
        if !self.names.per_qos() {
            return Ok(None);
        }
        let (version, hierarchies) = (self.version, self.hierarchies.clone());
        let name = self.names.pod(uid, qos);
        let container = container.cloned();
        blocking(move || reading::memory_used(version, &hierarchies, &name, container.as_ref()))
            .await
    }

    async fn limit_class(&self, qos: QosClass, limits: &CgroupLimits) -> io::Result<()> {
        match self.names.per_qos() {
            true => self.limit_used(self.names.class(qos), limits).await,
            false => Ok(()),
        }
    }

    async fn exists(&self, uid: &PodUid, qos: QosClass) -> io::Result<bool> {
        let dirs = self.pod_dirs(uid, qos);
        blocking(move || {
            for dir in &dirs {
                if dir.try_exists().map_err(naming("stat", dir))? {
                    return Ok(true);
                }
            }
            Ok(false)
        })
        .await
    }

    async fn remove(&self, uid: &PodUid, qos: QosClass) -> io::Result<()> {
        let dirs = self.pod_dirs(uid, qos);
        if dirs.is_empty() {
            return Ok(());
        }
        if let Some(systemd) = self.systemd.clone() {
            let name = self.names.pod(uid, qos);
            let stopped = blocking(move || systemd.stop(&name)).await;
            if let Err(e) = stopped {
                warn!(podUID = %uid, err = %e, "Could not make systemd stop a pod's slice");
            }
        }
        let attempt = async |force: bool| {
            let dirs = dirs.clone();
            blocking(move || {
                if force {
                    dirs.iter().try_for_each(|dir| kill_below(dir))?;
                }
                remove_all(&dirs)
            })
            .await
        };
        let mut removed = attempt(false).await;
        for _ in 0..KILLS {
            let busy = |e: &io::Error| e.kind() == io::ErrorKind::ResourceBusy;
            if !removed.as_ref().is_err_and(busy) {
                break;
            }
            removed = attempt(true).await;
            tokio::time::sleep(KILL_PAUSE).await;
        }
        removed
    }

    async fn list_pods(&self) -> io::Result<Vec<(PodUid, QosClass)>> {
        if !self.names.per_qos() {
            return Ok(Vec::new());
        }
        let this = self.clone();
        blocking(move || {
            let mut found = BTreeMap::new();
            for qos in CLASSES {
                for dir in this.dirs(&this.names.class(qos)) {
                    for name in child_names(&dir)? {
                        if let Some(uid) = this.names.uid_of(qos, &name) {
                            found.insert(uid, qos);
                        }
                    }
                }
            }
            Ok(found.into_iter().collect())
        })
        .await
    }
}

/// Names of the cgroups right below one. None if it is gone.
fn child_names(dir: &Path) -> io::Result<Vec<String>> {
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(naming("read directory", dir)(e)),
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = match entry {
            Ok(entry) => entry,
            // The cgroup was removed while we read it.
            Err(e) if e.raw_os_error() == Some(Errno::NODEV.raw_os_error()) => break,
            Err(e) => return Err(naming("read directory", dir)(e)),
        };
        let is_dir = entry.file_type().is_ok_and(|t| t.is_dir());
        if let (true, Some(name)) = (is_dir, entry.file_name().to_str()) {
            names.push(name.to_owned());
        }
    }
    Ok(names)
}

/// Children before parents, by `rmdir` alone: the control files in a cgroup go with it.
fn remove_below(top: &Path) -> io::Result<()> {
    let found = all_below(top)?;
    found
        .iter()
        .rev()
        .try_for_each(|dir| crate::disk::remove_dir(dir))
}

/// A cgroup and all below it, from the top down.
fn all_below(top: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = vec![top.to_owned()];
    let mut next = 0;
    while let Some(dir) = found.get(next).cloned() {
        found.extend(child_names(&dir)?.into_iter().map(|n| dir.join(n)));
        next += 1;
    }
    Ok(found)
}

/// One hierarchy that refuses does not keep the others.
fn remove_all(dirs: &[PathBuf]) -> io::Result<()> {
    let results: Vec<io::Result<()>> = dirs.iter().map(|dir| remove_below(dir)).collect();
    results.into_iter().collect()
}

/// Kills what is left in the cgroup of a pod that has ended. A runtime whose start of a container was
/// cut off may have forgotten a process of it there.
fn kill_below(top: &Path) -> io::Result<()> {
    for dir in all_below(top)? {
        let procs = match std::fs::read_to_string(dir.join("cgroup.procs")) {
            Ok(procs) => procs,
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
            Err(e) => return Err(naming("read processes of", &dir)(e)),
        };
        let pids = procs.lines().filter_map(|line| line.parse().ok());
        for pid in pids.filter_map(Pid::from_raw) {
            warn!(pid = pid.as_raw_nonzero().get(), cgroup = %dir.display(), "Killing a process that outlived its pod");
            // Gone by itself is as good.
            let _ = kill_process(pid, Signal::KILL);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
