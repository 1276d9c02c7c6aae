use std::collections::VecDeque;
use std::sync::Mutex;

use bytes::Bytes;
use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::*;
use crate::Watch;

/// What the scripted server does with the next request.
enum Answer {
    List(Value),
    Fail(ApiError),
    /// A watch that gets its lines from here; it ends when the sender is dropped.
    Watch(mpsc::Receiver<Result<Bytes, ApiError>>),
    /// The next answer takes so long.
    Wait(Duration),
}

struct Script {
    answers: Mutex<VecDeque<Answer>>,
    asked: watch::Sender<Vec<String>>,
}

impl Script {
    fn take(&self, call: &Call) -> Option<Answer> {
        let wanted = [
            "resourceVersion",
            "resourceVersionMatch",
            "limit",
            "continue",
            "watch",
        ];
        let query = call.query.iter().filter(|(name, _)| wanted.contains(name));
        let query: Vec<_> = query
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        self.asked.send_modify(|asked| asked.push(query.join("&")));
        self.answers.lock().unwrap().pop_front()
    }
}

#[async_trait]
impl Api for Script {
    async fn call(&self, call: Call) -> Result<Bytes, ApiError> {
        match self.take(&call) {
            Some(Answer::List(list)) => Ok(list.to_string().into()),
            Some(Answer::Fail(error)) => Err(error),
            Some(_) => panic!("another question was expected, got {call:?}"),
            None => futures::future::pending().await,
        }
    }

    async fn watch(&self, call: Call) -> Result<Watch, ApiError> {
        assert!(call.query.contains(&("allowWatchBookmarks", "true".into())));
        let first = self
            .answers
            .lock()
            .unwrap()
            .pop_front_if(|a| matches!(a, Answer::Wait(_)));
        if let Some(Answer::Wait(time)) = first {
            tokio::time::sleep(time).await;
        }
        match self.take(&call) {
            Some(Answer::Watch(lines)) => Ok(Box::pin(futures::stream::unfold(
                lines,
                |mut lines| async move { lines.recv().await.map(|line| (line, lines)) },
            ))),
            Some(Answer::Fail(error)) => Err(error),
            Some(_) => panic!("another question was expected, got {call:?}"),
            None => futures::future::pending().await,
        }
    }

    fn reconnect(&self) {}
}

struct World {
    script: Arc<Script>,
    sets: watch::Receiver<Option<Vec<Arc<ConfigMap>>>>,
    reach: watch::Receiver<Reach>,
    _task: JoinSet<()>,
}

impl Script {
    fn new(answers: Vec<Answer>) -> Arc<Self> {
        Arc::new(Self {
            answers: Mutex::new(answers.into()),
            asked: watch::Sender::new(Vec::new()),
        })
    }
}

fn config() -> ReflectorConfig<ConfigMap> {
    ReflectorConfig {
        path: "/api/v1/configmaps".into(),
        query: vec![("fieldSelector", "a=b".into())],
        slim: Box::new(|_, _| ()),
        seed: 1,
    }
}

impl World {
    fn new(answers: Vec<Answer>) -> Self {
        let script = Script::new(answers);
        let (sender, sets) = watch::channel(None);
        let (reflector, reach) = Reflector::new(script.clone(), config(), sender);
        let mut task = JoinSet::new();
        task.spawn(reflector.run());
        Self {
            script,
            sets,
            reach,
            _task: task,
        }
    }

    /// Waits until these are the names and versions.
    async fn until(&mut self, wanted: &[(&str, &str)]) -> Vec<Arc<ConfigMap>> {
        let is = |set: &Option<Vec<Arc<ConfigMap>>>| {
            let Some(set) = set else { return false };
            let found = set.iter().map(|object| {
                let meta = &object.metadata;
                (
                    meta.name.as_deref().unwrap(),
                    meta.resource_version.as_deref().unwrap(),
                )
            });
            found.eq(wanted.iter().copied())
        };
        let set = self.sets.wait_for(is).await.unwrap();
        set.clone().unwrap()
    }

    /// Waits until that many questions were asked.
    async fn asked(&self, count: usize) -> Vec<String> {
        let mut asked = self.script.asked.subscribe();
        let enough = asked.wait_for(|asked| asked.len() >= count).await;
        enough.unwrap().clone()
    }
}

fn object(name: &str, version: &str) -> Value {
    let managed = json!([{"manager": "m", "operation": "Update"}]);
    json!({"metadata": {
        "namespace": "n", "name": name, "uid": name, "resourceVersion": version, "managedFields": managed,
    }})
}

fn list(version: &str, items: &[(&str, &str)]) -> Answer {
    let items: Vec<_> = items
        .iter()
        .map(|(name, version)| object(name, version))
        .collect();
    Answer::List(json!({"metadata": {"resourceVersion": version}, "items": items}))
}

type Lines = mpsc::Sender<Result<Bytes, ApiError>>;

fn open() -> (Lines, Answer) {
    let (sender, receiver) = mpsc::channel(64);
    (sender, Answer::Watch(receiver))
}

async fn tell(lines: &Lines, kind: &str, object: Value) {
    let line = json!({"type": kind, "object": object}).to_string();
    lines.send(Ok(line.into())).await.unwrap();
}

fn bookmark(version: &str) -> Value {
    json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"resourceVersion": version}})
}

#[tokio::test(start_paused = true)]
async fn lists_then_watches() {
    let (lines, watch) = open();
    let mut world = World::new(vec![list("5", &[("a", "1"), ("b", "2")]), watch]);
    let first = world.until(&[("a", "1"), ("b", "2")]).await;
    assert!(first[0].metadata.managed_fields.is_none());
    tell(&lines, "MODIFIED", object("b", "6")).await;
    let second = world.until(&[("a", "1"), ("b", "6")]).await;
    assert!(Arc::ptr_eq(&first[0], &second[0]));
    tell(&lines, "ADDED", object("c", "7")).await;
    tell(&lines, "DELETED", object("a", "8")).await;
    world.until(&[("b", "6"), ("c", "7")]).await;
    let asked = world.asked(2).await;
    assert_eq!(
        asked,
        [
            "limit=500&resourceVersion=0",
            "watch=true&resourceVersion=5"
        ]
    );
    assert!(world.reach.borrow().is_reached());
}

#[tokio::test(start_paused = true)]
async fn resumes_from_a_bookmark() {
    let (lines, first) = open();
    let (_more, second) = open();
    let world = World::new(vec![list("5", &[]), first, second]);
    tell(&lines, "BOOKMARK", bookmark("9")).await;
    drop(lines);
    assert_eq!(world.asked(3).await[2], "watch=true&resourceVersion=9");
}

#[tokio::test(start_paused = true)]
async fn lists_anew_when_the_version_is_gone() {
    let (lines, first) = open();
    let (_more, second) = open();
    let page = json!({
        "metadata": {"resourceVersion": "20", "continue": "next"},
        "items": [object("a", "1")],
    });
    let answers = vec![
        list("5", &[("a", "1")]),
        first,
        Answer::List(page),
        list("20", &[("d", "12")]),
        second,
    ];
    let mut world = World::new(answers);
    let before = world.until(&[("a", "1")]).await;
    let gone = json!({"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"});
    tell(&lines, "ERROR", gone).await;
    let after = world.until(&[("a", "1"), ("d", "12")]).await;
    assert!(Arc::ptr_eq(&before[0], &after[0]));
    let asked = world.asked(5).await;
    let expected = [
        "limit=500",
        "limit=500&continue=next",
        "watch=true&resourceVersion=20",
    ];
    assert_eq!(asked[2..], expected);
}

#[tokio::test(start_paused = true)]
async fn a_server_away_is_asked_again_until_it_is_back() {
    let (lines, first) = open();
    let (_more, second) = open();
    let away = || ApiError::Connection("refused".into());
    let old = ApiError::Status {
        code: 504,
        reason: "Timeout".into(),
        message: "Too large resource version: 5, current: 2".into(),
        retry_after: Some(Duration::from_secs(1)),
    };
    let mut answers = vec![list("5", &[("a", "1")]), first];
    answers.extend((0..20).map(|_| Answer::Fail(away())));
    answers.extend([Answer::Fail(old), list("2", &[("z", "1")]), second]);
    let mut world = World::new(answers);
    world.until(&[("a", "1")]).await;
    lines.send(Err(away())).await.unwrap();
    world
        .reach
        .wait_for(|reach| !reach.is_reached())
        .await
        .unwrap();
    assert_eq!(world.reach.borrow().error, Some(away()));
    // The store behind the server was replaced meanwhile.
    world.until(&[("z", "1")]).await;
    world.reach.wait_for(Reach::is_reached).await.unwrap();
    let asked = world.asked(25).await;
    assert_eq!(asked[2], "watch=true&resourceVersion=5");
    let again = "limit=500&resourceVersion=5&resourceVersionMatch=NotOlderThan";
    assert_eq!(asked[3], again);
    assert_eq!(asked[22], again);
    assert_eq!(asked[23..], ["limit=500", "watch=true&resourceVersion=2"]);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_comes_back_within_one_try_is_asked_what_it_remembers() {
    let (lines, first) = open();
    let (_late, second) = open();
    let (_more, third) = open();
    let answers = vec![
        list("5", &[("a", "1")]),
        first,
        Answer::Wait(Duration::from_secs(2)),
        second,
        list("7", &[("z", "1")]),
        third,
    ];
    let mut world = World::new(answers);
    world.until(&[("a", "1")]).await;
    let lost = ApiError::Connection("closed".into());
    lines.send(Err(lost)).await.unwrap();
    world.until(&[("z", "1")]).await;
    let asked = world.asked(5).await;
    let again = "limit=500&resourceVersion=5&resourceVersionMatch=NotOlderThan";
    let watch = |version| format!("watch=true&resourceVersion={version}");
    assert_eq!(asked[2..], [watch(5), again.to_owned(), watch(7)]);
}

#[tokio::test(start_paused = true)]
async fn a_silent_watch_is_dropped() {
    let (lines, first) = open();
    let (_more, second) = open();
    let world = World::new(vec![list("5", &[]), first, list("5", &[]), second]);
    lines.closed().await;
    let asked = world.asked(4).await;
    assert_eq!(
        asked[2],
        "limit=500&resourceVersion=5&resourceVersionMatch=NotOlderThan"
    );
    assert_eq!(asked[3], "watch=true&resourceVersion=5");
}

#[tokio::test(start_paused = true)]
async fn what_is_there_comes_in_one_go() {
    let (lines, watch) = open();
    for version in 10..40 {
        tell(&lines, "MODIFIED", object("a", &version.to_string())).await;
    }
    let mut world = World::new(vec![list("5", &[("a", "1")]), watch]);
    let mut counted = 0;
    loop {
        world.sets.changed().await.unwrap();
        counted += 1;
        let set = world.sets.borrow_and_update().clone().unwrap();
        if set[0].metadata.resource_version.as_deref() == Some("39") {
            break;
        }
    }
    assert!(counted <= 2, "{counted} sets for 30 lines");
}

#[tokio::test(start_paused = true)]
async fn a_bad_object_stops_nothing() {
    let (lines, watch) = open();
    let mut bad = object("bad", "1");
    bad["data"] = json!("not a map");
    let page = json!({"metadata": {"resourceVersion": "5"}, "items": [bad, object("a", "1")]});
    let mut world = World::new(vec![Answer::List(page), watch]);
    world.until(&[("a", "1")]).await;
    let mut bad = object("bad", "6");
    bad["data"] = json!(3);
    tell(&lines, "MODIFIED", bad).await;
    tell(&lines, "ADDED", object("b", "7")).await;
    world.until(&[("a", "1"), ("b", "7")]).await;
}

#[tokio::test(start_paused = true)]
async fn what_nobody_wants_is_not_asked_for() {
    let away = ApiError::Connection("no route to host".into());
    let (lines, watch) = open();
    let answers = vec![Answer::Fail(away.clone()), list("5", &[("a", "1")]), watch];
    let script = Script::new(answers);
    let (wanted, task) = on_demand::<ConfigMap>(script.clone(), config());
    let mut tasks = JoinSet::new();
    tasks.spawn(task.run());
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert_eq!(*script.asked.borrow(), Vec::<String>::new());
    assert!(wanted.known().is_none());
    // Nobody waits for a server that is away.
    assert_eq!(wanted.all().await.err(), Some(away));
    let mut news = wanted.clone();
    news.changed().await;
    let all = wanted.all().await.unwrap();
    assert_eq!(all[0].metadata.name.as_deref(), Some("a"));
    tell(&lines, "ADDED", object("b", "6")).await;
    wanted
        .within(Duration::from_secs(60), |known| known.len() == 2)
        .await;
    assert_eq!(wanted.known().unwrap().len(), 2);
    // What is known is known, also without a server.
    drop(lines);
    script
        .asked
        .subscribe()
        .wait_for(|asked| asked.len() == 4)
        .await
        .unwrap();
    assert_eq!(wanted.all().await.unwrap().len(), 2);
    let begun = Instant::now();
    wanted
        .within(Duration::from_secs(60), <[_]>::is_empty)
        .await;
    assert_eq!(begun.elapsed(), Duration::from_secs(60));
}
