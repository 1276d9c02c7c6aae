//! Does the configuration hold? Every rule is looked at, and everything found is reported at once.
//!
//! Besides the rules upstream checks at this point, those are here that would make it stop a moment later: thresholds,
//! reservations and policies that cannot be parsed.

mod eviction;
mod flags;
mod host;
mod node;
mod pods;
mod process;
mod server;

pub use flags::validate_flags;
pub use host::{HostFacts, validate_host};

use crate::gates::FeatureGates;
use crate::problem::Problem;
use crate::types::KubeletConfiguration;

/// Collects problems.
#[derive(Debug, Default)]
struct Checks {
    found: Vec<Problem>,
}

impl Checks {
    fn refuse(&mut self, field: impl Into<String>, reason: impl Into<String>) {
        self.found.push(Problem::new(field, reason));
    }

    /// Refuses unless `holds`.
    fn require(&mut self, holds: bool, field: &str, reason: impl FnOnce() -> String) {
        if !holds {
            self.refuse(field, reason());
        }
    }

    fn not_negative(&mut self, field: &str, value: i64) {
        self.require(value >= 0, field, || {
            format!("{value} must not be negative")
        });
    }

    fn between(&mut self, field: &str, value: i64, low: i64, high: i64) {
        self.require((low..=high).contains(&value), field, || {
            format!("{value} must be between {low} and {high}")
        });
    }

    fn one_of(&mut self, field: &str, value: &str, allowed: &[&str]) {
        self.require(allowed.contains(&value), field, || {
            format!("{value:?} must be one of {}", allowed.join(", "))
        });
    }
}

/// Every problem of a complete configuration, each with its field and reason.
#[must_use]
pub fn validate(config: &KubeletConfiguration, gates: &FeatureGates) -> Vec<Problem> {
    let mut checks = Checks::default();
    server::check(config, gates, &mut checks);
    node::check(config, &mut checks);
    node::check_resources(config, gates, &mut checks);
    pods::check(config, &mut checks);
    pods::check_images(config, gates, &mut checks);
    pods::check_restarts(config, gates, &mut checks);
    host::check_user_namespaces(config, &mut checks);
    eviction::check(config, &mut checks);
    process::check(config, gates, &mut checks);
    process::check_shutdown(config, gates, &mut checks);
    checks.found
}

/// Things that are allowed but worth a word.
pub(crate) fn notes(config: &KubeletConfiguration) -> Vec<String> {
    let mut notes = server::notes(config);
    notes.extend(node::notes(config));
    notes
}
