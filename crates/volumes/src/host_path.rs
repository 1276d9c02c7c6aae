//! Paths of the host, given to a pod as they are. Nothing of them is ours: they are looked at,
//! perhaps created, and never taken away.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use krablet_linux::{EntryKind, Files};
use krablet_pod::api::HostPathVolumeSource;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::error::SetUpError;
use crate::plugin::{MountedVolume, Source, Standing, VolumePlugin, VolumeRequest};
use crate::record::RecordedVolume;

const NAME: &str = "kubernetes.io/host-path";
const DIRECTORY_MODE: u32 = 0o755;
const FILE_MODE: u32 = 0o644;
/// Looks at paths that may hang at once. One that hangs holds a thread until the kernel lets go.
const MAX_LOOKS: usize = 32;

pub struct HostPath {
    files: Arc<dyn Files>,
    deadline: Duration,
    looks: Mutex<Looks>,
}

/// Looks under way. A path on a file system that hangs is looked at once, however often pods ask.
#[derive(Default)]
struct Looks {
    tasks: JoinSet<()>,
    by_path: BTreeMap<(PathBuf, Wanted), watch::Receiver<Option<Answer>>>,
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
            looks: Mutex::default(),
        }
    }

    fn looks(&self) -> MutexGuard<'_, Looks> {
        self.looks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Joins the look that is under way, or starts one. None if too many hang already.
    fn begin(&self, path: &Path, wanted: Wanted) -> Option<watch::Receiver<Option<Answer>>> {
        let mut looks = self.looks();
        // What has ended answers nobody who asks from now on.
        looks.by_path.retain(|_, answer| answer.borrow().is_none());
        while looks.tasks.try_join_next().is_some() {}
        let key = (path.to_owned(), wanted);
        if let Some(answer) = looks.by_path.get(&key) {
            return Some(answer.clone());
        }
        if looks.by_path.len() >= MAX_LOOKS {
            return None;
        }
        let (tell, answer) = watch::channel(None);
        let look = look(self.files.clone(), path.to_owned(), wanted);
        looks.tasks.spawn(async move {
            let found = look.await;
            tell.send_replace(Some(found));
        });
        looks.by_path.insert(key, answer.clone());
        Some(answer)
    }

    async fn check(&self, path: &str, wanted: Wanted) -> Result<(), SetUpError> {
        let too_late = || SetUpError::Deadline {
            path: path.to_owned(),
            deadline: self.deadline,
        };
        let mut answer = self
            .begin(Path::new(path), wanted)
            .ok_or_else(|| io::Error::other("too many host paths do not answer"))?;
        let answered = timeout(self.deadline, answer.wait_for(Option::is_some))
            .await
            .map_err(|_| too_late())?
            .map_err(|_| too_late())?
            .clone();
        match answered {
            Some(Ok(())) => Ok(()),
            Some(Err(Refusal::NotA(wanted))) => Err(SetUpError::HostPathType {
                path: path.to_owned(),
                wanted,
            }),
            Some(Err(Refusal::Io(kind, text))) => Err(io::Error::new(kind, text).into()),
            None => Err(too_late()),
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
