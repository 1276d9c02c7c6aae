//! The machine goes down and comes up again while nobody can tell it what it should run.

use krablet_e2e::manifest::{shell, single, tool};
use krablet_e2e::{Member, manifest, status};
use krablet_testbed::ControlPlaneOptions;
use serde_json::json;

use crate::outages::{id, own_view};

pub async fn without_an_api_server() {
    let mut node = Member::founding(ControlPlaneOptions::default(), "reboots").await;
    let lasting = node.run(&single("lasting", tool("main", &["hold"]))).await;
    let once = json!({"containers": [shell("main", "exit 0")], "restartPolicy": "Never"});
    node.create(&manifest::pod("once", once)).await;
    let done = node.phase("once", "Succeeded").await;
    node.stage.krablet.kill9().await.unwrap();
    node.plane.stop_apiserver().await.unwrap();
    node.stage.bed.power_cut().await.unwrap();

    node.stage.bed.start_containerd().await.unwrap();
    node.stage.start().await;
    let back = node
        .wait("lasting", "runs after the reboot", async || {
            let pod = own_view(&node, "lasting").await?;
            status::all_running(&pod)?;
            Ok(pod)
        })
        .await;
    assert_ne!(id(&back), id(&lasting));
    assert_eq!(status::container(&back, "main").unwrap().restart_count, 1);
    let over = own_view(&node, "once").await.unwrap();
    status::in_phase(&over, "Succeeded").unwrap();

    node.plane.start_apiserver().await.unwrap();
    let told = node
        .until("lasting", "its restart is told", |pod| {
            status::all_running(pod)?;
            match id(pod) == id(&back) {
                true => Ok(pod.clone()),
                false => Err(status::shown(pod)),
            }
        })
        .await;
    assert_eq!(status::uid(&told), status::uid(&lasting));
    node.ready().await;
    let over = node.phase("once", "Succeeded").await;
    assert_eq!(id(&over), id(&done), "it was not run again");
    for name in ["lasting", "once"] {
        node.end(name).await;
    }
    node.down().await;
}
