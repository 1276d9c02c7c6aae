//! Stopping: hooks, grace and order.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use krablet_core::probe::Verdicts;
use krablet_net::NetError;
use krablet_pod::api::{ContainerPort, HTTPGetAction, LifecycleHandler, Pod, SleepAction};

use crate::bench::{Bench, container, exec, pod, sidecar, with_hooks};

async fn started(pod: &Pod) -> Bench {
    let bench = Bench::new();
    bench.sync(pod).await;
    bench.sync(pod).await;
    bench.world.diary();
    bench.events();
    bench
}

fn http_hook(scheme: &str, port: IntOrString) -> LifecycleHandler {
    LifecycleHandler {
        http_get: Some(HTTPGetAction {
            path: Some("/bye".into()),
            port,
            scheme: Some(scheme.into()),
            ..HTTPGetAction::default()
        }),
        ..LifecycleHandler::default()
    }
}

#[tokio::test(start_paused = true)]
async fn the_hook_runs_within_the_grace() {
    let cases = [
        (exec("true"), 30),
        (exec("sleep 7"), 23),
        (exec("sleep 29"), 2),
        (exec("sleep 600"), 2),
        (
            LifecycleHandler {
                sleep: Some(SleepAction { seconds: 5 }),
                ..LifecycleHandler::default()
            },
            25,
        ),
    ];
    for (hook, left) in cases {
        let pod = pod(
            vec![],
            vec![with_hooks(container("a"), None, Some(hook.clone()))],
        );
        let bench = started(&pod).await;
        let observed = bench.observed(&pod);
        bench
            .runtime
            .kill_pod(Some(&pod), &observed, None)
            .await
            .unwrap();
        let stop = format!("StopContainer a/0 {left}s");
        assert!(bench.world.diary().contains(&stop), "{hook:?}");
        assert_eq!(bench.events(), ["Killing: Stopping container a"]);
    }
}

#[tokio::test(start_paused = true)]
async fn no_grace_no_hook() {
    let pod = pod(
        vec![],
        vec![with_hooks(container("a"), None, Some(exec("true")))],
    );
    let bench = started(&pod).await;
    let observed = bench.observed(&pod);
    bench
        .runtime
        .kill_pod(Some(&pod), &observed, Some(0))
        .await
        .unwrap();
    assert_eq!(
        bench.world.diary(),
        [
            "StopContainer a/0 2s",
            "(stopped a)",
            "StopPodSandbox sandbox-0",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_failing_hook_is_told_and_does_not_hinder() {
    let pod = pod(
        vec![],
        vec![with_hooks(container("a"), None, Some(exec("false")))],
    );
    let bench = started(&pod).await;
    let observed = bench.observed(&pod);
    bench
        .runtime
        .kill_pod(Some(&pod), &observed, None)
        .await
        .unwrap();
    assert_eq!(
        bench.events(),
        [
            "Killing: Stopping container a",
            "FailedPreStopHook: PreStopHook failed",
        ]
    );
    assert!(
        bench
            .world
            .diary()
            .contains(&"StopContainer a/0 30s".to_string())
    );
}

#[tokio::test(start_paused = true)]
async fn the_deletion_request_has_the_last_word_on_grace() {
    let mut pod = pod(vec![], vec![container("a")]);
    let bench = started(&pod).await;
    pod.metadata.deletion_grace_period_seconds = Some(4);
    let observed = bench.observed(&pod);
    bench
        .runtime
        .kill_pod(Some(&pod), &observed, None)
        .await
        .unwrap();
    assert_eq!(bench.world.diary()[0], "StopContainer a/0 4s");
}

#[tokio::test(start_paused = true)]
async fn containers_stop_together_and_sidecars_after_them_in_reverse() {
    let pod = pod(
        vec![sidecar("s1"), sidecar("s2")],
        vec![container("a"), container("b")],
    );
    let bench = Bench::new();
    for _ in 0..4 {
        bench.sync(&pod).await;
    }
    bench.world.diary();
    {
        let mut state = bench.world.state();
        state.slow_to_stop.insert("a".into(), 5);
        state.slow_to_stop.insert("b".into(), 3);
        state.slow_to_stop.insert("s2".into(), 4);
    }
    let observed = bench.observed(&pod);
    bench
        .runtime
        .kill_pod(Some(&pod), &observed, None)
        .await
        .unwrap();
    let mut diary = bench.world.diary();
    // The first two are told at the same moment.
    diary[..2].sort();
    assert_eq!(
        diary,
        [
            "StopContainer a/0 30s",
            "StopContainer b/0 30s",
            "(stopped b)",
            "(stopped a)",
            "StopContainer s2/0 25s",
            "(stopped s2)",
            "StopContainer s1/0 21s",
            "(stopped s1)",
            "StopPodSandbox sandbox-0",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_sidecar_does_not_wait_beyond_its_grace() {
    let pod = pod(vec![sidecar("s")], vec![container("a")]);
    let bench = started(&pod).await;
    bench.world.fail("StopContainer", "no");
    let observed = bench.observed(&pod);
    let killed = bench.runtime.kill_pod(Some(&pod), &observed, None).await;
    assert_eq!(
        killed.unwrap_err().to_string(),
        "failed to \"KillContainer\" for \"a\" with KillContainerError: rpc error: code = Unknown desc = no"
    );
    assert_eq!(
        bench.world.diary(),
        [
            "StopContainer a/0 30s",
            "StopContainer s/0 2s",
            "(stopped s)",
            "StopPodSandbox sandbox-0",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_pod_without_spec_is_killed_by_what_it_remembers() {
    let mut with_port = with_hooks(
        container("a"),
        None,
        Some(http_hook("HTTP", IntOrString::String("web".into()))),
    );
    with_port.ports = Some(vec![ContainerPort {
        name: Some("web".into()),
        container_port: 8080,
        ..ContainerPort::default()
    }]);
    let mut pod = pod(vec![], vec![with_port]);
    pod.spec.as_mut().unwrap().termination_grace_period_seconds = Some(9);
    let bench = started(&pod).await;
    let observed = bench.observed(&pod);
    bench.runtime.kill_pod(None, &observed, None).await.unwrap();
    let asked = bench.net.asked.lock().unwrap();
    assert_eq!(asked[0].url, "http://10.0.0.7:8080/bye");
    assert_eq!(bench.world.diary()[0], "StopContainer a/0 9s");
}

#[tokio::test(start_paused = true)]
async fn an_orphan_killed_in_a_second_still_gets_its_hook() {
    let pod = pod(
        vec![],
        vec![with_hooks(container("a"), None, Some(exec("sleep 600")))],
    );
    let bench = started(&pod).await;
    let observed = bench.observed(&pod);
    bench
        .runtime
        .kill_pod(None, &observed, Some(1))
        .await
        .unwrap();
    assert_eq!(
        bench.world.diary()[..2],
        ["ExecSync a/0 sleep 600", "StopContainer a/0 2s"]
    );
}

#[tokio::test(start_paused = true)]
async fn a_plain_answer_to_https_is_asked_for_plainly() {
    let hook = http_hook("HTTPS", IntOrString::Int(443));
    let pod = pod(vec![], vec![with_hooks(container("a"), Some(hook), None)]);
    let bench = Bench::new();
    {
        let mut answers = bench.net.answers.lock().unwrap();
        answers.insert("https://10.0.0.7:443/bye".into(), Err(NetError::PlainHttp));
        answers.insert("http://10.0.0.7:443/bye".into(), Ok(500));
    }
    let outcome = bench.sync(&pod).await;
    assert!(outcome.start_errors.is_empty());
    assert_eq!(
        bench.events().last().map(String::as_str),
        Some(
            "LifecycleHTTPFallback: request to HTTPS lifecycle hook 10.0.0.7:443 got HTTP response, retry with HTTP succeeded"
        )
    );
    assert_eq!(bench.metrics.http_fallbacks.get(), 1);
}

#[tokio::test(start_paused = true)]
async fn sleeps_that_are_cut_short_are_counted() {
    for (seconds, cut_short) in [(5, 0), (600, 1)] {
        let hook = LifecycleHandler {
            sleep: Some(SleepAction { seconds }),
            ..LifecycleHandler::default()
        };
        let pod = pod(vec![], vec![with_hooks(container("a"), None, Some(hook))]);
        let bench = started(&pod).await;
        let observed = bench.observed(&pod);
        let killed = bench.runtime.kill_pod(Some(&pod), &observed, None).await;
        killed.unwrap();
        assert_eq!(bench.metrics.sleeps_cut_short.get(), cut_short);
    }
}

#[tokio::test(start_paused = true)]
async fn a_failed_post_start_hook_kills_the_container() {
    let pod = pod(
        vec![],
        vec![
            with_hooks(container("a"), Some(exec("false")), None),
            container("b"),
        ],
    );
    let bench = Bench::new();
    let outcome = bench.sync(&pod).await;
    let error = &outcome.start_errors["a"];
    assert_eq!(error.reason, "PostStartHookError");
    assert_eq!(
        error.message,
        "Exec lifecycle hook ([false]) for Container \"a\" in Pod \"web_ns(u)\" failed - error: command 'false' exited with 1: no, message: \"no\""
    );
    let diary = bench.world.diary();
    assert_eq!(
        diary[2..],
        [
            "CreateContainer a/0",
            "StartContainer a/0",
            "ExecSync a/0 false",
            "StopContainer a/0 30s",
            "(stopped a)",
            "CreateContainer b/0",
            "StartContainer b/0",
        ]
    );
    let events = bench.events();
    assert!(events.contains(&"FailedPostStartHook: PostStartHook failed".to_string()));
    assert!(events.contains(&"Killing: FailedPostStartHook".to_string()));
}

#[tokio::test(start_paused = true)]
async fn a_kill_that_is_given_up_can_be_asked_for_again() {
    let pod = pod(
        vec![],
        vec![with_hooks(container("a"), None, Some(exec("sleep 20")))],
    );
    let bench = started(&pod).await;
    let observed = bench.observed(&pod);
    let kill = bench.runtime.kill_pod(Some(&pod), &observed, None);
    assert!(
        tokio::time::timeout(Duration::from_secs(5), kill)
            .await
            .is_err()
    );
    bench
        .runtime
        .kill_pod(Some(&pod), &observed, Some(1))
        .await
        .unwrap();
    assert!(!bench.observed(&pod).is_alive());
}

#[tokio::test(start_paused = true)]
async fn one_that_is_stopped_to_be_restarted_is_marked_first() {
    let mark = "/logs/pods/ns_web_u/a/0.restart";
    for (policy, marked) in [("Always", false), ("OnFailure", true), ("Never", true)] {
        let mut pod = pod(vec![], vec![container("a")]);
        let spec = pod.spec.as_mut().unwrap();
        spec.restart_policy = Some(policy.into());
        let bench = started(&pod).await;
        assert!(bench.files.get(mark).is_none(), "{policy}");
        let spec = pod.spec.as_mut().unwrap();
        spec.containers[0].image = Some("img:2".into());
        bench.world.has_image("img:2");
        bench.world.fail("CreateContainer", "no room");
        bench.sync(&pod).await;
        assert_eq!(bench.files.get(mark).is_some(), marked, "{policy}");
        // Whatever the policy says of its end, the other follows.
        tokio::time::sleep(Duration::from_secs(600)).await;
        bench.sync(&pod).await;
        let running = bench.observed(&pod);
        let running: Vec<_> = running.running().map(|c| c.attempt).collect();
        assert_eq!(running, [1], "{policy}");
    }
}

#[tokio::test(start_paused = true)]
async fn one_that_ended_before_it_was_stopped_is_not_started_again() {
    let mut pod = pod(vec![], vec![container("a")]);
    pod.spec.as_mut().unwrap().restart_policy = Some("Never".into());
    let bench = started(&pod).await;
    let observed = bench.observed(&pod);
    let spec = pod.spec.as_mut().unwrap();
    spec.containers[0].image = Some("img:2".into());
    bench.world.has_image("img:2");
    bench.world.exit("a", 0);
    // Its end was seen before the mark was made, and is not looked at again.
    let seen = std::sync::Arc::new(bench.observed(&pod));
    let outcome = bench
        .runtime
        .sync_pod(krablet_runtime::SyncInputs {
            pod: &std::sync::Arc::new(pod),
            observed: &observed,
            verdicts: &Verdicts::new(),
            volumes: &[],
            cgroup_parent: "",
            sizes: krablet_runtime::Sizes::default(),
            on_sandbox_ready: &|_| {},
            on_killed: &|| Box::pin(std::future::ready(Ok(seen.clone()))),
            cancel: &tokio_util::sync::CancellationToken::new(),
        })
        .await;
    let error = outcome.error.expect("an error").to_string();
    assert!(
        error.contains("has ended before it could be stopped"),
        "{error}"
    );
    let calls = bench.world.diary();
    assert!(!calls.iter().any(|c| c.starts_with("CreateContainer")));
}

#[tokio::test(start_paused = true)]
async fn nothing_is_stopped_that_cannot_be_marked() {
    let mut pod = pod(vec![], vec![container("a")]);
    pod.spec.as_mut().unwrap().restart_policy = Some("Never".into());
    let bench = started(&pod).await;
    pod.spec.as_mut().unwrap().containers[0].image = Some("img:2".into());
    bench.world.has_image("img:2");
    *bench.files.full.lock().unwrap() = Some("/logs".into());
    let error = bench.sync(&pod).await.error.expect("an error").to_string();
    assert_eq!(
        error,
        "/logs/pods/ns_web_u/a/0.restart: no space left on device"
    );
    let calls = bench.world.diary();
    assert!(!calls.iter().any(|c| c.starts_with("StopContainer")));
}
