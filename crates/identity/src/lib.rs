//! The node's identity: its client certificate at the API server, from the first request to the
//! last renewal, and the certificate it shows to those who connect to it.
//!
//! [`begin`] reads what there is and says how to begin: with the kubeconfig, or by joining with
//! the bootstrap kubeconfig. [`rotation::build`] makes the task that joins if need be, publishes
//! the certificate to the client, and renews it. Files and names are the kubelet's, so that a node
//! can be handed over and back.

mod bootstrap;
mod changes;
mod csr;
mod error;
mod figures;
mod join;
mod names;
mod pair;
mod request;
pub mod rotation;
mod schedule;
pub mod serving;
mod serving_rotation;
mod store;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

pub use bootstrap::{
    Begun, Decision, Own, Renewal, Spare, Start, StartFiles, begin, decide, should_adopt,
};
pub use changes::{Changes, watch};
pub use error::IdentityError;
pub use figures::{AGE_BOUNDS, Ages, IdentityHandle};
pub use join::Join;
pub use names::Names;
pub use pair::{Pair, Validity};
pub use rotation::{First, PublishedKey, Rotation, RotationDeps};
pub use serving_rotation::{SeenNode, ServingDeps, ServingRotation, ShownKey};
pub use store::{CertStore, PairFiles, Stored};
