//! One node, two agents in turn: the upstream kubelet and krablet, on the same directories.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::Pod;
use krablet_cri::RuntimeService;
use krablet_e2e::cluster_stage::{Joining, apps, template};
use krablet_e2e::manifest::{pod, shell, tool, with};
use krablet_e2e::{Member, status};
use krablet_testbed::parts::{self, Part};
use serde_json::{Value, json};

use crate::mirrors::static_uid;

/// Fails twice and then runs; each run leaves a line in the pod's own volume.
const RUNS: &str =
    "echo run >> /data/runs; test $(wc -l < /data/runs) -lt 3 && exit 1; exec /tool hold";

fn containers() -> Value {
    let mounts = json!({"volumeMounts": [{"name": "data", "mountPath": "/data"}]});
    json!([
        tool("main", &["hold"]),
        with(shell("restarts", RUNS), mounts)
    ])
}

fn data() -> Value {
    json!([{"name": "data", "emptyDir": {}}])
}

/// The pod's volume on the machine.
fn volume(node: &Member, uid: &str) -> PathBuf {
    let pods = node.stage.krablet.root_dir().join("pods");
    pods.join(uid).join("volumes/kubernetes.io~empty-dir/data")
}

/// What may not change when another agent takes over: of each container its id and how often it was
/// restarted, and what is in the pod's volume.
#[derive(Debug, PartialEq, Eq)]
struct Life {
    uid: String,
    ip: Option<String>,
    containers: BTreeMap<String, (String, i32)>,
    runs: usize,
}

/// The pod is ready, and its restarts were told.
fn life(node: &Member, pod: &Pod, uid: &str, restarts: i32) -> Result<Life, String> {
    status::all_running(pod)?;
    if !status::condition(pod, "Ready") {
        return Err(status::shown(pod));
    }
    let of = |name: &str| {
        let status = status::container(pod, name)?;
        Ok::<_, String>((name.to_owned(), (status::id(status), status.restart_count)))
    };
    let containers: BTreeMap<_, _> = [of("main")?, of("restarts")?].into();
    if containers["restarts"].1 != restarts {
        return Err(format!("{containers:?}"));
    }
    let runs = std::fs::read_to_string(volume(node, uid).join("runs"));
    Ok(Life {
        uid: uid.to_owned(),
        ip: status::status(pod)?.pod_ip.clone(),
        containers,
        runs: runs.map_err(|e| e.to_string())?.lines().count(),
    })
}

/// A static pod and a pod of a Deployment.
async fn lives(node: &Member, restarts: i32) -> [Life; 2] {
    let fixed = format!("fixed-{}", node.name);
    let fixed = node
        .until(&fixed, "lives", |pod| {
            life(node, pod, &static_uid(pod), restarts)
        })
        .await;
    let rolled = node
        .wait("rolled", "lives", async || {
            match node.pods("app=rolled").await?.as_slice() {
                [pod] => life(node, pod, &status::uid(pod), restarts),
                pods => Err(format!("{} pods", pods.len())),
            }
        })
        .await;
    [fixed, rolled]
}

/// What runs of the pods, by the runtime's word.
async fn running(node: &Member, lives: &[Life]) -> Vec<String> {
    let mut alive = Vec::new();
    for life in lives {
        alive.extend(node.alive(&life.uid).await);
    }
    alive.sort();
    alive
}

/// Log collectors find the log of each container in the one place they know, whoever linked it there.
fn are_linked(lives: &[Life]) {
    let links = std::fs::read_dir("/var/log/containers").unwrap();
    let links: Vec<String> = links
        .map(|link| link.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    for (name, (id, _)) in lives.iter().flat_map(|life| &life.containers) {
        let end = format!("_{name}-{id}.log");
        assert!(links.iter().any(|l| l.ends_with(&end)), "{end}: {links:?}");
    }
}

/// Ends the agent and starts another in its place; the node is that one's, and ready.
async fn hand_over(node: &mut Member, program: &Path, version: &str) {
    if node.stage.krablet.is_running() {
        node.stage.krablet.terminate().await.unwrap();
    }
    node.stage.krablet.replace_program(program.to_owned());
    node.stage.start().await;
    node.wait("node", version, async || {
        let object = node.node().await?;
        let info = object.status.and_then(|status| status.node_info);
        match info.unwrap_or_default().kubelet_version {
            told if told == version => Ok(()),
            told => Err(told),
        }
    })
    .await;
    node.ready().await;
}

/// Restarts a container of each pod and tells what the pods' lives are then.
async fn restart(node: &Member, before: &[Life; 2], restarts: i32) -> [Life; 2] {
    for life in before {
        let (id, _) = &life.containers["restarts"];
        node.stage.runtime.stop_container(id, 0).await.unwrap();
    }
    let after = lives(node, restarts).await;
    for (before, after) in before.iter().zip(&after) {
        assert_eq!(before.uid, after.uid);
        assert_eq!(before.containers["main"], after.containers["main"]);
        assert_eq!(before.runs + 1, after.runs);
    }
    are_linked(&after);
    after
}

/// Containers go on with their ids and their counts, whoever is in charge.
pub async fn from_the_kubelet_and_back(main: &Member) {
    let bins = tokio::task::spawn_blocking(|| parts::ensure(&[Part::Kubelet]));
    let kubelet = bins.await.unwrap().unwrap().path("kubelet").unwrap();
    let _traces = Traces::before();
    let joining = Joining {
        config: settings(main),
        also_kubelet: true,
        ..Joining::default()
    };
    let mut node = main.prepared_beside("handed-over", joining).await;
    let krablet = node.stage.krablet.program().to_owned();
    let ours = format!("v1.36.4+krablet.{}", env!("CARGO_PKG_VERSION"));
    let theirs = "v1.36.4";

    hand_over(&mut node, &kubelet, theirs).await;
    let fixed = json!({"containers": containers(), "volumes": data()});
    node.stage.apply("fixed", &pod("fixed", fixed));
    let mut rolled = template(&node.name, "rolled", Value::Null);
    rolled["spec"]["containers"] = containers();
    rolled["spec"]["volumes"] = data();
    let deployment = json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "rolled"},
        "spec": {"selector": {"matchLabels": {"app": "rolled"}}, "template": rolled},
    });
    let made = node.plane.create(&apps("deployments"), &deployment).await;
    made.unwrap();
    let begun = lives(&node, 2).await;
    let alive = running(&node, &begun).await;

    hand_over(&mut node, &krablet, &ours).await;
    assert_eq!(begun, lives(&node, 2).await);
    assert_eq!(alive, running(&node, &begun).await);
    let restarted = restart(&node, &begun, 3).await;

    hand_over(&mut node, &kubelet, theirs).await;
    assert_eq!(restarted, lives(&node, 3).await);
    assert_eq!(alive, running(&node, &begun).await);
    restart(&node, &restarted, 4).await;

    // What the one has begun the other ends.
    hand_over(&mut node, &krablet, &ours).await;
    let gone = format!(
        "{}/rolled?propagationPolicy=Background",
        apps("deployments")
    );
    node.plane.delete(&gone).await.unwrap();
    node.stage.remove("fixed");
    node.empty().await;
    node.down().await;
}

/// Room on a disk that is full of other things, and nothing outside the agent's own directories.
fn settings(main: &Member) -> Value {
    json!({
        "evictionHard": {
            "memory.available": "100Mi",
            "nodefs.available": "1%",
            "nodefs.inodesFree": "1%",
            "imagefs.available": "1%",
        },
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "makeIPTablesUtilChains": false,
        "volumePluginDir": main.stage.scratch("volume-plugins"),
    })
}

/// Places where the kubelet leaves things whatever it is told; those that were not there before go.
struct Traces(Vec<&'static Path>);

impl Traces {
    fn before() -> Self {
        let places = [
            "/var/lib/kubelet/device-plugins",
            "/var/lib/kubelet",
            "/var/log/containers",
        ];
        let paths = places.into_iter().map(Path::new);
        Self(paths.filter(|path| !path.exists()).collect())
    }
}

impl Drop for Traces {
    fn drop(&mut self) {
        for path in &self.0 {
            // Where it was never started there is nothing.
            let _ = std::fs::remove_dir_all(path);
        }
    }
}
