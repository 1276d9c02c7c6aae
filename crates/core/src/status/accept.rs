//! What becomes of a new status: whether it may replace the one that stands, and in which form.

use std::collections::BTreeMap;

use jiff::Timestamp;
use krablet_pod::ContainerId;
use krablet_pod::api::{
    Container, ContainerState, ContainerStatus, Pod, PodCondition, PodSpec, PodStatus,
};
use krablet_pod::containers::{ephemeral_containers, init_containers, is_sidecar};
use krablet_pod::marks;

use super::conditions::{
    ALL_CONTAINERS_RESTARTING, CONTAINERS_READY, DISRUPTION_TARGET, INITIALIZED, POD_SCHEDULED,
    READY, READY_TO_START, condition, is_owned_condition, refresh_readiness,
};
use super::containers::{NOT_LOCATED, end_of, lost, runtime_id, terminated, whole_seconds};
use super::{CONTAINER_STATUS_UNKNOWN, FAILED, is_terminal};
use crate::restart::{self, RestartGates};

/// All termination messages of a pod together, shared evenly among its containers.
const MAX_POD_MESSAGE_BYTES: usize = 12 * 1024;

#[derive(Clone, Copy, Debug)]
pub struct AcceptInputs<'a> {
    pub pod: &'a Pod,
    /// The status that stands.
    pub cached: Option<&'a PodStatus>,
    /// The status of a static pod's mirror; counts where nothing is cached.
    pub mirror: Option<&'a PodStatus>,
    pub now: Timestamp,
    /// The last word on the pod: it counts as a change even if it says nothing new.
    pub terminate: bool,
    pub gates: RestartGates,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Accepted {
    /// What stands now: the new status, or the one that stood before.
    pub status: PodStatus,
    pub changed: bool,
    /// Why the new status was not taken, if it was wrong.
    pub refused: Option<String>,
}

/// Accepts a new status or keeps the old. Times follow the state they belong to: the start time
/// never changes, a transition time only with its condition.
pub fn accept(inputs: &AcceptInputs<'_>, new: PodStatus) -> Accepted {
    let empty = (PodSpec::default(), PodStatus::default());
    let pod = inputs.pod;
    let spec = pod.spec.as_ref().unwrap_or(&empty.0);
    let base = inputs
        .cached
        .or(inputs.mirror)
        .or(pod.status.as_ref())
        .unwrap_or(&empty.1);
    let mut status = new;
    keep_init_ends(&mut status, base, spec, inputs.gates);
    if let Err(why) = check_transitions(base, &status, spec, inputs.gates) {
        return Accepted {
            status: base.clone(),
            changed: false,
            refused: Some(why),
        };
    }
    for type_ in TIMED_CONDITIONS {
        set_transition_time(&mut status, base, type_, inputs.now);
    }
    status.start_time = base
        .start_time
        .clone()
        .or(status.start_time)
        .or_else(|| Some(whole_seconds(inputs.now)));
    status.observed_generation = status.observed_generation.max(base.observed_generation);
    normalise(&mut status, spec);
    let forced = inputs.terminate || pod.metadata.deletion_timestamp.is_some();
    let same = |cached: &PodStatus| owned_parts_equal(cached, &status);
    match inputs.cached.filter(|c| !forced && same(c)) {
        Some(cached) => Accepted {
            status: cached.clone(),
            changed: false,
            refused: None,
        },
        None => Accepted {
            status,
            changed: true,
            refused: None,
        },
    }
}

const TIMED_CONDITIONS: [&str; 7] = [
    CONTAINERS_READY,
    READY,
    INITIALIZED,
    READY_TO_START,
    POD_SCHEDULED,
    DISRUPTION_TARGET,
    ALL_CONTAINERS_RESTARTING,
];

fn set_transition_time(status: &mut PodStatus, base: &PodStatus, type_: &str, now: Timestamp) {
    let list = status.conditions.iter_mut().flatten();
    for fresh in list.filter(|c| c.type_ == type_) {
        let before = condition(base, type_).filter(|old| old.status == fresh.status);
        fresh.last_transition_time = match before {
            Some(old) => old.last_transition_time.clone(),
            None => Some(whole_seconds(now)),
        };
    }
}

/// Containers may leave the terminated state in whatever way they ended.
fn all_may_restart(spec: &PodSpec, gates: RestartGates) -> bool {
    restart::pod_policy(spec) == "Always" || (gates.restart_all && restart::could_restart_all(spec))
}

/// An init container that ended well runs again if the sandbox was lost, and no API server takes a
/// status that says so. What was told of it stands until it ends again; the rest of the status is
/// not held up by it.
fn keep_init_ends(new: &mut PodStatus, old: &PodStatus, spec: &PodSpec, gates: RestartGates) {
    if all_may_restart(spec, gates) {
        return;
    }
    for told in old.init_container_statuses.iter().flatten() {
        let mut containers = init_containers(spec).iter();
        let container = containers.find(|c| c.name == told.name && !is_sidecar(c));
        let done = end_of(told.state.as_ref()).is_some_and(|end| end.exit_code == 0);
        let stays = |c: &&Container| done && !restart::should_restart(spec, c, 0, gates).restarts();
        let list = new.init_container_statuses.iter_mut().flatten();
        let mut same = list.filter(|s| s.name == told.name && end_of(s.state.as_ref()).is_none());
        if let Some(status) = container.filter(stays).and_then(|_| same.next()) {
            *status = told.clone();
        }
    }
}

/// No container leaves the terminated state unless it may be restarted.
fn check_transitions(
    old: &PodStatus,
    new: &PodStatus,
    spec: &PodSpec,
    gates: RestartGates,
) -> Result<(), String> {
    if all_may_restart(spec, gates) {
        return Ok(());
    }
    let revived = |old: &Option<Vec<ContainerStatus>>,
                   new: &Option<Vec<ContainerStatus>>,
                   containers: &[Container],
                   init: bool| {
        let mut list = old.iter().flatten().filter_map(|o| {
            let end = end_of(o.state.as_ref())?;
            let container = containers.iter().find(|c| c.name == o.name);
            let on_failure = restart::pod_policy(spec) == "OnFailure";
            let may = container.is_some_and(|c| {
                (init && is_sidecar(c))
                    || restart::should_restart(spec, c, end.exit_code, gates).restarts()
            }) || (on_failure && end.exit_code != 0);
            let now = new.iter().flatten().find(|n| n.name == o.name)?;
            (!may && end_of(now.state.as_ref()).is_none()).then(|| o.name.clone())
        });
        list.next()
    };
    if let Some(name) = revived(
        &old.container_statuses,
        &new.container_statuses,
        &spec.containers,
        false,
    ) {
        return Err(format!(
            "terminated container {name} attempted illegal transition to non-terminated state"
        ));
    }
    let known = |s: &&ContainerStatus| init_containers(spec).iter().any(|c| c.name == s.name);
    if let Some(odd) = old
        .init_container_statuses
        .iter()
        .flatten()
        .find(|s| !known(s))
    {
        return Err(format!(
            "found mismatch between pod spec and status, container: {}",
            odd.name
        ));
    }
    match revived(
        &old.init_container_statuses,
        &new.init_container_statuses,
        init_containers(spec),
        true,
    ) {
        Some(name) => Err(format!(
            "terminated init container {name} attempted illegal transition to non-terminated state"
        )),
        None => Ok(()),
    }
}

/// Times in whole seconds, messages within their share, lists in their order.
fn normalise(status: &mut PodStatus, spec: &PodSpec) {
    let count =
        spec.containers.len() + init_containers(spec).len() + ephemeral_containers(spec).len();
    let share = MAX_POD_MESSAGE_BYTES / count.max(1);
    if let Some(time) = &mut status.start_time {
        *time = whole_seconds(time.0);
    }
    for condition in status.conditions.iter_mut().flatten() {
        let times = [
            &mut condition.last_probe_time,
            &mut condition.last_transition_time,
        ];
        for time in times.into_iter().flatten() {
            *time = whole_seconds(time.0);
        }
    }
    let lists = [
        &mut status.container_statuses,
        &mut status.init_container_statuses,
        &mut status.ephemeral_container_statuses,
    ];
    for container in lists.into_iter().flatten().flatten() {
        for state in [&mut container.state, &mut container.last_state]
            .into_iter()
            .flatten()
        {
            normalise_state(state, share);
        }
    }
    let by_name = [
        &mut status.container_statuses,
        &mut status.ephemeral_container_statuses,
    ];
    for list in by_name.into_iter().flatten() {
        list.sort_by(|a, b| a.name.cmp(&b.name));
    }
    if let Some(list) = &mut status.init_container_statuses {
        let place = |s: &ContainerStatus| {
            let found = init_containers(spec).iter().position(|c| c.name == s.name);
            found.unwrap_or(usize::MAX)
        };
        list.sort_by_key(place);
    }
}

fn normalise_state(state: &mut ContainerState, message_bytes: usize) {
    if let Some(time) = state.running.as_mut().and_then(|r| r.started_at.as_mut()) {
        *time = whole_seconds(time.0);
    }
    let Some(end) = &mut state.terminated else {
        return;
    };
    for time in [&mut end.started_at, &mut end.finished_at]
        .into_iter()
        .flatten()
    {
        *time = whole_seconds(time.0);
    }
    if let Some(message) = end.message.as_mut().filter(|m| m.len() > message_bytes) {
        let cut = (0..=message_bytes)
            .rev()
            .find(|i| message.is_char_boundary(*i));
        message.truncate(cut.unwrap_or_default());
    }
}

/// The parts the node agent owns are equal; condition times do not count, nor what others write.
fn owned_parts_equal(old: &PodStatus, new: &PodStatus) -> bool {
    let said = |status: &PodStatus| -> BTreeMap<String, [String; 3]> {
        let list = status.conditions.iter().flatten();
        list.filter(|c| is_owned_condition(&c.type_) || c.type_ == DISRUPTION_TARGET)
            .map(|c: &PodCondition| {
                let text = |t: &Option<String>| t.clone().unwrap_or_default();
                (
                    c.type_.clone(),
                    [c.status.clone(), text(&c.reason), text(&c.message)],
                )
            })
            .collect()
    };
    let rest = |status: &PodStatus| PodStatus {
        conditions: None,
        resource_claim_statuses: None,
        extended_resource_claim_status: None,
        node_allocatable_resource_claim_statuses: None,
        ..status.clone()
    };
    said(old) == said(new) && rest(old) == rest(new)
}

/// The status with a container's readiness changed, Ready and ContainersReady with it; `None` if
/// the container is not in it or is as ready as before.
pub fn with_readiness(
    status: &PodStatus,
    pod: &Pod,
    id: &ContainerId,
    ready: bool,
) -> Option<PodStatus> {
    let mut changed = status.clone();
    let container = find_container(&mut changed, id).filter(|c| c.ready != ready)?;
    container.ready = ready;
    refresh_readiness(&mut changed, pod);
    Some(changed)
}

/// The status with a container's `started` changed; `None` if there is nothing to change.
pub fn with_started(status: &PodStatus, id: &ContainerId, started: bool) -> Option<PodStatus> {
    let mut changed = status.clone();
    let container = find_container(&mut changed, id).filter(|c| c.started != Some(started))?;
    container.started = Some(started);
    Some(changed)
}

fn find_container<'a>(
    status: &'a mut PodStatus,
    id: &ContainerId,
) -> Option<&'a mut ContainerStatus> {
    let lists = [
        &mut status.container_statuses,
        &mut status.init_container_statuses,
    ];
    lists
        .into_iter()
        .flatten()
        .flatten()
        .find(|c| c.container_id.as_deref().map(runtime_id) == Some(id.as_str()))
}

/// The last status of a pod that is over: a container that has not been seen to end has ended
/// badly, and the phase is terminal unless the pod is static.
pub fn terminate(status: &PodStatus, pod: &Pod) -> PodStatus {
    let mut last = status.clone();
    let over = |container: &mut ContainerStatus| {
        if end_of(container.state.as_ref()).is_none() {
            container.state = Some(terminated(lost(CONTAINER_STATUS_UNKNOWN, NOT_LOCATED)));
            container.ready = false;
            container.started = Some(false);
        }
    };
    if has_initialised(status, pod) {
        last.container_statuses.iter_mut().flatten().for_each(over);
    }
    if let Some(init) = &mut last.init_container_statuses {
        let tried = init.iter().rposition(was_tried).map_or(1, |i| i + 1);
        init.iter_mut().take(tried).for_each(over);
    }
    if !marks::is_static(pod) && !is_terminal(&last) {
        last.phase = Some(FAILED.to_owned());
    }
    refresh_readiness(&mut last, pod);
    last
}

/// The container has left the waiting state at some time.
fn was_tried(status: &ContainerStatus) -> bool {
    let waits = status.state.as_ref().is_some_and(|s| s.waiting.is_some());
    !waits || end_of(status.last_state.as_ref()).is_some()
}

/// There are signs that all init containers were done.
fn has_initialised(status: &PodStatus, pod: &Pod) -> bool {
    let init = pod.spec.as_ref().map(init_containers).unwrap_or_default();
    let Some(last) = init.last() else {
        return true;
    };
    if status.container_statuses.iter().flatten().any(was_tried) {
        return true;
    }
    let statuses = status.init_container_statuses.iter().flatten();
    let Some(seen) = statuses.into_iter().find(|s| s.name == last.name) else {
        return false;
    };
    if is_sidecar(last) {
        let running = seen.state.as_ref().is_some_and(|s| s.running.is_some());
        return running && seen.started == Some(true);
    }
    [&seen.state, &seen.last_state]
        .into_iter()
        .any(|s| end_of(s.as_ref()).is_some_and(|end| end.exit_code == 0))
}
