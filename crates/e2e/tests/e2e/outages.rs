//! The runtime away, and its events cut off.

use std::time::Duration;

use futures::future::join_all;
use krablet_e2e::manifest::{pod, scratch_volume, scratched, single, tool};
use krablet_e2e::proxy::Proxy;
use krablet_e2e::stage::options;
use krablet_e2e::{Stage, status};
use krablet_testbed::{Bed, BedOptions, Containerd};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

/// How long the runtime stays away.
const AWAY: Duration = Duration::from_secs(20);
const PODS: usize = 30;

/// The first process of a container, to be killed from outside as an oom killer would.
async fn pid_of(stage: &Stage, id: &str) -> Pid {
    let info = stage.bed.ctr(&["tasks", "list"]).await.unwrap();
    let line = info.lines().find(|line| line.starts_with(id)).unwrap();
    let pid = line.split_whitespace().nth(1).unwrap();
    Pid::from_raw(pid.parse().unwrap()).unwrap()
}

/// containerd is stopped for a while under thirty pods. Nothing is restarted because of that; what
/// ended, changed, came and went meanwhile is caught up with.
pub async fn containerd_is_away_under_thirty_pods() {
    let stage = Stage::up(Value::Null).await;
    let names: Vec<String> = (0..PODS)
        .map(|number| format!("calm-{number:02}"))
        .collect();
    for name in &names {
        stage.apply(name, &single(name, tool("main", &["hold"])));
    }
    for name in ["dies", "changes", "goes"] {
        stage.apply(name, &single(name, tool("main", &["hold"])));
    }
    join_all(names.iter().map(|name| stage.running(name))).await;
    let ids = join_all(names.iter().map(|name| stage.running_ids(name))).await;
    let dies = stage.running("dies").await;
    let changes = status::uid(&stage.running("changes").await);
    let goes = status::uid(&stage.running("goes").await);
    let process = pid_of(
        &stage,
        &status::id(status::container(&dies, "main").unwrap()),
    )
    .await;

    stage.bed.stop_containerd().await.unwrap();
    kill_process(process, Signal::KILL).unwrap();
    stage.apply(
        "changes",
        &single("changes", tool("main", &["sleep", "1000h"])),
    );
    stage.apply("comes", &single("comes", tool("main", &["hold"])));
    stage.remove("goes");
    // The outage has a length, which is the point of it.
    tokio::time::sleep(AWAY).await;
    assert_eq!(
        stage.krablet.healthz().await.unwrap().status,
        200,
        "the agent is well"
    );
    let pods = stage.krablet.pods().await.unwrap();
    assert!(pods.items.len() >= PODS, "pods are still shown");
    for pod in &pods.items {
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        if name.starts_with("calm-") {
            status::all_running(pod).unwrap();
        }
    }
    stage.bed.start_containerd().await.unwrap();

    stage
        .until("dies", "its death is caught up with", |pod| {
            status::running(pod, "main")?;
            let last = status::ended_before(pod, "main")?;
            // A runtime that was away may not know any more how it ended, and says 255.
            assert!(
                [137, 255].contains(&last.exit_code),
                "{}",
                status::shown(pod)
            );
            Ok(())
        })
        .await;
    stage.running("comes").await;
    stage.gone("goes", &goes).await;
    stage.gone("changes", &changes).await;
    stage.running("changes").await;
    let now = join_all(names.iter().map(|name| stage.running_ids(name))).await;
    assert_eq!(now, ids, "nothing else was restarted");
    for name in &names {
        let pod = stage.running(name).await;
        assert_eq!(status::container(&pod, "main").unwrap().restart_count, 0);
    }
    stage.down().await;
}

/// The connection that carries the runtime's events is cut, again and again: what happens
/// meanwhile is seen all the same, and nothing is restarted.
pub async fn event_stream_is_cut() {
    let bed = Bed::up(BedOptions::default()).await.unwrap();
    let proxy = Proxy::start(&bed.dir().join("proxy.sock"), &bed.socket());
    let config = json!({"containerRuntimeEndpoint": proxy.endpoint()});
    let mut stage = Stage::on(bed, options(config));
    stage.start().await;
    let scratch = stage.scratch("seen");
    let manifest = pod(
        "seen",
        json!({
            "restartPolicy": "Never",
            "volumes": [scratch_volume(&scratch)],
            "containers": [
                tool("steady", &["hold"]),
                scratched(tool("a", &["stop-file", "/scratch/a"])),
                scratched(tool("b", &["stop-file", "/scratch/b"])),
                scratched(tool("c", &["stop-file", "/scratch/c"])),
            ],
        }),
    );
    stage.run("seen", &manifest).await;
    stage
        .run("bystander", &single("bystander", tool("main", &["hold"])))
        .await;
    let bystander = stage.running_ids("bystander").await;
    for container in ["a", "b", "c"] {
        let opened = proxy.opened();
        proxy.cut();
        std::fs::write(scratch.join(container), "6").unwrap();
        stage
            .until("seen", "the end of a container is seen", |pod| {
                let ended = status::ended(pod, container)?;
                assert_eq!(ended.exit_code, 6);
                Ok(())
            })
            .await;
        assert!(proxy.opened() > opened, "it has connected again");
    }
    let pod = stage.pod("seen").await.unwrap();
    status::running(&pod, "steady").unwrap();
    let fresh = stage
        .run("fresh", &single("fresh", tool("main", &["hold"])))
        .await;
    let process = pid_of(
        &stage,
        &status::id(status::container(&fresh, "main").unwrap()),
    )
    .await;
    kill_process(process, Signal::KILL).unwrap();
    stage
        .until("fresh", "is restarted", |pod| {
            status::running(pod, "main")?;
            status::ended_before(pod, "main").map(drop)
        })
        .await;
    assert_eq!(stage.running_ids("bystander").await, bystander);
    stage.down().await;
}

/// containerd dies and is back at once, which cuts the events too.
pub async fn containerd_is_killed_and_back() {
    let stage = Stage::up(Value::Null).await;
    let pod = stage
        .run("steady", &single("steady", tool("main", &["hold"])))
        .await;
    let ids = stage.running_ids("steady").await;
    for round in 0..3 {
        stage.bed.kill_containerd().await.unwrap();
        stage.bed.start_containerd().await.unwrap();
        let name = format!("after-{round}");
        stage
            .run(&name, &single(&name, tool("main", &["hold"])))
            .await;
        stage.end(&name).await;
        assert_eq!(stage.running_ids("steady").await, ids);
    }
    let after = stage.running("steady").await;
    assert_eq!(status::uid(&pod), status::uid(&after));
    // The sandbox of a pod dies: all of the pod is made anew.
    let sandbox = stage.sandboxes("steady").await.remove(0).id;
    kill_process(pid_of(&stage, &sandbox).await, Signal::KILL).unwrap();
    stage
        .event(
            "steady",
            "SandboxChanged",
            "Pod sandbox changed, it will be killed and re-created.",
        )
        .await;
    stage
        .wait("steady", "runs in another sandbox", async || {
            let now = stage.running_ids("steady").await;
            match now.len() == 1 && now != ids {
                true => Ok(()),
                false => Err(format!("{now:?}")),
            }
        })
        .await;
    stage.down().await;
}

/// A runtime that tells no events, as the distribution's containerd: the audit alone finds out.
pub async fn runtime_without_events() {
    let bed = Bed::up(BedOptions {
        containerd: Containerd::Debian,
        ..BedOptions::default()
    })
    .await
    .unwrap();
    let mut stage = Stage::on(bed, options(Value::Null));
    stage.start().await;
    let name = "quiet";
    let pod = stage
        .run(name, &single(name, tool("main", &["hold"])))
        .await;
    let uid = status::uid(&pod);
    let first = status::id(status::container(&pod, "main").unwrap());
    kill_process(pid_of(&stage, &first).await, Signal::KILL).unwrap();
    stage
        .until(name, "is restarted", |pod| {
            status::running(pod, "main")?;
            let last = status::ended_before(pod, "main")?;
            assert_eq!(last.exit_code, 137);
            Ok(())
        })
        .await;
    let before = stage.running_ids(name).await;
    stage.crash().await;
    stage.running(name).await;
    assert_eq!(stage.running_ids(name).await, before);
    stage.apply(name, &single(name, tool("main", &["hold", "longer"])));
    stage.gone(name, &uid).await;
    stage.running(name).await;
    stage.end(name).await;
    stage.down().await;
}
