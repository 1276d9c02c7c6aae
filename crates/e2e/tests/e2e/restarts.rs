//! What happens when a container ends: restart policies, their rules, back-off, deadlines.

use krablet_e2e::manifest::{pod, scratch_volume, scratched, shell, single, tool, with};
use krablet_e2e::stage::full;
use krablet_e2e::{Stage, status};
use serde_json::json;

pub async fn always_restarts_after_success(stage: &Stage) {
    let name = "always";
    stage.apply(name, &single(name, tool("main", &["exit", "0"])));
    stage
        .until(name, "is restarted", |pod| {
            let last = status::ended_before(pod, "main")?;
            assert_eq!(last.exit_code, 0);
            assert_eq!(last.reason.as_deref(), Some("Completed"));
            match status::container(pod, "main")?.restart_count {
                2.. => Ok(()),
                _ => Err(status::shown(pod)),
            }
        })
        .await;
    stage.end(name).await;
}

pub async fn on_failure_restarts_until_success(stage: &Stage) {
    let (name, scratch) = ("on-failure", stage.scratch("on-failure"));
    let script = "echo run >> /scratch/runs; test $(grep -c run /scratch/runs) -ge 3";
    let manifest = pod(
        name,
        json!({
            "restartPolicy": "OnFailure",
            "volumes": [scratch_volume(&scratch)],
            "containers": [scratched(shell("main", script))],
        }),
    );
    stage.apply(name, &manifest);
    let pod = stage.phase(name, "Succeeded").await;
    let container = status::container(&pod, "main").unwrap();
    assert_eq!(container.restart_count, 2, "{}", status::shown(&pod));
    assert_eq!(status::ended(&pod, "main").unwrap().exit_code, 0);
    assert_eq!(stage.lines(&scratch, "runs").len(), 3);
    stage.end(name).await;
}

pub async fn never_leaves_it_ended(stage: &Stage) {
    for (name, code, phase) in [
        ("never-good", "0", "Succeeded"),
        ("never-bad", "7", "Failed"),
    ] {
        let spec = json!({"restartPolicy": "Never", "containers": [tool("main", &["exit", code])]});
        stage.apply(name, &pod(name, spec));
        let pod = stage.phase(name, phase).await;
        let ended = status::ended(&pod, "main").unwrap();
        assert_eq!(ended.exit_code.to_string(), code);
        assert_eq!(status::container(&pod, "main").unwrap().restart_count, 0);
        stage.end(name).await;
    }
}

/// One container's rules say which exit codes it is restarted for, whatever the pod's policy.
pub async fn rules_choose_the_exit_codes(stage: &Stage) {
    let (name, scratch) = ("rules", stage.scratch("rules"));
    let script =
        "echo run >> /scratch/runs; test $(grep -c run /scratch/runs) -ge 3 && exit 9; exit 42";
    let container = with(
        scratched(shell("main", script)),
        json!({
            "restartPolicy": "Never",
            "restartPolicyRules": [
                {"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}},
            ],
        }),
    );
    let manifest = pod(
        name,
        json!({
            "restartPolicy": "Never",
            "volumes": [scratch_volume(&scratch)],
            "containers": [container],
        }),
    );
    stage.apply(name, &manifest);
    let pod = stage.phase(name, "Failed").await;
    assert_eq!(status::ended(&pod, "main").unwrap().exit_code, 9);
    assert_eq!(status::ended_before(&pod, "main").unwrap().exit_code, 42);
    assert_eq!(stage.lines(&scratch, "runs").len(), 3);
    stage.end(name).await;
}

/// The exit of one container takes the whole pod through its start again, in place.
pub async fn one_exit_restarts_all_containers(stage: &Stage) {
    let (name, scratch) = ("all-again", stage.scratch("all-again"));
    let noted = |container: &str, then: &str| {
        let script = format!("echo {container} >> /scratch/diary; {then}");
        scratched(shell(container, &script))
    };
    let source = with(
        noted(
            "source",
            "test $(grep -c source /scratch/diary) -ge 2 || exit 88; while :; do sleep 1; done",
        ),
        json!({
            "restartPolicy": "Never",
            "restartPolicyRules": [
                {"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [88]}},
            ],
        }),
    );
    let manifest = pod(
        name,
        json!({
            "terminationGracePeriodSeconds": 1,
            "volumes": [scratch_volume(&scratch)],
            "initContainers": [noted("first", "")],
            "containers": [source, noted("other", "while :; do sleep 1; done")],
        }),
    );
    stage.apply(name, &manifest);
    let pod = stage
        .until(name, "everything has run twice", |pod| {
            status::all_running(pod)?;
            let times = |what| {
                stage
                    .lines(&scratch, "diary")
                    .iter()
                    .filter(|l| *l == what)
                    .count()
            };
            match ["first", "source", "other"].map(times) {
                [2, 2, 2] => Ok(pod.clone()),
                counts => Err(format!("{counts:?} {}", status::shown(pod))),
            }
        })
        .await;
    let sandboxes = stage.sandboxes(name).await;
    assert_eq!(sandboxes.len(), 1, "the sandbox stays: {sandboxes:?}");
    assert_eq!(status::phase(&pod), "Running");
    stage.end(name).await;
}

/// Not on the shared bed: there the back-off is so short that a busy machine does not show it.
pub async fn crash_loop_backs_off_in_known_words() {
    let longest = json!({"crashLoopBackOff": {"maxContainerRestartPeriod": "8s"}});
    let (stage, name) = (Stage::up(longest).await, "crashing");
    stage.apply(name, &single(name, tool("main", &["exit", "3"])));
    let (pod, message) = stage
        .until(name, "backs off", |pod| {
            let (reason, message) = status::waiting(pod, "main")?;
            match reason == "CrashLoopBackOff" {
                true => Ok((pod.clone(), message)),
                false => Err(status::shown(pod)),
            }
        })
        .await;
    let whole = format!("{}_default({})", full(name), status::uid(&pod));
    assert_eq!(
        message,
        format!("back-off 8s restarting failed container=main pod={whole}")
    );
    let last = status::ended_before(&pod, "main").unwrap();
    assert_eq!((last.exit_code, last.reason.as_deref()), (3, Some("Error")));
    let text = format!("Back-off restarting failed container main in pod {whole}");
    let event = stage.event(name, "BackOff", &text).await;
    assert_eq!((event.kind.as_str(), event.message), ("Warning", text));
    let before = status::container(&pod, "main").unwrap().restart_count;
    stage
        .until(
            name,
            "is restarted when it has waited",
            |pod| match status::container(pod, "main")?.restart_count {
                count if count > before => Ok(()),
                _ => Err(status::shown(pod)),
            },
        )
        .await;
    let instances = stage.containers(name).await.len();
    assert!(
        instances <= 3,
        "dead instances are not piled up: {instances}"
    );
    stage.end(name).await;
    stage.down().await;
}

/// Two containers, one of which ends: the pod goes on, and only that one is restarted.
pub async fn only_the_ended_container_is_restarted(stage: &Stage) {
    let (name, scratch) = ("one-of-two", stage.scratch("one-of-two"));
    let manifest = pod(
        name,
        json!({
            "volumes": [scratch_volume(&scratch)],
            "containers": [
                tool("steady", &["hold"]),
                scratched(tool("ends", &["stop-file", "/scratch/stop"])),
            ],
        }),
    );
    let before = stage.run(name, &manifest).await;
    std::fs::write(scratch.join("stop"), "5").unwrap();
    stage
        .until(name, "one has ended", |pod| {
            let last = status::ended_before(pod, "ends")?;
            assert_eq!(last.exit_code, 5);
            Ok(())
        })
        .await;
    std::fs::remove_file(scratch.join("stop")).unwrap();
    let after = stage.running(name).await;
    let id = |pod, name| status::id(status::container(pod, name).unwrap());
    assert_eq!(id(&before, "steady"), id(&after, "steady"));
    assert_ne!(id(&before, "ends"), id(&after, "ends"));
    stage.end(name).await;
}

pub async fn active_deadline_ends_the_pod(stage: &Stage) {
    let name = "deadline";
    let spec = json!({
        // Time to start and to end, on a busy machine too.
        "activeDeadlineSeconds": 8,
        "terminationGracePeriodSeconds": 4,
        "containers": [tool("main", &["hold"]), tool("stubborn", &["ignore-term"])],
    });
    stage.apply(name, &pod(name, spec));
    let pod = stage.phase(name, "Failed").await;
    let found = status::status(&pod).unwrap();
    assert_eq!(found.reason.as_deref(), Some("DeadlineExceeded"));
    assert_eq!(
        found.message.as_deref(),
        Some("Pod was active on the node longer than the specified deadline")
    );
    stage.event(name, "DeadlineExceeded", "").await;
    let pod = stage
        .until(name, "all containers have ended", |pod| {
            status::ended(pod, "main")?;
            status::ended(pod, "stubborn")?;
            Ok(pod.clone())
        })
        .await;
    assert_eq!(status::phase(&pod), "Failed");
    assert_eq!(status::ended(&pod, "main").unwrap().exit_code, 0);
    assert_eq!(
        status::ended(&pod, "stubborn").unwrap().exit_code,
        137,
        "what ignores SIGTERM is killed when its grace is over"
    );
    stage.end(name).await;
}

/// It is told to end first, and lives on for as long as it may: it can still count after that.
pub async fn stubborn_container_is_killed_at_the_end_of_its_grace(stage: &Stage) {
    let (name, scratch) = ("stubborn", stage.scratch("stubborn"));
    let count = "trap 'echo told >> /scratch/log' TERM; echo up > /scratch/log; \
                 while true; do sleep 0.1; echo alive >> /scratch/log; done";
    let spec = json!({
        "terminationGracePeriodSeconds": 2,
        "volumes": [scratch_volume(&scratch)],
        "containers": [scratched(shell("main", count))],
    });
    stage.run(name, &pod(name, spec)).await;
    let log = || std::fs::read_to_string(scratch.join("log")).unwrap_or_default();
    // Who is told before the trap is set hears nothing.
    stage
        .wait(name, "is ready to be told", async || {
            log().contains("up").then_some(()).ok_or_else(log)
        })
        .await;
    stage.end(name).await;
    let log = log();
    let (_, after) = log.split_once("told\n").expect("SIGTERM comes first");
    assert!(
        after.lines().count() >= 3,
        "killed before its grace was over: {after:?}"
    );
}

pub async fn termination_messages(stage: &Stage) {
    let name = "last-words";
    let with_policy =
        |container, policy: &str| with(container, json!({"terminationMessagePolicy": policy}));
    let spec = json!({
        "restartPolicy": "Never",
        "containers": [
            tool("file", &["term-message", "written to the file", "3"]),
            with_policy(
                shell("log", "echo first line; echo last line; exit 4"),
                "FallbackToLogsOnError",
            ),
            with_policy(
                shell("good", "echo no error, no message; exit 0"),
                "FallbackToLogsOnError",
            ),
            with_policy(
                shell("both", "echo logged; echo from the file > /dev/termination-log; exit 5"),
                "FallbackToLogsOnError",
            ),
            with(
                shell("elsewhere", "echo elsewhere > /tmp/words; exit 6"),
                json!({"terminationMessagePath": "/tmp/words"}),
            ),
            shell("long", "head -c 10000 /dev/zero | busybox tr '\\0' x > /dev/termination-log; exit 7"),
        ],
    });
    stage.apply(name, &pod(name, spec));
    let pod = stage.phase(name, "Failed").await;
    let said = |container: &str| {
        let ended = status::ended(&pod, container).unwrap();
        (ended.exit_code, ended.message.clone().unwrap_or_default())
    };
    assert_eq!(said("file"), (3, "written to the file".into()));
    assert_eq!(said("log"), (4, "first line\nlast line\n".into()));
    assert_eq!(said("good"), (0, String::new()));
    assert_eq!(said("both"), (5, "from the file\n".into()));
    assert_eq!(said("elsewhere"), (6, "elsewhere\n".into()));
    // Twelve KiB are shared by the messages of a pod, of which six containers get two each.
    assert_eq!(said("long"), (7, "x".repeat(2048)));
    stage.end(name).await;
}

/// An image that is nowhere: told in the known words, and the pod can still be removed.
pub async fn missing_image_is_told(stage: &Stage) {
    let name = "no-image";
    let container = json!({
        "name": "main", "image": "krablet.local/nowhere:1", "imagePullPolicy": "Never",
    });
    stage.apply(name, &single(name, container));
    stage
        .until(name, "waits for its image", |pod| {
            match status::waiting(pod, "main")?.0 == "ErrImageNeverPull" {
                true => Ok(()),
                false => Err(status::shown(pod)),
            }
        })
        .await;
    stage
        .event(
            name,
            "ErrImageNeverPull",
            "Container image \"krablet.local/nowhere:1\" is not present with pull policy of Never",
        )
        .await;
    stage.end(name).await;
}

/// A command that is not there: the container cannot be started, and that is told.
pub async fn missing_command_is_told(stage: &Stage) {
    let name = "no-command";
    let container = with(tool("main", &[]), json!({"command": ["/no/such/program"]}));
    stage.apply(name, &single(name, container));
    stage
        .until(name, "cannot be started", |pod| {
            let (reason, message) = status::waiting(pod, "main")?;
            let known = reason == "RunContainerError" || reason == "CrashLoopBackOff";
            match known && !message.is_empty() {
                true => Ok(()),
                false => Err(status::shown(pod)),
            }
        })
        .await;
    stage.event(name, "Failed", "/no/such/program").await;
    stage.end(name).await;
}
