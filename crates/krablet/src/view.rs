//! The agent as its HTTP doors see it.

mod scrape;
#[cfg(test)]
mod tests;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use krablet_agent::AgentHandle;
use krablet_config::KubeletConfiguration;
use krablet_cri::CallLog;
use krablet_events::Recorder;
use krablet_identity::IdentityHandle;
use krablet_linux::WallClock;
use krablet_metrics::{Metrics, ProcessStats};
use krablet_pod::PodRef;
use krablet_pod::api::Pod;
use krablet_server::NodeView;
use krablet_stats::Storage;
use tokio::sync::watch;

use crate::stats::Figures;

use scrape::{CertificateNumbers, ClusterNumbers, Moment, ServingNumbers};
pub use scrape::{ClusterCounts, Facts};

const CHECKS: [&str; 3] = ["ping", "log", "syncloop"];

pub struct AgentView {
    handle: AgentHandle,
    recorder: Recorder,
    clock: Arc<dyn WallClock>,
    calls: CallLog,
    facts: Facts,
    /// The node's own certificate, if it has one.
    certificate: Option<IdentityHandle>,
    cluster: Option<ClusterCounts>,
    /// The one it shows to others, once the cluster is asked for it.
    serving: OnceLock<IdentityHandle>,
    figures: Option<Arc<Figures>>,
    /// The sync loop must have turned within this time.
    turn_limit: Duration,
}

impl AgentView {
    pub fn new(
        handle: AgentHandle,
        recorder: Recorder,
        clock: Arc<dyn WallClock>,
        calls: CallLog,
        facts: Facts,
        config: &KubeletConfiguration,
    ) -> Self {
        let sync = config.sources.sync_frequency.to_std().unwrap_or_default();
        Self {
            handle,
            recorder,
            clock,
            calls,
            facts,
            certificate: None,
            cluster: None,
            serving: OnceLock::new(),
            figures: None,
            turn_limit: turn_limit(sync),
        }
    }

    fn with_status(&self, pod: Arc<Pod>) -> Pod {
        let mut pod = Arc::unwrap_or_clone(pod);
        if let Some(status) = self.handle.status.status(&PodRef::of(&pod).uid) {
            pod.status = Some((*status).clone());
        }
        pod
    }

    pub fn with_certificate(self, certificate: Option<IdentityHandle>) -> Self {
        Self {
            certificate,
            ..self
        }
    }

    pub fn with_cluster(self, cluster: Option<ClusterCounts>) -> Self {
        Self { cluster, ..self }
    }

    /// What is counted where it happens.
    pub fn counted(&self) -> &Metrics {
        &self.handle.metrics
    }

    pub fn with_figures(self, figures: Arc<Figures>) -> Self {
        Self {
            figures: Some(figures),
            ..self
        }
    }

    /// What is counted of the certificate that the HTTPS port shows.
    pub fn count_serving(&self, certificate: IdentityHandle) {
        // There is one such port, and it is opened once.
        let _ = self.serving.set(certificate);
    }
}

/// How long the sync loop may go without a turn: it sees to each pod once in a sync period.
fn turn_limit(sync: Duration) -> Duration {
    (2 * sync).max(Duration::from_secs(300))
}

#[async_trait]
impl NodeView for AgentView {
    fn pods(&self) -> Vec<Pod> {
        let all = self.handle.desired.all().into_iter();
        all.map(|pod| self.with_status(pod)).collect()
    }

    fn pod(&self, namespace: &str, name: &str) -> Option<Pod> {
        let named = |pod: &Arc<Pod>| {
            let meta = &pod.metadata;
            meta.name.as_deref() == Some(name) && meta.namespace.as_deref() == Some(namespace)
        };
        let pod = self.handle.desired.all().into_iter().find(named)?;
        Some(self.with_status(pod))
    }

    fn pod_changes(&self) -> watch::Receiver<u64> {
        self.handle.status.changes()
    }

    fn ending(&self) -> Vec<Pod> {
        let all = self.handle.desired.ending_pods().into_iter();
        all.map(|pod| self.with_status(pod)).collect()
    }

    fn ends(&self) -> Option<watch::Receiver<u64>> {
        Some(self.handle.desired.ends())
    }

    fn events(&self) -> &Recorder {
        &self.recorder
    }

    fn failing_checks(&self) -> Vec<(&'static str, String)> {
        let since = self.handle.turn.borrow().elapsed();
        if since <= self.turn_limit {
            return Vec::new();
        }
        vec![(
            "syncloop",
            format!("sync Loop took longer than expected: no turn for {since:?}"),
        )]
    }

    fn check_names(&self) -> &'static [&'static str] {
        &CHECKS
    }

    async fn metrics(&self) -> String {
        let storage = match &self.figures {
            Some(figures) => figures.storage().await,
            None => Storage::default(),
        };
        let mut moment = Moment::of(&self.handle, self.calls.snapshot(), self.clock.now());
        moment.certificate = self.certificate.as_ref().map(CertificateNumbers::of);
        moment.serving = self.serving.get().map(ServingNumbers::of);
        moment.cluster = self.cluster.as_ref().map(ClusterNumbers::of);
        moment.storage = storage;
        scrape::metrics(&self.facts, &moment, &self.handle.metrics)
    }

    fn probe_metrics(&self) -> String {
        let process = ProcessStats::read().ok();
        scrape::probe_metrics(&self.handle.probes.metrics(), process.as_ref())
    }

    fn now(&self) -> Timestamp {
        self.clock.now()
    }
}
