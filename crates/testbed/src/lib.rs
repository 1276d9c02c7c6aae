//! The test bed: real parts, brought up in isolation and taken down without a trace.
//!
//! [`Bed::up`] gives a test a containerd of its own (root, state, socket, network, cgroup parent),
//! [`ControlPlane::up`] a cluster of its own for agents on beds to join, and [`eventually`] waits
//! for a state with a deadline and a useful last word. [`vm`] boots a machine with systemd and
//! cgroup v2 under software emulation. What all of this is made of is built on first use by
//! [`parts`], [`packages`] and [`images`] and kept in a cache outside the source tree.

#![allow(
    clippy::disallowed_methods,
    reason = "the test bed waits for real processes on the real clock"
)]

mod agent;
mod archive;
mod bed;
mod cache;
mod control_plane;
mod eventually;
mod http;
pub mod images;
mod keeper;
mod kernel;
mod layout;
mod leftovers;
pub mod packages;
pub mod parts;
mod ports;
mod proc;
mod raw_pod;
mod registry;
mod standalone;
pub mod vm;

pub use agent::{Home, Krablet, KrabletOptions, program as krablet_program};
pub use bed::{Bed, BedOptions, Containerd};
pub use cache::root as cache_root;
pub use control_plane::{
    ClientCertificate, Component, ControlPlane, ControlPlaneOptions, Kubeconfig, Pair, Trust, User,
};
pub use eventually::{eventually, eventually_or};
pub use http::{Response, get};
pub use keeper::sweep;
pub use leftovers::leftovers;
pub use ports::free as free_port;
pub use proc::{cpu_time, rss};
pub use raw_pod::RawPod;
pub use registry::{Access, Manners, Registry};
pub use standalone::{interrupted, standalone};
