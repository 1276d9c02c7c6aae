//! A node on which nothing happens but what the test does.

#![allow(dead_code, unused_imports, reason = "no test needs all of it")]

mod runtime;

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use jiff::Timestamp;
use krablet_events::Recorder;
use krablet_pod::api::{
    Container, ContainerState, ContainerStateRunning, ContainerStatus, Pod, PodSpec, PodStatus,
};
use krablet_pod::observed::{self, ObservedContainer, ObservedPod, ObservedSandbox};
use krablet_pod::{PodRef, PodUid, Ticket};
use krablet_server::{Inside, NodeView};
use serde_json::{Value, json};
use tokio::sync::watch;

pub use runtime::OneContainer;

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

/// The same, and its container runs.
pub fn running_pod(name: &str, uid: &str, container: &str) -> Pod {
    let mut pod = pod(name, uid, container);
    pod.status = Some(PodStatus {
        container_statuses: Some(vec![ContainerStatus {
            name: container.to_owned(),
            container_id: Some("containerd://id".to_owned()),
            state: Some(ContainerState {
                running: Some(ContainerStateRunning::default()),
                ..ContainerState::default()
            }),
            ..ContainerStatus::default()
        }]),
        ..PodStatus::default()
    });
    pod
}

/// The runtime's view of the pod `p` with its container `c`.
pub struct OnePod;

impl OnePod {
    fn seen(uid: &str) -> Arc<ObservedPod> {
        let mut seen = ObservedPod::absent(PodRef::new(uid, "ns", "p"), Ticket::default());
        seen.sandboxes.push(ObservedSandbox {
            id: "sandbox".into(),
            ready: true,
            attempt: 0,
            created_at: 0,
            ips: Vec::new(),
            host_network: false,
            source: None,
        });
        seen.containers.push(ObservedContainer {
            id: "id".into(),
            name: "c".into(),
            sandbox_id: "sandbox".into(),
            state: observed::ContainerState::Running,
            attempt: 0,
            created_at: 0,
            started_at: 0,
            exit: None,
            image: "busybox:1".into(),
            image_ref: "busybox@sha256:1".into(),
            user: None,
            resources: None,
            memory: observed::ContainerMemory::default(),
            log_path: String::new(),
        });
        Arc::new(seen)
    }
}

impl Inside for OnePod {
    fn observed(&self, uid: &PodUid) -> Option<Arc<ObservedPod>> {
        Some(Self::seen(uid.as_str()))
    }
    fn all_observed(&self) -> Vec<Arc<ObservedPod>> {
        vec![Self::seen("u")]
    }
    fn status(&self, _: &PodUid) -> Option<Arc<PodStatus>> {
        running_pod("p", "u", "c").status.map(Arc::new)
    }
    fn configuration(&self) -> Value {
        json!({
            "kind": "KubeletConfiguration",
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "port": 10250,
            "authentication": {"anonymous": {"enabled": false}},
        })
    }
    fn api_uid(&self, _: &PodUid) -> Option<PodUid> {
        None
    }
}
