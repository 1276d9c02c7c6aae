//! Registration and status against an API server in memory.

mod common;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use common::{Fault, Server, Steady, is_heartbeat, is_list, is_status_patch, is_watch};
use jiff::Timestamp;
use krablet_events::Recorder;
use krablet_kube::{Verb, paths};
use krablet_linux::facts::MemoryFacts;
use krablet_node::{
    Health, Image, Images, NodeConfig, NodeDeps, NodeHandle, NodeInputs, NodeTask, ObserverHealth,
    Pressures, RuntimeConditions, RuntimeFacts, RuntimeHealth,
};
use serde_json::json;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

struct OneImage;

#[async_trait]
impl Images for OneImage {
    async fn images(&self) -> Result<Vec<Image>, String> {
        tokio::time::sleep(Duration::from_millis(20)).await;
        Ok(vec![Image {
            digests: Vec::new(),
            tags: vec!["pause:1".to_owned()],
            size: 7,
        }])
    }
}

/// What the agent's other parts would tell.
struct World {
    health: watch::Sender<Health>,
    runtime: watch::Sender<Option<RuntimeFacts>>,
    pressures: watch::Sender<Pressures>,
    volumes: watch::Sender<Option<Vec<String>>>,
    machine: MemoryFacts,
    recorder: Recorder,
    began: Instant,
}

impl World {
    fn new(health: Health) -> Self {
        Self {
            health: watch::Sender::new(health),
            runtime: watch::Sender::new(None),
            pressures: watch::Sender::new(Pressures::default()),
            volumes: watch::Sender::new(None),
            machine: MemoryFacts::ordinary(),
            recorder: Recorder::new(|| Timestamp::UNIX_EPOCH),
            began: Instant::now(),
        }
    }

    /// Starts an agent's node over this world and that server.
    fn start(&self, server: &Server, config: NodeConfig) -> (NodeHandle, JoinSet<()>) {
        let deps = NodeDeps {
            kube: server.kube(),
            machine: Arc::new(self.machine.clone()),
            images: Arc::new(OneImage),
            inputs: NodeInputs {
                health: self.health.subscribe(),
                runtime: self.runtime.subscribe(),
                pressures: self.pressures.subscribe(),
                volumes_in_use: self.volumes.subscribe(),
            },
            recorder: self.recorder.clone(),
            clock: Arc::new(Steady(self.began)),
        };
        let (task, handle) = NodeTask::build(config, deps);
        let mut tasks = JoinSet::new();
        tasks.spawn(task.run());
        (handle, tasks)
    }

    /// How often an event of this reason was recorded.
    fn told(&self, reason: &str) -> u32 {
        let events = self.recorder.since(0).into_iter();
        let same = events.filter(|event| event.reason == reason);
        same.map(|event| event.count).sum()
    }
}

fn healthy() -> Health {
    Health {
        runtime: RuntimeHealth::Answers(RuntimeConditions::ready()),
        observer: ObserverHealth::Sees,
        ..Health::default()
    }
}

fn blind() -> Health {
    Health {
        observer: ObserverHealth::Blind {
            culprit: "ListContainers of pod ns/web: no answer within 30s".to_owned(),
            since: Timestamp::UNIX_EPOCH,
        },
        ..healthy()
    }
}

fn ready(server: &Server) -> Option<bool> {
    server.condition("Ready").map(|c| c["status"] == "True")
}

fn creations(server: &Server) -> usize {
    server.count(|call| call.verb == Verb::Create)
}

fn patches(server: &Server) -> usize {
    server.count(is_status_patch)
}

fn config() -> NodeConfig {
    NodeConfig::new("n1")
}

#[tokio::test(start_paused = true)]
async fn a_healthy_node_is_ready_with_its_first_call() {
    let (server, world) = (Server::default(), World::new(healthy()));
    let (handle, _tasks) = world.start(&server, config());
    let mut node = handle.node();
    let seen = node
        .wait_for(Option::is_some)
        .await
        .unwrap()
        .clone()
        .unwrap();
    assert_eq!(ready(&server), Some(true));
    assert_eq!(seen.metadata.uid.as_deref(), Some("uid-1"));
    assert_eq!(server.calls()[0].verb, Verb::Create);
    server.until("a watch", |s| s.count(is_watch) == 1).await;
    assert_eq!(creations(&server), 1);
    assert_eq!(world.told("NodeReady"), 1);
    // Images come with the next look.
    server.until("a patch", |s| patches(s) == 1).await;
    let node = server.node().unwrap();
    assert_eq!(node["status"]["images"][0]["names"][0], "pause:1");
    let beats = server.count(|c| is_heartbeat(c) && c.deadline <= Duration::from_secs(10));
    assert_eq!(beats, 2);
}

#[tokio::test(start_paused = true)]
async fn ready_is_pushed_by_the_event_that_makes_it_true() {
    let (server, world) = (Server::default(), World::new(Health::default()));
    let (_handle, _tasks) = world.start(&server, config());
    server.until("a node", |s| s.node().is_some()).await;
    assert_eq!(ready(&server), Some(false));
    let message = server.condition("Ready").unwrap()["message"].clone();
    assert!(
        message
            .as_str()
            .unwrap()
            .starts_with("[container runtime status check")
    );
    let before = Instant::now();
    world.health.send_replace(healthy());
    server.until("ready", |s| ready(s) == Some(true)).await;
    assert!(
        before.elapsed() < Duration::from_secs(1),
        "not at the next tick"
    );
    world.health.send_replace(blind());
    server.until("not ready", |s| ready(s) == Some(false)).await;
    let message = server.condition("Ready").unwrap()["message"].clone();
    assert_eq!(
        message,
        "PLEG is not healthy: ListContainers of pod ns/web: no answer within 30s, since 1970-01-01T00:00:00Z"
    );
    assert_eq!(
        (world.told("NodeReady"), world.told("NodeNotReady")),
        (1, 1)
    );
}

#[tokio::test(start_paused = true)]
async fn an_unchanged_status_is_told_every_few_minutes_only() {
    let (server, world) = (Server::default(), World::new(healthy()));
    let (_handle, _tasks) = world.start(&server, config());
    server.until("images", |s| patches(s) == 1).await;
    let began = Instant::now();
    server.until("a report", |s| patches(s) == 2).await;
    let first = began.elapsed().as_secs();
    assert!(
        (150..=470).contains(&first),
        "five minutes, spread: {first}"
    );
    let began = Instant::now();
    server.until("the next report", |s| patches(s) == 3).await;
    let second = began.elapsed().as_secs();
    assert!((300..=312).contains(&second), "five minutes: {second}");
    let heartbeat = |kind| server.condition(kind).unwrap()["lastHeartbeatTime"].clone();
    assert_eq!(heartbeat("Ready"), heartbeat("MemoryPressure"));
}

#[tokio::test(start_paused = true)]
async fn registration_goes_on_until_the_server_lets_it() {
    let (server, world) = (Server::default(), World::new(healthy()));
    server.fail(|_| Some(Fault::Code(500)));
    let (_handle, _tasks) = world.start(&server, config());
    let began = Instant::now();
    server.until("tries", |s| creations(s) == 9).await;
    let waited = began.elapsed().as_millis();
    // 100 ms doubling to 7 s: eight waits.
    assert!((19_700..20_000).contains(&waited), "{waited}");
    assert!(server.reconnects() >= 8);
    server.heal();
    server.until("a node", |s| ready(s) == Some(true)).await;
}

#[tokio::test(start_paused = true)]
async fn hanging_calls_are_given_up_and_tried_anew() {
    let (server, world) = (Server::default(), World::new(healthy()));
    server.fail(|_| Some(Fault::Hang));
    let (_handle, _tasks) = world.start(&server, config());
    server.until("tries", |s| creations(s) == 3).await;
    server.heal();
    server.until("a node", |s| ready(s) == Some(true)).await;
    server.fail(|call| is_status_patch(call).then_some(Fault::Hang));
    world.health.send_replace(blind());
    let tried = patches(&server);
    server
        .until("five tries", |s| patches(s) >= tried + 5)
        .await;
    server.heal();
    server.until("told", |s| ready(s) == Some(false)).await;
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_was_lost_is_no_second_node() {
    let (server, world) = (Server::default(), World::new(healthy()));
    server.fail(|call| {
        let create = call.verb == Verb::Create;
        create.then_some(Fault::Broken { after_effect: true })
    });
    let (handle, _tasks) = world.start(&server, config());
    let mut node = handle.node();
    server.until("a try", |s| creations(s) == 1).await;
    server.heal();
    node.wait_for(Option::is_some).await.unwrap();
    assert_eq!(server.node().unwrap()["metadata"]["uid"], "uid-1");
}

#[tokio::test(start_paused = true)]
async fn an_existing_node_is_reconciled_and_stays_ready_over_a_restart() {
    let (server, world) = (Server::default(), World::new(healthy()));
    {
        let (_handle, _tasks) = world.start(&server, config());
        server.until("ready", |s| ready(s) == Some(true)).await;
    }
    let since = server.condition("Ready").unwrap()["lastTransitionTime"].clone();
    server.edit(&paths::node("n1"), |node| {
        node["metadata"]["labels"]["kubernetes.io/hostname"] = json!("old");
        node["metadata"]["labels"]["mine"] = json!("kept");
    });
    // A new life that knows nothing yet.
    let world = World::new(Health::default());
    let (_handle, _tasks) = world.start(&server, config());
    let reconciled =
        |s: &Server| s.node().unwrap()["metadata"]["labels"]["kubernetes.io/hostname"] == "n1";
    server.until("reconciled", reconciled).await;
    let told = patches(&server);
    server.until("a report", |s| patches(s) > told).await;
    server.until("looks", |s| s.count(is_watch) >= 2).await;
    assert_eq!(ready(&server), Some(true));
    world.health.send_replace(healthy());
    world.pressures.send_replace(Pressures {
        disk: true,
        ..Pressures::default()
    });
    let pressed = |s: &Server| s.condition("DiskPressure").unwrap()["status"] == "True";
    server.until("pressure", pressed).await;
    assert_eq!(
        server.condition("Ready").unwrap()["lastTransitionTime"],
        since
    );
    assert_eq!(server.node().unwrap()["metadata"]["labels"]["mine"], "kept");
    assert_eq!(
        (world.told("NodeReady"), world.told("NodeNotReady")),
        (0, 0)
    );
}

#[tokio::test(start_paused = true)]
async fn a_deleted_node_is_made_again_at_once() {
    let (server, world) = (Server::default(), World::new(healthy()));
    let (handle, _tasks) = world.start(&server, config());
    server.until("a watch", |s| s.count(is_watch) == 1).await;
    let began = Instant::now();
    server.remove(&paths::node("n1"));
    server.until("again", |s| ready(s) == Some(true)).await;
    assert!(
        began.elapsed() < Duration::from_secs(1),
        "seen by the watch"
    );
    let mut node = handle.node();
    let again = |n: &Option<Arc<krablet_pod::api::Node>>| {
        n.as_ref()
            .is_some_and(|n| n.metadata.uid.as_deref() == Some("uid-2"))
    };
    node.wait_for(again).await.unwrap();
    server
        .until("images", |s| {
            s.node().unwrap()["status"]["images"].is_array()
        })
        .await;
    assert_eq!(creations(&server), 2);
}

#[tokio::test(start_paused = true)]
async fn a_wiped_server_gets_its_node_back() {
    let (server, world) = (Server::default(), World::new(healthy()));
    let (_handle, _tasks) = world.start(&server, config());
    server.until("images", |s| patches(s) == 1).await;
    server.wipe();
    // Nobody tells; the next thing to report finds out.
    world.health.send_replace(blind());
    server.until("again", |s| ready(s) == Some(false)).await;
    assert_eq!(server.node().unwrap()["metadata"]["uid"], "uid-2");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_comes_back_empty_gets_its_node_back_by_itself() {
    let (server, world) = (Server::default(), World::new(healthy()));
    let (_handle, _tasks) = world.start(&server, config());
    server.until("images", |s| patches(s) == 1).await;
    server.fail(|_| {
        Some(Fault::Broken {
            after_effect: false,
        })
    });
    server.wipe();
    server.close_watches();
    server
        .until("a lost watch", |s| s.count(is_list) >= 5)
        .await;
    server.heal();
    server.until("again", |s| ready(s) == Some(true)).await;
    server
        .until("a watch", |s| s.calls().last().is_some_and(is_watch))
        .await;
}

#[tokio::test(start_paused = true)]
async fn what_changed_while_the_server_was_away_is_told_when_it_is_back() {
    let (server, world) = (Server::default(), World::new(healthy()));
    let (_handle, _tasks) = world.start(&server, config());
    server.until("images", |s| patches(s) == 1).await;
    server.fail(|_| {
        Some(Fault::Broken {
            after_effect: false,
        })
    });
    world.health.send_replace(blind());
    let away = Instant::now() + Duration::from_secs(3600);
    server.until("an hour", |_| Instant::now() > away).await;
    let calls = server.calls().len();
    assert!(
        calls < 3600 * 2,
        "a server that is away is not stormed: {calls}"
    );
    server.heal();
    let back = Instant::now();
    server.until("told", |s| ready(s) == Some(false)).await;
    assert!(
        back.elapsed() < Duration::from_secs(8),
        "{:?}",
        back.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn without_registration_the_node_is_waited_for() {
    let (server, world) = (Server::default(), World::new(healthy()));
    let mut config = config();
    config.registration.register = false;
    server.fail(|call| (is_list(call) || is_heartbeat(call)).then_some(Fault::Code(500)));
    let (handle, _tasks) = world.start(&server, config);
    let mut synced = handle.synced();
    assert!(!*synced.borrow_and_update());
    server.heal();
    // That there is none yet is known by a list.
    synced.wait_for(|synced| *synced).await.unwrap();
    assert!(handle.current().is_none());
    server.until("a watch", |s| s.count(is_watch) == 1).await;
    assert_eq!(creations(&server), 0);
    server.put(&paths::node("n1"), json!({"metadata": {"name": "n1"}}));
    server.until("ready", |s| ready(s) == Some(true)).await;
    server.remove(&paths::node("n1"));
    let mut node = handle.node();
    node.wait_for(Option::is_none).await.unwrap();
    server.put(&paths::node("n1"), json!({"metadata": {"name": "n1"}}));
    server
        .until("ready again", |s| ready(s) == Some(true))
        .await;
    assert_eq!(creations(&server), 0);
}

#[tokio::test(start_paused = true)]
async fn pods_are_told_the_addresses_of_the_node_object() {
    let (server, world) = (Server::default(), World::new(healthy()));
    let (handle, tasks) = world.start(&server, config());
    let ips = handle.host_ips();
    server
        .until("an address", |_| ips.texts() == ["10.0.0.1"])
        .await;
    drop(tasks);
    // What a cloud provider will name is not guessed.
    let server = Server::default();
    let mut config = config();
    config.registration.external_cloud_provider = true;
    let (handle, _tasks) = world.start(&server, config);
    let ips = handle.host_ips();
    server.until("ready", |s| ready(s) == Some(true)).await;
    assert!(ips.texts().is_empty());
    server.edit(&paths::node("n1"), |node| {
        node["status"]["addresses"] = json!([
            {"type": "ExternalIP", "address": "203.0.113.9"},
            {"type": "InternalIP", "address": "fd00::9"},
            {"type": "InternalIP", "address": "192.0.2.9"},
        ]);
    });
    let named = ["fd00::9", "192.0.2.9"];
    server
        .until("its addresses", |_| ips.texts() == named)
        .await;
}

#[tokio::test(start_paused = true)]
async fn what_others_do_to_the_node_is_seen() {
    let (server, world) = (Server::default(), World::new(healthy()));
    let (handle, _tasks) = world.start(&server, config());
    server.until("a watch", |s| s.count(is_watch) == 1).await;
    let path = paths::node("n1");
    server.edit(&path, |node| node["spec"]["unschedulable"] = json!(true));
    let mut node = handle.node();
    let closed = |n: &Option<Arc<krablet_pod::api::Node>>| {
        let spec = n.as_ref().and_then(|n| n.spec.as_ref());
        spec.and_then(|spec| spec.unschedulable) == Some(true)
    };
    node.wait_for(closed).await.unwrap();
    let mut newest = world.recorder.newest();
    while world.told("NodeNotSchedulable") == 0 {
        newest.changed().await.unwrap();
    }
    // A controller that lost sight of the node is told otherwise.
    server.edit(&path, |node| {
        let conditions = node["status"]["conditions"].as_array_mut().unwrap();
        for condition in conditions {
            condition["status"] = json!("Unknown");
        }
    });
    server
        .until("ready again", |s| ready(s) == Some(true))
        .await;
    // The place in the history is lost, and found again.
    assert_eq!(server.count(is_list), 0);
    server.compact();
    server.edit(&path, |node| {
        node["metadata"]["labels"]["new"] = json!("label")
    });
    let labelled = |n: &Option<Arc<krablet_pod::api::Node>>| {
        let labels = n.as_ref().and_then(|n| n.metadata.labels.as_ref());
        labels.is_some_and(|labels| labels.contains_key("new"))
    };
    node.wait_for(labelled).await.unwrap();
    assert_eq!(server.count(is_list), 1);
}

#[tokio::test(start_paused = true)]
async fn a_reboot_is_told_once() {
    let (server, world) = (Server::default(), World::new(healthy()));
    {
        let (_handle, _tasks) = world.start(&server, config());
        server.until("a node", |s| s.node().is_some()).await;
    }
    world
        .machine
        .change(|m| m.identity.boot_id = "boot-2".to_owned());
    world.volumes.send_replace(Some(vec!["v".to_owned()]));
    let (_handle, _tasks) = world.start(&server, config());
    let booted = |s: &Server| s.node().unwrap()["status"]["nodeInfo"]["bootID"] == "boot-2";
    server.until("booted", booted).await;
    server.until("more", |s| patches(s) >= 2).await;
    assert_eq!(world.told("Rebooted"), 1);
    assert_eq!(
        server.node().unwrap()["status"]["volumesInUse"],
        json!(["v"])
    );
}
