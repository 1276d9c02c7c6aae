//! The way of one status to the API server: ask for the object if need be, patch it, and delete it if
//! that was the last word.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use krablet_core::patch::pod_status_patch;
use krablet_core::status::{self, MergeInputs};
use krablet_kube::{ApiError, Call, Kube, PatchKind, Priority, Verb, paths};
use krablet_pod::api::{Pod, PodStatus};
use krablet_pod::{PodRef, PodUid};
use serde::Deserialize;
use serde_json::{Value, json};

use super::plan::Trouble;
use crate::Standing;

/// One status to deliver.
pub(super) struct Job {
    /// Of the pod on this node.
    pub uid: PodUid,
    /// The object to write to, as the watch tells it.
    pub target: Arc<Pod>,
    /// What is known to stand at the API server; `None`: ask.
    pub base: Option<Arc<Pod>>,
    pub standing: Standing,
    pub could_have_running_containers: bool,
    pub priority: Priority,
    pub now: Timestamp,
}

pub(super) enum End {
    /// The API server has the status. The object is as it is known now.
    Told { object: Arc<Pod>, held_back: bool },
    /// The object is gone, or another pod has its name.
    Gone,
    Failed {
        error: ApiError,
        trouble: Trouble,
        /// A write may or may not have been done.
        unsure: bool,
        /// What an earlier step was answered with.
        answer: Option<Arc<Pod>>,
    },
}

/// What was done, for the numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Calls {
    pub gets: u64,
    pub patches: u64,
    pub deletes: u64,
}

pub(super) struct Landed {
    pub job: Job,
    pub calls: Calls,
    pub end: End,
}

pub(super) async fn deliver(kube: Kube, job: Job) -> Landed {
    let mut calls = Calls::default();
    let end = match tell(&kube, &job, &mut calls).await {
        Ok(end) | Err(end) => end,
    };
    Landed { job, calls, end }
}

async fn tell(kube: &Kube, job: &Job, calls: &mut Calls) -> Result<End, End> {
    let target = PodRef::of(&job.target);
    let mut object = match &job.base {
        Some(base) => base.clone(),
        None => {
            calls.gets += 1;
            let path = paths::pod(&target.namespace, &target.name);
            let call = Call::new(Verb::Get, path).priority(job.priority);
            let got = ask(kube, job, call).await;
            got.map_err(|e| refused(e, true, None))?
        }
    };
    if PodRef::of(&object).uid != target.uid {
        return Ok(End::Gone);
    }
    let empty = PodStatus::default();
    let mut held_back = false;
    // An answer that says something else than it was told was made from a newer object than we knew:
    // what is left of that goes with a second patch.
    for round in 0..2 {
        let inputs = MergeInputs {
            api_pod: &object,
            ours: &job.standing.status,
            could_have_running_containers: job.could_have_running_containers,
            now: job.now,
        };
        held_back = status::is_held_back(&inputs);
        let merged = status::merge_for_api(&inputs);
        let old = object.status.as_ref().unwrap_or(&empty);
        if round > 0 && !status::needs_update(old, &merged) {
            break;
        }
        let Some(patch) = pod_status_patch(target.uid.as_str(), old, &merged) else {
            break;
        };
        calls.patches += 1;
        object = send(kube, job, &target, &patch).await?;
        // The server checks the UID itself; what it answers is another pod's only if it did not.
        if PodRef::of(&object).uid != target.uid {
            return Ok(End::Gone);
        }
    }
    if status::can_be_deleted(&object, job.standing.finished) {
        calls.deletes += 1;
        let deleted = delete(kube, &target, job.priority).await;
        deleted.map_err(|e| refused(e, false, Some(object.clone())))?;
        return Ok(End::Gone);
    }
    Ok(End::Told { object, held_back })
}

async fn send(kube: &Kube, job: &Job, target: &PodRef, patch: &Value) -> Result<Arc<Pod>, End> {
    let path = paths::pod_status(&target.namespace, &target.name);
    let call = Call::new(Verb::Patch(PatchKind::StrategicMerge), path)
        .body(patch.to_string())
        .priority(job.priority);
    // Only a server that is too busy is known not to have done it.
    ask(kube, job, call).await.map_err(|e| {
        let unsure = e.code() != Some(429);
        refused(e, unsure, None)
    })
}

/// Nothing is kept of the object but what is asked of it again.
#[derive(Deserialize)]
struct Answer {
    metadata: AnswerMeta,
    #[serde(default)]
    status: PodStatus,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct AnswerMeta {
    uid: Option<String>,
    resource_version: Option<String>,
    generation: Option<i64>,
    deletion_timestamp: Option<Time>,
}

async fn ask(kube: &Kube, job: &Job, call: Call) -> Result<Arc<Pod>, ApiError> {
    let answer: Answer = kube.object(call).await?;
    let known = &job.target.metadata;
    Ok(Arc::new(Pod {
        metadata: ObjectMeta {
            name: known.name.clone(),
            namespace: known.namespace.clone(),
            // A mirror pod is one for good.
            annotations: known.annotations.clone(),
            uid: answer.metadata.uid,
            resource_version: answer.metadata.resource_version,
            generation: answer.metadata.generation,
            deletion_timestamp: answer.metadata.deletion_timestamp,
            ..ObjectMeta::default()
        },
        spec: None,
        status: Some(answer.status),
    }))
}

/// Deletes the object at once, if it still is the pod's.
async fn delete(kube: &Kube, pod: &PodRef, priority: Priority) -> Result<(), ApiError> {
    let options = json!({
        "kind": "DeleteOptions",
        "apiVersion": "v1",
        "gracePeriodSeconds": 0,
        "preconditions": {"uid": pod.uid.as_str()},
    });
    let call = Call::new(Verb::Delete, paths::pod(&pod.namespace, &pod.name))
        .body(options.to_string())
        .priority(priority);
    match kube.api().call(call).await {
        // Another pod has the name: this one is gone.
        Err(e) if !e.is_conflict() => Err(e),
        _ => Ok(()),
    }
}

fn refused(error: ApiError, unsure: bool, answer: Option<Arc<Pod>>) -> End {
    if error.is_not_found() {
        return End::Gone;
    }
    let trouble = match &error {
        ApiError::Connection(_) | ApiError::Tls(_) | ApiError::Credentials(_) => Trouble::Away,
        // No pod is let in: one at a time is enough to find out when that ends.
        ApiError::Status { code: 401, .. } => Trouble::Away,
        ApiError::Deadline(_) => Trouble::Silent,
        ApiError::Status { .. } | ApiError::Decode(_) => Trouble::Refused {
            retry_after: error.retry_after(),
        },
    };
    End::Failed {
        error,
        trouble,
        unsure,
        answer,
    }
}
