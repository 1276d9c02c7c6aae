//! Reading a pod's status in one line.

use k8s_openapi::api::core::v1::{
    ContainerStateRunning, ContainerStateTerminated, ContainerStatus, Pod, PodStatus,
};

/// What there is of the status, as text for the last word of a failed wait.
pub fn shown(pod: &Pod) -> String {
    serde_json::to_string(&pod.status).unwrap_or_default()
}

pub fn status(pod: &Pod) -> Result<&PodStatus, String> {
    pod.status.as_ref().ok_or_else(|| "no status".to_owned())
}

pub fn uid(pod: &Pod) -> String {
    pod.metadata.uid.clone().unwrap_or_default()
}

pub fn phase(pod: &Pod) -> &str {
    let status = pod.status.as_ref();
    status.and_then(|s| s.phase.as_deref()).unwrap_or_default()
}

/// The pod is in this phase, or what it is in instead.
pub fn in_phase(pod: &Pod, wanted: &str) -> Result<(), String> {
    match phase(pod) == wanted {
        true => Ok(()),
        false => Err(shown(pod)),
    }
}

/// The status of a container of any kind.
pub fn container<'a>(pod: &'a Pod, name: &str) -> Result<&'a ContainerStatus, String> {
    let status = status(pod)?;
    let lists = [&status.init_container_statuses, &status.container_statuses];
    let mut all = lists.into_iter().flatten().flatten();
    all.find(|c| c.name == name)
        .ok_or_else(|| format!("no container {name}: {}", shown(pod)))
}

/// The id without the runtime's name.
pub fn id(status: &ContainerStatus) -> String {
    let id = status.container_id.clone().unwrap_or_default();
    id.rsplit("://").next().unwrap_or_default().to_owned()
}

pub fn running<'a>(pod: &'a Pod, name: &str) -> Result<&'a ContainerStateRunning, String> {
    let state = container(pod, name)?.state.as_ref();
    state
        .and_then(|s| s.running.as_ref())
        .ok_or_else(|| format!("{name} does not run: {}", shown(pod)))
}

pub fn ended<'a>(pod: &'a Pod, name: &str) -> Result<&'a ContainerStateTerminated, String> {
    let state = container(pod, name)?.state.as_ref();
    state
        .and_then(|s| s.terminated.as_ref())
        .ok_or_else(|| format!("{name} has not ended: {}", shown(pod)))
}

/// How the instance before the present one ended.
pub fn ended_before<'a>(pod: &'a Pod, name: &str) -> Result<&'a ContainerStateTerminated, String> {
    let state = container(pod, name)?.last_state.as_ref();
    state
        .and_then(|s| s.terminated.as_ref())
        .ok_or_else(|| format!("{name} was not restarted: {}", shown(pod)))
}

/// Reason and message of a waiting container.
pub fn waiting(pod: &Pod, name: &str) -> Result<(String, String), String> {
    let state = container(pod, name)?.state.as_ref();
    let waiting = state
        .and_then(|s| s.waiting.as_ref())
        .ok_or_else(|| format!("{name} does not wait: {}", shown(pod)))?;
    Ok((
        waiting.reason.clone().unwrap_or_default(),
        waiting.message.clone().unwrap_or_default(),
    ))
}

/// Whether the condition is `True`.
pub fn condition(pod: &Pod, kind: &str) -> bool {
    let conditions = pod
        .status
        .iter()
        .flat_map(|s| s.conditions.iter().flatten());
    conditions
        .into_iter()
        .any(|c| c.type_ == kind && c.status == "True")
}

/// Every regular container of the pod runs.
pub fn all_running(pod: &Pod) -> Result<(), String> {
    in_phase(pod, "Running")?;
    let spec = pod.spec.as_ref().ok_or("no spec")?;
    for c in &spec.containers {
        running(pod, &c.name)?;
    }
    Ok(())
}
