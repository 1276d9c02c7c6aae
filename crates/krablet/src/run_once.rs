//! `runOnce`: start what the sources hold, wait until each pod runs or has ended, report, exit.

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use krablet_agent::AgentHandle;
use krablet_pod::PodRef;
use krablet_pod::api::{Pod, PodStatus};
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
pub async fn wait(handle: &AgentHandle, sources: &BTreeSet<PodSource>) -> ExitCode {
    let deadline = Instant::now() + LIMIT;
    let mut changes = handle.status.changes();
    loop {
        let ready = handle.desired.sources_ready(sources);
        let pods = standings(handle);
        let waiting = !ready || pods.iter().any(|(_, s)| matches!(s, Standing::NotYet(_)));
        if !waiting || Instant::now() >= deadline {
            return report(&pods, ready);
        }
        // A source that delivers an empty set rings no bell: look again now and then.
        let pause = Duration::from_millis(if ready { 1000 } else { 50 });
        let _ = tokio::time::timeout(pause, changes.changed()).await;
    }
}

fn standings(handle: &AgentHandle) -> Vec<(PodRef, Standing)> {
    let of = |pod: Arc<Pod>| {
        let pod_ref = PodRef::of(&pod);
        let status = handle.status.status(&pod_ref.uid);
        let standing = standing(status.as_deref());
        (pod_ref, standing)
    };
    handle.desired.all().into_iter().map(of).collect()
}

fn standing(status: Option<&PodStatus>) -> Standing {
    let Some(status) = status else {
        return Standing::NotYet("not seen yet".into());
    };
    match status.phase.as_deref() {
        Some("Running") => Standing::Running,
        Some("Succeeded") => Standing::Succeeded,
        Some("Failed") => {
            let reason = status.reason.as_deref().unwrap_or("Error");
            Standing::Failed(reason.to_owned())
        }
        _ => {
            let lists = [&status.init_container_statuses, &status.container_statuses];
            let waiting = lists.into_iter().flatten().flatten().find_map(|c| {
                let waiting = c.state.as_ref()?.waiting.as_ref()?;
                Some(format!("{}: {}", c.name, waiting.reason.as_deref()?))
            });
            Standing::NotYet(waiting.unwrap_or_else(|| "Pending".into()))
        }
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
    use super::*;

    #[test]
    fn phases_and_waiting_reasons() {
        let status = |json: serde_json::Value| serde_json::from_value::<PodStatus>(json).unwrap();
        let waiting = serde_json::json!({"phase": "Pending", "containerStatuses": [
            {"name": "a", "image": "", "imageID": "", "ready": false, "restartCount": 0,
             "state": {"waiting": {"reason": "ErrImagePull"}}}]});
        let cases = [
            (serde_json::json!({"phase": "Running"}), Standing::Running),
            (
                serde_json::json!({"phase": "Succeeded"}),
                Standing::Succeeded,
            ),
            (
                serde_json::json!({"phase": "Failed"}),
                Standing::Failed("Error".into()),
            ),
            (
                serde_json::json!({"phase": "Pending"}),
                Standing::NotYet("Pending".into()),
            ),
            (waiting, Standing::NotYet("a: ErrImagePull".into())),
        ];
        for (json, expected) in cases {
            assert_eq!(standing(Some(&status(json.clone()))), expected, "{json}");
        }
        assert_eq!(standing(None), Standing::NotYet("not seen yet".into()));
    }
}
