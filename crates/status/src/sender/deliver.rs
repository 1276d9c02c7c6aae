//! The way of one status to the API server: ask for the object if need be, patch it, and delete it if
//! that was the last word.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use krablet_core::patch::pod_status_patch;
use krablet_core::status::{self, MergeInputs};
use krablet_kube::{ApiError, Call, Detail, Kube, PatchKind, Priority, Verb, paths};
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
    /// Nothing was said to this object in this life. A word of the life before may still be on its
    /// way, so this one is only good for the object as it is known.
    pub first: bool,
    pub standing: Standing,
    pub could_have_running_containers: bool,
    pub priority: Priority,
    pub now: Timestamp,
}

pub(super) enum End {
    /// The API server has the status. The object is as it is known now.
    Told { object: Arc<Pod>, held_back: bool },
    /// The object is gone, or another pod has its name. What our own last write had left, if there was one: the watch
    /// has yet to tell of that, and then of the end.
    Gone { known: Option<Arc<Pod>> },
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
    let object = match &job.base {
        Some(base) => base.clone(),
        None => ask(kube, job, calls).await?,
    };
    match tell_object(kube, job, object, calls).await {
        Err(end) if job.first && is_conflict(&end) => {
            let object = ask(kube, job, calls).await?;
            tell_object(kube, job, object, calls).await
        }
        told => told,
    }
}

fn is_conflict(end: &End) -> bool {
    matches!(end, End::Failed { error, .. } if error.is_conflict())
}

async fn ask(kube: &Kube, job: &Job, calls: &mut Calls) -> Result<Arc<Pod>, End> {
    calls.gets += 1;
    let got = get(kube, &job.target, job.priority).await;
    got.map_err(|e| refused(e, true, None))
}

async fn tell_object(
    kube: &Kube,
    job: &Job,
    mut object: Arc<Pod>,
    calls: &mut Calls,
) -> Result<End, End> {
    let target = PodRef::of(&job.target);
    if PodRef::of(&object).uid != target.uid {
        return Ok(End::Gone { known: None });
    }
    let inputs = MergeInputs {
        api_pod: &object,
        ours: &job.standing.status,
        could_have_running_containers: job.could_have_running_containers,
        now: job.now,
    };
    let held_back = status::is_held_back(&inputs);
    let merged = status::merge_for_api(&inputs);
    let empty = PodStatus::default();
    let old = object.status.as_ref().unwrap_or(&empty);
    let version = object.metadata.resource_version.as_deref();
    let version = version.filter(|_| job.first);
    if let Some(patch) = pod_status_patch(target.uid.as_str(), version, old, &merged) {
        calls.patches += 1;
        object = send(kube, job, &patch, merged).await?;
        // The server checks the UID itself; what it answers is another pod's only if it did not.
        if PodRef::of(&object).uid != target.uid {
            return Ok(End::Gone { known: None });
        }
    }
    if status::can_be_deleted(&object, job.standing.finished) {
        calls.deletes += 1;
        let deleted = delete(kube, &target, job.priority).await;
        deleted.map_err(|e| refused(e, false, Some(object.clone())))?;
        return Ok(End::Gone {
            known: Some(object),
        });
    }
    Ok(End::Told { object, held_back })
}

/// Asks for nothing but the metadata back. What the object says is `merged`, unless others wrote to it
/// since it was last seen; the watch, which brings the whole object anyway, tells.
async fn send(kube: &Kube, job: &Job, patch: &Value, merged: PodStatus) -> Result<Arc<Pod>, End> {
    let target = PodRef::of(&job.target);
    let path = paths::pod_status(&target.namespace, &target.name);
    let call = Call::new(Verb::Patch(PatchKind::StrategicMerge), path)
        .body(patch.to_string())
        .priority(job.priority);
    match kube.metadata(call).await {
        Ok(answer) => Ok(known(&job.target, answer, merged)),
        // Only a server that is too busy is known not to have done it.
        Err(e) => {
            let unsure = e.code() != Some(429);
            Err(refused(e, unsure, None))
        }
    }
}

async fn get(kube: &Kube, target: &Pod, priority: Priority) -> Result<Arc<Pod>, ApiError> {
    let named = PodRef::of(target);
    let path = paths::pod(&named.namespace, &named.name);
    let call = Call::new(Verb::Get, path).priority(priority);
    let answer: Answer = kube.object(call).await?;
    Ok(known(target, answer.metadata, answer.status))
}

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

/// Nothing is kept of an object but what is asked of it again.
fn known(target: &Pod, answer: AnswerMeta, status: PodStatus) -> Arc<Pod> {
    Arc::new(Pod {
        metadata: ObjectMeta {
            name: target.metadata.name.clone(),
            namespace: target.metadata.namespace.clone(),
            // A mirror pod is one for good.
            annotations: target.metadata.annotations.clone(),
            uid: answer.uid,
            resource_version: answer.resource_version,
            generation: answer.generation,
            deletion_timestamp: answer.deletion_timestamp,
            ..ObjectMeta::default()
        },
        spec: None,
        status: Some(status),
    })
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
        .detail(Detail::Metadata)
        .priority(priority);
    match kube.api().call(call).await {
        // Another pod has the name: this one is gone.
        Err(e) if !e.is_conflict() => Err(e),
        _ => Ok(()),
    }
}

fn refused(error: ApiError, unsure: bool, answer: Option<Arc<Pod>>) -> End {
    if error.is_not_found() {
        return End::Gone { known: None };
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn refusals() {
        let answer = |code, body: &str, wait| ApiError::from_answer(code, body.as_bytes(), wait);
        let second = Some(Duration::from_secs(1));
        let refused_for = |retry_after| Some(Trouble::Refused { retry_after });
        // `None`: the object is gone.
        let cases = [
            (answer(404, r#"{"reason":"NotFound"}"#, None), None),
            (answer(401, "{}", None), Some(Trouble::Away)),
            (answer(403, "{}", None), refused_for(None)),
            (
                answer(409, r#"{"reason":"Conflict"}"#, None),
                refused_for(None),
            ),
            (answer(429, "{}", second), refused_for(second)),
            (answer(500, "{}", None), refused_for(None)),
            (ApiError::Connection("reset".into()), Some(Trouble::Away)),
            (
                ApiError::Tls("unknown authority".into()),
                Some(Trouble::Away),
            ),
            (ApiError::Credentials("expired".into()), Some(Trouble::Away)),
            (ApiError::Deadline(Duration::ZERO), Some(Trouble::Silent)),
            (ApiError::Decode("odd".into()), refused_for(None)),
        ];
        for (error, expected) in cases {
            let words = error.to_string();
            let found = match refused(error, true, None) {
                End::Failed { trouble, .. } => Some(trouble),
                _ => None,
            };
            assert_eq!(found, expected, "{words}");
        }
    }
}
