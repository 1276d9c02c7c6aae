//! What a path names: a pod, or a container in it.

use std::sync::Arc;

use axum::response::Response;
use http::StatusCode;
use krablet_pod::api::Pod;
use krablet_pod::containers::{ephemeral_containers, init_containers};
use krablet_pod::observed::ObservedPod;
use krablet_pod::{ContainerId, PodRef, PodUid, SandboxId};
use serde::Deserialize;

use super::Door;
use crate::answers::refuse;

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Place {
    pub(super) namespace: String,
    pub(super) pod: String,
    #[serde(default)]
    pub(super) uid: Option<String>,
    #[serde(default)]
    pub(super) container: String,
}

/// Whether a container of the pod is made with a terminal; `None` if there is no such container.
pub(super) fn terminal(pod: &Pod, name: &str) -> Option<bool> {
    let spec = pod.spec.as_ref()?;
    let ephemeral = ephemeral_containers(spec).iter();
    let ephemeral = ephemeral.map(|c| (&c.name, c.tty));
    let init = init_containers(spec).iter().map(|c| (&c.name, c.tty));
    let regular = spec.containers.iter().map(|c| (&c.name, c.tty));
    let mut all = regular.chain(init).chain(ephemeral);
    let (_, tty) = all.find(|(found, _)| *found == name)?;
    Some(tty.unwrap_or(false))
}

/// The answer to who cannot have what he asked for.
pub(super) type Refused = Box<Response>;

impl Door {
    pub(super) fn pod(&self, place: &Place) -> Option<Pod> {
        self.parts.view.pod(&place.namespace, &place.pod)
    }

    /// A pod that is there, and of the UID that was asked for if one was.
    fn seen(&self, place: &Place) -> Result<(PodRef, Arc<ObservedPod>), Refused> {
        let missing = |why: &str| Box::new(refuse(StatusCode::NOT_FOUND, why));
        let pod = self
            .pod(place)
            .ok_or_else(|| missing("pod does not exist"))?;
        let pod = PodRef::of(&pod);
        if let Some(wanted) = place.uid.as_deref() {
            let known = self.parts.inside.api_uid(&pod.uid);
            let known = known.as_ref().map(PodUid::as_str);
            if wanted != pod.uid.as_str() && known != Some(wanted) {
                return Err(missing("pod not found"));
            }
        }
        let observed = self.parts.inside.observed(&pod.uid);
        let observed = observed.ok_or_else(|| missing("pod not found"))?;
        Ok((pod, observed))
    }

    pub(super) fn running_container(&self, place: &Place) -> Result<ContainerId, Refused> {
        let (_, observed) = self.seen(place)?;
        let running = observed
            .instances(&place.container)
            .find(|c| c.is_running())
            .map(|c| c.id.clone());
        running.ok_or_else(|| {
            let why = format!("container not found ({:?})", place.container);
            Box::new(refuse(StatusCode::INTERNAL_SERVER_ERROR, why))
        })
    }

    pub(super) fn ready_sandbox(&self, place: &Place) -> Result<SandboxId, Refused> {
        let (pod, observed) = self.seen(place)?;
        let ready = observed.ready_sandboxes().next().map(|s| s.id.clone());
        ready.ok_or_else(|| {
            let why = format!("failed to find sandbox for pod {pod}");
            Box::new(refuse(StatusCode::INTERNAL_SERVER_ERROR, why))
        })
    }
}
