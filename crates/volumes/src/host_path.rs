//! Paths of the host, given to a pod as they are. Nothing of them is ours: they are looked at,
//! perhaps created, and never taken away.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use krablet_linux::{EntryKind, Files, NoAnswer, Pending};
use krablet_pod::api::HostPathVolumeSource;

use crate::error::SetUpError;
use crate::plugin::{MountedVolume, Source, Standing, VolumePlugin, VolumeRequest};
use crate::record::RecordedVolume;

const NAME: &str = "kubernetes.io/host-path";
const DIRECTORY_MODE: u32 = 0o755;
const FILE_MODE: u32 = 0o644;
/// Looks at paths that may hang at once. One that hangs holds a thread of its own until the kernel lets go.
const MAX_LOOKS: usize = 32;

pub struct HostPath {
    files: Arc<dyn Files>,
    deadline: Duration,
    /// A path on a file system that hangs is looked at once, however often pods ask.
    looks: Pending<(PathBuf, Wanted), Answer>,
}

/// What a look found. Shared between those who wait for it, so errors are kept as kind and text.
type Answer = Result<(), Refusal>;

#[derive(Clone, Debug)]
enum Refusal {
    NotA(&'static str),
    Io(io::ErrorKind, String),
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Self {
        Refusal::Io(error.kind(), error.to_string())
    }
}

/// What shall stand at the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Wanted {
    Directory { create: bool },
    File { create: bool },
    Socket,
    CharDevice,
    BlockDevice,
}

impl Wanted {
    /// None: anything, or nothing yet.
    fn parse(kind: &str) -> Result<Option<Self>, SetUpError> {
        Ok(Some(match kind {
            "" => return Ok(None),
            "Directory" => Wanted::Directory { create: false },
            "DirectoryOrCreate" => Wanted::Directory { create: true },
            "File" => Wanted::File { create: false },
            "FileOrCreate" => Wanted::File { create: true },
            "Socket" => Wanted::Socket,
            "CharDevice" => Wanted::CharDevice,
            "BlockDevice" => Wanted::BlockDevice,
            other => return Err(SetUpError::UnknownHostPathType(other.to_owned())),
        }))
    }

    fn kind(self) -> EntryKind {
        match self {
            Wanted::Directory { .. } => EntryKind::Directory,
            Wanted::File { .. } => EntryKind::File,
            Wanted::Socket => EntryKind::Socket,
            Wanted::CharDevice => EntryKind::CharDevice,
            Wanted::BlockDevice => EntryKind::BlockDevice,
        }
    }

    fn words(self) -> &'static str {
        match self {
            Wanted::Directory { .. } => "directory",
            Wanted::File { .. } => "file",
            Wanted::Socket => "socket file",
            Wanted::CharDevice => "character device",
            Wanted::BlockDevice => "block device",
        }
    }

    async fn create(self, files: &dyn Files, path: &Path) -> Answer {
        match self {
            Wanted::Directory { create: true } => {
                files.create_dir_all(path, DIRECTORY_MODE).await?;
            }
            Wanted::File { create: true } => files.touch(path, FILE_MODE).await?,
            other => return Err(Refusal::NotA(other.words())),
        }
        Ok(())
    }
}

async fn look(files: Arc<dyn Files>, path: PathBuf, wanted: Wanted) -> Answer {
    match files.stat(&path).await {
        Ok(entry) if entry.kind == wanted.kind() => Ok(()),
        Ok(_) => Err(Refusal::NotA(wanted.words())),
        Err(e) if e.kind() == io::ErrorKind::NotFound => wanted.create(&*files, &path).await,
        Err(e) => Err(e.into()),
    }
}

impl HostPath {
    pub fn new(files: Arc<dyn Files>, deadline: Duration) -> Self {
        Self {
            files,
            deadline,
            looks: Pending::new(MAX_LOOKS),
        }
    }

    async fn check(&self, path: &str, wanted: Wanted) -> Result<(), SetUpError> {
        let at = PathBuf::from(path);
        let look = look(self.files.clone(), at.clone(), wanted);
        match self.looks.ask((at, wanted), self.deadline, look).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(Refusal::NotA(wanted))) => Err(SetUpError::HostPathType {
                path: path.to_owned(),
                wanted,
            }),
            Ok(Err(Refusal::Io(kind, text))) => Err(io::Error::new(kind, text).into()),
            Err(NoAnswer::Late) => Err(SetUpError::Deadline {
                path: path.to_owned(),
                deadline: self.deadline,
            }),
            Err(NoAnswer::TooMany) => {
                Err(io::Error::other("too many host paths do not answer").into())
            }
        }
    }
}

#[async_trait]
impl VolumePlugin for HostPath {
    fn name(&self) -> &'static str {
        NAME
    }

    fn supports(&self, source: &Source<'_>) -> bool {
        of(source).is_some() && !source.is_block()
    }

    fn plan(&self, _: &VolumeRequest<'_>) -> Result<Option<RecordedVolume>, SetUpError> {
        Ok(None)
    }

    async fn set_up(&self, request: &VolumeRequest<'_>) -> Result<Standing, SetUpError> {
        let source = of(&request.source).cloned().unwrap_or_default();
        if source.path.split('/').any(|part| part == "..") {
            return Err(SetUpError::Backsteps(source.path));
        }
        let wanted = Wanted::parse(source.type_.as_deref().unwrap_or_default())?;
        if let Some(wanted) = wanted {
            self.check(&source.path, wanted).await?;
        }
        Ok(MountedVolume {
            spec_name: request.name().to_owned(),
            host_path: PathBuf::from(source.path),
            read_only: request.source.is_read_only_claim(),
            se_linux_relabel: false,
            block: false,
            group: request.source.group(),
            plugin: NAME,
        }
        .into())
    }
}

fn of<'a>(source: &Source<'a>) -> Option<&'a HostPathVolumeSource> {
    match source {
        Source::Inline(volume) => volume.host_path.as_ref(),
        Source::Persistent { .. } => source.persistent()?.host_path.as_ref(),
    }
}
