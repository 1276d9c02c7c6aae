//! End-to-end tests: the real binary on a real containerd.
//!
//! The scenarios of a node by itself are in `tests/e2e`, those of a node of a real control plane in
//! `tests/cluster`. Here is what they stand on: [`harness`] runs them, many of
//! them side by side on one bed with one agent, those that disturb others on beds of their own;
//! [`Stage`] is a bed with an agent and the questions scenarios ask of it; [`Member`] is one that
//! has joined a control plane.
//!
//! All of them: `cargo test -p krablet-e2e`; some: `cargo test -p krablet-e2e -- probes:: crash_loop`.
//! `KRABLET_BIN` names the binary under test; without it the newest build is taken.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test may fail by panicking"
)]

pub mod cluster_stage;
pub mod harness;
pub mod manifest;
pub mod moments;
pub mod proxy;
pub mod stage;
pub mod status;
pub mod web;

pub use cluster_stage::Member;
pub use harness::Scenario;
pub use stage::{LONG, Stage};
