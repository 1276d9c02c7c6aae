//! Doing: what the pure core decided about a pod is carried out here on the container runtime.
//! This room owns sandboxes, containers, images, lifecycle hooks and container logs; it turns a
//! pod's spec into the runtime's own words, and runs one pod's work in its fixed order.
//!
//! The runtime is the only truth: nothing here remembers what was started. A call that is dropped
//! half-way leaves what the next observation of the pod will show.

mod annotations;
pub mod config;
mod container_config;
mod counters;
pub mod dns;
mod env;
mod error;
mod expand;
mod gate;
pub mod gc;
mod handlers;
mod hooks;
mod hostname;
mod hosts;
pub mod image_volumes;
pub mod images;
mod kill;
mod mounts;
mod pod_runtime;
mod remove;
mod resize;
mod resources;
pub mod rotation;
mod runtime_class;
mod sandbox_config;
mod security;
mod start;
mod sync;
mod take_down;
mod user_namespaces;

pub use config::{
    DnsSettings, ImageDeps, ImageSettings, MemoryQos, NodeFacts, Paths, ResourceSettings,
    RuntimeConfig, RuntimeDeps,
};
pub use error::RuntimeError;
pub use handlers::Handlers;
pub use image_volumes::ImageWait;
pub use mounts::VolumeSource;
pub use pod_runtime::PodRuntime;
pub use resize::{PodCgroup, Sizes};
pub use runtime_class::{ClassTeller, RuntimeClasses};
pub use sync::{SyncInputs, SyncOutcome};
