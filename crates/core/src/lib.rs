//! Every decision of the node agent, as functions and small state machines from values to values:
//! no I/O, no clock, no lock, no task. What time it is, what was observed and what is desired are
//! handed in; what to do comes out.

pub mod actions;
pub mod admission;
pub mod backoff;
pub mod cgroups;
pub mod gc;
pub mod image_gc;
pub mod local_storage;
pub mod logs;
pub mod merge;
pub mod mirror;
pub mod mono;
pub mod patch;
pub mod probe;
pub mod resize;
pub mod restart;
pub mod start;
pub mod status;
pub mod termination;
pub mod user_namespaces;
pub mod worker;

pub use mono::Mono;
