//! Static pods as the cluster sees them.

use k8s_openapi::api::core::v1::Pod;
use krablet_e2e::cluster_stage::PODS;
use krablet_e2e::manifest::{shell, single, tool};
use krablet_e2e::{Member, status};
use krablet_testbed::images;
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

/// The uid of the static pod that the mirror was made for.
pub fn hash_shown(mirror: &Pod) -> String {
    annotation(mirror, "kubernetes.io/config.mirror")
}

/// What somebody writes into a mirror is no matter to the pod, and what he tells of it does not stand.
async fn is_edited(node: &Member, mirror: &Pod) {
    let full = mirror.metadata.name.as_deref().unwrap();
    let path = format!("{PODS}/{full}");
    let mut containers = json!(mirror.spec.as_ref().unwrap().containers);
    containers[0]["image"] = json!(images::TOOL_V2);
    let edit = json!({
        "metadata": {"labels": {"edited": "by-hand"}},
        "spec": {"containers": containers},
    });
    node.plane.patch(&path, &edit).await.unwrap();
    let told = json!({"status": {"message": "told by hand"}});
    let path = format!("{path}/status");
    node.plane.patch(&path, &told).await.unwrap();
    let edited = node
        .until(
            full,
            "tells of the pod again",
            |pod| match status::status(pod)?.message {
                None => Ok(pod.clone()),
                Some(_) => Err(status::shown(pod)),
            },
        )
        .await;
    status::all_running(&edited).unwrap();
    assert_eq!(
        (status::uid(&edited), id(&edited)),
        (status::uid(mirror), id(mirror))
    );
    assert_eq!(image(&edited), images::TOOL_V2, "it stays as it was edited");
}

fn image(pod: &Pod) -> String {
    let main = &pod.spec.as_ref().unwrap().containers[0];
    main.image.clone().unwrap_or_default()
}

/// Deletes the mirror, and returns the next one: of the same pod, as its manifest says.
async fn is_deleted(node: &Member, name: &str, old: &Pod, query: &str) -> Pod {
    let full = old.metadata.name.as_deref().unwrap();
    node.plane
        .delete(&format!("{PODS}/{full}{query}"))
        .await
        .unwrap();
    let next = mirror(node, name, &[&status::uid(old)]).await;
    assert_eq!(id(old), id(&next));
    let main = status::container(&next, "main").unwrap();
    assert_eq!(
        (main.restart_count, image(&next)),
        (0, images::TOOL.to_owned())
    );
    let labels = next.metadata.labels.clone().unwrap_or_default();
    assert!(!labels.contains_key("edited"), "{labels:?}");
    next
}

pub async fn follow_the_manifest(node: &Member) {
    let name = "mirrored";
    let full = format!("{name}-{}", node.name);
    node.stage
        .apply(name, &single(name, tool("main", &["hold"])));
    let first = mirror(node, name, &[]).await;
    let uid = static_uid(&first);
    assert_eq!(hash_shown(&first), uid);
    assert_eq!(annotation(&first, "kubernetes.io/config.source"), "file");
    let owner = first.metadata.owner_references.clone().unwrap().remove(0);
    let object = node.ready().await;
    assert_eq!(
        (owner.kind.as_str(), Some(owner.uid)),
        ("Node", object.metadata.uid)
    );
    assert_eq!(node.containers(&uid).await.len(), 1);

    is_edited(node, &first).await;
    let second = is_deleted(node, name, &first, "?gracePeriodSeconds=0").await;
    let third = is_deleted(node, name, &second, "").await;

    let changed = shell("main", "exec /tool hold");
    node.stage.apply(name, &single(name, changed));
    let known = [&first, &second, &third].map(status::uid);
    let last = mirror(node, name, &[&known[0], &known[1], &known[2]]).await;
    assert_ne!(static_uid(&last), uid);
    assert_eq!(hash_shown(&last), static_uid(&last));
    assert_eq!(
        last.spec.as_ref().unwrap().containers[0]
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
    node.gone(&full, &static_uid(&last)).await;
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
