//! What does not answer and does not end either: the API server, the runtime, one pod.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Event, Node};
use k8s_openapi::jiff::Timestamp;
use krablet_cri::{RuntimeService, v1};
use krablet_e2e::cluster_stage::{condition, now};
use krablet_e2e::manifest::{scratch_volume, scratched, shell, single, tool};
use krablet_e2e::{LONG, Member, status};
use krablet_pod::labels;
use krablet_testbed::ControlPlaneOptions;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::outages::{comes_and_goes, id, own_view};

/// The agent's connections to the API server, by the kernel's numbers.
pub fn connections(node: &Member) -> BTreeSet<String> {
    let pid = node.stage.krablet.pid().unwrap();
    let sockets = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let own: BTreeSet<String> = sockets
        .flatten()
        .filter_map(|fd| std::fs::read_link(fd.path()).ok())
        .filter_map(|link| {
            let link = link.display().to_string();
            let number = link.strip_prefix("socket:[")?.strip_suffix(']')?;
            Some(number.to_owned())
        })
        .collect();
    let url = node.plane.server_url();
    let port: u16 = url.rsplit(':').next().unwrap().parse().unwrap();
    let (remote, established) = (format!(":{port:04X}"), "01");
    let table = std::fs::read_to_string(format!("/proc/{pid}/net/tcp")).unwrap();
    let numbers = table.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let there = fields.get(2)?.ends_with(&remote) && *fields.get(3)? == established;
        there.then(|| (*fields.get(9).unwrap_or(&"")).to_owned())
    });
    numbers.filter(|number| own.contains(number)).collect()
}

/// Neither refuses nor answers, as a server does whose machine has lost its way. Nothing waits for it, and nothing is
/// lost; what was asked of it by a connection of before is asked again by another.
pub async fn api_server_is_waited_for() {
    let node = Member::founding(ControlPlaneOptions::default(), "waits-in-vain").await;
    let restarts = node
        .run(&single("restarts-meanwhile", tool("main", &["hold"])))
        .await;
    let scratch = node.stage.scratch("ends");
    let script = "until test -e /scratch/go; do sleep 0.1; done; exit 4";
    let mut ends = single("ends-meanwhile", scratched(shell("main", script)));
    ends["spec"]["volumes"] = json!([scratch_volume(&scratch)]);
    ends["spec"]["restartPolicy"] = json!("Never");
    node.run(&ends).await;
    let before = connections(&node);
    assert!(!before.is_empty());

    node.plane.pause_apiserver().unwrap();
    let first = id(&restarts);
    let stopped = node.stage.runtime.stop_container(&first, 0);
    stopped.await.unwrap();
    std::fs::write(scratch.join("go"), "").unwrap();
    let again = node
        .wait("restarts-meanwhile", "runs again", async || {
            let pod = own_view(&node, "restarts-meanwhile").await?;
            status::all_running(&pod)?;
            match status::container(&pod, "main")?.restart_count {
                1 => Ok(pod),
                count => Err(format!("{count} restarts")),
            }
        })
        .await;
    comes_and_goes(&node, "meanwhile").await;
    node.wait(
        "connections",
        "the silent ones are given up",
        async || match connections(&node).intersection(&before).count() {
            0 => Ok(()),
            left => Err(format!("{left} of {}", before.len())),
        },
    )
    .await;
    node.plane.resume_apiserver().unwrap();

    node.beats_after(now()).await;
    node.ready().await;
    let told = node
        .until("restarts-meanwhile", "its restart is told", |pod| {
            status::all_running(pod)?;
            match status::container(pod, "main")?.restart_count {
                0 => Err(status::shown(pod)),
                _ => Ok(pod.clone()),
            }
        })
        .await;
    assert_eq!(status::container(&told, "main").unwrap().restart_count, 1);
    assert_eq!(id(&told), id(&again), "no further restart");
    let ended = node.phase("ends-meanwhile", "Failed").await;
    assert_eq!(status::ended(&ended, "main").unwrap().exit_code, 4);
    let after = connections(&node);
    assert!(!after.is_empty() && after.is_disjoint(&before));
    let next = single("comes-afterwards", tool("main", &["hold"]));
    node.run(&next).await;
    for name in ["restarts-meanwhile", "ends-meanwhile", "comes-afterwards"] {
        node.end(name).await;
    }
    node.empty().await;
    node.down().await;
}

/// A process that does nothing until this is dropped.
struct Stopped(Pid);

impl Stopped {
    fn new(pid: u32) -> Self {
        let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
        kill_process(pid, Signal::STOP).unwrap();
        Self(pid)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        // Gone already is as good.
        let _ = kill_process(self.0, Signal::CONT);
    }
}

/// What a node that is not ready says of the runtime: the call, since when, and the pod that has waited longest.
fn culprit(node: &Node) -> Result<(String, Timestamp, String), String> {
    let ready = condition(node, "Ready").ok_or("no condition")?;
    let message = ready.message.clone().unwrap_or_default();
    let told = message.split("container runtime is down: ").nth(1);
    if ready.status != "False" || told.is_none() {
        return Err(format!("{} {message}", ready.status));
    }
    assert_eq!(ready.reason.as_deref(), Some("KubeletNotReady"));
    let (call, since) = told.and_then(|told| told.split_once(", since ")).unwrap();
    let since: String = since.chars().take_while(|c| !",]".contains(*c)).collect();
    let mut problems = message.trim_end_matches(']').split(", ");
    let pod = problems.find(|problem| problem.contains(" of pod "));
    let pod = pod.ok_or_else(|| message.clone())?;
    Ok((call.to_owned(), since.parse().unwrap(), pod.to_owned()))
}

/// The runtime takes questions and does not answer them.
pub async fn runtime_is_named(main: &Member) {
    let node = main.beside("waits-for-the-runtime").await;
    let pod = node
        .run(&single("sits-it-out", tool("main", &["hold"])))
        .await;
    let lingers = status::uid(
        &node
            .run(&single("cannot-end", tool("main", &["hold"])))
            .await,
    );
    node.ready().await;
    let stopped = Stopped::new(node.stage.bed.containerd_pid().unwrap());
    let moment = now();
    node.delete("cannot-end").await;
    let (call, since, waiting) = node
        .wait_long(2 * LONG, "node", "names the call", async || {
            culprit(&node.node().await?)
        })
        .await;
    // Whichever it was asked when it fell silent.
    let calls = ["Version", "Status"].map(|call| format!("{call}: no answer within 30s"));
    assert!(calls.contains(&call), "{call}");
    let waits = waiting.contains(" of pod default/cannot-end: no answer since ");
    assert!(waits, "{waiting}");
    let since = since.as_second();
    assert!(moment - 60 < since && since <= now(), "{since} {moment}");
    // The heart beats on, and says why the node is not ready for as long as that lasts.
    node.beats_after(now()).await;
    culprit(&node.node().await.unwrap()).unwrap();

    drop(stopped);
    node.ready().await;
    node.gone("cannot-end", &lingers).await;
    let after = node.running("sits-it-out").await;
    assert_eq!(id(&pod), id(&after));
    assert_eq!(status::container(&after, "main").unwrap().restart_count, 0);
    node.run(&single("comes-later", tool("main", &["hold"])))
        .await;
    for name in ["sits-it-out", "comes-later"] {
        node.end(name).await;
    }
    node.down().await;
}

/// The shim of the pod's sandbox.
async fn shim(node: &Member, uid: &str) -> u32 {
    let sandboxes = node.stage.runtime.list_pod_sandbox(None).await.unwrap();
    let ready = v1::PodSandboxState::SandboxReady as i32;
    let sandbox = sandboxes
        .into_iter()
        .find(|s| s.state == ready && s.labels.get(labels::POD_UID).is_some_and(|u| u == uid))
        .unwrap();
    let serves = |pid: &u32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(&sandbox.id)
    };
    let mut shims = node.stage.bed.shim_pids().into_iter();
    shims.find(serves).unwrap()
}

/// How many looks at all that the runtime holds there were.
async fn audits(node: &Member) -> Result<u64, String> {
    let text = node.stage.krablet.metrics().await;
    let text = text.map_err(|e| format!("{e:#}"))?;
    let name = "kubelet_pleg_relist_duration_seconds_count ";
    let count = text.lines().find_map(|line| line.strip_prefix(name));
    let count = count.and_then(|count| count.trim().parse().ok());
    count.ok_or_else(|| "no count".to_owned())
}

/// For how long the runtime has owed the answer that it has owed for longest, in seconds.
async fn oldest_call(node: &Member) -> Result<f64, String> {
    let text = node.stage.krablet.metrics().await;
    let text = text.map_err(|e| format!("{e:#}"))?;
    let name = "krablet_runtime_operation_in_flight_age_seconds{";
    let lines = text.lines().filter(|line| line.starts_with(name));
    let ages = lines.filter_map(|line| line.rsplit(' ').next()?.parse().ok());
    Ok(ages.fold(0.0, f64::max))
}

/// Since when the node is ready.
fn ready_since(node: &Node) -> Timestamp {
    let ready = condition(node, "Ready").unwrap();
    assert_eq!(ready.status, "True", "{ready:?}");
    ready.last_transition_time.as_ref().unwrap().0
}

/// Whatever is asked of one pod hangs: its commands, its end. The node is well.
pub async fn one_pod_is_no_reason(main: &Member) {
    let node = main.beside("has-a-bad-pod").await;
    let mut wish = single("bad", tool("main", &["hold"]));
    wish["spec"]["containers"][0]["readinessProbe"] = json!({"exec": {"command": ["/bin/sh", "-c", ":"]}, "periodSeconds": 1, "failureThreshold": 1});
    let bad = status::uid(&node.run(&wish).await);
    let since = ready_since(&node.ready().await);
    let stopped = Stopped::new(shim(&node, &bad).await);
    node.until("bad", "is not ready", |pod| {
        match status::condition(pod, "Ready") {
            true => Err(status::shown(pod)),
            false => Ok(()),
        }
    })
    .await;
    node.delete("bad").await;
    // The runtime itself gives up after two seconds, and is asked again some time later.
    node.wait(
        "node",
        "tells of a call that hangs",
        async || match oldest_call(&node).await? {
            age if age > 1.0 => Ok(()),
            age => Err(format!("{age} s")),
        },
    )
    .await;
    let before = audits(&node).await.unwrap();
    for name in ["good-one", "good-two"] {
        node.run(&single(name, tool("main", &["hold"]))).await;
        node.end(name).await;
    }
    node.wait_long(
        2 * LONG,
        "node",
        "looks at everything",
        async || match audits(&node).await? {
            count if count > before => Ok(()),
            count => Err(format!("{count}")),
        },
    )
    .await;
    node.beats_after(now()).await;
    assert_eq!(ready_since(&node.node().await.unwrap()), since);
    assert_eq!(status::uid(&node.pod("bad").await.unwrap()), bad);

    drop(stopped);
    node.gone("bad", &bad).await;
    assert_eq!(ready_since(&node.node().await.unwrap()), since);
    let selector = format!("fieldSelector=involvedObject.name%3D{}", node.name);
    let path = format!("/api/v1/namespaces/default/events?{selector}");
    let events: Vec<Event> = node.list(&path).await.unwrap();
    let reasons: Vec<String> = events.into_iter().filter_map(|e| e.reason).collect();
    assert!(!reasons.iter().any(|r| r == "NodeNotReady"), "{reasons:?}");
    node.down().await;
}
