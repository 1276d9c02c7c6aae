//! Init containers, sidecars and hooks: what comes before what.

use krablet_e2e::manifest::{diary, pod, scratch_volume, scratched, shell, single, tool, with};
use krablet_e2e::web::Web;
use krablet_e2e::{Stage, status};
use serde_json::{Value, json};

fn sidecar(container: Value) -> Value {
    with(container, json!({"restartPolicy": "Always"}))
}

pub async fn init_containers_run_one_after_another(stage: &Stage) {
    let (name, scratch) = ("init", stage.scratch("init"));
    let step = |name: &str| {
        let script = format!(
            "echo start {name} >> /scratch/diary; sleep 0.2; echo end {name} >> /scratch/diary"
        );
        scratched(shell(name, &script))
    };
    let manifest = pod(
        name,
        json!({
            "volumes": [scratch_volume(&scratch)],
            "initContainers": [step("a"), step("b"), step("c")],
            "containers": [scratched(shell("main", &diary("main")))],
        }),
    );
    let pod = stage.run(name, &manifest).await;
    let expected = [
        "start a",
        "end a",
        "start b",
        "end b",
        "start c",
        "end c",
        "start main",
    ];
    stage.diary(name, &scratch, &expected).await;
    for init in ["a", "b", "c"] {
        let ended = status::ended(&pod, init).unwrap();
        assert_eq!(ended.reason.as_deref(), Some("Completed"));
        assert!(status::container(&pod, init).unwrap().ready);
    }
    assert!(status::condition(&pod, "Initialized"));
    stage.end(name).await;
}

/// An init container that fails is run again; with `Never` the pod has failed.
pub async fn failing_init_container(stage: &Stage) {
    let (name, scratch) = ("init-retry", stage.scratch("init-retry"));
    let script = "echo run >> /scratch/runs; test $(grep -c run /scratch/runs) -ge 3";
    let manifest = pod(
        name,
        json!({
            "volumes": [scratch_volume(&scratch)],
            "initContainers": [scratched(shell("setup", script))],
            "containers": [tool("main", &["hold"])],
        }),
    );
    let pod = stage.run(name, &manifest).await;
    assert_eq!(status::container(&pod, "setup").unwrap().restart_count, 2);
    stage.end(name).await;

    let name = "init-never";
    let manifest = krablet_e2e::manifest::pod(
        name,
        json!({
            "restartPolicy": "Never",
            "initContainers": [tool("setup", &["exit", "1"])],
            "containers": [tool("main", &["hold"])],
        }),
    );
    stage.apply(name, &manifest);
    let pod = stage.phase(name, "Failed").await;
    assert!(!status::condition(&pod, "Initialized"));
    let started = stage.containers(name).await;
    assert_eq!(started.len(), 1, "the main container never started");
    stage.end(name).await;
}

/// Sidecars start in order before the rest, and stop in reverse order after it.
pub async fn sidecars_frame_the_pod(stage: &Stage) {
    let (name, scratch) = ("sidecars", stage.scratch("sidecars"));
    let note = |name: &str| scratched(shell(name, &diary(name)));
    let slow = "trap 'sleep 1; echo stop main >> /scratch/diary; exit 0' TERM; \
                echo start main >> /scratch/diary; while :; do sleep 1000 & wait $!; done";
    let started = |name: &str| {
        // The next one waits until this one has written its line.
        let probe = json!({"startupProbe": {
            "exec": {"command": ["grep", "-q", format!("start {name}"), "/scratch/diary"]},
            "periodSeconds": 1, "failureThreshold": 60,
        }});
        sidecar(with(note(name), probe))
    };
    let manifest = pod(
        name,
        json!({
            "terminationGracePeriodSeconds": 60,
            "volumes": [scratch_volume(&scratch)],
            "initContainers": [
                started("first"),
                scratched(shell("between", "echo between >> /scratch/diary")),
                started("second"),
            ],
            "containers": [scratched(shell("main", slow))],
        }),
    );
    let pod = stage.run(name, &manifest).await;
    let mut expected = vec!["start first", "between", "start second", "start main"];
    stage.diary(name, &scratch, &expected).await;
    status::running(&pod, "first").unwrap();
    status::running(&pod, "second").unwrap();
    stage.end(name).await;
    expected.extend(["stop main", "stop second", "stop first"]);
    stage.diary(name, &scratch, &expected).await;
}

/// A pod whose own containers are done is done: its sidecars are stopped and do not count.
pub async fn sidecars_do_not_keep_a_finished_pod(stage: &Stage) {
    let name = "sidecar-job";
    let manifest = pod(
        name,
        json!({
            "restartPolicy": "Never",
            "initContainers": [sidecar(tool("helper", &["hold"]))],
            "containers": [tool("job", &["exit", "0", "500ms"])],
        }),
    );
    stage.apply(name, &manifest);
    let pod = stage.phase(name, "Succeeded").await;
    status::ended(&pod, "helper").unwrap();
    stage
        .wait(name, "nothing of it runs", async || {
            match stage.alive(name).await {
                alive if alive.is_empty() => Ok(()),
                alive => Err(format!("{alive:?}")),
            }
        })
        .await;
    stage.end(name).await;
}

/// A sidecar that ends is restarted while the pod lives, even with `Never`.
pub async fn sidecar_is_restarted(stage: &Stage) {
    let (name, scratch) = ("sidecar-restart", stage.scratch("sidecar-restart"));
    let helper = scratched(tool("helper", &["stop-file", "/scratch/stop"]));
    let manifest = pod(
        name,
        json!({
            "restartPolicy": "Never",
            "volumes": [scratch_volume(&scratch)],
            "initContainers": [sidecar(helper)],
            "containers": [tool("main", &["hold"])],
        }),
    );
    let before = stage.run(name, &manifest).await;
    std::fs::write(scratch.join("stop"), "0").unwrap();
    stage
        .until(name, "the sidecar has ended", |pod| {
            status::ended_before(pod, "helper").map(drop)
        })
        .await;
    std::fs::remove_file(scratch.join("stop")).unwrap();
    let after = stage
        .until(name, "the sidecar runs again", |pod| {
            status::running(pod, "helper")?;
            Ok(pod.clone())
        })
        .await;
    let id = |pod| status::id(status::container(pod, "main").unwrap());
    assert_eq!(id(&before), id(&after));
    stage.end(name).await;
}

pub async fn post_start_runs_before_the_next_container(stage: &Stage) {
    let (name, scratch) = ("post-start", stage.scratch("post-start"));
    let web = Web::start().await;
    let hook = "sleep 0.5; echo hook >> /scratch/diary";
    let first = with(
        scratched(tool("first", &["hold"])),
        json!({"lifecycle": {"postStart": {"exec": {"command": ["/bin/sh", "-c", hook]}}}}),
    );
    let second = with(
        scratched(shell("second", &diary("second"))),
        json!({"lifecycle": {"postStart": {"httpGet": {
            "host": "127.0.0.1", "port": web.port(), "path": "/started",
            "httpHeaders": [{"name": "X-Hook", "value": "post-start"}],
        }}}}),
    );
    let manifest = pod(
        name,
        json!({"volumes": [scratch_volume(&scratch)], "containers": [first, second]}),
    );
    stage.run(name, &manifest).await;
    stage.diary(name, &scratch, &["hook", "start second"]).await;
    stage
        .wait(name, "the hook asks the server", async || {
            let requests = web.requests();
            let asked = requests.iter().any(|r| {
                r.path == "/started"
                    && r.headers
                        .iter()
                        .any(|h| h.eq_ignore_ascii_case("x-hook: post-start"))
            });
            match asked {
                true => Ok(()),
                false => Err(format!("{requests:?}")),
            }
        })
        .await;
    stage.end(name).await;
}

/// A container whose postStart hook fails is killed and started anew.
pub async fn failed_post_start_kills_the_container(stage: &Stage) {
    let closed = krablet_testbed::free_port().unwrap();
    for (name, hook) in [
        (
            "post-start-exec",
            json!({"exec": {"command": ["/bin/sh", "-c", "echo no >&2; exit 4"]}}),
        ),
        (
            "post-start-http",
            json!({"httpGet": {"host": "127.0.0.1", "port": closed, "path": "/"}}),
        ),
    ] {
        let container = with(
            tool("main", &["hold"]),
            json!({"lifecycle": {"postStart": hook}}),
        );
        stage.apply(name, &single(name, container));
        let event = stage
            .event(name, "FailedPostStartHook", "PostStartHook failed")
            .await;
        assert_eq!(event.kind, "Warning");
        stage.event(name, "Killing", "FailedPostStartHook").await;
        stage
            .until(name, "is started again", |pod| {
                match status::container(pod, "main")?.restart_count {
                    1.. => Ok(()),
                    _ => Err(status::shown(pod)),
                }
            })
            .await;
        stage.end(name).await;
    }
}

/// The preStop hooks of each kind run before SIGTERM comes.
pub async fn pre_stop_runs_first(stage: &Stage) {
    let (name, scratch) = ("pre-stop", stage.scratch("pre-stop"));
    let web = Web::start().await;
    let hook = |name: &str, hook: Value| {
        with(
            scratched(shell(name, &diary(name))),
            json!({"lifecycle": {"preStop": hook}}),
        )
    };
    let exec =
        json!({"exec": {"command": ["/bin/sh", "-c", "sleep 1; echo hook >> /scratch/diary"]}});
    let http = json!({"httpGet": {"host": "127.0.0.1", "port": web.port(), "path": "/stopping"}});
    let manifest = pod(
        name,
        json!({
            "terminationGracePeriodSeconds": 60,
            "volumes": [scratch_volume(&scratch)],
            "containers": [
                hook("exec", exec),
                hook("http", http),
                hook("sleep", json!({"sleep": {"seconds": 4}})),
            ],
        }),
    );
    stage.run(name, &manifest).await;
    stage
        .wait(name, "all have started", async || {
            match stage.lines(&scratch, "diary").len() {
                3 => Ok(()),
                count => Err(format!("{count} of 3")),
            }
        })
        .await;
    assert!(web.requests().is_empty());
    stage.end(name).await;
    let lines = stage.lines(&scratch, "diary");
    let at = |line: &str| lines.iter().position(|l| l == line).expect(line);
    assert!(at("hook") < at("stop exec"), "{lines:?}");
    assert!(at("stop http") < at("stop sleep"), "{lines:?}");
    assert_eq!(web.requests().len(), 1);
    assert_eq!(web.requests()[0].path, "/stopping");
}

/// A hook that fails, and one that takes longer than the grace, do not hold the pod.
pub async fn bad_pre_stop_does_not_hold_the_pod(stage: &Stage) {
    let name = "pre-stop-bad";
    let hook = |container: Value, command: &[&str]| {
        with(
            container,
            json!({"lifecycle": {"preStop": {"exec": {"command": command}}}}),
        )
    };
    let manifest = pod(
        name,
        json!({
            "terminationGracePeriodSeconds": 2,
            "containers": [
                hook(tool("fails", &["hold"]), &["/bin/false"]),
                hook(tool("hangs", &["hold"]), &["/bin/sleep", "1000"]),
            ],
        }),
    );
    stage.run(name, &manifest).await;
    stage.end(name).await;
    stage
        .event(name, "FailedPreStopHook", "PreStopHook failed")
        .await;
}
