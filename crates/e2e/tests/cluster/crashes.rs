//! The agent is killed in the middle of work for the API server.

use std::collections::BTreeMap;

use krablet_cri::{RuntimeService, v1};
use krablet_e2e::cluster_stage::condition;
use krablet_e2e::manifest::{scratch_volume, scratched, shell, single, tool, with};
use krablet_e2e::{LONG, Member, status};
use krablet_pod::api::{Pod, PodCondition};
use krablet_pod::labels;
use serde_json::json;

use crate::outages::own_view;

const EACH: usize = 30;
/// Of those that leave.
const SLOW: usize = 5;

fn names(kind: &str) -> Vec<String> {
    (0..EACH)
        .map(|number| format!("{kind}-{number:02}"))
        .collect()
}

/// How many containers of pods with such names run, by pod.
async fn running(node: &Member, prefix: &str) -> BTreeMap<String, usize> {
    let mut found = BTreeMap::new();
    for container in node.stage.runtime.list_containers(None).await.unwrap() {
        let name = container
            .labels
            .get(labels::POD_NAME)
            .cloned()
            .unwrap_or_default();
        let runs = container.state == v1::ContainerState::ContainerRunning as i32;
        if runs && name.starts_with(prefix) {
            *found.entry(name).or_default() += 1;
        }
    }
    found
}

async fn create_all(node: &Member, names: &[String]) {
    for name in names {
        node.create(&single(name, tool("main", &["hold"]))).await;
    }
}

async fn all_ready(node: &Member, prefix: &str) {
    node.wait_long(2 * LONG, prefix, "all are ready", async || {
        let pods: Vec<k8s_openapi::api::core::v1::Pod> =
            node.list(krablet_e2e::cluster_stage::PODS).await?;
        let ready = pods.iter().filter(|pod| {
            pod.metadata
                .name
                .as_deref()
                .unwrap_or_default()
                .starts_with(prefix)
                && status::condition(pod, "Ready")
        });
        match ready.count() {
            EACH => Ok(()),
            count => Err(format!("{count} of {EACH}")),
        }
    })
    .await;
}

/// Nothing is doubled, nothing lost, nothing left behind, and the node stays ready all the while.
pub async fn killed_amid_creations_and_deletions(main: &Member) {
    let mut node = main.beside("killed").await;
    let (leaving, coming) = (names("leaving"), names("coming"));
    // Some go only when they are let go, so that they are on their way however fast the others are.
    let scratch = node.stage.scratch("leaving");
    let (slow, quick) = leaving.split_at(SLOW);
    create_all(&node, quick).await;
    for name in slow {
        let script = "trap : TERM; until test -e /scratch/go; do sleep 0.1; done";
        let mut pod = single(name, scratched(shell("main", script)));
        pod["spec"]["volumes"] = json!([scratch_volume(&scratch)]);
        pod["spec"]["terminationGracePeriodSeconds"] = json!(600);
        node.create(&pod).await;
    }
    all_ready(&node, "leaving").await;
    let ready = condition(&node.ready().await, "Ready").cloned().unwrap();
    for (gone, new) in leaving.iter().zip(&coming) {
        node.delete(gone).await;
        node.create(&single(new, tool("main", &["hold"]))).await;
    }
    for part in [4, 2] {
        node.wait("coming", "a part has come", async || {
            let come = running(&node, "coming").await.len();
            match come >= EACH / part {
                true => Ok(()),
                false => Err(format!("{come}")),
            }
        })
        .await;
        let on_their_way = running(&node, "leaving").await;
        assert!(on_their_way.len() >= SLOW, "{on_their_way:?}");
        node.stage.crash().await;
    }
    std::fs::write(scratch.join("go"), "").unwrap();
    all_ready(&node, "coming").await;
    node.wait_long(2 * LONG, "leaving", "all are gone", async || {
        let mut left: Vec<String> = running(&node, "leaving").await.into_keys().collect();
        let pods: Vec<k8s_openapi::api::core::v1::Pod> =
            node.list(krablet_e2e::cluster_stage::PODS).await?;
        let objects = pods.into_iter().filter_map(|pod| pod.metadata.name);
        left.extend(objects.filter(|name| name.starts_with("leaving")));
        match left.is_empty() {
            true => Ok(()),
            false => Err(left.join(", ")),
        }
    })
    .await;
    let come = running(&node, "coming").await;
    assert_eq!(come.len(), EACH, "{come:?}");
    assert!(come.values().all(|count| *count == 1), "{come:?}");
    for name in &coming {
        let pod = node.pod(name).await.unwrap();
        // One whose start was cut off when the agent died may be made anew, and that may count.
        let restarts = status::container(&pod, "main").unwrap().restart_count;
        assert!(restarts <= 2, "{}", status::shown(&pod));
    }
    let now = condition(&node.ready().await, "Ready").cloned().unwrap();
    assert_eq!(now.last_transition_time, ready.last_transition_time);
    for name in &coming {
        node.delete(name).await;
    }
    node.empty_after_kills().await;
    node.down().await;
}

fn conditions(pod: &Pod) -> Vec<PodCondition> {
    let status = pod.status.clone().unwrap_or_default();
    status.conditions.unwrap_or_default()
}

/// Nothing that was true before an agent ended is taken back by the next, and no time begins anew.
pub async fn readiness_outlives_the_agent(main: &Member) {
    let mut node = main.beside("steady").await;
    // The first comes at any time within a period of the agent's start, so none is likely before the next agent's first status.
    let probe = json!({"exec": {"command": ["/tool", "exit", "0"]}, "periodSeconds": 30, "timeoutSeconds": 20});
    let probes = json!({"startupProbe": probe, "readinessProbe": probe});
    let probed = with(tool("main", &["hold"]), probes);
    let before = node.run(&single("steady", probed)).await;
    node.stage.krablet.kill9().await.unwrap();
    node.stage.start().await;
    let own = node
        .wait("steady", "is known to the next agent", async || {
            let pod = own_view(&node, "steady").await?;
            status::all_running(&pod)?;
            Ok(pod)
        })
        .await;
    assert!(status::condition(&own, "Ready"), "{}", status::shown(&own));
    node.run(&single("comes-later", tool("main", &["hold"])))
        .await;
    let after = node.pod("steady").await.unwrap();
    assert_eq!(conditions(&before), conditions(&after));
    assert_eq!(
        status::container(&after, "main"),
        status::container(&before, "main")
    );
    for name in ["steady", "comes-later"] {
        node.end(name).await;
    }
    node.down().await;
}
