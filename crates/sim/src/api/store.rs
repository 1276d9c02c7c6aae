//! The objects of the simulated API server and every change of them. Pure but for the clock it is
//! handed: what a request does here is done, whoever asked.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use krablet_core::patch::{self, POD_STATUS};
use krablet_core::status;
use krablet_kube::ApiError;
use krablet_pod::api::{ContainerStatus, Pod, PodStatus};
use krablet_pod::containers;
use krablet_pod::qos::qos_class;
use serde_json::Value;
use tokio::time::Instant;

use crate::rules::{self, Follows};

/// Namespace and name.
pub(super) type Key = (String, String);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Added,
    Modified,
    Deleted,
}

impl Kind {
    fn as_str(self) -> &'static str {
        match self {
            Kind::Added => "ADDED",
            Kind::Modified => "MODIFIED",
            Kind::Deleted => "DELETED",
        }
    }
}

/// One version of an object.
pub(super) struct Stored {
    pub(super) pod: Arc<Pod>,
    pub(super) bytes: Bytes,
}

/// One change. All of them are kept: a schedule is short.
pub(super) struct Change {
    at: Instant,
    kind: Kind,
    key: Key,
    object: Arc<Stored>,
}

impl Change {
    pub(super) fn line(&self) -> Bytes {
        let kind = self.kind.as_str();
        let object = &self.object.bytes;
        let mut line = format!(r#"{{"type":"{kind}","object":"#).into_bytes();
        line.extend_from_slice(object);
        line.push(b'}');
        line.into()
    }
}

#[derive(Default)]
pub(super) struct Store {
    objects: BTreeMap<Key, Arc<Stored>>,
    /// The change that made version n is the n-th.
    changes: Vec<Change>,
    /// What happened up to this version is forgotten.
    pub(super) forgotten: usize,
    /// UIDs given so far.
    given: u32,
}

pub(super) fn key_of(pod: &Pod) -> Key {
    let metadata = &pod.metadata;
    (
        metadata.namespace.clone().unwrap_or_default(),
        metadata.name.clone().unwrap_or_default(),
    )
}

pub(super) fn refusal(code: u16, reason: &str, message: String) -> ApiError {
    ApiError::Status {
        code,
        reason: reason.to_owned(),
        message,
        retry_after: None,
    }
}

pub(super) fn not_found(key: &Key) -> ApiError {
    refusal(404, "NotFound", format!("pods {:?} not found", key.1))
}

fn encode(pod: &Pod) -> Result<Bytes, ApiError> {
    let bytes = serde_json::to_vec(pod).map_err(|e| ApiError::Decode(e.to_string()))?;
    Ok(bytes.into())
}

/// What deleting an object led to.
pub(super) enum Deleted {
    Gone(Arc<Pod>),
    /// It is to end by itself first.
    Marked(Arc<Pod>),
}

impl Store {
    pub(super) fn version(&self) -> usize {
        self.changes.len()
    }

    pub(super) fn get(&self, key: &Key) -> Option<&Arc<Stored>> {
        self.objects.get(key)
    }

    pub(super) fn pods(&self) -> Vec<Arc<Pod>> {
        self.objects.values().map(|o| o.pod.clone()).collect()
    }

    pub(super) fn change(&self, number: usize) -> Option<&Change> {
        self.changes.get(number)
    }

    /// The version the store had at that time.
    pub(super) fn version_at(&self, at: Instant) -> usize {
        self.changes.partition_point(|change| change.at <= at)
    }

    /// A list as of a version.
    pub(super) fn list(&self, version: usize) -> Bytes {
        let mut objects: BTreeMap<&Key, &Arc<Stored>> = BTreeMap::new();
        if version >= self.version() {
            objects.extend(&self.objects);
        } else {
            for change in &self.changes[..version] {
                match change.kind {
                    Kind::Deleted => drop(objects.remove(&change.key)),
                    _ => drop(objects.insert(&change.key, &change.object)),
                }
            }
        }
        let mut list =
            format!(r#"{{"metadata":{{"resourceVersion":"{version}"}},"items":["#).into_bytes();
        for (n, object) in objects.values().enumerate() {
            if n > 0 {
                list.push(b',');
            }
            list.extend_from_slice(&object.bytes);
        }
        list.extend_from_slice(b"]}");
        list.into()
    }

    fn write(&mut self, mut pod: Pod, kind: Kind) -> Result<Arc<Stored>, ApiError> {
        let key = key_of(&pod);
        pod.metadata.resource_version = Some((self.version() + 1).to_string());
        let object = Arc::new(Stored {
            bytes: encode(&pod)?,
            pod: Arc::new(pod),
        });
        match kind {
            Kind::Deleted => drop(self.objects.remove(&key)),
            _ => drop(self.objects.insert(key.clone(), object.clone())),
        }
        self.changes.push(Change {
            at: Instant::now(),
            kind,
            key,
            object: object.clone(),
        });
        Ok(object)
    }

    pub(super) fn create(&mut self, mut pod: Pod, now: Timestamp) -> Result<Arc<Stored>, ApiError> {
        let key = key_of(&pod);
        if self.objects.contains_key(&key) {
            let message = format!("pods {:?} already exists", key.1);
            return Err(refusal(409, "AlreadyExists", message));
        }
        self.given += 1;
        let given = format!("{}-api{}", key.1, self.given);
        pod.metadata.uid.get_or_insert(given);
        pod.metadata.creation_timestamp = Some(Time(now));
        pod.metadata.generation = Some(1);
        let qos = pod.spec.as_ref().map(qos_class);
        pod.status = Some(PodStatus {
            phase: Some(status::PENDING.to_owned()),
            qos_class: qos.map(|q| q.as_str().to_owned()),
            ..PodStatus::default()
        });
        self.write(pod, Kind::Added)
    }

    /// A change by somebody else. With the last finalizer, an object goes that was there only because of them.
    pub(super) fn edit(
        &mut self,
        key: &Key,
        edit: impl FnOnce(&mut Pod),
    ) -> Result<Arc<Stored>, ApiError> {
        let object = self.objects.get(key).ok_or_else(|| not_found(key))?;
        let mut pod = (*object.pod).clone();
        edit(&mut pod);
        let kind = match has_to_go(&pod) {
            true => Kind::Deleted,
            false => Kind::Modified,
        };
        self.write(pod, kind)
    }

    /// The status becomes what the patch makes of it. Nothing is written if that changes nothing.
    pub(super) fn patch_status(
        &mut self,
        key: &Key,
        change: &Value,
    ) -> Result<Arc<Stored>, ApiError> {
        let object = self.objects.get(key).ok_or_else(|| not_found(key))?;
        let bad = |e: serde_json::Error| refusal(422, "Invalid", e.to_string());
        let old = serde_json::to_value(&object.pod.status).map_err(bad)?;
        let new = patch::apply(&old, change, POD_STATUS);
        if new == old {
            return Ok(object.clone());
        }
        let mut pod = (*object.pod).clone();
        pod.status = Some(serde_json::from_value(new).map_err(bad)?);
        if let Some(why) = revived(&object.pod, &pod) {
            return Err(refusal(422, "Invalid", why));
        }
        self.write(pod, Kind::Modified)
    }

    /// The first word of it marks the object, later ones only leave it less time; a pod that is over is left none. One
    /// without any is then taken away, unless there are finalizers.
    pub(super) fn delete(
        &mut self,
        key: &Key,
        grace: i64,
        now: Timestamp,
    ) -> Result<Deleted, ApiError> {
        let object = self.objects.get(key).ok_or_else(|| not_found(key))?;
        let mut pod = object.pod.clone();
        let over = pod.status.as_ref().is_some_and(status::is_terminal);
        let metadata = &pod.metadata;
        let left = metadata.deletion_grace_period_seconds.unwrap_or(0);
        let begun = match &metadata.deletion_timestamp {
            None => Some((now, if over { 0 } else { grace })),
            Some(at) if grace < left => Some((at.0 - SignedDuration::from_secs(left), grace)),
            Some(_) => None,
        };
        if let Some((begun, grace)) = begun {
            pod = self
                .write(marked(&pod, begun, grace), Kind::Modified)?
                .pod
                .clone();
        }
        if !has_to_go(&pod) {
            return Ok(Deleted::Marked(pod));
        }
        let gone = self.write((*pod).clone(), Kind::Deleted)?;
        Ok(Deleted::Gone(gone.pod.clone()))
    }
}

/// The pod as one that is to go, so long after that.
fn marked(pod: &Pod, begun: Timestamp, grace: i64) -> Pod {
    let mut pod = pod.clone();
    let metadata = &mut pod.metadata;
    if metadata.deletion_timestamp.is_none() {
        metadata.generation = metadata.generation.map(|g| g + 1);
    }
    metadata.deletion_timestamp = Some(Time(begun + SignedDuration::from_secs(grace)));
    metadata.deletion_grace_period_seconds = Some(grace);
    pod
}

/// It was deleted, has no time left, and nobody keeps it.
fn has_to_go(pod: &Pod) -> bool {
    let metadata = &pod.metadata;
    metadata.deletion_timestamp.is_some()
        && metadata.deletion_grace_period_seconds.unwrap_or(0) == 0
        && metadata.finalizers.iter().flatten().next().is_none()
}

/// A container that has ended for good and now has not: no API server takes that.
fn revived(old: &Pod, new: &Pod) -> Option<String> {
    let spec = old.spec.as_ref()?;
    let (old, new) = (old.status.as_ref()?, new.status.as_ref()?);
    let all_may = spec.restart_policy.as_deref().unwrap_or("Always") == "Always"
        || rules::may_restart_all(spec);
    let init = containers::init_containers(spec);
    let lists = [
        (
            init,
            &old.init_container_statuses,
            &new.init_container_statuses,
        ),
        (
            &spec.containers[..],
            &old.container_statuses,
            &new.container_statuses,
        ),
    ];
    // Of ephemeral ones none comes back, whatever the pod's policy says.
    let (was, is) = (
        &old.ephemeral_container_statuses,
        &new.ephemeral_container_statuses,
    );
    let ephemeral = back_to_life(was, is, |_, _| false);
    let mut lists = lists.into_iter().filter(|_| !all_may);
    let other = lists.find_map(|(containers, old, new)| {
        back_to_life(old, new, |name, code| {
            let own = containers.iter().find(|c| c.name == name);
            own.is_some_and(|c| rules::after_exit(spec, c, code) != Follows::Nothing)
        })
    });
    let name = ephemeral.or(other)?;
    Some(format!(
        "{name}: may not be transitioned to non-terminated state"
    ))
}

fn back_to_life<'a>(
    old: &'a Option<Vec<ContainerStatus>>,
    new: &Option<Vec<ContainerStatus>>,
    may: impl Fn(&str, i32) -> bool,
) -> Option<&'a str> {
    let end = |c: &ContainerStatus| c.state.as_ref()?.terminated.clone();
    old.iter().flatten().find_map(|told| {
        let code = end(told)?.exit_code;
        let now = new.iter().flatten().find(|c| c.name == told.name)?;
        (!may(&told.name, code) && end(now).is_none()).then_some(told.name.as_str())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What became of a pod, and how long it was left then.
    type Step = (Kind, Option<i64>);

    fn changes(store: &Store) -> Vec<Step> {
        let told = store.changes.iter().skip(1).map(|change| {
            let metadata = &change.object.pod.metadata;
            (change.kind, metadata.deletion_grace_period_seconds)
        });
        told.collect()
    }

    fn store_with(finalizers: &[&str], phase: &str) -> (Store, Key) {
        let mut pod = Pod::default();
        pod.metadata.name = Some("p".to_owned());
        let finalizers: Vec<String> = finalizers.iter().map(|f| f.to_string()).collect();
        pod.metadata.finalizers = Some(finalizers).filter(|all| !all.is_empty());
        let key = key_of(&pod);
        let mut store = Store::default();
        store.create(pod, Timestamp::UNIX_EPOCH).unwrap();
        let object = store.objects.get_mut(&key).unwrap();
        let mut pod = (*object.pod).clone();
        pod.status.get_or_insert_default().phase = Some(phase.to_owned());
        let bytes = encode(&pod).unwrap();
        let pod = Arc::new(pod);
        *object = Arc::new(Stored { pod, bytes });
        (store, key)
    }

    #[test]
    fn an_object_is_left_no_time_before_it_goes() {
        use Kind::{Deleted, Modified};
        let left = |kind, grace| (kind, Some(grace));
        type Case<'a> = (&'a str, &'a [&'a str], &'a [i64], &'a [Step]);
        let cases: &[Case<'_>] = &[
            ("Running", &[], &[0], &[left(Modified, 0), left(Deleted, 0)]),
            (
                "Running",
                &[],
                &[30, 30, 5, 10, 0],
                &[
                    left(Modified, 30),
                    left(Modified, 5),
                    left(Modified, 0),
                    left(Deleted, 0),
                ],
            ),
            ("Failed", &[], &[30], &[left(Modified, 0), left(Deleted, 0)]),
            ("Running", &["a"], &[0, 0], &[left(Modified, 0)]),
        ];
        for (phase, finalizers, graces, expected) in cases {
            let (mut store, key) = store_with(finalizers, phase);
            for grace in *graces {
                store.delete(&key, *grace, Timestamp::UNIX_EPOCH).unwrap();
            }
            assert_eq!(
                changes(&store),
                *expected,
                "{phase} {finalizers:?} {graces:?}"
            );
            let version = store.version().to_string();
            let last = &store.changes.last().unwrap().object.pod.metadata;
            assert_eq!(last.resource_version, Some(version));
        }
    }

    #[test]
    fn an_object_goes_with_its_last_finalizer() {
        let (mut store, key) = store_with(&["a", "b"], "Running");
        let release = |store: &mut Store| {
            let edit = |pod: &mut Pod| drop(pod.metadata.finalizers.as_mut().unwrap().pop());
            store.edit(&key, edit).unwrap();
        };
        release(&mut store);
        store.delete(&key, 0, Timestamp::UNIX_EPOCH).unwrap();
        assert!(store.get(&key).is_some());
        release(&mut store);
        assert!(store.get(&key).is_none());
        let kinds: Vec<Kind> = changes(&store).iter().map(|(kind, _)| *kind).collect();
        assert_eq!(kinds, [Kind::Modified, Kind::Modified, Kind::Deleted]);
    }
}
