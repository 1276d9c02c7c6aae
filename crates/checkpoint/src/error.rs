//! What can go wrong with a state file.

use std::io;

use crate::SIZE_LIMIT;

/// A state could not be written.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("state cannot be written as JSON: {0}")]
    Encode(#[from] serde_json::Error),
    #[error("state of {0} bytes is larger than the {SIZE_LIMIT} that would be read again")]
    TooLarge(usize),
}

/// Why a file is not the state it should be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Flaw {
    #[error("not a state file, or a torn one: {0}")]
    Malformed(String),
    #[error("written as version {0}, which is not known here")]
    Version(u64),
    #[error("holds {found:?}, not {expected:?}")]
    Kind {
        found: String,
        expected: &'static str,
    },
    #[error("the checksum does not match the content")]
    Checksum,
    #[error("the content is not understood: {0}")]
    Content(String),
}
