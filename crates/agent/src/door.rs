//! The door: which wanted pods may run here. The sync loop asks for each pod once; the answer is
//! written down, and holds for the pod's whole life.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use krablet_checkpoint::Saver;
use krablet_core::admission::{
    AdmissionSettings, NodeConditions, NodeView, PodAdmission, Surroundings, Verdict,
};
use krablet_pod::api::{Node, Pod};
use krablet_pod::{AdmittedPods, PodRef, PodUid, resources};
use tokio::sync::watch;
use tokio::time::Instant;

/// How long the label that lets a pod in may be on its way.
const DOUBT: Duration = Duration::from_secs(1);

/// What the door is made of.
#[derive(Clone)]
pub struct DoorDeps {
    /// The node as it is known now.
    pub node: watch::Receiver<Arc<NodeView>>,
    pub settings: AdmissionSettings,
    /// Who was let in by an earlier life of the agent.
    pub admitted: AdmittedPods,
    /// Where who was let in is written down.
    pub savers: Vec<Saver<AdmittedPods>>,
}

impl DoorDeps {
    /// The door of a node that does not change, and that remembers nobody.
    pub fn of(node: NodeView) -> Self {
        Self {
            node: watch::Sender::new(Arc::new(node)).subscribe(),
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
    }
}

pub(crate) struct Door {
    deps: DoorDeps,
    admission: PodAdmission,
    conditions: NodeConditions,
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
            conditions: NodeConditions::default(),
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
        let verdict = self.admission.admit(
            pod,
            &Surroundings {
                node: &node,
                conditions: &self.conditions,
                settings: &self.deps.settings,
                allocation_failure: None,
            },
        );
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

    /// Keeps a pod for a second look.
    pub(crate) fn doubt(&mut self, pod: &Arc<Pod>) {
        if self.doubted.is_empty() {
            self.deps.node.mark_unchanged();
            self.doubted_until = Instant::now() + DOUBT;
        }
        self.doubted.insert(PodRef::of(pod).uid, pod.clone());
    }

    /// The pods whose second look is due: the node has changed, or has had its time to. May be
    /// dropped and called again without losing one.
    pub(crate) async fn second_look(&mut self) -> Vec<Arc<Pod>> {
        if self.doubted.is_empty() {
            return std::future::pending().await;
        }
        tokio::select! {
            biased;
            Ok(()) = self.deps.node.changed() => {}
            () = tokio::time::sleep_until(self.doubted_until) => {}
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
