//! What is kept, each in a file of its own.

use std::sync::Arc;

use krablet_pod::api::{Pod, PodSpec, PodStatus, Service};
use krablet_pod::{AdmittedPods, marks};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::envelope::State;

/// The API server's pods of this node as last known, so that they can run while it is away.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DesiredPods {
    #[serde(
        default,
        serialize_with = "write_pods",
        deserialize_with = "read_shared"
    )]
    pub pods: Vec<Arc<Pod>>,
}

/// The cluster's services as last known: containers that start while the API server is away are told of them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct KnownServices {
    #[serde(
        default,
        serialize_with = "write_shared",
        deserialize_with = "read_shared"
    )]
    pub services: Vec<Arc<Service>>,
}

impl State for KnownServices {
    const KIND: &'static str = "KnownServices";
}

/// Mirror pods are not written down, for the manifests tell of them, and of statuses only what says
/// whether a pod is over: what the runtime knows changes too often to be worth a write.
fn write_pods<S: Serializer>(pods: &[Arc<Pod>], serializer: S) -> Result<S::Ok, S::Error> {
    let own = pods.iter().filter(|pod| !marks::is_mirror(pod));
    serializer.collect_seq(own.map(|pod| essence(pod)))
}

/// A pod as it is written: as one that has no more than this would be. Its spec is most of it, and is not copied for that.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Essence<'a, M: Serialize> {
    api_version: &'static str,
    kind: &'static str,
    metadata: M,
    #[serde(skip_serializing_if = "Option::is_none")]
    spec: Option<&'a PodSpec>,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<PodStatus>,
}

fn essence(pod: &Pod) -> Essence<'_, impl Serialize> {
    let status = pod.status.as_ref().map(|status| PodStatus {
        phase: status.phase.clone(),
        reason: status.reason.clone(),
        message: status.message.clone(),
        start_time: status.start_time.clone(),
        qos_class: status.qos_class.clone(),
        ..PodStatus::default()
    });
    let mut metadata = pod.metadata.clone();
    // It would have to be written anew with each change of the status.
    metadata.resource_version = None;
    Essence {
        api_version: "v1",
        kind: "Pod",
        metadata,
        spec: pod.spec.as_ref(),
        status,
    }
}

fn write_shared<T: Serialize, S: Serializer>(
    objects: &[Arc<T>],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(objects.iter().map(|object| &**object))
}

fn read_shared<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<Arc<T>>, D::Error> {
    let objects = Vec::<T>::deserialize(deserializer)?;
    Ok(objects.into_iter().map(Arc::new).collect())
}

impl State for DesiredPods {
    const KIND: &'static str = "DesiredPods";
}

impl State for AdmittedPods {
    const KIND: &'static str = "AdmittedPods";
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pod_is_written_as_pods_are() {
        let whole = json!({"metadata": {"name": "web", "labels": {"a": "b"}},
            "spec": {"containers": [{"name": "c", "image": "i"}]},
            "status": {"phase": "Running", "startTime": "2026-01-01T00:00:00Z"}});
        for missing in ["", "spec", "status"] {
            let mut value = whole.clone();
            value.as_object_mut().unwrap().remove(missing);
            let mut pod: Pod = serde_json::from_value(value).unwrap();
            let expected = serde_json::to_string(&pod).unwrap();
            pod.metadata.resource_version = Some("7".into());
            if let Some(status) = &mut pod.status {
                status.pod_ip = Some("10.0.0.1".into());
            }
            assert_eq!(serde_json::to_string(&essence(&pod)).unwrap(), expected);
        }
    }
}
