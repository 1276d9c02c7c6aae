//! Persistent volumes that are directories or devices of this node.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use krablet_linux::{EntryKind, Files, GroupShare, Mounts, Trees};

use crate::empty_dir::group_of;
use crate::error::SetUpError;
use crate::plugin::{MountedVolume, Source, Standing, VolumePlugin, VolumeRequest, escape};
use crate::record::RecordedVolume;

const NAME: &str = "kubernetes.io/local-volume";
const POINT_MODE: u32 = 0o750;

pub struct Local {
    pub files: Arc<dyn Files>,
    pub trees: Arc<dyn Trees>,
    pub mounts: Arc<dyn Mounts>,
}

impl Local {
    /// The directory or device, which must be there.
    async fn looked_at(
        &self,
        request: &VolumeRequest<'_>,
    ) -> Result<(PathBuf, EntryKind), SetUpError> {
        let spec = request.source.persistent();
        let path = spec.and_then(|s| s.local.as_ref()).map(|l| l.path.as_str());
        let path = path.unwrap_or_default();
        let unfit = |why: String| SetUpError::NewMounter(why);
        if path.is_empty() {
            return Err(unfit(format!(
                "LocalVolume volume {:?} path is empty",
                request.name()
            )));
        }
        if path.split('/').any(|part| part == "..") {
            return Err(unfit(format!("invalid path: {path} must not contain '..'")));
        }
        match self.files.stat(Path::new(path)).await {
            Ok(entry) => Ok((path.into(), entry.kind)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                Err(unfit(format!("path {path:?} does not exist")))
            }
            Err(e) => Err(e.into()),
        }
    }

    async fn mount(&self, request: &VolumeRequest<'_>) -> Result<PathBuf, SetUpError> {
        let dir = request.dir(NAME);
        let mounted = self.mounts.below(&dir).await?;
        if mounted.iter().any(|m| m.point == dir) {
            return Ok(dir);
        }
        let (path, kind) = self.looked_at(request).await?;
        if kind != EntryKind::Directory {
            return Err(SetUpError::NewMounter(format!(
                "only directory and block device are supported and {} is neither a directory nor mountable",
                path.display()
            )));
        }
        let read_only = request.source.is_read_only_claim();
        let alone = !self.is_used_by_others(request, &dir).await?;
        if let Some(group) = request.fs_group().filter(|_| alone && !read_only) {
            // Before the pod can see it, and before the mount that tells that it was done.
            let share = GroupShare {
                gid: group_of(group)?,
                read_only: false,
                only_if_top_differs: request.only_if_top_differs(),
            };
            self.trees.share(&path, share).await?;
        }
        self.files.create_dir_all(&dir, POINT_MODE).await?;
        self.mounts.bind(&path, &dir, read_only).await?;
        Ok(dir)
    }

    /// Another pod of this node has it mounted; its group stays.
    async fn is_used_by_others(&self, request: &VolumeRequest<'_>, own: &Path) -> io::Result<bool> {
        let tail = request.relative_dir(NAME);
        let all = self.mounts.below(&request.root.pods()).await?;
        Ok(all
            .iter()
            .any(|m| m.point != own && m.point.ends_with(&tail)))
    }

    /// A link to the device, which the runtime resolves.
    async fn map(&self, request: &VolumeRequest<'_>) -> Result<PathBuf, SetUpError> {
        let link = request.root.pod(request.uid).join(device_link(request));
        let (path, kind) = self.looked_at(request).await?;
        if kind != EntryKind::BlockDevice {
            return Err(
                io::Error::other(format!("{} is not a block device", path.display())).into(),
            );
        }
        if let Some(parent) = link.parent() {
            self.files.create_dir_all(parent, POINT_MODE).await?;
        }
        self.files.symlink(&path, &link).await?;
        Ok(link)
    }
}

fn device_link(request: &VolumeRequest<'_>) -> PathBuf {
    PathBuf::from("volumeDevices")
        .join(escape(NAME))
        .join(request.name())
}

#[async_trait]
impl VolumePlugin for Local {
    fn name(&self) -> &'static str {
        NAME
    }

    fn supports(&self, source: &Source<'_>) -> bool {
        source.persistent().is_some_and(|s| s.local.is_some())
    }

    fn plan(&self, request: &VolumeRequest<'_>) -> Result<Option<RecordedVolume>, SetUpError> {
        let block = request.source.is_block();
        Ok(Some(RecordedVolume {
            name: request.volume.name.clone(),
            plugin: NAME.to_owned(),
            path: match block {
                true => device_link(request),
                false => request.relative_dir(NAME),
            },
            mounted: !block,
            outside: None,
        }))
    }

    async fn set_up(&self, request: &VolumeRequest<'_>) -> Result<Standing, SetUpError> {
        let block = request.source.is_block();
        let host_path = match block {
            true => self.map(request).await?,
            false => self.mount(request).await?,
        };
        let read_only = request.source.is_read_only_claim();
        Ok(MountedVolume {
            spec_name: request.name().to_owned(),
            host_path,
            read_only,
            se_linux_relabel: !read_only,
            block,
            group: request.source.group(),
            plugin: NAME,
        }
        .into())
    }
}
