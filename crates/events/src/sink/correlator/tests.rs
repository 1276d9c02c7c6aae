use std::collections::BTreeSet;

use expect_test::expect;
use krablet_pod::PodRef;
use krablet_pod::containers::ContainerKind;

use super::*;
use crate::{Kind, Recorder, reason};

/// A recorder whose events go to a correlator, at a time the test sets.
struct Bench {
    correlator: Correlator,
    second: i64,
    /// Of the recorder's events, by what makes them one.
    counts: Vec<(String, u32)>,
}

fn pod() -> PodRef {
    PodRef::new("u", "ns", "web")
}

impl Bench {
    fn new() -> Self {
        Self {
            correlator: Correlator::new("node-1"),
            second: 0,
            counts: Vec::new(),
        }
    }

    fn event(&mut self, subject: Subject, reason: &'static str, message: &str) -> Event {
        let key = format!("{subject:?} {reason} {message}");
        let place = self.counts.iter().position(|(k, _)| *k == key);
        let place = place.unwrap_or_else(|| {
            self.counts.push((key, 0));
            self.counts.len() - 1
        });
        let count = &mut self.counts[place].1;
        *count += 1;
        Event {
            sequence: 0,
            first_seen: Timestamp::UNIX_EPOCH,
            last_seen: Timestamp::from_second(self.second).unwrap(),
            count: *count,
            subject,
            kind: Kind::Warning,
            reason: reason.into(),
            message: message.into(),
        }
    }

    fn write(&mut self, subject: Subject, reason: &'static str, message: &str) -> Option<Write> {
        let event = self.event(subject, reason, message);
        let now = Duration::from_secs(self.second.unsigned_abs());
        self.correlator.correlate(&event, None, now)
    }

    /// `new x1 text`, `more x2 text`, or nothing.
    fn pod_event(&mut self, reason: &'static str, message: &str) -> String {
        match self.write(Subject::Pod(pod()), reason, message) {
            None => "nothing".into(),
            Some(write) => {
                let how = if write.patch.is_some() { "more" } else { "new" };
                let count = write.event.count.unwrap();
                let text = write.event.message.unwrap();
                format!("{how} x{count} {text}")
            }
        }
    }
}

#[test]
fn an_event_of_a_container() {
    let mut bench = Bench::new();
    let subject = Subject::container(&pod(), ContainerKind::Init, "setup");
    let event = bench.event(subject, reason::BACK_OFF, "Back-off");
    let now = Duration::ZERO;
    let version = Some("17".to_owned());
    let write = bench.correlator.correlate(&event, version, now).unwrap();
    let text = serde_json::to_value(&write.event).unwrap();
    expect![[r#"
        {
          "apiVersion": "v1",
          "count": 1,
          "firstTimestamp": "1970-01-01T00:00:00Z",
          "involvedObject": {
            "apiVersion": "v1",
            "fieldPath": "spec.initContainers{setup}",
            "kind": "Pod",
            "name": "web",
            "namespace": "ns",
            "resourceVersion": "17",
            "uid": "u"
          },
          "kind": "Event",
          "lastTimestamp": "1970-01-01T00:00:00Z",
          "message": "Back-off",
          "metadata": {
            "name": "web.1",
            "namespace": "ns"
          },
          "reason": "BackOff",
          "reportingComponent": "kubelet",
          "reportingInstance": "node-1",
          "source": {
            "component": "kubelet",
            "host": "node-1"
          },
          "type": "Warning"
        }"#]]
    .assert_eq(&format!("{text:#}"));
}

#[test]
fn events_of_the_node_are_in_the_default_namespace() {
    let mut bench = Bench::new();
    let write = bench.write(Subject::Node, reason::STARTING, "Starting kubelet.");
    let write = write.unwrap();
    assert_eq!((write.namespace(), write.name()), ("default", "node-1.1"));
    let object = write.event.involved_object;
    assert_eq!(object.kind.as_deref(), Some("Node"));
    assert_eq!(object.uid.as_deref(), Some("node-1"));
    assert_eq!(object.namespace, None);
}

#[test]
fn so_are_those_of_persistent_volumes() {
    let mut bench = Bench::new();
    let subject = Subject::Volume {
        name: "pv-1".into(),
        uid: "u-pv".into(),
    };
    let reason = reason::FAILED_MOUNT_ON_FILESYSTEM_MISMATCH;
    let write = bench.write(subject, reason, "no").unwrap();
    assert_eq!((write.namespace(), write.name()), ("default", "pv-1.1"));
    let object = write.event.involved_object;
    assert_eq!(object.kind.as_deref(), Some("PersistentVolume"));
    assert_eq!(object.name.as_deref(), Some("pv-1"));
    assert_eq!(object.uid.as_deref(), Some("u-pv"));
    assert_eq!(object.namespace, None);
}

#[test]
fn repetitions_are_counted_in_one_object() {
    let mut bench = Bench::new();
    let first = bench
        .write(Subject::Pod(pod()), reason::UNHEALTHY, "a")
        .unwrap();
    assert_eq!(bench.pod_event(reason::UNHEALTHY, "b"), "new x1 b");
    assert_eq!(bench.pod_event(reason::FAILED, "a"), "new x1 a");
    bench.second = 60;
    let again = bench
        .write(Subject::Pod(pod()), reason::UNHEALTHY, "a")
        .unwrap();
    assert_eq!(again.name(), first.name());
    let expected = json!({"count": 2, "lastTimestamp": "1970-01-01T00:01:00Z", "message": "a"});
    assert_eq!(again.patch, Some(expected));
    assert_eq!(again.event.first_timestamp, first.event.first_timestamp);
    // Repetitions between two looks at the recorder count as many.
    bench.event(Subject::Pod(pod()), reason::UNHEALTHY, "a");
    assert_eq!(bench.pod_event(reason::UNHEALTHY, "a"), "more x4 a");
}

#[test]
fn events_that_are_alike_become_one() {
    let mut bench = Bench::new();
    for i in 0..9 {
        let text = format!("try {i}");
        assert_eq!(
            bench.pod_event(reason::UNHEALTHY, &text),
            format!("new x1 {text}")
        );
    }
    let combined = "(combined from similar events): try";
    assert_eq!(
        bench.pod_event(reason::UNHEALTHY, "try 9"),
        format!("new x1 {combined} 9")
    );
    assert_eq!(
        bench.pod_event(reason::UNHEALTHY, "try 10"),
        format!("more x2 {combined} 10")
    );
    // Another reason, another group.
    assert_eq!(bench.pod_event(reason::FAILED, "try 11"), "new x1 try 11");
    // The group lasts while something comes.
    bench.second = 600;
    assert_eq!(
        bench.pod_event(reason::UNHEALTHY, "try 12"),
        format!("more x3 {combined} 12")
    );
    bench.second = 1201;
    assert_eq!(
        bench.pod_event(reason::UNHEALTHY, "try 13"),
        "new x1 try 13"
    );
}

#[test]
fn one_object_has_its_share() {
    let mut bench = Bench::new();
    for i in 1..=25 {
        let how = if i == 1 { "new" } else { "more" };
        assert_eq!(
            bench.pod_event(reason::BACK_OFF, "a"),
            format!("{how} x{i} a")
        );
    }
    assert_eq!(bench.pod_event(reason::BACK_OFF, "a"), "nothing");
    // It counts what it does not write, and another object has a share of its own.
    assert!(bench.write(Subject::Node, reason::STARTING, "a").is_some());
    bench.second = 299;
    assert_eq!(bench.pod_event(reason::FAILED, "b"), "nothing");
    bench.second = 301;
    assert_eq!(bench.pod_event(reason::BACK_OFF, "a"), "more x27 a");
    assert_eq!(bench.pod_event(reason::BACK_OFF, "a"), "nothing");
}

#[test]
fn no_two_events_have_one_name_and_none_is_too_long() {
    let mut bench = Bench::new();
    let long = PodRef::new("u", "ns", &"x".repeat(253));
    let mut names = BTreeSet::new();
    for (subject, text) in [
        (Subject::Pod(pod()), "a"),
        (Subject::Pod(pod()), "b"),
        (Subject::Pod(long.clone()), "a"),
        (Subject::Pod(long), "b"),
    ] {
        let write = bench.write(subject, reason::FAILED, text).unwrap();
        assert!(write.name().len() <= MAX_NAME);
        assert!(names.insert(write.name().to_owned()));
    }
}

#[test]
fn the_recorders_counts_are_understood() {
    let recorder = Recorder::new(|| Timestamp::UNIX_EPOCH);
    let mut correlator = Correlator::new("n");
    let mut seen = 0;
    let mut look = |recorder: &Recorder| {
        let mut counts = Vec::new();
        for event in recorder.since(seen) {
            seen = event.sequence;
            let write = correlator.correlate(&event, None, Duration::ZERO);
            counts.extend(write.and_then(|w| w.event.count));
        }
        counts
    };
    let record = || recorder.normal(Subject::Node, reason::STARTING, "a");
    record();
    assert_eq!(look(&recorder), [1]);
    record();
    record();
    assert_eq!(look(&recorder), [3]);
    assert_eq!(look(&recorder), [0; 0]);
}
