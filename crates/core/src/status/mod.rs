//! The API status of a pod, from its spec, what the runtime holds of it and what was said before.
//!
//! [`generate`] makes a new status, [`accept`] decides whether and how it replaces the one that
//! stands. [`with_readiness`], [`with_started`], [`with_ends`] and [`terminate`] are the small changes between.

mod accept;
mod api;
mod conditions;
mod containers;
mod ends;
mod phase;
mod probes;
mod resources;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::net::IpAddr;

use jiff::{SignedDuration, Timestamp};
use krablet_pod::Actuation;
use krablet_pod::api::{
    Container, ContainerStatus, HostIP, Pod, PodCondition, PodIP, PodSpec, PodStatus,
};
use krablet_pod::containers::ContainerKind;
use krablet_pod::marks;
use krablet_pod::observed::{ObservedContainer, ObservedPod};
use krablet_pod::qos::qos_class;

use crate::probe::Verdicts;
use crate::restart::{self, RestartGates};
use crate::start::StartErrors;

pub use accept::{AcceptInputs, Accepted, accept, terminate, with_readiness, with_started};
pub use api::{
    MergeInputs, Urgency, can_be_deleted, canonical, is_held_back, merge_for_api, needs_update,
    urgency,
};
pub(crate) use conditions::terminated_by_kubelet;
pub use conditions::{condition, is_owned_condition};
pub(crate) use containers::runtime_id;
pub use ends::with_ends;

pub const PENDING: &str = "Pending";
pub const RUNNING: &str = "Running";
pub const SUCCEEDED: &str = "Succeeded";
pub const FAILED: &str = "Failed";

/// Why an active pod past its `activeDeadlineSeconds` failed.
pub const DEADLINE_EXCEEDED: &str = "DeadlineExceeded";
pub const DEADLINE_EXCEEDED_MESSAGE: &str =
    "Pod was active on the node longer than the specified deadline";

/// The reason of a container whose end nobody saw.
pub const CONTAINER_STATUS_UNKNOWN: &str = "ContainerStatusUnknown";
/// The exit code of a container whose end nobody saw.
pub const UNKNOWN_EXIT_CODE: i32 = 137;

/// What a status tells of the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeFacts {
    /// The node's addresses, at most one per family, the preferred first; empty if not known.
    pub host_ips: Vec<IpAddr>,
    /// As the runtime calls itself; the scheme of container ids (`containerd`).
    pub runtime_name: String,
    /// The runtime can mount volumes of the pod read-only all the way down.
    pub recursive_read_only: bool,
}

#[derive(Clone, Copy, Debug)]
pub struct StatusInputs<'a> {
    pub pod: &'a Pod,
    pub observed: &'a ObservedPod,
    /// The status that stands; without one, that of the API object counts.
    pub old: Option<&'a PodStatus>,
    pub start_errors: &'a StartErrors,
    pub verdicts: &'a Verdicts,
    /// The pod will not run again.
    pub terminal: bool,
    /// Sandbox and network are known to be ready or not; `None`: read it from `observed`.
    pub ready_to_start: Option<bool>,
    /// The pod is past its active deadline (see [`deadline_exceeded`]).
    pub deadline_exceeded: bool,
    pub node: &'a NodeFacts,
    /// By container name, see [`crate::restart::count_from_log_names`].
    pub log_restart_counts: &'a BTreeMap<String, u32>,
    pub gates: RestartGates,
    /// What is told of resizes (see [`crate::resize::ResizeConditions`]).
    pub resize: &'a [PodCondition],
    /// What the containers were last given, if the pod was ever resized.
    pub actuated: Option<&'a Actuation>,
}

/// Succeeded or Failed: a phase that is never left.
pub fn is_terminal(status: &PodStatus) -> bool {
    is_terminal_phase(phase_of(status))
}

pub fn is_terminal_phase(phase: &str) -> bool {
    matches!(phase, SUCCEEDED | FAILED)
}

/// The phase of a status, empty if it has none yet.
pub fn phase_of(status: &PodStatus) -> &str {
    status.phase.as_deref().unwrap_or_default()
}

/// Computes the status of a pod.
pub fn generate(inputs: &StatusInputs<'_>) -> PodStatus {
    let empty_spec = PodSpec::default();
    let empty_status = PodStatus::default();
    let pod = inputs.pod;
    let api = pod.status.as_ref().unwrap_or(&empty_status);
    let cx = Cx {
        inputs,
        spec: pod.spec.as_ref().unwrap_or(&empty_spec),
        old: inputs.old.unwrap_or(api),
    };
    let mut init = cx.container_statuses(ContainerKind::Init);
    let mut regular = cx.container_statuses(ContainerKind::Regular);
    let ephemeral = cx.container_statuses(ContainerKind::Ephemeral);
    cx.set_started_and_ready(&mut init, &mut regular);
    let all: Vec<ContainerStatus> = init.iter().chain(&regular).cloned().collect();
    let (phase, reason, message) = cx.phase_and_reason(api, &all);
    let ips = cx.pod_ips();
    PodStatus {
        conditions: Some(cx.conditions(api, &all, &phase)),
        phase: Some(phase),
        reason,
        message,
        qos_class: Some(qos_class(cx.spec).as_str().to_owned()),
        pod_ip: ips.first().cloned(),
        pod_ips: non_empty(ips.into_iter().map(|ip| PodIP { ip }).collect()),
        host_ip: inputs.node.host_ips.first().map(IpAddr::to_string),
        host_ips: non_empty(host_ips(inputs.node)),
        container_statuses: non_empty(regular),
        init_container_statuses: non_empty(init),
        ephemeral_container_statuses: non_empty(ephemeral),
        resources: Some(cx.resources_in_use(&all)),
        allocated_resources: resources::requests(cx.spec),
        observed_generation: generation(pod),
        start_time: cx.old.start_time.clone(),
        ..PodStatus::default()
    }
}

/// When the pod's active deadline is reached; `None` if it has none or has not started.
pub fn active_deadline(pod: &Pod, old: Option<&PodStatus>) -> Option<Timestamp> {
    let seconds = pod.spec.as_ref()?.active_deadline_seconds?;
    let start = old.or(pod.status.as_ref())?.start_time.as_ref()?;
    start.0.checked_add(SignedDuration::from_secs(seconds)).ok()
}

pub fn deadline_exceeded(pod: &Pod, old: Option<&PodStatus>, now: Timestamp) -> bool {
    active_deadline(pod, old).is_some_and(|at| now >= at)
}

/// What is to be told if the pod was last said to be on a host of the other family of addresses: whoever names the
/// node's addresses chose others than the node was known by.
pub fn host_family_mismatch(told: Option<&PodStatus>, now: &PodStatus) -> Option<String> {
    let ip = |status: &PodStatus| status.host_ip.as_deref()?.parse::<IpAddr>().ok();
    let (told, now) = (ip(told?)?, ip(now)?);
    let family = |ip: IpAddr| if ip.is_ipv6() { 6 } else { 4 };
    let (before, after) = (family(told), family(now));
    (before != after).then(|| {
        format!(
            "Kubelet detected an IPv{before} node IP ({told}), but the cloud provider selected \
             an IPv{after} node IP ({now}); pass an explicit `--node-ip` to kubelet to fix this."
        )
    })
}

/// One status in the making.
struct Cx<'a> {
    inputs: &'a StatusInputs<'a>,
    spec: &'a PodSpec,
    /// The cached status, else that of the API object.
    old: &'a PodStatus,
}

impl Cx<'_> {
    /// Phase with its reason and message. A terminal phase, once said, stays.
    fn phase_and_reason(
        &self,
        api: &PodStatus,
        all: &[ContainerStatus],
    ) -> (String, Option<String>, Option<String>) {
        let said = [api, self.old].into_iter().find(|s| is_terminal(s));
        // A pod that ended in time may be a while in being taken down.
        if self.inputs.deadline_exceeded && said.is_none() {
            return (
                FAILED.to_owned(),
                Some(DEADLINE_EXCEEDED.to_owned()),
                Some(DEADLINE_EXCEEDED_MESSAGE.to_owned()),
            );
        }
        let making_way: Vec<&str> = self.making_way().collect();
        let computed = phase::phase(&phase::PhaseInputs {
            spec: self.spec,
            statuses: all,
            terminal: self.inputs.terminal,
            is_static: marks::is_static(self.inputs.pod),
            initialised: self.any_regular_in_sandbox(),
            gates: self.inputs.gates,
            making_way: &making_way,
        });
        let phase = said.map_or(computed, phase_of);
        if phase != phase_of(self.old) {
            return (phase.to_owned(), None, None);
        }
        let keep = |old: &Option<String>, api: &Option<String>| {
            let said = |text: &&String| !text.is_empty();
            old.as_ref()
                .filter(said)
                .or(api.as_ref().filter(said))
                .cloned()
        };
        (
            phase.to_owned(),
            keep(&self.old.reason, &api.reason),
            keep(&self.old.message, &api.message),
        )
    }

    /// A regular container exists in the newest, ready sandbox: the pod has been initialised.
    fn any_regular_in_sandbox(&self) -> bool {
        let observed = self.inputs.observed;
        let Some(active) = observed.sandboxes.first().filter(|s| s.ready) else {
            return false;
        };
        self.spec.containers.iter().any(|c| {
            observed
                .instances(&c.name)
                .any(|seen| seen.sandbox_id == active.id)
        })
    }

    /// The instance was stopped for another that is still wanted. Its policy calls such an end final,
    /// and it is not the container's.
    fn makes_way(&self, container: &Container, seen: &ObservedContainer) -> bool {
        let inputs = self.inputs;
        let over = inputs.terminal || inputs.deadline_exceeded;
        let wanted = inputs.pod.metadata.deletion_timestamp.is_none() && !over;
        let final_else = || {
            let code = restart::exit_code(seen);
            !restart::should_restart(self.spec, container, code, inputs.gates).restarts()
        };
        wanted && restart::was_stopped_to_restart(seen) && final_else()
    }

    fn making_way(&self) -> impl Iterator<Item = &str> {
        let making = self.spec.containers.iter().filter(|c| {
            restart::current_instance(self.inputs.observed, &c.name)
                .is_some_and(|seen| self.makes_way(c, seen))
        });
        making.map(|c| c.name.as_str())
    }

    /// All containers are being restarted, or were until the last of them was removed.
    fn restarting_all(&self) -> bool {
        let gates = self.inputs.gates;
        let said = || {
            condition(self.old, conditions::ALL_CONTAINERS_RESTARTING)
                .is_some_and(|c| c.status == "True")
        };
        gates.restart_all
            && (said() || restart::restart_all_pending(self.spec, self.inputs.observed, gates))
    }

    /// One address per family, the node's first family first. A pod whose sandbox is gone keeps
    /// the addresses it had: a completed pod still shows them.
    fn pod_ips(&self) -> Vec<String> {
        let node = self.inputs.node;
        let old = || {
            let ips = self.old.pod_ips.as_deref().unwrap_or_default();
            ips.iter().map(|ip| ip.ip.clone()).collect::<Vec<_>>()
        };
        if self.spec.host_network.unwrap_or(false) {
            return host_network_ips(old(), node);
        }
        let v6_first = node.host_ips.first().is_some_and(IpAddr::is_ipv6);
        let seen: Vec<IpAddr> = self
            .inputs
            .observed
            .ips()
            .iter()
            .filter_map(|ip| ip.parse().ok())
            .collect();
        let of_family = |v6: bool| seen.iter().find(move |ip| ip.is_ipv6() == v6);
        let ips: Vec<String> = [of_family(v6_first), of_family(!v6_first)]
            .into_iter()
            .flatten()
            .map(IpAddr::to_string)
            .collect();
        let sandbox_gone = self.inputs.observed.ready_sandboxes().next().is_none();
        if ips.is_empty() && sandbox_gone {
            old()
        } else {
            ips
        }
    }
}

/// Pods in the host's network take the node's addresses once; one of a second family may follow.
fn host_network_ips(had: Vec<String>, node: &NodeFacts) -> Vec<String> {
    let mut ips = had;
    if ips.is_empty() {
        ips.extend(node.host_ips.first().map(IpAddr::to_string));
    }
    if let ([only], Some(second)) = (ips.as_slice(), node.host_ips.get(1)) {
        let other_family = only
            .parse::<IpAddr>()
            .is_ok_and(|first| first.is_ipv6() != second.is_ipv6());
        if other_family {
            ips.push(second.to_string());
        }
    }
    ips
}

fn host_ips(node: &NodeFacts) -> Vec<HostIP> {
    let ips = node.host_ips.iter().take(2);
    ips.map(|ip| HostIP { ip: ip.to_string() }).collect()
}

/// The generation of the spec a status speaks of.
pub(crate) fn generation(pod: &Pod) -> Option<i64> {
    pod.metadata.generation.filter(|g| *g != 0)
}

fn non_empty<T>(list: Vec<T>) -> Option<Vec<T>> {
    (!list.is_empty()).then_some(list)
}
