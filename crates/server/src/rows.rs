//! A pod as one row of a table: the columns people know, plus its last event.

use std::collections::BTreeSet;

use jiff::Timestamp;
use krablet_events::{Event, Recorder};
use krablet_pod::api::{ContainerStatus, Pod, PodStatus};
use krablet_pod::containers;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodRow {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub ready: usize,
    pub containers: usize,
    /// The phase, or what keeps the pod from it (`CrashLoopBackOff`, `Init:0/1`, `Terminating`).
    pub status: String,
    pub restarts: i32,
    /// Seconds since the pod started.
    pub age_seconds: i64,
    pub ip: String,
    /// `Reason: message` of the newest event.
    pub last_event: String,
}

const TERMINATING: &str = "Terminating";

/// Rows of all pods, by namespace and name. `ending` are those that no source wants any more: static pods have no
/// other sign of it. Such a pod stands above its successor of the same name.
pub fn pod_rows(pods: &[Pod], ending: &[Pod], recorder: &Recorder, now: Timestamp) -> Vec<PodRow> {
    let events = crate::last_events(recorder);
    let uid = |pod: &Pod| pod.metadata.uid.clone().unwrap_or_default();
    let made = |pod: &Pod| row(pod, events.get(&uid(pod)), now);
    let old: BTreeSet<String> = ending.iter().map(uid).collect();
    let last = ending.iter().map(|pod| PodRow {
        status: TERMINATING.to_owned(),
        ..made(pod)
    });
    // A pod that came back is told of when its last life has ended.
    let wanted = pods.iter().filter(|pod| !old.contains(&uid(pod)));
    let mut rows: Vec<PodRow> = last.chain(wanted.map(made)).collect();
    rows.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
    rows
}

fn row(pod: &Pod, event: Option<&Event>, now: Timestamp) -> PodRow {
    let empty = PodStatus::default();
    let status = pod.status.as_ref().unwrap_or(&empty);
    let regular = status.container_statuses.as_deref().unwrap_or_default();
    let init = status
        .init_container_statuses
        .as_deref()
        .unwrap_or_default();
    let sidecars = init.iter().filter(|s| is_sidecar(pod, &s.name));
    let counted = || regular.iter().chain(sidecars.clone());
    let spec = pod.spec.as_ref();
    let in_spec = spec.map_or(0, |s| {
        let sidecars = containers::init_containers(s)
            .iter()
            .filter(|c| containers::is_sidecar(c));
        s.containers.len() + sidecars.count()
    });
    PodRow {
        namespace: pod.metadata.namespace.clone().unwrap_or_default(),
        name: pod.metadata.name.clone().unwrap_or_default(),
        uid: pod.metadata.uid.clone().unwrap_or_default(),
        ready: counted().filter(|s| s.ready && is_running(s)).count(),
        containers: in_spec,
        status: shown_status(pod, status, init, regular),
        restarts: regular.iter().chain(init).map(|s| s.restart_count).sum(),
        age_seconds: status
            .start_time
            .as_ref()
            .map_or(0, |t| now.duration_since(t.0).as_secs().max(0)),
        ip: status.pod_ip.clone().unwrap_or_default(),
        last_event: event.map_or_else(String::new, |e| format!("{}: {}", e.reason, e.message)),
    }
}

fn is_sidecar(pod: &Pod, name: &str) -> bool {
    pod.spec
        .as_ref()
        .and_then(|s| containers::find(s, name))
        .is_some_and(|c| containers::is_sidecar(c.container))
}

fn is_running(s: &ContainerStatus) -> bool {
    s.state.as_ref().is_some_and(|s| s.running.is_some())
}

/// What stands in the STATUS column, by the rules `kubectl get pods` goes by.
fn shown_status(
    pod: &Pod,
    status: &PodStatus,
    init: &[ContainerStatus],
    regular: &[ContainerStatus],
) -> String {
    if pod.metadata.deletion_timestamp.is_some() {
        return TERMINATING.to_owned();
    }
    if let Some(initialising) = init_status(pod, init) {
        return initialising;
    }
    let phase = status.phase.clone().unwrap_or_else(|| "Pending".to_owned());
    let mut shown = status.reason.clone().unwrap_or(phase.clone());
    let mut running = false;
    for s in regular.iter().rev() {
        match trouble(s) {
            Some(reason) => shown = reason,
            None => running |= is_running(s) && s.ready,
        }
    }
    if shown == "Completed" && running {
        return if phase == "Running" {
            phase
        } else {
            "NotReady".to_owned()
        };
    }
    shown
}

/// Why a container does not run, if it does not.
fn trouble(s: &ContainerStatus) -> Option<String> {
    let state = s.state.as_ref()?;
    if let Some(waiting) = &state.waiting {
        return waiting.reason.clone().filter(|r| !r.is_empty());
    }
    let ended = state.terminated.as_ref()?;
    match ended.reason.as_deref() {
        Some(reason) if !reason.is_empty() => Some(reason.to_owned()),
        _ => match ended.signal {
            Some(signal) if signal != 0 => Some(format!("Signal:{signal}")),
            _ => Some(format!("ExitCode:{}", ended.exit_code)),
        },
    }
}

/// `Init:1/2` and the like, while init containers are at work.
fn init_status(pod: &Pod, init: &[ContainerStatus]) -> Option<String> {
    let total = pod
        .spec
        .as_ref()
        .map_or(0, |s| containers::init_containers(s).len());
    for (index, s) in init.iter().enumerate() {
        let state = s.state.as_ref();
        let ended = state.and_then(|s| s.terminated.as_ref());
        if ended.is_some_and(|t| t.exit_code == 0) {
            continue;
        }
        if is_sidecar(pod, &s.name) && s.started == Some(true) {
            continue;
        }
        let waiting = state
            .and_then(|s| s.waiting.as_ref())
            .and_then(|w| w.reason.as_deref())
            .filter(|r| !r.is_empty() && *r != "PodInitializing");
        return Some(match (ended, waiting) {
            (Some(_), _) => format!("Init:{}", trouble(s).unwrap_or_default()),
            (None, Some(reason)) => format!("Init:{reason}"),
            (None, None) => format!("Init:{index}/{total}"),
        });
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn shown(value: serde_json::Value) -> (String, usize, usize) {
        let pod: Pod = serde_json::from_value(value).unwrap();
        let row = row(&pod, None, Timestamp::UNIX_EPOCH);
        (row.status, row.ready, row.containers)
    }

    #[test]
    fn status_column() {
        let spec = json!({"containers": [{"name": "a"}]});
        let with = |state: serde_json::Value, ready: bool| {
            json!({"spec": spec, "status": {"phase": "Running", "containerStatuses": [
                {"name": "a", "image": "", "imageID": "", "ready": ready, "restartCount": 0, "state": state}]}})
        };
        let cases = [
            (json!({"spec": spec}), "Pending", 0),
            (with(json!({"running": {}}), true), "Running", 1),
            (
                with(json!({"waiting": {"reason": "CrashLoopBackOff"}}), false),
                "CrashLoopBackOff",
                0,
            ),
            (
                with(
                    json!({"terminated": {"exitCode": 3, "reason": "Error"}}),
                    false,
                ),
                "Error",
                0,
            ),
            (
                with(json!({"terminated": {"exitCode": 3}}), false),
                "ExitCode:3",
                0,
            ),
            (
                with(json!({"terminated": {"exitCode": 0, "signal": 9}}), false),
                "Signal:9",
                0,
            ),
        ];
        for (pod, status, ready) in cases {
            assert_eq!(shown(pod.clone()), (status.to_owned(), ready, 1), "{pod}");
        }
    }

    #[test]
    fn pods_that_end_stand_above_their_successors() {
        let pod = |name: &str, uid: &str| -> Pod {
            serde_json::from_value(json!({
                "metadata": {"namespace": "ns", "name": name, "uid": uid},
                "spec": {"containers": [{"name": "a"}]},
                "status": {"phase": "Running"},
            }))
            .unwrap()
        };
        let wanted = [pod("web", "new"), pod("back", "same"), pod("a", "a")];
        let ending = [pod("web", "old"), pod("back", "same"), pod("gone", "gone")];
        let recorder = Recorder::new(|| Timestamp::UNIX_EPOCH);
        let rows = pod_rows(&wanted, &ending, &recorder, Timestamp::UNIX_EPOCH);
        let shown: Vec<String> = rows
            .iter()
            .map(|r| format!("{} {} {}", r.name, r.uid, r.status))
            .collect();
        assert_eq!(
            shown,
            [
                "a a Running",
                "back same Terminating",
                "gone gone Terminating",
                "web old Terminating",
                "web new Running",
            ]
        );
    }

    #[test]
    fn init_containers_and_sidecars_show_their_progress() {
        let spec = json!({
            "initContainers": [{"name": "i"}, {"name": "s", "restartPolicy": "Always"}],
            "containers": [{"name": "a"}],
        });
        let with = |i: serde_json::Value, s: serde_json::Value, started: bool| {
            let status = |name: &str, state, started: bool| {
                json!({
                "name": name, "image": "", "imageID": "", "ready": started, "started": started,
                "restartCount": 1, "state": state})
            };
            json!({"spec": spec, "status": {"phase": "Pending", "initContainerStatuses": [
                status("i", i, false), status("s", s, started)]}})
        };
        let waiting = json!({"waiting": {"reason": "PodInitializing"}});
        let done = json!({"terminated": {"exitCode": 0}});
        let cases = [
            (
                with(json!({"running": {}}), waiting.clone(), false),
                "Init:0/2",
                0,
            ),
            (
                with(
                    json!({"terminated": {"exitCode": 1, "reason": "Error"}}),
                    waiting.clone(),
                    false,
                ),
                "Init:Error",
                0,
            ),
            (with(done.clone(), waiting.clone(), false), "Init:1/2", 0),
            (
                with(
                    done.clone(),
                    json!({"waiting": {"reason": "ErrImagePull"}}),
                    false,
                ),
                "Init:ErrImagePull",
                0,
            ),
            (with(done, json!({"running": {}}), true), "Pending", 1),
        ];
        for (pod, status, ready) in cases {
            assert_eq!(shown(pod.clone()), (status.to_owned(), ready, 2), "{pod}");
        }
    }
}
