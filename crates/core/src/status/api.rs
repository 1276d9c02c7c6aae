//! What becomes of a status on its way to the API server: merged with what others wrote there, held
//! back where it would say too much too early, and compared in a form in which equal means equal.

use jiff::Timestamp;
use krablet_pod::Quantity;
use krablet_pod::api::{ContainerStatus, Pod, PodCondition, PodStatus};
use krablet_pod::marks;
use krablet_pod::tree;
use serde_json::{Map, Value};

use super::conditions::{
    CONTAINERS_READY, DISRUPTION_TARGET, READY, READY_TO_START, condition, is_owned_condition,
    terminal_reason,
};
use super::containers::whole_seconds;
use super::{is_terminal, is_terminal_phase, phase_of};

#[derive(Clone, Copy, Debug)]
pub struct MergeInputs<'a> {
    /// The object at the API server: of a static pod, its mirror.
    pub api_pod: &'a Pod,
    pub ours: &'a PodStatus,
    pub could_have_running_containers: bool,
    pub now: Timestamp,
}

/// The status to write: ours, with what is not ours as the API server has it. A phase that is the
/// last waits until nothing can run any more, and is never taken back.
pub fn merge_for_api(inputs: &MergeInputs<'_>) -> PodStatus {
    let empty = PodStatus::default();
    let api = inputs.api_pod.status.as_ref().unwrap_or(&empty);
    let ours = inputs.ours;
    let mut merged = PodStatus {
        conditions: merged_conditions(inputs, api),
        resource_claim_statuses: api.resource_claim_statuses.clone(),
        extended_resource_claim_status: api.extended_resource_claim_status.clone(),
        node_allocatable_resource_claim_statuses: api
            .node_allocatable_resource_claim_statuses
            .clone(),
        // One that was told stays, also when this agent has forgotten it.
        start_time: api.start_time.clone().or(ours.start_time.clone()),
        ..ours.clone()
    };
    keep_told(&mut merged, api);
    let taken_back = is_terminal(api) && phase_of(api) != phase_of(ours);
    if taken_back || is_held_back(inputs) {
        merged.phase = api.phase.clone();
        merged.reason = api.reason.clone();
        merged.message = api.message.clone();
    }
    let is_true = |type_| condition(&merged, type_).is_some_and(|c| c.status == "True");
    if is_terminal(&merged) && (is_true(READY) || is_true(CONTAINERS_READY)) {
        for type_ in [CONTAINERS_READY, READY] {
            set_not_ready(&mut merged, type_, inputs);
        }
    }
    merged
}

/// The end of a container was told, and this agent knows nothing of it: the runtime has no trace of the container any
/// more, or the whole pod was over in a life before this one. In a pod that is over nothing begins anew, not even what
/// never was.
fn is_forgotten(ours: &ContainerStatus, told: &ContainerStatus, over: bool) -> bool {
    let ended = |of: &ContainerStatus| of.state.as_ref().is_some_and(|s| s.terminated.is_some());
    let unknown = |of: &ContainerStatus| of.container_id.as_deref().unwrap_or_default().is_empty();
    ended(told) && ((unknown(ours) && !unknown(told)) || (over && !ended(ours)))
}

/// Restart counts that were told do not fall, and ends stay told, also when this agent has forgotten
/// them.
fn keep_told(merged: &mut PodStatus, api: &PodStatus) {
    let over = is_terminal(api);
    for (ours, told) in [
        (
            &mut merged.init_container_statuses,
            &api.init_container_statuses,
        ),
        (&mut merged.container_statuses, &api.container_statuses),
    ] {
        for container in ours.iter_mut().flatten() {
            let mut told = told.iter().flatten();
            if let Some(told) = told.find(|t| t.name == container.name) {
                if is_forgotten(container, told, over) {
                    *container = told.clone();
                }
                container.restart_count = container.restart_count.max(told.restart_count);
            }
        }
    }
}

/// The status says the pod is over, and the API server is not to hear it yet, for its containers
/// could still run.
pub fn is_held_back(inputs: &MergeInputs<'_>) -> bool {
    inputs.could_have_running_containers && ends(inputs)
}

/// The phase goes from one that can change to one that cannot.
fn ends(inputs: &MergeInputs<'_>) -> bool {
    let api = inputs.api_pod.status.as_ref();
    is_terminal(inputs.ours) && !api.is_some_and(is_terminal)
}

/// Those of others stay where they are, ours take the place of the old ones.
fn merged_conditions(inputs: &MergeInputs<'_>, api: &PodStatus) -> Option<Vec<PodCondition>> {
    let ours = inputs.ours;
    let disrupted = ends(inputs) && !inputs.could_have_running_containers;
    let told = |type_: &str| {
        let may = is_owned_condition(type_) || (type_ == DISRUPTION_TARGET && disrupted);
        condition(ours, type_).filter(|_| may)
    };
    let in_place = |c: &PodCondition| match told(&c.type_) {
        Some(new) => Some(retimed(new, api, inputs.now)),
        None => Some(c.clone()).filter(|c| !is_owned_condition(&c.type_)),
    };
    let old = api.conditions.iter().flatten().filter_map(in_place);
    let new = ours.conditions.iter().flatten().filter_map(|c| {
        let new = told(&c.type_).filter(|_| condition(api, &c.type_).is_none());
        new.map(|c| retimed(c, api, inputs.now))
    });
    let list: Vec<PodCondition> = old.chain(new).collect();
    (!list.is_empty()).then_some(list)
}

/// A disruption is told late, when all containers have ended, so its time is that of the telling.
fn retimed(ours: &PodCondition, api: &PodStatus, now: Timestamp) -> PodCondition {
    let mut told = ours.clone();
    if told.type_ == DISRUPTION_TARGET {
        let same = condition(api, DISRUPTION_TARGET).filter(|c| c.status == told.status);
        told.last_transition_time = match same {
            Some(same) => same.last_transition_time.clone(),
            None => Some(whole_seconds(now)),
        };
    }
    told
}

/// A pod that is over is not ready, whatever its last probe said.
fn set_not_ready(status: &mut PodStatus, type_: &str, inputs: &MergeInputs<'_>) {
    let before = condition(status, type_).filter(|c| c.status == "False");
    let since = before.and_then(|c| c.last_transition_time.clone());
    let fresh = PodCondition {
        type_: type_.to_owned(),
        status: "False".to_owned(),
        reason: terminal_reason(phase_of(status)).map(str::to_owned),
        observed_generation: super::generation(inputs.api_pod),
        last_transition_time: since.or_else(|| Some(whole_seconds(inputs.now))),
        ..PodCondition::default()
    };
    let list = status.conditions.get_or_insert_default();
    match list.iter_mut().find(|c| c.type_ == type_) {
        Some(place) => *place = fresh,
        None => list.push(fresh),
    }
}

/// The API server's copy says something else than the merged status where the word is ours. Times
/// of conditions do not count, nor does the order of lists.
pub fn needs_update(api: &PodStatus, merged: &PodStatus) -> bool {
    fn said(status: &PodStatus) -> Vec<[&str; 4]> {
        let list = status.conditions.iter().flatten();
        let ours = list.filter(|c| is_owned_condition(&c.type_) || c.type_ == DISRUPTION_TARGET);
        let mut said: Vec<[&str; 4]> = ours
            .map(|c| {
                [
                    c.type_.as_str(),
                    c.status.as_str(),
                    c.reason.as_deref().unwrap_or_default(),
                    c.message.as_deref().unwrap_or_default(),
                ]
            })
            .collect();
        said.sort_unstable();
        said
    }
    let rest = |status: &PodStatus| {
        let mut rest = PodStatus {
            conditions: None,
            resource_claim_statuses: None,
            extended_resource_claim_status: None,
            node_allocatable_resource_claim_statuses: None,
            ..status.clone()
        };
        let lists = [
            &mut rest.container_statuses,
            &mut rest.init_container_statuses,
            &mut rest.ephemeral_container_statuses,
        ];
        for list in lists.into_iter().flatten() {
            list.sort_by(|a, b| a.name.cmp(&b.name));
        }
        canonical(&rest)
    };
    said(api) != said(merged) || rest(api) != rest(merged)
}

/// How soon the API server should hear of a status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Urgency {
    /// Others wait for this change: the pod becomes ready or unready, or it is over.
    Urgent,
    Normal,
    /// The pod is on its way up, and nothing of it has ended or failed: soon there is more to tell.
    Beginning,
    /// The pod is to go, and that this is known is all there is to tell: soon there is more.
    Leaving,
    /// All of a pod that is to go has ended: soon there is the last word to say of it.
    Ending,
    /// There is nothing of the pod yet: it waits for its turn behind others.
    Queued,
}

/// `leaving`: the pod is to be deleted.
pub fn urgency(api: Option<&PodStatus>, ours: &PodStatus, leaving: bool) -> Urgency {
    if leaving && !runs(ours) {
        return Urgency::Ending;
    }
    if leaving && api.is_some_and(|api| says_the_same(api, ours)) {
        return Urgency::Leaving;
    }
    let ready = |status: &PodStatus| condition(status, READY).is_some_and(|c| c.status == "True");
    let was_ready = api.is_some_and(ready);
    let was_over = api.is_some_and(is_terminal);
    if ready(ours) != was_ready || (is_terminal(ours) && !was_over) {
        return Urgency::Urgent;
    }
    let made = condition(ours, READY_TO_START).is_some_and(|c| c.status == "True");
    match api.is_none_or(has_only_begun) {
        true if has_only_begun(ours) && !made => Urgency::Queued,
        true if has_only_begun(ours) || comes_up(ours) => Urgency::Beginning,
        _ => Urgency::Normal,
    }
}

/// But for the version of the spec that it is about.
fn says_the_same(api: &PodStatus, ours: &PodStatus) -> bool {
    let ours = PodStatus {
        observed_generation: api.observed_generation,
        ..ours.clone()
    };
    !needs_update(api, &ours)
}

fn lists(status: &PodStatus) -> impl Iterator<Item = &ContainerStatus> {
    let lists = [
        &status.init_container_statuses,
        &status.container_statuses,
        &status.ephemeral_container_statuses,
    ];
    lists.into_iter().flatten().flatten()
}

fn is_running(container: &ContainerStatus) -> bool {
    let state = container.state.as_ref();
    state.is_some_and(|state| state.running.is_some())
}

fn is_new(container: &ContainerStatus) -> bool {
    let last = container.last_state.as_ref();
    container.restart_count == 0 && last.is_none_or(|last| last.terminated.is_none())
}

fn runs(status: &PodStatus) -> bool {
    lists(status).any(is_running)
}

/// All of it runs for the first time; whether it is ready is to be seen.
fn comes_up(status: &PodStatus) -> bool {
    let containers = status.container_statuses.iter().flatten();
    phase_of(status) == "Running"
        && status.container_statuses.is_some()
        && containers.clone().all(|c| is_running(c) && is_new(c))
}

fn has_only_begun(status: &PodStatus) -> bool {
    const BEGINNINGS: [&str; 2] = ["ContainerCreating", "PodInitializing"];
    let begins = |container: &ContainerStatus| {
        let waiting = container.state.as_ref().map(|state| state.waiting.as_ref());
        let reason = waiting.map(|waiting| waiting.and_then(|w| w.reason.as_deref()));
        is_new(container) && reason.is_none_or(|r| r.is_some_and(|r| BEGINNINGS.contains(&r)))
    };
    matches!(phase_of(status), "" | "Pending")
        && status.reason.is_none()
        && lists(status).all(begins)
}

/// The pod's object has nothing left to wait for: deletion was asked for, the API server has heard
/// the last phase, and the node holds nothing of the pod any more. Mirror pods go another way.
pub fn can_be_deleted(api_pod: &Pod, finished: bool) -> bool {
    let phase = api_pod.status.as_ref().map(phase_of).unwrap_or_default();
    api_pod.metadata.deletion_timestamp.is_some()
        && !marks::is_mirror(api_pod)
        && is_terminal_phase(phase)
        && finished
}

/// Fields a status always has, even if they are empty.
const ALWAYS: [&str; 6] = ["image", "imageID", "ip", "name", "status", "type"];
/// Objects that say nothing when they are empty. Others do: a container that waits for no told reason
/// has `"waiting": {}`.
const SILENT: [&str; 5] = [
    "allocatedResources",
    "lastState",
    "limits",
    "requests",
    "state",
];
/// Of these, amounts of resources.
const AMOUNTS: [&str; 3] = ["allocatedResources", "limits", "requests"];

/// A status as JSON in the form the API server gives it back: times in whole seconds, amounts in
/// their canonical form, and nothing that is empty.
pub fn canonical(status: &PodStatus) -> Value {
    let mut value = tree(status);
    if let Value::Object(object) = &mut value {
        tidy(object);
    }
    value
}

fn tidy(object: &mut Map<String, Value>) {
    for (name, value) in object.iter_mut() {
        match value {
            Value::Object(amounts) if AMOUNTS.contains(&name.as_str()) => {
                amounts.values_mut().for_each(tidy_amount);
            }
            Value::Object(inner) => tidy(inner),
            Value::Array(list) => list
                .iter_mut()
                .filter_map(Value::as_object_mut)
                .for_each(tidy),
            _ => {}
        }
    }
    object.retain(|name, value| !is_silent(name, value));
}

fn is_silent(name: &str, value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty() && !ALWAYS.contains(&name),
        Value::Array(list) => list.is_empty(),
        Value::Object(object) => object.is_empty() && SILENT.contains(&name),
        Value::Number(number) => {
            number.as_i64() == Some(0) && matches!(name, "observedGeneration" | "signal")
        }
        Value::Bool(flag) => !flag && name == "readOnly",
    }
}

fn tidy_amount(value: &mut Value) {
    let amount = value.as_str().and_then(|t| t.parse::<Quantity>().ok());
    if let Some(amount) = amount {
        *value = Value::String(amount.to_string());
    }
}
