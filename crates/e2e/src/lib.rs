//! End-to-end tests: the real binary on a real containerd.
//!
//! The scenarios are in `tests/e2e`. Here is what they stand on: [`harness`] runs them, many of
//! them side by side on one bed with one agent, those that disturb others on beds of their own;
//! [`Stage`] is a bed with an agent and the questions scenarios ask of it.
//!
//! All of them: `cargo test -p krablet-e2e`; some: `cargo test -p krablet-e2e -- probes:: crash_loop`.
//! `KRABLET_BIN` names the binary under test; without it the newest build is taken.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test may fail by panicking"
)]

pub mod harness;
pub mod manifest;
pub mod moments;
pub mod proxy;
pub mod stage;
pub mod status;
pub mod web;

pub use harness::Scenario;
pub use stage::{LONG, Stage};
