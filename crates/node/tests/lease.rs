//! The heartbeat through everything an API server can do to it.

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{Fault, Server, Steady, is_heartbeat, is_lease, is_renewal};
use jiff::Timestamp;
use krablet_kube::{Verb, paths};
use krablet_node::{LeaseConfig, LeaseDeps, LeaseTask};
use krablet_pod::api::Node;
use serde_json::json;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

struct Bed {
    server: Server,
    node: watch::Sender<Option<Arc<Node>>>,
    tasks: JoinSet<()>,
}

fn node(uid: &str) -> Option<Arc<Node>> {
    let mut node = Node::default();
    node.metadata.uid = Some(uid.to_owned());
    Some(Arc::new(node))
}

fn bed(known: Option<Arc<Node>>) -> Bed {
    let server = Server::default();
    let node = watch::Sender::new(known);
    let deps = LeaseDeps {
        kube: server.kube(),
        node: node.subscribe(),
        clock: Arc::new(Steady(Instant::now())),
    };
    let mut tasks = JoinSet::new();
    tasks.spawn(LeaseTask::build(LeaseConfig::new("n1"), deps).run());
    Bed {
        server,
        node,
        tasks,
    }
}

/// When the lease was last renewed, in seconds.
fn renewed(server: &Server) -> Option<f64> {
    let lease = server.lease()?;
    let time: Timestamp = lease["spec"]["renewTime"].as_str()?.parse().ok()?;
    Some(time.as_millisecond() as f64 / 1000.0)
}

fn updates(server: &Server) -> usize {
    server.count(is_renewal)
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_made_for_a_known_node_and_renewed() {
    let bed = bed(None);
    let server = &bed.server;
    server.until("a look", |s| s.count(is_lease) == 1).await;
    assert_eq!(server.lease(), None, "nobody would own it");
    bed.node.send_replace(node("u1"));
    server.until("a lease", |s| s.lease().is_some()).await;
    let lease = server.lease().unwrap();
    assert_eq!(lease["metadata"]["ownerReferences"][0]["uid"], "u1");
    assert_eq!(lease["spec"]["leaseDurationSeconds"], 40);
    server.until("renewals", |s| updates(s) == 6).await;
    let reads = server.count(|call| is_lease(call) && call.verb == Verb::Get);
    assert_eq!(reads, 2, "renewals need no reading");
    let at = renewed(server).unwrap();
    assert!(
        (60.0..63.0).contains(&at),
        "every ten seconds, a little later: {at}"
    );
    assert!(server.calls().iter().all(is_heartbeat));
    assert!(
        server
            .calls()
            .iter()
            .all(|c| c.deadline < Duration::from_secs(10))
    );
    assert_eq!(bed.tasks.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_existing_lease_is_taken_over_even_before_the_node_is_known() {
    let bed = bed(None);
    bed.server.put(
        &paths::node_lease("n1"),
        json!({"metadata": {"name": "n1", "namespace": "kube-node-lease"}, "spec": {}}),
    );
    bed.server.until("a renewal", |s| updates(s) == 1).await;
    bed.node.send_replace(node("u1"));
    bed.server.until("another", |s| updates(s) == 2).await;
    let owner = |s: &Server| s.lease().unwrap()["metadata"]["ownerReferences"][0]["uid"] == "u1";
    bed.server.until("an owner", owner).await;
    // The node was made anew.
    bed.node.send_replace(node("u2"));
    let owner = |s: &Server| s.lease().unwrap()["metadata"]["ownerReferences"][0]["uid"] == "u2";
    bed.server.until("a new owner", owner).await;
}

#[tokio::test(start_paused = true)]
async fn a_conflict_is_read_and_written_over() {
    let bed = bed(node("u1"));
    bed.server.until("a lease", |s| s.lease().is_some()).await;
    let path = paths::node_lease("n1");
    bed.server
        .edit(&path, |lease| lease["spec"]["strategy"] = json!("odd"));
    bed.server
        .until("a renewal", |s| renewed(s) > Some(9.0))
        .await;
    let lease = bed.server.lease().unwrap();
    assert_eq!(lease["spec"]["strategy"], "odd");
    assert_eq!(
        bed.server.reconnects(),
        0,
        "a conflict is no fault of the connection"
    );
}

#[tokio::test(start_paused = true)]
async fn a_dead_connection_costs_one_deadline() {
    let bed = bed(node("u1"));
    let server = &bed.server;
    server.until("a lease", |s| s.lease().is_some()).await;
    // Calls hang until a new connection is asked for.
    let before = server.reconnects();
    let dead = server.clone();
    let fresh = Arc::new(std::sync::atomic::AtomicBool::new(false));
    server.fail({
        let fresh = fresh.clone();
        move |_| (!fresh.load(std::sync::atomic::Ordering::SeqCst)).then_some(Fault::Hang)
    });
    let mended = async {
        dead.until("a failure", |s| updates(s) == 1).await;
        fresh.store(true, std::sync::atomic::Ordering::SeqCst);
        dead.until("a renewal", |s| renewed(s) > Some(10.0)).await;
    };
    mended.await;
    assert_eq!(server.reconnects(), before + 1);
    assert!(renewed(server) < Some(16.0), "{:?}", renewed(server));
}

#[tokio::test(start_paused = true)]
async fn failures_of_the_server_are_outlived() {
    let bed = bed(node("u1"));
    let server = &bed.server;
    server.until("a lease", |s| s.lease().is_some()).await;
    server.fail(|_| Some(Fault::Code(503)));
    server
        .until("tries and back-off", |s| s.count(is_lease) == 20)
        .await;
    server.heal();
    let calls = server.count(is_lease);
    server.until("a renewal", |s| renewed(s) > Some(10.0)).await;
    assert!(server.count(is_lease) <= calls + 2, "a read and a write do");
    // The effect was there, the answer was not.
    let seen = renewed(server);
    server.fail(|call| {
        let lost = is_renewal(call);
        lost.then_some(Fault::Broken { after_effect: true })
    });
    server
        .until("an unanswered renewal", |s| renewed(s) > seen)
        .await;
    server.heal();
    let seen = renewed(server);
    server.until("the next", |s| renewed(s) > seen).await;
    server.fail(|_| Some(Fault::Busy(3)));
    let calls = server.count(is_lease);
    server
        .until("a refusal", |s| s.count(is_lease) > calls)
        .await;
    server.heal();
    let seen = renewed(server);
    server.until("the next again", |s| renewed(s) > seen).await;
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_was_swept_away_is_made_again() {
    let bed = bed(node("u1"));
    bed.server.until("a lease", |s| s.lease().is_some()).await;
    bed.server.wipe();
    bed.node.send_replace(node("u2"));
    bed.server
        .until("a new lease", |s| s.lease().is_some())
        .await;
    let lease = bed.server.lease().unwrap();
    assert_eq!(lease["metadata"]["ownerReferences"][0]["uid"], "u2");
}
