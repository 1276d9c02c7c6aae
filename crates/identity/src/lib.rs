//! The node's identity at the API server: its client certificate, from the first request to the
//! last renewal.
//!
//! [`begin`] reads what there is and says how to begin: with the kubeconfig, or by joining with
//! the bootstrap kubeconfig. [`rotation::build`] makes the task that joins if need be, publishes
//! the certificate to the client, and renews it. Files and names are the kubelet's, so that a node
//! can be handed over and back.

mod bootstrap;
mod changes;
mod csr;
mod error;
mod join;
mod pair;
mod request;
pub mod rotation;
mod schedule;
pub mod serving;
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
pub use join::Join;
pub use pair::{Pair, Validity};
pub use rotation::{First, IdentityHandle, PublishedKey, Rotation, RotationDeps};
pub use store::{CertStore, PairFiles, Stored};
