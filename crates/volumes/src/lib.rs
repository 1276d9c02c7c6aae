//! Pods' volumes and pods' directories on disk: what is made for a pod before it starts and taken
//! away after it ended.
//!
//! Everything that will be put under a pod's directory is recorded there before it is made, so
//! taking it away is exact after a crash between any two steps. Nothing outside the pod's
//! directory is ever removed, no mount point is entered, no link followed.

mod empty_dir;
mod error;
mod host_path;
mod plugin;
mod record;
mod tear_down;
mod volumes;

pub use empty_dir::EmptyDir;
pub use error::{SetUpError, VolumeError};
pub use host_path::HostPath;
pub use plugin::{MountedVolume, PodMounts, VolumePlugin, VolumeRequest, kind_of};
pub use record::{RECORD_FILE, Record, RecordedVolume};
pub use volumes::{Volumes, VolumesConfig, VolumesDeps};
