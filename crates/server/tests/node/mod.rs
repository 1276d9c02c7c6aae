//! A node on which nothing happens but what the test does.

#![allow(dead_code, reason = "no test needs all of it")]

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use jiff::Timestamp;
use krablet_events::Recorder;
use krablet_pod::api::{Container, Pod, PodSpec};
use krablet_server::NodeView;
use tokio::sync::watch;

pub struct Quiet {
    pub recorder: Recorder,
    pub failing: Mutex<Vec<(&'static str, String)>>,
    bell: watch::Sender<u64>,
    pods: Mutex<Vec<Pod>>,
}

impl Quiet {
    pub fn with(pods: Vec<Pod>) -> Arc<Self> {
        Arc::new(Self {
            recorder: Recorder::new(|| Timestamp::UNIX_EPOCH),
            failing: Mutex::default(),
            bell: watch::Sender::new(0),
            pods: Mutex::new(pods),
        })
    }

    pub fn add(&self, pod: Pod) {
        self.pods.lock().unwrap().push(pod);
        self.bell.send_modify(|n| *n += 1);
    }
}

/// A pod of the namespace `ns` with one container.
pub fn pod(name: &str, uid: &str, container: &str) -> Pod {
    let mut pod = Pod::default();
    pod.metadata.name = Some(name.to_owned());
    pod.metadata.namespace = Some("ns".to_owned());
    pod.metadata.uid = Some(uid.to_owned());
    pod.spec = Some(PodSpec {
        containers: vec![Container {
            name: container.to_owned(),
            ..Container::default()
        }],
        ..PodSpec::default()
    });
    pod
}

#[async_trait]
impl NodeView for Quiet {
    fn pods(&self) -> Vec<Pod> {
        self.pods.lock().unwrap().clone()
    }
    fn pod(&self, namespace: &str, name: &str) -> Option<Pod> {
        let named = |pod: &Pod| {
            let meta = &pod.metadata;
            meta.name.as_deref() == Some(name) && meta.namespace.as_deref() == Some(namespace)
        };
        self.pods().into_iter().find(named)
    }
    fn pod_changes(&self) -> watch::Receiver<u64> {
        self.bell.subscribe()
    }
    fn events(&self) -> &Recorder {
        &self.recorder
    }
    fn failing_checks(&self) -> Vec<(&'static str, String)> {
        self.failing.lock().unwrap().clone()
    }
    fn check_names(&self) -> &'static [&'static str] {
        &["ping", "syncloop"]
    }
    async fn metrics(&self) -> String {
        "kubelet_node_name{node=\"n\"} 1\n".to_owned()
    }
    fn probe_metrics(&self) -> String {
        String::new()
    }
    fn now(&self) -> Timestamp {
        Timestamp::UNIX_EPOCH
    }
}
