//! Disks that are reached over a network: iSCSI and Fibre Channel. The host's tools bring the device; it is mounted
//! once on the node, and from there shown to each pod.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use krablet_linux::{Files, GroupShare, Mounts, Tools, Trees};
use krablet_objects::Objects;
use krablet_pod::PodUid;
use krablet_pod::api::{ISCSIPersistentVolumeSource, Secret};
use krablet_pod::paths::RootDir;
use serde::{Deserialize, Serialize};

use crate::address::{Address, as_persistent};
use crate::chap::{self, Chap};
use crate::cluster::ClusterObjects;
use crate::detach::Detach;
use crate::device;
use crate::empty_dir::group_of;
use crate::error::SetUpError;
use crate::iscsi::Sessions;
use crate::node_mount::{DEFAULT_FS, NodeMount, is_mounted, recorded_point, unmounted};
use crate::plugin::{MountedVolume, Source, Standing, VolumePlugin, VolumeRequest};
use crate::record::RecordedVolume;
use crate::session;
use crate::turns::Turns;
use crate::volumes::VolumesDeps;

const POINT_MODE: u32 = 0o750;
/// How long a device may take to appear once its target has answered.
const APPEARS_WITHIN: Duration = Duration::from_secs(30);
/// How long udev may take to name a device that a scan has found.
const NAMED_WITHIN: Duration = Duration::from_secs(5);
/// How long several ways to a disk may take to be joined.
const JOINED_WITHIN: Duration = Duration::from_secs(10);
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

impl Disks {
    pub fn new(kind: DiskKind, root: RootDir, deps: &VolumesDeps) -> Self {
        let deps = deps.clone();
        Self {
            kind,
            root,
            sessions: Sessions::new(deps.files.clone(), deps.tools.clone()),
            turns: Turns::default(),
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
    async fn attach(&self, address: &Address, chap: Option<&Chap>) -> Result<PathBuf, SetUpError> {
        let alone = self.turns.alone_with(&address.target()).await;
        let failed = self.sessions.open(address, chap).await?;
        drop(alone);
        let files = &*self.files;
        let patience = match self.kind {
            DiskKind::Iscsi => {
                session::look_for(files, &*self.tools, address).await?;
                APPEARS_WITHIN
            }
            DiskKind::FibreChannel => {
                // What the fabric has given the node lately is seen by those who look.
                if device::find(files, address).await?.is_empty() {
                    device::rescan(&*self.tools).await;
                }
                NAMED_WITHIN
            }
        };
        let deadline = tokio::time::Instant::now() + patience;
        loop {
            if !device::find(files, address).await?.is_empty() {
                return Ok(self.joined(address).await?);
            }
            if failed.is_some() || tokio::time::Instant::now() >= deadline {
                return Err(SetUpError::Attach(did_not_come(address, failed)));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// All the ways to a disk that is there, as one device; where they are not joined, the first of them.
    async fn joined(&self, address: &Address) -> io::Result<PathBuf> {
        let patience = match address.ways().len() {
            0 | 1 => Duration::ZERO,
            _ => JOINED_WITHIN,
        };
        let deadline = tokio::time::Instant::now() + patience;
        loop {
            let ways = device::find(&*self.files, address).await?;
            if let Some(joined) = device::multipath(&*self.files, &ways).await? {
                return Ok(joined);
            }
            if tokio::time::Instant::now() >= deadline {
                let first = ways.into_iter().next();
                return first.ok_or_else(|| io::Error::other("the disk has gone away"));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
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
        let _alone = self.turns.alone_with(&point.to_string_lossy()).await;
        if !is_mounted(&*self.mounts, &point).await? {
            let chap = self.chap(request).await?;
            // Its directory tells others that its target is in use.
            self.files.create_dir_all(&point, POINT_MODE).await?;
            let mount = NodeMount {
                device: &self.attach(&address, chap.as_ref()).await?,
                fs_type: address.fs_type().unwrap_or(DEFAULT_FS),
                options: request.source.mount_options(),
                read_only,
                point: &point,
            };
            mount.make(&*self.tools).await?;
        }
        if let Some(group) = request.fs_group().filter(|_| !read_only) {
            let share = GroupShare {
                gid: group_of(group)?,
                read_only: false,
                only_if_top_differs: request.only_if_top_differs(),
            };
            self.trees.share(&point, share).await?;
        }
        self.files.create_dir_all(&dir, POINT_MODE).await?;
        self.mounts.bind(&point, &dir, read_only).await?;
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
        let device = self.attach(address, chap.as_ref()).await?;
        let own = point.join(request.uid.as_str());
        self.files.symlink(&device, &own).await?;
        if let Some(parent) = link.parent() {
            self.files.create_dir_all(parent, POINT_MODE).await?;
        }
        self.files.symlink(&device, &link).await?;
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
        match self.files.list(point).await {
            Ok(others) => Ok(others.is_empty()),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(true),
            Err(e) => Err(e),
        }
    }

    /// Takes the disk off the node, which must not use it any more.
    async fn detach(&self, address: &Address) -> io::Result<()> {
        let files = &*self.files;
        let devices = match self.kind {
            DiskKind::Iscsi => session::devices(files, address).await?,
            DiskKind::FibreChannel => {
                let mut names = Vec::new();
                for link in device::find(files, address).await? {
                    names.extend(device::name_of(files, &link).await);
                }
                names
            }
        };
        let detach = Detach {
            files,
            tools: &*self.tools,
            mounts: &*self.mounts,
            root: &self.root,
        };
        // Whoever used it last has had all of it written. A session may be dead, and its end is not waited for.
        let flush = self.kind == DiskKind::FibreChannel;
        detach.run(devices.into_iter().collect(), flush).await
    }

    /// The directories of disks that are in use, mounted or as devices, beside this one.
    async fn in_use(&self, address: &Address) -> io::Result<BTreeSet<String>> {
        let mut names = BTreeSet::new();
        for parent in self.parents(address) {
            let entries = match self.files.list(&parent).await {
                Ok(entries) => entries,
                Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                Err(e) => return Err(e),
            };
            let found = entries.iter().filter_map(|e| e.path.file_name()?.to_str());
            names.extend(found.map(str::to_owned));
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
        let block = request.source.is_block();
        Ok(Some(RecordedVolume {
            name: request.volume.name.clone(),
            plugin: self.name().to_owned(),
            path: match block {
                true => request.relative_link(self.name()),
                false => request.relative_dir(self.name()),
            },
            mounted: !block,
            outside: Some(outside),
        }))
    }

    async fn set_up(&self, request: &VolumeRequest<'_>) -> Result<Standing, SetUpError> {
        let address = self.address(&request.source);
        let address = address.ok_or(SetUpError::UnsupportedKind(self.kind.name()))?;
        let read_only = self.is_read_only(request, &address);
        let block = request.source.is_block();
        let host_path = match block {
            true => self.map(request, &address).await?,
            false => self.mount(request, address).await?,
        };
        Ok(MountedVolume {
            spec_name: request.name().to_owned(),
            host_path,
            read_only,
            se_linux_relabel: !read_only,
            block,
            group: request.source.group(),
            plugin: self.name(),
        }
        .into())
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
        self.files.remove_dir(&point).await?;
        let left = self.in_use(&address).await?;
        if !address.is_among(&left)
            && let Err(err) = self.detach(&address).await
        {
            tracing::warn!(%err, "A disk may stay on the node");
        }
        self.sessions.close(&address, &left, portal_is_told).await;
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
