//! One merge of every source into ordered updates. A source delivers its whole set each time; the
//! merge says what changed: pods to add, update, remove, delete, reconcile, restore.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use krablet_pod::api::{Pod, PodStatus};
use krablet_pod::marks::{self, PodSource};
use krablet_pod::{PodRef, PodUid};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// New to this agent.
    Add,
    /// Spec, labels or annotations changed.
    Update,
    /// Gone from the source.
    Remove,
    /// Deletion was requested; the pod ends within its grace period.
    Delete,
    /// Only the status differs from what this agent would say.
    Reconcile,
    /// Known from an earlier life of this agent, before its source has spoken.
    Restore,
}

impl Op {
    pub fn as_str(self) -> &'static str {
        match self {
            Op::Add => "ADD",
            Op::Update => "UPDATE",
            Op::Remove => "REMOVE",
            Op::Delete => "DELETE",
            Op::Reconcile => "RECONCILE",
            Op::Restore => "RESTORE",
        }
    }
}

#[derive(Clone, Debug)]
pub struct PodUpdate {
    pub op: Op,
    pub source: PodSource,
    pub pods: Vec<Arc<Pod>>,
    /// With it all is told that the source has said.
    pub last: bool,
}

/// A pod of a set that was dropped because another one before it has its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Duplicate {
    pub pod: PodRef,
    pub source: PodSource,
}

impl Duplicate {
    /// The text of its `FailedValidation` event.
    pub fn message(&self) -> String {
        let PodRef {
            uid,
            namespace,
            name,
        } = &self.pod;
        format!(
            "Error validating pod {name}_{namespace}({uid}) from {} due to duplicate pod name {:?}, ignoring",
            self.source.as_str(),
            name.to_string(),
        )
    }
}

#[derive(Debug, Default)]
pub struct Merged {
    /// In the order in which they are to be handled.
    pub updates: Vec<PodUpdate>,
    pub duplicates: Vec<Duplicate>,
}

/// What each source last wanted.
#[derive(Debug, Default)]
pub struct Merge {
    pods: BTreeMap<PodSource, BTreeMap<PodUid, Arc<Pod>>>,
    seen: BTreeSet<PodSource>,
}

impl Merge {
    /// Takes the whole set a source wants now. `first_seen` is what new pods carry as the time this
    /// agent first saw them, unless their source has said so. The first set of a source yields an
    /// update even if it is empty: that is how the sync loop learns that the source is ready.
    ///
    /// Sets come with each line of a watch, and almost all of each is as before: no pod and no name
    /// is copied for that.
    pub fn set(&mut self, source: PodSource, set: Vec<Arc<Pod>>, first_seen: &str) -> Merged {
        let known = self.pods.entry(source).or_default();
        let (set, duplicates) = distinct(set, source);
        let removed = take_missing(known, &set);
        let mut changes: [Vec<Arc<Pod>>; 4] = Default::default();
        for pod in set {
            let (change, pod) = match known.get_mut(uid(&pod)) {
                Some(old) => match compare(old, &pod, source) {
                    Some((change, pod)) => {
                        *old = pod.clone();
                        (change, pod)
                    }
                    None => continue,
                },
                None => {
                    let pod = kept(&pod, source, first_seen);
                    known.insert(uid(&pod).into(), pod.clone());
                    (Change::Add, pod)
                }
            };
            changes[change as usize].push(pod);
        }
        let first = self.seen.insert(source);
        let [adds, updates, deletes, reconciles] = changes;
        let ready = first && adds.is_empty() && updates.is_empty() && deletes.is_empty();
        let updates = [
            (Op::Remove, removed, false),
            (Op::Add, adds, ready),
            (Op::Update, updates, false),
            (Op::Delete, deletes, false),
            (Op::Reconcile, reconciles, false),
        ];
        let told =
            |(_, pods, even_if_empty): &(Op, Vec<_>, bool)| *even_if_empty || !pods.is_empty();
        let update = |(op, pods, _)| PodUpdate {
            op,
            source,
            pods,
            last: false,
        };
        let mut updates: Vec<PodUpdate> = updates.into_iter().filter(told).map(update).collect();
        if let Some(last) = updates.last_mut() {
            last.last = true;
        }
        Merged {
            updates,
            duplicates,
        }
    }

    /// Takes pods remembered from an earlier life, for a source that has not spoken yet. They stay
    /// until the source's first set says otherwise; the source does not count as ready. They are
    /// marked like new ones, for what was written down is what the source had said.
    pub fn restore(&mut self, source: PodSource, pods: Vec<Arc<Pod>>, first_seen: &str) -> Merged {
        let mut merged = Merged::default();
        if self.seen.contains(&source) {
            return merged;
        }
        let known = self.pods.entry(source).or_default();
        let mut restored = Vec::new();
        for pod in pods {
            if let Entry::Vacant(place) = known.entry(uid(&pod).into()) {
                let pod = kept(&pod, source, first_seen);
                place.insert(pod.clone());
                restored.push(pod);
            }
        }
        if !restored.is_empty() {
            merged.updates.push(PodUpdate {
                op: Op::Restore,
                source,
                pods: restored,
                last: false,
            });
        }
        merged
    }

    /// Sources that have delivered at least one set.
    pub fn ready(&self) -> &BTreeSet<PodSource> {
        &self.seen
    }
}

#[derive(Clone, Copy)]
enum Change {
    Add = 0,
    Update = 1,
    Delete = 2,
    Reconcile = 3,
}

/// Those of a set that have a name and a UID of their own, in their order, and the others.
fn distinct(set: Vec<Arc<Pod>>, source: PodSource) -> (Vec<Arc<Pod>>, Vec<Duplicate>) {
    let mut uids: BTreeSet<&str> = BTreeSet::new();
    let mut names: BTreeSet<(Option<&str>, Option<&str>)> = BTreeSet::new();
    let mut doubled: Vec<usize> = Vec::new();
    for (index, pod) in set.iter().enumerate() {
        let meta = &pod.metadata;
        let is_new = !uids.contains(uid(pod))
            && names.insert((meta.namespace.as_deref(), meta.name.as_deref()));
        match is_new {
            true => {
                uids.insert(uid(pod));
            }
            false => doubled.push(index),
        }
    }
    if doubled.is_empty() {
        return (set, Vec::new());
    }
    let (mut pods, mut duplicates) = (Vec::new(), Vec::new());
    for (index, pod) in set.into_iter().enumerate() {
        match doubled.binary_search(&index) {
            Ok(_) => duplicates.push(Duplicate {
                pod: PodRef::of(&pod),
                source,
            }),
            Err(_) => pods.push(pod),
        }
    }
    (pods, duplicates)
}

/// Takes out of `known` what `set` does not have.
fn take_missing(known: &mut BTreeMap<PodUid, Arc<Pod>>, set: &[Arc<Pod>]) -> Vec<Arc<Pod>> {
    let still = set.iter().filter(|pod| known.contains_key(uid(pod)));
    if still.count() == known.len() {
        return Vec::new();
    }
    let wanted: BTreeSet<&str> = set.iter().map(|pod| uid(pod)).collect();
    let mut missing = Vec::new();
    known.retain(|uid, pod| {
        let stays = wanted.contains(uid.as_str());
        if !stays {
            missing.push(pod.clone());
        }
        stays
    });
    missing
}

fn uid(pod: &Pod) -> &str {
    pod.metadata.uid.as_deref().unwrap_or_default()
}

/// What of a known pod changed, and the pod as it is to be kept from now on. It was first seen when
/// the old one was.
fn compare(old: &Arc<Pod>, new: &Arc<Pod>, source: PodSource) -> Option<(Change, Arc<Pod>)> {
    let version = &new.metadata.resource_version;
    if version.is_some() && *version == old.metadata.resource_version {
        return None;
    }
    let change = match same_wish(old, new) {
        true if same_status(old.status.as_ref(), new.status.as_ref()) => return None,
        true => Change::Reconcile,
        false if new.metadata.deletion_timestamp.is_some() => Change::Delete,
        false => Change::Update,
    };
    let seen = marks::annotation(old, marks::CONFIG_SEEN).unwrap_or_default();
    Some((change, marked(new, source, seen)))
}

/// Marks this agent puts on pods itself; a source does not have them.
const LOCAL_ANNOTATIONS: [&str; 2] = [marks::CONFIG_SOURCE, marks::CONFIG_SEEN];

fn same_wish(old: &Pod, new: &Pod) -> bool {
    let (a, b) = (&old.metadata, &new.metadata);
    old.spec == new.spec
        && a.labels.as_ref().filter(|l| !l.is_empty())
            == b.labels.as_ref().filter(|l| !l.is_empty())
        && a.deletion_timestamp == b.deletion_timestamp
        && a.deletion_grace_period_seconds == b.deletion_grace_period_seconds
        && own_annotations(old).eq(own_annotations(new))
}

fn own_annotations(pod: &Pod) -> impl Iterator<Item = (&String, &String)> {
    pod.metadata
        .annotations
        .iter()
        .flatten()
        .filter(|(key, _)| !LOCAL_ANNOTATIONS.contains(&key.as_str()))
}

fn same_status(old: Option<&PodStatus>, new: Option<&PodStatus>) -> bool {
    let empty = PodStatus::default();
    old.unwrap_or(&empty) == new.unwrap_or(&empty)
}

/// A new pod as it is to be kept.
fn kept(pod: &Arc<Pod>, source: PodSource, first_seen: &str) -> Arc<Pod> {
    let seen = marks::annotation(pod, marks::CONFIG_SEEN).unwrap_or(first_seen);
    marked(pod, source, seen)
}

/// The pod with these marks: itself if its source has put them there, so that the two hold one pod
/// and not a copy each.
fn marked(pod: &Arc<Pod>, source: PodSource, seen: &str) -> Arc<Pod> {
    let has = |key, value| marks::annotation(pod, key) == Some(value);
    if has(marks::CONFIG_SOURCE, source.as_str()) && has(marks::CONFIG_SEEN, seen) {
        return pod.clone();
    }
    let mut pod = (**pod).clone();
    mark(&mut pod, source, seen);
    Arc::new(pod)
}

/// Puts this agent's own marks on a pod.
pub fn mark(pod: &mut Pod, source: PodSource, first_seen: &str) {
    let annotations = pod.metadata.annotations.get_or_insert_default();
    annotations.insert(marks::CONFIG_SOURCE.into(), source.as_str().into());
    annotations.insert(marks::CONFIG_SEEN.into(), first_seen.into());
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::Timestamp;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use krablet_pod::api::PodSpec;

    fn pod(uid: &str, name: &str) -> Pod {
        let mut pod = Pod::default();
        pod.metadata.uid = Some(uid.into());
        pod.metadata.name = Some(name.into());
        pod.metadata.namespace = Some("ns".into());
        pod.spec = Some(PodSpec::default());
        pod
    }

    fn with(mut pod: Pod, change: impl FnOnce(&mut Pod)) -> Pod {
        change(&mut pod);
        pod
    }

    /// `OP uid uid; OP …`
    fn shown(merged: &Merged) -> String {
        let updates: Vec<String> = merged
            .updates
            .iter()
            .map(|u| {
                let uids = u.pods.iter().map(|p| format!(" {}", PodRef::of(p).uid));
                format!("{}{}", u.op.as_str(), uids.collect::<String>())
            })
            .collect();
        updates.join("; ")
    }

    fn set(merge: &mut Merge, pods: Vec<Pod>) -> Merged {
        merge.set(
            PodSource::File,
            pods.into_iter().map(Arc::new).collect(),
            "t0",
        )
    }

    #[test]
    fn each_kind_of_change() {
        let hostname = |p: &mut Pod| p.spec.get_or_insert_default().hostname = Some("h".into());
        let label = |p: &mut Pod| p.metadata.labels = Some([("a".into(), "b".into())].into());
        let empty_labels = |p: &mut Pod| p.metadata.labels = Some(Default::default());
        let annotation =
            |p: &mut Pod| p.metadata.annotations = Some([("a".into(), "b".into())].into());
        let phase = |p: &mut Pod| p.status.get_or_insert_default().phase = Some("Running".into());
        let deletion =
            |p: &mut Pod| p.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
        type Edit = Box<dyn Fn(&mut Pod)>;
        let cases: [(Edit, &str); 7] = [
            (Box::new(|_| ()), ""),
            (Box::new(hostname), "UPDATE a"),
            (Box::new(label), "UPDATE a"),
            (Box::new(empty_labels), ""),
            (Box::new(annotation), "UPDATE a"),
            (Box::new(phase), "RECONCILE a"),
            (Box::new(deletion), "DELETE a"),
        ];
        for (change, expected) in cases {
            let mut merge = Merge::default();
            assert_eq!(shown(&set(&mut merge, vec![pod("a", "web")])), "ADD a");
            let changed = with(pod("a", "web"), change);
            assert_eq!(shown(&set(&mut merge, vec![changed.clone()])), expected);
            assert_eq!(
                shown(&set(&mut merge, vec![changed])),
                "",
                "after {expected}"
            );
        }
    }

    #[test]
    fn removes_come_first_and_a_new_uid_of_a_name_is_remove_and_add() {
        let mut merge = Merge::default();
        set(&mut merge, vec![pod("a", "web"), pod("b", "db")]);
        let merged = set(&mut merge, vec![pod("c", "web"), pod("b", "db")]);
        assert_eq!(shown(&merged), "REMOVE a; ADD c");
    }

    #[test]
    fn the_first_set_makes_a_source_ready_even_if_empty() {
        let mut merge = Merge::default();
        assert!(merge.ready().is_empty());
        assert_eq!(shown(&set(&mut merge, vec![])), "ADD");
        assert_eq!(shown(&set(&mut merge, vec![])), "");
        assert!(merge.ready().contains(&PodSource::File));
    }

    #[test]
    fn the_second_pod_of_a_name_is_dropped_and_reported() {
        let mut merge = Merge::default();
        let merged = set(
            &mut merge,
            vec![pod("a", "web"), pod("b", "web"), pod("a", "x")],
        );
        assert_eq!(shown(&merged), "ADD a");
        let uids: Vec<&str> = merged
            .duplicates
            .iter()
            .map(|d| d.pod.uid.as_str())
            .collect();
        assert_eq!(uids, ["b", "a"]);
        assert_eq!(
            merged.duplicates[0].message(),
            r#"Error validating pod web_ns(b) from file due to duplicate pod name "web", ignoring"#
        );
    }

    #[test]
    fn sources_are_apart_and_marks_stay() {
        let mut merge = Merge::default();
        set(&mut merge, vec![pod("a", "web")]);
        let other = merge.set(PodSource::Http, vec![Arc::new(pod("b", "web"))], "t1");
        assert_eq!(shown(&other), "ADD b");
        let changed = with(pod("a", "web"), |p| {
            p.spec.get_or_insert_default().hostname = Some("h".into());
        });
        let merged = merge.set(PodSource::File, vec![Arc::new(changed)], "t2");
        let kept = &merged.updates[0].pods[0];
        assert_eq!(marks::annotation(kept, marks::CONFIG_SEEN), Some("t0"));
        assert_eq!(marks::annotation(kept, marks::CONFIG_SOURCE), Some("file"));
    }

    #[test]
    fn a_pod_that_its_source_marked_is_kept_as_it_is() {
        let api = PodSource::Api;
        let from_api = |change: fn(&mut Pod)| {
            let mut pod = with(pod("a", "web"), change);
            mark(&mut pod, api, "t1");
            Arc::new(pod)
        };
        let mut merge = Merge::default();
        let given = from_api(|_| ());
        let merged = merge.set(api, vec![given.clone()], "t2");
        assert!(Arc::ptr_eq(&merged.updates[0].pods[0], &given));
        let changed = from_api(|p| p.metadata.labels = Some([("a".into(), "b".into())].into()));
        let merged = merge.set(api, vec![changed.clone()], "t2");
        assert_eq!(shown(&merged), "UPDATE a");
        assert!(Arc::ptr_eq(&merged.updates[0].pods[0], &changed));
        // One that says it comes from elsewhere is not believed.
        let mut foreign = pod("b", "db");
        mark(&mut foreign, PodSource::File, "t1");
        let merged = merge.set(api, vec![changed, Arc::new(foreign)], "t2");
        assert_eq!(shown(&merged), "ADD b");
        assert_eq!(PodSource::of(&merged.updates[0].pods[0]), Some(api));
    }

    #[test]
    fn restored_pods_wait_for_their_source_to_speak() {
        let mut merge = Merge::default();
        let api = PodSource::Api;
        let pods = vec![Arc::new(pod("a", "web")), Arc::new(pod("b", "db"))];
        let restored = merge.restore(api, pods.clone(), "t");
        assert_eq!(shown(&restored), "RESTORE a b");
        let marked = |pod: &Arc<Pod>| PodSource::of(pod) == Some(api);
        assert!(restored.updates[0].pods.iter().all(marked));
        assert!(!merge.ready().contains(&api));
        let merged = merge.set(api, vec![Arc::new(pod("a", "web"))], "t");
        assert_eq!(shown(&merged), "REMOVE b; ADD");
        let last = |merged: &Merged| merged.updates.iter().map(|u| u.last).collect::<Vec<_>>();
        assert_eq!(
            (last(&restored), last(&merged)),
            (vec![false], vec![false, true])
        );
        assert_eq!(shown(&merge.restore(api, pods, "t")), "");
    }
}
