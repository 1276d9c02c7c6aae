//! The machine behind narrow traits: files, mounts, cgroups, the wall clock. Each has a real
//! implementation here; [`fake`] holds those that live in memory, for tests and for the simulated
//! world.

mod beneath;
pub mod cgroup_names;
pub mod cgroups;
pub mod clock;
mod disk;
pub mod facts;
mod failure;
pub mod fake;
pub mod files;
mod first_writes;
mod group;
mod holders;
pub mod mountinfo;
pub mod mounts;
mod no_swap;
mod patient;
mod pending;
mod replace;
mod resident;
pub mod space;
mod sub_path;
mod threads;
mod tools;
mod tree;
mod tree_write;
mod trees;
mod walk;
mod watch;

pub use cgroup_names::{CgroupDriver, CgroupNames};
pub use cgroups::{CgroupVersion, Cgroups, HostCgroups};
pub use clock::{SystemClock, WallClock};
pub use facts::{HostFacts, HostIps, Machine, MachineFacts};
pub use files::{Entry, EntryKind, Files, HostFiles, regular_files};
pub use first_writes::{FirstWrites, InotifyWrites, NoWrites};
pub use mounts::{HostMounts, Mount, Mounts};
pub use no_swap::tmpfs_stays_in_memory;
pub use patient::PatientMounts;
pub use pending::{NoAnswer, Pending};
pub use resident::release_file_pages;
pub use space::{DiskSpace, HostSpace, Space};
pub use sub_path::{PartError, PartStep};
pub use threads::{InTurn, Threads};
pub use tools::{HostTools, ToolOutput, Tools};
pub use trees::{GroupShare, Slow, TreeFile, TreeFiles, Trees};
pub use watch::{DirectoryWatch, InotifyWatch, WatchStream};
