use std::time::Duration;

use jiff::SignedDuration;
use k8s_openapi::api::core::v1::{Node, NodeAddress};
use krablet_linux::WallClock as _;
use krablet_linux::fake::Fault;
use rustls::sign::CertifiedKey;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::*;
use crate::testing::{Clock, Policy, Server, at, sign};
use crate::{IdentityHandle, Names, Pair, ServingDeps, ServingRotation};

const HOUR: i64 = 3600;

struct World {
    files: MemoryFiles,
    clock: Clock,
    server: Arc<Server>,
    node: watch::Sender<Option<Arc<Node>>>,
    handle: Option<IdentityHandle>,
    shown: watch::Receiver<Option<Arc<CertifiedKey>>>,
    tasks: JoinSet<()>,
}

impl World {
    fn new(policy: Policy) -> Self {
        let clock = Clock::at(at(0));
        Self {
            files: MemoryFiles::new(Arc::new(clock.clone())),
            server: Server::new(clock.clone(), policy),
            clock,
            node: watch::Sender::new(None),
            handle: None,
            shown: watch::channel(None).1,
            tasks: JoinSet::new(),
        }
    }

    async fn store(&self) -> CertStore {
        let files = Arc::new(self.files.clone());
        CertStore::open_serving("/pki".into(), files).await.unwrap()
    }

    async fn start(&mut self) {
        let (publish, shown) = watch::channel(None);
        self.shown = shown;
        let deps = ServingDeps {
            node_name: NODE.into(),
            node: self.node.subscribe(),
            kube: self.server.kube(),
            store: self.store().await,
            publish,
            host_alone: false,
            clock: Arc::new(self.clock.clone()),
            seed: 7,
        };
        self.tasks = JoinSet::new();
        let (rotation, handle) = ServingRotation::build(deps).await;
        self.handle = Some(handle);
        self.tasks.spawn(rotation.run());
    }

    /// Types and addresses of the Node object.
    fn set_addresses(&self, addresses: &[(&str, &str)]) {
        let address = |(kind, address): &(&str, &str)| NodeAddress {
            type_: (*kind).to_owned(),
            address: (*address).to_owned(),
        };
        let mut node = Node::default();
        node.status.get_or_insert_default().addresses =
            Some(addresses.iter().map(address).collect());
        self.node.send_replace(Some(Arc::new(node)));
    }

    fn figures(&self) -> (f64, u64, u64) {
        let handle = self.handle.as_ref().unwrap();
        let ages = handle.ages();
        (handle.ttl_seconds(), handle.renew_errors(), ages.count)
    }

    /// The next certificate that is shown.
    async fn next(&mut self) -> Arc<CertifiedKey> {
        self.shown.changed().await.unwrap();
        self.shown.borrow_and_update().clone().unwrap()
    }

    async fn stored(&self) -> Option<Pair> {
        self.store().await.load().await.pair()
    }
}

fn names(hosts: &[&str], addresses: &[&str]) -> Names {
    Names {
        hosts: hosts.iter().map(|h| (*h).to_owned()).collect(),
        addresses: addresses.iter().map(|a| a.parse().unwrap()).collect(),
    }
}

#[tokio::test(start_paused = true)]
async fn asked_for_when_there_are_addresses() {
    let mut world = World::new(sign(HOUR));
    world.set_addresses(&[("Hostname", NODE)]);
    world.start().await;
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert!(world.shown.borrow().is_none());
    assert_eq!(world.server.count("create"), 0);
    let (ttl, errors, replaced) = world.figures();
    assert!(ttl.is_infinite() && errors > 0 && replaced == 0);
    let both = [("Hostname", NODE), ("InternalIP", "10.0.0.1")];
    world.set_addresses(&both);
    let shown = world.next().await;
    assert_eq!(world.server.signers(), ["kubernetes.io/kubelet-serving"]);
    tokio::time::sleep(Duration::from_secs(60)).await;
    let stored = world.stored().await.unwrap();
    assert_eq!(stored.certified().cert, shown.cert);
    assert!(names(&[NODE], &["10.0.0.1"]).are_in(&stored));
    assert!(stored.is_for_node(NODE));
    assert!(!names(&[], &["10.0.0.2"]).are_in(&stored));
    let paths = world.files.paths();
    let current = Path::new("/pki/kubelet-server-current.pem");
    assert!(paths.iter().any(|p| p == current), "{paths:?}");
}

#[tokio::test(start_paused = true)]
async fn renewed_in_time_and_for_other_addresses() {
    let mut world = World::new(sign(HOUR));
    world.set_addresses(&[("InternalIP", "10.0.0.1")]);
    world.start().await;
    let first = world.next().await;
    let second = world.next().await;
    assert_ne!(first.cert, second.cert);
    let now = world.clock.now();
    assert!(now > at(HOUR * 6 / 10) && now < at(HOUR), "{now}");
    let (ttl, errors, replaced) = world.figures();
    assert!(ttl > HOUR as f64 / 2.0 && ttl <= HOUR as f64, "{ttl}");
    assert_eq!((errors, replaced), (0, 1));
    // A change that is none to the certificate asks for nothing.
    world.set_addresses(&[("InternalIP", "10.0.0.1"), ("Other", "x")]);
    world.set_addresses(&[("InternalIP", "10.0.0.9")]);
    let third = world.next().await;
    assert!(world.clock.now() < now + SignedDuration::from_secs(60));
    assert_eq!(world.server.count("create"), 3);
    let ages = world.handle.as_ref().unwrap().ages();
    assert_eq!((ages.buckets[..2].iter().sum::<u64>(), ages.count), (2, 2));
    tokio::time::sleep(Duration::from_secs(60)).await;
    let stored = world.stored().await.unwrap();
    assert_eq!(stored.certified().cert, third.cert);
    assert!(names(&[], &["10.0.0.9"]).are_in(&stored));
}

#[tokio::test(start_paused = true)]
async fn what_was_stored_is_shown_at_once() {
    let mut world = World::new(sign(HOUR));
    world.set_addresses(&[("InternalIP", "10.0.0.1")]);
    world.start().await;
    let first = world.next().await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    world.start().await;
    let shown = world.shown.borrow().clone().unwrap();
    assert_eq!(shown.cert, first.cert);
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(world.server.count("create"), 1);
    // One that has expired is of no use to anybody.
    world.tasks.abort_all();
    world.clock.step(SignedDuration::from_secs(2 * HOUR));
    world.start().await;
    assert!(world.shown.borrow().is_none());
    world.next().await;
}

#[tokio::test(start_paused = true)]
async fn refusals_and_full_disks_are_waited_out() {
    let mut world = World::new(Policy::Deny);
    world.set_addresses(&[("InternalIP", "10.0.0.1")]);
    world.start().await;
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert!(world.shown.borrow().is_none());
    let tries = world.server.count("create");
    assert!((5..60).contains(&tries), "{tries}");
    world.files.set_faults(|call, _| {
        let full = || Fault::Before(std::io::ErrorKind::StorageFull.into());
        (call == "write_atomic").then(full)
    });
    world.server.delete_all();
    world.server.set_policy(sign(HOUR));
    let shown = world.next().await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(world.stored().await.is_none());
    world.files.clear_faults();
    tokio::time::sleep(Duration::from_secs(120)).await;
    let stored = world.stored().await.unwrap();
    assert_eq!(stored.certified().cert, shown.cert);
}
