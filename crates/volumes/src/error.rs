//! What can go wrong with a volume. The texts are what people see in events.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use krablet_objects::ObjectError;
use krablet_pod::PodUid;
use krablet_podcerts::CertificateError;
use krablet_tokens::TokenError;

#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    /// Printed as the event `FailedMount` says it.
    #[error("MountVolume.{} failed for volume {volume:?} : {cause}", .cause.step())]
    SetUp { volume: String, cause: SetUpError },
    /// The same for a device.
    #[error("MapVolume.{} failed for volume {volume:?} : {cause}", .cause.device_step())]
    SetUpDevice { volume: String, cause: SetUpError },
    /// The persistent volume is for other nodes.
    #[error("{}.NodeAffinity check failed for volume {volume:?} : no matching NodeSelectorTerms", if *.device { "MapVolume" } else { "MountVolume" })]
    NodeAffinity { volume: String, device: bool },
    /// What a volume refers to is not there, or not fit for it.
    #[error(
        "Unable to attach or mount volumes: unmounted volumes=[{volume}], unattached volumes=[], failed to process volumes=[{volume}]: {cause}"
    )]
    Process { volume: String, cause: String },
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

/// Everything that keeps a pod from its volumes.
#[derive(Debug)]
pub struct VolumeErrors(pub Vec<VolumeError>);

impl fmt::Display for VolumeErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&texts.join("; "))
    }
}

impl std::error::Error for VolumeErrors {}

impl From<VolumeError> for VolumeErrors {
    fn from(error: VolumeError) -> Self {
        Self(vec![error])
    }
}

/// Why one volume could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum SetUpError {
    #[error("volumes of kind {0} are not supported")]
    UnsupportedKind(&'static str),
    #[error(
        "git-repo volume plugin has been disabled; if necessary, it may be re-enabled by enabling the feature-gate `GitRepoVolumeDriver`"
    )]
    GitRepo,
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
    #[error(transparent)]
    Object(#[from] ObjectError),
    #[error(transparent)]
    Token(#[from] TokenError),
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    #[error("configmap references non-existent config key: {0}")]
    NoConfigKey(String),
    #[error("references non-existent secret key: {0}")]
    NoSecretKey(String),
    /// What the downward API cannot tell.
    #[error("{0}")]
    Downward(String),
    #[error("{0}")]
    TrustBundle(String),
    /// A path inside a volume that cannot be.
    #[error("invalid path: {0}")]
    Path(String),
    #[error("invalid container mount point {0}")]
    MountPoint(String),
    #[error("{0}")]
    HugePages(String),
    /// Of several sources of one volume.
    #[error("[{}]", .0.join(", "))]
    Several(Vec<String>),
    #[error("volume uses the ReadWriteOncePod access mode and is already in use by another pod")]
    InUse,
    /// A program of the host failed, or is not there.
    #[error("{0}")]
    Tool(String),
    /// What the spec names is not there, or is something else.
    #[error("{0}")]
    NewMounter(String),
    /// A disk did not come to the node.
    #[error("{0}")]
    Attach(String),
    /// A disk is there, and could not be mounted on the node.
    #[error("{0}")]
    Device(String),
    /// The same, and what is on it is not what the volume says.
    #[error("{0}")]
    OtherFileSystem(String),
    /// The pod is to end, and waits for nothing.
    #[error("the pod is to end")]
    Cancelled,
    #[error("{path} did not answer within {deadline:?}; its file system may hang")]
    Deadline { path: String, deadline: Duration },
    #[error("{0}")]
    Io(#[from] io::Error),
}

impl SetUpError {
    /// Which step of the way failed, as upstream names it.
    fn step(&self) -> &'static str {
        match self {
            SetUpError::NewMounter(_) => "NewMounter initialization",
            SetUpError::Attach(_) => "WaitForAttach",
            SetUpError::Device(_) | SetUpError::OtherFileSystem(_) => "MountDevice",
            _ => "SetUp",
        }
    }

    /// The same on the way of a device.
    fn device_step(&self) -> &'static str {
        match self {
            SetUpError::NewMounter(_) => "NewBlockVolumeMapper initialization",
            SetUpError::Attach(_) => "WaitForAttach",
            _ => "SetUpDevice",
        }
    }
}
