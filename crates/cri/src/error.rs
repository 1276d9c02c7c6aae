//! What can go wrong with a call to the runtime: one error, with the code the runtime gave.

use std::fmt;

/// The gRPC status codes.
pub use tonic::Code;

/// A failed call, printed as gRPC clients print it, so that texts in events and statuses are the
/// ones people search for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("rpc error: code = {} desc = {message}", CodeName(*.code))]
pub struct Error {
    /// The RPC's name, as in `ContainerStatus`.
    pub call: &'static str,
    pub code: Code,
    pub message: String,
}

impl Error {
    pub fn new(call: &'static str, code: Code, message: impl Into<String>) -> Self {
        Self {
            call,
            code,
            message: message.into(),
        }
    }

    /// The deadline passed on our side.
    pub fn deadline(call: &'static str) -> Self {
        Self::new(call, Code::DeadlineExceeded, "context deadline exceeded")
    }

    pub fn is_not_found(&self) -> bool {
        self.code == Code::NotFound
    }

    pub fn is_unimplemented(&self) -> bool {
        self.code == Code::Unimplemented
    }

    /// The runtime could not be reached.
    pub fn is_unavailable(&self) -> bool {
        self.code == Code::Unavailable
    }

    /// The call ran out of time; whether it had its effect is not known.
    pub fn is_deadline(&self) -> bool {
        self.code == Code::DeadlineExceeded
    }
}

/// The codes' usual spelling, which differs from Rust's in two of them.
struct CodeName(Code);

impl fmt::Display for CodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Code::Ok => f.write_str("OK"),
            Code::Cancelled => f.write_str("Canceled"),
            other => write!(f, "{other:?}"),
        }
    }
}
