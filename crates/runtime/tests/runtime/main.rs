//! The runtime room over an in-memory runtime: orders of work, hooks, grace, images, failures.

// Panicking is how a test fails.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod bench;
mod failures;
mod files;
mod images;
mod kill;
mod order;
mod starts;
mod world;
