//! The API server as the agent sees it: calls, watches, what can go wrong. Everything above this
//! speaks to [`Api`]; the real one is an HTTP/2 client, a simulated one stands in tests.

mod api;
mod error;
pub mod paths;
mod typed;

pub use api::{Api, Call, PatchKind, Priority, Verb, Watch};
pub use error::ApiError;
pub use typed::{Kube, WatchEvent, decode_watch_line};
