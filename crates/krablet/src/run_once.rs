//! `runOnce`: start what the sources hold, wait until each pod runs or has ended, report, exit.

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use krablet_agent::AgentHandle;
use krablet_core::restart::{RestartGates, should_restart};
use krablet_pod::PodRef;
use krablet_pod::api::{Container, ContainerStatus, Pod, PodSpec, PodStatus};
use krablet_pod::marks::PodSource;
use tokio::time::Instant;

/// A pod that does not get there in this time has failed.
const LIMIT: Duration = Duration::from_secs(300);

/// How a pod stands.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Standing {
    Running,
    Succeeded,
    Failed(String),
    NotYet(String),
}

/// Exit code 0: every pod runs or has succeeded. 1: one has failed or did not start in time.
pub async fn wait(
    handle: &AgentHandle,
    sources: &BTreeSet<PodSource>,
    gates: RestartGates,
) -> ExitCode {
    let deadline = Instant::now() + LIMIT;
    let mut changes = handle.status.changes();
    loop {
        let ready = handle.desired.sources_ready(sources);
        let pods = standings(handle, gates);
        let waiting = !ready || pods.iter().any(|(_, s)| matches!(s, Standing::NotYet(_)));
        if !waiting || Instant::now() >= deadline {
            return report(&pods, ready);
        }
        // A source that delivers an empty set rings no bell: look again now and then.
        let pause = Duration::from_millis(if ready { 1000 } else { 50 });
        let _ = tokio::time::timeout(pause, changes.changed()).await;
    }
}

fn standings(handle: &AgentHandle, gates: RestartGates) -> Vec<(PodRef, Standing)> {
    let of = |pod: Arc<Pod>| {
        let pod_ref = PodRef::of(&pod);
        let status = handle.status.status(&pod_ref.uid);
        let standing = standing(&pod, status.as_deref(), gates);
        (pod_ref, standing)
    };
    handle.desired.all().into_iter().map(of).collect()
}

fn standing(pod: &Pod, status: Option<&PodStatus>, gates: RestartGates) -> Standing {
    let Some(status) = status else {
        return Standing::NotYet("not seen yet".into());
    };
    match status.phase.as_deref() {
        Some("Running") => all_run(pod, status, gates),
        Some("Succeeded") => Standing::Succeeded,
        Some("Failed") => {
            let reason = status.reason.as_deref().unwrap_or("Error");
            Standing::Failed(reason.to_owned())
        }
        _ => {
            let lists = [&status.init_container_statuses, &status.container_statuses];
            let waiting = lists.into_iter().flatten().flatten().find_map(waits);
            Standing::NotYet(waiting.unwrap_or_else(|| "Pending".into()))
        }
    }
}

/// What a container waits for, in a word.
fn waits(container: &ContainerStatus) -> Option<String> {
    let waiting = container.state.as_ref()?.waiting.as_ref()?;
    Some(format!(
        "{}: {}",
        container.name,
        waiting.reason.as_deref()?
    ))
}

/// A pod counts as running as soon as one of its containers has run, and for as long as it crashes again
/// and again: each of them has to run, or to be done. The worst of them tells.
fn all_run(pod: &Pod, status: &PodStatus, gates: RestartGates) -> Standing {
    let Some(spec) = &pod.spec else {
        return Standing::Running;
    };
    let mut late = None;
    for container in &spec.containers {
        let statuses = status.container_statuses.iter().flatten();
        let seen = statuses.into_iter().find(|s| s.name == container.name);
        match container_standing(spec, container, seen, gates) {
            failed @ Standing::Failed(_) => return failed,
            not_yet @ Standing::NotYet(_) => late = late.or(Some(not_yet)),
            Standing::Running | Standing::Succeeded => {}
        }
    }
    late.unwrap_or(Standing::Running)
}

fn container_standing(
    spec: &PodSpec,
    container: &Container,
    seen: Option<&ContainerStatus>,
    gates: RestartGates,
) -> Standing {
    let name = &container.name;
    let state = seen.and_then(|seen| seen.state.as_ref());
    if state.is_some_and(|state| state.running.is_some()) {
        return Standing::Running;
    }
    let Some(ended) = state.and_then(|state| state.terminated.as_ref()) else {
        let waiting = seen.and_then(waits);
        return Standing::NotYet(waiting.unwrap_or_else(|| format!("{name}: not started")));
    };
    let code = ended.exit_code;
    match should_restart(spec, container, code, gates).restarts() {
        true => Standing::NotYet(format!("{name}: ended with {code}, is to be restarted")),
        false if code == 0 => Standing::Succeeded,
        false => Standing::Failed(format!("{name}: ended with {code}")),
    }
}

fn report(pods: &[(PodRef, Standing)], ready: bool) -> ExitCode {
    let mut code = ExitCode::SUCCESS;
    if !ready {
        println!("a source of pods did not answer in time");
        code = ExitCode::FAILURE;
    }
    for (pod, standing) in pods {
        match standing {
            Standing::Running => println!("{pod}: running"),
            Standing::Succeeded => println!("{pod}: succeeded"),
            Standing::Failed(why) => {
                println!("{pod}: failed ({why})");
                code = ExitCode::FAILURE;
            }
            Standing::NotYet(why) => {
                println!("{pod}: did not start in time ({why})");
                code = ExitCode::FAILURE;
            }
        }
    }
    println!("{} pods", pods.len());
    code
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn stands(spec: Value, status: Value) -> Standing {
        let pod: Pod = serde_json::from_value(json!({"metadata": {}, "spec": spec})).unwrap();
        let status = serde_json::from_value::<PodStatus>(status).unwrap();
        standing(&pod, Some(&status), RestartGates::default())
    }

    fn not_yet(why: &str) -> Standing {
        Standing::NotYet(why.to_owned())
    }

    fn failed(why: &str) -> Standing {
        Standing::Failed(why.to_owned())
    }

    /// The status of a container.
    fn seen(name: &str, state: Value) -> Value {
        json!({"name": name, "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state})
    }

    #[test]
    fn phases_and_waiting_reasons() {
        let waiting = seen("a", json!({"waiting": {"reason": "ErrImagePull"}}));
        let cases = [
            (json!({"phase": "Succeeded"}), Standing::Succeeded),
            (json!({"phase": "Failed"}), failed("Error")),
            (
                json!({"phase": "Failed", "reason": "DeadlineExceeded"}),
                failed("DeadlineExceeded"),
            ),
            (json!({"phase": "Pending"}), not_yet("Pending")),
            (
                json!({"phase": "Pending", "containerStatuses": [waiting]}),
                not_yet("a: ErrImagePull"),
            ),
        ];
        for (status, expected) in cases {
            let found = stands(json!({"containers": [{"name": "a"}]}), status.clone());
            assert_eq!(found, expected, "{status}");
        }
        let unseen = standing(&Pod::default(), None, RestartGates::default());
        assert_eq!(unseen, not_yet("not seen yet"));
    }

    #[test]
    fn in_a_running_pod_every_container_has_to_run_or_to_be_done() {
        let running = json!({"running": {}});
        let waiting = |reason: &str| json!({"waiting": {"reason": reason}});
        let ended = |code: i32| json!({"terminated": {"exitCode": code}});
        let again = |code: i32| not_yet(&format!("a: ended with {code}, is to be restarted"));
        let crash = waiting("CrashLoopBackOff");
        for (policy, state, expected) in [
            ("Always", running.clone(), Standing::Running),
            ("Never", running.clone(), Standing::Running),
            ("Always", crash.clone(), not_yet("a: CrashLoopBackOff")),
            ("OnFailure", crash, not_yet("a: CrashLoopBackOff")),
            (
                "Never",
                waiting("ContainerCreating"),
                not_yet("a: ContainerCreating"),
            ),
            ("Always", json!({}), not_yet("a: not started")),
            ("Always", ended(0), again(0)),
            ("Always", ended(3), again(3)),
            ("OnFailure", ended(0), Standing::Running),
            ("OnFailure", ended(3), again(3)),
            ("Never", ended(0), Standing::Running),
            ("Never", ended(3), failed("a: ended with 3")),
        ] {
            // The other one runs, so the pod does, whatever this one does.
            let spec =
                json!({"restartPolicy": policy, "containers": [{"name": "a"}, {"name": "b"}]});
            let all = [seen("a", state.clone()), seen("b", running.clone())];
            let status = json!({"phase": "Running", "containerStatuses": all});
            assert_eq!(stands(spec, status), expected, "{policy} {state}");
        }
    }

    #[test]
    fn the_worst_container_tells_and_its_own_policy_goes_before_the_pods() {
        let spec = json!({"restartPolicy": "Always", "containers": [
            {"name": "late"}, {"name": "unseen"}, {"name": "ends", "restartPolicy": "Never"}]});
        let with = |code: i32| {
            let all = [
                seen("late", json!({"waiting": {"reason": "CrashLoopBackOff"}})),
                seen("ends", json!({"terminated": {"exitCode": code}})),
            ];
            json!({"phase": "Running", "containerStatuses": all})
        };
        assert_eq!(stands(spec.clone(), with(7)), failed("ends: ended with 7"));
        assert_eq!(stands(spec, with(0)), not_yet("late: CrashLoopBackOff"));
    }
}
