//! What becomes of a recorded event at the API server: a new object, one more count of an object
//! there is, one object for many that are alike, or nothing, if its subject has had its share.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event as ApiEvent, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use serde_json::{Value, json};
use smallvec::SmallVec;

use super::lru::Lru;
use crate::{Event, Subject};

const COMPONENT: &str = "kubelet";
/// As many subjects, kinds of event and events are remembered.
const REMEMBERED: usize = 4096;
/// Events of one reason about one object that differ in their text only: from this many on they are
/// one, until none has come for the interval.
const ALIKE: usize = 10;
const ALIKE_INTERVAL: Duration = Duration::from_secs(600);
/// Events of one type about one object: so many at once, and then one each interval.
const SHARE: f64 = 25.0;
const SHARE_INTERVAL: Duration = Duration::from_secs(300);
/// The longest name of an object.
const MAX_NAME: usize = 253;

/// A write to the API server.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Write {
    /// The whole event, as it is created where there is nothing to patch.
    pub event: ApiEvent,
    /// The change of an event that was written before.
    pub patch: Option<Value>,
}

impl Write {
    pub(super) fn name(&self) -> &str {
        self.event.metadata.name.as_deref().unwrap_or_default()
    }

    pub(super) fn namespace(&self) -> &str {
        self.event.metadata.namespace.as_deref().unwrap_or_default()
    }
}

/// Texts seen of events that are alike.
struct Group {
    /// Their hashes, in order. Most events have one text.
    texts: SmallVec<[u64; 1]>,
    last: Duration,
}

/// An event object as it was last written.
#[derive(Clone, Copy, Default)]
struct Log {
    count: i32,
    first: Timestamp,
    /// The number in its name.
    number: i64,
}

struct Share {
    left: f64,
    at: Duration,
}

/// How often the recorder had told an event when it was last looked at.
struct Told {
    first_seen: Timestamp,
    count: u32,
}

pub(super) struct Correlator {
    node_name: String,
    groups: Lru<Group>,
    logs: Lru<Log>,
    shares: Lru<Share>,
    told: Lru<Told>,
    /// The number in the newest name.
    newest: i64,
}

fn hash(parts: impl Hash) -> u64 {
    // The same in every run, unlike that of std's maps.
    let mut hasher = DefaultHasher::new();
    parts.hash(&mut hasher);
    hasher.finish()
}

impl Correlator {
    pub(super) fn new(node_name: &str) -> Self {
        Self {
            node_name: node_name.to_owned(),
            groups: Lru::new(REMEMBERED),
            logs: Lru::new(REMEMBERED),
            shares: Lru::new(REMEMBERED),
            told: Lru::new(REMEMBERED),
            newest: 0,
        }
    }

    /// What to write for an event of the recorder. `now` is on a clock that only goes forward.
    pub(super) fn correlate(
        &mut self,
        event: &Event,
        resource_version: Option<String>,
        now: Duration,
    ) -> Option<Write> {
        let object = self.involved_object(&event.subject, resource_version);
        let kind = event.kind.as_str();
        let subject = hash((&object.kind, &object.namespace, &object.name, &object.uid));
        let reason = hash((subject, kind, &event.reason));
        let own = hash((reason, &object.field_path, &event.message));
        let more = self.more(event, own);
        let alike = self.are_alike(reason, &event.message, now);
        let number = self.number(event.last_seen);
        let log = self
            .logs
            .touch(if alike { reason } else { own }, Log::default);
        let known = log.count > 0;
        if !known {
            log.number = number;
            log.first = if alike {
                event.last_seen
            } else {
                event.first_seen
            };
        }
        log.count = log.count.saturating_add(more);
        let log = *log;
        if !self.has_share(hash((subject, kind)), now) {
            return None;
        }
        let message = match alike {
            true => format!("(combined from similar events): {}", event.message),
            false => event.message.clone(),
        };
        let last = Time(event.last_seen);
        let patch = json!({"count": log.count, "lastTimestamp": last, "message": message});
        Some(Write {
            event: self.api_event(event, object, log, message),
            patch: known.then_some(patch),
        })
    }

    fn api_event(
        &self,
        event: &Event,
        object: ObjectReference,
        log: Log,
        message: String,
    ) -> ApiEvent {
        ApiEvent {
            metadata: ObjectMeta {
                name: Some(self.name(&event.subject, log.number)),
                namespace: Some(namespace(&object).to_owned()),
                ..ObjectMeta::default()
            },
            involved_object: object,
            reason: Some(event.reason.to_string()),
            message: Some(message),
            source: Some(EventSource {
                component: Some(COMPONENT.to_owned()),
                host: Some(self.node_name.clone()),
            }),
            reporting_component: Some(COMPONENT.to_owned()),
            reporting_instance: Some(self.node_name.clone()),
            first_timestamp: Some(Time(log.first)),
            last_timestamp: Some(Time(event.last_seen)),
            count: Some(log.count),
            type_: Some(event.kind.as_str().to_owned()),
            ..ApiEvent::default()
        }
    }

    /// A node has no UID here, and `kubectl describe node` looks for its name in that place.
    fn involved_object(
        &self,
        subject: &Subject,
        resource_version: Option<String>,
    ) -> ObjectReference {
        let api_version = Some("v1".to_owned());
        let of_no_namespace = |kind: &str, name: &str, uid: &str| ObjectReference {
            api_version: api_version.clone(),
            kind: Some(kind.to_owned()),
            name: Some(name.to_owned()),
            uid: Some(uid.to_owned()),
            ..ObjectReference::default()
        };
        let pod = match subject {
            Subject::Node => return of_no_namespace("Node", &self.node_name, &self.node_name),
            Subject::Volume { name, uid } => return of_no_namespace("PersistentVolume", name, uid),
            Subject::Pod(pod) | Subject::Container(pod, _, _) => pod,
        };
        let field_path = subject.field_path();
        ObjectReference {
            api_version,
            kind: Some("Pod".to_owned()),
            namespace: Some(pod.namespace.to_string()),
            name: Some(pod.name.to_string()),
            uid: Some(pod.uid.to_string()),
            resource_version,
            field_path: (!field_path.is_empty()).then_some(field_path),
        }
    }

    /// How often the event happened since it was last looked at: the recorder counts repetitions
    /// for as long as it remembers an event.
    fn more(&mut self, event: &Event, key: u64) -> i32 {
        let told = self.told.touch(key, || Told {
            first_seen: event.first_seen,
            count: 0,
        });
        if told.first_seen != event.first_seen || told.count > event.count {
            told.count = 0;
        }
        let more = (event.count - told.count).max(1);
        told.first_seen = event.first_seen;
        told.count = event.count;
        i32::try_from(more).unwrap_or(i32::MAX)
    }

    fn are_alike(&mut self, key: u64, message: &str, now: Duration) -> bool {
        let group = self.groups.touch(key, || Group {
            texts: SmallVec::new(),
            last: now,
        });
        if now.saturating_sub(group.last) > ALIKE_INTERVAL {
            group.texts.clear();
        }
        group.last = now;
        let text = hash(message);
        if let Err(place) = group.texts.binary_search(&text) {
            group.texts.insert(place, text);
        }
        let alike = group.texts.len() >= ALIKE;
        if alike {
            group.texts.remove(0);
        }
        alike
    }

    fn has_share(&mut self, key: u64, now: Duration) -> bool {
        let share = self.shares.touch(key, || Share {
            left: SHARE,
            at: now,
        });
        let passed = now.saturating_sub(share.at).as_secs_f64();
        share.left = SHARE.min(share.left + passed / SHARE_INTERVAL.as_secs_f64());
        share.at = now;
        let has = share.left >= 1.0;
        if has {
            share.left -= 1.0;
        }
        has
    }

    /// Nanoseconds as a rule, but it always grows, so that no two events have one name.
    fn number(&mut self, at: Timestamp) -> i64 {
        let nanos = i64::try_from(at.as_nanosecond()).unwrap_or(i64::MAX);
        self.newest = nanos.max(self.newest.saturating_add(1));
        self.newest
    }

    fn name(&self, subject: &Subject, number: i64) -> String {
        let object = match subject {
            Subject::Node => &*self.node_name,
            Subject::Volume { name, .. } => name,
            Subject::Pod(pod) | Subject::Container(pod, _, _) => &*pod.name,
        };
        let name = format!("{object}.{number:x}");
        match name.len() <= MAX_NAME {
            true => name,
            false => format!("{:x}.{number:x}", hash(object)),
        }
    }
}

/// Events are of the namespace of their object; those of a node, of the default one.
fn namespace(object: &ObjectReference) -> &str {
    let namespace = object.namespace.as_deref().unwrap_or_default();
    match namespace {
        "" => "default",
        _ => namespace,
    }
}

#[cfg(test)]
mod tests;
