//! Which pods a node has let in, and with which resources: the promise that is kept over restarts.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::PodUid;
use crate::api::{Pod, ResourceRequirements};
use crate::containers;

/// The resources a pod was let in with. A spec changed later does not change them by itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Allocation {
    /// By the container's name; init containers too.
    #[serde(default)]
    pub containers: BTreeMap<String, ResourceRequirements>,
    /// What is set for the pod as a whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<ResourceRequirements>,
}

impl Allocation {
    /// What a pod's spec asks for now.
    pub fn of(pod: &Pod) -> Self {
        let Some(spec) = pod.spec.as_ref() else {
            return Self::default();
        };
        let resources = containers::all(spec).map(|c| {
            let resources = c.container.resources.clone().unwrap_or_default();
            (c.container.name.clone(), resources)
        });
        Self {
            containers: resources.collect(),
            pod: spec.resources.clone(),
        }
    }

    /// The pod with these resources in the place of its spec's. Containers not known here keep
    /// their own.
    pub fn applied<'a>(&self, pod: &'a Pod) -> Cow<'a, Pod> {
        if *self == Self::of(pod) || pod.spec.is_none() {
            return Cow::Borrowed(pod);
        }
        let mut pod = pod.clone();
        if let Some(spec) = pod.spec.as_mut() {
            spec.resources.clone_from(&self.pod);
            let init = spec.init_containers.iter_mut().flatten();
            for container in init.chain(&mut spec.containers) {
                if let Some(allocated) = self.containers.get(&container.name) {
                    container.resources = Some(allocated.clone());
                }
            }
        }
        Cow::Owned(pod)
    }
}

/// Every pod let in and not yet gone.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AdmittedPods {
    #[serde(default)]
    pub pods: BTreeMap<PodUid, Allocation>,
}

impl AdmittedPods {
    /// Adds what another record knows; where both know a pod, the other is right.
    pub fn absorb(&mut self, other: AdmittedPods) {
        self.pods.extend(other.pods);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(cpu: &str) -> Pod {
        let asks = json!({"requests": {"cpu": cpu}});
        serde_json::from_value(json!({"spec": {
            "containers": [{"name": "a", "resources": asks}, {"name": "b"}],
            "initContainers": [{"name": "i", "resources": asks}],
        }}))
        .unwrap()
    }

    #[test]
    fn an_allocation_is_put_in_the_place_of_the_spec() {
        let allocation = Allocation::of(&pod("1"));
        assert!(matches!(allocation.applied(&pod("1")), Cow::Borrowed(_)));
        let larger = pod("2");
        let applied = allocation.applied(&larger);
        assert_eq!(Allocation::of(&applied), allocation);
        let none = Pod::default();
        assert_eq!(*allocation.applied(&none), none);
    }

    #[test]
    fn a_container_it_does_not_know_keeps_its_own() {
        let mut allocation = Allocation::of(&pod("1"));
        allocation.containers.remove("a");
        let applied = Allocation::of(&allocation.applied(&pod("2")));
        assert_eq!(
            applied.containers["a"],
            Allocation::of(&pod("2")).containers["a"]
        );
        assert_eq!(
            applied.containers["i"],
            Allocation::of(&pod("1")).containers["i"]
        );
    }

    #[test]
    fn records_survive_writing_and_meet() {
        let mut ours = AdmittedPods::default();
        ours.pods.insert("u1".into(), Allocation::of(&pod("1")));
        ours.pods.insert("u2".into(), Allocation::of(&pod("1")));
        let text = serde_json::to_string(&ours).unwrap();
        assert_eq!(serde_json::from_str::<AdmittedPods>(&text).unwrap(), ours);
        let mut other = AdmittedPods::default();
        other.pods.insert("u2".into(), Allocation::of(&pod("2")));
        ours.absorb(other);
        assert_eq!(ours.pods[&PodUid::from("u2")], Allocation::of(&pod("2")));
        assert_eq!(ours.pods.len(), 2);
    }
}
