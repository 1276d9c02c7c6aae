//! The conditions the node agent owns, with the reasons and texts tools look for.

use krablet_pod::api::{Container, ContainerStatus, Pod, PodCondition, PodSpec, PodStatus};
use krablet_pod::containers::{init_containers, is_sidecar};

use super::{Cx, FAILED, SUCCEEDED, generation};
use crate::actions::sandbox_need;
use crate::resize;
use crate::restart;

pub(super) const READY: &str = "Ready";
pub(super) const CONTAINERS_READY: &str = "ContainersReady";
pub(super) const INITIALIZED: &str = "Initialized";
pub(super) const POD_SCHEDULED: &str = "PodScheduled";
pub(super) const READY_TO_START: &str = "PodReadyToStartContainers";
pub(super) const ALL_CONTAINERS_RESTARTING: &str = "AllContainersRestarting";
pub(super) const DISRUPTION_TARGET: &str = "DisruptionTarget";

const UNKNOWN_CONTAINER_STATUSES: &str = "UnknownContainerStatuses";
const CONTAINERS_NOT_READY: &str = "ContainersNotReady";
const CONTAINERS_NOT_INITIALIZED: &str = "ContainersNotInitialized";
const READINESS_GATES_NOT_READY: &str = "ReadinessGatesNotReady";
const RESTART_ALL_STARTED: &str = "RestartAllContainersStarted";
const RESTART_ALL_MESSAGE: &str = "container exited with restart policy rule";
pub(super) const POD_COMPLETED: &str = "PodCompleted";
pub(super) const POD_FAILED: &str = "PodFailed";

/// Conditions only the node agent writes; all others are kept as the API has them.
pub fn is_owned_condition(type_: &str) -> bool {
    matches!(
        type_,
        READY
            | CONTAINERS_READY
            | INITIALIZED
            | POD_SCHEDULED
            | READY_TO_START
            | ALL_CONTAINERS_RESTARTING
            | resize::PENDING
            | resize::IN_PROGRESS
    )
}

/// The condition of a pod that the agent ended for the node's sake; its time is the accepting side's to set.
pub(crate) fn terminated_by_kubelet(pod: &Pod, message: &str) -> PodCondition {
    PodCondition {
        type_: DISRUPTION_TARGET.into(),
        status: "True".into(),
        reason: Some("TerminationByKubelet".into()),
        message: Some(message.into()),
        observed_generation: pod.metadata.generation,
        ..PodCondition::default()
    }
}

/// A condition of a status by its type.
pub fn condition<'a>(status: &'a PodStatus, type_: &str) -> Option<&'a PodCondition> {
    find(status.conditions.as_deref().unwrap_or_default(), type_)
}

fn find<'a>(list: &'a [PodCondition], type_: &str) -> Option<&'a PodCondition> {
    list.iter().find(|c| c.type_ == type_)
}

/// What a condition says, apart from its type and times.
pub(super) struct Says {
    is_true: bool,
    reason: Option<&'static str>,
    message: Option<String>,
}

impl Says {
    fn yes() -> Self {
        Self {
            is_true: true,
            reason: None,
            message: None,
        }
    }

    fn no(reason: Option<&'static str>, message: Option<String>) -> Self {
        Self {
            is_true: false,
            reason,
            message,
        }
    }

    pub(super) fn into_condition(self, type_: &str, generation: Option<i64>) -> PodCondition {
        let status = if self.is_true { "True" } else { "False" };
        PodCondition {
            type_: type_.to_owned(),
            status: status.to_owned(),
            reason: self.reason.map(str::to_owned),
            message: self.message,
            observed_generation: generation,
            ..PodCondition::default()
        }
    }
}

impl Cx<'_> {
    /// All conditions of the new status: foreign ones as the API has them, then the owned ones.
    pub(super) fn conditions(
        &self,
        api: &PodStatus,
        statuses: &[ContainerStatus],
        phase: &str,
    ) -> Vec<PodCondition> {
        let of_api = api.conditions.iter().flatten();
        let mut list: Vec<PodCondition> = of_api
            .filter(|c| !is_owned_condition(&c.type_))
            .cloned()
            .collect();
        // A disruption is told once, when it happens, and never found out again.
        if let Some(disruption) = condition(self.old, DISRUPTION_TARGET) {
            list.retain(|c| c.type_ != DISRUPTION_TARGET);
            list.push(disruption.clone());
        }
        if !self.inputs.terminal {
            list.extend(self.inputs.resize.iter().cloned());
        }
        let generation = generation(self.inputs.pod);
        let ready_to_start = self
            .inputs
            .ready_to_start
            .unwrap_or_else(|| !sandbox_need(self.spec, self.inputs.observed).create);
        let ready_to_start = if ready_to_start {
            Says::yes()
        } else {
            Says::no(None, None)
        };
        list.push(ready_to_start.into_condition(READY_TO_START, generation));
        let initialized = self.initialized(statuses, phase);
        list.push(initialized.into_condition(INITIALIZED, generation));
        let ready = ready(self.spec, &list, statuses, phase);
        list.push(ready.into_condition(READY, generation));
        let containers_ready = containers_ready(self.spec, statuses, phase);
        list.push(containers_ready.into_condition(CONTAINERS_READY, generation));
        list.push(Says::yes().into_condition(POD_SCHEDULED, generation));
        if self.inputs.gates.restart_all && restart::could_restart_all(self.spec) {
            let restarting = self.all_containers_restarting(phase);
            list.push(restarting.into_condition(ALL_CONTAINERS_RESTARTING, None));
        }
        list
    }

    fn initialized(&self, statuses: &[ContainerStatus], phase: &str) -> Says {
        let init = init_containers(self.spec);
        if statuses.is_empty() && !init.is_empty() {
            return Says::no(Some(UNKNOWN_CONTAINER_STATUSES), None);
        }
        let (unknown, incomplete) = sort_out(init.iter(), statuses, is_initialised);
        if phase == SUCCEEDED && unknown.is_empty() {
            return Says {
                reason: Some(POD_COMPLETED),
                ..Says::yes()
            };
        }
        // Sidecars that restart do not make a pod uninitialised again, nor does a restart of all.
        let regular_started = self.spec.containers.iter().any(|c| {
            let state = status_of(statuses, &c.name).and_then(|s| s.state.as_ref());
            state.is_some_and(|s| s.running.is_some() || s.terminated.is_some())
        });
        let was_initialised = self.inputs.gates.restart_all
            && condition(self.old, INITIALIZED).is_some_and(|c| c.status == "True");
        match describe(&unknown, &incomplete, "incomplete") {
            Some(message) if !regular_started && !was_initialised => {
                Says::no(Some(CONTAINERS_NOT_INITIALIZED), Some(message))
            }
            _ => Says::yes(),
        }
    }

    fn all_containers_restarting(&self, phase: &str) -> Says {
        if let Some(reason) = terminal_reason(phase) {
            return Says::no(Some(reason), None);
        }
        if !restart::restart_all_pending(self.spec, self.inputs.observed, self.inputs.gates) {
            return Says::no(None, None);
        }
        Says {
            is_true: true,
            reason: Some(RESTART_ALL_STARTED),
            message: Some(RESTART_ALL_MESSAGE.to_owned()),
        }
    }
}

pub(super) fn terminal_reason(phase: &str) -> Option<&'static str> {
    match phase {
        SUCCEEDED => Some(POD_COMPLETED),
        FAILED => Some(POD_FAILED),
        _ => None,
    }
}

fn is_initialised(container: &Container, status: &ContainerStatus) -> bool {
    if is_sidecar(container) {
        status.started.unwrap_or(false)
    } else {
        status.ready
    }
}

fn status_of<'a>(statuses: &'a [ContainerStatus], name: &str) -> Option<&'a ContainerStatus> {
    statuses.iter().find(|s| s.name == name)
}

/// Names of containers without a status, and of those whose status is not good.
fn sort_out<'a>(
    containers: impl Iterator<Item = &'a Container>,
    statuses: &[ContainerStatus],
    good: impl Fn(&Container, &ContainerStatus) -> bool,
) -> (Vec<&'a str>, Vec<&'a str>) {
    let mut unknown = Vec::new();
    let mut bad = Vec::new();
    for container in containers {
        match status_of(statuses, &container.name) {
            None => unknown.push(container.name.as_str()),
            Some(status) if !good(container, status) => bad.push(container.name.as_str()),
            Some(_) => {}
        }
    }
    (unknown, bad)
}

/// `containers with unknown status: [a b], containers with unready status: [c]`.
fn describe(unknown: &[&str], bad: &[&str], how: &str) -> Option<String> {
    let parts: Vec<String> = [(unknown, "unknown"), (bad, how)]
        .into_iter()
        .filter(|(names, _)| !names.is_empty())
        .map(|(names, how)| format!("containers with {how} status: [{}]", names.join(" ")))
        .collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

fn containers_ready(spec: &PodSpec, statuses: &[ContainerStatus], phase: &str) -> Says {
    if statuses.is_empty() {
        return Says::no(Some(UNKNOWN_CONTAINER_STATUSES), None);
    }
    let sidecars = init_containers(spec).iter().filter(|c| is_sidecar(c));
    let all = sidecars.chain(&spec.containers);
    let (unknown, unready) = sort_out(all, statuses, |_, status| status.ready);
    let told = phase == FAILED || (phase == SUCCEEDED && unknown.is_empty());
    if let Some(reason) = terminal_reason(phase).filter(|_| told) {
        return Says::no(Some(reason), None);
    }
    match describe(&unknown, &unready, "unready") {
        Some(message) => Says::no(Some(CONTAINERS_NOT_READY), Some(message)),
        None => Says::yes(),
    }
}

/// Ready: all containers are, and every readiness gate has its condition true.
fn ready(
    spec: &PodSpec,
    conditions: &[PodCondition],
    statuses: &[ContainerStatus],
    phase: &str,
) -> Says {
    let containers = containers_ready(spec, statuses, phase);
    if !containers.is_true {
        return containers;
    }
    let gates = spec.readiness_gates.iter().flatten();
    let missing: Vec<String> = gates
        .filter_map(|gate| {
            let type_ = &gate.condition_type;
            match find(conditions, type_) {
                None => Some(format!(
                    "corresponding condition of pod readiness gate \"{type_}\" does not exist."
                )),
                Some(c) if c.status != "True" => Some(format!(
                    "the status of pod readiness gate \"{type_}\" is not \"True\", but {}",
                    c.status
                )),
                Some(_) => None,
            }
        })
        .collect();
    if missing.is_empty() {
        Says::yes()
    } else {
        Says::no(Some(READINESS_GATES_NOT_READY), Some(missing.join(", ")))
    }
}

/// Recomputes Ready and ContainersReady in place after a container's readiness changed.
pub(super) fn refresh_readiness(status: &mut PodStatus, pod: &Pod) {
    let empty = PodSpec::default();
    let spec = pod.spec.as_ref().unwrap_or(&empty);
    let init = status.init_container_statuses.iter().flatten();
    let regular = status.container_statuses.iter().flatten();
    let all: Vec<ContainerStatus> = init.chain(regular).cloned().collect();
    let phase = status.phase.clone().unwrap_or_default();
    let generation = generation(pod);
    let list = status.conditions.get_or_insert_default();
    let fresh = [
        ready(spec, list, &all, &phase).into_condition(READY, generation),
        containers_ready(spec, &all, &phase).into_condition(CONTAINERS_READY, generation),
    ];
    for condition in fresh {
        match list.iter_mut().find(|c| c.type_ == condition.type_) {
            Some(place) => *place = condition,
            None => list.push(condition),
        }
    }
}
