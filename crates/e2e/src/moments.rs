//! Moments in the life of a pod, to do something violent at: each is the first time that
//! something can be seen from outside, so they need no clock.

use std::time::Duration;

use krablet_cri::{RuntimeService, v1};
use krablet_pod::labels;
use krablet_testbed::Krablet;
use tokio::time::{Instant, timeout_at};

use crate::stage::{LONG, Stage, container_name, full};

/// What must be seen for the moment to have come.
#[derive(Clone, Debug)]
pub enum Moment {
    /// At once.
    Now,
    /// The agent has logged this text in a line about the pod.
    Logged(&'static str),
    /// The pod has a directory, or none any more.
    Directory(bool),
    /// The pod has a cgroup, or none any more.
    Cgroup(bool),
    /// Nothing is mounted for the pod any more.
    Unmounted,
    /// The pod has a sandbox, in that state.
    Sandbox(v1::PodSandboxState),
    /// A container of the pod is in that state or past it.
    Container(&'static str, v1::ContainerState),
    /// The agent itself shows the pod as running.
    Shown,
}

/// Waits for the moment as closely as can be.
pub async fn reach(stage: &Stage, name: &str, uid: &str, moment: &Moment, log_from: usize) {
    let end = Instant::now() + LONG;
    let mut pause = tokio::time::interval(Duration::from_millis(1));
    loop {
        match timeout_at(end, has_come(stage, name, uid, moment, log_from)).await {
            Ok(true) => return,
            Ok(false) => {}
            Err(_) => panic!(
                "the moment {moment:?} of {name} does not come\n{}",
                stage.evidence(name)
            ),
        }
        assert!(
            Instant::now() < end,
            "the moment {moment:?} of {name} does not come\n{}",
            stage.evidence(name)
        );
        pause.tick().await;
    }
}

async fn has_come(stage: &Stage, name: &str, uid: &str, moment: &Moment, log_from: usize) -> bool {
    match moment {
        Moment::Now => true,
        Moment::Logged(text) => log_since(&stage.krablet, log_from)
            .lines()
            .any(|line| line.contains(text) && line.contains(name)),
        Moment::Directory(wanted) => {
            let dir = stage.krablet.root_dir().join("pods").join(uid);
            dir.exists() == *wanted
        }
        Moment::Cgroup(wanted) => {
            stage.cgroups().iter().any(|cgroup| cgroup.contains(uid)) == *wanted
        }
        Moment::Unmounted => {
            let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
            !mounts.contains(&format!("/pods/{uid}/volumes/"))
        }
        Moment::Sandbox(state) => {
            let all = stage.sandboxes(name).await;
            all.iter().any(|s| s.state == *state as i32)
        }
        Moment::Container(container, state) => {
            let all = stage.containers(name).await;
            // Created, running, exited are numbered in that order.
            all.iter()
                .any(|c| container_name(c) == *container && c.state >= *state as i32)
        }
        Moment::Shown => {
            let pod = stage.pod(name).await;
            pod.is_ok_and(|pod| crate::status::all_running(&pod).is_ok())
        }
    }
}

/// What the agent has logged after its first `from` bytes.
fn log_since(krablet: &Krablet, from: usize) -> String {
    krablet.log().get(from..).unwrap_or_default().to_owned()
}

/// Containers of the pod that run twice under one name, and ready sandboxes beyond one.
pub async fn doubled(stage: &Stage, name: &str) -> Vec<String> {
    let mut found = Vec::new();
    let running = stage.running_ids(name).await;
    for pair in running.windows(2) {
        if pair[0].0 == pair[1].0 {
            found.push(format!("container {} runs twice", pair[0].0));
        }
    }
    let sandboxes = stage.runtime.list_pod_sandbox(None).await.unwrap();
    let ready = sandboxes
        .iter()
        .filter(|s| s.labels.get(labels::POD_NAME) == Some(&full(name)))
        .filter(|s| s.state == v1::PodSandboxState::SandboxReady as i32)
        .count();
    if ready > 1 {
        found.push(format!("{ready} sandboxes are ready"));
    }
    found
}
