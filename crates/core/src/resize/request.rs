//! What is asked for when a spec's resources change, and which of it can never be had.

use krablet_pod::api::{Container, Pod, PodSpec, ResourceRequirements};
use krablet_pod::containers::{self, ContainerKind};
use krablet_pod::qos::{QosClass, qos_class};
use krablet_pod::{Allocation, Quantity, marks};

use super::size::Size;

/// What forbids resizes on this node. The default is that of the gates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResizeSettings {
    /// The gate InPlacePodLevelResourcesVerticalScaling.
    pub pod_level: bool,
    /// `cpuManagerPolicy: static`, without the gate InPlacePodVerticalScalingExclusiveCPUs.
    pub static_cpus: bool,
    /// `memoryManagerPolicy: Static`, without the gate InPlacePodVerticalScalingExclusiveMemory.
    pub static_memory: bool,
    /// Containers may have swap: `LimitedSwap`.
    pub limited_swap: bool,
}

impl Default for ResizeSettings {
    fn default() -> Self {
        Self {
            pod_level: true,
            static_cpus: false,
            static_memory: false,
            limited_swap: false,
        }
    }
}

/// Why a resize can never be done on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Infeasible {
    pub message: String,
    /// The same in a word, for those who count.
    pub label: &'static str,
}

impl Infeasible {
    fn new(label: &'static str, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { message, label }
    }
}

pub fn infeasible(
    pod: &Pod,
    allocation: &Allocation,
    settings: &ResizeSettings,
) -> Option<Infeasible> {
    let allocated = allocation.applied(pod);
    let (spec, had) = (pod.spec.as_ref()?, allocated.spec.as_ref()?);
    if settings.limited_swap && changes_swap(pod, spec, &allocated, had) {
        let message = "In-place resize of containers with swap is not supported.";
        return Some(Infeasible::new("swap_limitation", message));
    }
    let size = |r: Option<&ResourceRequirements>| r.map(Size::of).unwrap_or_default();
    if !settings.pod_level && size(spec.resources.as_ref()) != size(had.resources.as_ref()) {
        let message = "InPlacePodLevelResourcesVerticalScaling is disabled";
        return Some(Infeasible::new("plr_feature_gate_off", message));
    }
    if qos_class(spec) != QosClass::Guaranteed {
        return None;
    }
    let changes = |of: fn(&Size) -> i64| {
        let mut pairs = pairs(spec, had);
        pairs.any(|(_, new, old)| of(&own_size(new)) != of(&own_size(old)))
    };
    if settings.static_cpus && changes(|s| s.cpu_request) {
        let message =
            "Resize is infeasible for Guaranteed Pods alongside CPU Manager policy \"static\"";
        return Some(Infeasible::new(
            "guaranteed_pod_cpu_manager_static_policy",
            message,
        ));
    }
    if settings.static_memory && changes(|s| s.memory_request) {
        let message =
            "Resize is infeasible for Guaranteed Pods alongside Memory Manager policy \"Static\"";
        return Some(Infeasible::new(
            "guaranteed_pod_memory_manager_static_policy",
            message,
        ));
    }
    None
}

fn own_size(container: &Container) -> Size {
    container
        .resources
        .as_ref()
        .map(Size::of)
        .unwrap_or_default()
}

/// Containers as they are wanted and as they were, by name.
fn pairs<'a>(
    new: &'a PodSpec,
    old: &'a PodSpec,
) -> impl Iterator<Item = (ContainerKind, &'a Container, &'a Container)> {
    containers::all(new).filter_map(|c| {
        let before = containers::find(old, &c.container.name)?;
        Some((c.kind, c.container, before.container))
    })
}

/// A container's share of the swap follows its request for memory, and cannot be changed while it runs.
fn changes_swap(pod: &Pod, new: &PodSpec, allocated: &Pod, old: &PodSpec) -> bool {
    let restarts = |c: &Container| {
        let mut policies = c.resize_policy.iter().flatten();
        policies.any(|p| p.resource_name == "memory" && p.restart_policy == "RestartContainer")
    };
    let swaps = |pod: &Pod, spec: &PodSpec, c: &Container| {
        let size = own_size(c);
        !marks::is_critical(pod)
            && qos_class(spec) == QosClass::Burstable
            && size.memory_request != size.memory_limit
    };
    pairs(new, old).any(|(_, then, now)| {
        own_size(then).memory_request != own_size(now).memory_request
            && !restarts(now)
            && (swaps(pod, new, then) || swaps(allocated, old, now))
    })
}

/// `(resource, requirement, operation)` of every amount a container asks for anew, for those who count.
pub fn requested(old: &Pod, new: &Pod) -> Vec<(&'static str, &'static str, &'static str)> {
    let (Some(old), Some(new)) = (old.spec.as_ref(), new.spec.as_ref()) else {
        return Vec::new();
    };
    let mut all = Vec::new();
    for (_, then, now) in pairs(new, old) {
        for resource in ["memory", "cpu"] {
            for (requirement, of) in LISTS {
                let amount = |c: &Container| {
                    let list = of(c.resources.as_ref()?);
                    list.as_ref()?.get(resource)?.0.parse::<Quantity>().ok()
                };
                let zero = Quantity::ZERO;
                let (then, now) = (amount(then).unwrap_or(zero), amount(now).unwrap_or(zero));
                if let Some(operation) = operation(then, now) {
                    all.push((resource, requirement, operation));
                }
            }
        }
    }
    all
}

type ListOf = fn(&ResourceRequirements) -> &Option<krablet_pod::resources::ApiList>;
const LISTS: [(&str, ListOf); 2] = [("requests", |r| &r.requests), ("limits", |r| &r.limits)];

fn operation(then: Quantity, now: Quantity) -> Option<&'static str> {
    match (now.is_zero(), then.is_zero()) {
        (false, true) => Some("remove"),
        (true, false) => Some("add"),
        _ if then < now => Some("decrease"),
        _ if then > now => Some("increase"),
        _ => None,
    }
}
