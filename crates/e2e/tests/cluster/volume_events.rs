//! What is told of volumes beside whether they are there: of those that others gave to somebody else, and of those that
//! cannot be had.

use std::fs;
use std::os::unix::net::UnixListener;

use krablet_e2e::Member;
use krablet_e2e::manifest::{single, with};
use serde_json::{Value, json};

use crate::inside::{end_all, says};
use crate::volumes::{CLAIMS, at, bound_claim, looked_into, on_node, release_claim};

/// Keeps a claim for the pods that use it.
const PROTECTION: &str = "kubernetes.io/pvc-protection";
/// Keeps it for somebody else.
const HOLD: &str = "example.com/hold";

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

/// A claim that is being deleted, and goes when its finalizer does.
async fn leaving_claim(node: &Member, name: &str) {
    let path = format!("{CLAIMS}/{name}");
    bound_claim(node, name, json!({"hostPath": {"path": "/etc"}})).await;
    let held = json!({"metadata": {"finalizers": [PROTECTION, HOLD]}});
    node.plane.patch(&path, &held).await.unwrap();
    node.plane.delete(&path).await.unwrap();
    // As long as it is kept for pods, they may have it.
    let held = json!({"metadata": {"finalizers": [HOLD]}});
    node.plane.patch(&path, &held).await.unwrap();
}

/// Each volume of one pod is told of, whatever the others lack.
pub async fn claims_that_cannot_be_had(node: &Member) {
    let (name, flat, leaving) = ("claims-bad", "claims-flat", "claims-leaving");
    bound_claim(node, flat, json!({"hostPath": {"path": "/etc"}})).await;
    leaving_claim(node, leaving).await;
    let devices = json!({"volumeDevices": [{"name": "flat", "devicePath": "/dev/flat"}]});
    let mounts = json!([at("none", "/none"), at("leaving", "/leaving")]);
    let mut manifest = single(name, with(looked_into(mounts), devices));
    let claim = |volume: &str, claim: &str| json!({"name": volume, "persistentVolumeClaim": {"claimName": claim}});
    manifest["spec"]["volumes"] = json!([
        claim("none", "claims-none"),
        claim("flat", flat),
        claim("leaving", leaving)
    ]);
    node.create(&manifest).await;
    for why in [
        "error processing PVC default/claims-none: failed to fetch PVC from API server: persistentvolumeclaims \"claims-none\" not found",
        "volume flat has volumeMode Filesystem, but is specified in volumeDevices",
        "error processing PVC default/claims-leaving: PVC is being deleted",
    ] {
        node.event(name, "FailedMount", why).await;
    }
    node.end(name).await;
    let free = json!({"metadata": {"finalizers": null}});
    let path = format!("{CLAIMS}/{leaving}");
    node.plane.patch(&path, &free).await.unwrap();
    node.plane
        .delete(&format!("/api/v1/persistentvolumes/{leaving}"))
        .await
        .unwrap();
    release_claim(node, flat).await;
}

/// What lies on the node has to be of the kind that the pod expects; what is not there may be made.
pub async fn kinds_of_host_paths(node: &Member) {
    let (good, bad) = ("host-kinds", "host-kinds-bad");
    let dir = node.stage.scratch(good);
    let place = |name: &str| dir.join(name).display().to_string();
    let whole = dir.display().to_string();
    fs::write(place("file"), "").unwrap();
    let socket = UnixListener::bind(place("socket")).unwrap();
    let kinds = [
        ("File", place("file"), "regular empty file"),
        ("FileOrCreate", place("new"), "regular empty file"),
        ("Socket", place("socket"), "socket"),
        (
            "CharDevice",
            "/dev/null".to_owned(),
            "character special file",
        ),
        ("Directory", whole.clone(), "directory"),
        ("DirectoryOrCreate", place("made/below"), "directory"),
    ];
    let volumes = kinds.iter().map(|(kind, path, _)| of_kind(kind, path));
    node.create(&with_all(good, volumes.collect())).await;
    let wrong = [
        ("File", whole.clone(), "file"),
        ("FileOrCreate", whole.clone(), "file"),
        ("Socket", place("file"), "socket file"),
        ("CharDevice", place("file"), "character device"),
        ("BlockDevice", "/dev/null".to_owned(), "block device"),
        ("Directory", place("absent"), "directory"),
        ("DirectoryOrCreate", place("file"), "directory"),
    ];
    let volumes = wrong.iter().map(|(kind, path, _)| of_kind(kind, path));
    node.create(&with_all(bad, volumes.collect())).await;
    for (kind, path, expected) in wrong {
        let volume = kind.to_lowercase();
        let why = format!(
            "MountVolume.SetUp failed for volume {volume:?} : hostPath type check failed: {path} is not a {expected}"
        );
        node.event(bad, "FailedMount", &why).await;
    }
    node.running(good).await;
    for (kind, _, expected) in kinds {
        let script = format!("stat -c %F /{}", kind.to_lowercase());
        says(node, good, &script, expected).await;
    }
    end_all(node, &[good, bad]).await;
    drop(socket);
}

fn of_kind(kind: &str, path: &str) -> Value {
    json!({"name": kind.to_lowercase(), "hostPath": {"path": path, "type": kind}})
}

/// A pod that sees each volume below its name.
fn with_all(name: &str, volumes: Vec<Value>) -> Value {
    let names = volumes.iter().filter_map(|volume| volume["name"].as_str());
    let mounts: Vec<Value> = names.map(|name| at(name, &format!("/{name}"))).collect();
    let mut manifest = single(name, looked_into(json!(mounts)));
    manifest["spec"]["volumes"] = json!(volumes);
    manifest
}
