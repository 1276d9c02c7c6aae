//! Probes over a scripted world, in virtual time.
#![allow(clippy::unwrap_used)]

mod world;

use std::sync::Arc;

use krablet_core::probe::{ContainerVerdicts, Verdict};
use krablet_cri::Code;
use krablet_net::{GrpcHealth, NetError};
use krablet_pod::PodUid;
use krablet_pod::api::{ContainerStatus, PodStatus};
use krablet_pod::observed::ContainerState;
use krablet_probes::{ProbeKind, ProbeUpdate, ProbesConfig};
use world::{Answer, World, absent, observed, pod, pod_of, running};

const READINESS: &str = r#""readinessProbe": {"httpGet": {"port": 80}}"#;
const LIVENESS: &str = r#""livenessProbe": {"httpGet": {"port": 80}}"#;
const EXEC_LIVENESS: &str = r#""livenessProbe": {"exec": {"command": ["x"]}}"#;

fn update(id: &str, kind: ProbeKind, verdict: Verdict) -> ProbeUpdate {
    ProbeUpdate {
        pod: "u".into(),
        container: id.into(),
        kind,
        verdict,
    }
}

/// A world that is a minute old, so that containers in it are no older than the agent.
async fn old_world() -> World {
    let world = World::new();
    world.pass(60).await;
    world
}

#[tokio::test(start_paused = true)]
async fn a_new_container_becomes_ready_at_its_first_success() {
    let mut world = old_world().await;
    let pod = pod(READINESS);
    world.set(&pod, &absent());
    assert_eq!(world.verdicts("a"), None);
    world.pass(2).await;
    world.answers([Answer::Status(500)]);
    world.set(&pod, &running("a", 62));
    // Stands before the first result, in the very sync that sees the container.
    assert_eq!(world.readiness("a"), Some(Verdict::Failure));
    let next = world.next_update().await;
    assert_eq!(next, update("a", ProbeKind::Readiness, Verdict::Success));
    assert_eq!(world.asked_at(), [62, 62]);
    assert_eq!(world.readiness("a"), Some(Verdict::Success));
    assert!(world.events().is_empty(), "it had not been up for long");
    // Failing again: three in a row.
    world.always(Answer::Status(404));
    let next = world.next_update().await;
    assert_eq!(next, update("a", ProbeKind::Readiness, Verdict::Failure));
    assert_eq!(world.asked_at(), [72, 82, 92]);
    let told = "Unhealthy Readiness probe failed: HTTP probe failed with statuscode: 404";
    assert_eq!(world.events(), [told]);
}

#[tokio::test(start_paused = true)]
async fn liveness_fails_holds_and_starts_afresh_with_a_new_instance() {
    let mut world = old_world().await;
    let pod = pod(LIVENESS);
    world.set(&pod, &absent());
    world.set(&pod, &running("a", 60));
    world.always(Answer::Status(500));
    let next = world.next_update().await;
    assert_eq!(next, update("a", ProbeKind::Liveness, Verdict::Failure));
    world.pass(100).await;
    let asked = world.asked_at();
    assert_eq!(asked.len(), 3, "held after the verdict: {asked:?}");
    let exited = observed("u", "c", "a", ContainerState::Exited, 60);
    world.set(&pod, &exited);
    world.pass(100).await;
    assert!(world.asked_at().is_empty());
    world.always(Answer::Status(200));
    world.set(&pod, &running("b", 290));
    assert_eq!(
        world.verdicts("b").unwrap().liveness,
        Some(Verdict::Success)
    );
    assert_eq!(world.verdicts("a"), None);
    world.pass(25).await;
    assert_eq!(world.asked_at().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn the_others_wait_for_startup() {
    let mut world = old_world().await;
    let pod = pod(
        r#""startupProbe": {"tcpSocket": {"port": "web"}, "periodSeconds": 5},
           "livenessProbe": {"exec": {"command": ["live"]}},
           "readinessProbe": {"httpGet": {"port": 80}}"#,
    );
    world.set(&pod, &absent());
    world.set(&pod, &running("a", 60));
    let refused = NetError::Connect("dial tcp 10.0.0.7:8080: connect: connection refused".into());
    world.answers([Answer::Fails(refused)]);
    let next = world.next_update().await;
    assert_eq!(next, update("a", ProbeKind::Startup, Verdict::Success));
    let next = world.next_update().await;
    assert_eq!(next, update("a", ProbeKind::Readiness, Verdict::Success));
    world.pass(12).await;
    let asked = world.asked();
    let first: Vec<&str> = asked
        .iter()
        .take(3)
        .map(|(_, what)| what.as_str())
        .collect();
    assert_eq!(first[..2], ["tcp 10.0.0.7 8080"; 2]);
    assert!(first[2].starts_with("http://10.0.0.7:80"), "{first:?}");
    let startups = asked.iter().filter(|(_, w)| w.starts_with("tcp")).count();
    assert_eq!(startups, 2, "no more once it has started");
    assert!(
        asked.iter().any(|(_, w)| w == "exec a live 1s"),
        "{asked:?}"
    );
    assert_eq!(
        world.verdicts("a"),
        Some(ContainerVerdicts {
            startup: Some(Verdict::Success),
            liveness: Some(Verdict::Success),
            readiness: Some(Verdict::Success),
        })
    );
    assert_eq!(
        world.events(),
        ["Unhealthy Startup probe failed: dial tcp 10.0.0.7:8080: connect: connection refused"]
    );
}

#[tokio::test(start_paused = true)]
async fn stopping_drops_what_is_under_way() {
    let world = old_world().await;
    let pod = pod(&format!("{EXEC_LIVENESS}, {READINESS}"));
    world.set(&pod, &absent());
    world.always(Answer::Never);
    world.set(&pod, &running("a", 60));
    world.pass(11).await;
    assert_eq!(world.fake.script.lock().unwrap().under_way, 2);
    let uid = PodUid::from("u");
    world.probes.stop_liveness_and_startup(&uid);
    world.pass(0).await;
    assert_eq!(world.fake.script.lock().unwrap().dropped, 1);
    assert_eq!(
        world.verdicts("a").unwrap().liveness,
        Some(Verdict::Success)
    );
    // Readiness goes on while the pod terminates.
    assert_eq!(world.fake.script.lock().unwrap().under_way, 1);
    world.probes.remove(&uid);
    world.pass(100).await;
    let asked = world.asked().len();
    {
        let script = world.fake.script.lock().unwrap();
        assert_eq!((script.under_way, script.dropped, asked), (0, 2, 2));
    }
    assert!(world.probes.verdicts(&uid).is_empty());
    assert!(world.probes.metrics().is_empty());
    assert!(world.events().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_deleted_pod_is_asked_for_readiness_alone() {
    let world = old_world().await;
    let mut deleted = pod(&format!("{LIVENESS}, {READINESS}"));
    world.set(&deleted, &absent());
    let text = "2026-01-02T03:04:05Z";
    Arc::make_mut(&mut deleted).metadata.deletion_timestamp =
        serde_json::from_str(&format!("{text:?}")).unwrap();
    world.always(Answer::Status(500));
    world.set(&deleted, &running("a", 60));
    world.pass(10).await;
    assert_eq!(world.asked_at(), [60, 60, 60, 60, 60, 61, 63, 66]);
    assert!(world.events().is_empty(), "it may still come up");
    world.pass(45).await;
    assert_eq!(world.asked_at(), [72, 82, 92, 102, 112]);
    let told = "Unhealthy Readiness probe failed: HTTP probe failed with statuscode: 500";
    assert_eq!(world.events(), [told]);
    assert_eq!(
        world.verdicts("a").unwrap().liveness,
        Some(Verdict::Success)
    );
}

#[tokio::test(start_paused = true)]
async fn a_new_instance_ends_the_execution_against_the_old_one() {
    let world = old_world().await;
    let pod = pod(READINESS);
    world.answers([Answer::Never]);
    world.set(&pod, &running("a", 60));
    world.pass(1).await;
    world.set(&pod, &running("b", 61));
    world.pass(1).await;
    assert_eq!(world.fake.script.lock().unwrap().dropped, 1);
    assert_eq!(world.readiness("b"), Some(Verdict::Success));
    assert_eq!(world.verdicts("a"), None);
    // Pods that are not kept go likewise.
    world.always(Answer::Never);
    world.pass(10).await;
    world.probes.retain(&|uid| uid.as_str() != "u");
    world.pass(1).await;
    assert_eq!(world.fake.script.lock().unwrap().under_way, 0);
}

#[tokio::test(start_paused = true)]
async fn after_a_restart_ready_stays_ready_and_first_probes_are_spread() {
    let world = World::new();
    let status = |id: &str| PodStatus {
        container_statuses: Some(vec![ContainerStatus {
            name: "c".into(),
            ready: true,
            started: Some(true),
            container_id: Some(format!("containerd://{id}")),
            ..ContainerStatus::default()
        }]),
        ..PodStatus::default()
    };
    let startup = r#""startupProbe": {"exec": {"command": ["x"]}}"#;
    for n in 0..20 {
        let spec = format!(r#"{{"containers": [{{"name": "c", {READINESS}, {startup}}}]}}"#);
        let uid = format!("u{n}");
        let id = format!("old{n}");
        let seen = observed(&uid, "c", &id, ContainerState::Running, -3600);
        world
            .probes
            .set_pod(&pod_of(&uid, &spec), &seen, &status(&id));
        let verdicts = world.probes.verdicts(&uid.as_str().into());
        let expected = ContainerVerdicts {
            startup: Some(Verdict::Success),
            liveness: None,
            readiness: Some(Verdict::Success),
        };
        assert_eq!(verdicts.get(id.as_str()), Some(&expected));
    }
    world.pass(9).await;
    let mut at = world.asked_at();
    at.dedup();
    assert!(at.len() > 5, "spread over the period: {at:?}");
    // Another instance's past is not this one's.
    let spec = format!(r#"{{"containers": [{{"name": "c", {READINESS}}}]}}"#);
    let seen = observed("u", "c", "new", ContainerState::Running, -3600);
    let other = status("other");
    world.probes.set_pod(&pod_of("u", &spec), &seen, &other);
    assert_eq!(world.readiness("new"), Some(Verdict::Failure));
}

#[tokio::test(start_paused = true)]
async fn errors_are_tried_again_and_then_thrown_away() {
    let world = old_world().await;
    let pod = pod(EXEC_LIVENESS);
    world.set(&pod, &absent());
    world.always(Answer::ExecFails(Code::Unavailable, "gone"));
    world.set(&pod, &running("a", 60));
    world.pass(45).await;
    let asked = world.asked_at();
    assert_eq!(asked.len(), 15, "five times three: {asked:?}");
    assert_eq!(
        world.verdicts("a").unwrap().liveness,
        Some(Verdict::Success)
    );
    assert_eq!(
        world.events(),
        [
            "Unhealthy Liveness probe errored and resulted in unknown state: rpc error: code = Unavailable desc = gone"
        ]
    );
    // A time-out is a failure, and one of three.
    world.always(Answer::ExecFails(Code::DeadlineExceeded, "late"));
    world.pass(30).await;
    assert_eq!(
        world.verdicts("a").unwrap().liveness,
        Some(Verdict::Failure)
    );
    assert_eq!(
        world.events().last().unwrap(),
        "Unhealthy Liveness probe failed: command timed out: \"x\" timed out after 1s"
    );
}

#[tokio::test(start_paused = true)]
async fn what_is_asked_and_said() {
    let http = r#"{"httpGet": {"path": "/h?x", "port": "web", "scheme": "HTTPS", "host": "example",
        "httpHeaders": [{"name": "X-A", "value": "1"}]}, "timeoutSeconds": 3}"#;
    let exec = r#"{"exec": {"command": ["sh", "$(A)", "$$x"]}, "timeoutSeconds": 2}"#;
    let grpc = r#"{"grpc": {"port": 5000, "service": "s"}}"#;
    let tcp = r#"{"tcpSocket": {"port": 1}}"#;
    let plain = r#"{"httpGet": {"port": 80}}"#;
    let http_asked = "https://example:8080/h?x X-A:1 User-Agent:kube-probe/1.36 Accept:*/*";
    let plain_asked = "http://10.0.0.7:80 User-Agent:kube-probe/1.36 Accept:*/*";
    let grpc_asked = "grpc 10.0.0.7 5000 s";
    let (f, w) = (
        "Unhealthy Readiness probe failed: ",
        "ProbeWarning Readiness probe warning: ",
    );
    let errored = "Unhealthy Readiness probe errored and resulted in failure state: ";
    let unknown = "Unhealthy Readiness probe errored and resulted in unknown state: ";
    let fails = |text: &str| Answer::Fails(NetError::Failed(text.into()));
    let table = [
        (http, Answer::Status(204), http_asked, String::new()),
        (
            http,
            Answer::Status(302),
            http_asked,
            format!("{w}Probe terminated redirects, Response body: body"),
        ),
        (
            plain,
            Answer::Fails(NetError::Timeout),
            plain_asked,
            format!(
                "{f}Get \"http://10.0.0.7:80\": context deadline exceeded (Client.Timeout exceeded while awaiting headers)"
            ),
        ),
        (
            plain,
            Answer::Fails(NetError::Body("unexpected EOF".into())),
            plain_asked,
            format!("{errored}unexpected EOF"),
        ),
        (
            exec,
            Answer::Exit(0, "fine"),
            "exec a sh b $x 2s",
            String::new(),
        ),
        (
            exec,
            Answer::Exit(3, "bad"),
            "exec a sh b $x 2s",
            format!("{f}bad"),
        ),
        (tcp, fails("no"), "tcp 10.0.0.7 1", format!("{f}no")),
        (
            grpc,
            Answer::Health(GrpcHealth::Serving),
            grpc_asked,
            String::new(),
        ),
        (
            grpc,
            Answer::Health(GrpcHealth::NotServing),
            grpc_asked,
            format!("{f}service unhealthy (responded with \"NOT_SERVING\")"),
        ),
        (
            grpc,
            Answer::Fails(NetError::Timeout),
            grpc_asked,
            format!("{f}timeout: health rpc did not complete within 1s"),
        ),
        (
            grpc,
            Answer::Fails(NetError::ConnectTimeout("x".into())),
            grpc_asked,
            format!(
                "{f}timeout: failed to connect service \"10.0.0.7:5000\" within 1s: context deadline exceeded"
            ),
        ),
        (
            grpc,
            Answer::Fails(NetError::HealthUnimplemented("x".into())),
            grpc_asked,
            format!(
                "{f}error: this server does not implement the grpc health protocol (grpc.health.v1.Health): x"
            ),
        ),
        (
            r#"{"httpGet": {"port": "nope"}}"#,
            Answer::Never,
            "",
            format!("{unknown}strconv.Atoi: parsing \"nope\": invalid syntax"),
        ),
        (
            "{}",
            Answer::Never,
            "",
            format!("{unknown}missing probe handler for p_ns(u):c"),
        ),
    ];
    for (probe, answer, asked, event) in table {
        let world = old_world().await;
        world.always(answer);
        world.set(
            &pod(&format!(r#""readinessProbe": {probe}"#)),
            &running("a", 60),
        );
        world.pass(14).await;
        let first = world.asked().into_iter().next().map(|(_, what)| what);
        assert_eq!(first.unwrap_or_default(), asked, "{probe}");
        assert_eq!(world.events().join("\n"), event, "{probe}");
    }
}

#[tokio::test(start_paused = true)]
async fn places_are_bounded_and_commands_do_not_take_those_of_the_network() {
    let config = ProbesConfig {
        network_at_once: 3,
        exec_at_once: 2,
    };
    let world = World::with(config, 1);
    world.pass(60).await;
    world.always(Answer::Never);
    for n in 0..10 {
        let spec =
            r#"{"containers": [{"name": "c", "readinessProbe": {"exec": {"command": ["x"]}}}]}"#;
        let uid = format!("e{n}");
        let seen = observed(&uid, "c", &uid, ContainerState::Running, 60);
        world.set(&pod_of(&uid, spec), &seen);
    }
    world.pass(1).await;
    assert_eq!(world.fake.script.lock().unwrap().most, 2);
    world.always(Answer::Status(200));
    for n in 0..10 {
        let spec = format!(r#"{{"containers": [{{"name": "c", {READINESS}}}]}}"#);
        let uid = format!("h{n}");
        let seen = observed(&uid, "c", &uid, ContainerState::Running, 61);
        world.set(&pod_of(&uid, &spec), &seen);
    }
    world.pass(1).await;
    for n in 0..10 {
        let verdicts = world.probes.verdicts(&format!("h{n}").into());
        let verdicts = verdicts.get(format!("h{n}").as_str()).unwrap();
        assert_eq!(verdicts.readiness, Some(Verdict::Success));
    }
    assert_eq!(world.fake.script.lock().unwrap().most, 5);
    // Those that wait go with their pods, and free places are taken.
    for n in 0..9 {
        world.probes.remove(&format!("e{n}").into());
    }
    world.pass(1).await;
    assert_eq!(world.fake.script.lock().unwrap().under_way, 0);
    let verdicts = world.probes.verdicts(&"e9".into());
    assert_eq!(
        verdicts.get("e9").unwrap().readiness,
        Some(Verdict::Success)
    );
}

#[tokio::test(start_paused = true)]
async fn a_slow_reader_reads_the_latest() {
    let mut world = old_world().await;
    let flapping =
        r#""readinessProbe": {"httpGet": {"port": 80}, "failureThreshold": 1, "periodSeconds": 1}"#;
    world.answers((0..99).map(|n| Answer::Status(if n % 2 == 0 { 200 } else { 500 })));
    world.set(&pod(flapping), &running("a", 60));
    world.pass(50).await;
    let next = world.next_update().await;
    assert_eq!(Some(next.verdict), world.readiness("a"));
    assert_eq!(
        Some(world.next_update().await.verdict),
        world.readiness("a")
    );
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_panics_is_asked_again() {
    let world = old_world().await;
    world.answers([Answer::Panic]);
    world.set(&pod(READINESS), &running("a", 60));
    world.pass(12).await;
    assert_eq!(world.asked_at(), [60, 70]);
    assert_eq!(world.readiness("a"), Some(Verdict::Success));
}

#[tokio::test(start_paused = true)]
async fn counters() {
    let world = old_world().await;
    world.answers([Answer::Status(500)]);
    world.set(&pod(READINESS), &running("a", 60));
    world.pass(35).await;
    let metrics = world.probes.metrics();
    assert_eq!(metrics.len(), 1);
    assert_eq!((metrics[0].successful, metrics[0].failed), (4, 1));
    assert_eq!(metrics[0].durations.count, 4);
    assert_eq!(metrics[0].durations.buckets[0], 4);
}

#[tokio::test(start_paused = true)]
async fn sidecars_are_probed_and_init_containers_are_not() {
    let world = old_world().await;
    let spec = format!(
        r#"{{"initContainers": [
            {{"name": "i", {READINESS}}},
            {{"name": "s", "restartPolicy": "Always", {READINESS}}}],
            "containers": [{{"name": "c"}}]}}"#
    );
    let pod = pod_of("u", &spec);
    let mut seen = observed("u", "i", "i1", ContainerState::Running, 60);
    let sidecar = observed("u", "s", "s1", ContainerState::Running, 60);
    seen.containers.extend(sidecar.containers);
    world.set(&pod, &seen);
    world.pass(1).await;
    assert_eq!(world.readiness("i1"), None);
    assert_eq!(world.readiness("s1"), Some(Verdict::Success));
}

#[tokio::test(start_paused = true)]
async fn equal_seeds_give_equal_lives() {
    let mut lives = Vec::new();
    for seed in [1, 1, 2] {
        let world = World::with(ProbesConfig::default(), seed);
        for n in 0..5 {
            let uid = format!("u{n}");
            let spec = format!(r#"{{"containers": [{{"name": "c", {READINESS}, {LIVENESS}}}]}}"#);
            let seen = observed(&uid, "c", &uid, ContainerState::Running, -3600);
            world.set(&pod_of(&uid, &spec), &seen);
        }
        world.pass(100).await;
        lives.push(world.asked());
    }
    assert_eq!(lives[0], lives[1]);
    assert_ne!(lives[0], lives[2]);
}
