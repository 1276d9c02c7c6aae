//! Mirror pods: objects on the API server that show this node's static pods to the cluster. Only
//! the hash of the manifest decides; whatever else is done to a mirror pod is no matter.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use krablet_pod::api::Pod;
use krablet_pod::observed::{ContainerState, ObservedContainer, ObservedPod};
use krablet_pod::{FullName, PodRef, marks};

use crate::status::{is_terminal, runtime_id};

/// The Node object that owns the mirror pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeOwner {
    pub name: String,
    pub uid: String,
}

pub struct MirrorInputs<'a> {
    /// `None` while the Node object is not known, or is being deleted: nothing is made then.
    pub owner: Option<&'a NodeOwner>,
    /// The static pods that are wanted.
    pub statics: &'a [Arc<Pod>],
    /// The mirror pods of this node on the API server.
    pub mirrors: &'a [Arc<Pod>],
    /// Mirror pods that tell the end of a static pod that came back and lives anew.
    pub of_past_lives: &'a [PodRef],
    /// Whether a static pod of that name has not ended yet.
    pub ending: &'a dyn Fn(&FullName) -> bool,
}

#[derive(Clone, Debug, PartialEq)]
pub enum MirrorAction {
    Create(Box<Pod>),
    /// At once, and only if it still is this very object.
    Delete(PodRef),
}

/// What makes the mirror pods like the static ones. A mirror that must be replaced is deleted first; its
/// successor follows when the deletion was seen.
pub fn mirror_actions(inputs: &MirrorInputs<'_>) -> Vec<MirrorAction> {
    let mirrors: BTreeMap<FullName, &Arc<Pod>> = inputs
        .mirrors
        .iter()
        .map(|pod| (PodRef::of(pod).full_name(), pod))
        .collect();
    let is_past = |mirror: &Pod| inputs.of_past_lives.contains(&PodRef::of(mirror));
    let mut wanted = BTreeSet::new();
    let mut actions = Vec::new();
    for pod in inputs.statics {
        let name = PodRef::of(pod).full_name();
        match (mirrors.get(&name), inputs.owner) {
            (Some(mirror), _) if !mirrors_well(mirror, pod) || is_past(mirror) => {
                actions.push(MirrorAction::Delete(PodRef::of(mirror)));
            }
            (None, Some(owner)) => {
                actions.push(MirrorAction::Create(Box::new(mirror_of(pod, owner))));
            }
            _ => {}
        }
        wanted.insert(name);
    }
    for (name, mirror) in mirrors {
        if !wanted.contains(&name) && !(inputs.ending)(&name) {
            actions.push(MirrorAction::Delete(PodRef::of(mirror)));
        }
    }
    actions
}

/// Whether a mirror pod stands for this static pod as it is now.
pub fn mirrors_well(mirror: &Pod, pod: &Pod) -> bool {
    mirror.metadata.deletion_timestamp.is_none() && shown_hash(mirror) == own_hash(pod)
}

/// A mirror that says the pod is over, and with other containers than those that ran last here, tells of an earlier life:
/// the manifest went and came back, and whoever knew that is gone. A pod that is over does not run again in the same life.
pub fn tells_of_past_life(mirror: &Pod, observed: &ObservedPod) -> bool {
    let Some(status) = mirror.status.as_ref().filter(|s| is_terminal(s)) else {
        return false;
    };
    let lists = [&status.init_container_statuses, &status.container_statuses];
    let mut told = lists.into_iter().flatten().flatten();
    told.any(|told| {
        let ran = |c: &&ObservedContainer| {
            matches!(c.state, ContainerState::Running | ContainerState::Exited)
        };
        let last = observed.newest(&told.name).filter(ran);
        let id = told.container_id.as_deref().map(runtime_id);
        let id = id.filter(|id| !id.is_empty());
        last.zip(id)
            .is_some_and(|(last, id)| last.id.as_str() != id)
    })
}

fn shown_hash(mirror: &Pod) -> Option<&str> {
    marks::annotation(mirror, marks::CONFIG_MIRROR)
}

fn own_hash(pod: &Pod) -> Option<&str> {
    marks::annotation(pod, marks::CONFIG_HASH)
}

fn mirror_of(pod: &Pod, owner: &NodeOwner) -> Pod {
    let mut mirror = pod.clone();
    let metadata = &mut mirror.metadata;
    metadata.uid = None;
    metadata.resource_version = None;
    metadata.owner_references = Some(vec![OwnerReference {
        api_version: "v1".into(),
        kind: "Node".into(),
        name: owner.name.clone(),
        uid: owner.uid.clone(),
        controller: Some(true),
        block_owner_deletion: None,
    }]);
    let hash = own_hash(pod).unwrap_or_default().to_owned();
    let annotations = metadata.annotations.get_or_insert_default();
    annotations.insert(marks::CONFIG_MIRROR.into(), hash);
    mirror.status = None;
    mirror
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::actions::testkit;
    use jiff::Timestamp;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use serde_json::json;

    /// `name:hash`, with `!` at the end if it is being deleted, or `~` for a mirror of a past life.
    fn pods(text: &str, annotation: &str) -> Vec<Arc<Pod>> {
        let pod = |word: &str| {
            let (word, deleted) = match word.strip_suffix('!') {
                Some(word) => (word, true),
                None => (word, false),
            };
            let (name, hash) = word.split_once(':').unwrap_or((word, ""));
            let mut pod = Pod::default();
            pod.metadata.name = Some(name.into());
            pod.metadata.namespace = Some("ns".into());
            pod.metadata.uid = Some(format!("{annotation}-{name}"));
            pod.metadata.annotations = Some([(annotation.to_owned(), hash.to_owned())].into());
            pod.metadata.deletion_timestamp = deleted.then_some(Time(Timestamp::UNIX_EPOCH));
            Arc::new(pod)
        };
        text.split_whitespace().map(pod).collect()
    }

    fn decide(statics: &str, mirrors: &str, ending: &str, known_node: bool) -> String {
        let owner = NodeOwner {
            name: "node".into(),
            uid: "u".into(),
        };
        let past = mirrors.split_whitespace().filter_map(|word| {
            let (name, _) = word.strip_suffix('~')?.split_once(':')?;
            Some(PodRef::new(
                format!("{}-{name}", marks::CONFIG_MIRROR).as_str(),
                "ns",
                name,
            ))
        });
        let past: Vec<PodRef> = past.collect();
        let mirrors = &mirrors.replace('~', "");
        let actions = mirror_actions(&MirrorInputs {
            owner: known_node.then_some(&owner),
            statics: &pods(statics, marks::CONFIG_HASH),
            mirrors: &pods(mirrors, marks::CONFIG_MIRROR),
            of_past_lives: &past,
            ending: &|name| ending.split_whitespace().any(|e| e == &*name.name),
        });
        let word = |action: &MirrorAction| match action {
            MirrorAction::Create(pod) => {
                let hash = marks::annotation(pod, marks::CONFIG_MIRROR).unwrap_or("none");
                format!("+{}:{hash}", PodRef::of(pod).name)
            }
            MirrorAction::Delete(pod) => format!("-{}", pod.name),
        };
        let words: Vec<String> = actions.iter().map(word).collect();
        words.join(" ")
    }

    #[test]
    fn mirrors_follow_the_static_pods() {
        for (statics, mirrors, ending, expected) in [
            ("a:1 b:2", "", "", "+a:1 +b:2"),
            ("a:1", "a:1", "", ""),
            ("a:2", "a:1", "", "-a"),
            ("a:1", "a:1!", "", "-a"),
            ("a:1 b:1", "a:1~ b:1", "", "-a"),
            ("", "a:1", "", "-a"),
            ("", "a:1", "a", ""),
            ("b:1", "a:1", "", "+b:1 -a"),
        ] {
            let got = decide(statics, mirrors, ending, true);
            assert_eq!(got, expected, "{statics} | {mirrors} | {ending}");
        }
    }

    #[test]
    fn a_mirror_that_ended_with_other_containers_is_of_a_past_life() {
        for (phase, id, seen, expected) in [
            ("Succeeded", "x://a-0", "S0 a:exit0", false),
            ("Succeeded", "x://a-9", "S0 a:exit0", true),
            ("Failed", "x://a-9", "S0 a:run", true),
            ("Running", "x://a-9", "S0 a:run", false),
            // One that was only made did not run.
            ("Succeeded", "x://a-0", "S0 a:made a:exit0", false),
            ("Succeeded", "x://a-0", "S0 a:exit0 a:exit1", true),
            ("Succeeded", "", "S0 a:run", false),
            ("Succeeded", "x://a-0", "", false),
        ] {
            let container = json!({
                "name": "a", "image": "", "imageID": "", "ready": false, "restartCount": 0,
                "containerID": id,
            });
            let status = json!({"phase": phase, "containerStatuses": [container]});
            let mirror = Pod {
                status: Some(serde_json::from_value(status).unwrap()),
                ..Pod::default()
            };
            let observed = testkit::seen(&testkit::pod("c:a"), seen).observed;
            let got = tells_of_past_life(&mirror, &observed);
            assert_eq!(got, expected, "{phase} {id} | {seen}");
        }
        let untold = testkit::seen(&testkit::pod("c:a"), "S0 a:run").observed;
        assert!(!tells_of_past_life(&Pod::default(), &untold));
    }

    #[test]
    fn without_a_node_none_is_made_but_stale_ones_go() {
        assert_eq!(decide("a:1 b:2", "b:1 c:1", "", false), "-b -c");
    }

    #[test]
    fn a_mirror_belongs_to_its_node_and_has_no_past() {
        let owner = NodeOwner {
            name: "node".into(),
            uid: "u".into(),
        };
        let mirror = mirror_of(&pods("a:1", marks::CONFIG_HASH)[0], &owner);
        assert_eq!(mirror.metadata.uid, None);
        let owners = mirror.metadata.owner_references.unwrap_or_default();
        assert_eq!(owners.len(), 1);
        assert_eq!(
            (owners[0].kind.as_str(), owners[0].uid.as_str()),
            ("Node", "u")
        );
        assert_eq!(owners[0].controller, Some(true));
    }
}
