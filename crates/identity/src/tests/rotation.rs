use std::io;
use std::time::Duration;

use futures::StreamExt as _;
use jiff::SignedDuration;
use krablet_kube::ApiError;
use krablet_kube::kubeconfig::Cluster;
use krablet_linux::fake::Fault;
use krablet_linux::{HostFiles, SystemClock, WallClock};
use rustls::sign::CertifiedKey;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::*;
use crate::rotation::build;
use crate::testing::{Clock, Policy, Server, at, sign};
use crate::{Changes, First, IdentityError, IdentityHandle, Join, Pair, Renewal, RotationDeps};

type Shown = watch::Receiver<Option<Arc<CertifiedKey>>>;

const HOUR: Duration = Duration::from_secs(3600);
const MINUTE: Duration = Duration::from_secs(60);

struct World {
    files: MemoryFiles,
    clock: Clock,
    server: Arc<Server>,
    shown: Shown,
    publish: Option<watch::Sender<Option<Arc<CertifiedKey>>>>,
    tasks: JoinSet<IdentityError>,
}

impl World {
    fn new(policy: Policy) -> Self {
        let (publish, shown) = watch::channel(None);
        let clock = Clock::at(at(0));
        let server = Server::authenticating(Clock::at(at(0)), policy, Some(shown.clone()));
        Self {
            files: MemoryFiles::new(Arc::new(clock.clone())),
            clock,
            server,
            shown,
            publish: Some(publish),
            tasks: JoinSet::new(),
        }
    }

    /// A pair of this node that is valid from now on.
    fn pair(&self, life: i64) -> Pair {
        let now = self.clock.now();
        let end = now + SignedDuration::from_secs(life);
        self.server.authority().pair(NODE, now, end)
    }

    fn deps(&mut self, store: CertStore, renewal: Renewal) -> RotationDeps {
        RotationDeps {
            node_name: NODE.into(),
            renewal,
            kube: self.server.kube(),
            store,
            publish: self.publish.take().unwrap(),
            changes: None,
            clock: Arc::new(self.clock.clone()),
            seed: 7,
        }
    }

    async fn start(&mut self, pair: &Pair, renew_now: bool) -> IdentityHandle {
        self.start_with(pair, renew_now, Renewal::Rotate, None)
            .await
    }

    async fn start_with(
        &mut self,
        pair: &Pair,
        renew_now: bool,
        renewal: Renewal,
        changes: Option<Changes>,
    ) -> IdentityHandle {
        let store = store(&self.files).await;
        store.update(pair, self.clock.now()).await.unwrap();
        let mut deps = self.deps(store, renewal);
        deps.changes = changes;
        let first = First::Pair {
            pair: Some(pair.clone()),
            renew_now,
        };
        let (rotation, handle) = build(deps, first);
        self.tasks.spawn(rotation.run());
        handle
    }

    fn shows(&self, pair: &Pair) -> bool {
        let shown = self.shown.borrow();
        shown.as_ref().map(|key| &key.cert) == Some(&pair.certified().cert)
    }

    async fn stored(&self) -> Pair {
        store(&self.files).await.load().await.pair().unwrap()
    }

    fn made(&self) -> usize {
        self.server.count("create")
    }
}

#[tokio::test(start_paused = true)]
async fn one_minute_certificates_for_an_hour() {
    for dated_back in [0, 300] {
        let mut world = World::new(Policy::Sign {
            life: 60,
            dated_back,
            after: Duration::from_secs(1),
        });
        let handle = world.start(&world.pair(60), false).await;
        assert!(world.shown.borrow().is_some(), "published before it runs");
        for _ in 0..HOUR.as_secs() {
            sleep(Duration::from_secs(1)).await;
            let left = handle.ttl_seconds();
            assert!((1.0..=60.0).contains(&left), "{left}");
        }
        assert_eq!(handle.renew_errors(), 0);
        // Each lives 42 to 54 seconds.
        assert!((64..=86).contains(&world.made()), "{}", world.made());
        assert!(world.server.names().iter().all(|n| n.starts_with("csr-")));
        assert!(world.shows(&world.stored().await));
        assert!(dated(&world.files) <= 5);
    }
}

#[tokio::test(start_paused = true)]
async fn failures_are_counted_and_tried_again_while_the_certificate_lives() {
    let mut world = World::new(sign(3600));
    let first = world.pair(3600);
    let handle = world.start(&first, false).await;
    world
        .server
        .set_fault(|_| Some(ApiError::Connection("refused".into())));
    sleep(HOUR - MINUTE).await;
    assert!(world.shows(&first));
    let errors = handle.renew_errors();
    assert!((5..200).contains(&errors), "{errors}");
    world.server.clear_fault();
    world.shown.mark_unchanged();
    timeout(MINUTE, world.shown.changed())
        .await
        .unwrap()
        .unwrap();
    assert!(!world.shows(&first));
    assert!(world.tasks.try_join_next().is_none());
}

#[tokio::test(start_paused = true)]
async fn an_expired_certificate_is_given_up_only_if_the_server_answers() {
    let mut world = World::new(sign(3600));
    let handle = world.start(&world.pair(60), false).await;
    world
        .server
        .set_fault(|_| Some(ApiError::Connection("refused".into())));
    // Nobody there to tell whether it would help: the pods' node stays as it is.
    assert!(timeout(10 * HOUR, world.tasks.join_next()).await.is_err());
    assert!(handle.ttl_seconds() < 0.0);
    world.server.clear_fault();
    let ended = timeout(HOUR, world.tasks.join_next()).await.unwrap();
    let error = ended.unwrap().unwrap();
    assert_eq!(
        error.to_string(),
        "the client certificate expired at 2026-01-01T00:01:00Z, and none is to be had: cannot \
         create a certificate signing request: Unauthorized"
    );
}

#[tokio::test(start_paused = true)]
async fn refused_requests_do_not_end_the_life_of_a_certificate() {
    let mut world = World::new(Policy::Deny);
    let handle = world.start(&world.pair(3600), true).await;
    assert!(timeout(HOUR / 2, world.tasks.join_next()).await.is_err());
    assert!(handle.renew_errors() > 10);
    world.server.set_policy(sign(3600));
    world.shown.mark_unchanged();
    timeout(MINUTE, world.shown.changed())
        .await
        .unwrap()
        .unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_is_set_makes_no_storm() {
    for hours in [-20_000, -1, 1, 20_000] {
        let mut world = World::new(sign(60));
        let handle = world.start(&world.pair(60), false).await;
        sleep(Duration::from_secs(10)).await;
        world.clock.step(SignedDuration::from_hours(hours));
        for _ in 0..HOUR.as_secs() {
            sleep(Duration::from_secs(1)).await;
            assert!(world.server.calls().len() < 1000, "{hours}: too many");
        }
        // By the server's clock there always was a valid certificate.
        assert_eq!(handle.renew_errors(), 0, "{hours}");
        assert!(
            (60..=125).contains(&world.made()),
            "{hours}: {}",
            world.made()
        );
        assert!(world.tasks.try_join_next().is_none(), "{hours}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_adopted_pair_and_a_stranger_are_replaced_at_once() {
    for renew_now in [true, false] {
        let mut world = World::new(sign(3600));
        let first = match renew_now {
            true => world.pair(3600),
            false => world
                .server
                .authority()
                .pair_of("kubernetes-admin", at(0), at(3600)),
        };
        world.start(&first, renew_now).await;
        assert!(world.shows(&first));
        world.shown.mark_unchanged();
        timeout(MINUTE, world.shown.changed())
            .await
            .unwrap()
            .unwrap();
        sleep(MINUTE).await;
        let stored = world.stored().await;
        assert!(stored.is_for_node(NODE) && world.shows(&stored));
        assert_eq!(world.made(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_full_disk_costs_neither_the_certificate_nor_more_requests() {
    let mut world = World::new(sign(3600));
    let first = world.pair(3600);
    let handle = world.start(&first, false).await;
    world.files.set_faults(|call, _| {
        let full = || io::Error::from(io::ErrorKind::StorageFull);
        (call == "write_atomic").then(|| Fault::Before(full()))
    });
    sleep(HOUR).await;
    assert!(!world.shows(&first));
    assert_eq!(world.made(), 1);
    assert!(handle.renew_errors() > 0);
    assert!(world.stored().await.same_certificate(&first));
    world.files.clear_faults();
    sleep(MINUTE).await;
    assert!(world.shows(&world.stored().await));
    assert_eq!(world.made(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_others_put_into_the_store_is_read_anew() {
    for renewal in [Renewal::Rotate, Renewal::Reread, Renewal::Keep] {
        for hinted in [true, false] {
            let mut world = World::new(sign(3600));
            let first = world.pair(24 * 3600);
            let (hints, changes) = futures::channel::mpsc::channel(1);
            let changes = hinted.then(|| changes.boxed());
            world.start_with(&first, false, renewal, changes).await;
            sleep(Duration::from_secs(5)).await;
            let store = store(&world.files).await;
            let newer = world.pair(24 * 3600);
            store.update(&newer, at(6)).await.unwrap();
            hints.clone().try_send(()).ok();
            sleep(MINUTE).await;
            let taken = renewal != Renewal::Keep;
            assert_eq!(world.shows(&newer), taken, "{renewal:?} {hinted}");
            // Torn: what was read stays.
            let current = store.current_path();
            world.files.put_file(&current, b"-----BEGIN CERT").unwrap();
            hints.clone().try_send(()).ok();
            sleep(2 * MINUTE).await;
            assert_eq!(world.shows(&newer), taken, "{renewal:?} {hinted}");
            // Who rotates does not go back to an older one; who only reads does as he is told.
            store.update(&first, at(7)).await.unwrap();
            sleep(2 * MINUTE).await;
            let back = renewal != Renewal::Rotate;
            assert_eq!(world.shows(&first), back, "{renewal:?} {hinted}");
            assert_eq!(world.made(), 0);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn many_hints_cost_few_looks() {
    let mut world = World::new(sign(3600));
    let first = world.pair(24 * 3600);
    let flood = futures::stream::repeat(()).boxed();
    world
        .start_with(&first, false, Renewal::Reread, Some(flood))
        .await;
    let looks = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counted = looks.clone();
    world.files.set_faults(move |_, _| {
        counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        None
    });
    sleep(MINUTE).await;
    let looks = looks.load(std::sync::atomic::Ordering::Relaxed);
    assert!((50..=61).contains(&looks), "{looks}");
}

#[tokio::test]
async fn a_link_turned_on_the_real_disk_is_seen() {
    let dir = tempfile::tempdir().unwrap();
    let pki = dir.path().join("pki");
    let store = CertStore::open(pki, Arc::new(HostFiles)).await.unwrap();
    let mut world = World::new(sign(3600));
    let now = SystemClock.now();
    let end = now + SignedDuration::from_hours(24);
    let pair = |world: &World| world.server.authority().pair(NODE, now, end);
    let (first, second) = (pair(&world), pair(&world));
    store.update(&first, now).await.unwrap();
    let deps = RotationDeps {
        changes: Some(crate::watch(&store.directories()).unwrap()),
        clock: Arc::new(SystemClock),
        ..world.deps(store.clone(), Renewal::Reread)
    };
    let first = First::Pair {
        pair: Some(first),
        renew_now: false,
    };
    let (rotation, _handle) = build(deps, first);
    world.tasks.spawn(rotation.run());
    world.shown.mark_unchanged();
    store.update(&second, now).await.unwrap();
    world.shown.changed().await.unwrap();
    assert!(world.shows(&second));
}

#[tokio::test(start_paused = true)]
async fn joining_comes_first_where_it_has_to() {
    let mut world = World::new(sign(60));
    let bootstrap = Server::new(Clock::at(at(0)), sign(60));
    let store = store(&world.files).await;
    let join = Join {
        kube: bootstrap.kube(),
        node_name: NODE.into(),
        store: store.clone(),
        kubeconfig: KUBECONFIG.into(),
        cluster: Cluster::default(),
        clock: Arc::new(world.clock.clone()),
        seed: 3,
    };
    let deps = world.deps(store, Renewal::Rotate);
    let (rotation, handle) = build(deps, First::Join(Box::new(join)));
    assert!(handle.ttl_seconds().is_infinite());
    assert!(world.shown.borrow().is_none());
    world.tasks.spawn(rotation.run());
    timeout(MINUTE, world.shown.changed())
        .await
        .unwrap()
        .unwrap();
    assert_eq!(handle.ttl_seconds(), 60.0);
    assert!(world.shows(&world.stored().await));
    sleep(10 * MINUTE).await;
    assert_eq!((bootstrap.count("create"), handle.renew_errors()), (1, 0));
    assert!(world.made() > 9);
    assert!(world.shows(&world.stored().await));
}

#[tokio::test(start_paused = true)]
async fn a_node_that_may_not_join_says_so() {
    let mut world = World::new(Policy::Deny);
    let bootstrap = Server::new(Clock::at(at(0)), Policy::Deny);
    let store = store(&world.files).await;
    let join = Join {
        kube: bootstrap.kube(),
        node_name: NODE.into(),
        store: store.clone(),
        kubeconfig: KUBECONFIG.into(),
        cluster: Cluster::default(),
        clock: Arc::new(world.clock.clone()),
        seed: 3,
    };
    let deps = world.deps(store, Renewal::Rotate);
    let (rotation, _handle) = build(deps, First::Join(Box::new(join)));
    assert!(matches!(rotation.run().await, IdentityError::Denied { .. }));
}
