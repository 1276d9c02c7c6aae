//! The runtime room over an in-memory runtime: orders of work, hooks, grace, images, failures.

// Panicking is how a test fails.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod bench;
mod environment;
mod failures;
mod files;
mod given_up;
mod handlers;
mod image_gc;
mod images;
mod kill;
mod order;
mod pull_secrets;
mod resize;
mod starts;
mod user_namespaces;
mod world;
