//! The container runtime, spoken to in CRI v1. Nothing else in the house speaks gRPC to it: the
//! others see two traits, plain messages and one error.

pub mod calls;
mod checkpoint;
mod client;
mod endpoint;
mod error;
mod images;
pub mod service;
mod stats;
mod streaming;

pub use calls::{Call, CallLog, CallStats, InFlight};
pub use client::{Deadlines, MAX_EXEC_OUTPUT, MAX_MESSAGE, RuntimeClient};
pub use endpoint::{Endpoint, EndpointError};
pub use error::{Code, Error};
pub use images::ImageClient;
pub use service::{EventStream, ImageService, Result, RuntimeService, StreamingService};
pub use stats::StatsService;

/// The interface's messages, generated from `proto/runtime.proto`.
#[allow(clippy::all, clippy::unwrap_used, clippy::expect_used)]
pub mod v1 {
    tonic::include_proto!("runtime.v1");

    /// Credentials are never printed.
    impl std::fmt::Debug for AuthConfig {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.debug_struct("AuthConfig")
                .field("server_address", &self.server_address)
                .finish_non_exhaustive()
        }
    }
}
