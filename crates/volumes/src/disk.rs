//! Disks that are reached over a network: iSCSI and Fibre Channel. The host's tools bring the device; it is mounted
//! once on the node, and from there shown to each pod.

use std::collections::BTreeSet;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use krablet_linux::{Files, GroupShare, Mounts, Tools, Trees};
use krablet_objects::Objects;
use krablet_pod::api::{ISCSIPersistentVolumeSource, Secret};
use krablet_pod::paths::RootDir;
use serde::{Deserialize, Serialize};

use crate::address::{Address, as_persistent};
use crate::chap::{self, Chap};
use crate::cluster::ClusterObjects;
use crate::empty_dir::group_of;
use crate::error::SetUpError;
use crate::iscsi::Sessions;
use crate::plugin::{MountedVolume, Source, Standing, VolumePlugin, VolumeRequest};
use crate::record::RecordedVolume;
use crate::tool::{Failed, mount_arguments, run, try_run};
use crate::volumes::VolumesDeps;

const POINT_MODE: u32 = 0o750;
const DEADLINE: Duration = Duration::from_secs(60);
const FORMAT_DEADLINE: Duration = Duration::from_secs(600);
/// How long a device may take to appear once its target has answered.
const APPEARS_WITHIN: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// What `blkid` ends with when it finds nothing on a disk.
const BLANK: i32 = 2;

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
}

impl Disks {
    pub fn new(kind: DiskKind, root: RootDir, deps: &VolumesDeps) -> Self {
        let deps = deps.clone();
        Self {
            kind,
            root,
            sessions: Sessions::new(deps.files.clone(), deps.tools.clone()),
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
            (DiskKind::Iscsi, _) => iscsi_source(source).map(|s| Address::iscsi(&s)),
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

    fn outside(&self, source: &Source<'_>, address: Address) -> Outside {
        let plugin = Path::new("plugins").join(self.kind.name());
        let told = iscsi_source(source).is_some_and(|s| s.chap_auth_discovery == Some(true));
        Outside {
            point: plugin.join(address.directory()),
            address,
            portal_is_told: told,
        }
    }

    async fn is_mounted(&self, point: &Path) -> io::Result<bool> {
        let found = self.mounts.below(point).await?;
        Ok(found.iter().any(|m| m.point == point))
    }

    /// The device, which is waited for.
    async fn attach(&self, address: &Address, chap: Option<&Chap>) -> Result<PathBuf, SetUpError> {
        let alone = self.sessions.alone_with(&address.target()).await;
        let failed = self.sessions.open(address, chap).await?;
        drop(alone);
        // What a fabric does not show is not on its way either.
        let patience = match self.kind {
            DiskKind::Iscsi => APPEARS_WITHIN,
            DiskKind::FibreChannel => Duration::ZERO,
        };
        let deadline = tokio::time::Instant::now() + patience;
        loop {
            if let Some(device) = self.device(address).await? {
                return Ok(device);
            }
            if failed.is_some() || tokio::time::Instant::now() >= deadline {
                return Err(SetUpError::Attach(did_not_come(address, failed)));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    async fn device(&self, address: &Address) -> io::Result<Option<PathBuf>> {
        for dir in ["/dev/disk/by-path", "/dev/disk/by-id"] {
            let entries = match self.files.list(Path::new(dir)).await {
                Ok(entries) => entries,
                Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                Err(e) => return Err(e),
            };
            let mut names = entries.iter().filter_map(|e| e.path.file_name()?.to_str());
            if let Some(name) = names.find(|name| address.is_device(name)) {
                return Ok(Some(Path::new(dir).join(name)));
            }
        }
        Ok(None)
    }

    /// A blank disk gets a file system; one with another than asked for is refused by the mount.
    async fn mount_for_node(
        &self,
        address: &Address,
        device: &Path,
        options: Vec<String>,
        read_only: bool,
        point: &Path,
    ) -> Result<(), SetUpError> {
        let device = device.display().to_string();
        let fs_type = address.fs_type().unwrap_or("ext4");
        let probe = ["-p", "-s", "TYPE", "-o", "value", &device].map(str::to_owned);
        let blank = match try_run(&*self.tools, "blkid", &probe, DEADLINE).await {
            Ok(found) => found.trim().is_empty(),
            Err(failed) if failed.code == Some(BLANK) => true,
            Err(Failed { status, output, .. }) => {
                let why = format!("blkid of {device}: {status}: {}", output.trim_end());
                return Err(SetUpError::Device(why));
            }
        };
        if blank && !read_only {
            let arguments = match fs_type {
                "ext3" | "ext4" => vec!["-F", "-m0", &device],
                "xfs" => vec!["-f", &device],
                _ => vec![device.as_str()],
            };
            let arguments: Vec<String> = arguments.into_iter().map(str::to_owned).collect();
            let mkfs = format!("mkfs.{fs_type}");
            let made = run(&*self.tools, &mkfs, &arguments, FORMAT_DEADLINE).await;
            made.map_err(|e| SetUpError::Device(e.to_string()))?;
        }
        let mut options = options;
        options.push(if read_only { "ro" } else { "defaults" }.to_owned());
        let arguments = mount_arguments(Some(fs_type), &options, &device, point);
        let mounted = run(&*self.tools, "mount", &arguments, DEADLINE).await;
        mounted.map_err(|e| SetUpError::Device(e.to_string()))?;
        Ok(())
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
        self.address(source).is_some() && !source.is_block()
    }

    fn plan(&self, request: &VolumeRequest<'_>) -> Result<Option<RecordedVolume>, SetUpError> {
        let address = self.address(&request.source);
        let address = address.ok_or(SetUpError::UnsupportedKind(self.kind.name()))?;
        address.check().map_err(SetUpError::NewMounter)?;
        let outside = serde_json::to_value(self.outside(&request.source, address))
            .map_err(io::Error::from)?;
        Ok(Some(RecordedVolume {
            name: request.volume.name.clone(),
            plugin: self.name().to_owned(),
            path: request.relative_dir(self.name()),
            mounted: true,
            outside: Some(outside),
        }))
    }

    async fn set_up(&self, request: &VolumeRequest<'_>) -> Result<Standing, SetUpError> {
        let address = self.address(&request.source);
        let address = address.ok_or(SetUpError::UnsupportedKind(self.kind.name()))?;
        let dir = request.dir(self.name());
        let read_only = self.is_read_only(request, &address);
        if !self.is_mounted(&dir).await? {
            let options = request.source.mount_options();
            let outside = self.outside(&request.source, address);
            let point = self.root.path().join(&outside.point);
            let _alone = self.sessions.alone_with(&point.to_string_lossy()).await;
            if !self.is_mounted(&point).await? {
                let chap = self.chap(request).await?;
                // Its directory tells others that its target is in use.
                self.files.create_dir_all(&point, POINT_MODE).await?;
                let device = self.attach(&outside.address, chap.as_ref()).await?;
                let mounted =
                    self.mount_for_node(&outside.address, &device, options, read_only, &point);
                mounted.await?;
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
        }
        Ok(MountedVolume {
            spec_name: request.name().to_owned(),
            host_path: dir,
            read_only,
            se_linux_relabel: !read_only,
            block: false,
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
        }) = serde_json::from_value(outside)
        else {
            return Ok(());
        };
        let stays = |p: &Path| p.components().all(|c| matches!(c, Component::Normal(_)));
        if !stays(&point) || !point.starts_with("plugins") {
            return Ok(());
        }
        let point = self.root.path().join(point);
        // A pod that wants the disk again waits until it is known whether it stays.
        let _alone = self.sessions.alone_with(&point.to_string_lossy()).await;
        let mounted = self.mounts.below(&point).await?;
        if let Some(own) = mounted.iter().find(|m| m.point == point) {
            let pods = self.mounts.below(&self.root.pods()).await?;
            if pods.iter().any(|m| m.device == own.device) {
                return Ok(());
            }
            self.mounts.unmount(&point).await?;
        }
        let _target = self.sessions.alone_with(&address.target()).await;
        self.files.remove_dir(&point).await?;
        let Some(parent) = point.parent() else {
            return Ok(());
        };
        let left: BTreeSet<String> = match self.files.list(parent).await {
            Ok(entries) => {
                let names = entries.iter().filter_map(|e| e.path.file_name()?.to_str());
                names.map(str::to_owned).collect()
            }
            Err(_) => BTreeSet::new(),
        };
        self.sessions.close(&address, &left, portal_is_told).await;
        Ok(())
    }
}

#[cfg(test)]
#[path = "disk_tests.rs"]
mod tests;
