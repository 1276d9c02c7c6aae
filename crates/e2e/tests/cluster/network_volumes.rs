//! Volumes that the host's own tools bring: what is told where a tool, a server or a disk is not there.

use std::path::Path;

use krablet_e2e::Member;
use krablet_e2e::manifest::single;
use serde_json::{Value, json};

use crate::inside::{end_all, inside};
use crate::volumes::{at, bound_claim, looked_into, on_node, release_claim};

fn mounting(name: &str, volume: Value) -> Value {
    let mut manifest = single(name, looked_into(json!([at("net", "/net")])));
    manifest["spec"]["volumes"] = json!([volume]);
    manifest
}

/// Where a program of the machine would be found.
fn is_installed(program: &str) -> bool {
    let path = std::env::var("PATH").unwrap_or_default();
    let mut dirs = path.split(':').chain(["/sbin", "/usr/sbin"]);
    dirs.any(|dir| Path::new(dir).join(program).exists())
}

pub async fn what_the_host_cannot_bring(node: &Member) {
    let nfs =
        json!({"name": "net", "nfs": {"server": "127.0.0.1", "path": "/none", "readOnly": true}});
    node.create(&mounting("net-nfs", nfs)).await;
    let disk = json!({"targetPortal": "127.0.0.1", "iqn": "iqn.2026-01.test:none", "lun": 0});
    node.create(&mounting(
        "net-iscsi",
        json!({"name": "net", "iscsi": disk}),
    ))
    .await;
    let fabric = json!({"targetWWNs": ["500a0981891b8dc5"], "lun": 0});
    node.create(&mounting("net-fc", json!({"name": "net", "fc": fabric})))
        .await;

    let cloned = json!({"name": "net", "gitRepo": {"repository": "https://192.0.2.1/x"}});
    node.create(&mounting("net-git", cloned)).await;
    let why = "MountVolume.SetUp failed for volume \"net\" : git-repo volume plugin has been disabled; if necessary, it may be re-enabled by enabling the feature-gate `GitRepoVolumeDriver`";
    node.event("net-git", "FailedMount", why).await;

    let told = node
        .event(
            "net-nfs",
            "FailedMount",
            "MountVolume.SetUp failed for volume \"net\" : mount failed: exit status 32\nMounting command: mount\nMounting arguments: -t nfs -o ro 127.0.0.1:/none ",
        )
        .await;
    let message = told.message.unwrap_or_default();
    assert!(message.contains("\nOutput: mount"), "{message}");
    let why = match is_installed("iscsiadm") {
        true => "",
        false => "exec: \"iscsiadm\": executable file not found in $PATH",
    };
    let why = format!("MountVolume.WaitForAttach failed for volume \"net\" : {why}");
    node.event("net-iscsi", "FailedMount", &why).await;
    let why = "MountVolume.WaitForAttach failed for volume \"net\" : no fc disk found";
    node.event("net-fc", "FailedMount", why).await;

    // Passwords that are not there, of a pod and of a volume behind a claim.
    let asked = |secret: Value| {
        let mut disk = disk.clone();
        disk["chapAuthSession"] = json!(true);
        disk["secretRef"] = secret;
        disk
    };
    let own = json!({"name": "net", "iscsi": asked(json!({"name": "net-none"}))});
    node.create(&mounting("net-chap", own)).await;
    let why = "MountVolume.NewMounter initialization failed for volume \"net\" : couldn't get secret default/net-none error: secret \"net-none\" not found";
    node.event("net-chap", "FailedMount", why).await;
    let claim = "net-claim";
    let elsewhere = asked(json!({"name": "net-none", "namespace": "kube-public"}));
    bound_claim(node, claim, json!({"iscsi": elsewhere})).await;
    let claimed = json!({"name": "net", "persistentVolumeClaim": {"claimName": claim}});
    node.create(&mounting(claim, claimed)).await;
    let why = format!(
        "MountVolume.NewMounter initialization failed for volume \"{claim}\" : couldn't get secret kube-public/net-none error: "
    );
    let told = node.event(claim, "FailedMount", &why).await;
    let message = told.message.unwrap_or_default();
    assert!(
        message.ends_with("secrets \"net-none\" not found"),
        "{message}"
    );
    end_all(
        node,
        &[
            "net-nfs",
            "net-iscsi",
            "net-fc",
            "net-git",
            "net-chap",
            "net-claim",
        ],
    )
    .await;
    release_claim(node, claim).await;
}

/// What a group has already is not looked through again, unless that is asked for.
pub async fn a_group_is_given_a_volume_once(node: &Member) {
    let name = "grouped-once";
    let scratch = node.stage.scratch(name);
    std::fs::write(scratch.join("old"), "x").unwrap();
    let source = json!({"local": {"path": scratch}, "nodeAffinity": on_node(node)});
    bound_claim(node, name, source).await;
    let shown = async |policy: &str| {
        let claimed = json!({"name": "net", "persistentVolumeClaim": {"claimName": name}});
        let mut manifest = mounting(name, claimed);
        manifest["spec"]["securityContext"] =
            json!({"fsGroup": 2000, "fsGroupChangePolicy": policy});
        node.run(&manifest).await;
        let seen = inside(node, name, "stat -c '%a %g' /net/old /net/new || true").await;
        node.end(name).await;
        seen.unwrap()
    };
    assert_eq!(shown("OnRootMismatch").await, "664 2000");
    std::fs::write(scratch.join("new"), "x").unwrap();
    std::os::unix::fs::chown(scratch.join("new"), None, Some(0)).unwrap();
    assert_eq!(shown("OnRootMismatch").await, "664 2000\n644 0");
    assert_eq!(shown("Always").await, "664 2000\n664 2000");
    release_claim(node, name).await;
}
