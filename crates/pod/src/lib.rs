//! The vocabulary of a node: what a pod is called, what marks it carries, what the runtime was
//! seen to hold of it. Every other room speaks these words; this room knows none of them.

pub mod allocation;
pub mod by_name;
pub mod cgroups;
pub mod containers;
pub mod downward;
pub mod hash;
pub mod identity;
pub mod labels;
pub mod marks;
pub mod observed;
pub mod paths;
pub mod qos;
pub mod quantity;
pub mod resources;
pub mod storage;
mod tree;
mod trim;

pub use allocation::{ActuatedContainer, Actuation, AdmittedPods, Allocation};
pub use by_name::ByName;
pub use identity::{ContainerId, FullName, PodRef, PodUid, SandboxId, Ticket};
pub use k8s_openapi::api::core::v1 as api;
pub use quantity::Quantity;
pub use tree::tree;
pub use trim::trim;
