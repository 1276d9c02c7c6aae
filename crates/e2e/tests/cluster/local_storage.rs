//! Pods that keep more on the node's disk than they may.

use krablet_e2e::manifest::{pod, scratched, tool, with};
use krablet_e2e::{Member, status};
use serde_json::{Value, json};

use crate::inside::inside_of;

/// Fills a file in a running container with so many MiB: what is there counts, not what is asked for.
async fn fill(node: &Member, pod: &str, container: &str, (file, size): (&str, u32)) {
    let bytes = size << 20;
    let script = format!("head -c {bytes} /dev/zero > {file} && sync");
    inside_of(node, pod, container, &script).await.unwrap();
}

async fn evicted(node: &Member, name: &str, message: &str) {
    let ended = node.phase(name, "Failed").await;
    let found = status::status(&ended).unwrap();
    assert_eq!(found.reason.as_deref(), Some("Evicted"), "{found:?}");
    assert_eq!(found.message.as_deref(), Some(message));
    node.event(name, "Evicted", message.trim_end()).await;
    assert!(
        node.containers(&status::uid(&ended))
            .await
            .iter()
            .all(|c| c.state != krablet_cri::v1::ContainerState::ContainerRunning as i32),
        "{name} still runs"
    );
    node.end(name).await;
}

fn scratch(name: &str, volume: Value) -> Value {
    pod(
        name,
        json!({
            "containers": [scratched(tool("main", &["hold"]))],
            "volumes": [{"name": "scratch", "emptyDir": volume}],
        }),
    )
}

pub async fn of_a_volume(node: &Member) {
    let (over, within) = ("keeps-too-much", "keeps-enough");
    node.run(&scratch(over, json!({"sizeLimit": "2Mi"}))).await;
    let kept = node
        .run(&scratch(within, json!({"sizeLimit": "4Mi"})))
        .await;
    fill(node, within, "main", ("/scratch/file", 3)).await;
    fill(node, over, "main", ("/scratch/file", 3)).await;
    let message = r#"Usage of EmptyDir volume "scratch" exceeds the limit "2Mi". "#;
    evicted(node, over, message).await;
    let now = node.pod(within).await.unwrap();
    assert_eq!(status::uid(&now), status::uid(&kept));
    assert_eq!(
        status::status(&now).unwrap().phase.as_deref(),
        Some("Running")
    );
    node.end(within).await;
}

pub async fn of_containers(node: &Member) {
    let limited = |name: &str, limit: &str| {
        let limits = json!({"resources": {"limits": {"ephemeral-storage": limit}}});
        with(tool(name, &["hold"]), limits)
    };
    let containers = |name: &str, second: &str| {
        let all = [scratched(limited("small", "2Mi")), limited("large", second)];
        let volumes = json!([{"name": "scratch", "emptyDir": {}}]);
        pod(name, json!({"containers": all, "volumes": volumes}))
    };
    let (one, whole) = ("container-keeps-too-much", "all-keep-too-much");
    node.run(&containers(one, "20Mi")).await;
    node.run(&containers(whole, "2Mi")).await;
    fill(node, one, "small", ("/file", 3)).await;
    // All at once, and no container's: whenever somebody looks, the pod has too much and they have not.
    fill(node, whole, "small", ("/scratch/file", 5)).await;
    let message = r#"Container small exceeded its local ephemeral storage limit "2Mi". "#;
    evicted(node, one, message).await;
    let message = "Pod ephemeral local storage usage exceeds the total limit of containers 4Mi. ";
    evicted(node, whole, message).await;
}
