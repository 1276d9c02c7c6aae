//! The simulated world: a container runtime, an API server, files, cgroups, network and clock in
//! memory, in which the agent runs unchanged, in virtual time and by a seed.
//!
//! [`SimRuntime`] without weather is also the hollow node's runtime. [`run_seed`] runs one schedule:
//! a random story of pods, faults, crashes and clock steps, under [`Law`]s that are checked all
//! the time. In every other one the node belongs to a cluster. Two runs of one seed leave the same
//! trace.

mod api;
mod clock;
mod cluster;
mod laws;
mod mutation;
mod net;
mod node;
mod pods;
mod rules;
mod runtime;
mod schedule;
mod sources;
mod story;
mod trace;
mod world;

use std::cell::Cell;
use std::sync::Once;

pub use clock::SimClock;
pub use laws::{Broken, Law};
pub use mutation::Mutation;
pub use net::{Answers, SimNet};
pub use node::roomy_node;
pub use runtime::{
    CallInfo, Calm, Fate, Instance, KILLED, Life, Machine, Occurrence, Plan, Sandbox, SimOptions,
    SimRuntime, Weather,
};
pub use schedule::{Options, Report};

thread_local! {
    static PANICKED: Cell<bool> = const { Cell::new(false) };
}

/// A task that panics is caught by whoever owns it; here it must not go unnoticed.
fn notice_panics() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            PANICKED.set(true);
            before(info);
        }));
    });
}

/// Runs the schedule of a seed from its beginning to its end, on this thread.
pub fn run_seed(seed: u64, options: Options) -> std::io::Result<Report> {
    notice_panics();
    PANICKED.set(false);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()?;
    let mut report = runtime.block_on(schedule::run(seed, options));
    if PANICKED.get() {
        report.broken.get_or_insert(Broken {
            law: Law::LivesOn,
            how: "a part of the agent panicked".to_owned(),
        });
    }
    Ok(report)
}
