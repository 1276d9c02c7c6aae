//! Settings that not every kernel or runtime can keep: what becomes of them where they can, and where they cannot.

use std::fs;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use krablet_cri::RuntimeService;
use krablet_e2e::manifest::{single, tool, with};
use krablet_e2e::{Member, status};
use serde_json::{Value, json};

use crate::inside::{end_all, inside, refused_by_the_node, running_id, says};

/// Whether the runtime keeps the users of pods apart.
async fn has_users_of_pods(node: &Member) -> bool {
    let runtime = node.stage.runtime.status().await.unwrap();
    let mut handlers = runtime.runtime_handlers.into_iter();
    let own = handlers.find(|h| h.name.is_empty());
    own.and_then(|h| h.features)
        .is_some_and(|f| f.user_namespaces)
}

/// A whole `/proc` is for pods with users of their own alone.
pub async fn unmasked_proc(node: &Member) {
    let name = "unmasked";
    let container = with(
        tool("main", &["hold"]),
        json!({"securityContext": {"procMount": "Unmasked"}}),
    );
    let manifest = single(name, container);
    let why = "spec.containers[0].securityContext.procMount: Invalid value: \"Unmasked\": `hostUsers` must be false to use `Unmasked`";
    refused_by_the_node(node, name, &manifest, why).await;

    let mut manifest = manifest;
    manifest["spec"]["hostUsers"] = json!(false);
    if has_users_of_pods(node).await {
        node.run(&manifest).await;
        let hidden = "grep -c ' /proc/' /proc/mounts || true";
        says(node, name, hidden, "0").await;
    } else {
        node.create(&manifest).await;
        let why = "can't set `spec.hostUsers: false`, runtime does not support user namespaces";
        node.event(name, "FailedCreatePodSandBox", why).await;
    }
    node.end(name).await;
}

/// What containerd keeps of a container or a sandbox.
async fn kept(node: &Member, id: &str) -> Value {
    let text = node.stage.bed.ctr(&["containers", "info", id]).await;
    serde_json::from_str(&text.unwrap()).unwrap()
}

/// What it was told when it was made.
fn told(kept: &Value, kind: &str) -> String {
    let encoded = &kept["Extensions"][format!("io.cri-containerd.{kind}.metadata")]["value"];
    let bytes = BASE64_STANDARD.decode(encoded.as_str().unwrap_or_default());
    String::from_utf8(bytes.unwrap()).unwrap()
}

async fn sandbox_id(node: &Member, pod: &str) -> String {
    let uid = status::uid(&node.pod(pod).await.unwrap());
    let all = node.stage.runtime.list_pod_sandbox(None).await.unwrap();
    let own = all
        .into_iter()
        .find(|s| s.metadata.as_ref().is_some_and(|m| m.uid == uid));
    own.unwrap().id
}

/// Labels come to the runtime, of the pod and of its containers. A kernel without SELinux has no use for them.
pub async fn labels_of_selinux(node: &Member) {
    let name = "labelled";
    let labels = |level: &str| json!({"seLinuxOptions": {"user": "system_u", "role": "system_r", "type": "container_t", "level": level}});
    let own = with(
        tool("own", &["hold"]),
        json!({"securityContext": labels("s0:c3,c4")}),
    );
    let mut manifest = single(name, tool("main", &["hold"]));
    manifest["spec"]["containers"] = json!([tool("main", &["hold"]), own]);
    manifest["spec"]["securityContext"] = labels("s0:c1,c2");
    node.run(&manifest).await;
    let sandbox = kept(node, &sandbox_id(node, name).await).await;
    let label = |level: &str| {
        format!(
            r#""selinux_options":{{"user":"system_u","role":"system_r","type":"container_t","level":"{level}"}}"#
        )
    };
    let text = told(&sandbox, "sandbox");
    assert!(text.contains(&label("s0:c1,c2")), "{text}");
    for (container, level) in [("main", "s0:c1,c2"), ("own", "s0:c3,c4")] {
        let id = running_id(node, name, Some(container)).await.unwrap();
        let text = told(&kept(node, &id).await, "container");
        assert!(text.contains(&label(level)), "{text}");
    }
    if !fs::exists("/sys/fs/selinux/enforce").unwrap_or(false) {
        let own = "cat /proc/self/attr/current 2>/dev/null | grep -c container_t || true";
        says(node, name, own, "0").await;
    }
    node.end(name).await;
}

/// Groups that a persistent volume asks for are the pod's, before any container is there.
pub async fn groups_of_a_persistent_volume(node: &Member) {
    let name = "grouped";
    let source = json!({"hostPath": {"path": node.stage.scratch(name)}});
    crate::volumes::bound_claim(node, name, source).await;
    let mount = json!({"volumeMounts": [crate::volumes::at("data", "/data")]});
    let mut manifest = single(name, with(tool("main", &["hold"]), mount));
    manifest["spec"]["securityContext"] = json!({"runAsUser": 1000, "runAsGroup": 3000, "supplementalGroups": [4000, 5000], "supplementalGroupsPolicy": "Strict"});
    manifest["spec"]["volumes"] =
        json!([{"name": "data", "persistentVolumeClaim": {"claimName": name}}]);
    node.run(&manifest).await;
    // It is noted at the volume, and in the pod already.
    says(node, name, "id -G", "3000 4000 5000").await;
    manifest["metadata"]["name"] = json!("grouped-more");
    manifest["spec"]["securityContext"]["supplementalGroups"] = json!([5000]);
    node.run(&manifest).await;
    says(node, "grouped-more", "id -G", "3000 4000 5000").await;
    let sandbox = kept(node, &sandbox_id(node, "grouped-more").await).await;
    let text = told(&sandbox, "sandbox");
    let groups = "\"supplemental_groups\":[5000,4000]";
    assert!(text.contains(groups), "{text}");
    end_all(node, &[name, "grouped-more"]).await;
    crate::volumes::release_claim(node, name).await;
}

/// Whom the kernel kills first when memory is short.
pub async fn scores_when_memory_is_short(node: &Member) {
    let asking = |name: &str, memory: Option<&str>| {
        let requests = memory.map_or(json!({}), |m| json!({"requests": {"memory": m}}));
        single(
            name,
            with(tool("main", &["hold"]), json!({"resources": requests})),
        )
    };
    node.run(&asking("score-none", None)).await;
    node.run(&asking("score-some", Some("64Mi"))).await;
    let capacity = node.node().await.unwrap().status.unwrap().capacity.unwrap();
    let kilobytes = capacity["memory"].0.trim_end_matches("Ki");
    let bytes = kilobytes.parse::<u64>().unwrap() * 1024;
    let some = (1000 - 1000 * (64 << 20) / bytes).clamp(3, 999);
    for (name, expected) in [("score-none", 1000), ("score-some", some)] {
        let seen = inside(node, name, "cat /proc/1/oom_score_adj").await;
        assert_eq!(seen.as_deref(), Ok(expected.to_string().as_str()), "{name}");
    }
    end_all(node, &["score-none", "score-some"]).await;
}
