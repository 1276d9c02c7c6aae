//! Pods' volumes and pods' directories on disk: what is made for a pod before it starts, kept up to date while it
//! runs, and taken away after it ended.
//!
//! Everything that will be put under a pod's directory is recorded there before it is made, so
//! taking it away is exact after a crash between any two steps. Nothing outside the pod's
//! directory is ever removed, no mount point is entered, no link followed.

mod address;
mod anchors;
mod attempt;
mod chap;
mod claims;
mod cluster;
mod content;
mod counting;
mod detach;
mod device;
mod disk;
mod earlier;
mod empty_dir;
mod error;
mod fabric;
mod grow;
mod holders;
mod host_path;
mod image;
mod in_use;
mod interface;
mod iscsi;
mod listing;
mod local;
mod nfs;
mod node_mount;
mod ownership;
mod parts;
mod payload;
mod plugin;
mod record;
mod registry;
mod resolve;
mod session;
mod tear_down;
#[cfg(test)]
mod testing;
mod tool;
mod trust;
mod turns;
mod used;
mod users;
mod volumes;
mod waiting;
mod writer;

pub use attempt::{Attempt, News};
pub use cluster::{ClusterObjects, KubeObjects, kept_names};
pub use counting::Census;
pub use error::{SetUpError, VolumeError, VolumeErrors};
pub use plugin::{
    MountedVolume, PodMounts, Source, Standing, VolumePlugin, VolumeRequest, kind_of,
};
pub use record::{RECORD_FILE, Record, RecordedVolume};
pub use trust::{TrustBundle, TrustBundles, trust_bundles_of};
pub use volumes::{SetUp, Volumes, VolumesConfig, VolumesDeps};
