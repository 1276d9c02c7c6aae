//! Pods that are bound to the node though they do not fit, and what they are told.

use krablet_e2e::cluster_stage::{Joining, condition};
use krablet_e2e::manifest::{pod, single, tool, with};
use krablet_e2e::{Member, status};
use serde_json::{Value, json};

/// Waits until the pod is refused, and deletes it.
pub async fn refused(node: &Member, manifest: &Value, reason: &str, message: &str) {
    let made = node.create(manifest).await;
    let name = made.metadata.name.clone().unwrap();
    let pod = node.phase(&name, "Failed").await;
    let found = status::status(&pod).unwrap();
    assert_eq!(found.reason.as_deref(), Some(reason), "{found:?}");
    let text = found.message.clone().unwrap_or_default();
    let expected = format!("Pod was rejected: {message}");
    assert!(text.starts_with(&expected), "{text} instead of {expected}");
    node.event(&name, reason, message).await;
    let uid = status::uid(&pod);
    assert_eq!(node.containers(&uid).await, Vec::new());
    node.delete(&name).await;
    node.gone(&name, &uid).await;
}

fn asking(name: &str, requests: Value) -> Value {
    let container = with(
        tool("main", &["hold"]),
        json!({"resources": {"requests": requests}}),
    );
    single(name, container)
}

pub async fn too_large(node: &Member) {
    refused(
        node,
        &asking("too-much-cpu", json!({"cpu": "1000"})),
        "OutOfcpu",
        "Node didn't have enough resource: cpu, requested: 1000000, used: ",
    )
    .await;
    refused(
        node,
        &asking("too-much-memory", json!({"memory": "1Pi"})),
        "OutOfmemory",
        "Node didn't have enough resource: memory, requested: 1125899906842624, used: ",
    )
    .await;
}

pub async fn of_another_kind_of_node(node: &Member) {
    let mut manifest = single("elsewhere", tool("main", &["hold"]));
    manifest["spec"]["nodeSelector"] = json!({"example.com/kind": "other"});
    let message =
        "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector";
    refused(node, &manifest, "NodeAffinity", message).await;
    let mut manifest = single("unsafe-sysctl", tool("main", &["hold"]));
    manifest["spec"]["securityContext"] =
        json!({"sysctls": [{"name": "kernel.msgmax", "value": "65536"}]});
    let message = "forbidden sysctl: \"kernel.msgmax\" not allowlisted";
    refused(node, &manifest, "SysctlForbidden", message).await;
    let mut manifest = single("of-another-system", tool("main", &["hold"]));
    manifest["spec"]["os"] = json!({"name": "windows"});
    let message = "Failed to admit pod as the OS field doesn't match node OS";
    refused(node, &manifest, "PodOSNotSupported", message).await;
    let mut manifest = single("labelled-for-another", tool("main", &["hold"]));
    manifest["metadata"]["labels"] = json!({"kubernetes.io/os": "windows"});
    let message = "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label";
    refused(
        node,
        &manifest,
        "PodOSSelectorNodeLabelDoesNotMatch",
        message,
    )
    .await;
}

pub async fn host_port_is_taken(node: &Member) {
    let port = krablet_testbed::free_port().unwrap();
    let listening = |name: &str| {
        let ports = json!({"ports": [{"containerPort": 8080, "hostPort": port}]});
        single(name, with(tool("main", &["hold"]), ports))
    };
    node.run(&listening("has-the-port")).await;
    let message =
        "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports";
    refused(node, &listening("wants-the-port"), "NodePorts", message).await;
    node.end("has-the-port").await;
    // What was refused before is let in now.
    node.run(&listening("gets-the-port")).await;
    node.end("gets-the-port").await;
}

/// A critical pod ends another where there is no room for both.
pub async fn critical_pod_finds_room(node: &Member) {
    let allocatable = node.ready().await.status.unwrap().allocatable.unwrap();
    let cpus: u32 = allocatable["cpu"].0.parse().unwrap();
    let most = format!("{}m", cpus * 1000 - 100);
    node.run(&asking("makes-room", json!({"cpu": most}))).await;
    let container = with(
        tool("main", &["hold"]),
        json!({"resources": {"requests": {"cpu": "500m"}}}),
    );
    let critical = pod(
        "is-critical",
        json!({"priorityClassName": "system-node-critical", "containers": [container]}),
    );
    node.run(&critical).await;
    let ended = node.phase("makes-room", "Failed").await;
    let found = status::status(&ended).unwrap();
    assert_eq!(found.reason.as_deref(), Some("Preempting"));
    let message = "Preempted in order to admit critical pod";
    assert_eq!(found.message.as_deref(), Some(message));
    assert!(status::condition(&ended, "DisruptionTarget"), "{found:?}");
    node.event("makes-room", "Preempting", message).await;
    for name in ["makes-room", "is-critical"] {
        node.end(name).await;
    }
}

/// Pods that do not tolerate it go, and no others come; without it as many as the node takes, and no more.
pub async fn no_execute_taint(main: &Member) {
    let joining = Joining {
        config: json!({"maxPods": 2}),
        ..Joining::default()
    };
    let mut node = main.prepared_beside("tainted", joining).await;
    node.start().await;
    let manifest = |name: &str| single(name, tool("main", &["hold"]));
    let mut tolerant = manifest("tolerates");
    tolerant["spec"]["tolerations"] = json!([{"operator": "Exists"}]);
    let kept = node.run(&tolerant).await;
    let leaves = status::uid(&node.run(&manifest("leaves")).await);
    node.kubectl(&["taint", "node", &node.name, "example.com/out=now:NoExecute"])
        .await;
    node.gone("leaves", &leaves).await;
    come_too_late(&node, manifest).await;
    let id = |pod| status::id(status::container(pod, "main").unwrap());
    assert_eq!(id(&kept), id(&node.running("tolerates").await));
    node.kubectl(&["taint", "node", &node.name, "example.com/out-"])
        .await;
    node.run(&manifest("comes-again")).await;
    let message = "Node didn't have enough resource: pods, requested: 1, used: 2, capacity: 2";
    refused(&node, &manifest("one-too-many"), "OutOfpods", message).await;
    for name in ["tolerates", "comes-again"] {
        node.end(name).await;
    }
    node.down().await;
}

/// A node that is short of room on its disk says so and takes no pods but critical ones.
pub async fn disk_pressure(main: &Member) {
    let joining = Joining {
        // No disk is that empty.
        config: json!({"evictionHard": {"nodefs.available": "99%"}}),
        ..Joining::default()
    };
    let mut node = main.prepared_beside("short-of-room", joining).await;
    node.start().await;
    let object = node.ready().await;
    let pressure = condition(&object, "DiskPressure").unwrap();
    assert_eq!(pressure.status, "True");
    assert_eq!(
        pressure.reason.as_deref(),
        Some("KubeletHasDiskPressure"),
        "{pressure:?}"
    );
    let mut manifest = single("no-room-left", tool("main", &["hold"]));
    manifest["spec"]["tolerations"] = json!([{"operator": "Exists", "effect": "NoExecute"}]);
    let message = "The node had condition: [DiskPressure]. ";
    refused(&node, &manifest, "Evicted", message).await;
    node.down().await;
}

/// A controller deletes such pods too, and may be quicker than the node; not always.
async fn come_too_late(node: &Member, manifest: impl Fn(&str) -> Value) {
    for number in 0..20 {
        let name = format!("comes-too-late-{number}");
        let made = node.create(&manifest(&name)).await;
        node.gone(&name, &status::uid(&made)).await;
        let log = node.stage.krablet.log();
        let mut lines = log.lines();
        if lines.any(|line| line.contains("Pod was rejected") && line.contains(&name)) {
            let message = "Predicate TaintToleration failed: \
                           node(s) had taints that the pod didn't tolerate";
            node.event(&name, "TaintToleration", message).await;
            return;
        }
    }
    panic!("no pod was refused\n{}", node.stage.krablet.log_tail());
}
