//! Persistent volumes that are directories or devices of this node.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use krablet_linux::{EntryKind, Files, Mounts, Tools, Trees};
use krablet_pod::paths::RootDir;
use serde::{Deserialize, Serialize};

use crate::attempt::News;
use crate::error::SetUpError;
use crate::listing::is_mounted;
use crate::node_mount::{self, DEFAULT_FS, NodeMount, POINT_MODE, recorded_point, unmounted};
use crate::ownership::{self, Slow};
use crate::plugin::{Source, Standing, VolumePlugin, VolumeRequest};
use crate::record::RecordedVolume;
use crate::turns::Turns;
use crate::volumes::VolumesDeps;

const NAME: &str = "kubernetes.io/local-volume";

pub struct Local {
    root: RootDir,
    files: Arc<dyn Files>,
    trees: Arc<dyn Trees>,
    mounts: Arc<dyn Mounts>,
    tools: Arc<dyn Tools>,
    turns: Turns,
}

/// What the record keeps of a volume, so that a device can be let go without its pod.
#[derive(Debug, Serialize, Deserialize)]
struct Outside {
    /// Where a device is mounted for the node, relative to the root directory. A directory is not.
    point: PathBuf,
}

impl Local {
    pub fn new(root: RootDir, deps: &VolumesDeps) -> Self {
        let deps = deps.clone();
        Self {
            root,
            files: deps.files,
            trees: deps.trees,
            mounts: deps.mounts,
            tools: deps.tools,
            turns: Turns::default(),
        }
    }

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
        if is_mounted(&*self.mounts, &dir).await? {
            return Ok(dir);
        }
        let (path, kind) = self.looked_at(request).await?;
        let point = self.root.path().join(point(request));
        // Whoever lets the device go waits until the pod has it.
        let name = point.to_string_lossy().into_owned();
        let _alone = (request.attempt.wait_for(self.turns.alone_with(&name))).await?;
        let source = match kind {
            EntryKind::Directory => path,
            EntryKind::BlockDevice => {
                self.mount_for_node(request, &path, &point).await?;
                point
            }
            _ => {
                let why = "only directory and block device are supported";
                return Err(SetUpError::NewMounter(why.to_owned()));
            }
        };
        let read_only = request.source.is_read_only_claim();
        let alone = !self.is_used_by_others(request, &dir).await?;
        match alone {
            // Before the pod can see it, and before the mount that tells that it was done.
            true if !read_only => {
                ownership::give(&*self.trees, request, &source, Slow::IsToldOf(NAME)).await?;
            }
            true => {}
            false => self.compare_group(request, &source).await?,
        }
        node_mount::show(&*self.files, &*self.mounts, &source, &dir, read_only).await?;
        Ok(dir)
    }

    /// Once, however many pods are shown it.
    async fn mount_for_node(
        &self,
        request: &VolumeRequest<'_>,
        device: &Path,
        point: &Path,
    ) -> Result<(), SetUpError> {
        if is_mounted(&*self.mounts, point).await? {
            return Ok(());
        }
        let local = request.source.persistent().and_then(|s| s.local.as_ref());
        let fs_type = local.and_then(|l| l.fs_type.as_deref());
        let fs_type = fs_type.filter(|t| !t.is_empty()).unwrap_or(DEFAULT_FS);
        self.files.create_dir_all(point, POINT_MODE).await?;
        let mount = NodeMount {
            device,
            fs_type,
            options: request.source.mount_options(),
            read_only: request.source.is_read_only_claim(),
            point,
        };
        let Err(why) = mount.make(&*self.tools).await else {
            return Ok(());
        };
        self.files.remove_dir(point).await?;
        let (device, point) = (device.display(), point.display());
        let text = format!(
            "local: failed to mount device {device} at {point} (fstype: {fs_type}), error {why}"
        );
        Err(match why {
            SetUpError::OtherFileSystem(_) => SetUpError::OtherFileSystem(text),
            _ => SetUpError::Device(text),
        })
    }

    /// Another group than others gave it is for people to hear of: this pod may not get at what is in it.
    async fn compare_group(
        &self,
        request: &VolumeRequest<'_>,
        source: &Path,
    ) -> Result<(), SetUpError> {
        let Some(wanted) = request.fs_group() else {
            return Ok(());
        };
        let found = self.trees.group(source).await.map_err(|e| {
            let path = source.display();
            io::Error::other(format!("failed to check fsGroup for {path} ({e})"))
        })?;
        if i64::from(found) != wanted {
            (request.attempt.hear)(News::OtherGroup {
                volume: request.name().to_owned(),
                wanted,
                found,
            });
        }
        Ok(())
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
        let link = request.link(NAME);
        let (path, kind) = self.looked_at(request).await?;
        if kind != EntryKind::BlockDevice {
            return Err(
                io::Error::other(format!("{} is not a block device", path.display())).into(),
            );
        }
        node_mount::link(&*self.files, &path, &link).await?;
        Ok(link)
    }
}

/// Where a device is mounted for the node, relative to the root directory.
fn point(request: &VolumeRequest<'_>) -> PathBuf {
    Path::new("plugins")
        .join(NAME)
        .join("mounts")
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
        // Whether a device has to be mounted is known when it is looked at.
        let outside = Outside {
            point: point(request),
        };
        let outside = serde_json::to_value(outside).map_err(io::Error::from)?;
        Ok(Some(RecordedVolume {
            outside: (!block).then_some(outside),
            ..request.recorded(NAME)
        }))
    }

    async fn set_up(&self, request: &VolumeRequest<'_>) -> Result<Standing, SetUpError> {
        let host_path = match request.source.is_block() {
            true => self.map(request).await?,
            false => self.mount(request).await?,
        };
        let read_only = request.source.is_read_only_claim();
        Ok(request.stands_at(host_path, NAME, read_only))
    }

    /// The last pod that was shown a device lets it go.
    async fn tear_down(&self, recorded: &RecordedVolume) -> Result<(), SetUpError> {
        let outside = recorded.outside.clone().unwrap_or_default();
        let Ok(Outside { point }) = serde_json::from_value(outside) else {
            return Ok(());
        };
        let Some(point) = recorded_point(&self.root, &point) else {
            return Ok(());
        };
        let _alone = self.turns.alone_with(&point.to_string_lossy()).await;
        if unmounted(&*self.mounts, &self.root, &point).await? {
            self.files.remove_dir(&point).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "local_tests.rs"]
mod tests;
