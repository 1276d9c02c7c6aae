//! The socket of the pod resources service.

use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use krablet_pod::api::Pod;
use krablet_podresources::{Pods, routes};
use krablet_server::{Listener, NodeView};
use tokio::task::JoinSet;

use crate::view::AgentView;

pub fn open(root: &Path, view: Arc<AgentView>, tasks: &mut JoinSet<()>) -> Result<()> {
    let directory = root.join("pod-resources");
    let mut make = std::fs::DirBuilder::new();
    let made = make.recursive(true).mode(0o750).create(&directory);
    made.with_context(|| format!("cannot create {}", directory.display()))?;
    let listener = Listener::unix(&directory.join("kubelet.sock"))?;
    let metrics = view.counted().pod_resources.clone();
    let routes = routes(Arc::new(NodePods(view)), metrics);
    tasks.spawn(listener.serve(routes));
    Ok(())
}

struct NodePods(Arc<AgentView>);

impl Pods for NodePods {
    fn pods(&self) -> Vec<Pod> {
        self.0.pods()
    }

    fn pod(&self, namespace: &str, name: &str) -> Option<Pod> {
        self.0.pod(namespace, name)
    }
}
