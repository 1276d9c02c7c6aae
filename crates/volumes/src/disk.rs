//! Disks that are reached over a network: iSCSI and Fibre Channel. The host's tools bring the device; it is mounted
//! once on the node, and from there shown to each pod.

use std::collections::BTreeSet;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use krablet_linux::{Files, GroupShare, Mounts, Tools, Trees};
use krablet_pod::paths::RootDir;
use serde::{Deserialize, Serialize};

use crate::address::Address;
use crate::empty_dir::group_of;
use crate::error::SetUpError;
use crate::plugin::{MountedVolume, Source, Standing, VolumePlugin, VolumeRequest};
use crate::record::RecordedVolume;
use crate::tool::{mount_arguments, run};

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
}

/// What the record keeps of a disk, so that it can be let go without its pod.
#[derive(Debug, Serialize, Deserialize)]
struct Outside {
    /// Where it is mounted for the node, relative to the root directory.
    point: PathBuf,
    address: Address,
}

impl Disks {
    fn address(&self, source: &Source<'_>) -> Option<Address> {
        match (self.kind, source) {
            (DiskKind::Iscsi, Source::Inline(v)) => v.iscsi.as_ref().map(Address::iscsi),
            (DiskKind::Iscsi, _) => source.persistent()?.iscsi.as_ref().map(Address::iscsi_pv),
            (DiskKind::FibreChannel, Source::Inline(v)) => v.fc.as_ref().map(Address::fc),
            (DiskKind::FibreChannel, _) => source.persistent()?.fc.as_ref().map(Address::fc),
        }
    }

    fn outside(&self, address: Address) -> Outside {
        let plugin = Path::new("plugins").join(self.kind.name());
        Outside {
            point: plugin.join(address.directory()),
            address,
        }
    }

    async fn is_mounted(&self, point: &Path) -> io::Result<bool> {
        let found = self.mounts.below(point).await?;
        Ok(found.iter().any(|m| m.point == point))
    }

    /// The device, which is waited for.
    async fn attach(&self, address: &Address) -> Result<PathBuf, SetUpError> {
        let mut last = None;
        for arguments in address.log_in() {
            // A session that stands already makes some of them fail; the device tells.
            if let Err(e) = run(&*self.tools, "iscsiadm", &arguments, DEADLINE).await {
                last = Some(e);
            }
        }
        let deadline = tokio::time::Instant::now() + APPEARS_WITHIN;
        loop {
            if let Some(device) = self.device(address).await? {
                return Ok(device);
            }
            if last.is_some() || tokio::time::Instant::now() >= deadline {
                let why = last.map_or_else(String::new, |e| format!(", last err seen:\n{e}"));
                return Err(SetUpError::NewMounter(format!(
                    "failed to get any path for {} disk{why}",
                    address.words()
                )));
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
        options: Vec<String>,
        read_only: bool,
        point: &Path,
    ) -> Result<(), SetUpError> {
        let device = self.attach(address).await?;
        let device = device.display().to_string();
        let fs_type = address.fs_type().unwrap_or("ext4");
        let probe = ["-p", "-s", "TYPE", "-o", "value", &device].map(str::to_owned);
        let found = self.tools.run("blkid", &probe, DEADLINE).await?;
        let blank =
            found.code == Some(BLANK) || (found.is_success() && found.text.trim().is_empty());
        if blank && !read_only {
            let arguments = match fs_type {
                "ext3" | "ext4" => vec!["-F", "-m0", &device],
                "xfs" => vec!["-f", &device],
                _ => vec![device.as_str()],
            };
            let arguments: Vec<String> = arguments.into_iter().map(str::to_owned).collect();
            let mkfs = format!("mkfs.{fs_type}");
            run(&*self.tools, &mkfs, &arguments, FORMAT_DEADLINE).await?;
        }
        self.files.create_dir_all(point, POINT_MODE).await?;
        let mut options = options;
        options.push(if read_only { "ro" } else { "defaults" }.to_owned());
        let arguments = mount_arguments(Some(fs_type), &options, &device, point);
        run(&*self.tools, "mount", &arguments, DEADLINE).await?;
        Ok(())
    }

    fn is_read_only(&self, request: &VolumeRequest<'_>, address: &Address) -> bool {
        address.is_read_only() || request.source.is_read_only_claim()
    }
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
        let outside = serde_json::to_value(self.outside(address)).map_err(io::Error::from)?;
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
            let outside = self.outside(address);
            let point = self.root.path().join(&outside.point);
            if !self.is_mounted(&point).await? {
                let mounted = self.mount_for_node(&outside.address, options, read_only, &point);
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
        let Ok(Outside { point, address }) = serde_json::from_value(outside) else {
            return Ok(());
        };
        let stays = |p: &Path| p.components().all(|c| matches!(c, Component::Normal(_)));
        if !stays(&point) || !point.starts_with("plugins") {
            return Ok(());
        }
        let point = self.root.path().join(point);
        let mounted = self.mounts.below(&point).await?;
        if let Some(own) = mounted.iter().find(|m| m.point == point) {
            let pods = self.mounts.below(&self.root.pods()).await?;
            if pods.iter().any(|m| m.device == own.device) {
                return Ok(());
            }
            self.mounts.unmount(&point).await?;
        }
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
        for arguments in address.log_out(&left) {
            // A session that is gone already is as good.
            if let Err(e) = run(&*self.tools, "iscsiadm", &arguments, DEADLINE).await {
                tracing::warn!(volume = recorded.name, err = %e, "Could not end the session of a disk");
            }
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "disk_tests.rs"]
mod tests;
