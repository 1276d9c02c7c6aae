//! Taking a node over from another agent.

use std::collections::BTreeMap;
use std::path::Path;

use krablet_cri::{RuntimeService, v1};
use krablet_e2e::manifest::{pod, tool};
use krablet_e2e::stage::full;
use krablet_e2e::{Stage, status};
use krablet_pod::{hash, labels};
use krablet_testbed::images;
use serde_json::{Value, json};

const THEIR_UID: &str = "0123456789abcdef0123456789abcdef";

fn text(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    pairs.iter().map(owned).collect()
}

/// Makes what another kubelet would have made for the manifest of this name.
async fn run_as_another_kubelet(stage: &Stage, name: &str, containers: &[&str]) -> Vec<String> {
    let name = full(name);
    let identity = [
        (labels::POD_NAME, name.as_str()),
        (labels::POD_NAMESPACE, "default"),
        (labels::POD_UID, THEIR_UID),
    ];
    let logs = stage.krablet.pod_logs();
    let sandbox = v1::PodSandboxConfig {
        metadata: Some(v1::PodSandboxMetadata {
            name: name.clone(),
            uid: THEIR_UID.to_owned(),
            namespace: "default".to_owned(),
            attempt: 0,
        }),
        hostname: name.clone(),
        log_directory: logs
            .join(format!("default_{name}_{THEIR_UID}"))
            .display()
            .to_string(),
        labels: text(&identity),
        annotations: text(&[
            ("kubernetes.io/config.source", "file"),
            ("kubernetes.io/config.hash", THEIR_UID),
            ("kubernetes.io/config.seen", "2026-01-01T00:00:00.0Z"),
        ]),
        linux: Some(v1::LinuxPodSandboxConfig {
            cgroup_parent: format!(
                "{}/kubepods/besteffort/pod{THEIR_UID}",
                stage.bed.cgroup_parent()
            ),
            ..v1::LinuxPodSandboxConfig::default()
        }),
        ..v1::PodSandboxConfig::default()
    };
    let sandbox_id = stage
        .runtime
        .run_pod_sandbox(sandbox.clone(), "")
        .await
        .unwrap();
    let mut ids = Vec::new();
    for container in containers {
        let spec = krablet_pod::api::Container {
            name: (*container).to_owned(),
            image: Some(images::TOOL.to_owned()),
            ..Default::default()
        };
        let mut own = identity.to_vec();
        own.push((labels::CONTAINER_NAME, container));
        std::fs::create_dir_all(Path::new(&sandbox.log_directory).join(container)).unwrap();
        let config = v1::ContainerConfig {
            metadata: Some(v1::ContainerMetadata {
                name: spec.name.clone(),
                attempt: 0,
            }),
            image: Some(v1::ImageSpec {
                image: images::TOOL.to_owned(),
                ..v1::ImageSpec::default()
            }),
            args: vec!["hold".to_owned()],
            log_path: format!("{container}/0.log"),
            labels: text(&own),
            annotations: text(&[
                (labels::CONTAINER_HASH, &hash::container_hash_text(&spec)),
                (labels::CONTAINER_RESTART_COUNT, "0"),
                (labels::TERMINATION_MESSAGE_PATH, "/dev/termination-log"),
                (labels::TERMINATION_MESSAGE_POLICY, "File"),
                (labels::POD_TERMINATION_GRACE, "2"),
            ]),
            ..v1::ContainerConfig::default()
        };
        let id = stage
            .runtime
            .create_container(&sandbox_id, config, sandbox.clone())
            .await
            .unwrap();
        stage.runtime.start_container(&id).await.unwrap();
        ids.push(id);
    }
    ids
}

/// Puts a manifest in place that is older than anything that runs.
fn old_manifest(stage: &Stage, name: &str, manifest: &Value) {
    stage.apply(name, manifest);
    let path = stage.krablet.manifests().join(format!("{name}.json"));
    let file = std::fs::File::options().write(true).open(path).unwrap();
    let long_ago =
        std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_700_000_000);
    file.set_modified(long_ago).unwrap();
}

/// A static pod that another kubelet runs goes on as it is, also after this agent's own restarts;
/// one whose manifest is another now is replaced; one nobody wants is ended.
pub async fn running_static_pods_are_adopted() {
    let mut stage = Stage::prepared(Value::Null).await;
    let manifest = pod(
        "adopted",
        json!({"containers": [tool("a", &["hold"]), tool("b", &["hold"])]}),
    );
    old_manifest(&stage, "adopted", &manifest);
    let mut theirs = run_as_another_kubelet(&stage, "adopted", &["a", "b"]).await;
    theirs.sort();
    let running = async |stage: &Stage| {
        let ids = stage.running_ids("adopted").await.into_iter();
        let mut ids: Vec<String> = ids.map(|(_, id)| id).collect();
        ids.sort();
        ids
    };
    stage.start().await;
    let pod = stage.running("adopted").await;
    assert_eq!(status::uid(&pod), THEIR_UID);
    assert_eq!(running(&stage).await, theirs);
    for container in ["a", "b"] {
        assert_eq!(status::container(&pod, container).unwrap().restart_count, 0);
    }
    stage.crash().await;
    let pod = stage.running("adopted").await;
    assert_eq!(status::uid(&pod), THEIR_UID);
    assert_eq!(running(&stage).await, theirs);

    let changed =
        krablet_e2e::manifest::pod("adopted", json!({"containers": [tool("a", &["hold"])]}));
    stage.apply("adopted", &changed);
    stage.gone("adopted", THEIR_UID).await;
    let pod = stage.running("adopted").await;
    assert_ne!(status::uid(&pod), THEIR_UID);
    assert_eq!(running(&stage).await.len(), 1);
    stage.down().await;
}

/// What another kubelet left running and no manifest wants is ended.
pub async fn unwanted_pods_are_ended() {
    let mut stage = Stage::prepared(Value::Null).await;
    run_as_another_kubelet(&stage, "unwanted", &["a"]).await;
    stage.start().await;
    stage
        .wait("unwanted", "is ended", async || {
            match stage.alive("unwanted").await {
                alive if alive.is_empty() => Ok(()),
                alive => Err(format!("{alive:?}")),
            }
        })
        .await;
    stage.down().await;
}
