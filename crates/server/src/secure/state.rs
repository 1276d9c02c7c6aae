//! `/configz` and `/runningpods/`.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use krablet_pod::observed::ObservedPod;
use serde_json::{Value, json};

use super::SharedDoor;

pub(super) async fn configz(State(door): State<SharedDoor>) -> Response {
    let configuration = door.parts.inside.configuration();
    axum::Json(json!({"kubeletconfig": configuration})).into_response()
}

/// What runs, as the runtime tells it: pods that nobody wants any more are in it, too.
pub(super) async fn running_pods(State(door): State<SharedDoor>) -> Response {
    let all = door.parts.inside.all_observed();
    let running = all.iter().filter(|pod| pod.is_alive());
    let items: Vec<Value> = running.map(|pod| running_pod(pod)).collect();
    axum::Json(json!({
        "kind": "PodList",
        "apiVersion": "v1",
        "metadata": {},
        "items": items,
    }))
    .into_response()
}

fn running_pod(observed: &ObservedPod) -> Value {
    let running = observed.containers.iter().filter(|c| c.is_running());
    let containers: Vec<Value> = running
        .map(|c| json!({"name": &*c.name, "image": &*c.image, "resources": {}}))
        .collect();
    let pod = &observed.pod;
    json!({
        "metadata": {
            "name": &*pod.name,
            "namespace": &*pod.namespace,
            "uid": pod.uid.as_str(),
        },
        "spec": {"containers": containers},
        "status": {},
    })
}
