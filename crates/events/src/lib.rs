//! Events about pods and the node, in the kubelet's reasons and wording. Recording never blocks
//! the work and never grows without bound: a ring keeps the newest, the log gets each once. The
//! [`sink`] brings them to the API server.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use jiff::Timestamp;
use krablet_pod::PodRef;
use krablet_pod::containers::{ContainerKind, field_path};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

pub mod reason;
pub mod sink;

/// How many events the ring holds.
pub const RING_CAPACITY: usize = 1024;
/// Longer messages are cut, as the API server would refuse them.
const MAX_MESSAGE: usize = 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    Normal,
    Warning,
}

impl Kind {
    pub fn as_str(self) -> &'static str {
        match self {
            Kind::Normal => "Normal",
            Kind::Warning => "Warning",
        }
    }
}

/// What an event is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    Node,
    Pod(PodRef),
    Container(PodRef, ContainerKind, Arc<str>),
    /// A persistent volume, by its name and UID.
    Volume {
        name: Arc<str>,
        uid: Arc<str>,
    },
}

impl Subject {
    pub fn container(pod: &PodRef, kind: ContainerKind, name: &str) -> Self {
        Subject::Container(pod.clone(), kind, name.into())
    }

    pub fn pod(&self) -> Option<&PodRef> {
        match self {
            Subject::Node | Subject::Volume { .. } => None,
            Subject::Pod(pod) | Subject::Container(pod, _, _) => Some(pod),
        }
    }

    /// `spec.containers{name}`, or empty.
    pub fn field_path(&self) -> String {
        match self {
            Subject::Container(_, kind, name) => field_path(*kind, name),
            _ => String::new(),
        }
    }
}

/// An event in the ring. Repetitions of one text are counted, not stored again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Position in the order of recording, from 1; a repetition moves an event to the newest place.
    pub sequence: u64,
    pub first_seen: Timestamp,
    pub last_seen: Timestamp,
    pub count: u32,
    pub subject: Subject,
    pub kind: Kind,
    pub reason: Cow<'static, str>,
    pub message: String,
}

/// Where events go. Clones share one ring.
#[derive(Clone)]
pub struct Recorder {
    ring: Arc<Mutex<Ring>>,
    newest: watch::Sender<u64>,
    clock: Arc<dyn Fn() -> Timestamp + Send + Sync>,
}

#[derive(Default)]
struct Ring {
    events: VecDeque<Event>,
    sequence: u64,
}

impl Recorder {
    /// `clock` tells the wall-clock time that people will read.
    pub fn new(clock: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        Self {
            ring: Arc::default(),
            newest: watch::Sender::new(0),
            clock: Arc::new(clock),
        }
    }

    pub fn normal(
        &self,
        subject: Subject,
        reason: impl Into<Cow<'static, str>>,
        message: impl Into<String>,
    ) {
        self.record(subject, Kind::Normal, reason.into(), message.into());
    }

    pub fn warning(
        &self,
        subject: Subject,
        reason: impl Into<Cow<'static, str>>,
        message: impl Into<String>,
    ) {
        self.record(subject, Kind::Warning, reason.into(), message.into());
    }

    fn record(&self, subject: Subject, kind: Kind, reason: Cow<'static, str>, mut message: String) {
        if message.len() > MAX_MESSAGE {
            let cut = (0..=MAX_MESSAGE)
                .rev()
                .find(|i| message.is_char_boundary(*i));
            message.truncate(cut.unwrap_or_default());
        }
        log(&subject, kind, &reason, &message);
        // It is kept for long.
        message.shrink_to_fit();
        let now = (self.clock)();
        let sequence = {
            let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
            ring.push(now, subject, kind, reason, message)
        };
        self.newest.send_replace(sequence);
    }

    /// Events after `sequence`, oldest first.
    pub fn since(&self, sequence: u64) -> Vec<Event> {
        let ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        let from = ring.events.partition_point(|e| e.sequence <= sequence);
        ring.events.range(from..).cloned().collect()
    }

    /// Tells the sequence number of the newest event, as it changes.
    pub fn newest(&self) -> watch::Receiver<u64> {
        self.newest.subscribe()
    }
}

impl Ring {
    fn push(
        &mut self,
        now: Timestamp,
        subject: Subject,
        kind: Kind,
        reason: Cow<'static, str>,
        message: String,
    ) -> u64 {
        self.sequence += 1;
        let same = self.events.iter().rposition(|e| {
            e.reason == reason && e.kind == kind && e.message == message && e.subject == subject
        });
        let mut event = match same.and_then(|i| self.events.remove(i)) {
            Some(event) => event,
            None => Event {
                sequence: 0,
                first_seen: now,
                last_seen: now,
                count: 0,
                subject,
                kind,
                reason,
                message,
            },
        };
        event.sequence = self.sequence;
        event.last_seen = now;
        event.count = event.count.saturating_add(1);
        if self.events.len() == RING_CAPACITY {
            self.events.pop_front();
        }
        self.events.push_back(event);
        self.sequence
    }
}

fn log(subject: &Subject, kind: Kind, reason: &str, message: &str) {
    let kind = kind.as_str();
    match subject {
        Subject::Node => tracing::info!(kind, reason, message, "Event occurred"),
        Subject::Volume { name, .. } => {
            tracing::info!(volume = &**name, kind, reason, message, "Event occurred");
        }
        Subject::Pod(pod) => {
            tracing::info!(pod = %pod, podUID = %pod.uid, kind, reason, message, "Event occurred");
        }
        Subject::Container(pod, _, name) => {
            tracing::info!(pod = %pod, podUID = %pod.uid, containerName = &**name, kind, reason, message, "Event occurred");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorder() -> Recorder {
        Recorder::new(|| Timestamp::UNIX_EPOCH)
    }

    fn pod() -> PodRef {
        PodRef::new("u", "ns", "web")
    }

    #[test]
    fn repetitions_are_counted_and_move_to_the_newest_place() {
        let r = recorder();
        r.normal(Subject::Pod(pod()), reason::PULLED, "a");
        r.warning(Subject::Pod(pod()), reason::FAILED, "b");
        r.normal(Subject::Pod(pod()), reason::PULLED, "a");
        let seen: Vec<_> = r
            .since(0)
            .into_iter()
            .map(|e| (e.sequence, e.message, e.count))
            .collect();
        assert_eq!(seen, [(2, "b".into(), 1), (3, "a".into(), 2)]);
        assert_eq!(r.since(2).len(), 1);
    }

    #[test]
    fn the_ring_is_bounded_and_messages_are_cut_on_a_character() {
        let r = recorder();
        for i in 0..RING_CAPACITY + 10 {
            r.normal(Subject::Node, reason::STARTED, format!("{i}"));
        }
        r.normal(Subject::Node, reason::STARTED, "ü".repeat(MAX_MESSAGE));
        let events = r.since(0);
        assert_eq!(events.len(), RING_CAPACITY);
        assert_eq!(events[0].message, "11");
        assert!(
            events
                .last()
                .is_some_and(|e| e.message.len() <= MAX_MESSAGE)
        );
    }
}
