use async_trait::async_trait;
use bytes::Bytes;
use krablet_core::restart::RestartGates;
use krablet_kube::{Api, ApiError, Call, Watch};
use serde_json::json;

use super::deliver::Calls;
use super::*;

#[test]
fn versions_are_numbers_that_grow() {
    for (version, than, newer) in [
        ("10", "9", Some(true)),
        ("9", "10", Some(false)),
        ("9", "9", Some(false)),
        ("", "", Some(false)),
        ("odd", "odd", Some(false)),
        ("odd", "9", None),
        ("9", "", None),
    ] {
        assert_eq!(is_newer(version, than), newer, "{version} {than}");
    }
}

struct Nobody;

#[async_trait]
impl Api for Nobody {
    async fn call(&self, call: Call) -> Result<Bytes, ApiError> {
        panic!("{} is not asked for here", call.path)
    }

    async fn watch(&self, call: Call) -> Result<Watch, ApiError> {
        panic!("{} is not watched here", call.path)
    }

    fn reconnect(&self) {}
}

/// The one pod that the watch shows.
struct Shown(Arc<Pod>);

impl ApiPods for Shown {
    fn pod(&self, _: &PodUid) -> Option<Arc<Pod>> {
        Some(self.0.clone())
    }

    fn mirror_of(&self, _: &PodUid) -> Option<Arc<Pod>> {
        None
    }

    fn could_have_running_containers(&self, _: &PodUid) -> bool {
        true
    }
}

fn pod(uid: &str, version: &str, phase: &str) -> Arc<Pod> {
    let pod = serde_json::from_value(json!({
        "metadata": {"name": "web", "namespace": "ns", "uid": uid, "resourceVersion": version},
        "spec": {"containers": []},
        "status": {"phase": phase, "startTime": "1970-01-01T00:00:00Z"},
    }));
    Arc::new(pod.unwrap())
}

/// A sender whose watch shows `shown` when a write of Running is answered with version 5. Whether it keeps the
/// answer then, and whether it has something to tell.
fn landed(shown: &Arc<Pod>) -> (bool, usize) {
    let uid = PodUid::from("a");
    let store = StatusStore::new(RestartGates::default());
    let deps = SenderDeps {
        store: store.clone(),
        pods: Arc::new(Shown(shown.clone())),
        kube: Kube::new(Arc::new(Nobody)),
        clock: Arc::new(|| Timestamp::UNIX_EPOCH),
    };
    let (mut sender, _handle) = build(SenderConfig::default(), deps);
    let answer = pod("a", "5", "Running");
    store.update(&answer, Timestamp::UNIX_EPOCH, |_| {
        answer.status.clone().unwrap_or_default()
    });
    sender.look_at_news();
    let job = Job {
        uid: sender.plan.next(Instant::now()).unwrap(),
        target: answer.clone(),
        base: None,
        first: false,
        standing: store.get(&uid).unwrap(),
        could_have_running_containers: true,
        priority: Priority::Normal,
        now: Timestamp::UNIX_EPOCH,
    };
    let calls = Calls {
        patches: 1,
        ..Calls::default()
    };
    let end = End::Told {
        object: answer,
        held_back: false,
    };
    sender.land(Landed { job, calls, end });
    sender.answer_requests();
    (
        sender.plan.answer(&uid).is_some(),
        sender.plan.undelivered(),
    )
}

#[tokio::test(start_paused = true)]
async fn an_answer_is_let_go_of_when_the_watch_was_faster() {
    let cases = [
        ("a", "4", "Pending", (true, 0)),
        ("a", "5", "Running", (false, 0)),
        ("a", "6", "Running", (false, 0)),
        // What somebody else has made of it is set right.
        ("a", "6", "Odd", (false, 1)),
        // Whether that one is older cannot be told.
        ("a", "odd", "Running", (true, 0)),
        ("b", "6", "Running", (true, 0)),
    ];
    for (uid, version, phase, expected) in cases {
        let told = landed(&pod(uid, version, phase));
        assert_eq!(told, expected, "{uid} {version} {phase}");
    }
}
