//! Volumes made of values: configMaps, secrets, what a pod knows of itself, tokens, and all of them together. Rendered
//! anew at every sync of their pod, written only when something differs.

mod render;

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use krablet_linux::{Files, GroupShare, TreeFiles, Trees, WallClock};
use krablet_pod::PodUid;

use crate::empty_dir::{EmptyDir, Medium, group_of};
use crate::error::SetUpError;
use crate::plugin::{MountedVolume, Source, Standing, VolumePlugin, VolumeRequest};
use crate::record::RecordedVolume;
use crate::used::nested_mount_points;
use crate::writer::Writer;

pub use render::Renderer;

const NESTED_MODE: u32 = 0o755;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentKind {
    ConfigMap,
    Secret,
    DownwardApi,
    Projected,
}

impl ContentKind {
    pub const ALL: [ContentKind; 4] = [
        ContentKind::ConfigMap,
        ContentKind::Secret,
        ContentKind::DownwardApi,
        ContentKind::Projected,
    ];

    fn name(self) -> &'static str {
        match self {
            ContentKind::ConfigMap => "kubernetes.io/configmap",
            ContentKind::Secret => "kubernetes.io/secret",
            ContentKind::DownwardApi => "kubernetes.io/downward-api",
            ContentKind::Projected => "kubernetes.io/projected",
        }
    }

    /// What may be secret never reaches a disk.
    fn medium(self) -> Medium {
        match self {
            ContentKind::ConfigMap => Medium::Disk,
            _ => Medium::Memory,
        }
    }
}

/// What all kinds work with.
#[derive(Clone)]
pub struct ContentDeps {
    pub files: Arc<dyn Files>,
    pub trees: Arc<dyn Trees>,
    pub clock: Arc<dyn WallClock>,
    /// Makes the directories that the content goes into.
    pub directories: Arc<EmptyDir>,
    pub renderer: Arc<Renderer>,
}

/// Content that was written, by pod and volume, as a hash.
type Written = BTreeMap<PodUid, BTreeMap<String, u64>>;

pub struct Content {
    kind: ContentKind,
    deps: ContentDeps,
    written: Mutex<Written>,
}

impl Content {
    pub fn new(kind: ContentKind, deps: ContentDeps) -> Self {
        Self {
            kind,
            deps,
            written: Mutex::default(),
        }
    }

    fn written(&self) -> MutexGuard<'_, Written> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn written_hash(&self, request: &VolumeRequest<'_>) -> Option<u64> {
        let written = self.written();
        written.get(request.uid)?.get(request.name()).copied()
    }

    fn writer(&self) -> Writer<'_> {
        Writer {
            files: &*self.deps.files,
            trees: &*self.deps.trees,
        }
    }

    /// The volume has content, of this agent or of one before it.
    async fn stands(&self, request: &VolumeRequest<'_>, dir: &Path) -> bool {
        self.written_hash(request).is_some() || self.writer().stands(dir).await.unwrap_or(false)
    }

    async fn write(
        &self,
        request: &VolumeRequest<'_>,
        dir: &Path,
        content: &TreeFiles,
    ) -> Result<(), SetUpError> {
        let hash = hash(content);
        if self.written_hash(request) == Some(hash) {
            return Ok(());
        }
        let directories = &self.deps.directories;
        directories.wrap(request, dir, self.kind.medium()).await?;
        if let Some(spec) = request.spec() {
            for point in nested_mount_points(request.name(), spec)? {
                let point = dir.join(point);
                self.deps.files.create_dir_all(&point, NESTED_MODE).await?;
            }
        }
        let share = match request.fs_group() {
            None => None,
            Some(group) => Some(GroupShare {
                gid: group_of(group)?,
                read_only: true,
                only_if_top_differs: false,
            }),
        };
        let now = self.deps.clock.now();
        self.writer().write(dir, content, share, now).await?;
        let mut written = self.written();
        let of_pod = written.entry(request.uid.clone()).or_default();
        of_pod.insert(request.name().to_owned(), hash);
        Ok(())
    }
}

#[async_trait]
impl VolumePlugin for Content {
    fn name(&self) -> &'static str {
        self.kind.name()
    }

    fn supports(&self, source: &Source<'_>) -> bool {
        let Source::Inline(volume) = source else {
            return false;
        };
        match self.kind {
            ContentKind::ConfigMap => volume.config_map.is_some(),
            ContentKind::Secret => volume.secret.is_some(),
            ContentKind::DownwardApi => volume.downward_api.is_some(),
            ContentKind::Projected => volume.projected.is_some(),
        }
    }

    fn follows(&self) -> bool {
        true
    }

    fn plan(&self, request: &VolumeRequest<'_>) -> Result<Option<RecordedVolume>, SetUpError> {
        Ok(Some(RecordedVolume {
            name: request.volume.name.clone(),
            plugin: self.name().to_owned(),
            path: request.relative_dir(self.name()),
            mounted: self.kind.medium() == Medium::Memory,
            outside: None,
        }))
    }

    async fn set_up(&self, request: &VolumeRequest<'_>) -> Result<Standing, SetUpError> {
        let dir = request.dir(self.name());
        let rendered = self.deps.renderer.render(request).await;
        let done = match rendered {
            Ok(rendered) => self
                .write(request, &dir, &rendered.files)
                .await
                .map(|()| rendered.renew_at),
            Err(e) => Err(e),
        };
        let (renew_at, stale) = match done {
            Ok(renew_at) => (renew_at, None),
            // What a pod has it keeps: a container may start with what its neighbours see.
            Err(e) if self.stands(request, &dir).await => (None, Some(e)),
            Err(e) => return Err(e),
        };
        let volume = MountedVolume {
            spec_name: request.name().to_owned(),
            host_path: dir,
            read_only: true,
            se_linux_relabel: true,
            block: false,
            group: request.source.group(),
            plugin: self.name(),
        };
        Ok(Standing {
            volume,
            renew_at,
            stale,
        })
    }

    fn forget(&self, uid: &PodUid) {
        self.written().remove(uid);
        self.deps.renderer.forget(uid);
    }
}

fn hash(content: &TreeFiles) -> u64 {
    let mut hasher = DefaultHasher::new();
    content.hash(&mut hasher);
    hasher.finish()
}
