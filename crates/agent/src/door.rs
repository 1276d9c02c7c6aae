//! The door: which wanted pods may run here. The sync loop asks for each pod once; the answer is
//! written down, and holds for the pod's whole life.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use krablet_checkpoint::Saver;
use krablet_core::admission::{
    AdmissionSettings, NodeConditions, NodeView, PodAdmission, ResizeVerdict, Surroundings, Verdict,
};
use krablet_core::resize::Waiting;
use krablet_pod::api::{Node, Pod};
use krablet_pod::{Actuation, AdmittedPods, PodRef, PodUid, resources};
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::info;

use crate::steps::resizing::Given;

/// How long the label that lets a pod in may be on its way.
const DOUBT: Duration = Duration::from_secs(1);

/// What the door is made of.
#[derive(Clone)]
pub struct DoorDeps {
    /// The node as it is known now.
    pub node: watch::Receiver<Arc<NodeView>>,
    /// What passes: pressure and shutdown, as it is now.
    pub conditions: Conditions,
    pub settings: AdmissionSettings,
    /// Who was let in by an earlier life of the agent.
    pub admitted: AdmittedPods,
    /// Where who was let in is written down.
    pub savers: Vec<Saver<AdmittedPods>>,
}

/// Tells the node's conditions whenever somebody comes to the door.
pub type Conditions = Arc<dyn Fn() -> NodeConditions + Send + Sync>;

impl DoorDeps {
    /// The door of a node that does not change, and that remembers nobody.
    pub fn of(node: NodeView) -> Self {
        Self {
            node: watch::Sender::new(Arc::new(node)).subscribe(),
            conditions: Arc::new(NodeConditions::default),
            settings: AdmissionSettings::default(),
            admitted: AdmittedPods::default(),
            savers: Vec::new(),
        }
    }
}

/// A Node object as the door looks at it.
pub fn node_view(node: &Node) -> NodeView {
    let status = node.status.as_ref();
    let features = status.and_then(|s| s.features.as_ref());
    NodeView {
        name: node.metadata.name.clone().unwrap_or_default(),
        labels: node.metadata.labels.clone().unwrap_or_default(),
        taints: node
            .spec
            .as_ref()
            .and_then(|s| s.taints.clone())
            .unwrap_or_default(),
        allocatable: resources::parse(status.and_then(|s| s.allocatable.as_ref())),
        os: "linux".to_owned(),
        supplemental_groups_policy: features
            .and_then(|f| f.supplemental_groups_policy)
            .unwrap_or_default(),
        provisional: false,
    }
}

pub(crate) struct Door {
    deps: DoorDeps,
    admission: PodAdmission,
    /// Pods that may come in when others have gone.
    waiting: BTreeMap<PodUid, Arc<Pod>>,
    /// Pods that only the node's labels keep out: newer ones may be on their way.
    doubted: BTreeMap<PodUid, Arc<Pod>>,
    doubted_until: Instant,
}

impl Door {
    pub(crate) fn new(deps: DoorDeps) -> Self {
        Self {
            admission: PodAdmission::restored(deps.admitted.clone(), []),
            deps,
            waiting: BTreeMap::new(),
            doubted: BTreeMap::new(),
            doubted_until: Instant::now(),
        }
    }

    /// Pods found running were let in, whoever did it.
    pub(crate) fn found_running(&mut self, running: impl IntoIterator<Item = PodUid>) {
        self.admission.found_running(running);
    }

    /// The order in which pods that come together are asked.
    pub(crate) fn queue(&self, pods: Vec<Arc<Pod>>) -> Vec<Arc<Pod>> {
        self.admission.queue(pods)
    }

    pub(crate) fn ask(&mut self, pod: &Arc<Pod>) -> Verdict {
        let uid = PodRef::of(pod).uid;
        let node = self.deps.node.borrow().clone();
        let conditions = (self.deps.conditions)();
        let around = surroundings(&node, &conditions, &self.deps);
        let verdict = self.admission.admit(pod, &around);
        self.waiting.remove(&uid);
        match verdict {
            Verdict::AdmitAfterPreempting(_) => {
                self.waiting.insert(uid, pod.clone());
            }
            Verdict::Admit => self.write_down(),
            Verdict::Reject(_) => {}
        }
        verdict
    }

    /// The pod with the resources it is promised.
    pub(crate) fn allocated(&self, pod: &Arc<Pod>) -> Arc<Pod> {
        let allocation = self.admission.allocation(&PodRef::of(pod).uid);
        match allocation.map(|allocation| allocation.applied(pod)) {
            Some(Cow::Owned(pod)) => Arc::new(pod),
            Some(Cow::Borrowed(_)) | None => pod.clone(),
        }
    }

    /// Asks for other resources for a pod that is in.
    pub(crate) fn resize(&mut self, pod: &Pod) -> ResizeVerdict {
        let node = self.deps.node.borrow().clone();
        let conditions = (self.deps.conditions)();
        let around = surroundings(&node, &conditions, &self.deps);
        let verdict = self.admission.resize(pod, &around);
        if verdict == ResizeVerdict::Allocated {
            self.write_down();
        }
        verdict
    }

    /// A pod that asks for other resources, as those that order them see it.
    pub(crate) fn waiting(&self, pod: &Pod, since: Option<Timestamp>) -> Waiting {
        let allocation = self.admission.allocation(&PodRef::of(pod).uid);
        let pod_level = self.deps.settings.pod_level_resources;
        Waiting::of(pod, allocation, pod_level, since)
    }

    /// True if a pod takes up less than before.
    pub(crate) fn status_changed(&mut self, pod: &Pod) -> bool {
        self.admission.status_changed(pod, &self.deps.settings)
    }

    /// What a resized pod was last given.
    pub(crate) fn actuation(&self, uid: &PodUid) -> Option<Actuation> {
        self.admission.actuation(uid).cloned()
    }

    /// What a step has given to a pod and its containers.
    pub(crate) fn actuated(&mut self, uid: &PodUid, given: Given) {
        let Given {
            containers,
            pod,
            resized,
        } = given;
        if self.admission.actuated(uid, containers, pod, resized) {
            self.write_down();
        }
    }

    /// Where promises are written down.
    pub(crate) fn savers(&self) -> Vec<Saver<AdmittedPods>> {
        self.deps.savers.clone()
    }

    /// Keeps a pod for a second look.
    pub(crate) fn doubt(&mut self, pod: &Arc<Pod>) {
        if self.deps.node.borrow().provisional {
            let pod = PodRef::of(pod);
            info!(pod = %pod, podUID = %pod.uid, "Pod waits until the API server tells which labels the node has");
        }
        if self.doubted.is_empty() {
            self.deps.node.mark_unchanged();
            self.doubted_until = Instant::now() + DOUBT;
        }
        self.doubted.insert(PodRef::of(pod).uid, pod.clone());
    }

    /// The pods whose second look is due: the node has changed, or has had its time to, if the API server has told of
    /// it. May be dropped and called again without losing one.
    pub(crate) async fn second_look(&mut self) -> Vec<Arc<Pod>> {
        if self.doubted.is_empty() {
            return std::future::pending().await;
        }
        // What is refused is refused for good: not for labels that only the API server knows.
        let told = !self.deps.node.borrow().provisional;
        tokio::select! {
            biased;
            Ok(()) = self.deps.node.changed() => {}
            () = tokio::time::sleep_until(self.doubted_until), if told => {}
            else => return std::future::pending().await,
        }
        std::mem::take(&mut self.doubted).into_values().collect()
    }

    /// Whether it is not decided yet what becomes of a pod.
    pub(crate) fn is_waiting(&self, uid: &PodUid) -> bool {
        self.waiting.contains_key(uid) || self.doubted.contains_key(uid)
    }

    /// A pod has ended. Those to ask again, since there is more room.
    pub(crate) fn ended(&mut self, uid: &PodUid) -> Vec<Arc<Pod>> {
        self.admission.ended(uid);
        self.waiting.values().cloned().collect()
    }

    /// Nobody wants this pod any more.
    pub(crate) fn gone(&mut self, uid: &PodUid) {
        self.doubted.remove(uid);
        if self.waiting.remove(uid).is_some() {
            self.admission.ended(uid);
        }
    }

    /// Forgets the pods that are not to be kept.
    pub(crate) fn retain(&mut self, keep: impl Fn(&PodUid) -> bool) {
        let before = self.admission.admitted().pods.len();
        self.admission.retain(&keep);
        self.waiting.retain(|uid, _| keep(uid));
        self.doubted.retain(|uid, _| keep(uid));
        if self.admission.admitted().pods.len() != before {
            self.write_down();
        }
    }

    fn write_down(&self) {
        for saver in &self.deps.savers {
            saver.set(self.admission.admitted().clone());
        }
    }
}

fn surroundings<'a>(
    node: &'a NodeView,
    conditions: &'a NodeConditions,
    deps: &'a DoorDeps,
) -> Surroundings<'a> {
    Surroundings {
        node,
        conditions,
        settings: &deps.settings,
        allocation_failure: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt as _;

    fn pod() -> Arc<Pod> {
        let mut pod = Pod::default();
        pod.metadata.uid = Some("a".into());
        Arc::new(pod)
    }

    fn door(provisional: bool) -> (watch::Sender<Arc<NodeView>>, Door) {
        let (node, views) = watch::channel(Arc::new(NodeView {
            provisional,
            ..NodeView::default()
        }));
        let deps = DoorDeps {
            node: views,
            ..DoorDeps::of(NodeView::default())
        };
        (node, Door::new(deps))
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_that_is_known_is_looked_at_once_more_soon() {
        let (_node, mut door) = door(false);
        door.doubt(&pod());
        assert!(door.second_look().now_or_never().is_none());
        tokio::time::advance(DOUBT).await;
        assert_eq!(door.second_look().await, [pod()]);
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_is_refused_for_labels_that_only_the_api_server_knows() {
        let (node, mut door) = door(true);
        door.doubt(&pod());
        tokio::time::advance(100 * DOUBT).await;
        assert!(door.second_look().now_or_never().is_none());
        assert!(door.is_waiting(&PodUid::from("a")));
        node.send_replace(Arc::default());
        assert_eq!(door.second_look().await, [pod()]);
    }
}
