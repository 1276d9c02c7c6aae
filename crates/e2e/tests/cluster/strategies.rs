//! How a node learns of configMaps and secrets when it does not watch them.

use krablet_cri::RuntimeService;
use krablet_e2e::cluster_stage::{Joining, PODS};
use krablet_e2e::manifest::{shell, single, with};
use krablet_e2e::{Member, status};
use krablet_testbed::ControlPlaneOptions;
use serde_json::{Value, json};

use crate::inside::{inside, running_id, says, waits};
use crate::volumes::{at, config_map, looked_into, secret};

/// What a pod is shown of its objects, and what its first process was told of them.
const SHOWN: &str = "cat /c/v /s/v";
const TOLD: &str = "echo $X$Y";

/// A node that looks at its pods often.
async fn node_by(main: &Member, name: &str, strategy: &str) -> Member {
    let joining = Joining {
        config: json!({
            "configMapAndSecretChangeDetectionStrategy": strategy,
            "syncFrequency": "2s",
        }),
        ..Joining::default()
    };
    let mut node = main.prepared_beside(name, joining).await;
    node.start().await;
    node
}

/// A pod with the configMap and the secret of this name in volumes and variables. Its label is shown after them.
fn referring(name: &str, objects: &str) -> Value {
    let key = |kind: &str| json!({kind: {"name": objects, "key": "v"}});
    let env = json!([
        {"name": "X", "valueFrom": key("configMapKeyRef")},
        {"name": "Y", "valueFrom": key("secretKeyRef")},
    ]);
    let mounts = json!([at("c", "/c"), at("s", "/s"), at("l", "/l")]);
    let mut manifest = single(name, with(looked_into(mounts), json!({"env": env})));
    manifest["metadata"]["labels"] = json!({"v": "0"});
    manifest["spec"]["volumes"] = json!([
        {"name": "c", "configMap": {"name": objects}},
        {"name": "s", "projected": {"sources": [{"secret": {"name": objects}}]}},
        {"name": "l", "downwardAPI": {"items": [{"path": "v", "fieldRef": {"fieldPath": "metadata.labels['v']"}}]}},
    ]);
    manifest
}

async fn change(node: &Member, name: &str, value: &str) {
    let objects = "/api/v1/namespaces/default";
    for (path, patch) in [
        ("configmaps", json!({"data": {"v": value}})),
        ("secrets", json!({"stringData": {"v": value}})),
    ] {
        let path = format!("{objects}/{path}/{name}");
        node.plane.patch(&path, &patch).await.unwrap();
    }
}

/// Has the agent look at the pod, and waits until it has.
async fn looked_at(node: &Member, pod: &str, mark: &str) {
    let patch = json!({"metadata": {"labels": {"v": mark}}});
    let path = format!("{PODS}/{pod}");
    node.plane.patch(&path, &patch).await.unwrap();
    says(node, pod, "cat /l/v", mark).await;
}

async fn started_again(node: &Member, pod: &str) {
    let id = running_id(node, pod, None).await.unwrap();
    node.stage.runtime.stop_container(&id, 0).await.unwrap();
    node.until(pod, "was started again", |pod| {
        status::all_running(pod)?;
        match status::container(pod, "main")?.restart_count {
            0 => Err(status::shown(pod)),
            _ => Ok(()),
        }
    })
    .await;
}

/// Asked for each time the agent looks at the pod.
pub async fn get(main: &Member) {
    let node = node_by(main, "getting", "Get").await;
    let name = "get-objects";
    config_map(&node, name, json!({"v": "0"})).await;
    secret(&node, name, json!({"v": "0"})).await;
    node.run(&referring(name, name)).await;
    says(&node, name, SHOWN, "00").await;
    says(&node, name, TOLD, "00").await;
    change(&node, name, "1").await;
    looked_at(&node, name, "1").await;
    let shown = inside(&node, name, SHOWN).await;
    assert_eq!(shown.as_deref(), Ok("11"), "the look that showed the label");
    // Without any other reason it comes with the next look.
    change(&node, name, "2").await;
    says(&node, name, SHOWN, "22").await;
    assert_eq!(inside(&node, name, TOLD).await.as_deref(), Ok("00"));
    started_again(&node, name).await;
    says(&node, name, TOLD, "22").await;
    node.end(name).await;
    what_comes_late(&node, "get-late").await;
    node.down().await;
}

/// A container waits for an object, and starts when it is there.
async fn what_comes_late(node: &Member, name: &str) {
    let from = json!({"configMapKeyRef": {"name": name, "key": "v"}});
    let env = json!([{"name": "X", "valueFrom": from}]);
    let container = with(shell("main", "exec sleep 10000"), json!({"env": env}));
    node.create(&single(name, container)).await;
    // The words of the API server, which names what it was asked for.
    let why = format!("configmaps {name:?} not found");
    waits(node, name, "main", "CreateContainerConfigError", &why).await;
    config_map(node, name, json!({"v": "here"})).await;
    node.running(name).await;
    says(node, name, "echo $X", "here").await;
    node.end(name).await;
}

async fn set_ttl(node: &Member, seconds: &str) {
    let path = format!("/api/v1/nodes/{}", node.name);
    let notes = json!({"node.alpha.kubernetes.io/ttl": seconds});
    let patch = json!({"metadata": {"annotations": notes}});
    node.plane.patch(&path, &patch).await.unwrap();
}

/// Asked for again when the answer is older than the Node object allows, and for each pod that is new.
pub async fn cache() {
    let options = ControlPlaneOptions {
        // Otherwise this controller says how old answers may be.
        controller_manager_args: vec!["--controllers=-ttl-controller".to_owned()],
        scheduler: false,
        ..ControlPlaneOptions::default()
    };
    let main = Member::founding(options, "founder").await;
    let node = node_by(&main, "caching", "Cache").await;
    set_ttl(&node, "36000").await;
    let (name, other) = ("cache-objects", "cache-other");
    config_map(&node, name, json!({"v": "0"})).await;
    secret(&node, name, json!({"v": "0"})).await;
    node.run(&referring(name, name)).await;
    says(&node, name, SHOWN, "00").await;
    change(&node, name, "1").await;
    looked_at(&node, name, "1").await;
    let shown = inside(&node, name, SHOWN).await;
    assert_eq!(shown.as_deref(), Ok("00"), "the answer is good for hours");
    // Who is new is told what is true now, and the others with it.
    node.run(&referring(other, name)).await;
    says(&node, other, SHOWN, "11").await;
    says(&node, other, TOLD, "11").await;
    says(&node, name, SHOWN, "11").await;
    assert_eq!(inside(&node, name, TOLD).await.as_deref(), Ok("00"));
    change(&node, name, "2").await;
    set_ttl(&node, "0").await;
    says(&node, name, SHOWN, "22").await;
    says(&node, other, SHOWN, "22").await;
    started_again(&node, name).await;
    says(&node, name, TOLD, "22").await;
    crate::inside::end_all(&node, &[name, other]).await;
    what_comes_late(&node, "cache-late").await;
    node.down().await;
    main.down().await;
}
