//! Configuration of the agent: the file, the drop-ins, the flags, the feature gates, and whether it all holds.
//!
//! One call, [`load`], takes the command line and gives back a complete configuration or every reason why there is
//! none. Nothing here acts on the node; reading files goes through [`ConfigFiles`]. The order in which values win, from
//! weakest to strongest: built-in defaults, the file of `--config`, the drop-ins of `--config-dir`, the other flags.
//!
//! Three tables are the single source for code and documentation: the fields ([`types`]), the flags ([`flags`]) and
//! the feature gates ([`gates`]).

mod decode;
mod docs;
mod duration;
mod files;
pub mod flags;
pub mod gates;
mod hint;
mod inert;
mod labels;
mod load;
mod problem;
mod quantity;
mod read;
pub mod types;
mod validate;

pub use decode::FieldDoc;
pub use docs::{render_configuration_md, render_feature_gates_md, render_flags_md, render_help};
pub use duration::{Duration, DurationError};
pub use files::{ConfigFiles, StdFiles};
pub use flags::{FlagError, KubeletFlags};
pub use gates::{FeatureGates, Gate};
pub use load::{Loaded, Outcome, VersionForm, load};
pub use problem::{ConfigError, Origin, Problem, Warning};
pub use quantity::Quantity;
pub use types::KubeletConfiguration;
pub use validate::{HostFacts, validate, validate_flags, validate_host};

/// The Kubernetes version whose behaviour this follows.
pub const KUBERNETES_VERSION: &str = "v1.36.4";
