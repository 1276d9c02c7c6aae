//! What is told of volumes beside whether they are there.

use krablet_e2e::Member;
use krablet_e2e::manifest::single;
use serde_json::json;

use crate::inside::{end_all, says};
use crate::volumes::{at, bound_claim, looked_into, on_node, release_claim};

/// A volume keeps the group it was given first; who asks for another one is told.
pub async fn a_group_that_others_did_not_give(node: &Member) {
    let (first, second, third) = ("vol-group-first", "vol-group-same", "vol-group-other");
    let source =
        json!({"local": {"path": node.stage.scratch(first)}, "nodeAffinity": on_node(node)});
    bound_claim(node, first, source).await;
    for (name, group) in [(first, 2000), (second, 2000), (third, 3000)] {
        let mut manifest = single(name, looked_into(json!([at("data", "/data")])));
        manifest["spec"]["securityContext"] = json!({"fsGroup": group});
        manifest["spec"]["volumes"] =
            json!([{"name": "data", "persistentVolumeClaim": {"claimName": first}}]);
        node.run(&manifest).await;
        says(node, name, "stat -c %g /data", "2000").await;
    }
    let why = format!(
        "The requested fsGroup is 3000, but the volume {first} has GID 2000. The volume may not be shareable."
    );
    let event = node.event(third, "AlreadyMountedVolume", &why).await;
    assert_eq!(event.type_.as_deref(), Some("Warning"));
    end_all(node, &[first, second, third]).await;
    let told = node.kubectl(&["get", "events", "--no-headers"]).await;
    let told: Vec<&str> = (told.lines())
        .filter(|line| line.contains("AlreadyMountedVolume"))
        .collect();
    assert_eq!(told.len(), 1, "{told:?}");
    release_claim(node, first).await;
}
