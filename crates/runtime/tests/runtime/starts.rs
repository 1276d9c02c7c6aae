//! Many pods at once: the start gate, and syncs given up half-way.

use std::time::Duration;

use futures::future::join_all;
use krablet_pod::api::{EnvFromSource, LocalObjectReference, Pod, SecretEnvSource};

use crate::bench::{Bench, config, container, exec, pod, with_hooks};

fn named(i: usize, base: &Pod) -> Pod {
    let mut pod = base.clone();
    pod.metadata.uid = Some(format!("u-{i}"));
    pod.metadata.name = Some(format!("p{i}"));
    pod
}

#[tokio::test(start_paused = true)]
async fn the_gate_bounds_starts() {
    let bench = Bench::new();
    bench.world.state().sandbox_takes = Duration::from_secs(1);
    let base = pod(vec![], vec![container("a")]);
    let pods: Vec<Pod> = (0..7).map(|i| named(i, &base)).collect();
    let outcomes = join_all(pods.iter().map(|p| bench.sync_fresh(p))).await;
    assert!(outcomes.iter().all(|o| o.error.is_none()));
    let state = bench.world.state();
    assert_eq!((state.most_starting, state.containers.len()), (2, 7));
}

#[tokio::test(start_paused = true)]
async fn who_waits_at_the_gate_has_nothing_yet() {
    let bench = Bench::new();
    bench.world.state().sandbox_takes = Duration::from_secs(4);
    let base = pod(vec![], vec![container("a")]);
    let pods: Vec<Pod> = (0..3).map(|i| named(i, &base)).collect();
    let has_logs = |i: usize| {
        let dir = format!("/logs/pods/ns_p{i}_u-{i}");
        bench
            .files
            .paths()
            .iter()
            .any(|path| path.starts_with(&dir))
    };
    let look = async {
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!([0, 1, 2].map(has_logs), [true, true, false]);
    };
    tokio::join!(join_all(pods.iter().map(|p| bench.sync_fresh(p))), look);
    assert!(has_logs(2));
}

#[tokio::test(start_paused = true)]
async fn who_cannot_make_a_sandbox_leaves_the_gate() {
    let mut config = config();
    config.dns.resolv_conf = Some("/resolv.conf".into());
    let bench = Bench::with(config);
    bench.world.state().sandbox_takes = Duration::from_secs(1);
    let base = pod(vec![], vec![container("a")]);
    let pods: Vec<Pod> = (0..7).map(|i| named(i, &base)).collect();
    let outcomes = join_all(pods.iter().map(|p| bench.sync_fresh(p))).await;
    assert!(outcomes.iter().all(|o| o.error.is_some() && !o.acted));
    bench.files.put("/resolv.conf", b"");
    join_all(pods.iter().map(|p| bench.sync_fresh(p))).await;
    let state = bench.world.state();
    assert_eq!((state.most_starting, state.containers.len()), (2, 7));
}

#[tokio::test(start_paused = true)]
async fn pulls_and_hooks_do_not_hold_the_gate() {
    let bench = Bench::new();
    bench.world.has_remote("slow:1", Duration::from_secs(3600));
    let mut pulling = container("a");
    pulling.image = Some("slow:1".into());
    let pulling = pod(vec![], vec![pulling]);
    let hooked = with_hooks(container("a"), Some(exec("sleep 3600")), None);
    let hooked = pod(vec![], vec![hooked]);
    let quick = pod(vec![], vec![container("a")]);
    let slow = [
        named(0, &pulling),
        named(1, &pulling),
        named(2, &hooked),
        named(3, &hooked),
    ];
    let begun = bench.world.wall();
    let slow = join_all(slow.iter().map(|p| bench.sync_fresh(p)));
    let quick = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        bench.sync_fresh(&named(9, &quick)).await;
        bench.world.wall() - begun
    };
    let (_, took) = tokio::join!(slow, quick);
    assert_eq!(took, 1_000_000_000);
}

#[tokio::test(start_paused = true)]
async fn sandboxes_that_hang_hold_no_other_up() {
    let mut config = config();
    config.starts_in_flight = 4;
    let bench = Bench::with(config);
    bench.world.state().sandbox_takes = Duration::from_secs(24 * 3600);
    let base = pod(vec![], vec![container("a")]);
    let stuck: Vec<Pod> = (0..4).map(|i| named(i, &base)).collect();
    let stuck = join_all(stuck.iter().map(|p| bench.sync_fresh(p)));
    // What they wait for, and more pods than one to see that none of the places is lost.
    let others: Vec<Pod> = (4..12).map(|i| named(i, &base)).collect();
    let others = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        bench.world.state().sandbox_takes = Duration::from_secs(1);
        let outcomes = join_all(others.iter().map(|p| bench.sync_fresh(p))).await;
        assert!(outcomes.iter().all(|o| o.error.is_none()));
        let state = bench.world.state();
        assert_eq!((state.starting, state.most_starting), (4, 8));
    };
    let (stuck, ()) = tokio::join!(stuck, others);
    assert!(stuck.iter().all(|o| o.error.is_none()));
    assert_eq!(bench.world.state().containers.len(), 12);
}

#[tokio::test(start_paused = true)]
async fn who_waits_for_objects_does_not_hold_the_gate() {
    let bench = Bench::new();
    let mut wanting = container("a");
    let source = SecretEnvSource {
        name: "late".into(),
        ..SecretEnvSource::default()
    };
    wanting.env_from = Some(vec![EnvFromSource {
        secret_ref: Some(source),
        ..EnvFromSource::default()
    }]);
    let wanting = pod(vec![], vec![wanting]);
    let mut pulling = pod(vec![], vec![container("a")]);
    let secret = LocalObjectReference {
        name: "late".into(),
    };
    pulling.spec.as_mut().unwrap().image_pull_secrets = Some(vec![secret]);
    let plain = pod(vec![], vec![container("a")]);
    for slow in [wanting, pulling] {
        // Less than what makes a start slow, and both places.
        *bench.objects_take.lock().unwrap() = Duration::from_secs(3);
        let slow = [named(0, &slow), named(1, &slow)];
        let slow = join_all(slow.iter().map(|p| bench.sync_fresh(p)));
        let quick = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let begun = bench.world.wall();
            bench.sync_fresh(&named(2, &plain)).await;
            bench.world.wall() - begun
        };
        let (_, took) = tokio::join!(slow, quick);
        assert_eq!(took, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn pods_whose_images_are_there_go_first() {
    let bench = Bench::new();
    bench.world.state().sandbox_takes = Duration::from_secs(1);
    bench.world.has_remote("far:1", Duration::ZERO);
    let mut far = container("a");
    far.image = Some("far:1".into());
    let far = pod(vec![], vec![far]);
    let near = pod(vec![], vec![container("a")]);
    let pods = [
        named(0, &near),
        named(1, &near),
        named(2, &far),
        named(3, &far),
        named(4, &near),
        named(5, &near),
    ];
    join_all(pods.iter().map(|p| bench.sync_fresh(p))).await;
    let diary = bench.world.diary();
    let sandboxes: Vec<_> = diary
        .iter()
        .filter_map(|l| l.strip_prefix("RunPodSandbox "))
        .collect();
    assert_eq!(sandboxes, ["p0/0", "p1/0", "p4/0", "p5/0", "p2/0", "p3/0"]);
}

#[tokio::test(start_paused = true)]
async fn a_sync_given_up_anywhere_is_made_good_by_the_next() {
    // Time passes only in the sandbox and the hook, so these cut at the gate, in the sandbox, in
    // the hook, and not at all.
    for cut in [0, 500, 1500, 60_000] {
        let bench = Bench::new();
        bench.world.state().sandbox_takes = Duration::from_secs(1);
        let pod = pod(
            vec![],
            vec![with_hooks(container("a"), Some(exec("sleep 5")), None)],
        );
        let sync = tokio::time::timeout(Duration::from_millis(cut), bench.sync(&pod));
        let _ = sync.await;
        bench.sync(&pod).await;
        let observed = bench.observed(&pod);
        assert_eq!(observed.running().count(), 1, "{cut}");
        assert_eq!(observed.ready_sandboxes().count(), 1, "{cut}");
        assert!(!bench.sync(&pod).await.acted, "{cut}");
        // No permit was lost: as many as ever start at a time.
        let others: Vec<Pod> = (0..4).map(|i| named(i, &pod)).collect();
        bench.world.state().most_starting = 0;
        join_all(others.iter().map(|p| bench.sync_fresh(p))).await;
        assert_eq!(bench.world.state().most_starting, 2, "{cut}");
    }
}

#[tokio::test(start_paused = true)]
async fn syncs_and_kills_can_be_tasks() {
    fn is_send<F: Future + Send>(_: &F) {}
    let bench = Bench::new();
    let pod = std::sync::Arc::new(pod(vec![], vec![container("a")]));
    let observed = bench.observed(&pod);
    let verdicts = krablet_core::probe::Verdicts::new();
    let cancel = tokio_util::sync::CancellationToken::new();
    let sync = bench.runtime.sync_pod(krablet_runtime::SyncInputs {
        pod: &pod,
        observed: &observed,
        verdicts: &verdicts,
        volumes: &[],
        cgroup_parent: "",
        sizes: krablet_runtime::Sizes::default(),
        on_sandbox_ready: &|_| {},
        on_killed: &|| Box::pin(async { Err(String::new()) }),
        cancel: &cancel,
    });
    is_send(&sync);
    let kill = bench.runtime.kill_pod(Some(&pod), &observed, None);
    is_send(&kill);
}
