//! What controllers make, bound by the real scheduler.

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use krablet_e2e::cluster_stage::{self, apps, template};
use krablet_e2e::manifest::{shell, tool, with};
use krablet_e2e::{LONG, Member, status};
use krablet_testbed::{Response, images};
use serde_json::{Value, json};

const PODS: i32 = 110;
const JOBS: &str = "/apis/batch/v1/namespaces/default/jobs";
const BUDGETS: &str = "/apis/policy/v1/namespaces/default/poddisruptionbudgets";

fn deployment(name: &str, replicas: i32, template: Value) -> Value {
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "strategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": "25%"}},
            "template": template,
        },
    })
}

/// Waits until the deployment has rolled out that many ready pods.
async fn rolled_out(node: &Member, name: &str, replicas: i32) {
    node.wait_long(2 * LONG, name, "is rolled out", async || {
        let found: Deployment = node.get(&format!("{}/{name}", apps("deployments"))).await?;
        let status = found.status.unwrap_or_default();
        let observed = status.observed_generation == found.metadata.generation;
        let wanted = Some(replicas).filter(|r| *r > 0);
        let all = [
            status.updated_replicas,
            status.ready_replicas,
            status.replicas,
        ];
        match observed && all.iter().all(|count| *count == wanted) {
            true => Ok(()),
            false => Err(serde_json::to_string(&status).unwrap()),
        }
    })
    .await;
}

fn unrestarted(pods: &[Pod]) {
    for pod in pods {
        assert_eq!(status::container(pod, "main").unwrap().restart_count, 0);
    }
}

/// As many as a node takes: all run, all are replaced, all go without a trace.
pub async fn a_hundred_and_ten_pods_of_a_deployment(main: &Member) {
    let node = main.beside("crowded").await;
    let path = format!("{}/crowd", apps("deployments"));
    let template = template(&node.name, "crowd", tool("main", &["hold"]));
    node.plane
        .create(&apps("deployments"), &deployment("crowd", PODS, template))
        .await
        .unwrap();
    rolled_out(&node, "crowd", PODS).await;
    let pods = node.pods("app=crowd").await.unwrap();
    unrestarted(&pods);
    let address = |pod: &Pod| status::status(pod).unwrap().pod_ip.clone();
    let mut addresses: Vec<_> = pods.iter().map(address).collect();
    addresses.sort();
    addresses.dedup();
    assert_eq!(
        addresses.len(),
        pods.len(),
        "each has an address of its own"
    );

    let container = with(tool("main", &["hold"]), json!({"image": images::TOOL_V2}));
    let update = json!({"spec": {"template": {"spec": {"containers": [container]}}}});
    node.plane.patch(&path, &update).await.unwrap();
    rolled_out(&node, "crowd", PODS).await;
    let pods = node.pods("app=crowd").await.unwrap();
    let current = pods
        .iter()
        .filter(|pod| pod.metadata.deletion_timestamp.is_none());
    for pod in current {
        let image = &status::container(pod, "main").unwrap().image;
        assert_eq!(image, images::TOOL_V2);
    }
    scale(&node, "crowd", 0).await;
    rolled_out(&node, "crowd", 0).await;
    node.empty().await;
    assert_eq!(node.pods("app=crowd").await.unwrap().len(), 0);
    node.plane.delete(&path).await.unwrap();
    node.down().await;
}

async fn scale(node: &Member, name: &str, replicas: i32) {
    let path = format!("{}/{name}", apps("deployments"));
    let patch = json!({"spec": {"replicas": replicas}});
    node.plane.patch(&path, &patch).await.unwrap();
}

async fn job(node: &Member, name: &str, spec: Value, container: Value) {
    let mut template = template(&node.name, name, container);
    template["spec"]["restartPolicy"] = json!("Never");
    let job = json!({
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": with(spec, json!({"template": template})),
    });
    node.plane.create(JOBS, &job).await.unwrap();
}

async fn job_until(node: &Member, name: &str, kind: &str) -> Job {
    node.wait(name, kind, async || {
        let job: Job = node.get(&format!("{JOBS}/{name}")).await?;
        let status = job.status.clone().unwrap_or_default();
        let mut conditions = status.conditions.iter().flatten();
        match conditions.any(|c| c.type_ == kind && c.status == "True") {
            true => Ok(job),
            false => Err(serde_json::to_string(&status).unwrap()),
        }
    })
    .await
}

/// Deletes the job with its pods.
async fn end_job(node: &Member, name: &str) {
    let pods = node.pods(&format!("app={name}")).await.unwrap();
    let path = format!("{JOBS}/{name}?propagationPolicy=Background");
    node.plane.delete(&path).await.unwrap();
    for pod in pods {
        let pod_name = pod.metadata.name.clone().unwrap();
        node.gone(&pod_name, &status::uid(&pod)).await;
    }
}

pub async fn job_with_completions(node: &Member) {
    let spec = json!({"completions": 6, "parallelism": 3});
    job(node, "completes", spec, tool("main", &["exit", "0"])).await;
    let done = job_until(node, "completes", "Complete").await;
    let found = done.status.unwrap();
    assert_eq!((found.succeeded, found.failed), (Some(6), None));
    let pods = node.pods("app=completes").await.unwrap();
    assert_eq!(pods.len(), 6);
    for pod in &pods {
        status::in_phase(pod, "Succeeded").unwrap();
        let ended = status::ended(pod, "main").unwrap();
        assert_eq!(ended.reason.as_deref(), Some("Completed"));
    }
    end_job(node, "completes").await;
}

pub async fn job_gives_up_at_its_back_off_limit(node: &Member) {
    let spec = json!({"backoffLimit": 1});
    let container = shell("main", "echo in vain > /dev/termination-log; exit 7");
    job(node, "gives-up", spec, container).await;
    let done = job_until(node, "gives-up", "Failed").await;
    assert_eq!(done.status.unwrap().failed, Some(2));
    for pod in &node.pods("app=gives-up").await.unwrap() {
        status::in_phase(pod, "Failed").unwrap();
        let ended = status::ended(pod, "main").unwrap();
        assert_eq!(ended.exit_code, 7);
        assert_eq!(ended.message.as_deref(), Some("in vain\n"));
    }
    end_job(node, "gives-up").await;
}

fn daemons(node: &str, name: &str) -> Value {
    json!({
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": name},
        "spec": {
            "selector": {"matchLabels": {"app": name}},
            "template": template(node, name, tool("main", &["hold"])),
        },
    })
}

/// Waits for the one pod of the set, other than this.
async fn daemon(node: &Member, name: &str, before: &str) -> Pod {
    node.wait(name, "its pod is ready", async || {
        let set: DaemonSet = node.get(&format!("{}/{name}", apps("daemonsets"))).await?;
        let mut pods = node.pods(&format!("app={name}")).await?;
        pods.retain(|pod| status::uid(pod) != before && pod.metadata.deletion_timestamp.is_none());
        let ready = set.status.as_ref().is_some_and(|s| s.number_ready == 1);
        match (pods.pop(), ready) {
            (Some(pod), true) if pods.is_empty() => Ok(pod),
            _ => Err(serde_json::to_string(&set.status).unwrap()),
        }
    })
    .await
}

pub async fn daemon_set(node: &Member) {
    let name = "daemons";
    let (sets, one) = (apps("daemonsets"), format!("{}/{name}", apps("daemonsets")));
    node.plane
        .create(&sets, &daemons(&node.name, name))
        .await
        .unwrap();
    let first = daemon(node, name, "").await;
    // One that is deleted comes again.
    let gone = first.metadata.name.clone().unwrap();
    node.end(&gone).await;
    let second = daemon(node, name, &status::uid(&first)).await;
    node.plane
        .delete(&format!("{one}?propagationPolicy=Background"))
        .await
        .unwrap();
    let last = second.metadata.name.clone().unwrap();
    node.gone(&last, &status::uid(&second)).await;
}

/// A budget that lets none of the app's pods go. It counts by the time this returns.
async fn budget(node: &Member, app: &str, replicas: i32) -> String {
    let selector = json!({"matchLabels": {"app": app}});
    let budget = json!({
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": app},
        "spec": {"minAvailable": replicas, "selector": selector},
    });
    node.plane.create(BUDGETS, &budget).await.unwrap();
    let path = format!("{BUDGETS}/{app}");
    node.wait(app, "is within its budget", async || {
        let found: Value = node.get(&path).await?;
        match found["status"]["currentHealthy"] == json!(replicas) {
            true => Ok(()),
            false => Err(found["status"].to_string()),
        }
    })
    .await;
    path
}

async fn evict(node: &Member, pod: &str) -> Response {
    let eviction = json!({
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": pod, "namespace": "default"},
    });
    let path = format!("{}/{pod}/eviction", cluster_stage::PODS);
    let asked = node.plane.request("POST", &path, Some(&eviction));
    asked.await.unwrap()
}

/// A budget keeps a pod from eviction. Without it the pod goes, and says to its end who sent it away.
async fn evicted_within_the_budget(node: &Member, app: &str, replicas: i32) {
    let budget = budget(node, app, replicas).await;
    let pod = node.pods(&format!("app={app}")).await.unwrap().remove(0);
    let name = pod.metadata.name.as_deref().unwrap();
    let refused = evict(node, name).await;
    let forbidden = refused.body.contains("violate the pod's disruption budget");
    assert!(refused.status == 429 && forbidden, "{refused:?}");
    node.plane.delete(&budget).await.unwrap();
    // It stays to be read when it has ended.
    let path = format!("{}/{name}", cluster_stage::PODS);
    let held = |by: Value| json!({"metadata": {"finalizers": by}});
    let hold = held(json!(["example.com/is-read"]));
    node.plane.patch(&path, &hold).await.unwrap();
    let granted = evict(node, name).await;
    assert_eq!(granted.status, 201, "{}", granted.body);
    let ended = node
        .until(name, "has ended", |pod| match status::phase(pod) {
            "Succeeded" | "Failed" => Ok(pod.clone()),
            _ => Err(status::shown(pod)),
        })
        .await;
    status::ended(&ended, "main").unwrap();
    let found = status::status(&ended).unwrap().conditions.as_ref();
    let target = found.and_then(|all| all.iter().find(|c| c.type_ == "DisruptionTarget"));
    let told = target.map(|c| (c.status.as_str(), c.reason.as_deref()));
    let by_api = ("True", Some("EvictionByEvictionAPI"));
    assert_eq!(told, Some(by_api), "{found:?}");
    node.plane.patch(&path, &held(Value::Null)).await.unwrap();
    node.gone(name, &status::uid(&pod)).await;
    rolled_out(node, app, replicas).await;
}

/// By the eviction API, as for maintenance.
pub async fn drain(main: &Member) {
    let node = main.beside("drained").await;
    let template = template(&node.name, "drained", tool("main", &["hold"]));
    node.plane
        .create(&apps("deployments"), &deployment("drained", 5, template))
        .await
        .unwrap();
    let sets = apps("daemonsets");
    node.plane
        .create(&sets, &daemons(&node.name, "stays"))
        .await
        .unwrap();
    rolled_out(&node, "drained", 5).await;
    let kept = daemon(&node, "stays", "").await;
    evicted_within_the_budget(&node, "drained", 5).await;
    let before = node.pods("app=drained").await.unwrap();
    let out = node
        .kubectl(&["drain", &node.name, "--ignore-daemonsets", "--timeout=120s"])
        .await;
    assert!(out.contains("drained"), "{out}");
    for pod in &before {
        let name = pod.metadata.name.as_deref().unwrap();
        node.gone(name, &status::uid(pod)).await;
    }
    let id = |pod: &Pod| status::id(status::container(pod, "main").unwrap());
    assert_eq!(id(&kept), id(&daemon(&node, "stays", "").await));
    node.kubectl(&["uncordon", &node.name]).await;
    rolled_out(&node, "drained", 5).await;
    for path in [
        format!("{}/drained", apps("deployments")),
        format!("{sets}/stays"),
    ] {
        node.plane
            .delete(&format!("{path}?propagationPolicy=Background"))
            .await
            .unwrap();
    }
    node.empty().await;
    node.down().await;
}
