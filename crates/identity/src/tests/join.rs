use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use jiff::SignedDuration;
use krablet_kube::kubeconfig::{Cluster, Kubeconfig, Pem};
use krablet_kube::{ApiError, Verb};
use krablet_linux::WallClock;
use krablet_linux::fake::Fault;
use tokio::time::{sleep, timeout};

use super::*;
use crate::testing::{Clock, Policy, Server, at, sign, status};
use crate::{IdentityError, Join, Pair};

struct World {
    files: MemoryFiles,
    clock: Clock,
    server: Arc<Server>,
}

impl World {
    fn new(policy: Policy) -> Self {
        let clock = Clock::at(at(0));
        Self {
            files: MemoryFiles::default(),
            server: Server::new(Clock::at(at(0)), policy),
            clock,
        }
    }

    async fn join(&self) -> Result<Pair, IdentityError> {
        let cluster = Cluster {
            name: "k".into(),
            server: "https://10.0.0.1:6443".into(),
            certificate_authority: Some(Pem::Data(b"authority".to_vec())),
            ..Cluster::default()
        };
        let join = Join {
            kube: self.server.kube(),
            node_name: NODE.into(),
            store: CertStore::open(PKI.into(), Arc::new(self.files.clone())).await?,
            kubeconfig: KUBECONFIG.into(),
            cluster,
            clock: Arc::new(self.clock.clone()),
            seed: 1,
        };
        join.run().await
    }

    async fn stored(&self) -> Pair {
        store(&self.files).await.load().await.pair().unwrap()
    }

    async fn check_joined(&self, pair: &Pair) {
        assert!(pair.is_for_node(NODE));
        assert!(self.stored().await.same_certificate(pair));
        let key = pki("kubelet-client.key.tmp");
        assert_eq!(self.files.content(&key), None, "the key's file is gone");
        let text = self.files.content(Path::new(KUBECONFIG)).unwrap();
        assert_eq!(self.files.mode(Path::new(KUBECONFIG)), Some(0o600));
        let kubeconfig = Kubeconfig::parse(Path::new(KUBECONFIG), &text).unwrap();
        let (cluster, user) = kubeconfig.current().unwrap();
        assert_eq!(cluster.server, "https://10.0.0.1:6443");
        let authority = Pem::Data(b"authority".to_vec());
        assert_eq!(cluster.certificate_authority, Some(authority));
        let current = Pem::File(pki("kubelet-client-current.pem"));
        assert_eq!(user.client_certificate, Some(current.clone()));
        assert_eq!(user.client_key, Some(current));
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_joins() {
    let world = World::new(sign(3600));
    let pair = world.join().await.unwrap();
    world.check_joined(&pair).await;
    let names = world.server.names();
    assert!(names[0].starts_with("node-csr-"), "{names:?}");
    assert_eq!(
        world.server.calls(),
        [
            "create certificatesigningrequests",
            "watch certificatesigningrequests"
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn approval_is_waited_for_however_the_watch_behaves() {
    for (closing, silent) in [(0, 0), (7, 0), (0, 5), (3, 2)] {
        let world = World::new(Policy::Sign {
            life: 3600,
            dated_back: 0,
            after: Duration::from_secs(600),
        });
        world.server.close_watches(closing);
        world.server.silence_watches(silent);
        let pair = world.join().await.unwrap();
        world.check_joined(&pair).await;
        assert_eq!(world.server.count("create"), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn what_passes_is_waited_out() {
    let world = World::new(sign(3600));
    let busy = status(429, "TooManyRequests", "wait");
    let lost = ApiError::Connection("refused".into());
    let late = ApiError::Deadline(Duration::from_secs(30));
    let ill = status(503, "ServiceUnavailable", "not now");
    let no_role = status(403, "Forbidden", "no role yet");
    let tls = ApiError::Tls("not yet valid".into());
    // The request is made in the end; then the watch fails, and looks.
    let script = [&lost, &no_role, &busy, &tls, &late, &ill].map(|e| Some(e.clone()));
    let then = [None, Some(lost), Some(busy), Some(late), Some(ill), None];
    let mut script = script.into_iter().chain(then);
    world.server.set_fault(move |_| script.next().flatten());
    let pair = world.join().await.unwrap();
    world.check_joined(&pair).await;
}

#[tokio::test(start_paused = true)]
async fn what_does_not_pass_is_given_back() {
    for error in [
        status(401, "Unauthorized", "Unauthorized"),
        ApiError::Tls("unknown authority".into()),
    ] {
        let world = World::new(sign(3600));
        let text = format!("cannot create a certificate signing request: {error}");
        world.server.set_fault(move |_| Some(error.clone()));
        let given = world.join().await.unwrap_err();
        assert_eq!(given.to_string(), text);
        assert!(world.server.count("create") > 2, "it is tried for a while");
    }
}

#[tokio::test(start_paused = true)]
async fn an_absent_server_is_waited_for() {
    let world = World::new(sign(3600));
    world
        .server
        .set_fault(|_| Some(ApiError::Connection("refused".into())));
    let hours = Duration::from_secs(5 * 3600);
    assert!(timeout(hours, world.join()).await.is_err());
    world.server.clear_fault();
    let pair = world.join().await.unwrap();
    world.check_joined(&pair).await;
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_told_and_the_request_is_not_repeated() {
    for (policy, word) in [(Policy::Deny, "was denied"), (Policy::Fail, "failed")] {
        let world = World::new(policy);
        let mut name = String::new();
        for _ in 0..3 {
            let error = world.join().await.unwrap_err();
            name = world.server.names().remove(0);
            assert_eq!(
                error.to_string(),
                format!(
                    "certificate signing request {name} {word}, reason: Policy, message: so it was decided"
                )
            );
        }
        assert_eq!(world.server.names().len(), 1);
        // Whoever changes his mind deletes the request.
        world.server.delete_all();
        world.server.set_policy(sign(3600));
        let pair = world.join().await.unwrap();
        world.check_joined(&pair).await;
        assert_eq!(world.server.names(), [name]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_nobody_decides_stays_the_same_one() {
    let world = World::new(Policy::Ignore);
    let decide = async {
        sleep(Duration::from_secs(3600)).await;
        world.server.set_policy(sign(3600));
    };
    let (pair, ()) = tokio::join!(world.join(), decide);
    world.check_joined(&pair.unwrap()).await;
    assert_eq!(world.server.names().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_deleted_request_is_made_again() {
    let world = World::new(Policy::Ignore);
    let decide = async {
        sleep(Duration::from_secs(100)).await;
        world.server.delete_all();
        sleep(Duration::from_secs(100)).await;
        world.server.set_policy(sign(3600));
    };
    let (pair, ()) = tokio::join!(world.join(), decide);
    world.check_joined(&pair.unwrap()).await;
    assert_eq!(world.server.count("create"), 2);
}

#[tokio::test(start_paused = true)]
async fn a_certificate_for_another_key_is_not_used() {
    let world = World::new(Policy::SignAnotherKey);
    let error = world.join().await.unwrap_err().to_string();
    let why = "cannot be used: the private key is not the certificate's";
    assert!(error.ends_with(why), "{error}");
    assert_eq!(dated(&world.files), 0);
    assert_eq!(world.files.content(Path::new(KUBECONFIG)), None);
}

#[tokio::test(start_paused = true)]
async fn a_request_whose_certificate_has_expired_is_not_taken_up() {
    let world = World::new(sign(60));
    world.files.set_faults(|call, path| {
        let pem = call == "write_atomic" && path.extension().is_some_and(|e| e == "pem");
        pem.then_some(Fault::Hang)
    });
    let minute = Duration::from_secs(61);
    assert!(timeout(minute, world.join()).await.is_err());
    world.files.clear_faults();
    let pair = world.join().await.unwrap();
    world.check_joined(&pair).await;
    assert_eq!(world.server.names().len(), 2);
    assert!(!pair.validity().is_expired(world.clock.now()));
}

#[tokio::test(start_paused = true)]
async fn a_clock_far_off_does_not_keep_a_node_out() {
    for days in [-700, 700] {
        let world = World::new(sign(3600));
        world.clock.step(SignedDuration::from_hours(24 * days));
        let pair = world.join().await.unwrap();
        world.check_joined(&pair).await;
        assert_eq!(world.server.names().len(), 1);
    }
}

/// Cut off at any file call or any API call, before or after its effect; the next life ends it, and
/// asks only once.
#[tokio::test(start_paused = true)]
async fn a_crash_anywhere_costs_no_second_request() {
    type Way = fn() -> Fault;
    let ways: [Way; 3] = [
        || Fault::Hang,
        || Fault::Before(io::Error::other("cut off")),
        || Fault::After(io::Error::other("cut off")),
    ];
    for (kind, way) in ways.into_iter().enumerate() {
        for nth in 0.. {
            let world = World::new(sign(3600));
            let hit = Arc::new(AtomicBool::new(false));
            let (told, calls) = (hit.clone(), AtomicUsize::new(0));
            world.files.set_faults(move |_, _| {
                let now = calls.fetch_add(1, Ordering::Relaxed) == nth;
                told.fetch_or(now, Ordering::Relaxed);
                now.then(way)
            });
            let minutes = Duration::from_secs(60);
            let _cut_off = timeout(minutes, world.join()).await;
            world.files.clear_faults();
            let pair = world.join().await.unwrap();
            world.check_joined(&pair).await;
            // A life that was done: the next one begins anew, as it is asked to.
            let done = kind > 0 || !hit.load(Ordering::Relaxed);
            let names = world.server.names().len();
            assert!(names == 1 || done && names == 2, "{kind} {nth}: {names}");
            if !hit.load(Ordering::Relaxed) {
                assert!(nth >= 9, "{nth} calls");
                break;
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_crash_between_api_calls_costs_no_second_request() {
    for verb in [Verb::Create, Verb::Get] {
        let world = World::new(sign(3600));
        world.server.set_policy(Policy::Ignore);
        let first = timeout(Duration::from_secs(90), world.join()).await;
        assert!(first.is_err());
        world.server.set_policy(sign(3600));
        let once = AtomicBool::new(false);
        world.server.set_fault(move |call| {
            let now = call.verb == verb && !once.swap(true, Ordering::Relaxed);
            now.then(|| ApiError::Connection("reset".into()))
        });
        let pair = world.join().await.unwrap();
        world.check_joined(&pair).await;
        assert_eq!(world.server.names().len(), 1);
    }
}
