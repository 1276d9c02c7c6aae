//! The agent's HTTP doors: health on loopback, the read-only port, the HTTPS door for those who may, and a
//! unix socket for krablet's own commands. Handlers see the node through [`NodeView`] and [`Inside`].

#[cfg(test)]
extern crate self as krablet_server;

mod answers;
mod control;
mod counting;
mod guests;
mod health;
mod listen;
mod rows;
mod secure;
mod stats;
mod web;

use std::sync::Arc;

use async_trait::async_trait;
use krablet_events::{Event, Recorder};
use krablet_pod::api::Pod;
use tokio::sync::watch;

pub use control::{EventLine, serve_control};
pub use health::HealthRecord;
pub use listen::{ListenError, Listener};
pub use rows::{PodRow, pod_rows};
pub use secure::{
    About, Access, Checkpointer, Checkpoints, Debug, Inside, NodeLogs, SecureParts, ServingPair,
    SetVerbosity, TlsLimits, Version, serve_secure,
};
pub use stats::{Pieces, Statistics};
pub use web::{OpenParts, serve_healthz, serve_read_only};

/// What the doors may see of the node.
#[async_trait]
pub trait NodeView: Send + Sync {
    /// Desired pods, each with the status this node gives it.
    fn pods(&self) -> Vec<Pod>;
    /// One of them.
    fn pod(&self, namespace: &str, name: &str) -> Option<Pod>;
    /// Rings when a pod or its status changes.
    fn pod_changes(&self) -> watch::Receiver<u64>;
    /// Pods that no source wants any more and that have not ended yet, for tables.
    fn ending(&self) -> Vec<Pod> {
        Vec::new()
    }
    /// Rings when such a pod comes, and when it has ended.
    fn ends(&self) -> Option<watch::Receiver<u64>> {
        None
    }
    fn events(&self) -> &Recorder;
    /// Failing health checks by name, with the reason; empty when all is well.
    fn failing_checks(&self) -> Vec<(&'static str, String)>;
    /// The names of all health checks.
    fn check_names(&self) -> &'static [&'static str];
    /// The text of `/metrics`.
    async fn metrics(&self) -> String;
    /// The text of `/metrics/probes`.
    fn probe_metrics(&self) -> String;
    fn now(&self) -> jiff::Timestamp;
}

/// The view as handlers hold it.
pub type View = Arc<dyn NodeView>;

/// The newest event of each pod, for tables.
pub(crate) fn last_events(recorder: &Recorder) -> std::collections::BTreeMap<String, Event> {
    let mut last = std::collections::BTreeMap::new();
    for event in recorder.since(0) {
        if let Some(pod) = event.subject.pod() {
            last.insert(pod.uid.to_string(), event);
        }
    }
    last
}
