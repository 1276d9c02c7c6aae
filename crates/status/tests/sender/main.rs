//! The sender against an API server in memory.

#![allow(clippy::unwrap_used)]

mod churn;
mod endings;
mod server;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::Timestamp;
use krablet_core::restart::RestartGates;
use krablet_kube::{ApiError, Kube, Priority};
use krablet_pod::PodUid;
use krablet_pod::api::{Pod, PodSpec, PodStatus};
use krablet_pod::marks::{CONFIG_MIRROR, CONFIG_SOURCE};
use krablet_status::StatusStore;
use krablet_status::sender::{ApiPods, SenderConfig, SenderDeps, SenderHandle, build};
use serde_json::{Value, json};
use server::Server;
use tokio::task::JoinSet;

/// Virtual time after which something is never told.
const LONG: Duration = Duration::from_secs(3600);

/// What the node knows of its pods; the watch is as the test says.
#[derive(Default)]
struct Known {
    pods: BTreeMap<PodUid, Arc<Pod>>,
    mirrors: BTreeMap<PodUid, Arc<Pod>>,
    running: BTreeSet<PodUid>,
}

struct Pods(Mutex<Known>);

impl ApiPods for Pods {
    fn pod(&self, uid: &PodUid) -> Option<Arc<Pod>> {
        self.0.lock().unwrap().pods.get(uid).cloned()
    }

    fn mirror_of(&self, uid: &PodUid) -> Option<Arc<Pod>> {
        self.0.lock().unwrap().mirrors.get(uid).cloned()
    }

    fn could_have_running_containers(&self, uid: &PodUid) -> bool {
        self.0.lock().unwrap().running.contains(uid)
    }
}

struct Bench {
    server: Arc<Server>,
    store: StatusStore,
    pods: Arc<Pods>,
    handle: SenderHandle,
    _task: JoinSet<()>,
}

fn pod(uid: &str, name: &str) -> Pod {
    let mut pod = Pod::default();
    pod.metadata.uid = Some(uid.into());
    pod.metadata.name = Some(name.into());
    pod.metadata.namespace = Some("ns".into());
    pod.spec = Some(PodSpec::default());
    pod
}

fn status(phase: &str, ready: bool) -> PodStatus {
    let word = if ready { "True" } else { "False" };
    let conditions = json!([{"type": "Ready", "status": word}]);
    serde_json::from_value(json!({"phase": phase, "conditions": conditions})).unwrap()
}

impl Bench {
    fn new() -> Self {
        let server = Arc::new(Server::default());
        let store = StatusStore::new(RestartGates::default());
        let pods = Arc::new(Pods(Mutex::default()));
        let config = SenderConfig {
            seed: 7,
            ..SenderConfig::default()
        };
        let (sender, handle) = build(
            config,
            SenderDeps {
                store: store.clone(),
                pods: pods.clone(),
                kube: Kube::new(server.clone()),
                clock: Arc::new(|| Timestamp::UNIX_EPOCH),
            },
        );
        let mut task = JoinSet::new();
        task.spawn(sender.run());
        Self {
            server,
            store,
            pods,
            handle,
            _task: task,
        }
    }

    /// Puts an object there and lets the watch tell of it.
    fn bind(&self, uid: &str) -> Pod {
        let pod = pod(uid, uid);
        self.server.put(serde_json::to_value(&pod).unwrap());
        self.watch(uid);
        pod
    }

    /// The watch tells of the object as it is now.
    fn watch(&self, name: &str) {
        let object: Pod = serde_json::from_value(self.server.object(name).unwrap()).unwrap();
        let uid = PodUid::from(object.metadata.uid.clone().unwrap());
        self.know(|known| drop(known.pods.insert(uid, Arc::new(object))));
    }

    fn know(&self, change: impl FnOnce(&mut Known)) {
        change(&mut self.pods.0.lock().unwrap());
    }

    fn could_run(&self, uid: &str, could: bool) {
        self.know(|known| {
            known.running.remove(uid);
            known.running.extend(could.then(|| uid.into()));
        });
    }

    fn say(&self, pod: &Pod, phase: &str, ready: bool) {
        let now = Timestamp::UNIX_EPOCH;
        self.store.update(pod, now, |_| status(phase, ready));
    }

    /// Until all is told, or, where something cannot be, until nothing moves any more.
    async fn settle(&self) {
        // Time stands while anything can go on.
        tokio::time::sleep(Duration::from_millis(1)).await;
    }

    async fn all_told(&self) {
        self.settle().await;
        let mut open = self.handle.undelivered();
        let told = tokio::time::timeout(LONG, open.wait_for(|n| *n == 0)).await;
        told.unwrap().unwrap();
    }

    fn phase(&self, name: &str) -> Value {
        self.server.object(name).unwrap()["status"]["phase"].clone()
    }

    /// What was asked since the last time, in order.
    fn calls(&self) -> Vec<String> {
        self.server.take_calls()
    }
}

#[tokio::test(start_paused = true)]
async fn a_status_is_patched_without_asking_first_and_its_echo_costs_nothing() {
    let bench = Bench::new();
    let pod = bench.bind("a");
    bench.say(&pod, "Pending", false);
    bench.all_told().await;
    assert_eq!(bench.calls(), ["PATCH a"]);
    bench.watch("a");
    bench.handle.reconcile(&"a".into());
    bench.all_told().await;
    // Nor do audits.
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(bench.calls(), [""; 0]);
    let numbers = bench.handle.numbers();
    assert_eq!((numbers.patches, numbers.durations.count), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn only_the_newest_status_is_sent_and_never_two_of_one_pod() {
    let bench = Bench::new();
    let pod = bench.bind("a");
    bench.server.hold();
    bench.say(&pod, "Strange", false);
    bench.settle().await;
    for phase in ["Unknown", "Odd", "Running"] {
        bench.say(&pod, phase, false);
        bench.settle().await;
    }
    assert_eq!(bench.server.most_at_once("a"), 1);
    bench.server.release();
    bench.all_told().await;
    assert_eq!(bench.server.phases("a"), ["Strange", "Running"]);
    assert_eq!(bench.server.most_at_once("a"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_runs_soon_is_told_of_once() {
    let bench = Bench::new();
    let pod = bench.bind("a");
    for phase in ["Pending", "Running"] {
        bench.say(&pod, phase, false);
        bench.settle().await;
    }
    bench.all_told().await;
    assert_eq!(bench.server.phases("a"), ["Running"]);
}

#[tokio::test(start_paused = true)]
async fn a_change_and_back_reaches_the_server_though_the_watch_is_behind() {
    let bench = Bench::new();
    let pod = bench.bind("a");
    for ready in [false, true, false] {
        bench.say(&pod, "Running", ready);
        bench.all_told().await;
    }
    let object = bench.server.object("a").unwrap();
    assert_eq!(object["status"]["conditions"][0]["status"], "False");
    assert_eq!(bench.calls().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_change_and_back_reaches_the_server_though_the_watch_has_fallen_silent() {
    let bench = Bench::new();
    let pod = bench.bind("a");
    bench.say(&pod, "Running", true);
    bench.all_told().await;
    bench.watch("a");
    bench.settle().await;
    bench.say(&pod, "Running", false);
    bench.all_told().await;
    bench.calls();
    // Audits pass, and the watch still shows the pod as ready.
    tokio::time::sleep(Duration::from_secs(200)).await;
    assert!(bench.calls().iter().all(|call| call == "GET a"));
    bench.say(&pod, "Running", true);
    bench.all_told().await;
    let ready = || bench.server.object("a").unwrap()["status"]["conditions"][0]["status"].take();
    assert_eq!(ready(), "True");
    // Nor is it lost when the watch catches up with what was never looked at.
    bench.say(&pod, "Running", false);
    bench.all_told().await;
    tokio::time::sleep(Duration::from_secs(200)).await;
    bench.watch("a");
    tokio::time::sleep(Duration::from_secs(200)).await;
    assert_eq!(ready(), "False");
}

#[tokio::test(start_paused = true)]
async fn ready_and_ended_pods_go_before_others() {
    let bench = Bench::new();
    let first: Vec<Pod> = (0..8).map(|i| bench.bind(&format!("p{i}"))).collect();
    bench.server.hold();
    first.iter().for_each(|p| bench.say(p, "Pending", false));
    bench.settle().await;
    let (slow, over, ready) = (bench.bind("slow"), bench.bind("over"), bench.bind("ready"));
    bench.say(&slow, "Pending", false);
    bench.settle().await;
    bench.say(&over, "Succeeded", false);
    bench.say(&ready, "Running", true);
    bench.settle().await;
    bench.calls();
    bench.server.release();
    bench.all_told().await;
    let calls = bench.calls();
    let place = |name: &str| calls.iter().position(|c| c.ends_with(name)).unwrap();
    // Two places are kept for urgent ones, so they had not even to wait.
    assert!(place("slow") > place("p7"), "{calls:?}");
    assert_eq!(bench.server.priority("over"), Some(Priority::Urgent));
    assert_eq!(bench.server.priority("ready"), Some(Priority::Urgent));
    assert_eq!(bench.server.priority("slow"), Some(Priority::Normal));
}

#[tokio::test(start_paused = true)]
async fn urgent_ones_do_not_wait_for_slow_ones() {
    let bench = Bench::new();
    let first: Vec<Pod> = (0..20).map(|i| bench.bind(&format!("p{i}"))).collect();
    bench.server.hold();
    first.iter().for_each(|p| bench.say(p, "Pending", false));
    bench.settle().await;
    let ready = bench.bind("ready");
    bench.say(&ready, "Running", true);
    bench.settle().await;
    assert!(bench.calls().contains(&"PATCH ready".to_owned()));
    bench.server.release();
    bench.all_told().await;
}

#[tokio::test(start_paused = true)]
async fn what_others_wrote_stays_and_what_they_overwrote_is_set_right() {
    let bench = Bench::new();
    let pod = bench.bind("a");
    bench.say(&pod, "Running", true);
    bench.all_told().await;
    bench.server.change("a", |object| {
        object["status"] = json!({"phase": "Running", "conditions": [
            {"type": "Gate", "status": "True"},
            {"type": "Ready", "status": "False"},
        ]});
    });
    bench.watch("a");
    bench.calls();
    bench.handle.reconcile(&"a".into());
    bench.all_told().await;
    assert_eq!(bench.calls(), ["PATCH a"]);
    let object = bench.server.object("a").unwrap();
    let conditions = object["status"]["conditions"].as_array().unwrap();
    let told: Vec<_> = conditions
        .iter()
        .map(|c| (&c["type"], &c["status"]))
        .collect();
    assert_eq!(
        told,
        [
            (&json!("Gate"), &json!("True")),
            (&json!("Ready"), &json!("True"))
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn what_was_overwritten_just_before_a_write_is_set_right_when_the_watch_tells() {
    for told in [true, false] {
        let bench = Bench::new();
        let pod = bench.bind("a");
        bench.say(&pod, "Running", true);
        bench.all_told().await;
        bench.watch("a");
        // Nobody here knows of this when the next status is sent.
        bench.server.change("a", |object| {
            object["status"]["conditions"] = json!([{"type": "Ready", "status": "False"}]);
        });
        bench.say(&pod, "Odd", true);
        bench.all_told().await;
        let ready = || bench.server.object("a").unwrap()["status"]["conditions"][0].clone();
        assert_eq!(ready()["status"], "False");
        bench.watch("a");
        match told {
            true => bench.handle.reconcile(&"a".into()),
            false => tokio::time::sleep(Duration::from_secs(80)).await,
        }
        bench.all_told().await;
        assert_eq!(ready()["status"], "True", "told: {told}");
        assert_eq!(bench.calls(), ["PATCH a"; 3]);
    }
}

#[tokio::test(start_paused = true)]
async fn an_overwritten_status_nobody_told_of_is_found_by_the_audit() {
    let bench = Bench::new();
    let pod = bench.bind("a");
    bench.say(&pod, "Running", true);
    bench.all_told().await;
    bench
        .server
        .change("a", |object| object["status"]["phase"] = json!("Odd"));
    bench.watch("a");
    tokio::time::sleep(Duration::from_secs(80)).await;
    assert_eq!(bench.phase("a"), "Running");
}

#[tokio::test(start_paused = true)]
async fn a_refused_write_is_tried_again_after_asking() {
    let bench = Bench::new();
    let pod = bench.bind("a");
    bench
        .server
        .fail_next(ApiError::from_answer(409, b"{}", None));
    bench.say(&pod, "Running", true);
    bench.all_told().await;
    assert_eq!(bench.calls(), ["PATCH a", "GET a", "PATCH a"]);
    assert_eq!(bench.phase("a"), "Running");
    // A server that is too busy is known not to have done it.
    bench.watch("a");
    let wait = Some(Duration::from_secs(5));
    bench
        .server
        .fail_next(ApiError::from_answer(429, b"{}", wait));
    bench.say(&pod, "Running", false);
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(bench.calls(), ["PATCH a"]);
    bench.all_told().await;
    assert_eq!(bench.calls(), ["PATCH a"]);
}

#[tokio::test(start_paused = true)]
async fn an_object_that_is_remembered_from_an_earlier_life_is_asked_for() {
    let bench = Bench::new();
    let pod = bench.bind("a");
    bench.server.change("a", |object| {
        object["status"] = json!({"conditions": [{"type": "Gate", "status": "True"}]});
    });
    bench.know(|known| drop(known.pods.insert("a".into(), Arc::new(pod.clone()))));
    bench.say(&pod, "Running", true);
    bench.all_told().await;
    assert_eq!(bench.calls(), ["GET a", "PATCH a"]);
    let object = bench.server.object("a").unwrap();
    assert_eq!(object["status"]["conditions"][0]["type"], "Gate");
    assert_eq!(bench.handle.numbers().gets, 1);
}

#[tokio::test(start_paused = true)]
async fn a_word_of_the_life_before_that_comes_late_is_not_taken_back() {
    let bench = Bench::new();
    let pod = bench.bind("a");
    // Nobody here knows of this when the first status is sent.
    bench.server.change("a", |object| {
        let container = json!({"name": "c", "restartCount": 1, "image": "", "imageID": ""});
        object["status"]["containerStatuses"] = json!([container]);
    });
    let mut first = status("Running", true);
    let container = json!([{"name": "c", "restartCount": 0, "image": "", "imageID": "",
        "ready": true, "state": {"running": {}}}]);
    first.container_statuses = serde_json::from_value(container).unwrap();
    bench.store.update(&pod, Timestamp::UNIX_EPOCH, |_| first);
    bench.all_told().await;
    assert_eq!(bench.calls(), ["PATCH a", "GET a", "PATCH a"]);
    assert_eq!(bench.handle.numbers().failures, 0);
    let object = bench.server.object("a").unwrap();
    assert_eq!(object["status"]["containerStatuses"][0]["restartCount"], 1);
    assert_eq!(bench.phase("a"), "Running");
}

#[tokio::test(start_paused = true)]
async fn a_write_whose_answer_was_lost_is_not_repeated() {
    let bench = Bench::new();
    let pod = bench.bind("a");
    bench
        .server
        .lose_next(ApiError::from_answer(500, b"{}", None));
    bench.say(&pod, "Running", true);
    bench.all_told().await;
    assert_eq!(bench.calls(), ["PATCH a", "GET a"]);
    assert_eq!(bench.phase("a"), "Running");
}

#[tokio::test(start_paused = true)]
async fn after_the_server_was_away_every_last_status_is_there() {
    let bench = Bench::new();
    let pods: Vec<Pod> = (0..50).map(|i| bench.bind(&format!("p{i}"))).collect();
    bench.server.go_away(true);
    for phase in ["Pending", "Running"] {
        pods.iter()
            .for_each(|p| bench.say(p, phase, phase == "Running"));
        tokio::time::sleep(Duration::from_secs(1800)).await;
    }
    // One asked at a time, at most every ten seconds.
    let asked = bench.calls().len();
    assert!(asked < 500, "asked {asked} times");
    bench.server.go_away(false);
    bench.handle.reached();
    // Nobody sits out a wait.
    bench.settle().await;
    assert_eq!(*bench.handle.undelivered().borrow(), 0);
    for pod in &pods {
        let name = pod.metadata.name.as_deref().unwrap();
        assert_eq!(bench.server.phases(name), ["Running"]);
    }
}

#[tokio::test(start_paused = true)]
async fn the_status_of_a_static_pod_goes_to_its_mirror() {
    let bench = Bench::new();
    let mut fixed = pod("static", "web");
    let from = |key: &str, value: &str| Some([(key.to_owned(), value.to_owned())].into());
    fixed.metadata.annotations = from(CONFIG_SOURCE, "file");
    bench.know(|known| drop(known.pods.insert("static".into(), Arc::new(fixed.clone()))));
    bench.say(&fixed, "Running", true);
    bench.all_told().await;
    assert_eq!(bench.calls(), [""; 0]);
    for uid in ["m1", "m2"] {
        let mut mirror = pod(uid, "web");
        mirror.metadata.annotations = from(CONFIG_MIRROR, "hash");
        mirror.metadata.deletion_timestamp =
            Some(serde_json::from_value(json!("2020-01-01T00:00:00Z")).unwrap());
        bench.server.put(serde_json::to_value(&mirror).unwrap());
        let object = bench.server.object("web").unwrap();
        let mirror: Arc<Pod> = serde_json::from_value(object).map(Arc::new).unwrap();
        bench.know(|known| drop(known.mirrors.insert("static".into(), mirror)));
        bench.handle.reconcile(&"static".into());
        bench.all_told().await;
        assert_eq!(bench.calls(), ["PATCH web"]);
        assert_eq!(
            bench.server.object("web").unwrap()["status"]["phase"],
            "Running"
        );
    }
    // A mirror pod is not deleted here, whatever it says.
    bench.store.terminate(&fixed, Timestamp::UNIX_EPOCH);
    bench.all_told().await;
    assert!(bench.server.object("web").is_some());
}
