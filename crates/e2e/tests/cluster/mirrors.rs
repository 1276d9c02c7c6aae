//! Static pods as the cluster sees them.

use k8s_openapi::api::core::v1::Pod;
use krablet_e2e::manifest::{shell, single, tool};
use krablet_e2e::{Member, status};
use serde_json::json;

/// The mirror of the static pod, whose uid is not one of these.
pub async fn mirror(node: &Member, name: &str, not: &[&str]) -> Pod {
    let full = format!("{name}-{}", node.name);
    node.until(&full, "is mirrored", |pod| {
        status::all_running(pod)?;
        let known = not.contains(&status::uid(pod).as_str());
        match !known && status::condition(pod, "Ready") {
            true => Ok(pod.clone()),
            false => Err(format!("{:?} {}", pod.metadata.uid, status::shown(pod))),
        }
    })
    .await
}

fn annotation(pod: &Pod, key: &str) -> String {
    let all = pod.metadata.annotations.clone().unwrap_or_default();
    all.get(key).cloned().unwrap_or_default()
}

fn id(pod: &Pod) -> String {
    status::id(status::container(pod, "main").unwrap())
}

/// The static pod's own uid, which the runtime knows it by.
pub fn static_uid(mirror: &Pod) -> String {
    annotation(mirror, "kubernetes.io/config.hash")
}

pub async fn follow_the_manifest(node: &Member) {
    let name = "mirrored";
    let full = format!("{name}-{}", node.name);
    node.stage
        .apply(name, &single(name, tool("main", &["hold"])));
    let first = mirror(node, name, &[]).await;
    let uid = static_uid(&first);
    assert_eq!(annotation(&first, "kubernetes.io/config.mirror"), uid);
    assert_eq!(annotation(&first, "kubernetes.io/config.source"), "file");
    let owner = first.metadata.owner_references.clone().unwrap().remove(0);
    let object = node.ready().await;
    assert_eq!(
        (owner.kind.as_str(), Some(owner.uid)),
        ("Node", object.metadata.uid)
    );
    assert_eq!(node.containers(&uid).await.len(), 1);

    // Deleting the mirror does not touch the pod.
    node.delete(&full).await;
    let second = mirror(node, name, &[&status::uid(&first)]).await;
    assert_eq!(id(&first), id(&second));

    let changed = shell("main", "exec /tool hold");
    node.stage.apply(name, &single(name, changed));
    let known = [status::uid(&first), status::uid(&second)];
    let third = mirror(node, name, &[&known[0], &known[1]]).await;
    assert_ne!(static_uid(&third), uid);
    assert_eq!(
        annotation(&third, "kubernetes.io/config.mirror"),
        static_uid(&third)
    );
    assert_eq!(
        third.spec.as_ref().unwrap().containers[0]
            .command
            .as_ref()
            .unwrap()[0],
        "/bin/sh"
    );
    assert_eq!(node.alive(&uid).await, Vec::<String>::new());

    node.stage.remove(name);
    node.wait(&full, "its mirror goes", async || {
        match node.pod(&full).await {
            Ok(pod) => Err(status::shown(&pod)),
            Err(_) => Ok(()),
        }
    })
    .await;
    node.gone(&full, &static_uid(&third)).await;
}

/// It is told once, others do not wait for it, and it comes when it can.
pub async fn one_that_is_refused(node: &Member) {
    let mut lost = single("lost", tool("main", &["hold"]));
    lost["metadata"]["namespace"] = json!("nowhere");
    node.stage.apply("lost", &lost);
    let full = format!("lost-{}", node.name);
    let refused = || {
        let log = node.stage.krablet.log();
        let told = |line: &&str| line.contains(&full) && line.contains("refuses to bring a mirror");
        log.lines().filter(told).count()
    };
    node.wait("lost", "is refused", async || match refused() {
        0 => Err("nothing is told".to_owned()),
        _ => Ok(()),
    })
    .await;
    node.stage
        .apply("found", &single("found", tool("main", &["hold"])));
    let found = mirror(node, "found", &[]).await;
    assert_eq!(refused(), 1);

    let nowhere = json!({"metadata": {"name": "nowhere"}});
    let namespaces = "/api/v1/namespaces";
    node.plane.create(namespaces, &nowhere).await.unwrap();
    let pods = format!("{namespaces}/nowhere/pods");
    let path = format!("{pods}/{full}");
    let uid = node
        .wait("lost", "is mirrored", async || {
            let pod: Pod = node.get(&path).await?;
            status::all_running(&pod)?;
            Ok(static_uid(&pod))
        })
        .await;
    node.stage.remove("lost");
    node.stage.remove("found");
    node.wait("lost", "its mirror goes", async || {
        let left: Vec<Pod> = node.list(&pods).await?;
        match left.first() {
            Some(pod) => Err(status::shown(pod)),
            None => Ok(()),
        }
    })
    .await;
    node.gone(&full, &uid).await;
    node.gone(&format!("found-{}", node.name), &static_uid(&found))
        .await;
    let path = format!("{namespaces}/nowhere");
    node.plane.delete(&path).await.unwrap();
}
