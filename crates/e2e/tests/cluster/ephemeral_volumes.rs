//! Claims that are made for one pod, and claims that one pod at a time may have.

use krablet_e2e::manifest::{single, with};
use krablet_e2e::{Member, status};
use krablet_testbed::ControlPlaneOptions;
use serde_json::{Value, json};

use crate::inside::{end_all, says};
use crate::volumes::{at, looked_into, on_node};

const CLAIMS: &str = "/api/v1/namespaces/default/persistentvolumeclaims";
const VOLUMES: &str = "/api/v1/persistentvolumes";

/// Claims and volumes find each other by this.
fn shape(class: &str, mode: &str) -> Value {
    json!({"accessModes": [mode], "storageClassName": class})
}

fn wanted(class: &str, mode: &str) -> Value {
    let size = json!({"resources": {"requests": {"storage": "1Mi"}}});
    with(shape(class, mode), size)
}

async fn volume(node: &Member, name: &str, class: &str, mode: &str, source: Value) {
    let rest = json!({"capacity": {"storage": "1Mi"}, "persistentVolumeReclaimPolicy": "Retain"});
    let spec = with(with(shape(class, mode), rest), source);
    let object = json!({"metadata": {"name": name}, "spec": spec});
    node.plane.create(VOLUMES, &object).await.unwrap();
}

fn local(node: &Member, name: &str) -> Value {
    let path = node.stage.scratch(name);
    std::fs::write(path.join("from"), name).unwrap();
    json!({"local": {"path": path}, "nodeAffinity": on_node(node)})
}

/// A pod whose one volume is this.
fn with_volume(name: &str, source: Value) -> Value {
    let mut manifest = single(name, looked_into(json!([at("data", "/data")])));
    manifest["spec"]["volumes"] = json!([with(json!({"name": "data"}), source)]);
    manifest
}

fn ephemeral(name: &str, class: &str) -> Value {
    let template = json!({"spec": wanted(class, "ReadWriteOnce")});
    with_volume(
        name,
        json!({"ephemeral": {"volumeClaimTemplate": template}}),
    )
}

/// With the controllers that make claims, bind them, and take them away.
pub async fn with_the_real_controllers() {
    let controllers = [
        "ephemeral-volume-controller",
        "persistentvolume-binder-controller",
        "persistentvolumeclaim-protection-controller",
    ];
    let options = ControlPlaneOptions {
        controller_manager_args: vec![format!("--controllers={}", controllers.join(","))],
        scheduler: false,
        ..ControlPlaneOptions::default()
    };
    let node = Member::founding(options, "storing").await;
    made_for_a_pod(&node).await;
    somebody_elses_claim(&node).await;
    for_one_pod_at_a_time(&node).await;
    node.down().await;
}

/// The pod waits until its claim is bound; the claim goes with it, what was written stays.
async fn made_for_a_pod(node: &Member) {
    let (name, class) = ("eph", "eph-class");
    node.create(&ephemeral(name, class)).await;
    let why = "Unable to attach or mount volumes: unmounted volumes=[data], unattached volumes=[], failed to process volumes=[data]: error processing PVC default/eph-data: PVC is not bound";
    node.event(name, "FailedMount", why).await;
    volume(
        node,
        "eph-pv",
        class,
        "ReadWriteOnce",
        local(node, "eph-pv"),
    )
    .await;
    let pod = node.running(name).await;
    says(node, name, "cat /data/from", "eph-pv").await;
    says(node, name, "echo kept > /data/new && cat /data/new", "kept").await;
    let path = format!("{CLAIMS}/eph-data");
    let claim = node.plane.get_json(&path).await.unwrap();
    assert_eq!(claim["spec"]["volumeName"], "eph-pv");
    let owner = &claim["metadata"]["ownerReferences"][0];
    assert_eq!(owner["uid"], status::uid(&pod));
    node.end(name).await;
    node.wait(name, "its claim is gone", async || {
        match node.plane.get_json(&path).await {
            Ok(claim) => Err(claim.to_string()),
            Err(_) => Ok(()),
        }
    })
    .await;
    let kept = std::fs::read_to_string(node.stage.scratch("eph-pv").join("new"));
    assert_eq!(kept.unwrap(), "kept\n");

    // The same by a path of the host, with all there before the pod.
    let (name, class) = ("eph-host", "eph-host-class");
    let path = node.stage.scratch(name);
    std::fs::write(path.join("from"), name).unwrap();
    let source = json!({"hostPath": {"path": path}});
    volume(node, "eph-host-pv", class, "ReadWriteOnce", source).await;
    node.run(&ephemeral(name, class)).await;
    says(node, name, "cat /data/from", name).await;
    node.end(name).await;
}

/// A claim of the right name that was made for nobody is not the pod's.
async fn somebody_elses_claim(node: &Member) {
    let (name, class) = ("eph-other", "eph-other-class");
    volume(
        node,
        "eph-other-pv",
        class,
        "ReadWriteOnce",
        local(node, "eph-other-pv"),
    )
    .await;
    let claim = "eph-other-data";
    let object = json!({"metadata": {"name": claim}, "spec": wanted(class, "ReadWriteOnce")});
    node.plane.create(CLAIMS, &object).await.unwrap();
    node.create(&ephemeral(name, class)).await;
    let why =
        "PVC default/eph-other-data was not created for pod default/eph-other (pod is not owner)";
    node.event(name, "FailedMount", why).await;
    node.end(name).await;
}

/// Whoever comes second waits until nothing is left of the first.
async fn for_one_pod_at_a_time(node: &Member) {
    let (claim, class, mode) = ("one", "one-class", "ReadWriteOncePod");
    volume(node, "one-pv", class, mode, local(node, "one-pv")).await;
    let object = json!({"metadata": {"name": claim}, "spec": wanted(class, mode)});
    node.plane.create(CLAIMS, &object).await.unwrap();
    let user =
        |name: &str| with_volume(name, json!({"persistentVolumeClaim": {"claimName": claim}}));
    node.run(&user("one-first")).await;
    says(
        node,
        "one-first",
        "echo mine > /data/mine && cat /data/from",
        "one-pv",
    )
    .await;
    node.create(&user("one-second")).await;
    let why = "MountVolume.SetUp failed for volume \"one-pv\" : volume uses the ReadWriteOncePod access mode and is already in use by another pod";
    node.event("one-second", "FailedMount", why).await;
    node.until("one-second", "waits", |pod| {
        let (reason, _) = status::waiting(pod, "main")?;
        match reason == "ContainerCreating" {
            true => Ok(()),
            false => Err(status::shown(pod)),
        }
    })
    .await;
    status::all_running(&node.pod("one-first").await.unwrap()).unwrap();
    node.end("one-first").await;
    node.running("one-second").await;
    says(node, "one-second", "cat /data/mine", "mine").await;
    end_all(node, &["one-second"]).await;
}
