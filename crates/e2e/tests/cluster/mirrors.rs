//! Static pods as the cluster sees them.

use k8s_openapi::api::core::v1::Pod;
use krablet_e2e::manifest::{shell, single, tool};
use krablet_e2e::{Member, status};

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
