//! `/containerLogs`: what a container has written.

use axum::body::Body;
use axum::extract::{Path, Query, State};
use axum::response::{IntoResponse, Response};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use http::{StatusCode, header};
use krablet_logs::{LogError, LogReader};
use krablet_pod::api::{ContainerState, ContainerStatus, PodStatus};
use krablet_pod::{PodRef, PodUid};

use super::place::{Place, terminal};
use super::query::log_query;
use super::{Door, SharedDoor};
use crate::answers::refuse;

pub(super) async fn container_logs(
    State(door): State<SharedDoor>,
    Path(place): Path<Place>,
    Query(pairs): Query<Vec<(String, String)>>,
) -> Response {
    let query = match log_query(&pairs, door.parts.view.now()) {
        Ok(query) => query,
        Err((code, why)) => return refuse(code, why),
    };
    let Some(pod) = door.pod(&place) else {
        let why = format!("pod {:?} does not exist", place.pod);
        return refuse(StatusCode::NOT_FOUND, why);
    };
    if terminal(&pod, &place.container).is_none() {
        let why = format!(
            "container {:?} not found in pod {:?}",
            place.container, place.pod
        );
        return refuse(StatusCode::NOT_FOUND, why);
    }
    if let Some(stream) = query.options.stream.filter(|_| !door.parts.split_logs) {
        let why = format!(
            "unable to return the given log stream: \"{stream:?}\". \
             Please enable PodLogsQuerySplitStreams feature gate in kubelet"
        );
        return refuse(StatusCode::BAD_REQUEST, why);
    }
    let id = match logged_instance(pod.status.as_ref(), &place, query.previous) {
        Ok(id) => id,
        Err(why) => return refuse(StatusCode::BAD_REQUEST, why),
    };
    let runtime_id = id.split_once("://").map_or(id.as_str(), |(_, id)| id);
    let path = match door.parts.runtime.container_status(runtime_id).await {
        Ok(status) => status.log_path,
        Err(e) => {
            let why = format!("unable to retrieve container logs for {id}: {e}");
            return refuse(StatusCode::BAD_REQUEST, why);
        }
    };
    let uid = PodRef::of(&pod).uid;
    let ended = ended(door.clone(), uid, place.container, id);
    let reader = LogReader::open(path.as_ref(), &query.options, &door.log_watch, ended).await;
    match reader {
        Ok(reader) => pieces(reader),
        // The log is there, and the node cannot tell when it grows.
        Err(e @ LogError::Watch { .. }) => {
            tracing::warn!(err = %e, "A log cannot be followed");
            refuse(StatusCode::INTERNAL_SERVER_ERROR, e.to_string())
        }
        Err(e) => refuse(StatusCode::BAD_REQUEST, e.to_string()),
    }
}

/// Read as fast as it is taken, and not faster; whoever goes away ends it.
fn pieces(reader: LogReader) -> Response {
    let pieces = futures::stream::try_unfold(reader, |mut reader| async move {
        let piece = reader.next().await?;
        Ok::<_, LogError>(piece.map(|piece| (piece, reader)))
    });
    let text = [(header::CONTENT_TYPE, "text/plain")];
    (text, Body::from_stream(pieces)).into_response()
}

/// Ready when the status does not say any more that this instance runs.
fn ended(door: SharedDoor, uid: PodUid, name: String, id: String) -> BoxFuture<'static, ()> {
    let mut changes = door.parts.view.pod_changes();
    let wait =
        async move { while runs(&door, &uid, &name, &id) && changes.changed().await.is_ok() {} };
    wait.boxed()
}

fn runs(door: &Door, uid: &PodUid, name: &str, id: &str) -> bool {
    let status = door.parts.inside.status(uid);
    let container = status.as_ref().and_then(|status| find(status, name));
    container.is_some_and(|c| {
        let state = c.state.as_ref();
        let running = state.is_some_and(|s| s.running.is_some());
        running && c.container_id.as_deref() == Some(id)
    })
}

fn find<'a>(status: &'a PodStatus, name: &str) -> Option<&'a ContainerStatus> {
    let lists = [
        &status.container_statuses,
        &status.init_container_statuses,
        &status.ephemeral_container_statuses,
    ];
    let mut all = lists.into_iter().flatten().flatten();
    all.find(|c| c.name == name)
}

/// The id of the instance whose log is meant, or why there is none.
fn logged_instance(
    status: Option<&PodStatus>,
    place: &Place,
    previous: bool,
) -> Result<String, String> {
    let name = format!("{:?} in pod {:?}", place.container, place.pod);
    let found = status.and_then(|status| find(status, &place.container));
    let Some(container) = found else {
        return Err(format!("container {name} is not available"));
    };
    let ended = |state: &Option<ContainerState>| {
        let end = state.as_ref()?.terminated.as_ref()?;
        Some(end.container_id.clone().filter(|id| !id.is_empty()))
    };
    let last = ended(&container.last_state);
    if previous {
        let missing = || format!("previous terminated container {name} not found");
        return last.flatten().ok_or_else(missing);
    }
    let state = container.state.as_ref();
    if state.is_some_and(|s| s.running.is_some()) {
        return Ok(container.container_id.clone().unwrap_or_default());
    }
    let over = || format!("container {name} is terminated");
    match (ended(&container.state), last) {
        (Some(Some(id)), _) => Ok(id),
        (Some(None), last) => last.flatten().ok_or_else(over),
        (None, Some(last)) => last.ok_or_else(over),
        (None, None) => Err(waiting(container, &name)),
    }
}

fn waiting(container: &ContainerStatus, name: &str) -> String {
    let waiting = container.state.as_ref().and_then(|s| s.waiting.as_ref());
    let Some(waiting) = waiting else {
        return format!("container {name} is waiting to start - no logs yet");
    };
    let why = match waiting.reason.as_deref().unwrap_or_default() {
        "ErrImagePull" => "image can't be pulled",
        "ImagePullBackOff" => "trying and failing to pull image",
        other => other,
    };
    format!("container {name} is waiting to start: {why}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use krablet_pod::api::{
        ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting,
    };

    fn state(text: &str) -> Option<ContainerState> {
        let mut state = ContainerState::default();
        match text.split_once(':').unwrap_or((text, "")) {
            ("run", _) => state.running = Some(ContainerStateRunning::default()),
            ("end", id) => {
                state.terminated = Some(ContainerStateTerminated {
                    container_id: Some(id.to_owned()),
                    ..ContainerStateTerminated::default()
                });
            }
            ("wait", reason) => {
                state.waiting = Some(ContainerStateWaiting {
                    reason: Some(reason.to_owned()),
                    message: None,
                });
            }
            _ => return None,
        }
        Some(state)
    }

    #[test]
    fn which_instance_is_meant() {
        let place = Place {
            namespace: "ns".into(),
            pod: "p".into(),
            uid: None,
            container: "c".into(),
        };
        let cases = [
            ("run", "", false, "now"),
            ("run", "end:old", true, "old"),
            (
                "run",
                "",
                true,
                r#"previous terminated container "c" in pod "p" not found"#,
            ),
            ("end:x", "", false, "x"),
            ("end:", "end:old", false, "old"),
            (
                "end:",
                "",
                false,
                r#"container "c" in pod "p" is terminated"#,
            ),
            ("wait:CrashLoopBackOff", "end:old", false, "old"),
            (
                "wait:CrashLoopBackOff",
                "end:",
                false,
                r#"container "c" in pod "p" is terminated"#,
            ),
            (
                "wait:ErrImagePull",
                "",
                false,
                r#"container "c" in pod "p" is waiting to start: image can't be pulled"#,
            ),
            (
                "wait:ContainerCreating",
                "",
                false,
                r#"container "c" in pod "p" is waiting to start: ContainerCreating"#,
            ),
            (
                "",
                "",
                false,
                r#"container "c" in pod "p" is waiting to start - no logs yet"#,
            ),
        ];
        for (now, last, previous, expected) in cases {
            let status = PodStatus {
                container_statuses: Some(vec![ContainerStatus {
                    name: "c".into(),
                    container_id: Some("now".into()),
                    state: state(now),
                    last_state: state(last),
                    ..ContainerStatus::default()
                }]),
                ..PodStatus::default()
            };
            let found = logged_instance(Some(&status), &place, previous);
            let found = found.unwrap_or_else(|why| why);
            assert_eq!(found, expected, "{now} {last} {previous}");
        }
        let none = logged_instance(None, &place, false).unwrap_err();
        assert_eq!(none, r#"container "c" in pod "p" is not available"#);
    }
}
