//! What a sync has to do with resizes: how far they have come, and what came of them.

use std::sync::Arc;

use krablet_core::resize;
use krablet_events::Subject;
use krablet_pod::api::{Pod, ResourceRequirements};
use krablet_pod::observed::ObservedPod;
use krablet_pod::{ActuatedContainer, Actuation, PodRef};
use krablet_runtime::SyncOutcome;
use tracing::warn;

use super::Steps;

/// What a step gave to a pod and its containers.
#[derive(Debug, Default)]
pub(crate) struct Given {
    pub(crate) containers: Vec<(String, ActuatedContainer)>,
    /// The pod's cgroup has what the pod as a whole was promised: this.
    pub(crate) pod: Option<Option<ResourceRequirements>>,
    /// Something that ran was given something else.
    pub(crate) resized: bool,
}

impl Steps {
    /// Compares what runs with what it was promised.
    pub(super) fn note_resize_progress(
        &self,
        pod: &Arc<Pod>,
        pod_ref: &PodRef,
        observed: &ObservedPod,
        given: Option<&Actuation>,
    ) {
        let (uid, generation) = (&pod_ref.uid, pod.metadata.generation);
        let now = self.parts.clock.now();
        let under_way = resize::in_progress(pod, observed, given);
        let completed = self.parts.resizes.change(uid, |told| match under_way {
            true => {
                told.go_on(generation, now);
                None
            }
            false => told.complete(generation),
        });
        if let Some(generation) = completed {
            let message = resize::message("completed", pod, generation, "");
            let subject = Subject::Pod(pod_ref.clone());
            let recorder = &self.parts.recorder;
            recorder.normal(subject, resize::COMPLETED, message);
        }
    }

    /// Before anything is given to a pod that was ever promised something new. False if the promise is
    /// not written down.
    pub(super) async fn may_resize(&self, pod_ref: &PodRef) -> bool {
        self.weigh_classes().await;
        let written = self.parts.resizes.promises_are_written().await;
        if !written {
            warn!(pod = %pod_ref, podUID = %pod_ref.uid, "A resize waits for a state file to be written");
        }
        written
    }

    /// True if there is something new to be told.
    pub(super) fn note_resize_error(
        &self,
        pod: &Arc<Pod>,
        pod_ref: &PodRef,
        result: &SyncOutcome,
    ) -> bool {
        let Some(error) = &result.resized.error else {
            return false;
        };
        let generation = pod.metadata.generation;
        let now = self.parts.clock.now();
        let failed = self
            .parts
            .resizes
            .change(&pod_ref.uid, |told| told.fail(error, generation, now));
        if let Some(generation) = failed {
            let message = resize::message("error", pod, generation, error);
            self.warn(pod_ref, resize::ERROR, message);
        }
        failed.is_some()
    }
}
