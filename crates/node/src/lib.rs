//! The node in the cluster: its Node object, its heartbeat, its status.
//!
//! What is said of the node is decided by pure functions ([`initial_node`], [`updated_node`],
//! [`node_patch`], [`changed_enough`], [`renewed`]) from what is known: the machine, the runtime,
//! the health of both, the configuration. Three tasks do the rest: [`NodeTask`] registers, reports
//! and follows the Node object; [`LeaseTask`] renews the lease whatever else goes on;
//! [`RuntimeWatch`] asks the runtime how it is.

mod addresses;
mod calls;
mod conditions;
mod config;
mod error;
mod health;
mod host_ips;
mod initial;
mod labels;
mod lease;
mod patch;
mod pressure;
mod reporter;
pub mod resources;
mod runtime;
mod sight;
mod startup;
mod status;
mod task;

pub use addresses::node_ips;
pub use conditions::{NodeEvent, Pressures, READY};
pub use config::{NodeConfig, Periods, PodLimit, Registration};
pub use error::NodeError;
pub use health::{
    Health, HealthBoard, ObserverHealth, OwedAnswer, RuntimeCondition, RuntimeConditions,
    RuntimeHealth,
};
pub use host_ips::{OwnIps, host_ips};
pub use initial::{initial_node, reconcile_existing};
pub use lease::{LeaseConfig, LeaseDeps, LeaseTask, renewed};
pub use patch::{changed_enough, node_patch, status_patch};
pub use pressure::{Observation, Observations, PressureConfig, PressureWatch, Signal, Signals};
pub use resources::{Reservations, Resources, allocatable, capacity};
pub use runtime::{
    Handler, RuntimeFacts, RuntimeReport, RuntimeStatus, RuntimeWatch, RuntimeWatchConfig,
};
pub use startup::{Startup, StartupMoments};
pub use status::{Image, Images, KUBELET_VERSION, StatusInputs, top_images, updated_node};
pub use task::{NodeDeps, NodeHandle, NodeInputs, NodeTask};
