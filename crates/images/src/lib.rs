//! Images by name and by right: what a reference means, which credentials a registry may be shown for it, and
//! who may use what was pulled with them. Pulling itself is the runtime's room.
//!
//! Passwords and tokens are [`Hidden`]: nothing here prints one, and no error repeats what it read.

mod docker_config;
mod hidden;
mod keychain;
mod keyring;
mod location;
mod node_config;
pub mod provider;
pub mod records;
pub mod reference;
mod secrets;

pub use docker_config::{DockerConfig, DockerConfigError, Login, read_config_json, read_dockercfg};
pub use hidden::Hidden;
pub use keychain::{Keychain, fingerprint};
pub use keyring::{Coordinates, Credential, Keyring, Source};
pub use location::pattern_means;
pub use node_config::{NodeConfig, SearchPaths};
pub use provider::ForPod;
pub use records::{PullIntent, PullRecords, Standing, Verification};
pub use secrets::{BadSecret, keyring_of};
