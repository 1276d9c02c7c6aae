//! Pods and the node they are on: its files, its network, its memory, its logs.

use krablet_e2e::manifest::{pod, single, tool, with};
use krablet_e2e::stage::full;
use krablet_e2e::{Stage, status};
use krablet_testbed::{free_port, get, images};
use serde_json::json;

/// Manifests in the forms people write them in; what is no manifest is passed over in silence.
pub async fn manifests_of_every_form(stage: &Stage) {
    let image = images::TOOL;
    let block = format!(
        "# A comment first.\n---\napiVersion: v1\nkind: Pod\nmetadata:\n  name: block\nspec:\n  \
         terminationGracePeriodSeconds: 2\n  containers:\n  - name: main\n    image: {image}\n    \
         args: [hold]\n    env:\n    - {{name: GREETING, value: \"yes\"}}\n"
    );
    let flow = format!(
        "{{apiVersion: v1, kind: Pod, metadata: {{name: flow}}, spec: {{terminationGracePeriodSeconds: 2, \
         containers: [{{name: main, image: '{image}', args: [hold]}}]}}}}"
    );
    let manifests = stage.krablet.manifests();
    std::fs::create_dir(manifests.join("a-directory")).unwrap();
    std::fs::write(manifests.join(".hidden.yaml"), "not: a pod").unwrap();
    stage.krablet.write_manifest("block.yaml", &block).unwrap();
    stage.krablet.write_manifest("flow", &flow).unwrap();
    let elsewhere = stage.scratch("linked").join("manifest");
    let linked = single("linked", tool("main", &["hold"])).to_string();
    std::fs::write(&elsewhere, linked).unwrap();
    std::os::unix::fs::symlink(&elsewhere, manifests.join("linked.json")).unwrap();
    let mut uids = Vec::new();
    for name in ["block", "flow", "linked"] {
        let pod = stage.running(name).await;
        uids.push((name, status::uid(&pod)));
    }
    let log = stage.krablet.log();
    for silent in [".hidden.yaml", "a-directory"] {
        assert!(!log.contains(silent), "{silent} is no concern of the agent");
    }
    for file in ["block.yaml", "flow", "linked.json"] {
        std::fs::remove_file(manifests.join(file)).unwrap();
    }
    for (name, uid) in uids {
        stage.gone(name, &uid).await;
    }
    std::fs::remove_dir(manifests.join("a-directory")).unwrap();
    std::fs::remove_file(manifests.join(".hidden.yaml")).unwrap();
}

/// A pod on the node's network has the node's address; another is reached through a port of the
/// node, until it is gone.
pub async fn ports_and_network_of_the_node(stage: &Stage) {
    let port = free_port().unwrap();
    let manifest = pod(
        "on-host",
        json!({
            "hostNetwork": true,
            "containers": [tool("main", &["http", "-port", &port.to_string()])],
        }),
    );
    let on_host = stage.run("on-host", &manifest).await;
    let found = status::status(&on_host).unwrap();
    assert_eq!(found.pod_ip, found.host_ip);
    let answers = async |name: &str, address: String| {
        stage
            .wait(name, "answers", async || {
                match get(&address, "/healthz").await {
                    Ok(answer) if answer.status == 200 => Ok(()),
                    other => Err(format!("{other:?}")),
                }
            })
            .await;
    };
    answers("on-host", format!("127.0.0.1:{port}")).await;
    stage.end("on-host").await;

    let port = free_port().unwrap();
    let container = with(
        tool("main", &["http"]),
        json!({"ports": [{"containerPort": 8080, "hostPort": port}]}),
    );
    let mapped = stage.run("mapped", &single("mapped", container)).await;
    let found = status::status(&mapped).unwrap();
    let (own, node) = (
        found.pod_ip.clone().unwrap(),
        found.host_ip.clone().unwrap(),
    );
    answers("mapped", format!("{own}:8080")).await;
    answers("mapped", format!("{node}:{port}")).await;
    stage.end("mapped").await;
}

/// More memory than its limit: the kernel ends the container, and the status says so.
pub async fn out_of_memory_is_told(stage: &Stage) {
    let name = "hungry";
    let container = with(
        tool("main", &["eat-memory", "200"]),
        json!({"resources": {"limits": {"memory": "32Mi"}}}),
    );
    stage.apply(
        name,
        &pod(
            name,
            json!({"restartPolicy": "Never", "containers": [container]}),
        ),
    );
    let pod = stage.phase(name, "Failed").await;
    let ended = status::ended(&pod, "main").unwrap();
    assert_eq!(
        (ended.exit_code, ended.reason.as_deref()),
        (137, Some("OOMKilled"))
    );
    let found = status::status(&pod).unwrap();
    assert_eq!(found.qos_class.as_deref(), Some("Burstable"));
    stage.end(name).await;
}

/// A log that grows is turned: older parts are kept compressed, and not too many of them.
pub async fn growing_logs_are_rotated(stage: &Stage) {
    let name = "chatty";
    let line = "x".repeat(1000);
    let pod = stage
        .run(
            name,
            &single(name, tool("main", &["log", &line, "0", "2ms"])),
        )
        .await;
    let id = status::id(status::container(&pod, "main").unwrap());
    let dir = stage
        .krablet
        .pod_logs()
        .join(format!("default_{}_{}", full(name), status::uid(&pod)))
        .join("main");
    let files = || -> Vec<String> {
        let entries = std::fs::read_dir(&dir).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    };
    let turned = async |what: &str| {
        stage
            .wait(name, what, async || {
                let files = files();
                let packed: Vec<String> = files
                    .iter()
                    .filter(|file| file.ends_with(".gz"))
                    .cloned()
                    .collect();
                match files.contains(&"0.log".to_owned()) && !packed.is_empty() && files.len() == 3
                {
                    true => Ok(packed),
                    false => Err(format!("{files:?}")),
                }
            })
            .await
    };
    let first = turned("its log is turned and packed").await;
    stage
        .wait(name, "the oldest part makes room", async || {
            let now = files();
            match first.iter().any(|file| now.contains(file)) {
                true => Err(format!("{now:?}")),
                false => Ok(()),
            }
        })
        .await;
    turned("three files stay").await;
    let after = stage.running(name).await;
    assert_eq!(status::id(status::container(&after, "main").unwrap()), id);
    stage.end(name).await;
}

/// Scrapers find what they know, and numbers that are true of a pod that runs.
pub async fn metrics_are_served(stage: &Stage) {
    let name = "measured";
    let probed = with(
        tool("main", &["hold"]),
        json!({"readinessProbe": {"exec": {"command": ["/bin/sh", "-c", "true"]}, "periodSeconds": 1}}),
    );
    let uid = status::uid(&stage.run(name, &single(name, probed)).await);
    let value = async |path: &str, series: &str| -> Result<f64, String> {
        let answer = stage.krablet.get(path).await.map_err(|e| e.to_string())?;
        let line = answer.body.lines().find(|l| l.starts_with(series));
        let line = line.ok_or(format!("no {series} in {path}"))?;
        let number = line.rsplit(' ').next().and_then(|n| n.parse().ok());
        number.ok_or(format!("no number: {line}"))
    };
    for series in [
        "kubelet_running_pods",
        "kubelet_running_containers{container_state=\"running\"}",
        "kubelet_pod_start_duration_seconds_count",
        "kubelet_pod_worker_duration_seconds_count{operation_type=\"create\"}",
        "kubelet_runtime_operations_total{operation_type=\"run_podsandbox\"}",
        "kubelet_evented_pleg_connection_success_count",
        "kubelet_pleg_relist_duration_seconds_count",
        "kubelet_started_containers_total{container_type=\"container\"}",
        "process_resident_memory_bytes",
    ] {
        let found = value("/metrics", series).await;
        assert!(matches!(found, Ok(1.0..)), "{series}: {found:?}");
    }
    let probes = format!(
        "prober_probe_total{{container=\"main\",namespace=\"default\",pod=\"{}\",pod_uid=\"{uid}\",probe_type=\"Readiness\",result=\"successful\"}}",
        full(name)
    );
    stage
        .wait(name, "its probes are counted", async || {
            match value("/metrics/probes", &probes).await? {
                2.0.. => Ok(()),
                few => Err(format!("{few}")),
            }
        })
        .await;
    stage.end(name).await;
}
