//! Which pods a node has let in, and with which resources: the promise that is kept over restarts.
//! Beside it stands what the containers were last given, where a resize has made the two differ.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::api::{Container, Pod, ResourceRequirements};
use crate::containers;
use crate::resources::{parse, with_pod_limits};
use crate::{ByName, ContainerId, PodUid};

/// The resources a pod was let in with. A spec changed later does not change them by itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Allocation {
    /// By the container's name; init containers too.
    #[serde(default)]
    pub containers: ByName<ResourceRequirements>,
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

    /// Whether a pod's spec asks for exactly this, however it writes the amounts.
    pub fn is_of(&self, pod: &Pod) -> bool {
        let Some(spec) = pod.spec.as_ref() else {
            return true;
        };
        let own = |c: &Container| {
            let allocated = self.containers.get(&c.name);
            allocated.is_none_or(|a| same(Some(a), c.resources.as_ref()))
        };
        same(self.pod.as_ref(), spec.resources.as_ref())
            && containers::all(spec).all(|c| own(c.container))
    }

    /// The pod with these resources in the place of its spec's. Containers not known here keep
    /// their own.
    pub fn applied<'a>(&self, pod: &'a Pod) -> Cow<'a, Pod> {
        if self.is_of(pod) {
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

/// No list is as good as an empty one, and `1000m` as good as `1`.
fn same(a: Option<&ResourceRequirements>, b: Option<&ResourceRequirements>) -> bool {
    if a == b {
        return true;
    }
    let lists = |r: Option<&ResourceRequirements>| {
        let requests = r.and_then(|r| r.requests.as_ref());
        let limits = r.and_then(|r| r.limits.as_ref());
        (parse(requests), parse(limits))
    };
    lists(a) == lists(b)
}

/// What a resized pod and its containers were last given.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Actuation {
    /// By the container's name; limits of the pod stand where a container has none.
    #[serde(default)]
    pub containers: BTreeMap<String, ActuatedContainer>,
    /// What is set for the pod as a whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<ResourceRequirements>,
}

impl Actuation {
    /// Of a pod that was given what it was promised.
    pub fn of(allocation: &Allocation) -> Self {
        let containers = allocation.containers.iter().map(|(name, own)| {
            let resources = with_pod_limits(own, allocation.pod.as_ref());
            (
                name.clone(),
                ActuatedContainer {
                    id: None,
                    resources,
                },
            )
        });
        Self {
            containers: containers.collect(),
            pod: allocation.pod.clone(),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ActuatedContainer {
    /// The instance that was resized while it ran; of others their own annotation knows better.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<ContainerId>,
    #[serde(default)]
    pub resources: ResourceRequirements,
}

/// Every pod let in and not yet gone.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AdmittedPods {
    /// Shared with every copy: one is made whenever they are written down.
    #[serde(default, with = "shared")]
    pub pods: BTreeMap<PodUid, Arc<Allocation>>,
    /// Of pods that were resized. Those of all others are what they were let in with.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub actuated: BTreeMap<PodUid, Actuation>,
}

impl AdmittedPods {
    /// Adds what another record knows; where both know a pod, the other is right.
    pub fn absorb(&mut self, other: AdmittedPods) {
        for (uid, theirs) in other.actuated {
            let ours = self.actuated.remove(&uid);
            self.actuated.insert(uid, absorbed(ours, theirs));
        }
        self.pods.extend(other.pods);
    }
}

mod shared {
    use super::{Allocation, Arc, BTreeMap, Deserialize, Deserializer, PodUid, Serializer};

    pub(super) fn serialize<S: Serializer>(
        pods: &BTreeMap<PodUid, Arc<Allocation>>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_map(pods.iter().map(|(uid, allocation)| (uid, &**allocation)))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<BTreeMap<PodUid, Arc<Allocation>>, D::Error> {
        let pods = BTreeMap::<PodUid, Allocation>::deserialize(deserializer)?;
        let pods = pods.into_iter();
        Ok(pods.map(|(uid, own)| (uid, Arc::new(own))).collect())
    }
}

/// The other record does not know which instance was given what: where it says the same, ours does.
fn absorbed(ours: Option<Actuation>, mut theirs: Actuation) -> Actuation {
    let known = ours.map(|o| o.containers).unwrap_or_default();
    for (name, container) in known {
        if let Some(told) = theirs.containers.get_mut(&name)
            && same(Some(&told.resources), Some(&container.resources))
        {
            told.id = container.id;
        }
    }
    theirs
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
    fn the_same_amounts_in_other_words() {
        let allocation = Allocation::of(&pod("1"));
        assert!(allocation.is_of(&pod("1000m")));
        assert!(!allocation.is_of(&pod("1001m")));
        let mut without = pod("1");
        without.spec.as_mut().unwrap().containers[1].resources = Some(Default::default());
        assert!(allocation.is_of(&without));
        without.spec.as_mut().unwrap().resources = Some(Default::default());
        assert!(allocation.is_of(&without));
        without.spec.as_mut().unwrap().containers[0].resources = None;
        assert!(!allocation.is_of(&without));
    }

    #[test]
    fn a_container_it_does_not_know_keeps_its_own() {
        let mut allocation = Allocation::of(&pod("1"));
        let others = allocation.containers.into_iter();
        allocation.containers = others.filter(|(name, _)| name != "a").collect();
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
        ours.pods
            .insert("u1".into(), Allocation::of(&pod("1")).into());
        ours.pods
            .insert("u2".into(), Allocation::of(&pod("1")).into());
        let text = serde_json::to_string(&ours).unwrap();
        assert_eq!(serde_json::from_str::<AdmittedPods>(&text).unwrap(), ours);
        let mut other = AdmittedPods::default();
        other
            .pods
            .insert("u2".into(), Allocation::of(&pod("2")).into());
        ours.absorb(other);
        assert_eq!(*ours.pods[&PodUid::from("u2")], Allocation::of(&pod("2")));
        assert_eq!(ours.pods.len(), 2);
    }

    #[test]
    fn the_form_is_fixed() {
        let mut pods = AdmittedPods::default();
        assert_eq!(serde_json::to_string(&pods).unwrap(), r#"{"pods":{}}"#);
        pods.pods
            .insert("u".into(), Allocation::of(&pod("1")).into());
        let text = r#"{"pods":{"u":{"containers":{"a":{"requests":{"cpu":"1"}},"b":{},"i":{"requests":{"cpu":"1"}}}}}}"#;
        assert_eq!(serde_json::to_string(&pods).unwrap(), text);
        for (text, expected) in [(text, pods), ("{}", AdmittedPods::default())] {
            assert_eq!(
                serde_json::from_str::<AdmittedPods>(text).unwrap(),
                expected
            );
        }
        // The later of two that have one name.
        let twice = r#"{"containers":{"b":{},"a":{},"a":{"requests":{"cpu":"1"}}}}"#;
        let read: Allocation = serde_json::from_str(twice).unwrap();
        assert_eq!(
            read.containers["a"],
            Allocation::of(&pod("1")).containers["a"]
        );
    }

    #[test]
    fn which_instance_was_resized_is_not_forgotten() {
        let given = |id: Option<&str>, cpu: &str| Actuation {
            containers: [(
                "a".to_owned(),
                ActuatedContainer {
                    id: id.map(ContainerId::from),
                    resources: Allocation::of(&pod(cpu)).containers["a"].clone(),
                },
            )]
            .into(),
            pod: None,
        };
        for (theirs, id) in [("1000m", Some("c1")), ("2", None)] {
            let mut ours = AdmittedPods::default();
            ours.actuated.insert("u".into(), given(Some("c1"), "1"));
            let mut other = AdmittedPods::default();
            other.actuated.insert("u".into(), given(None, theirs));
            ours.absorb(other);
            assert_eq!(ours.actuated[&PodUid::from("u")], given(id, theirs));
        }
    }
}
