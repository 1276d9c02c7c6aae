//! The agent killed at ten moments of a start and of a stop.

use std::collections::BTreeSet;

use krablet_cri::RuntimeService;
use krablet_cri::v1::{ContainerState, PodSandboxState};
use krablet_e2e::manifest::{pod, scratch_volume, scratched, shell, single, tool, with};
use krablet_e2e::moments::{Moment, doubled, reach};
use krablet_e2e::stage::NODE;
use krablet_e2e::{LONG, Stage, status};
use serde_json::{Value, json};

const BYSTANDERS: [&str; 2] = ["bystander-a", "bystander-b"];

/// A pod with enough steps in its life to be killed between, and a diary of starts.
fn victim(stage: &Stage, name: &str) -> Value {
    let scratch = stage.scratch(name);
    let note = |name: &str| {
        let script = format!(
            "echo start {name} >> /scratch/diary; trap 'echo stop {name} >> /scratch/diary; exit 0' TERM; \
             while :; do sleep 1000 & wait $!; done"
        );
        scratched(shell(name, &script))
    };
    pod(
        name,
        json!({
            "terminationGracePeriodSeconds": 20,
            "volumes": [
                scratch_volume(&scratch),
                {"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
            ],
            "initContainers": [scratched(shell("init", "echo init >> /scratch/diary"))],
            "containers": [note("one"), note("two")],
        }),
    )
}

/// The UID the agent will give the pod of this manifest.
fn uid_of(manifest: &Value, stage: &Stage, name: &str) -> String {
    let path = stage.krablet.manifests().join(format!("{name}.json"));
    let origin = krablet_manifest::Origin {
        place: krablet_manifest::Place::File(path.display().to_string()),
        node_name: NODE.to_owned(),
        references: krablet_manifest::References::None,
    };
    let decoded = krablet_manifest::decode(manifest.to_string().as_bytes(), &origin).unwrap();
    status::uid(&decoded.pods[0])
}

async fn bystanders(stage: &Stage) -> Vec<Vec<(String, String)>> {
    let mut all = Vec::new();
    for name in BYSTANDERS {
        all.push(stage.running_ids(name).await);
    }
    all
}

async fn start_bystanders(stage: &Stage) -> Vec<Vec<(String, String)>> {
    for name in BYSTANDERS {
        stage
            .run(name, &single(name, tool("main", &["hold"])))
            .await;
    }
    bystanders(stage).await
}

/// What runs of the pod before the kill must be what runs after it.
async fn crash_and_recover(stage: &mut Stage, name: &str, moment: &Moment) {
    let mut before = stage.running_ids(name).await;
    before.retain(|(container, _)| container != "init");
    stage.krablet.kill9().await.unwrap();
    stage.start().await;
    let pod = stage.running(name).await;
    let after = stage.running_ids(name).await;
    for running in &before {
        assert!(
            after.contains(running),
            "killed at {moment:?}: {running:?} was restarted; now {after:?}\n{}",
            stage.evidence(name)
        );
    }
    let names: Vec<&str> = after.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["one", "two"], "killed at {moment:?}");
    assert_eq!(
        doubled(stage, name).await,
        Vec::<String>::new(),
        "killed at {moment:?}"
    );
    let scratch = stage.scratch(name);
    for container in ["one", "two"] {
        let count = status::container(&pod, container).unwrap().restart_count;
        let start = format!("start {container}");
        stage
            .wait(name, "every start is accounted for", async || {
                let diary = stage.lines(&scratch, "diary");
                let starts = diary.iter().filter(|line| **line == start).count();
                // An instance that was made but not started before the kill counts as one.
                match (1..=1 + count as usize).contains(&starts) && count <= 1 {
                    true => Ok(()),
                    false => Err(format!("killed at {moment:?}, {count} restarts: {diary:?}")),
                }
            })
            .await;
    }
}

pub async fn killed_at_ten_moments_of_a_start() {
    use ContainerState::{ContainerCreated, ContainerExited, ContainerRunning};
    let mut stage = Stage::up(Value::Null).await;
    let others = start_bystanders(&stage).await;
    let moments = [
        Moment::Now,
        Moment::Logged("SyncLoop"),
        Moment::Directory(true),
        Moment::Sandbox(PodSandboxState::SandboxReady),
        Moment::Container("init", ContainerRunning),
        Moment::Container("init", ContainerExited),
        Moment::Container("one", ContainerCreated),
        Moment::Container("one", ContainerRunning),
        Moment::Container("two", ContainerRunning),
        Moment::Shown,
    ];
    for (number, moment) in moments.iter().enumerate() {
        let name = format!("start-{number}");
        let manifest = victim(&stage, &name);
        let log = stage.krablet.log().len();
        stage.apply(&name, &manifest);
        reach(
            &stage,
            &name,
            &uid_of(&manifest, &stage, &name),
            moment,
            log,
        )
        .await;
        crash_and_recover(&mut stage, &name, moment).await;
        assert_eq!(bystanders(&stage).await, others, "killed at {moment:?}");
        stage.remove(&name);
    }
    all_gone(&stage, "start-").await;
    assert_eq!(bystanders(&stage).await, others);
    stage.down().await;
}

pub async fn killed_at_ten_moments_of_a_stop() {
    use ContainerState::ContainerExited;
    let mut stage = Stage::up(Value::Null).await;
    let others = start_bystanders(&stage).await;
    let moments = [
        Moment::Now,
        Moment::Logged("SyncLoop"),
        Moment::Logged("Stopping container one"),
        Moment::Logged("Killing container with a grace period"),
        Moment::Container("one", ContainerExited),
        Moment::Container("two", ContainerExited),
        Moment::Sandbox(PodSandboxState::SandboxNotready),
        Moment::Unmounted,
        Moment::Directory(false),
        Moment::Cgroup(false),
    ];
    for (number, moment) in moments.iter().enumerate() {
        let name = format!("stop-{number}");
        let pod = stage.run(&name, &victim(&stage, &name)).await;
        let log = stage.krablet.log().len();
        stage.remove(&name);
        reach(&stage, &name, &status::uid(&pod), moment, log).await;
        stage.crash().await;
        stage.gone(&name, &status::uid(&pod)).await;
        assert_eq!(bystanders(&stage).await, others, "killed at {moment:?}");
        let diary = stage.lines(&stage.scratch(&name), "diary");
        let stops = diary.iter().filter(|line| line.starts_with("stop")).count();
        assert_eq!(
            stops, 2,
            "killed at {moment:?}: no container lost its grace: {diary:?}"
        );
    }
    all_gone(&stage, "stop-").await;
    assert_eq!(bystanders(&stage).await, others);
    stage.down().await;
}

/// A manifest is changed while the agent is away, or it dies in the middle of the change: the old
/// pod, which takes its time, is gone before the new one starts.
pub async fn changes_across_a_crash_do_not_overlap() {
    let mut stage = Stage::up(Value::Null).await;
    let version = |version: &str| {
        let container = with(
            tool("main", &["ignore-term"]),
            json!({"env": [{"name": "VERSION", "value": version}]}),
        );
        pod(
            "swap",
            json!({"terminationGracePeriodSeconds": 5, "containers": [container]}),
        )
    };
    let mut old = stage.run("swap", &version("0")).await;
    for round in 1..=4 {
        let name = "swap";
        let manifest = version(&round.to_string());
        if round % 2 == 0 {
            stage.krablet.kill9().await.unwrap();
            stage.apply(name, &manifest);
        } else {
            let log = stage.krablet.log().len();
            stage.apply(name, &manifest);
            let moment = Moment::Logged("Killing container with a grace period");
            reach(&stage, name, "", &moment, log).await;
            stage.krablet.kill9().await.unwrap();
        }
        stage.start().await;
        let before = status::id(status::container(&old, "main").unwrap());
        // Its end is read before it can be collected.
        let ended = stage
            .wait(name, "the old one ends", async || {
                let found = stage.runtime.container_status(&before).await;
                match found {
                    Ok(found) if found.finished_at > 0 => Ok(found.finished_at),
                    Ok(found) => Err(format!("{found:?}")),
                    Err(e) if e.is_not_found() => Ok(0),
                    Err(e) => Err(e.to_string()),
                }
            })
            .await;
        let uid = status::uid(&old);
        old = stage
            .until(name, "the new one runs", |pod| {
                status::all_running(pod)?;
                match status::uid(pod) == uid {
                    true => Err("still the old one".to_owned()),
                    false => Ok(pod.clone()),
                }
            })
            .await;
        let after = status::id(status::container(&old, "main").unwrap());
        let found = stage.runtime.container_status(&after).await.unwrap();
        assert!(
            found.created_at >= ended,
            "round {round}: the new one was made before the old one had ended\n{}",
            stage.evidence(name)
        );
        assert_eq!(doubled(&stage, name).await, Vec::<String>::new());
    }
    stage.down().await;
}

/// What has ended stays so: another agent neither runs a finished pod again nor its init
/// containers, and restarts go on being counted.
pub async fn what_is_done_stays_done() {
    let quick = json!({"crashLoopBackOff": {"maxContainerRestartPeriod": "1s"}});
    let mut stage = Stage::up(quick).await;
    let scratch = stage.scratch("done");
    let noted = |name: &str, then: &str| {
        let script = format!("echo {name} >> /scratch/diary; {then}");
        scratched(shell("main", &script))
    };
    let of = |name: &str, policy: &str, container: Value| {
        pod(
            name,
            json!({
                "restartPolicy": policy,
                "volumes": [scratch_volume(&scratch)],
                "containers": [container],
            }),
        )
    };
    stage.apply("good", &of("good", "Never", noted("good", "exit 0")));
    stage.apply("bad", &of("bad", "Never", noted("bad", "exit 3")));
    stage.apply("loop", &of("loop", "Always", noted("loop", "exit 1")));
    let mut prepared = of("prepared", "Always", tool("main", &["hold"]));
    prepared["spec"]["initContainers"] = json!([with(noted("init", ""), json!({"name": "init"}))]);
    stage.apply("prepared", &prepared);
    stage.phase("good", "Succeeded").await;
    stage.phase("bad", "Failed").await;
    stage.running("prepared").await;
    let mut count = 0;
    for _ in 0..3 {
        stage.crash().await;
        stage.phase("good", "Succeeded").await;
        let bad = stage.phase("bad", "Failed").await;
        assert_eq!(status::ended(&bad, "main").unwrap().exit_code, 3);
        let prepared = stage.running("prepared").await;
        assert_eq!(
            status::container(&prepared, "main").unwrap().restart_count,
            0
        );
        count = stage
            .until("loop", "is restarted once more", |pod| {
                let now = status::container(pod, "main")?.restart_count;
                assert!(
                    now >= count,
                    "the count fell from {count}: {}",
                    status::shown(pod)
                );
                match now > count {
                    true => Ok(now),
                    false => Err(status::shown(pod)),
                }
            })
            .await;
    }
    let diary = stage.lines(&scratch, "diary");
    let times = |what: &str| diary.iter().filter(|line| *line == what).count();
    assert_eq!(
        (times("good"), times("bad"), times("init")),
        (1, 1, 1),
        "{diary:?}"
    );
    for name in ["good", "bad", "loop", "prepared"] {
        stage.end(name).await;
    }
    stage.down().await;
}

/// Nothing of the victims is left: not in the runtime, not on disk, not mounted, no cgroup.
async fn all_gone(stage: &Stage, victims: &str) {
    let mut kept = Vec::new();
    for name in BYSTANDERS {
        kept.push(status::uid(&stage.running(name).await));
    }
    let mut freed = BTreeSet::new();
    stage
        .wait_long(2 * LONG, victims, "nothing is left", async || {
            stage.free_cut_off_starts(&mut freed).await;
            let left: Vec<String> = stage
                .in_runtime()
                .await
                .into_iter()
                .filter(|line| line.contains(victims))
                .collect();
            let pods = std::fs::read_dir(stage.krablet.root_dir().join("pods"));
            let directories = pods.unwrap().flatten().map(|entry| entry.path());
            let mut held: Vec<String> = directories.map(|dir| dir.display().to_string()).collect();
            held.extend(stage.cgroups());
            held.retain(|place| !kept.iter().any(|uid| place.contains(uid)));
            match left.is_empty() && held.is_empty() {
                true => Ok(()),
                false => Err(format!("{left:?}, {held:?}")),
            }
        })
        .await;
}
