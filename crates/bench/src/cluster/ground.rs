//! What both agents stand on: a runtime, a control plane, and somebody who creates and deletes pods.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use futures::stream::{self, StreamExt, TryStreamExt};
use krablet_kube::{
    Api, Call, Credentials, HttpApi, HttpApiConfig, Kube, Kubeconfig, Server, Verb, paths,
};
use krablet_linux::{SystemClock, WallClock};
use krablet_testbed::parts::Part;
use krablet_testbed::{Bed, BedOptions, ControlPlane, ControlPlaneOptions, cpu_time};
use serde_json::{Value, json};

use super::audit::Audit;
use crate::node::{remove_dead, wait_for_image};
use crate::pods;

/// How many requests of ours are under way at a time: enough to keep the server busy.
const WIDTH: usize = 8;
const NAMESPACE: &str = "default";

pub struct Ground {
    pub bed: Bed,
    pub plane: ControlPlane,
    pub kube: Kube,
    pub audit: Audit,
    _traces: Traces,
}

impl Ground {
    pub async fn up() -> Result<Self> {
        let bed = Bed::up(BedOptions {
            parts: vec![Part::Kubelet],
            ..BedOptions::default()
        })
        .await?;
        wait_for_image(&bed).await?;
        let audit = Audit::prepare(bed.dir())?;
        // Pods are bound when they are created: nobody is to decide where they go.
        let plane = ControlPlane::up(ControlPlaneOptions {
            scheduler: false,
            apiserver_args: audit.arguments(),
            ..ControlPlaneOptions::default()
        })
        .await?;
        let kube = client(&plane.admin_kubeconfig())?;
        Ok(Self {
            bed,
            plane,
            kube,
            audit,
            _traces: Traces::before(),
        })
    }

    /// The upstream kubelet's binary.
    pub fn kubelet(&self) -> Result<PathBuf> {
        self.bed.bins().path("kubelet")
    }

    pub async fn create(&self, pods: &[Value]) -> Result<()> {
        let requests = stream::iter(pods).map(|pod| {
            let call = Call::new(Verb::Create, paths::pods(NAMESPACE)).body(pod.to_string());
            self.call(call)
        });
        let created = requests.buffer_unordered(WIDTH).try_collect::<()>();
        created.await.context("creating pods")
    }

    /// Creates one object.
    pub async fn make(&self, list: &str, object: &Value) -> Result<()> {
        let call = Call::new(Verb::Create, list.to_owned()).body(object.to_string());
        let made = self.call(call).await;
        made.with_context(|| format!("creating in {list}"))
    }

    /// Deletes the pods with the grace they were made with.
    pub async fn delete(&self, count: usize) -> Result<()> {
        let requests = stream::iter(0..count).map(|index| {
            let path = paths::pod(NAMESPACE, pods::name(index));
            self.call(Call::new(Verb::Delete, path))
        });
        let deleted = requests.buffer_unordered(WIDTH).try_collect::<()>();
        deleted.await.context("deleting pods")
    }

    /// The node is to be new to the server when its agent starts again.
    pub async fn forget_node(&self, name: &str) -> Result<()> {
        let forgotten = self.call(Call::new(Verb::Delete, paths::node(name))).await;
        forgotten.with_context(|| format!("deleting node {name}"))
    }

    /// Processor time of the runtime so far.
    pub fn containerd_cpu(&self) -> Result<Duration> {
        cpu_time(self.bed.containerd_pid().context("containerd is gone")?)
    }

    /// Removes what stopped containers an agent has left.
    pub async fn tidy(&self) -> Result<()> {
        remove_dead(&self.bed).await
    }

    pub async fn down(self) -> Result<()> {
        let Self { bed, plane, .. } = self;
        let (bed, plane) = tokio::join!(bed.down(), plane.down());
        bed.and(plane)
    }

    async fn call(&self, call: Call) -> Result<()> {
        Ok(self.kube.api().call(call).await.map(drop)?)
    }
}

/// A way to a server, as fast as it answers.
pub fn client(kubeconfig: &Path) -> Result<Kube> {
    let kubeconfig = Kubeconfig::read(kubeconfig)?;
    let clock: Arc<dyn WallClock> = Arc::new(SystemClock);
    let credentials = Credentials::of(&kubeconfig, clock.clone())?;
    let server = Server::of(&kubeconfig)?;
    let api: Arc<dyn Api> = Arc::new(HttpApi::new(HttpApiConfig::new(server, credentials, clock)));
    Ok(Kube::new(api))
}

/// A pod with one container that waits for its end and need not be waited for long.
pub fn quiet(index: usize) -> Value {
    let mut pod = pods::quiet(index);
    pod["spec"]["terminationGracePeriodSeconds"] = json!(1);
    pod["spec"]["automountServiceAccountToken"] = json!(false);
    pod
}

/// The same with a server in the container that is asked whether it is ready.
pub fn probed(index: usize) -> Value {
    let mut pod = quiet(index);
    pod["spec"]["containers"][0]["args"] = json!(["http", "-port", "8080"]);
    pod["spec"]["containers"][0]["readinessProbe"] =
        json!({"httpGet": {"port": 8080, "path": "/"}, "periodSeconds": 1});
    pod
}

/// The pod on that node, whatever a scheduler would say.
pub fn bound(mut pod: Value, node: &str) -> Value {
    pod["spec"]["nodeName"] = json!(node);
    pod
}

/// Places where the kubelet leaves things whatever it is told.
const TRACES: [&str; 2] = ["/var/lib/kubelet/device-plugins", "/var/lib/kubelet"];

/// Those of them that were not there before; they go in the end.
struct Traces(Vec<&'static Path>);

impl Traces {
    fn before() -> Self {
        let paths = TRACES.iter().map(Path::new);
        Self(paths.filter(|path| !path.exists()).collect())
    }
}

impl Drop for Traces {
    fn drop(&mut self) {
        for path in &self.0 {
            // Where it was never started there is nothing.
            let _ = fs::remove_dir_all(path);
        }
    }
}
