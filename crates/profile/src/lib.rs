//! Where this process spends its processor time, in the format of pprof. Nothing is set up before the first recording
//! begins, and nothing happens between two of them.
//!
//! A recording asks the kernel for a signal after every hundredth of a second of processor time, whichever thread used it,
//! and writes down the stack that the signal finds. Stacks are addresses: the binary that users have is stripped, so names
//! come from a copy of it that is not (`go tool pprof COPY PROFILE`), which the build id tells apart from others.

mod encode;
mod maps;
pub mod proto;
mod record;
mod signal;

use std::io;
use std::time::Duration;

pub use encode::{Taken, encode};
pub use maps::{Mapping, mappings};
pub use record::{Recording, Samples};

/// Processor time between two samples: a hundred of them a second of a busy processor, as Go takes them.
pub const PERIOD: Duration = Duration::from_millis(10);

#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    #[error("cpu profiling already in use")]
    Busy,
    #[error("the kernel does not count processor time: {0}")]
    Kernel(io::Error),
    #[error("reading the mappings of this process: {0}")]
    Mappings(io::Error),
    #[error("packing the profile: {0}")]
    Packing(io::Error),
}
