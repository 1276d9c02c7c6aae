//! Objects of an API server that pods refer to: what is asked for, watched and told, by each strategy.

#![allow(clippy::unwrap_used, reason = "a test may fail by panicking")]

mod server;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::FutureExt as _;
use krablet_kube::ApiError;
use krablet_linux::fake::MemoryFiles;
use krablet_objects::{ClusterConfig, Keepsakes, Referents, ServicesTask, Strategy};
use krablet_pod::api::Pod;
use serde_json::{Value, json};
use server::Server;
use tokio::task::JoinSet;
use tokio::time::{advance, sleep};

const MAPS: &str = "/api/v1/namespaces/ns/configmaps";
const SECRETS: &str = "/api/v1/namespaces/ns/secrets";
const SERVICES: &str = "/api/v1/namespaces/ns/services";

struct World {
    server: Server,
    referents: Referents,
    ttl: Arc<Mutex<Option<Duration>>>,
    /// Not run before a test wants it.
    services: Option<ServicesTask>,
}

impl World {
    fn new(strategy: Strategy) -> Self {
        Self::with(strategy, Keepsakes::default())
    }

    fn with(strategy: Strategy, keepsakes: Keepsakes) -> Self {
        let server = Server::new();
        let ttl: Arc<Mutex<Option<Duration>>> = Arc::default();
        let said = ttl.clone();
        let (referents, task) = krablet_objects::build(ClusterConfig {
            kube: server.kube(),
            strategy,
            ttl: Arc::new(move || *said.lock().unwrap()),
            memory: krablet_objects::Memory::default(),
            keepsakes,
            seed: 1,
        });
        Self {
            server,
            referents,
            ttl,
            services: Some(task),
        }
    }

    fn want(&self, pod: Value) {
        let pod: Pod = serde_json::from_value(pod).unwrap();
        self.referents.objects.want(&pod);
    }

    fn forget(&self, uid: &str) {
        self.referents.objects.forget(&uid.into());
    }

    async fn map(&self, name: &str) -> Result<String, String> {
        let object = self.referents.objects.config_map("ns", name).await;
        let object = object.map_err(|e| e.to_string())?;
        Ok(object.data.as_ref().unwrap()["k"].clone())
    }

    async fn secret(&self, name: &str) -> Result<Vec<u8>, String> {
        let object = self.referents.objects.secret("ns", name).await;
        let object = object.map_err(|e| e.to_string())?;
        Ok(object.data.as_ref().unwrap()["k"].0.clone())
    }

    async fn rung(&self) -> Vec<String> {
        let pods = self.referents.bell.next().await;
        pods.iter().map(ToString::to_string).collect()
    }

    fn is_quiet(&self) -> bool {
        self.referents.bell.next().now_or_never().is_none()
    }
}

/// Takes one key of each configMap into its environment, and mounts each secret.
fn pod(uid: &str, maps: &[&str], secrets: &[&str]) -> Value {
    let env = |name: &&str| json!({"name": name, "valueFrom": {"configMapKeyRef": {"name": name, "key": "k"}}});
    let volume = |name: &&str| json!({"name": name, "secret": {"secretName": name}});
    json!({
        "metadata": {"namespace": "ns", "name": uid, "uid": uid},
        "spec": {
            "containers": [{"name": "c", "env": maps.iter().map(env).collect::<Vec<_>>()}],
            "volumes": secrets.iter().map(volume).collect::<Vec<_>>(),
        },
    })
}

fn map(value: &str) -> Value {
    json!({
        "metadata": {
            "managedFields": [{"manager": "m"}],
            "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}"},
        },
        "data": {"k": value},
    })
}

fn away() -> ApiError {
    ApiError::Connection("connection refused".to_owned())
}

#[tokio::test(start_paused = true)]
async fn one_watch_for_each_object_as_long_as_somebody_refers_to_it() {
    let world = World::new(Strategy::Watch);
    world.server.put(MAPS, "a", map("1"));
    world
        .server
        .put(SECRETS, "s", json!({"data": {"k": "/w=="}}));
    world.want(pod("one", &["a"], &["s"]));
    world.want(pod("two", &["a"], &[]));
    world.want(pod("two", &["a"], &[]));
    assert_eq!(world.map("a").await.as_deref(), Ok("1"));
    assert_eq!(world.secret("s").await, Ok(vec![0xff]));
    let (a, s) = (format!("{MAPS}/a"), format!("{SECRETS}/s"));
    world.server.until_watched(&[&a, &s]).await;
    let mut asked = world.server.asked();
    asked.sort();
    // The first list is of what there is now, not of what the server remembers.
    assert_eq!(
        asked,
        [
            format!("get {MAPS}?fieldSelector=metadata.name=a"),
            format!("get {SECRETS}?fieldSelector=metadata.name=s"),
            format!(
                "watch {MAPS}?fieldSelector=metadata.name=a&watch=true&allowWatchBookmarks=true&resourceVersion=2"
            ),
            format!(
                "watch {SECRETS}?fieldSelector=metadata.name=s&watch=true&allowWatchBookmarks=true&resourceVersion=2"
            ),
        ]
    );
    // Reading costs nothing more.
    assert_eq!(world.map("a").await.as_deref(), Ok("1"));
    assert!(world.server.asked().is_empty());
    world.forget("one");
    world.server.until_watched(&[&a]).await;
    assert_eq!(
        world.secret("s").await,
        Err(r#"object "ns"/"s" not registered"#.to_owned())
    );
    world.want(pod("two", &[], &[]));
    world.server.until_watched(&[]).await;
    world.want(pod("two", &["a"], &[]));
    world.server.until_watched(&[&a]).await;
    world.forget("two");
    world.server.until_watched(&[]).await;
    world.forget("two");
}

#[tokio::test(start_paused = true)]
async fn a_change_wakes_those_who_refer_to_it_and_nobody_else() {
    let world = World::new(Strategy::Watch);
    world.server.put(MAPS, "a", map("1"));
    world.server.put(MAPS, "b", map("1"));
    world.want(pod("one", &["a", "b"], &[]));
    world.want(pod("two", &["b"], &[]));
    world.want(pod("three", &["a"], &[]));
    assert_eq!(world.map("a").await.as_deref(), Ok("1"));
    assert_eq!(world.map("b").await.as_deref(), Ok("1"));
    let (a, b) = (format!("{MAPS}/a"), format!("{MAPS}/b"));
    world.server.until_watched(&[&a, &b]).await;
    assert!(world.is_quiet(), "what is read first is no news");
    world.server.put(MAPS, "a", map("2"));
    assert_eq!(world.rung().await, ["one", "three"]);
    assert_eq!(world.map("a").await.as_deref(), Ok("2"));
    world.server.put(MAPS, "b", map("2"));
    assert_eq!(world.rung().await, ["one", "two"]);
    world.server.delete(MAPS, "a");
    assert_eq!(world.rung().await, ["one", "three"]);
    assert_eq!(
        world.map("a").await,
        Err(r#"configmap "a" not found"#.to_owned())
    );
    world.forget("three");
    world.server.put(MAPS, "a", map("3"));
    assert_eq!(world.rung().await, ["one"]);
    assert_eq!(world.map("a").await.as_deref(), Ok("3"));
}

#[tokio::test(start_paused = true)]
async fn what_appears_later_is_told_at_once() {
    let world = World::new(Strategy::Watch);
    world.want(pod("one", &["a"], &["s"]));
    assert_eq!(
        world.map("a").await,
        Err(r#"configmap "a" not found"#.to_owned())
    );
    assert_eq!(
        world.secret("s").await,
        Err(r#"secret "s" not found"#.to_owned())
    );
    let (a, s) = (format!("{MAPS}/a"), format!("{SECRETS}/s"));
    world.server.until_watched(&[&a, &s]).await;
    world.server.put(MAPS, "a", map("1"));
    assert_eq!(world.rung().await, ["one"]);
    assert_eq!(world.map("a").await.as_deref(), Ok("1"));
}

#[tokio::test(start_paused = true)]
async fn only_what_is_of_use_is_kept() {
    let world = World::new(Strategy::Watch);
    world.server.put(MAPS, "a", map("1"));
    world.want(pod("one", &["a"], &[]));
    let object = world.referents.objects.config_map("ns", "a").await.unwrap();
    let meta = serde_json::to_value(&object.metadata).unwrap();
    let kept = json!({"name": "a", "namespace": "ns", "uid": "a", "resourceVersion": "1"});
    assert_eq!(meta, kept);
}

#[tokio::test(start_paused = true)]
async fn an_immutable_object_is_not_watched_once_it_is_known() {
    let world = World::new(Strategy::Watch);
    let immutable = |value: &str, uid: &str| json!({"metadata": {"uid": uid}, "immutable": true, "data": {"k": value}});
    world.server.put(MAPS, "a", map("1"));
    world.want(pod("one", &["a"], &[]));
    assert_eq!(world.map("a").await.as_deref(), Ok("1"));
    let a = format!("{MAPS}/a");
    world.server.until_watched(&[&a]).await;
    world.server.put(MAPS, "a", immutable("2", "a"));
    assert_eq!(world.rung().await, ["one"]);
    world.server.until_watched(&[]).await;
    assert_eq!(world.map("a").await.as_deref(), Ok("2"));
    world.server.asked();
    advance(Duration::from_secs(7200)).await;
    assert_eq!(world.map("a").await.as_deref(), Ok("2"));
    assert!(world.server.asked().is_empty());
    // Made anew under the same name it is another one, and a pod that comes now sees it.
    world.server.delete(MAPS, "a");
    world.server.put(MAPS, "a", immutable("3", "b"));
    world.want(pod("two", &["a"], &[]));
    assert_eq!(world.map("a").await.as_deref(), Ok("3"));
    assert_eq!(world.rung().await, ["one", "two"]);
    world.server.until_watched(&[]).await;
}

#[tokio::test(start_paused = true)]
async fn watches_that_only_starts_need_end_when_nothing_starts() {
    let world = World::new(Strategy::Watch);
    world.server.put(MAPS, "env", map("1"));
    world
        .server
        .put(SECRETS, "volume", json!({"data": {"k": "MQ=="}}));
    world.want(pod("one", &["env"], &["volume"]));
    assert_eq!(world.map("env").await.as_deref(), Ok("1"));
    assert_eq!(world.secret("volume").await.as_deref(), Ok(&b"1"[..]));
    let (env, volume) = (format!("{MAPS}/env"), format!("{SECRETS}/volume"));
    world.server.until_watched(&[&env, &volume]).await;
    sleep(Duration::from_secs(1260)).await;
    world.server.until_watched(&[&volume]).await;
    world.server.asked();
    sleep(Duration::from_secs(1260)).await;
    let asked = world.server.asked();
    assert!(asked.iter().all(|a| a.contains("name=volume")), "{asked:?}");
    world.server.put(MAPS, "env", map("2"));
    // Asked again, it is watched again, and what it was in between is seen.
    assert_eq!(world.map("env").await.as_deref(), Ok("2"));
    world.server.until_watched(&[&env, &volume]).await;
}

#[tokio::test(start_paused = true)]
async fn without_the_server_what_was_known_counts() {
    let world = World::new(Strategy::Watch);
    world.server.put(MAPS, "a", map("1"));
    world.want(pod("one", &["a"], &["s"]));
    assert_eq!(world.map("a").await.as_deref(), Ok("1"));
    let (a, s) = (format!("{MAPS}/a"), format!("{SECRETS}/s"));
    world.server.until_watched(&[&a, &s]).await;
    sleep(Duration::from_secs(1260)).await;
    world.server.until_watched(&[&s]).await;
    world.server.fail(Some(away()));
    assert_eq!(world.map("a").await.as_deref(), Ok("1"));
    world.server.put(MAPS, "a", map("2"));
    world.server.fail(None);
    assert_eq!(world.rung().await, ["one"]);
    assert_eq!(world.map("a").await.as_deref(), Ok("2"));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_answer_is_not_waited_for() {
    let world = World::new(Strategy::Watch);
    world
        .server
        .put(SECRETS, "s", json!({"data": {"k": "MQ=="}}));
    world.server.fail(Some(away()));
    world.want(pod("one", &[], &["s"]));
    assert_eq!(
        world.secret("s").await,
        Err("failed to sync secret cache: timed out waiting for the condition".to_owned())
    );
    world.server.fail(None);
    assert_eq!(world.rung().await, ["one"]);
    assert_eq!(world.secret("s").await.as_deref(), Ok(&b"1"[..]));
}

#[tokio::test(start_paused = true)]
async fn nothing_is_watched_by_an_agent_that_is_gone() {
    let world = World::new(Strategy::Watch);
    world.want(pod("one", &["a"], &["s"]));
    let (a, s) = (format!("{MAPS}/a"), format!("{SECRETS}/s"));
    world.server.until_watched(&[&a, &s]).await;
    let World {
        server, referents, ..
    } = world;
    drop(referents);
    server.until_watched(&[]).await;
}

#[tokio::test(start_paused = true)]
async fn answers_are_believed_for_a_while() {
    let world = World::new(Strategy::Cache);
    world.server.put(MAPS, "a", map("1"));
    world.want(pod("one", &["a"], &[]));
    assert!(world.server.asked().is_empty());
    assert_eq!(world.map("a").await.as_deref(), Ok("1"));
    assert_eq!(world.server.asked(), [format!("get {MAPS}/a?")]);
    world.server.put(MAPS, "a", map("2"));
    advance(Duration::from_secs(59)).await;
    assert_eq!(world.map("a").await.as_deref(), Ok("1"));
    assert!(world.server.asked().is_empty());
    advance(Duration::from_secs(2)).await;
    assert_eq!(world.map("a").await.as_deref(), Ok("2"));
    // What the server remembers is good enough for that.
    let again = format!("get {MAPS}/a?resourceVersion=0");
    assert_eq!(world.server.asked(), [again]);
    // A pod that comes now sees what there is now.
    world.server.put(MAPS, "a", map("3"));
    world.want(pod("two", &["a"], &[]));
    assert_eq!(world.map("a").await.as_deref(), Ok("3"));
    assert_eq!(world.server.asked(), [format!("get {MAPS}/a?")]);
    world.forget("one");
    world.forget("two");
    assert_eq!(
        world.map("a").await,
        Err(r#"object "ns"/"a" not registered"#.to_owned())
    );
    assert!(world.server.watched().is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_cluster_says_for_how_long_answers_are_believed() {
    let world = World::new(Strategy::Cache);
    *world.ttl.lock().unwrap() = Some(Duration::ZERO);
    world.server.put(MAPS, "a", map("1"));
    world.want(pod("one", &["a"], &[]));
    assert_eq!(world.map("a").await.as_deref(), Ok("1"));
    world.server.put(MAPS, "a", map("2"));
    assert_eq!(world.map("a").await.as_deref(), Ok("2"));
}

#[tokio::test(start_paused = true)]
async fn an_old_answer_is_better_than_none_and_an_absence_is_asked_again() {
    let world = World::new(Strategy::Cache);
    world.want(pod("one", &["a"], &[]));
    let missing = Err(r#"configmaps "a" not found"#.to_owned());
    assert_eq!(world.map("a").await, missing);
    world.server.put(MAPS, "a", map("1"));
    assert_eq!(world.map("a").await.as_deref(), Ok("1"));
    world.server.fail(Some(away()));
    advance(Duration::from_secs(61)).await;
    assert_eq!(world.map("a").await.as_deref(), Ok("1"));
    world.want(pod("two", &["a"], &[]));
    assert_eq!(world.map("a").await, Err("connection refused".to_owned()));
    world.server.fail(None);
    world.server.delete(MAPS, "a");
    assert_eq!(world.map("a").await, missing);
}

#[tokio::test(start_paused = true)]
async fn asking_each_time() {
    let world = World::new(Strategy::Get);
    world.want(pod("one", &["a"], &[]));
    let missing = Err(r#"configmaps "a" not found"#.to_owned());
    assert_eq!(world.map("a").await, missing);
    world.server.put(MAPS, "a", map("1"));
    assert_eq!(world.map("a").await.as_deref(), Ok("1"));
    world.server.put(MAPS, "a", map("2"));
    assert_eq!(world.map("a").await.as_deref(), Ok("2"));
    assert_eq!(world.server.asked().len(), 3);
    assert!(world.server.watched().is_empty() && world.is_quiet());
}

#[tokio::test(start_paused = true)]
async fn who_missed_the_services_is_woken_when_they_are_known() {
    let mut world = World::new(Strategy::Watch);
    let service = json!({
        "metadata": {"labels": {"a": "b"}},
        "spec": {
            "clusterIP": "10.0.0.1",
            "selector": {"app": "x"},
            "ports": [{"name": "p", "port": 80, "targetPort": 8080, "protocol": "TCP"}],
        },
        "status": {"loadBalancer": {}},
    });
    world.server.put(SERVICES, "web", service);
    world.want(pod("one", &[], &[]));
    let not_read = world.referents.services.all().unwrap_err();
    assert_eq!(
        not_read.to_string(),
        "services have not yet been read at least once, cannot construct envvars"
    );
    let mut tasks = JoinSet::new();
    tasks.spawn(world.services.take().unwrap().run());
    assert_eq!(world.rung().await, ["one"]);
    let services = world.referents.services.all().unwrap();
    assert_eq!(
        serde_json::to_value(&*services[0]).unwrap(),
        json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"name": "web", "namespace": "ns", "uid": "web", "resourceVersion": "1"},
            "spec": {"clusterIP": "10.0.0.1", "ports": [{"name": "p", "port": 80, "protocol": "TCP"}]},
        })
    );
    assert!(world.is_quiet());
}

/// What a life with these shelves leaves behind.
async fn life(files: &MemoryFiles, secrets: bool, lives: impl AsyncFnOnce(World)) {
    let (config_maps, task) = krablet_checkpoint::shelf(Arc::new(files.clone()), "/kept");
    let (hidden, hidden_task) = krablet_checkpoint::shelf(Arc::new(files.clone()), "/hidden");
    let keepsakes = Keepsakes {
        config_maps: Some(config_maps),
        secrets: secrets.then_some(hidden),
    };
    lives(World::with(Strategy::Watch, keepsakes)).await;
    tokio::join!(task.run(), hidden_task.run());
}

#[tokio::test(start_paused = true)]
async fn a_start_without_a_server_finds_objects_as_they_were_last_known() {
    let files = MemoryFiles::default();
    let full = async |world: World| {
        world.server.put(MAPS, "a", map("1"));
        world.server.put(MAPS, "dropped", map("1"));
        world
            .server
            .put(SECRETS, "s", json!({"data": {"k": "/w=="}}));
        world.want(pod("one", &["a"], &["s"]));
        world.want(pod("two", &["dropped"], &[]));
        for name in ["a", "dropped"] {
            assert_eq!(world.map(name).await.as_deref(), Ok("1"));
        }
        assert_eq!(world.secret("s").await, Ok(vec![0xff]));
        world.forget("two");
    };
    life(&files, true, full).await;
    let empty = async |world: World| {
        world.server.fail(Some(away()));
        world.want(pod("one", &["a", "dropped"], &["s"]));
        assert_eq!(world.map("a").await.as_deref(), Ok("1"));
        assert!(world.map("dropped").await.is_err());
        assert_eq!(world.secret("s").await, Ok(vec![0xff]));
        // The server is back, and what it says counts.
        world.server.fail(None);
        assert_eq!(world.rung().await, ["one"]);
        assert!(world.map("a").await.unwrap_err().contains("not found"));
    };
    life(&files, true, empty).await;
    life(&files, true, async |world| {
        world.server.fail(Some(away()));
        world.want(pod("one", &["a"], &["s"]));
        assert!(world.map("a").await.is_err(), "the server said it is gone");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn secrets_are_not_kept_where_they_may_not_be() {
    let files = MemoryFiles::default();
    life(&files, false, async |world| {
        world
            .server
            .put(SECRETS, "s", json!({"data": {"k": "/w=="}}));
        world.want(pod("one", &[], &["s"]));
        assert_eq!(world.secret("s").await, Ok(vec![0xff]));
    })
    .await;
    life(&files, true, async |world| {
        world.server.fail(Some(away()));
        world.want(pod("one", &[], &["s"]));
        assert!(world.secret("s").await.is_err());
    })
    .await;
}
