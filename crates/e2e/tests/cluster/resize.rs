//! Pods that get other resources while they run: what the kernel holds them to, what they are told, and
//! what becomes of it when there is no room or the agent dies.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use krablet_e2e::cluster_stage::Joining;
use krablet_e2e::manifest::{pod, shell, single, tool, with};
use krablet_e2e::{Member, status};
use krablet_pod::api::{Pod, PodCondition};
use serde_json::{Value, json};

const MOUNT: &str = "/sys/fs/cgroup";
const PENDING: &str = "PodResizePending";
const IN_PROGRESS: &str = "PodResizeInProgress";
/// Errors are tried again after ten seconds and up to half of it more.
const RETRIED: Duration = Duration::from_secs(60);

fn unified() -> bool {
    Path::new(MOUNT).join("cgroup.controllers").exists()
}

/// Below the cgroup of the pod the one that is named after the container, or that of the pod itself.
fn dir(node: &Member, controller: &str, class: &str, uid: &str, id: Option<&str>) -> PathBuf {
    let mut dir = PathBuf::from(MOUNT);
    if !unified() {
        dir.push(controller);
    }
    let root = node.stage.bed.cgroup_parent();
    let root = root.trim_start_matches('/');
    dir.push(format!("{root}/kubepods{class}/pod{uid}"));
    let Some(id) = id else {
        return dir;
    };
    let children = fs::read_dir(&dir).into_iter().flatten().flatten();
    let named = |entry: &fs::DirEntry| entry.file_name().to_string_lossy().contains(id);
    let found = children.map(|e| (named(&e), e.path())).find(|(is, _)| *is);
    found.map_or(dir.join(id), |(_, path)| path)
}

fn read(dir: PathBuf, v1: &str, v2: &str) -> String {
    let path = dir.join(if unified() { v2 } else { v1 });
    let text = fs::read_to_string(&path);
    let text = text.unwrap_or_else(|e| format!("{}: {e}", path.display()));
    text.trim().to_owned()
}

/// `shares quota memory` of a Burstable pod's cgroup, or of one of its containers.
fn held(node: &Member, uid: &str, id: Option<&str>) -> String {
    let cpu = || dir(node, "cpu", "/burstable", uid, id);
    let shares = read(cpu(), "cpu.shares", "cpu.weight");
    let quota = read(cpu(), "cpu.cfs_quota_us", "cpu.max");
    let quota = quota.split(' ').next().unwrap_or_default().to_owned();
    let memory = dir(node, "memory", "/burstable", uid, id);
    let memory = read(memory, "memory.limit_in_bytes", "memory.max");
    format!("{shares} {quota} {memory}")
}

fn expected(shares: u64, quota: u64, mebibytes: u64) -> String {
    let shares = match unified() {
        true => 1 + (shares - 2) * 9999 / 262_142,
        false => shares,
    };
    format!("{shares} {quota} {}", mebibytes << 20)
}

fn sized(cpu: &str, memory: &str) -> Value {
    let (request, limit) = cpu.split_once('/').unwrap();
    let (memory_request, memory_limit) = memory.split_once('/').unwrap();
    json!({
        "requests": {"cpu": request, "memory": memory_request},
        "limits": {"cpu": limit, "memory": memory_limit},
    })
}

fn asking(container: Value, resources: &Value) -> Value {
    with(container, json!({"resources": resources}))
}

async fn resize(node: &Member, name: &str, container: &str, resources: &Value) {
    let patch = json!({"spec": {"containers": [{"name": container, "resources": resources}]}});
    patched(node, name, &patch).await.unwrap();
}

async fn patched(node: &Member, name: &str, patch: &Value) -> Result<String, String> {
    let patch = patch.to_string();
    let arguments = [
        "patch",
        "pod",
        name,
        "--subresource",
        "resize",
        "-p",
        &patch,
    ];
    let told = node.plane.kubectl(&arguments).await;
    told.map_err(|e| format!("{e:#}"))
}

fn told<'a>(pod: &'a Pod, kind: &str) -> Option<&'a PodCondition> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|c| c.type_ == kind)
}

/// Waits until nothing is told of a resize any more and the container has these resources.
async fn resized(node: &Member, name: &str, container: &str, resources: &Value) -> Pod {
    let check = |pod: &Pod| {
        let found = status::container(pod, container)?;
        let has = serde_json::to_value(&found.resources).unwrap();
        let allocated = serde_json::to_value(&found.allocated_resources).unwrap();
        let quiet = told(pod, PENDING).is_none() && told(pod, IN_PROGRESS).is_none();
        let generation = pod.status.as_ref().and_then(|s| s.observed_generation);
        let fresh = generation == pod.metadata.generation;
        // One that is restarted for its new size has it once it runs again.
        let runs = found.state.as_ref().is_some_and(|s| s.running.is_some());
        match runs && quiet && fresh && has == *resources && allocated == resources["requests"] {
            true => Ok(pod.clone()),
            false => Err(status::shown(pod)),
        }
    };
    let what = "has its new resources";
    node.wait_long(RETRIED, name, what, async || check(&node.pod(name).await?))
        .await
}

fn id_and_restarts(pod: &Pod, container: &str) -> (String, i32) {
    let found = status::container(pod, container).unwrap();
    (status::id(found), found.restart_count)
}

/// More and less of cpu, more of memory, of a container and of a sidecar, and nothing is restarted.
pub async fn while_it_runs(node: &Member) {
    let name = "resized";
    let sidecar = with(
        asking(tool("side", &["hold"]), &sized("50m/100m", "16Mi/32Mi")),
        json!({"restartPolicy": "Always"}),
    );
    let main = asking(tool("main", &["hold"]), &sized("100m/200m", "32Mi/64Mi"));
    let manifest = pod(
        name,
        json!({"initContainers": [sidecar], "containers": [main]}),
    );
    let before = node.run(&manifest).await;
    let uid = status::uid(&before);
    let (id, _) = id_and_restarts(&before, "main");
    assert_eq!(held(node, &uid, Some(&id)), expected(102, 20_000, 64));
    assert_eq!(held(node, &uid, None), expected(153, 30_000, 96));

    for (cpu, memory, container, whole) in [
        (
            "200m/400m",
            "32Mi/64Mi",
            expected(204, 40_000, 64),
            expected(256, 50_000, 96),
        ),
        (
            "100m/100m",
            "32Mi/64Mi",
            expected(102, 10_000, 64),
            expected(153, 20_000, 96),
        ),
        (
            "100m/100m",
            "64Mi/128Mi",
            expected(102, 10_000, 128),
            expected(153, 20_000, 160),
        ),
        (
            "150m/300m",
            "32Mi/96Mi",
            expected(153, 30_000, 96),
            expected(204, 40_000, 128),
        ),
    ] {
        let resources = sized(cpu, memory);
        resize(node, name, "main", &resources).await;
        let after = resized(node, name, "main", &resources).await;
        assert_eq!(id_and_restarts(&after, "main"), (id.clone(), 0));
        assert_eq!(held(node, &uid, Some(&id)), container, "{cpu} {memory}");
        assert_eq!(held(node, &uid, None), whole, "{cpu} {memory}");
        let generation = after.metadata.generation.unwrap();
        let text = format!("\"generation\":{generation}}}");
        for reason in ["ResizeStarted", "ResizeCompleted"] {
            node.event(name, reason, &text).await;
        }
    }
    let resources = sized("100m/200m", "16Mi/64Mi");
    let patch = json!({"spec": {"initContainers": [{"name": "side", "resources": resources}]}});
    patched(node, name, &patch).await.unwrap();
    let after = resized(node, name, "side", &resources).await;
    let (side, restarts) = id_and_restarts(&after, "side");
    assert_eq!(restarts, 0);
    assert_eq!(held(node, &uid, Some(&side)), expected(102, 20_000, 64));
    assert_eq!(held(node, &uid, None), expected(256, 50_000, 160));
    node.end(name).await;
}

/// What is set for the pod as a whole, and for an init container before it has run.
pub async fn as_a_whole(node: &Member) {
    let name = "whole";
    let mut manifest = single(name, tool("main", &["hold"]));
    manifest["spec"]["resources"] = sized("100m/200m", "32Mi/64Mi");
    let before = node.run(&manifest).await;
    let uid = status::uid(&before);
    let (id, _) = id_and_restarts(&before, "main");
    assert_eq!(held(node, &uid, None), expected(102, 20_000, 64));
    let whole = sized("200m/400m", "32Mi/128Mi");
    patched(node, name, &json!({"spec": {"resources": whole}}))
        .await
        .unwrap();
    let after = node
        .until(name, "is told to be larger", |pod| {
            let status = pod.status.as_ref().ok_or("no status")?;
            let has = serde_json::to_value(&status.resources).unwrap();
            let quiet = told(pod, PENDING).is_none() && told(pod, IN_PROGRESS).is_none();
            match quiet && has == whole {
                true => Ok(pod.clone()),
                false => Err(status::shown(pod)),
            }
        })
        .await;
    assert_eq!(id_and_restarts(&after, "main"), (id.clone(), 0));
    assert_eq!(held(node, &uid, None), expected(204, 40_000, 128));
    // The container has no limits but those of the pod.
    assert!(held(node, &uid, Some(&id)).ends_with(&format!("40000 {}", 128 << 20)));
    node.end(name).await;

    let name = "initialises";
    let wait = shell("setup", "while [ ! -e /dev/shm/go ]; do sleep 0.2; done");
    let setup = asking(wait, &sized("50m/100m", "16Mi/32Mi"));
    let main = asking(tool("main", &["hold"]), &sized("50m/100m", "16Mi/32Mi"));
    let manifest = pod(
        name,
        json!({"initContainers": [setup], "containers": [main]}),
    );
    let uid = status::uid(&node.create(&manifest).await);
    let check = |pod: &Pod| status::running(pod, "setup").map(drop);
    node.until(name, "initialises", check).await;
    assert_eq!(held(node, &uid, None), expected(51, 10_000, 32));
    let larger = sized("100m/200m", "16Mi/64Mi");
    let patch = json!({"spec": {"initContainers": [{"name": "setup", "resources": larger}],
        "containers": [{"name": "main", "resources": larger}]}});
    patched(node, name, &patch).await.unwrap();
    let seen = resized(node, name, "setup", &larger).await;
    let (id, restarts) = id_and_restarts(&seen, "setup");
    assert_eq!(restarts, 0);
    assert_eq!(held(node, &uid, Some(&id)), expected(102, 20_000, 64));
    assert_eq!(held(node, &uid, None), expected(102, 20_000, 64));
    let go = ["/bin/sh", "-c", "echo > /dev/shm/go"];
    let arguments = [&["exec", name, "-c", "setup", "--"][..], &go].concat();
    node.kubectl(&arguments).await;
    let after = node.running(name).await;
    let (id, _) = id_and_restarts(&after, "main");
    assert_eq!(held(node, &uid, Some(&id)), expected(102, 20_000, 64));
    node.end(name).await;
}

/// The container that wants it is restarted, with its new resources, and the other is not.
pub async fn with_a_restart(node: &Member) {
    let name = "restarted";
    let resources = sized("50m/100m", "16Mi/32Mi");
    let restarting = with(
        asking(tool("main", &["hold"]), &resources),
        json!({"resizePolicy": [{"resourceName": "memory", "restartPolicy": "RestartContainer"}]}),
    );
    let other = asking(tool("other", &["hold"]), &resources);
    let before = node
        .run(&pod(name, json!({"containers": [restarting, other]})))
        .await;
    let uid = status::uid(&before);
    let (id, _) = id_and_restarts(&before, "main");
    // Cpu alone is no reason.
    let more_cpu = sized("100m/200m", "16Mi/32Mi");
    resize(node, name, "main", &more_cpu).await;
    let after = resized(node, name, "main", &more_cpu).await;
    assert_eq!(id_and_restarts(&after, "main"), (id.clone(), 0));

    let more = sized("100m/200m", "32Mi/64Mi");
    resize(node, name, "main", &more).await;
    let text = "Container main resize requires restart";
    node.event(name, "Killing", text).await;
    let after = resized(node, name, "main", &more).await;
    let (new, restarts) = id_and_restarts(&after, "main");
    assert_eq!((restarts, new == id), (1, false));
    assert_eq!(held(node, &uid, Some(&new)), expected(102, 20_000, 64));
    assert_eq!(held(node, &uid, None), expected(153, 30_000, 96));
    assert_eq!(
        id_and_restarts(&after, "other"),
        id_and_restarts(&before, "other")
    );
    node.end(name).await;
}

/// Waits for what is told of a resize that waits, and that nothing has changed.
async fn deferred(node: &Member, name: &str, resources: &Value) -> Pod {
    let waiting = node
        .until(name, "waits for its resources", |pod| {
            let found = told(pod, PENDING).ok_or_else(|| status::shown(pod))?;
            let generation = pod.metadata.generation;
            match found.observed_generation == generation {
                true => Ok(pod.clone()),
                false => Err(status::shown(pod)),
            }
        })
        .await;
    let found = told(&waiting, PENDING).unwrap();
    assert_eq!(found.status, "True");
    assert_eq!(found.reason.as_deref(), Some("Deferred"), "{found:?}");
    let message = found.message.clone().unwrap_or_default();
    let text = "Node didn't have enough resource: cpu, requested: 1500, used: ";
    assert!(message.starts_with(text), "{message}");
    let has = &status::container(&waiting, "main").unwrap().resources;
    assert_eq!(serde_json::to_value(has).unwrap(), *resources);
    waiting
}

/// What the node can never have the API server refuses; what it has not now is had later.
pub async fn without_room(main: &Member) {
    let mut node = main.beside("cramped").await;
    let name = "grows";
    let small = sized("100m/2", "16Mi/32Mi");
    let large = sized("1500m/2", "16Mi/32Mi");
    let before = node
        .run(&single(name, asking(tool("main", &["hold"]), &small)))
        .await;
    let uid = status::uid(&before);
    let id = id_and_restarts(&before, "main");
    let filler = json!({"requests": {"cpu": "1"}});
    node.run(&single("fills", asking(tool("main", &["hold"]), &filler)))
        .await;

    let too_much = sized("1000/1000", "16Mi/32Mi");
    let patch = json!({"spec": {"containers": [{"name": "main", "resources": too_much}]}});
    let refused = patched(&node, name, &patch).await.unwrap_err();
    let text = "node didn't have enough allocatable resources: cpu, requested: 1000000";
    assert!(refused.contains(text), "{refused}");

    resize(&node, name, "main", &large).await;
    deferred(&node, name, &small).await;
    node.event(name, "ResizeDeferred", "Pod resize OutOfcpu: {")
        .await;
    // It is taken back.
    resize(&node, name, "main", &small).await;
    resized(&node, name, "main", &small).await;
    resize(&node, name, "main", &large).await;
    deferred(&node, name, &small).await;
    // Others are let in for what is there, not for what is asked for.
    let some = json!({"requests": {"cpu": "100m"}});
    node.run(&single("comes", asking(tool("main", &["hold"]), &some)))
        .await;
    node.stage.crash().await;
    let waiting = deferred(&node, name, &small).await;
    assert_eq!(id_and_restarts(&waiting, "main"), id);
    for other in ["comes", "fills"] {
        node.end(other).await;
    }
    let after = resized(&node, name, "main", &large).await;
    assert_eq!(id_and_restarts(&after, "main"), id);
    assert_eq!(held(&node, &uid, None), expected(1536, 200_000, 32));
    node.end(name).await;
    node.down().await;
}

/// Guaranteed pods have their own CPUs there.
pub async fn never_on_this_node(main: &Member) {
    let config = json!({
        "cpuManagerPolicy": "static",
        "systemReserved": {"cpu": "100m"},
    });
    let joining = Joining {
        config,
        ..Joining::default()
    };
    let mut node = main.prepared_beside("static", joining).await;
    node.start().await;
    let name = "guaranteed";
    let before = sized("100m/100m", "16Mi/16Mi");
    node.run(&single(name, asking(tool("main", &["hold"]), &before)))
        .await;
    resize(&node, name, "main", &sized("200m/200m", "16Mi/16Mi")).await;
    let message =
        "Resize is infeasible for Guaranteed Pods alongside CPU Manager policy \"static\"";
    node.until(name, "is told that it cannot be", |pod| {
        let found = told(pod, PENDING).ok_or_else(|| status::shown(pod))?;
        let said = (found.reason.as_deref(), found.message.as_deref());
        match said == (Some("Infeasible"), Some(message)) {
            true => Ok(()),
            false => Err(format!("{found:?}")),
        }
    })
    .await;
    node.event(name, "ResizeInfeasible", "Pod resize Infeasible: {")
        .await;
    // Memory is another matter.
    let after = sized("100m/100m", "32Mi/32Mi");
    resize(&node, name, "main", &after).await;
    resized(&node, name, "main", &after).await;
    node.end(name).await;
    node.down().await;
}

/// Between the promise and its fulfilment, and at any other moment.
pub async fn killed_in_between(main: &Member) {
    let mut node = main.beside("resizing").await;
    let policy = json!([{"resourceName": "memory", "restartPolicy": "RestartContainer"}]);
    let manifest = |name: &str, container: Value| single(name, container);
    let small = sized("50m/100m", "16Mi/32Mi");
    let plain = asking(tool("main", &["hold"]), &small);
    let restarting = with(plain.clone(), json!({"resizePolicy": policy}));
    let before = node.run(&manifest("plain", plain)).await;
    node.run(&manifest("restarting", restarting)).await;
    let mut last = small;
    for (n, pause) in [0, 5, 20, 50, 100, 200, 400].into_iter().enumerate() {
        let n = n + 1;
        let memory = format!("16Mi/{}Mi", 32 + 8 * n);
        last = sized(&format!("{}m/{}m", 50 + 10 * n, 100 + 20 * n), &memory);
        for name in ["plain", "restarting"] {
            resize(&node, name, "main", &last).await;
        }
        // Where it stands then is not what this is about; it is to be somewhere else each time.
        tokio::time::sleep(Duration::from_millis(pause)).await;
        node.stage.crash().await;
    }
    let after = resized(&node, "plain", "main", &last).await;
    assert_eq!(
        id_and_restarts(&after, "main"),
        id_and_restarts(&before, "main")
    );
    let uid = status::uid(&after);
    let wanted = expected(122, 24_000, 88);
    assert_eq!(held(&node, &uid, None), wanted);
    let (id, _) = id_and_restarts(&after, "main");
    assert_eq!(held(&node, &uid, Some(&id)), wanted);
    let after = resized(&node, "restarting", "main", &last).await;
    let (id, restarts) = id_and_restarts(&after, "main");
    // One whose start was cut off with an agent is made anew, and that counts, too.
    assert!((1..=14).contains(&restarts), "{restarts}");
    let uid = status::uid(&after);
    assert_eq!(held(&node, &uid, Some(&id)), wanted);
    for name in ["plain", "restarting"] {
        node.end(name).await;
    }
    node.down().await;
}

/// A limit below what is used is not set; it is as soon as less is used.
pub async fn less_than_is_used(node: &Member) {
    let name = "uses-memory";
    let script = "dd if=/dev/zero of=/dev/shm/ballast bs=1048576 count=40 && touch /dev/shm/full && \
                  trap 'exit 0' TERM; while :; do sleep 1000 & wait $!; done";
    let large = sized("50m/1", "16Mi/128Mi");
    let small = sized("50m/1", "16Mi/32Mi");
    let ready = json!({"readinessProbe": {"exec": {"command": ["/bin/sh", "-c", "test -e /dev/shm/full"]},
        "periodSeconds": 1}});
    let container = with(asking(shell("main", script), &large), ready);
    let before = node.run(&single(name, container)).await;
    let uid = status::uid(&before);
    let (id, _) = id_and_restarts(&before, "main");
    resize(node, name, "main", &small).await;
    let text = "cannot decrease memory limits: [attempting to set pod memory limit (33554432) below current usage (";
    let failed = node
        .until(name, "is told what is wrong", |pod| {
            let found = told(pod, IN_PROGRESS).ok_or_else(|| status::shown(pod))?;
            let message = found.message.as_deref().unwrap_or_default();
            match found.reason.as_deref() == Some("Error") && message.starts_with(text) {
                true => Ok(pod.clone()),
                false => Err(format!("{found:?}")),
            }
        })
        .await;
    let found = told(&failed, IN_PROGRESS).unwrap();
    assert_eq!(found.observed_generation, failed.metadata.generation);
    node.event(name, "ResizeError", "Pod resize error: {").await;
    assert_eq!(held(node, &uid, Some(&id)), expected(51, 100_000, 128));
    assert_eq!(held(node, &uid, None), expected(51, 100_000, 128));
    let has = &status::container(&failed, "main").unwrap().resources;
    let limits = serde_json::to_value(has).unwrap()["limits"]["memory"].clone();
    assert_eq!(limits, "128Mi");

    node.kubectl(&["exec", name, "--", "rm", "/dev/shm/ballast"])
        .await;
    let after = resized(node, name, "main", &small).await;
    assert_eq!(id_and_restarts(&after, "main"), (id.clone(), 0));
    assert_eq!(held(node, &uid, Some(&id)), expected(51, 100_000, 32));
    assert_eq!(held(node, &uid, None), expected(51, 100_000, 32));
    node.end(name).await;
}
