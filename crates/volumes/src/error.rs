//! What can go wrong with a volume. The texts are what people see in events.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use krablet_pod::PodUid;

#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    /// Printed as the event `FailedMount` says it.
    #[error("MountVolume.SetUp failed for volume {volume:?} : {cause}")]
    SetUp { volume: String, cause: SetUpError },
    /// The UID is no name for a directory.
    #[error("pod UID {0:?} cannot name a directory")]
    Uid(PodUid),
    #[error("pod directories: {0}")]
    Directories(#[source] io::Error),
    #[error("record of volumes: {0}")]
    Record(#[source] io::Error),
    #[error("unmount of {} failed: {source}{}", .point.display(), held_by(.holders))]
    Unmount {
        point: PathBuf,
        source: io::Error,
        /// Who keeps it busy, as far as that could be found out.
        holders: Vec<String>,
    },
    #[error("removal of volumes: {0}")]
    Remove(#[source] io::Error),
}

impl VolumeError {
    /// True if something still uses a mount: worth another try soon.
    pub fn is_busy(&self) -> bool {
        match self {
            VolumeError::Unmount { source, .. } => source.kind() == io::ErrorKind::ResourceBusy,
            _ => false,
        }
    }
}

fn held_by(holders: &[String]) -> String {
    match holders {
        [] => String::new(),
        some => format!(" (held by {})", some.join("; ")),
    }
}

/// Why one volume could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum SetUpError {
    #[error("volumes of kind {0} are not supported")]
    UnsupportedKind(&'static str),
    #[error("unknown storage medium {0:?}")]
    UnknownMedium(String),
    #[error("size limit {0:?} is not a quantity")]
    SizeLimit(String),
    /// The name cannot be part of a path.
    #[error("the name cannot be that of a directory")]
    Name,
    #[error("invalid HostPath `{0}`: must not contain '..'")]
    Backsteps(String),
    #[error("hostPath type check failed: {path} is not a {wanted}")]
    HostPathType { path: String, wanted: &'static str },
    #[error("{0} is an invalid volume type")]
    UnknownHostPathType(String),
    #[error("{path} did not answer within {deadline:?}; its file system may hang")]
    Deadline { path: String, deadline: Duration },
    #[error("{0}")]
    Io(#[from] io::Error),
}
