//! `/checkpoint`: a running container written to a file, by runtimes that can.

use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use axum::extract::{Path, Query, State};
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use jiff::Timestamp;
use krablet_pod::PodRef;
use serde_json::json;

use super::SharedDoor;
use super::place::{Place, terminal};
use crate::answers::{not_found, refuse};

/// Only the owner: what a process had in memory is in these files.
const DIRECTORY_MODE: u32 = 0o700;

/// A runtime that can write a container to a file.
#[async_trait]
pub trait Checkpointer: Send + Sync {
    /// `seconds`: what it may take; 0 leaves that to the runtime's usual deadline.
    async fn checkpoint(
        &self,
        container: &str,
        location: &FilePath,
        seconds: i64,
    ) -> Result<(), String>;
}

/// Where checkpoints go, and who makes them.
#[derive(Clone)]
pub struct Checkpoints {
    pub directory: PathBuf,
    pub runtime: Arc<dyn Checkpointer>,
}

pub(super) async fn checkpoint(
    State(door): State<SharedDoor>,
    Path(place): Path<Place>,
    Query(pairs): Query<Vec<(String, String)>>,
) -> Response {
    let Some(checkpoints) = &door.parts.checkpoints else {
        return not_found().await;
    };
    let missing = |why: String| refuse(StatusCode::NOT_FOUND, why);
    let Some(pod) = door.pod(&place) else {
        return missing("pod does not exist".to_owned());
    };
    let name = &place.container;
    if terminal(&pod, name).is_none() {
        return missing(format!("container {name} does not exist"));
    }
    let mut timeouts = pairs.iter().filter(|(key, _)| key == "timeout");
    let seconds = match timeouts.next_back().map_or(Ok(0), |(_, v)| v.parse()) {
        Ok(seconds) => seconds,
        Err(_) => return missing("cannot parse value of timeout parameter".to_owned()),
    };
    let file = file_name(&PodRef::of(&pod), name, door.parts.view.now());
    let location = checkpoints.directory.join(file);
    let made = async {
        let id = door.running_container(&place);
        let id = id.map_err(|_| format!("container {name} not found"))?;
        let directory = &checkpoints.directory;
        let mut make = tokio::fs::DirBuilder::new();
        let made = make.recursive(true).mode(DIRECTORY_MODE).create(directory);
        made.await.map_err(|e| e.to_string())?;
        let runtime = &checkpoints.runtime;
        runtime.checkpoint(id.as_str(), &location, seconds).await
    };
    match made.await {
        Ok(()) => axum::Json(json!({"items": [location]})).into_response(),
        Err(why) => {
            let (namespace, pod) = (&place.namespace, &place.pod);
            let why = format!("checkpointing of {namespace}/{pod}/{name} failed ({why})");
            refuse(StatusCode::INTERNAL_SERVER_ERROR, why)
        }
    }
}

fn file_name(pod: &PodRef, container: &str, now: Timestamp) -> String {
    let at = now.strftime("%Y-%m-%dT%H:%M:%SZ");
    let (pod, namespace) = (&pod.name, &pod.namespace);
    format!("checkpoint-{pod}_{namespace}-{container}-{at}.tar")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_files() {
        let pod = PodRef::new("u", "ns", "web");
        let now = "2026-01-02T03:04:05.678Z".parse().unwrap();
        let expected = "checkpoint-web_ns-main-2026-01-02T03:04:05Z.tar";
        assert_eq!(file_name(&pod, "main", now), expected);
    }
}
