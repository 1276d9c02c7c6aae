//! State files that survive a kill at any instruction: what the agent knew, for its next life.
//!
//! A file is replaced whole or not at all, carries its version and a checksum, and is only trusted
//! when both are right. One that cannot be trusted is set aside under another name, told of in
//! the log, and never fatal: the agent then starts as if there had been none.

mod aside;
mod contents;
mod envelope;
mod error;
mod file;
mod saver;
mod shelf;
pub mod upstream;

pub use contents::{DesiredPods, KnownServices};
pub use envelope::State;
pub use error::{CheckpointError, Flaw};
pub use file::{Checkpoint, Loaded};
pub use krablet_pod::{AdmittedPods, Allocation};
pub use saver::{Saved, Saver, SaverTask, Store, saver};
pub use shelf::{Shelf, ShelfTask, shelf};

/// No state file is larger. More than a thousand pods of the largest size the API takes would be.
pub const SIZE_LIMIT: usize = 64 << 20;

/// Only the agent reads these: pods carry what their owners put into them.
const MODE: u32 = 0o600;
