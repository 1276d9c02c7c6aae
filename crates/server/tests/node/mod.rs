//! A node on which nothing happens.

use std::sync::Arc;

use jiff::Timestamp;
use krablet_events::Recorder;
use krablet_pod::api::Pod;
use krablet_server::NodeView;
use tokio::sync::watch;

pub struct Quiet {
    recorder: Recorder,
    bell: watch::Sender<u64>,
    pods: Vec<Pod>,
}

impl Quiet {
    pub fn with(pods: Vec<Pod>) -> Arc<Self> {
        Arc::new(Self {
            recorder: Recorder::new(|| Timestamp::UNIX_EPOCH),
            bell: watch::Sender::new(0),
            pods,
        })
    }
}

impl NodeView for Quiet {
    fn pods(&self) -> Vec<Pod> {
        self.pods.clone()
    }
    fn pod(&self, _: &str, name: &str) -> Option<Pod> {
        let mut pods = self.pods().into_iter();
        pods.find(|pod| pod.metadata.name.as_deref() == Some(name))
    }
    fn pod_changes(&self) -> watch::Receiver<u64> {
        self.bell.subscribe()
    }
    fn events(&self) -> &Recorder {
        &self.recorder
    }
    fn failing_checks(&self) -> Vec<(&'static str, String)> {
        Vec::new()
    }
    fn check_names(&self) -> &'static [&'static str] {
        &["ping"]
    }
    fn metrics(&self) -> String {
        String::new()
    }
    fn probe_metrics(&self) -> String {
        String::new()
    }
    fn now(&self) -> Timestamp {
        Timestamp::UNIX_EPOCH
    }
}
