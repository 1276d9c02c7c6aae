//! The order of work in one sync.

use krablet_core::probe::{ContainerVerdicts, Verdict, Verdicts};
use krablet_core::start::CRASH_LOOP_BACK_OFF;
use krablet_pod::ContainerId;
use krablet_pod::api::{ContainerRestartRule, ContainerRestartRuleOnExitCodes, EphemeralContainer};
use krablet_pod::observed::ContainerState;
use std::time::Duration;

use crate::bench::{Bench, container, pod, sidecar};
use crate::files::Node;
use crate::world::running;

#[tokio::test(start_paused = true)]
async fn a_new_pod() {
    let bench = Bench::new();
    let pod = pod(vec![], vec![container("a"), container("b")]);
    let outcome = bench.sync(&pod).await;
    assert!(outcome.acted && outcome.sandbox_ready && outcome.error.is_none());
    assert_eq!(
        bench.world.diary(),
        [
            "RunPodSandbox web/0",
            "PodSandboxStatus sandbox-0",
            "CreateContainer a/0",
            "StartContainer a/0",
            "CreateContainer b/0",
            "StartContainer b/0",
        ]
    );
    assert_eq!(
        bench.events(),
        [
            "Pulled: Container image \"img:1\" already present on machine and can be accessed by the pod",
            "Created: Container created",
            "Started: Container started",
            "Pulled: Container image \"img:1\" already present on machine and can be accessed by the pod",
            "Created: Container created",
            "Started: Container started",
        ]
    );
    assert_eq!(
        bench.files.get("/logs/containers/web_ns_a-id-1.log"),
        Some(Node::Link("/logs/pods/ns_web_u/a/0.log".into()))
    );
    assert!(matches!(
        bench.files.get("/root/pods/u/etc-hosts"),
        Some(Node::File(bytes, 0o644)) if bytes.ends_with(b"10.0.0.7\tweb\n")
    ));

    let again = bench.sync(&pod).await;
    assert!(!again.acted && again.sandbox_ready);
    assert!(bench.world.diary().is_empty());
}

#[tokio::test(start_paused = true)]
async fn init_containers_one_after_another_then_the_rest() {
    let bench = Bench::new();
    let pod = pod(
        vec![container("i1"), sidecar("s"), container("i2")],
        vec![container("main")],
    );
    let mut seen = Vec::new();
    for finished in ["", "i1", "", "i2", ""] {
        if !finished.is_empty() {
            bench.world.exit(finished, 0);
        }
        bench.sync(&pod).await;
        let calls = bench.world.diary();
        seen.extend(calls.into_iter().filter(|c| c.starts_with("Start")));
    }
    assert_eq!(
        seen,
        [
            "StartContainer i1/0",
            "StartContainer s/0",
            "StartContainer i2/0",
            "StartContainer main/0",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_dead_sandbox_is_replaced_and_all_begins_again() {
    let bench = Bench::new();
    let pod = pod(vec![container("i")], vec![container("main")]);
    bench.sync(&pod).await;
    bench.world.exit("i", 0);
    bench.sync(&pod).await;
    bench.world.kill_sandbox();
    bench.world.diary();
    bench.events();
    let outcome = bench.sync(&pod).await;
    assert!(outcome.sandbox_ready);
    assert_eq!(
        bench.world.diary(),
        [
            "StopContainer main/0 30s",
            "(stopped main)",
            "StopPodSandbox sandbox-0",
            "RemoveContainer i/0",
            "RunPodSandbox web/1",
            "PodSandboxStatus sandbox-1",
            "CreateContainer i/1",
            "StartContainer i/1",
        ]
    );
    let events = bench.events();
    assert_eq!(
        events[..2],
        [
            "SandboxChanged: Pod sandbox changed, it will be killed and re-created.",
            "Killing: Stopping container main",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_failed_liveness_probe_kills_and_starts_in_one_sync() {
    let bench = Bench::new();
    let pod = pod(vec![], vec![container("a")]);
    bench.sync(&pod).await;
    bench.world.diary();
    bench.events();
    let verdicts = Verdicts::from([(
        ContainerId::from("id-1"),
        ContainerVerdicts {
            liveness: Some(Verdict::Failure),
            ..ContainerVerdicts::default()
        },
    )]);
    bench.sync_with(&pod, &verdicts, &[]).await;
    assert_eq!(
        bench.world.diary(),
        [
            "StopContainer a/0 30s",
            "(stopped a)",
            "CreateContainer a/1",
            "StartContainer a/1",
        ]
    );
    assert_eq!(
        bench.events()[0],
        "Killing: Container a failed liveness probe, will be restarted"
    );
}

#[tokio::test(start_paused = true)]
async fn crashes_back_off_and_the_count_goes_up() {
    let bench = Bench::new();
    let pod = pod(vec![], vec![container("a")]);
    bench.sync(&pod).await;
    bench.world.exit("a", 1);
    // The first restart is immediate.
    bench.sync(&pod).await;
    bench.world.exit("a", 1);
    bench.world.diary();
    bench.events();

    let outcome = bench.sync(&pod).await;
    assert!(!outcome.acted && outcome.error.is_none());
    let error = &outcome.start_errors["a"];
    assert_eq!(error.reason, CRASH_LOOP_BACK_OFF);
    assert_eq!(
        error.message,
        "back-off 10s restarting failed container=a pod=web_ns(u)"
    );
    assert_eq!(
        bench.events(),
        ["BackOff: Back-off restarting failed container a in pod web_ns(u)"]
    );
    let wait = outcome.retry_at.expect("an end of the back-off");
    assert_eq!(wait.0, Duration::from_secs(10));
    tokio::time::advance(Duration::from_secs(10)).await;
    bench.sync(&pod).await;
    assert_eq!(
        bench.world.diary(),
        ["CreateContainer a/2", "StartContainer a/2"]
    );
}

#[tokio::test(start_paused = true)]
async fn a_container_that_started_after_its_start_was_given_up_is_not_removed() {
    let bench = Bench::new();
    let pod = pod(vec![], vec![container("a")]);
    bench.world.fail("StartContainer", "deadline exceeded");
    bench.sync(&pod).await;
    let seen = bench.observed(&pod);
    // The start came to its end after it was looked at, and so did the container.
    bench.world.state().containers[0].state = ContainerState::Exited;
    bench.world.diary();
    let outcome = bench.sync_seen(&pod, &seen, &Verdicts::new(), &[]).await;
    assert!(outcome.error.is_some());
    assert_eq!(bench.world.diary(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_container_that_was_created_but_never_started() {
    let bench = Bench::new();
    let pod = pod(vec![], vec![container("a")]);
    bench.world.fail("StartContainer", "cgroup id-1 is gone");
    let outcome = bench.sync(&pod).await;
    assert_eq!(outcome.start_errors["a"].reason, "RunContainerError");
    assert_eq!(
        bench.events().last().map(String::as_str),
        Some("Failed: Error: cgroup a is gone")
    );
    bench.world.diary();
    bench.sync(&pod).await;
    assert_eq!(
        bench.world.diary(),
        [
            "RemoveContainer a/0",
            "CreateContainer a/0",
            "StartContainer a/0",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn the_logs_remember_the_count_a_runtime_lost() {
    let bench = Bench::new();
    bench.files.put("/logs/pods/ns_web_u/a/6.log", b"");
    bench
        .files
        .put("/logs/pods/ns_web_u/a/3.log.20240101-000000.gz", b"");
    let pod = pod(vec![], vec![container("a")]);
    bench.sync(&pod).await;
    assert!(
        bench
            .world
            .diary()
            .contains(&"CreateContainer a/7".to_string())
    );
}

#[tokio::test(start_paused = true)]
async fn only_the_newest_finished_init_instance_is_kept() {
    let bench = Bench::new();
    let pod = pod(vec![container("i")], vec![container("main")]);
    bench.sync(&pod).await;
    bench.world.exit("i", 1);
    bench.sync(&pod).await;
    bench.world.exit("i", 1);
    bench.files.put("/logs/pods/ns_web_u/i/0.log.1", b"");
    bench.world.diary();
    bench.sync(&pod).await;
    assert_eq!(bench.world.diary()[0], "RemoveContainer i/0");
    let left = bench.files.paths();
    assert!(
        !left
            .iter()
            .any(|p| p.contains("i/0.log") || p.contains("i-id-1"))
    );
    assert!(left.contains(&"/logs/pods/ns_web_u/i/1.log".to_string()));
}

#[tokio::test(start_paused = true)]
async fn ephemeral_containers_join_their_target() {
    let bench = Bench::new();
    let mut pod = pod(vec![], vec![container("a")]);
    bench.sync(&pod).await;
    bench.world.diary();
    let debug = |name: &str, target: &str| EphemeralContainer {
        name: name.into(),
        image: Some("img:1".into()),
        image_pull_policy: Some("IfNotPresent".into()),
        target_container_name: Some(target.into()),
        ..EphemeralContainer::default()
    };
    pod.spec.as_mut().unwrap().ephemeral_containers =
        Some(vec![debug("lost", "nobody"), debug("debug", "a")]);
    let outcome = bench.sync(&pod).await;
    assert_eq!(
        outcome.start_errors["lost"].message,
        "unable to find target container nobody"
    );
    let state = bench.world.state();
    let config = &state.containers.last().unwrap().config;
    let security = config.linux.as_ref().unwrap().security_context.as_ref();
    let ns = security.unwrap().namespace_options.as_ref().unwrap();
    assert_eq!((ns.pid, ns.target_id.as_str()), (3, "id-1"));
}

#[tokio::test(start_paused = true)]
async fn restart_of_all_containers() {
    let bench = Bench::new();
    let mut trigger = container("trigger");
    trigger.restart_policy = Some("Never".into());
    trigger.restart_policy_rules = Some(vec![ContainerRestartRule {
        action: "RestartAllContainers".into(),
        exit_codes: Some(ContainerRestartRuleOnExitCodes {
            operator: "In".into(),
            values: Some(vec![42]),
        }),
    }]);
    let pod = pod(vec![container("i")], vec![trigger, container("other")]);
    bench.sync(&pod).await;
    bench.world.exit("i", 0);
    bench.sync(&pod).await;
    bench.world.exit("trigger", 42);
    bench.world.diary();
    let outcome = bench.sync(&pod).await;
    assert!(outcome.restart_all && outcome.acted);
    assert_eq!(
        bench.world.diary(),
        [
            "StopContainer other/0 2s",
            "(stopped other)",
            "RemoveContainer other/0",
            "RemoveContainer i/0",
            "RemoveContainer trigger/0",
        ]
    );
    // Their logs stay, and so the count goes on.
    let outcome = bench.sync(&pod).await;
    assert!(!outcome.restart_all);
    assert_eq!(
        bench.world.diary(),
        ["CreateContainer i/1", "StartContainer i/1"]
    );
}

#[tokio::test(start_paused = true)]
async fn a_finished_pod_is_taken_down_once() {
    let bench = Bench::new();
    let mut pod = pod(vec![sidecar("s")], vec![container("main")]);
    pod.spec.as_mut().unwrap().restart_policy = Some("Never".into());
    bench.sync(&pod).await;
    bench.sync(&pod).await;
    assert_eq!(running(&bench.observed(&pod)).len(), 2);
    bench.world.exit("main", 0);
    bench.world.diary();
    let outcome = bench.sync(&pod).await;
    assert!(!outcome.sandbox_ready);
    assert_eq!(
        bench.world.diary(),
        [
            "StopContainer s/0 30s",
            "(stopped s)",
            "StopPodSandbox sandbox-0",
        ]
    );
    assert!(!bench.sync(&pod).await.acted);
    assert!(bench.world.diary().is_empty());
}
