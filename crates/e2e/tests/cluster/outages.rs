//! The API server is away, or has forgotten everything.

use std::path::Path;

use k8s_openapi::api::core::v1::Pod;
use krablet_cri::RuntimeService;
use krablet_e2e::cluster_stage::{PODS, apps, condition, template};
use krablet_e2e::manifest::{scratch_volume, scratched, shell, single, tool};
use krablet_e2e::{Member, status};
use krablet_testbed::ControlPlaneOptions;
use serde_json::json;
use tokio::time::{Duration, Instant};

use crate::mirrors::{hash_shown, mirror, static_uid};

/// Longer than a lease lasts, and longer than the cluster waits before it doubts a node.
const OUTAGE: Duration = Duration::from_secs(60);
/// So long may it take after that until the cluster knows of all that happened meanwhile: whoever waits to try again
/// does so within ten seconds, and the rest is for a busy machine.
const CATCHING_UP: Duration = Duration::from_secs(60);

pub fn id(pod: &Pod) -> String {
    status::id(status::container(pod, "main").unwrap())
}

/// The pod as the agent itself shows it.
pub async fn own_view(node: &Member, name: &str) -> Result<Pod, String> {
    let pod = node.stage.krablet.pod(name).await;
    pod.map_err(|e| format!("{e:#}"))
}

/// A static pod runs, by the agent's own word.
async fn comes(node: &Member, name: &str) -> Pod {
    let full = format!("{name}-{}", node.name);
    node.stage
        .apply(name, &single(name, tool("main", &["hold"])));
    node.wait(name, "runs without an API server", async || {
        let pod = own_view(node, &full).await?;
        status::all_running(&pod)?;
        Ok(pod)
    })
    .await
}

async fn goes(node: &Member, name: &str, uid: &str) {
    node.stage.remove(name);
    node.wait(name, "goes without an API server", async || {
        match node.alive(uid).await {
            left if left.is_empty() => Ok(()),
            left => Err(format!("{left:?}")),
        }
    })
    .await;
}

pub async fn comes_and_goes(node: &Member, name: &str) {
    let uid = status::uid(&comes(node, name).await);
    goes(node, name, &uid).await;
}

/// The static pod runs, by the agent's own word, and under another uid than this.
async fn runs_anew(node: &Member, name: &str, before: &str) -> String {
    let full = format!("{name}-{}", node.name);
    node.wait(name, "runs as changed without an API server", async || {
        let pod = own_view(node, &full).await?;
        status::all_running(&pod)?;
        match status::uid(&pod) {
            uid if uid == before => Err("it is still the old one".to_owned()),
            uid => Ok(uid),
        }
    })
    .await
}

/// A manifest is mended while the agent is down. The API server may be what is to be mended, so nobody waits for it.
/// What the agent had written down is damaged besides: it starts from what runs and from the manifests alone.
async fn is_mended(node: &mut Member, name: &str) {
    let full = format!("{name}-{}", node.name);
    let before = status::uid(&own_view(node, &full).await.unwrap());
    node.stage.krablet.kill9().await.unwrap();
    let mended = single(name, shell("main", "exec /tool hold"));
    node.stage.apply(name, &mended);
    let dir = node.stage.krablet.root_dir().join("krablet");
    let damaged = [torn(&dir), altered(&dir)];
    node.stage.start().await;
    runs_anew(node, name, &before).await;
    assert_eq!(node.alive(&before).await, Vec::<String>::new());
    let log = node.stage.krablet.log();
    for (name, content) in damaged {
        let (file, aside) = (dir.join(name), dir.join(format!("{name}.bad-1")));
        let (from, to) = (file.display(), aside.display());
        let told = format!("State file {from} is not used and set aside as {to}: ");
        assert_eq!(log.matches(&told).count(), 1, "{told}\n{log}");
        assert!(std::fs::read(&aside).unwrap() == content, "{to}");
    }
}

/// Half of the file is gone.
fn torn(dir: &Path) -> (&'static str, Vec<u8>) {
    let name = "desired_pods.json";
    let mut bytes = std::fs::read(dir.join(name)).unwrap();
    bytes.truncate(bytes.len() / 2);
    std::fs::write(dir.join(name), &bytes).unwrap();
    (name, bytes)
}

/// All of it is there, and in its form, and something is not as it was written.
fn altered(dir: &Path) -> (&'static str, Vec<u8>) {
    let name = "admitted_pods.json";
    let text = std::fs::read_to_string(dir.join(name)).unwrap();
    let altered = text.replacen(r#""pods":{""#, r#""pods":{"0"#, 1);
    assert_ne!(altered, text);
    std::fs::write(dir.join(name), &altered).unwrap();
    (name, altered.into_bytes())
}

/// The usual way to restart a static pod. An agent that has not heard of the API server yet must not wait for it: the
/// pod may be the API server.
async fn goes_and_comes_back(node: &Member, name: &str) {
    let full = format!("{name}-{}", node.name);
    let uid = status::uid(&own_view(node, &full).await.unwrap());
    let manifest = single(name, shell("main", "exec /tool hold"));
    goes(node, name, &uid).await;
    node.stage.apply(name, &manifest);
    node.wait(name, "comes back without an API server", async || {
        let pod = own_view(node, &full).await?;
        status::all_running(&pod)?;
        match node.alive(&uid).await.is_empty() {
            true => Err("nothing runs".to_owned()),
            false => Ok(()),
        }
    })
    .await;
}

/// A static pod whose mirror is there before the API server goes, and which is changed meanwhile.
const SHOWN: &str = "changes-meanwhile";

/// Whether the cluster sees the node as it is: these static pods by mirrors of other uids than those.
async fn catches_up(node: &Member, mirrored: &[(&str, &str)]) -> Result<(), String> {
    let ready = |object| condition(object, "Ready").is_some_and(|c| c.status == "True");
    let object = node.node().await?;
    if !ready(&object) {
        return Err(format!("the node is not ready: {:?}", object.status));
    }
    status::in_phase(&node.pod("ends-meanwhile").await?, "Failed")?;
    if let Ok(pod) = node.pod("leaves-meanwhile").await {
        return Err(format!("still there: {}", status::shown(&pod)));
    }
    for (name, before) in mirrored {
        let pod = node.pod(&format!("{name}-{}", node.name)).await?;
        status::all_running(&pod)?;
        if status::uid(&pod) == *before || !status::condition(&pod, "Ready") {
            return Err(format!("{:?} {}", pod.metadata.uid, status::shown(&pod)));
        }
    }
    Ok(())
}

/// Static pods come and go, containers end and are restarted; all of it is caught up with.
pub async fn api_server_is_away_under_churn() {
    let mut node = Member::founding(ControlPlaneOptions::default(), "cut-off").await;
    let template = template(&node.name, "calm", tool("main", &["hold"]));
    let deployment = json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "calm"},
        "spec": {"replicas": 10, "selector": {"matchLabels": {"app": "calm"}}, "template": template},
    });
    node.plane
        .create(&apps("deployments"), &deployment)
        .await
        .unwrap();
    let scratch = node.stage.scratch("ends");
    let mut ends = single(
        "ends-meanwhile",
        scratched(shell(
            "main",
            "until test -e /scratch/go; do sleep 0.1; done; exit 4",
        )),
    );
    ends["spec"]["volumes"] = json!([scratch_volume(&scratch)]);
    ends["spec"]["restartPolicy"] = json!("Never");
    node.run(&ends).await;
    node.stage
        .apply(SHOWN, &single(SHOWN, tool("main", &["hold"])));
    let shown = mirror(&node, SHOWN, &[]).await;
    let leaving = single("leaves-meanwhile", tool("main", &["ignore-term"]));
    let leaving = node.run(&leaving).await;
    let calm = node
        .wait("calm", "all are ready", async || {
            let pods = node.pods("app=calm").await?;
            match pods
                .iter()
                .filter(|pod| status::condition(pod, "Ready"))
                .count()
            {
                10 => Ok(pods),
                count => Err(format!("{count}")),
            }
        })
        .await;
    node.ready().await;
    node.delete("leaves-meanwhile").await;
    node.plane.stop_apiserver().await.unwrap();
    std::fs::write(scratch.join("go"), "").unwrap();
    let begun = Instant::now();
    let changed = single(SHOWN, shell("main", "exec /tool hold"));
    node.stage.apply(SHOWN, &changed);
    let changed = runs_anew(&node, SHOWN, &static_uid(&shown)).await;
    let mut number = 0;
    while begun.elapsed() < OUTAGE {
        comes_and_goes(&node, &format!("churn-{number}")).await;
        number += 1;
    }
    let last = format!("churn-{number}");
    comes(&node, &last).await;
    node.wait("lease", "was tried in vain three times", async || {
        let log = node.stage.krablet.log();
        let tries = log.lines().filter(|line| line.contains("lease")).count();
        match tries >= 3 {
            true => Ok(()),
            false => Err(format!("{tries}")),
        }
    })
    .await;
    is_mended(&mut node, &last).await;
    goes_and_comes_back(&node, &last).await;
    node.plane.start_apiserver().await.unwrap();

    let what = "what happened without the API server is known to it";
    node.wait_long(CATCHING_UP, "node", what, async || {
        catches_up(&node, &[(&last, ""), (SHOWN, &status::uid(&shown))]).await
    })
    .await;
    let ended = node.pod("ends-meanwhile").await.unwrap();
    assert_eq!(status::ended(&ended, "main").unwrap().exit_code, 4);
    node.gone("leaves-meanwhile", &status::uid(&leaving)).await;
    let shows = mirror(&node, SHOWN, &[&status::uid(&shown)]).await;
    assert_eq!(
        (static_uid(&shows), hash_shown(&shows)),
        (changed.clone(), changed)
    );
    for before in &calm {
        let after = node.running(before.metadata.name.as_deref().unwrap()).await;
        assert_eq!(id(before), id(&after));
    }
    // The cluster may have doubted a node it did not hear of for so long; the node never did.
    node.ready().await;
    let log = node.stage.krablet.log();
    assert!(!log.contains("NodeNotReady"), "{log}");
    node.run(&single("comes-afterwards", tool("main", &["hold"])))
        .await;
    let pods: Vec<Pod> = node.list(PODS).await.unwrap();
    let names: Vec<String> = pods
        .into_iter()
        .filter_map(|pod| pod.metadata.name)
        .collect();
    assert!(
        !names.iter().any(|name| name.starts_with("churn-0")),
        "{names:?}"
    );
    node.stage.remove(&last);
    node.stage.remove(SHOWN);
    for name in ["comes-afterwards", "ends-meanwhile"] {
        node.end(name).await;
    }
    node.plane
        .delete(&format!(
            "{}/calm?propagationPolicy=Background",
            apps("deployments")
        ))
        .await
        .unwrap();
    node.empty().await;
    node.down().await;
}

/// Pods run from what was written down; then the differences are made good, and only they.
pub async fn starts_without_an_api_server() {
    let mut node = Member::founding(ControlPlaneOptions::default(), "offline").await;
    let mut pods = Vec::new();
    for name in ["keeps", "broken", "deleted", "forced"] {
        pods.push(node.run(&single(name, tool("main", &["hold"]))).await);
    }
    let [keeps, broken, deleted, forced] = pods.as_slice() else {
        unreachable!()
    };
    // At once: whoever came a moment ago is written down by the end.
    assert!(node.stage.krablet.terminate().await.unwrap().success());
    let log = node.stage.krablet.log();
    assert!(!log.contains("in time for the end"), "{log}");
    node.delete("deleted").await;
    let now = format!("{PODS}/forced?gracePeriodSeconds=0");
    node.plane.delete(&now).await.unwrap();
    node.create(&single("new", tool("main", &["hold"]))).await;
    node.plane.stop_apiserver().await.unwrap();
    node.stage
        .runtime
        .stop_container(&id(broken), 0)
        .await
        .unwrap();

    node.stage.start().await;
    node.wait("broken", "runs again", async || {
        let pod = own_view(&node, "broken").await?;
        status::all_running(&pod)?;
        match id(&pod) == id(broken) {
            true => Err("still the old container".to_owned()),
            false => Ok(()),
        }
    })
    .await;
    for pod in [keeps, deleted, forced] {
        let name = pod.metadata.name.as_deref().unwrap();
        let seen = own_view(&node, name).await.unwrap();
        assert_eq!(id(pod), id(&seen), "{name} goes on");
        status::all_running(&seen).unwrap();
    }
    node.plane.start_apiserver().await.unwrap();
    node.gone("deleted", &status::uid(deleted)).await;
    node.gone("forced", &status::uid(forced)).await;
    node.running("new").await;
    let kept = node.running("keeps").await;
    assert_eq!(id(keeps), id(&kept));
    assert_eq!(status::container(&kept, "main").unwrap().restart_count, 0);
    let mended = node
        .until("broken", "its restart is told", |pod| {
            status::all_running(pod)?;
            match status::container(pod, "main")?.restart_count {
                0 => Err(status::shown(pod)),
                _ => Ok(pod.clone()),
            }
        })
        .await;
    assert_eq!(status::container(&mended, "main").unwrap().restart_count, 1);
    node.ready().await;
    for name in ["keeps", "broken", "new"] {
        node.end(name).await;
    }
    node.down().await;
}

/// The cluster has lost its memory: the node registers anew, and what nobody wants goes.
pub async fn etcd_is_wiped() {
    let node = Member::founding(ControlPlaneOptions::default(), "forgotten").await;
    let forgotten = node
        .run(&single("forgotten", tool("main", &["hold"])))
        .await;
    let name = "remembered";
    node.stage
        .apply(name, &single(name, tool("main", &["hold"])));
    let before = mirror(&node, name, &[]).await;
    let old = node.ready().await.metadata.uid;
    node.plane.wipe_etcd().await.unwrap();
    let object = node.ready().await;
    assert_ne!(object.metadata.uid, old);
    node.gone("forgotten", &status::uid(&forgotten)).await;
    let after = mirror(&node, name, &[&status::uid(&before)]).await;
    assert_eq!(
        (static_uid(&before), id(&before)),
        (static_uid(&after), id(&after))
    );
    node.run(&single("comes-afterwards", tool("main", &["hold"])))
        .await;
    node.end("comes-afterwards").await;
    node.stage.remove(name);
    node.empty().await;
    node.down().await;
}
