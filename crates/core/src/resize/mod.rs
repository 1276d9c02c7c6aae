//! Resizing pods in place: whether new resources may be had ([`PodAdmission::resize`]), who of those
//! that wait is asked first ([`order`]), what has to be done to the containers and the pod's cgroup
//! and in which order ([`plan`]), and what is told of it ([`ResizeConditions`], [`message`]).
//!
//! Three sets of resources are kept apart: the *desired* ones of the spec, the *allocated* ones the node
//! has promised, and the *actuated* ones the containers were last given. Everything but the decision
//! itself looks at the allocated ones.
//!
//! [`PodAdmission::resize`]: crate::admission::PodAdmission::resize

mod conditions;
mod message;
mod order;
mod plan;
mod request;
mod size;
#[cfg(test)]
mod tests;

pub use conditions::{IN_PROGRESS, PENDING, ResizeConditions};
pub use message::message;
pub use order::{Waiting, order};
pub use plan::{MemoryUse, ResizeStep, check_memory, needs_memory_check, plan};
pub use request::{Infeasible, ResizeSettings, infeasible, requested};
pub use size::{
    ContainerResize, ContainerToUpdate, PodResizes, Resource, Size, actuated, container_resize,
    given, in_progress, is_whole_pod_resized, started_with,
};

/// Reasons of events.
pub const STARTED: &str = "ResizeStarted";
pub const COMPLETED: &str = "ResizeCompleted";
pub const DEFERRED: &str = "ResizeDeferred";
pub const INFEASIBLE: &str = "ResizeInfeasible";
pub const ERROR: &str = "ResizeError";
