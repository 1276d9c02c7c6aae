//! Who has been let in. A pod that is in stays in: it is never asked again, and never refused
//! because others have come or because the agent has started anew.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use krablet_pod::api::{Pod, ResourceRequirements};
use krablet_pod::{ActuatedContainer, Actuation, AdmittedPods, Allocation, PodUid};

use super::{
    AdmissionInputs, AdmissionSettings, AdmittedPod, NodeConditions, NodeView, Rejection, Room,
    Verdict, admit,
};
use crate::resize::{self, Infeasible};

/// What a question at the door is answered from, apart from the pods themselves.
#[derive(Clone, Copy, Debug)]
pub struct Surroundings<'a> {
    pub node: &'a NodeView,
    pub conditions: &'a NodeConditions,
    pub settings: &'a AdmissionSettings,
    /// What the owners of devices, CPUs and memory have against this pod.
    pub allocation_failure: Option<&'a Rejection>,
}

/// What becomes of a wish for other resources.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResizeVerdict {
    /// The pod has what it asks for.
    Same,
    Allocated,
    /// There is room once these pods have ended, which is to be seen to.
    AfterPreempting(Room),
    /// Not now; why.
    Deferred(Rejection),
    /// Never on this node.
    Infeasible(Infeasible),
}

/// The pods that were let in.
#[derive(Clone, Debug, Default)]
pub struct PodAdmission {
    /// What is written down, with the resources each was let in with.
    admitted: AdmittedPods,
    /// Found running by an agent that knows nothing else of them.
    running: BTreeSet<PodUid>,
    /// Of those let in, the ones that have come from a source and not ended: they take up room.
    present: BTreeMap<PodUid, AdmittedPod>,
    /// Let in as soon as others have made room. They take up room already, or it would be gone when
    /// the others are; they are not written down, since after a crash all of it has to be done again.
    waiting: BTreeMap<PodUid, AdmittedPod>,
}

impl PodAdmission {
    /// As an earlier life left it: what was written down, and whose containers still run.
    pub fn restored(admitted: AdmittedPods, running: impl IntoIterator<Item = PodUid>) -> Self {
        let mut restored = Self {
            admitted,
            ..Self::default()
        };
        restored.found_running(running);
        restored
    }

    /// These pods' containers run: whoever let them in, they are in.
    pub fn found_running(&mut self, uids: impl IntoIterator<Item = PodUid>) {
        let unknown = uids
            .into_iter()
            .filter(|uid| !self.admitted.pods.contains_key(uid));
        self.running.extend(unknown);
    }

    /// The order in which a batch is to be asked: first who is in already, so that newcomers
    /// find the room taken that is taken; then the oldest first.
    pub fn queue(&self, mut batch: Vec<Arc<Pod>>) -> Vec<Arc<Pod>> {
        batch.sort_by_key(|pod| {
            let created = pod.metadata.creation_timestamp.as_ref().map(|t| t.0);
            (!self.is_admitted(&uid_of(pod)), created)
        });
        batch
    }

    /// Asks for a pod. After [`Verdict::AdmitAfterPreempting`] ask again when one of the named pods has
    /// ended.
    pub fn admit(&mut self, pod: &Pod, surroundings: &Surroundings<'_>) -> Verdict {
        let uid = uid_of(pod);
        if has_ended(pod) {
            return Verdict::Admit;
        }
        if self.is_admitted(&uid) {
            self.take_in(uid, pod, surroundings.settings);
            return Verdict::Admit;
        }
        let verdict = self.ask(&uid, pod, surroundings);
        match &verdict {
            Verdict::Admit => self.take_in(uid, pod, surroundings.settings),
            Verdict::AdmitAfterPreempting(room) => {
                self.send_away(&room.victims);
                self.waiting
                    .insert(uid, AdmittedPod::of(pod, surroundings.settings));
            }
            Verdict::Reject(_) => {
                self.waiting.remove(&uid);
            }
        }
        verdict
    }

    fn send_away(&mut self, victims: &[PodUid]) {
        for victim in victims {
            if let Some(other) = self.present.get_mut(victim) {
                other.leaving = true;
            }
        }
    }

    fn ask(&self, uid: &PodUid, pod: &Pod, surroundings: &Surroundings<'_>) -> Verdict {
        let others: Vec<&AdmittedPod> = self
            .present
            .values()
            .chain(self.waiting.values())
            .filter(|other| other.uid != *uid)
            .collect();
        admit(&AdmissionInputs {
            pod,
            node: surroundings.node,
            conditions: surroundings.conditions,
            settings: surroundings.settings,
            others: &others,
            allocation_failure: surroundings.allocation_failure,
        })
    }

    fn take_in(&mut self, uid: PodUid, pod: &Pod, settings: &AdmissionSettings) {
        self.waiting.remove(&uid);
        self.running.remove(&uid);
        let allocation = self
            .admitted
            .pods
            .entry(uid.clone())
            .or_insert_with(|| Arc::new(Allocation::of(pod)));
        self.present
            .entry(uid)
            .or_insert_with(|| AdmittedPod::of(&allocation.applied(pod), settings));
    }

    /// Asks for other resources for a pod that is in. What is allocated is promised from now on.
    pub fn resize(&mut self, pod: &Pod, surroundings: &Surroundings<'_>) -> ResizeVerdict {
        let uid = uid_of(pod);
        let settings = surroundings.settings;
        let Some(allocation) = self.admitted.pods.get(&uid) else {
            return ResizeVerdict::Same;
        };
        if allocation.is_of(pod) {
            return ResizeVerdict::Same;
        }
        if let Some(why) = resize::infeasible(pod, allocation, &settings.resize) {
            return ResizeVerdict::Infeasible(why);
        }
        match self.ask(&uid, pod, surroundings) {
            Verdict::Reject(why) => ResizeVerdict::Deferred(why),
            Verdict::AdmitAfterPreempting(room) => {
                self.send_away(&room.victims);
                ResizeVerdict::AfterPreempting(room)
            }
            Verdict::Admit => {
                self.allocate(uid, pod, settings);
                ResizeVerdict::Allocated
            }
        }
    }

    fn allocate(&mut self, uid: PodUid, pod: &Pod, settings: &AdmissionSettings) {
        let allocation = Arc::new(Allocation::of(pod));
        let before = self.admitted.pods.insert(uid.clone(), allocation);
        if let Some(before) = before {
            let given = self.admitted.actuated.entry(uid.clone());
            given.or_insert_with(|| Actuation::of(&before));
        }
        self.take_up(uid, pod, settings);
    }

    /// Room is taken up as much as is promised, or as is still in use when that is more.
    fn take_up(&mut self, uid: PodUid, pod: &Pod, settings: &AdmissionSettings) {
        if let Some(place) = self.present.get_mut(&uid) {
            let leaving = place.leaving;
            *place = AdmittedPod::of(pod, settings);
            place.leaving = leaving;
        }
    }

    /// The status of a pod that was resized has changed: it may have given back what it had. True if it
    /// takes up less cpu or memory now.
    pub fn status_changed(&mut self, pod: &Pod, settings: &AdmissionSettings) -> bool {
        let uid = uid_of(pod);
        let known = self.admitted.pods.get(&uid);
        let (Some(allocation), Some(before)) = (known, self.present.get(&uid)) else {
            return false;
        };
        if !self.admitted.actuated.contains_key(&uid) {
            return false;
        }
        let before = before.requests.clone();
        let allocated = allocation.applied(pod).into_owned();
        self.take_up(uid.clone(), &allocated, settings);
        let now = &self.present[&uid].requests;
        ["cpu", "memory"]
            .iter()
            .any(|r| now.get(*r) < before.get(*r))
    }

    /// What a resized pod was last given.
    pub fn actuation(&self, uid: &PodUid) -> Option<&Actuation> {
        self.admitted.actuated.get(uid)
    }

    /// Containers were given what stands here. Only of pods that were ever resized is it noted: the
    /// others have what they were let in with. That one is `resized` may be news, for an agent can have lost
    /// what it had promised. True if it has to be written down.
    pub fn actuated(
        &mut self,
        uid: &PodUid,
        containers: impl IntoIterator<Item = (String, ActuatedContainer)>,
        whole_pod: Option<Option<ResourceRequirements>>,
        resized: bool,
    ) -> bool {
        if resized {
            self.admitted.actuated.entry(uid.clone()).or_default();
        }
        let Some(given) = self.admitted.actuated.get_mut(uid) else {
            return false;
        };
        let before = given.clone();
        given.containers.extend(containers);
        if let Some(whole_pod) = whole_pod {
            given.pod = whole_pod;
        }
        *given != before
    }

    pub fn is_admitted(&self, uid: &PodUid) -> bool {
        self.admitted.pods.contains_key(uid) || self.running.contains(uid)
    }

    /// The resources a pod was let in with.
    pub fn allocation(&self, uid: &PodUid) -> Option<&Allocation> {
        self.admitted.pods.get(uid).map(|own| &**own)
    }

    /// What has to survive the agent.
    pub fn admitted(&self) -> &AdmittedPods {
        &self.admitted
    }

    /// The pod has ended for good: it takes up no room, and is still not asked again.
    pub fn ended(&mut self, uid: &PodUid) {
        self.present.remove(uid);
        self.waiting.remove(uid);
    }

    /// The pod is gone.
    pub fn forget(&mut self, uid: &PodUid) {
        self.ended(uid);
        self.admitted.pods.remove(uid);
        self.admitted.actuated.remove(uid);
        self.running.remove(uid);
    }

    /// Forgets all but these, once every source has told its pods.
    pub fn retain(&mut self, mut keep: impl FnMut(&PodUid) -> bool) {
        self.admitted.pods.retain(|uid, _| keep(uid));
        self.admitted.actuated.retain(|uid, _| keep(uid));
        self.running.retain(&mut keep);
        self.present.retain(|uid, _| keep(uid));
        self.waiting.retain(|uid, _| keep(uid));
    }
}

fn uid_of(pod: &Pod) -> PodUid {
    pod.metadata.uid.as_deref().unwrap_or_default().into()
}

/// A pod its source already calls finished never runs again, so there is nothing to ask.
fn has_ended(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}
