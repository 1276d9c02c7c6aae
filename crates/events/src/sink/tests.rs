//! The sink against an API server in memory.

use std::collections::BTreeMap;
use std::sync::Mutex;

use async_trait::async_trait;
use bytes::Bytes;
use jiff::Timestamp;
use krablet_kube::{Api, Watch};
use krablet_pod::PodRef;
use serde_json::Value;
use tokio::task::JoinSet;

use super::*;
use crate::{Subject, reason};

#[derive(Default)]
struct State {
    events: BTreeMap<String, Value>,
    calls: Vec<String>,
    /// What is answered to calls about these namespaces.
    refused: BTreeMap<String, ApiError>,
}

#[derive(Default)]
struct Server(Mutex<State>);

#[async_trait]
impl Api for Server {
    async fn call(&self, call: Call) -> Result<Bytes, ApiError> {
        assert_eq!(call.priority, Priority::Background);
        let mut state = self.0.lock().unwrap();
        let path: Vec<&str> = call.path.split('/').collect();
        let namespace = path[4].to_owned();
        let body: Value = serde_json::from_slice(call.body.as_ref().unwrap()).unwrap();
        let verb = match call.verb {
            Verb::Create => "POST",
            Verb::Patch(_) => "PATCH",
            other => panic!("{other:?} is not asked of events"),
        };
        let message = body["message"].as_str().unwrap();
        state
            .calls
            .push(format!("{verb} {namespace} {message} x{}", body["count"]));
        if let Some(error) = state.refused.get(&namespace) {
            return Err(error.clone());
        }
        let name = match path.get(6) {
            Some(name) => (*name).to_owned(),
            None => body["metadata"]["name"].as_str().unwrap().to_owned(),
        };
        match (call.verb, state.events.get_mut(&name)) {
            (Verb::Create, None) => drop(state.events.insert(name, body)),
            (Verb::Create, Some(_)) => {
                let exists = br#"{"reason":"AlreadyExists"}"#;
                return Err(ApiError::from_answer(409, exists, None));
            }
            (_, None) => {
                let missing = br#"{"reason":"NotFound"}"#;
                return Err(ApiError::from_answer(404, missing, None));
            }
            (_, Some(event)) => event["count"] = body["count"].clone(),
        }
        Ok(Bytes::new())
    }

    async fn watch(&self, _: Call) -> Result<Watch, ApiError> {
        panic!("nothing is watched here")
    }

    fn reconnect(&self) {}
}

struct Bench {
    server: Arc<Server>,
    recorder: Recorder,
    crowds: watch::Sender<usize>,
    _task: JoinSet<()>,
}

impl Bench {
    fn new(rate: u32) -> Self {
        let server = Arc::new(Server::default());
        let recorder = Recorder::new(|| Timestamp::UNIX_EPOCH);
        let crowds = watch::Sender::new(0);
        let sink = Sink::new(
            SinkConfig {
                node_name: "n".into(),
                rate,
                burst: 2,
                seed: 7,
            },
            SinkDeps {
                recorder: recorder.clone(),
                kube: Kube::new(server.clone()),
                resource_version: Arc::new(|_| None),
                crowds: crowds.subscribe(),
            },
        );
        let mut task = JoinSet::new();
        task.spawn(sink.run());
        Self {
            server,
            recorder,
            crowds,
            _task: task,
        }
    }

    fn record(&self, namespace: &str, message: &str) {
        let pod = PodRef::new("u", namespace, "web");
        self.recorder
            .warning(Subject::Pod(pod), reason::FAILED, message);
    }

    fn refuse(&self, namespace: &str, error: Option<ApiError>) {
        let mut state = self.server.0.lock().unwrap();
        match error {
            Some(error) => drop(state.refused.insert(namespace.to_owned(), error)),
            None => drop(state.refused.remove(namespace)),
        }
    }

    /// What is asked until this much time has passed. Time moves only when nothing else can.
    async fn after(&self, time: Duration) -> Vec<String> {
        tokio::time::sleep(time).await;
        std::mem::take(&mut self.server.0.lock().unwrap().calls)
    }
}

const MOMENT: Duration = Duration::from_millis(1);

fn away() -> Option<ApiError> {
    Some(ApiError::Connection("refused".into()))
}

#[tokio::test(start_paused = true)]
async fn events_are_created_and_counted() {
    let bench = Bench::new(0);
    bench.record("ns", "a");
    bench.record("ns", "b");
    assert_eq!(bench.after(MOMENT).await, ["POST ns a x1", "POST ns b x1"]);
    bench.record("ns", "a");
    assert_eq!(bench.after(MOMENT).await, ["PATCH ns a x2"]);
    // One that the server has forgotten begins anew, with its count.
    bench.server.0.lock().unwrap().events.clear();
    bench.record("ns", "a");
    assert_eq!(bench.after(MOMENT).await, ["PATCH ns a x3", "POST ns a x3"]);
}

#[tokio::test(start_paused = true)]
async fn a_failed_write_stops_no_other_and_is_tried_twelve_times() {
    let bench = Bench::new(0);
    bench.refuse("bad", away());
    bench.record("bad", "a");
    bench.record("good", "b");
    assert_eq!(
        bench.after(MOMENT).await,
        ["POST bad a x1", "POST good b x1"]
    );
    let calls = bench.after(Duration::from_secs(3600)).await;
    assert_eq!(calls, ["POST bad a x1"; 11]);
}

#[tokio::test(start_paused = true)]
async fn what_waits_is_written_when_the_server_is_back_and_never_an_older_count() {
    let bench = Bench::new(0);
    bench.refuse("ns", away());
    bench.record("ns", "a");
    bench.record("ns", "b");
    bench.after(MOMENT).await;
    bench.record("ns", "a");
    bench.after(MOMENT).await;
    bench.refuse("ns", None);
    let mut calls = bench.after(Duration::from_secs(30)).await;
    calls.sort();
    assert_eq!(calls, ["PATCH ns a x2", "POST ns a x2", "POST ns b x1"]);
}

#[tokio::test(start_paused = true)]
async fn what_the_server_refuses_is_dropped() {
    let bench = Bench::new(0);
    for (code, body) in [
        (403, r#"{"reason":"Forbidden"}"#),
        (404, r#"{"reason":"NotFound"}"#),
        (422, r#"{"reason":"Invalid"}"#),
    ] {
        let error = ApiError::from_answer(code, body.as_bytes(), None);
        bench.refuse("ns", Some(error));
        bench.record("ns", &format!("{code}"));
        let calls = bench.after(Duration::from_secs(60)).await;
        assert_eq!(calls, [format!("POST ns {code} x1")]);
    }
}

#[tokio::test(start_paused = true)]
async fn the_rate_is_kept() {
    let bench = Bench::new(1);
    for text in ["a", "b", "c", "d"] {
        bench.record("ns", text);
    }
    assert_eq!(bench.after(MOMENT).await.len(), 2);
    assert_eq!(bench.after(Duration::from_secs(1)).await.len(), 1);
    assert_eq!(bench.after(Duration::from_secs(1)).await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_waits_is_bounded() {
    let bench = Bench::new(0);
    bench.refuse("ns", away());
    for i in 0..400 {
        let pod = PodRef::new(format!("u{i}"), "ns", &format!("p{i}"));
        bench
            .recorder
            .warning(Subject::Pod(pod), reason::FAILED, "a");
    }
    assert_eq!(bench.after(MOMENT).await.len(), 400);
    let more = bench.after(Duration::from_secs(10)).await.len();
    assert_eq!(more, MAX_WAITING);
}

#[tokio::test(start_paused = true)]
async fn good_news_waits_for_pods_that_wait_and_bad_news_does_not() {
    let bench = Bench::new(0);
    let good = |text: &str| {
        let pod = PodRef::new("u", "ns", "web");
        let recorder = &bench.recorder;
        recorder.normal(Subject::Pod(pod), reason::STARTED, text);
    };
    bench.crowds.send_replace(1);
    good("a");
    bench.record("ns", "bad");
    assert_eq!(bench.after(MOMENT).await, ["POST ns bad x1"]);
    good("b");
    assert!(bench.after(PATIENCE / 2).await.is_empty());
    good("c");
    // Not for ever.
    assert_eq!(
        bench.after(PATIENCE / 2 + MOMENT).await,
        ["POST ns a x1", "POST ns b x1"]
    );
    bench.crowds.send_replace(0);
    assert_eq!(bench.after(MOMENT).await, ["POST ns c x1"]);
    good("d");
    assert_eq!(bench.after(MOMENT).await, ["POST ns d x1"]);
}

#[tokio::test(start_paused = true)]
async fn what_is_held_is_bounded() {
    let bench = Bench::new(0);
    bench.crowds.send_replace(1);
    for i in 0..MAX_HELD + 40 {
        let pod = PodRef::new(format!("u{i}"), "ns", &format!("p{i}"));
        let recorder = &bench.recorder;
        recorder.normal(Subject::Pod(pod), reason::STARTED, "a");
    }
    assert_eq!(bench.after(MOMENT).await.len(), 40);
    assert_eq!(bench.after(PATIENCE).await.len(), MAX_HELD);
}
