//! Driving the worker and writing down what it answers.

use std::collections::BTreeSet;

use expect_test::Expect;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use krablet_pod::api::{PodSpec, PodStatus};

use super::super::*;

pub(super) struct Story {
    pub(super) workers: PodWorkers,
    pub(super) now: Mono,
    pub(super) log: String,
}

impl Story {
    pub(super) fn new() -> Self {
        Self {
            workers: PodWorkers::new(Periods::default()),
            now: Mono::default(),
            log: String::new(),
        }
    }

    pub(super) fn note(&mut self, input: &str, effects: Vec<Effect>) {
        let effects: Vec<String> = effects.iter().map(|e| self.show(e)).collect();
        let line = match effects.is_empty() {
            true => format!("{input}: -\n"),
            false => format!("{input}: {}\n", effects.join(", ")),
        };
        self.log.push_str(&line);
    }

    pub(super) fn show(&self, effect: &Effect) -> String {
        match effect {
            Effect::Run(uid, work) => {
                let grace = work
                    .grace
                    .map(|g| format!(" grace={g}"))
                    .unwrap_or_default();
                let first = if work.first { " first" } else { "" };
                let status = work
                    .status_override
                    .as_ref()
                    .map(|s| format!(" status={}", s.reason))
                    .unwrap_or_default();
                format!(
                    "run {uid} {:?} {:?}{grace}{first}{status}",
                    work.step, work.kind
                )
            }
            Effect::Cancel(uid) => format!("cancel {uid}"),
            Effect::WakeAt(uid, at) => format!("wake {uid} in {:?}", *at - self.now),
            Effect::Release(w) => format!("release {}", w.0),
        }
    }

    pub(super) fn send(&mut self, name: &str, update: Update) -> &mut Self {
        let effects = self.workers.update(update);
        self.note(name, effects);
        self
    }

    pub(super) fn create(&mut self, pod: &Arc<Pod>) -> &mut Self {
        self.send("create", Update::new(pod, UpdateKind::Create))
    }

    pub(super) fn update(&mut self, pod: &Arc<Pod>) -> &mut Self {
        self.send("update", Update::new(pod, UpdateKind::Update))
    }

    pub(super) fn kill(&mut self, pod: &Arc<Pod>, kill: KillRequest) -> &mut Self {
        let update = Update {
            kill: Some(kill),
            ..Update::new(pod, UpdateKind::Kill)
        };
        self.send("kill", update)
    }

    pub(super) fn orphan(&mut self, uid: &str) -> &mut Self {
        self.send("orphan", Update::orphan(PodRef::new(uid, "ns", "web")))
    }

    pub(super) fn done(&mut self, uid: &str, outcome: Outcome) -> &mut Self {
        let effects = self.workers.completed(&uid.into(), outcome, self.now, 0.0);
        self.note(&format!("{outcome:?}"), effects);
        self
    }

    pub(super) fn wake(&mut self, uid: &str) -> &mut Self {
        let effects = self.workers.wake(&uid.into());
        self.note("wake", effects);
        self
    }

    pub(super) fn end_again(&mut self, uid: &str) -> &mut Self {
        let effects = self.workers.end_again(&uid.into());
        self.note("end again", effects);
        self
    }

    pub(super) fn seen(&mut self, pod: &Arc<Pod>) -> &mut Self {
        self.workers.seen(&PodRef::of(pod).uid, pod);
        let held = self.workers.spec(&PodRef::of(pod).uid);
        let line = match held {
            Some(held) if Arc::ptr_eq(held, pod) => "seen: held\n",
            Some(_) => "seen: not held\n",
            None => "seen: no worker\n",
        };
        self.log.push_str(line);
        self
    }

    pub(super) fn housekeeping(&mut self, desired: &[&str]) -> &mut Self {
        let desired: BTreeSet<PodUid> = desired.iter().map(|u| PodUid::from(*u)).collect();
        let (views, effects) = self.workers.sync_known(|uid| desired.contains(uid), true);
        let known: Vec<String> = views
            .iter()
            .map(|(uid, v)| format!("{uid}={:?}", v.stage))
            .collect();
        self.note(&format!("housekeeping [{}]", known.join(" ")), effects);
        self
    }

    pub(super) fn check(&self, expect: Expect) {
        expect.assert_eq(&self.log);
    }
}

pub(super) fn pod(uid: &str) -> Pod {
    let mut pod = Pod::default();
    pod.metadata.uid = Some(uid.into());
    pod.metadata.name = Some("web".into());
    pod.metadata.namespace = Some("ns".into());
    pod.spec = Some(PodSpec {
        termination_grace_period_seconds: Some(30),
        ..PodSpec::default()
    });
    pod
}

pub(super) fn api(uid: &str) -> Arc<Pod> {
    Arc::new(pod(uid))
}

pub(super) fn with_phase(uid: &str, phase: &str) -> Arc<Pod> {
    let mut pod = pod(uid);
    pod.status = Some(PodStatus {
        phase: Some(phase.into()),
        ..PodStatus::default()
    });
    Arc::new(pod)
}

pub(super) fn deleted(uid: &str, grace: i64) -> Arc<Pod> {
    let mut pod = pod(uid);
    pod.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
    pod.metadata.deletion_grace_period_seconds = Some(grace);
    Arc::new(pod)
}

pub(super) fn static_pod(uid: &str) -> Arc<Pod> {
    let mut pod = pod(uid);
    pod.metadata.annotations = Some([(marks::CONFIG_SOURCE.to_owned(), "file".to_owned())].into());
    Arc::new(pod)
}

pub(super) fn grace(seconds: i64) -> KillRequest {
    KillRequest {
        grace: Some(seconds),
        ..KillRequest::default()
    }
}

pub(super) fn waiter(id: u64) -> KillRequest {
    KillRequest {
        waiter: Some(WaiterId(id)),
        ..KillRequest::default()
    }
}
