//! A node of a real control plane, and the questions scenarios ask of the two.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Event, Node, NodeCondition, Pod};
use krablet_cri::{RuntimeService, v1};
use krablet_pod::labels;
use krablet_testbed::{
    Bed, BedOptions, ControlPlane, ControlPlaneOptions, KrabletOptions, leftovers,
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::harness::Common;
use crate::stage::{LONG, Stage, container_name, options};
use crate::{manifest, status};

/// Further nodes at once on the shared control plane.
const BESIDE: usize = 2;
/// The namespace of everything scenarios make; they keep apart by name.
pub const PODS: &str = "/api/v1/namespaces/default/pods";

/// An agent on a bed that has joined a control plane.
pub struct Member {
    pub plane: Rc<ControlPlane>,
    /// The bed and the agent. Its questions go by the names of static pods; those here do not.
    pub stage: Stage,
    pub name: String,
    places: Places,
    /// Its place among the further nodes.
    _place: Option<OwnedSemaphorePermit>,
}

/// What the nodes of a control plane share.
#[derive(Clone)]
struct Places {
    free: Arc<Semaphore>,
    /// All names there ever were: two agents of one name would take each other's pods.
    names: Rc<RefCell<BTreeSet<String>>>,
}

impl Places {
    fn new() -> Self {
        Self {
            free: Arc::new(Semaphore::new(BESIDE)),
            names: Rc::default(),
        }
    }

    fn take(&self, name: &str) {
        let new = self.names.borrow_mut().insert(name.to_owned());
        assert!(new, "two scenarios have a node named {name}: rename one");
    }
}

/// How the agent of a node is to be started.
#[derive(Default)]
pub struct Joining {
    /// Settings laid over those that scenarios have in common.
    pub config: Value,
    /// What `--kubeconfig` has at first, for a node that needs no token.
    pub kubeconfig: Option<PathBuf>,
    /// The file of the token instead of the right one.
    pub bootstrap: Option<PathBuf>,
    /// Further arguments.
    pub args: Vec<String>,
    /// The upstream kubelet is to run with the same arguments.
    pub also_kubelet: bool,
    /// How the bed is to be made.
    pub bed: BedOptions,
}

impl Common for Member {
    async fn shared() -> Self {
        Self::founding(ControlPlaneOptions::default(), "main").await
    }

    async fn down(self) {
        Self::down(self).await;
    }
}

impl Member {
    /// The first node of a control plane of its own, ready.
    pub async fn founding(options: ControlPlaneOptions, name: &str) -> Self {
        let mut member = Self::prepared_founding(options, name, |_| Joining::default()).await;
        member.start().await;
        member
    }

    /// The same with its agent not started yet, and joining as that control plane lets it.
    pub async fn prepared_founding(
        options: ControlPlaneOptions,
        name: &str,
        joining: impl FnOnce(&ControlPlane) -> Joining,
    ) -> Self {
        let plane = Rc::new(ControlPlane::up(options).await.unwrap());
        let joining = joining(&plane);
        Self::prepare(plane, Places::new(), None, name, joining).await
    }

    /// Another node of the same control plane, ready. There are never many of them at once.
    pub async fn beside(&self, name: &str) -> Self {
        let mut other = self.prepared_beside(name, Joining::default()).await;
        other.start().await;
        other
    }

    /// The same with its agent not started yet.
    pub async fn prepared_beside(&self, name: &str, joining: Joining) -> Self {
        let place = self.places.free.clone().acquire_owned().await.unwrap();
        let (plane, places) = (self.plane.clone(), self.places.clone());
        Self::prepare(plane, places, Some(place), name, joining).await
    }

    async fn prepare(
        plane: Rc<ControlPlane>,
        places: Places,
        place: Option<OwnedSemaphorePermit>,
        name: &str,
        joining: Joining,
    ) -> Self {
        places.take(name);
        let bed = Bed::up(joining.bed).await.unwrap();
        let dir = bed.dir().join(name);
        std::fs::create_dir_all(&dir).unwrap();
        let kubeconfig = dir.join("kubelet.conf");
        if let Some(given) = joining.kubeconfig {
            std::fs::copy(given, &kubeconfig).unwrap();
        }
        let bootstrap = joining
            .bootstrap
            .unwrap_or_else(|| plane.bootstrap_kubeconfig());
        let common = options(manifest::with(
            json!({
                "crashLoopBackOff": {"maxContainerRestartPeriod": "1s"},
                // Whatever comes to a pod comes because something happened, and not because it was looked at anyway.
                "syncFrequency": "30m0s",
                "rotateCertificates": true,
                // The API server comes by the node's address, and is known by its certificate.
                "address": "0.0.0.0",
                "authentication": {
                    "anonymous": {"enabled": false},
                    "webhook": {"enabled": true},
                    "x509": {"clientCAFile": plane.ca_file()},
                },
                "authorization": {"mode": "Webhook"},
            }),
            joining.config,
        ));
        let mut args = common.args.clone();
        args.extend([
            format!("--bootstrap-kubeconfig={}", bootstrap.display()),
            format!("--kubeconfig={}", kubeconfig.display()),
            format!("--cert-dir={}", dir.join("pki").display()),
        ]);
        args.extend(joining.args);
        let stage = Stage::on(
            bed,
            KrabletOptions {
                name: name.to_owned(),
                args,
                also_kubelet: joining.also_kubelet,
                ..common
            },
        );
        Self {
            plane,
            stage,
            name: name.to_owned(),
            places,
            _place: place,
        }
    }

    /// Starts the agent and waits until the node is ready.
    pub async fn start(&mut self) {
        self.stage.start().await;
        self.ready().await;
    }

    /// Stops the agent in good order, and takes down the bed and, with its last node, the control
    /// plane. Nothing may be left.
    pub async fn down(self) {
        let Self { plane, stage, .. } = self;
        stage.down().await;
        if let Some(plane) = Rc::into_inner(plane) {
            let name = plane.name().to_owned();
            plane.down().await.unwrap();
            assert_eq!(leftovers(&name), Vec::<String>::new());
        }
    }

    /// The directory of the agent's own files: `kubelet.conf`, `pki`.
    pub fn dir(&self) -> PathBuf {
        self.stage.bed.dir().join(&self.name)
    }
}

/// What the API server holds.
impl Member {
    /// The object at that path.
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, String> {
        let found = self
            .plane
            .get_json(path)
            .await
            .map_err(|e| format!("{e:#}"))?;
        serde_json::from_value(found).map_err(|e| format!("{path}: {e}"))
    }

    pub async fn list<T: DeserializeOwned>(&self, path: &str) -> Result<Vec<T>, String> {
        let mut found = self
            .plane
            .get_json(path)
            .await
            .map_err(|e| format!("{e:#}"))?;
        serde_json::from_value(found["items"].take()).map_err(|e| format!("{path}: {e}"))
    }

    pub async fn node(&self) -> Result<Node, String> {
        self.get(&format!("/api/v1/nodes/{}", self.name)).await
    }

    pub async fn lease(&self) -> Result<Lease, String> {
        let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
        self.get(&format!("{leases}/{}", self.name)).await
    }

    pub async fn pod(&self, name: &str) -> Result<Pod, String> {
        self.get(&format!("{PODS}/{name}")).await
    }

    /// The pods with this label, of all nodes.
    pub async fn pods(&self, label: &str) -> Result<Vec<Pod>, String> {
        let selector = label.replace('=', "%3D");
        self.list(&format!("{PODS}?labelSelector={selector}")).await
    }

    /// Waits until the node says that it is ready.
    pub async fn ready(&self) -> Node {
        self.wait("node", "is ready", async || {
            let node = self.node().await?;
            let ready = condition(&node, "Ready").is_some_and(|c| c.status == "True");
            match ready && !has_taint(&node, "node.kubernetes.io/not-ready") {
                true => Ok(node),
                false => Err(serde_json::to_string(&(&node.spec, &node.status)).unwrap()),
            }
        })
        .await
    }

    /// Waits until `check` is content; `name` says whose log lines tell why not.
    pub async fn wait<T>(
        &self,
        name: &str,
        what: &str,
        check: impl AsyncFnMut() -> Result<T, String>,
    ) -> T {
        self.wait_long(LONG, name, what, check).await
    }

    /// The same with another deadline, for crowds.
    pub async fn wait_long<T>(
        &self,
        deadline: Duration,
        name: &str,
        what: &str,
        check: impl AsyncFnMut() -> Result<T, String>,
    ) -> T {
        let what = format!("{what} (node {})", self.name);
        self.stage.wait_long(deadline, name, &what, check).await
    }

    /// Waits until the heartbeat was written after that moment, in seconds of the epoch.
    pub async fn beats_after(&self, moment: i64) {
        self.wait("lease", "is renewed", async || {
            let renewed = self.lease().await?.spec.unwrap_or_default().renew_time;
            match renewed.as_ref().is_some_and(|t| t.0.as_second() > moment) {
                true => Ok(()),
                false => Err(format!("{renewed:?}, wanted after {moment}")),
            }
        })
        .await;
    }

    /// Waits until `check` finds in the pod what it looks for.
    pub async fn until<T>(
        &self,
        name: &str,
        what: &str,
        mut check: impl FnMut(&Pod) -> Result<T, String>,
    ) -> T {
        self.wait(name, what, async || check(&self.pod(name).await?))
            .await
    }

    /// Creates a pod that is bound to this node without asking a scheduler.
    pub async fn create(&self, pod: &Value) -> Pod {
        let mut pod = pod.clone();
        pod["spec"]["nodeName"] = json!(self.name);
        self.create_unbound(&pod).await
    }

    /// Creates a pod as it is, without the token that pods otherwise get.
    pub async fn create_unbound(&self, pod: &Value) -> Pod {
        let mut pod = pod.clone();
        pod["spec"]["automountServiceAccountToken"] = json!(false);
        let made = self.plane.create(PODS, &pod).await.unwrap();
        serde_json::from_value(made).unwrap()
    }

    /// Creates a pod on this node and waits until it is ready.
    pub async fn run(&self, pod: &Value) -> Pod {
        let made = self.create(pod).await;
        self.running(made.metadata.name.as_deref().unwrap()).await
    }

    /// Waits until the API server knows that the pod is ready.
    pub async fn running(&self, name: &str) -> Pod {
        self.until(name, "is ready", |pod| {
            status::all_running(pod)?;
            match status::condition(pod, "Ready") {
                true => Ok(pod.clone()),
                false => Err(status::shown(pod)),
            }
        })
        .await
    }

    pub async fn phase(&self, name: &str, phase: &str) -> Pod {
        self.until(name, phase, |pod| {
            status::in_phase(pod, phase)?;
            Ok(pod.clone())
        })
        .await
    }

    /// Asks for the pod's deletion with the grace it was made with.
    pub async fn delete(&self, name: &str) {
        self.plane.delete(&format!("{PODS}/{name}")).await.unwrap();
    }

    /// Deletes the pod and waits until nothing is left of it.
    pub async fn end(&self, name: &str) {
        let uid = status::uid(&self.pod(name).await.unwrap());
        self.delete(name).await;
        self.gone(name, &uid).await;
    }

    /// Waits until nothing is left of the pod: at the API server, in the runtime, on the disk.
    pub async fn gone(&self, name: &str, uid: &str) {
        self.wait(name, "is gone", async || {
            if let Ok(pod) = self.pod(name).await
                && status::uid(&pod) == uid
            {
                return Err(format!("still there: {}", status::shown(&pod)));
            }
            let mut left = self.alive(uid).await;
            left.extend(self.stage.held(uid));
            match left.is_empty() {
                true => Ok(()),
                false => Err(format!("left behind: {left:?}")),
            }
        })
        .await;
    }

    /// Running containers and ready sandboxes of a pod, in words.
    pub async fn alive(&self, uid: &str) -> Vec<String> {
        let containers = self.containers(uid).await.into_iter();
        let running = containers
            .filter(|c| c.state == v1::ContainerState::ContainerRunning as i32)
            .map(|c| format!("container {}", container_name(&c)));
        let sandboxes = self.stage.runtime.list_pod_sandbox(None).await.unwrap();
        let ready = sandboxes
            .into_iter()
            .filter(|s| s.labels.get(labels::POD_UID).is_some_and(|u| u == uid))
            .filter(|s| s.state == v1::PodSandboxState::SandboxReady as i32)
            .map(|_| "sandbox".to_owned());
        running.chain(ready).collect()
    }

    pub async fn containers(&self, uid: &str) -> Vec<v1::Container> {
        let all = self.stage.runtime.list_containers(None).await.unwrap();
        all.into_iter()
            .filter(|c| c.labels.get(labels::POD_UID).is_some_and(|u| u == uid))
            .collect()
    }

    /// Waits until nothing at all is left on the node.
    pub async fn empty(&self) {
        self.wait_long(2 * LONG, "node", "nothing is left", async || {
            self.is_empty().await
        })
        .await;
    }

    /// The same on a node whose agent was killed amid starts. Elsewhere it would hide a start that the agent has cut off itself.
    pub async fn empty_after_kills(&self) {
        let mut freed = BTreeSet::new();
        self.wait_long(2 * LONG, "node", "nothing is left", async || {
            self.stage.free_cut_off_starts(&mut freed).await;
            self.is_empty().await
        })
        .await;
    }

    async fn is_empty(&self) -> Result<(), String> {
        let mut left = self.stage.in_runtime().await;
        for dir in [
            self.stage.krablet.root_dir().join("pods"),
            self.stage.krablet.pod_logs(),
        ] {
            let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
            left.extend(entries.map(|entry| entry.path().display().to_string()));
        }
        left.extend(self.stage.cgroups());
        match left.len() {
            0 => Ok(()),
            count => Err(format!("{count} things: {:?}", &left[..count.min(5)])),
        }
    }
}

/// What people see.
impl Member {
    /// Waits for an event about the pod of this reason whose message holds the text.
    pub async fn event(&self, pod: &str, reason: &str, text: &str) -> Event {
        self.event_where(pod, reason, text, |_| true).await
    }

    pub async fn event_where(
        &self,
        object: &str,
        reason: &str,
        text: &str,
        wanted: impl Fn(&Event) -> bool,
    ) -> Event {
        let path = format!(
            "/api/v1/namespaces/default/events?fieldSelector=involvedObject.name%3D{object}"
        );
        self.wait(object, &format!("event {reason}: {text}"), async || {
            let events: Vec<Event> = self.list(&path).await?;
            let is = |e: &&Event| {
                e.reason.as_deref() == Some(reason)
                    && e.message.as_deref().unwrap_or_default().contains(text)
                    && wanted(e)
            };
            events.iter().find(is).cloned().ok_or_else(|| {
                let line = |e: &Event| format!("{:?} {:?} x{:?}", e.reason, e.message, e.count);
                events.iter().map(line).collect::<Vec<_>>().join("\n")
            })
        })
        .await
    }

    pub async fn kubectl(&self, arguments: &[&str]) -> String {
        self.plane.kubectl(arguments).await.unwrap()
    }
}

/// The present, by the clock that certificates and leases go by, in seconds of the epoch.
#[allow(
    clippy::disallowed_methods,
    reason = "what is compared with it was written by other processes"
)]
pub fn now() -> i64 {
    k8s_openapi::jiff::Timestamp::now().as_second()
}

pub fn condition<'a>(node: &'a Node, kind: &str) -> Option<&'a NodeCondition> {
    let conditions = node.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|c| c.type_ == kind)
}

pub fn has_taint(node: &Node, key: &str) -> bool {
    let taints = node.spec.iter().flat_map(|s| s.taints.iter().flatten());
    taints.into_iter().any(|taint| taint.key == key)
}

/// The path in the API of what is in the group `apps`, such as `deployments`.
pub fn apps(plural: &str) -> String {
    format!("/apis/apps/v1/namespaces/default/{plural}")
}

/// A pod template for controllers, only for the node of that name, with this label.
pub fn template(node: &str, app: &str, container: Value) -> Value {
    json!({
        "metadata": {"labels": {"app": app}},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": node},
            "automountServiceAccountToken": false,
            "terminationGracePeriodSeconds": 1,
            "containers": [container],
        },
    })
}
