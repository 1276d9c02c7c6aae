//! The Node object comes and goes.

use krablet_e2e::manifest::{single, tool};
use krablet_e2e::stage::options;
use krablet_e2e::{LONG, Member, status};
use serde_json::json;

use crate::mirrors::{mirror, static_uid};

/// Somebody deletes the Node: it is made anew, and its pods go on.
pub async fn deleted_and_back(main: &Member) {
    let node = main.beside("deleted").await;
    let before = node
        .run(&single("stays-here", tool("main", &["hold"])))
        .await;
    let name = "has-a-mirror";
    node.stage
        .apply(name, &single(name, tool("main", &["hold"])));
    let first = mirror(&node, name, &[]).await;
    let old = node.ready().await.metadata.uid;
    node.plane
        .delete(&format!("/api/v1/nodes/{}", node.name))
        .await
        .unwrap();
    node.wait("node", "is made anew", async || match node.node().await {
        Ok(object) if object.metadata.uid != old => Ok(()),
        other => Err(format!("{:?}", other.map(|object| object.metadata.uid))),
    })
    .await;
    let object = node.ready().await;
    let second = mirror(&node, name, &[&status::uid(&first)]).await;
    let owner = second.metadata.owner_references.clone().unwrap().remove(0);
    assert_eq!(Some(owner.uid), object.metadata.uid);
    assert_eq!(static_uid(&first), static_uid(&second));
    node.wait("lease", "belongs to the new one", async || {
        let owners = node.lease().await?.metadata.owner_references;
        match owners
            .iter()
            .flatten()
            .any(|o| Some(&o.uid) == object.metadata.uid.as_ref())
        {
            true => Ok(()),
            false => Err(format!("{owners:?}")),
        }
    })
    .await;
    let after = node.running("stays-here").await;
    let id = |pod| status::id(status::container(pod, "main").unwrap());
    assert_eq!(status::uid(&before), status::uid(&after));
    assert_eq!((id(&before), id(&first)), (id(&after), id(&second)));
    node.run(&single("comes-afterwards", tool("main", &["hold"])))
        .await;
    for name in ["stays-here", "comes-afterwards"] {
        node.end(name).await;
    }
    node.stage.remove(name);
    node.empty().await;
    node.down().await;
}

/// Two agents by mistake under one name.
pub async fn second_agent_on_a_root_directory_refuses(node: &Member) {
    let mut wish = options(json!({"staticPodPath": null}));
    wish.name = "second".to_owned();
    wish.args.extend([
        format!("--root-dir={}", node.stage.krablet.root_dir().display()),
        format!("--hostname-override={}", node.name),
        format!("--kubeconfig={}", node.dir().join("kubelet.conf").display()),
        format!("--cert-dir={}", node.dir().join("pki").display()),
    ]);
    let mut second = node.stage.bed.prepare_krablet(wish).unwrap();
    second.start().unwrap();
    let ended = second.wait(LONG).await.unwrap();
    assert_eq!(ended.code(), Some(1));
    let log = second.log();
    assert_eq!(log.matches("another agent holds").count(), 1, "{log}");
    node.ready().await;
}
