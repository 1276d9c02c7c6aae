//! The API server as the agent sees it: calls, watches, what can go wrong. Everything above this
//! speaks to [`Api`]; the real one is an HTTP/2 client, a simulated one stands in tests.

mod api;
pub mod client;
pub mod credentials;
mod error;
pub mod kubeconfig;
mod limiter;
pub mod paths;
pub mod pem;
pub mod reflector;
mod single;
mod typed;

pub use api::{Api, Call, Detail, Pace, PatchKind, Priority, Verb, Watch};
pub use client::{Environment, HttpApi, HttpApiConfig, Proxy, Server, Trust};
pub use credentials::{Credentials, Identity, IdentityReceiver, load_identity};
pub use error::ApiError;
pub use kubeconfig::{Kubeconfig, KubeconfigError};
pub use limiter::{Backoff, Rate};
pub use reflector::{OnDemand, OnDemandTask, on_demand};
pub use reflector::{Reach, Reflector, ReflectorConfig, Sink, Slim};
pub use typed::{Kube, WatchEvent, decode_watch_line};
