//! Static pods come, change and go, and leave the traces others expect.

use krablet_cri::RuntimeService;
use krablet_e2e::manifest::{diary, pod, scratch_volume, scratched, shell, single, tool, with};
use krablet_e2e::stage::full;
use krablet_e2e::{Stage, status};
use krablet_pod::{hash, labels};
use krablet_testbed::images;
use serde_json::{Value, json};

pub async fn runs_and_is_removed(stage: &Stage) {
    let running = stage
        .run("plain", &single("plain", tool("main", &["hold"])))
        .await;
    let found = status::status(&running).unwrap();
    assert!(found.pod_ip.is_some() && found.start_time.is_some());
    stage
        .until("plain", "all conditions are true", |pod| {
            let all = [
                "PodReadyToStartContainers",
                "Initialized",
                "Ready",
                "ContainersReady",
                "PodScheduled",
            ];
            match all.iter().all(|kind| status::condition(pod, kind)) {
                true => Ok(()),
                false => Err(status::shown(pod)),
            }
        })
        .await;
    for reason in ["Pulled", "Created", "Started"] {
        stage.event("plain", reason, "").await;
    }
    stage.end("plain").await;
    stage
        .event("plain", "Killing", "Stopping container main")
        .await;
}

/// A changed manifest is another pod: the old one is gone before the new one starts.
pub async fn change_replaces_the_pod(stage: &Stage) {
    let scratch = stage.scratch("changed");
    let version = |version: &str| {
        let script = format!(
            "trap 'sleep 1; echo stop {version} >> /scratch/diary; exit 0' TERM; \
             echo start {version} >> /scratch/diary; while :; do sleep 1000 & wait $!; done"
        );
        pod(
            "changed",
            json!({
                "terminationGracePeriodSeconds": 60,
                "volumes": [scratch_volume(&scratch)],
                "containers": [scratched(shell("main", &script))],
            }),
        )
    };
    let old = stage.run("changed", &version("one")).await;
    stage.apply("changed", &version("two"));
    let new = stage
        .until("changed", "the new pod runs", |pod| {
            status::all_running(pod)?;
            match status::uid(pod) == status::uid(&old) {
                true => Err("still the old one".to_owned()),
                false => Ok(pod.clone()),
            }
        })
        .await;
    stage
        .diary("changed", &scratch, &["start one", "stop one", "start two"])
        .await;
    assert_eq!(new.metadata.name, old.metadata.name);
    stage.gone("changed", &status::uid(&old)).await;
    let running = stage.running_ids("changed").await;
    assert_eq!(running.len(), 1, "{running:?}");
    stage.end("changed").await;
    let diary = stage.lines(&scratch, "diary");
    assert_eq!(diary.last().map(String::as_str), Some("stop two"));
}

/// The same manifest, put back while its first pod is still being stopped.
pub async fn comes_back_right_after_removal(stage: &Stage) {
    let scratch = stage.scratch("again");
    let manifest = pod(
        "again",
        json!({
            "terminationGracePeriodSeconds": 60,
            "volumes": [scratch_volume(&scratch)],
            "containers": [scratched(shell("main", &diary("main")))],
        }),
    );
    let mut before = stage.run("again", &manifest).await;
    let mut expected = vec!["start main"];
    stage.diary("again", &scratch, &expected).await;
    for _ in 0..3 {
        let old = status::id(status::container(&before, "main").unwrap());
        stage.remove("again");
        stage
            .wait("again", "is no longer wanted", async || {
                match stage.pod("again").await {
                    Ok(_) => Err("still wanted".to_owned()),
                    Err(_) => Ok(()),
                }
            })
            .await;
        stage.apply("again", &manifest);
        before = stage
            .until("again", "runs anew", |pod| {
                status::all_running(pod)?;
                match status::id(status::container(pod, "main")?) == old {
                    true => Err("still the old container".to_owned()),
                    false => Ok(pod.clone()),
                }
            })
            .await;
        expected.extend(["stop main", "start main"]);
        stage.diary("again", &scratch, &expected).await;
    }
    stage.end("again").await;
}

/// A file that cannot be understood any more does not stop what runs.
pub async fn broken_edit_keeps_the_pod(stage: &Stage) {
    let pod = stage
        .run("kept", &single("kept", tool("main", &["hold"])))
        .await;
    let id = status::id(status::container(&pod, "main").unwrap());
    stage
        .krablet
        .write_manifest("kept.json", "{\"kind\": \"Pod\", \"spec\": {")
        .unwrap();
    stage
        .wait("kept", "the broken manifest is told", async || {
            let log = stage.krablet.log();
            let told = log
                .lines()
                .any(|l| l.contains("Could not process manifest") && l.contains("kept.json"));
            match told {
                true => Ok(()),
                false => Err("not told".to_owned()),
            }
        })
        .await;
    let pod = stage.running("kept").await;
    assert_eq!(status::id(status::container(&pod, "main").unwrap()), id);
    stage.end("kept").await;
}

/// Two manifests of one pod: the first by name runs, the other is told about and dropped.
pub async fn second_manifest_of_a_name_is_dropped(stage: &Stage) {
    let manifest = |arguments: &[&str]| {
        let mut pod = single("twin", tool("main", arguments));
        pod["metadata"]["uid"] = json!("11111111-2222-3333-4444-555555555555");
        pod
    };
    stage.run("twin", &manifest(&["hold"])).await;
    stage.apply("twin-2", &manifest(&["ignore-term"]));
    stage.event("twin", "FailedValidation", "").await;
    assert_eq!(stage.running_ids("twin").await.len(), 1);
    stage.remove("twin-2");
    stage.end("twin").await;
}

/// Labels, annotations, log files and links are those that collectors and other agents know.
pub async fn leaves_the_known_traces(stage: &Stage) {
    let mut manifest = single(
        "traces",
        with(
            shell("main", "echo out; echo err >&2; exec /tool hold"),
            json!({
                "ports": [{"name": "web", "containerPort": 8080}],
                "lifecycle": {"preStop": {"exec": {"command": ["/bin/true"]}}},
            }),
        ),
    );
    manifest["metadata"]["labels"] = json!({"app": "traces"});
    manifest["metadata"]["annotations"] = json!({"example.com/note": "kept"});
    let pod = stage.run("traces", &manifest).await;
    let uid = status::uid(&pod);
    let name = full("traces");

    let sandbox = stage.sandboxes("traces").await.remove(0);
    assert_eq!(sandbox.labels["app"], "traces");
    assert_eq!(sandbox.labels[labels::POD_NAME], name);
    assert_eq!(sandbox.labels[labels::POD_NAMESPACE], "default");
    assert_eq!(sandbox.labels[labels::POD_UID], uid);
    assert_eq!(sandbox.annotations["example.com/note"], "kept");
    assert_eq!(
        sandbox.annotations["kubernetes.io/config.source"], "file",
        "{:?}",
        sandbox.annotations
    );
    assert_eq!(sandbox.annotations["kubernetes.io/config.hash"], uid);
    assert!(
        sandbox
            .annotations
            .contains_key("kubernetes.io/config.seen")
    );

    let container = stage.containers("traces").await.remove(0);
    assert_eq!(container.labels[labels::CONTAINER_NAME], "main");
    assert_eq!(container.labels[labels::POD_UID], uid);
    let spec = &pod.spec.as_ref().unwrap().containers[0];
    let ports: Value =
        serde_json::from_str(&container.annotations[labels::CONTAINER_PORTS]).unwrap();
    assert_eq!(
        ports,
        json!([{"name": "web", "containerPort": 8080, "protocol": "TCP"}])
    );
    for (key, value) in [
        (labels::CONTAINER_HASH, hash::container_hash_text(spec)),
        (labels::CONTAINER_RESTART_COUNT, "0".into()),
        (
            labels::TERMINATION_MESSAGE_PATH,
            "/dev/termination-log".into(),
        ),
        (labels::TERMINATION_MESSAGE_POLICY, "File".into()),
        (labels::POD_TERMINATION_GRACE, "2".into()),
        (
            labels::PRE_STOP_HANDLER,
            r#"{"exec":{"command":["/bin/true"]}}"#.into(),
        ),
    ] {
        assert_eq!(container.annotations[key], value, "{key}");
    }

    let logs = stage.krablet.pod_logs();
    let log = logs
        .join(format!("default_{name}_{uid}"))
        .join("main/0.log");
    stage
        .wait("traces", "its log is written", async || {
            let text = std::fs::read_to_string(&log).map_err(|e| e.to_string())?;
            match text.contains("stdout F out") && text.contains("stderr F err") {
                true => Ok(()),
                false => Err(text),
            }
        })
        .await;
    let id = status::id(status::container(&pod, "main").unwrap());
    assert_eq!(id, container.id);
    let link = stage
        .krablet
        .container_logs()
        .join(format!("{name}_default_main-{id}.log"));
    assert_eq!(std::fs::read_link(&link).unwrap(), log);
    let inspected = stage.runtime.container_status(&id).await.unwrap();
    assert_eq!(inspected.log_path, log.display().to_string());
    stage.end("traces").await;
}

/// The table and the list of events, as people read them.
pub async fn tables_show_it(stage: &Stage) {
    stage
        .run("table", &single("table", tool("main", &["hold"])))
        .await;
    let rows = stage.rows().await.unwrap();
    let row = rows.iter().find(|r| r.name == full("table")).unwrap();
    assert_eq!((row.containers, row.restarts), (1, 0));
    let root = format!("--root-dir={}", stage.krablet.root_dir().display());
    let shown = |output: std::process::Output| {
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    stage
        .wait("table", "the table shows it", async || {
            let text = shown(stage.krablet.run(&["pods", &root]).await.unwrap());
            let line = text.lines().find(|l| l.contains("table-krablet"));
            let line = line.ok_or_else(|| text.clone())?;
            let known = [
                "default ",
                " 1/1 ",
                " Running ",
                " Started: Container started",
            ];
            match known.iter().all(|word| line.contains(word)) && text.starts_with("NAMESPACE") {
                true => Ok(()),
                false => Err(text),
            }
        })
        .await;
    let text = shown(stage.krablet.run(&["events", &root]).await.unwrap());
    let started = text.lines().any(|l| {
        l.contains("default/table-krablet spec.containers{main}")
            && l.contains(" Normal ")
            && l.contains("Container started")
    });
    assert!(started, "{text}");
    stage.end("table").await;
}

/// The image of a container, the command it runs, its environment and its address.
pub async fn containers_get_what_their_spec_says(stage: &Stage) {
    let scratch = stage.scratch("told");
    let script = "{ cat /etc/image; echo $GREETING; echo $NAME; echo $IP; hostname; pwd; id -u; \
                  grep -c told-krablet /etc/hosts; } > /scratch/diary; exec /tool hold";
    let container = with(
        scratched(shell("main", script)),
        json!({
            "image": images::TOOL_V2,
            "workingDir": "/tmp",
            "securityContext": {"runAsUser": 1000},
            "env": [
                {"name": "WHO", "value": "world"},
                {"name": "GREETING", "value": "hello $(WHO)"},
                {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            ],
        }),
    );
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(&scratch, std::fs::Permissions::from_mode(0o777)).unwrap();
    let manifest = pod(
        "told",
        json!({"volumes": [scratch_volume(&scratch)], "containers": [container]}),
    );
    let pod = stage.run("told", &manifest).await;
    let ip = status::status(&pod).unwrap().pod_ip.clone().unwrap();
    let expected = [
        images::TOOL_V2,
        "hello world",
        "told-krablet",
        &ip,
        "told-krablet",
        "/tmp",
        "1000",
        "1",
    ];
    stage.diary("told", &scratch, &expected).await;
    stage.end("told").await;
}
