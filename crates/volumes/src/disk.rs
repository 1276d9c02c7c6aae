//! Disks that are reached over a network: iSCSI and Fibre Channel. The host's tools bring the device; it is mounted
//! once on the node, and from there shown to each pod.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use krablet_linux::{Files, Mounts, Tools, Trees};
use krablet_objects::Objects;
use krablet_pod::PodUid;
use krablet_pod::api::{ISCSIPersistentVolumeSource, Secret};
use krablet_pod::paths::RootDir;
use serde::{Deserialize, Serialize};
use tokio::sync::OwnedMutexGuard;
use tokio::time::Instant;

use crate::address::{Address, as_persistent};
use crate::chap::{self, Chap};
use crate::cluster::ClusterObjects;
use crate::detach::{Detach, Outcome};
use crate::device::{self, Seen};
use crate::error::SetUpError;
use crate::fabric::{Fabric, JOINED_WITHIN};
use crate::iscsi::Sessions;
use crate::listing::{is_mounted, names_in};
use crate::node_mount::{self, DEFAULT_FS, NodeMount, POINT_MODE, recorded_point, unmounted};
use crate::ownership::{self, Slow};
use crate::parts::Parts;
use crate::plugin::{Source, Standing, VolumePlugin, VolumeRequest};
use crate::record::RecordedVolume;
use crate::session;
use crate::turns::Turns;
use crate::volumes::VolumesDeps;

/// How long a device may take to appear once its target has answered.
const APPEARS_WITHIN: Duration = Duration::from_secs(30);
/// How long udev may take to name a device that a scan has found.
const NAMED_WITHIN: Duration = Duration::from_secs(5);
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Where the disks stand that are used as devices.
const DEVICES: &str = "volumeDevices";

/// Which network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskKind {
    Iscsi,
    FibreChannel,
}

impl DiskKind {
    fn name(self) -> &'static str {
        match self {
            DiskKind::Iscsi => "kubernetes.io/iscsi",
            DiskKind::FibreChannel => "kubernetes.io/fc",
        }
    }
}

pub struct Disks {
    pub kind: DiskKind,
    pub root: RootDir,
    pub files: Arc<dyn Files>,
    pub trees: Arc<dyn Trees>,
    pub mounts: Arc<dyn Mounts>,
    pub tools: Arc<dyn Tools>,
    sessions: Sessions,
    turns: Turns,
    fabric: Fabric,
    objects: Arc<dyn Objects>,
    cluster: Option<Arc<dyn ClusterObjects>>,
}

/// What the record keeps of a disk, so that it can be let go without its pod.
#[derive(Debug, Serialize, Deserialize)]
struct Outside {
    /// Where it is mounted for the node, relative to the root directory.
    point: PathBuf,
    address: Address,
    /// The record of its portal has passwords in it.
    #[serde(default)]
    portal_is_told: bool,
    /// Of a disk that is used as a device: the pod whose link is in `point`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    user: Option<String>,
}

/// A disk that is on the node. Nobody takes it off again while this is held.
#[derive(Debug)]
struct Attached {
    path: PathBuf,
    _alone: Vec<OwnedMutexGuard<()>>,
}

/// What goes with a disk.
#[derive(Debug, PartialEq, Eq)]
struct Going {
    disk: Parts,
    /// The others whose session ends.
    others: Vec<Parts>,
}

impl Disks {
    pub fn new(kind: DiskKind, root: RootDir, deps: &VolumesDeps) -> Self {
        let deps = deps.clone();
        Self {
            kind,
            root,
            sessions: Sessions::new(deps.files.clone(), deps.tools.clone()),
            turns: Turns::default(),
            fabric: Fabric::default(),
            files: deps.files,
            trees: deps.trees,
            mounts: deps.mounts,
            tools: deps.tools,
            objects: deps.objects,
            cluster: deps.cluster,
        }
    }

    fn address(&self, source: &Source<'_>) -> Option<Address> {
        match (self.kind, source) {
            (DiskKind::Iscsi, _) => iscsi_source(source).map(|s| Address::iscsi(&s, source.name())),
            (DiskKind::FibreChannel, Source::Inline(v)) => v.fc.as_ref().map(Address::fc),
            (DiskKind::FibreChannel, _) => source.persistent()?.fc.as_ref().map(Address::fc),
        }
    }

    /// What the node says to the target's questions, if it asks any.
    async fn chap(&self, request: &VolumeRequest<'_>) -> Result<Option<Chap>, SetUpError> {
        let source = match self.kind {
            DiskKind::Iscsi => iscsi_source(&request.source).filter(chap::is_wanted),
            DiskKind::FibreChannel => None,
        };
        let Some(source) = source else {
            return Ok(None);
        };
        let secret = self.secret(request, &source).await;
        let secret = secret.map_err(SetUpError::NewMounter)?;
        let chap = Chap::of(&source, secret.as_deref()).map_err(SetUpError::NewMounter)?;
        Ok(Some(chap))
    }

    async fn secret(
        &self,
        request: &VolumeRequest<'_>,
        source: &ISCSIPersistentVolumeSource,
    ) -> Result<Option<Arc<Secret>>, String> {
        let Some(reference) = &source.secret_ref else {
            return Ok(None);
        };
        let name = reference.name.as_deref().unwrap_or_default();
        let namespace = reference.namespace.as_deref().filter(|n| !n.is_empty());
        let namespace = namespace.unwrap_or(request.namespace());
        let found = match (&request.source, &self.cluster) {
            (Source::Inline(_), _) => {
                let found = self.objects.secret(namespace, name).await;
                found.map_err(|e| e.to_string())
            }
            (_, Some(cluster)) => cluster.secret(namespace, name).await.map(Arc::new),
            (_, None) => return Err("cannot get kube client".to_owned()),
        };
        let found = found.map_err(|e| format!("couldn't get secret {namespace}/{name} error: {e}"));
        found.map(Some)
    }

    /// Where a disk stands for the node, relative to the root directory.
    fn point(&self, address: &Address, block: bool) -> PathBuf {
        let plugin = Path::new("plugins").join(self.kind.name());
        match block {
            true => plugin.join(DEVICES).join(address.directory()),
            false => plugin.join(address.directory()),
        }
    }

    fn outside(&self, request: &VolumeRequest<'_>, address: Address) -> Outside {
        let source = &request.source;
        let told = iscsi_source(source).is_some_and(|s| s.chap_auth_discovery == Some(true));
        let block = source.is_block();
        Outside {
            point: self.point(&address, block),
            address,
            portal_is_told: told,
            user: block.then(|| request.uid.to_string()),
        }
    }

    /// The device, which is waited for.
    async fn attach(&self, address: &Address, chap: Option<&Chap>) -> Result<Attached, SetUpError> {
        let failed = self.open(address, chap).await?;
        let deadline = Instant::now() + self.look_for(address).await?;
        loop {
            let seen = self.joined(address).await?;
            if let Some(attached) = self.taken(address, &seen).await? {
                return Ok(attached);
            }
            let in_vain = failed.is_some() || Instant::now() >= deadline;
            if seen.links.is_empty() && in_vain {
                return Err(SetUpError::Attach(did_not_come(address, failed)));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Logs in. What went wrong with it, if the disk may come all the same.
    async fn open(
        &self,
        address: &Address,
        chap: Option<&Chap>,
    ) -> Result<Option<String>, SetUpError> {
        let _target = self.turns.alone_with(&address.target()).await;
        let _interface = self.alone_with_interface(address).await;
        self.sessions.open(address, chap).await
    }

    /// Volumes of one name have one interface, whatever their targets are: nobody makes it anew before the other has
    /// logged in by it.
    async fn alone_with_interface(&self, address: &Address) -> Option<OwnedMutexGuard<()>> {
        let own = format!("interface {}", address.own_interface()?);
        Some(self.turns.alone_with(&own).await)
    }

    /// Has the kernel look for a disk that it does not show; how long it may take to appear.
    async fn look_for(&self, address: &Address) -> io::Result<Duration> {
        let (files, tools) = (&*self.files, &*self.tools);
        match self.kind {
            DiskKind::Iscsi => {
                session::look_for(files, tools, address).await?;
                Ok(APPEARS_WITHIN)
            }
            DiskKind::FibreChannel => {
                // What the fabric has given the node lately is seen by those who look.
                if device::find(files, address).await?.is_empty() {
                    self.fabric.note_scan();
                    device::rescan(tools).await;
                    self.fabric.note_scan();
                }
                Ok(NAMED_WITHIN)
            }
        }
    }

    /// What there is of a disk, with the ways to it joined if somebody joins them in time.
    async fn joined(&self, address: &Address) -> io::Result<Seen> {
        let files = &*self.files;
        let begun = Instant::now();
        loop {
            let seen = Seen::look(files, address).await?;
            if seen.parts.joined.is_some() {
                self.fabric.note_joined();
                return Ok(seen);
            }
            let asked_for = address.count_ways();
            let until = match self.kind {
                DiskKind::Iscsi => (asked_for > 1).then(|| begun + JOINED_WITHIN),
                DiskKind::FibreChannel => {
                    let known = seen.count_ways(files).await?;
                    // Others' scans do not make this one wait longer.
                    let joined_by = self.fabric.joined_by(known.max(asked_for));
                    joined_by.map(|until| until.min(begun + JOINED_WITHIN))
                }
            };
            let waits = until.is_some_and(|until| Instant::now() < until);
            if seen.links.is_empty() || !waits {
                return Ok(seen);
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// The disk as it was seen, to be used. None if it is not that any more: others may know it by another name, and
    /// have had their turn.
    async fn taken(&self, address: &Address, seen: &Seen) -> io::Result<Option<Attached>> {
        let Some(path) = seen.path() else {
            return Ok(None);
        };
        let alone = self.alone_with_devices([&seen.parts]).await;
        let same = Seen::look(&*self.files, address).await? == *seen;
        Ok(same.then_some(Attached {
            path,
            _alone: alone,
        }))
    }

    async fn alone_with_devices(
        &self,
        disks: impl IntoIterator<Item = &Parts>,
    ) -> Vec<OwnedMutexGuard<()>> {
        let names = disks.into_iter().flat_map(Parts::names);
        let names = names.map(|name| format!("/dev/{name}")).collect();
        self.turns.alone_with_all(&names).await
    }

    /// Mounted for the node, and from there shown to the pod.
    async fn mount(
        &self,
        request: &VolumeRequest<'_>,
        address: Address,
    ) -> Result<PathBuf, SetUpError> {
        let dir = request.dir(self.name());
        if is_mounted(&*self.mounts, &dir).await? {
            return Ok(dir);
        }
        let read_only = self.is_read_only(request, &address);
        let point = self.root.path().join(self.point(&address, false));
        // Whoever has its turn may give all of the disk to a group.
        let name = point.to_string_lossy();
        let turn = self.turns.alone_with(&name);
        let _alone = request.attempt.wait_for(turn).await?;
        if !is_mounted(&*self.mounts, &point).await? {
            let chap = self.chap(request).await?;
            // Its directory tells others that its target is in use.
            self.files.create_dir_all(&point, POINT_MODE).await?;
            let attached = self.attach(&address, chap.as_ref()).await?;
            let mount = NodeMount {
                device: &attached.path,
                fs_type: address.fs_type().unwrap_or(DEFAULT_FS),
                options: request.source.mount_options(),
                read_only,
                point: &point,
            };
            mount.make(&*self.tools).await?;
        }
        if !read_only {
            ownership::give(&*self.trees, request, &point, Slow::IsLogged).await?;
        }
        node_mount::show(&*self.files, &*self.mounts, &point, &dir, read_only).await?;
        Ok(dir)
    }

    /// A link to the device for the runtime, and one beside those of others that use it.
    async fn map(
        &self,
        request: &VolumeRequest<'_>,
        address: &Address,
    ) -> Result<PathBuf, SetUpError> {
        let link = request.link(self.name());
        let point = self.root.path().join(self.point(address, true));
        let _alone = self.turns.alone_with(&point.to_string_lossy()).await;
        let chap = self.chap(request).await?;
        self.files.create_dir_all(&point, POINT_MODE).await?;
        let attached = self.attach(address, chap.as_ref()).await?;
        let own = point.join(request.uid.as_str());
        self.files.symlink(&attached.path, &own).await?;
        node_mount::link(&*self.files, &attached.path, &link).await?;
        Ok(link)
    }

    /// Whether nobody uses the device any more, once its user has gone.
    async fn unmapped(&self, point: &Path, user: &str, link: &Path) -> io::Result<bool> {
        if Path::new(user).file_name() == Some(user.as_ref()) {
            self.files.remove_file(&point.join(user)).await?;
            // Links of pods tell who uses a device.
            let pod = self.root.pod(&PodUid::from(user));
            self.files.remove_file(&pod.join(link)).await?;
        }
        Ok(names_in(&*self.files, point).await?.is_empty())
    }

    /// Takes the disk off the node, and ends its session unless somebody needs that.
    async fn let_go(&self, address: &Address, portal_is_told: bool) -> io::Result<()> {
        let left = self.in_use(address).await?;
        if address.is_among(&left) {
            return Ok(());
        }
        let ends = !address.shares_target(&left);
        match self.detach(address, ends).await {
            // Its devices are nobody's until the session has ended: who waits for one sees then that it is gone.
            Ok((Outcome::Gone, _alone)) => {
                self.sessions.close(address, &left, portal_is_told).await;
            }
            Ok((Outcome::Stays, _)) => {}
            // Not knowing who uses a disk is no leave to take it away.
            Err(err) => tracing::warn!(%err, "A disk may stay on the node"),
        }
        Ok(())
    }

    /// Takes the disk off the node, which must not use it any more. It stays, with its session, for whoever else uses it;
    /// so does a session that is to end, for whoever uses another disk that came by it.
    async fn detach(
        &self,
        address: &Address,
        session_ends: bool,
    ) -> io::Result<(Outcome, Vec<OwnedMutexGuard<()>>)> {
        let (going, alone) = loop {
            let going = self.going(address, session_ends).await?;
            let disks = going.others.iter().chain([&going.disk]);
            let alone = self.alone_with_devices(disks).await;
            if self.going(address, session_ends).await? == going {
                break (going, alone);
            }
        };
        if going.disk.joined.is_some() {
            self.fabric.note_joined();
        }
        let detach = Detach {
            files: &*self.files,
            tools: &*self.tools,
            mounts: &*self.mounts,
            root: &self.root,
        };
        // Whoever used it last has had all of it written. A session may be dead, and its end is not waited for.
        let flush = self.kind == DiskKind::FibreChannel;
        let outcome = detach.run(&going.disk, flush).await?;
        if outcome == Outcome::Gone && detach.is_any_used(&going.others).await? {
            return Ok((Outcome::Stays, alone));
        }
        Ok((outcome, alone))
    }

    async fn going(&self, address: &Address, session_ends: bool) -> io::Result<Going> {
        let files = &*self.files;
        let disk = match self.kind {
            DiskKind::Iscsi => {
                let devices = session::devices(files, address).await?;
                Parts::of(files, devices.into_iter().collect()).await?
            }
            DiskKind::FibreChannel => Seen::look(files, address).await?.parts,
        };
        let all = match session_ends {
            true => session::all_devices(files, address).await?,
            false => Vec::new(),
        };
        let mut others = BTreeSet::new();
        for device in all.into_iter().filter(|d| !disk.ways.contains(d)) {
            others.insert(Parts::of(files, BTreeSet::from([device])).await?);
        }
        let others = others.into_iter().collect();
        Ok(Going { disk, others })
    }

    /// The directories of disks that are in use, mounted or as devices, beside this one.
    async fn in_use(&self, address: &Address) -> io::Result<BTreeSet<String>> {
        let mut names = BTreeSet::new();
        for parent in self.parents(address) {
            names.extend(names_in(&*self.files, &parent).await?);
        }
        Ok(names)
    }

    /// Where the directories are of disks that are reached as this one is.
    fn parents(&self, address: &Address) -> Vec<PathBuf> {
        let points = [false, true].map(|block| self.point(address, block));
        let parents = points.iter().filter_map(|point| point.parent());
        parents.map(|p| self.root.path().join(p)).collect()
    }

    fn is_read_only(&self, request: &VolumeRequest<'_>, address: &Address) -> bool {
        address.is_read_only() || request.source.is_read_only_claim()
    }
}

fn iscsi_source(source: &Source<'_>) -> Option<ISCSIPersistentVolumeSource> {
    match source {
        Source::Inline(volume) => volume.iscsi.as_ref().map(as_persistent),
        Source::Persistent { .. } => source.persistent()?.iscsi.clone(),
    }
}

/// Why there is no device, as upstream says it.
fn did_not_come(address: &Address, failed: Option<String>) -> String {
    let Address::Iscsi { .. } = address else {
        return "no fc disk found".to_owned();
    };
    let last = failed.unwrap_or_else(|| {
        let seconds = APPEARS_WITHIN.as_secs();
        let path = address.expected_device();
        format!("Timed out waiting for device at path {path} after {seconds}s")
    });
    format!("failed to get any path for iscsi disk, last err seen:\n{last}")
}

#[async_trait]
impl VolumePlugin for Disks {
    fn name(&self) -> &'static str {
        self.kind.name()
    }

    fn supports(&self, source: &Source<'_>) -> bool {
        self.address(source).is_some()
    }

    fn plan(&self, request: &VolumeRequest<'_>) -> Result<Option<RecordedVolume>, SetUpError> {
        let address = self.address(&request.source);
        let address = address.ok_or(SetUpError::UnsupportedKind(self.kind.name()))?;
        address.check().map_err(SetUpError::NewMounter)?;
        let outside =
            serde_json::to_value(self.outside(request, address)).map_err(io::Error::from)?;
        Ok(Some(RecordedVolume {
            outside: Some(outside),
            ..request.recorded(self.name())
        }))
    }

    async fn set_up(&self, request: &VolumeRequest<'_>) -> Result<Standing, SetUpError> {
        let address = self.address(&request.source);
        let address = address.ok_or(SetUpError::UnsupportedKind(self.kind.name()))?;
        let read_only = self.is_read_only(request, &address);
        let host_path = match request.source.is_block() {
            true => self.map(request, &address).await?,
            false => self.mount(request, address).await?,
        };
        Ok(request.stands_at(host_path, self.name(), read_only))
    }

    /// The last pod that used the disk lets it go.
    async fn tear_down(&self, recorded: &RecordedVolume) -> Result<(), SetUpError> {
        let outside = recorded.outside.clone().unwrap_or_default();
        let Ok(Outside {
            point,
            address,
            portal_is_told,
            user,
        }) = serde_json::from_value(outside)
        else {
            return Ok(());
        };
        let Some(point) = recorded_point(&self.root, &point) else {
            return Ok(());
        };
        // A pod that wants the disk again waits until it is known whether it stays.
        let _alone = self.turns.alone_with(&point.to_string_lossy()).await;
        let free = match user {
            Some(user) => self.unmapped(&point, &user, &recorded.path).await?,
            None => unmounted(&*self.mounts, &self.root, &point).await?,
        };
        if !free {
            return Ok(());
        }
        let _target = self.turns.alone_with(&address.target()).await;
        let _interface = self.alone_with_interface(&address).await;
        self.files.remove_dir(&point).await?;
        self.let_go(&address, portal_is_told).await?;
        if address.initiator().is_some() {
            // Nobody else uses it; unless somebody does, by now.
            for parent in self.parents(&address) {
                let _ = self.files.remove_dir(&parent).await;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "disk_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "let_go_tests.rs"]
mod let_go_tests;
