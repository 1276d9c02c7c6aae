//! Every way in which a pod of the API server goes.

use krablet_cri::v1;
use krablet_e2e::manifest::{diary, pod, scratch_volume, scratched, shell, single, tool, with};
use krablet_e2e::{Member, status};
use serde_json::{Value, json};

/// A pod that writes down its beginning and its end.
fn writing(node: &Member, name: &str, grace: u32) -> (std::path::PathBuf, Value) {
    let scratch = node.stage.scratch(name);
    let spec = json!({
        "terminationGracePeriodSeconds": grace,
        "volumes": [scratch_volume(&scratch)],
        "containers": [scratched(shell("main", &diary("main")))],
    });
    (scratch, pod(name, spec))
}

/// The object stays until the containers have ended in good order.
pub async fn graceful(node: &Member) {
    let name = "goes-gracefully";
    let (scratch, mut manifest) = writing(node, name, 60);
    let slowly = "echo pre-stop >> /scratch/diary; until test -e /scratch/go; do sleep 0.1; done";
    manifest["spec"]["containers"][0]["lifecycle"] =
        json!({"preStop": {"exec": {"command": ["/bin/sh", "-c", slowly]}}});
    let uid = status::uid(&node.run(&manifest).await);
    node.delete(name).await;
    node.stage
        .diary(name, &scratch, &["start main", "pre-stop"])
        .await;
    let leaving = node.pod(name).await.unwrap();
    assert!(leaving.metadata.deletion_timestamp.is_some());
    status::running(&leaving, "main").unwrap();
    std::fs::write(scratch.join("go"), "").unwrap();
    node.gone(name, &uid).await;
    let written = node.stage.lines(&scratch, "diary");
    assert_eq!(written, ["start main", "pre-stop", "stop main"]);
}

/// The object goes at once; what it stood for follows.
pub async fn forced(node: &Member) {
    let name = "goes-by-force";
    let (_, manifest) = writing(node, name, 60);
    let uid = status::uid(&node.run(&manifest).await);
    let stubborn = single("goes-by-force-too", tool("main", &["ignore-term"]));
    let other = status::uid(&node.run(&stubborn).await);
    node.kubectl(&[
        "delete",
        "pod",
        name,
        "goes-by-force-too",
        "--grace-period=0",
        "--force",
        "--wait=false",
    ])
    .await;
    assert!(node.pod(name).await.is_err());
    node.gone(name, &uid).await;
    node.gone("goes-by-force-too", &other).await;
}

/// At four moments of a start: nothing of it may stay behind.
pub async fn during_the_start(node: &Member) {
    for moment in 0..4 {
        let name = format!("goes-early-{moment}");
        let spec = json!({
            "initContainers": [shell("first", "sleep 0.3")],
            "containers": [with(
                tool("main", &["hold"]),
                json!({"lifecycle": {"postStart": {"exec": {"command": ["/bin/sh", "-c", "sleep 0.3"]}}}}),
            )],
        });
        let uid = status::uid(&node.create(&pod(&name, spec)).await);
        node.wait(&name, "has come that far", async || {
            let containers = node.containers(&uid).await;
            let running = containers
                .iter()
                .any(|c| c.state == v1::ContainerState::ContainerRunning as i32);
            let come = match moment {
                0 => true,
                1 => !node.alive(&uid).await.is_empty(),
                2 => running,
                _ => containers.len() > 1 && running,
            };
            match come {
                true => Ok(()),
                false => Err(format!("{containers:?}")),
            }
        })
        .await;
        node.delete(&name).await;
        node.gone(&name, &uid).await;
    }
}

pub async fn of_a_pod_in_back_off(node: &Member) {
    let name = "goes-in-back-off";
    let missing =
        json!({"name": "missing", "image": "krablet.local/none:v1", "imagePullPolicy": "Never"});
    let spec = json!({"containers": [tool("main", &["exit", "1"]), missing]});
    let uid = status::uid(&node.create(&pod(name, spec)).await);
    node.until(name, "is in back-off", |pod| {
        let (reason, _) = status::waiting(pod, "main")?;
        let (image, _) = status::waiting(pod, "missing")?;
        match (reason.as_str(), image.as_str()) {
            ("CrashLoopBackOff", "ErrImageNeverPull") => Ok(()),
            _ => Err(status::shown(pod)),
        }
    })
    .await;
    node.delete(name).await;
    node.gone(name, &uid).await;
}

/// The grace period is for the hook as well.
pub async fn with_a_pre_stop_that_hangs(node: &Member) {
    let name = "goes-though-it-hangs";
    let container = with(
        tool("main", &["ignore-term"]),
        json!({"lifecycle": {"preStop": {"exec": {"command": ["/bin/sh", "-c", "sleep 1000"]}}}}),
    );
    let spec = json!({"terminationGracePeriodSeconds": 3, "containers": [container]});
    let uid = status::uid(&node.run(&pod(name, spec)).await);
    node.delete(name).await;
    node.gone(name, &uid).await;
}

/// The old pod has ended before the new one of its name begins.
pub async fn and_again_under_the_same_name(node: &Member) {
    let name = "goes-and-comes";
    let (scratch, manifest) = writing(node, name, 60);
    let mut uid = status::uid(&node.run(&manifest).await);
    let mut expected = vec!["start main"];
    node.stage.diary(name, &scratch, &expected).await;
    for force in [false, true, true] {
        match force {
            true => {
                let path = format!(
                    "{}/{name}?gracePeriodSeconds=0",
                    krablet_e2e::cluster_stage::PODS
                );
                node.plane.delete(&path).await.unwrap();
            }
            false => {
                node.delete(name).await;
                node.wait(name, "the name is free", async || {
                    match node.pod(name).await {
                        Ok(pod) => Err(status::shown(&pod)),
                        Err(_) => Ok(()),
                    }
                })
                .await;
            }
        }
        let next = status::uid(&node.run(&manifest).await);
        assert_ne!(uid, next);
        node.gone(name, &uid).await;
        uid = next;
        expected.extend(["stop main", "start main"]);
        node.stage.diary(name, &scratch, &expected).await;
    }
    node.end(name).await;
}
