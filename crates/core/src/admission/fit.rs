//! Whether what a pod asks for is still there.

use std::collections::BTreeMap;
use std::fmt;

use krablet_pod::Quantity;
use krablet_pod::resources::{Amounts, RequestRules, pod_requests_of};

use super::names::{is_extended_resource, is_scalar_resource};
use super::{AdmissionInputs, AdmittedPod};

/// Amounts as they are compared: cpu in thousandths, all others in whole units.
pub(super) type Counts = BTreeMap<String, i64>;

/// The order in which lacks are told; other resources follow by name.
const FIRST: [&str; 3] = ["cpu", "memory", "ephemeral-storage"];

pub(super) const PODS: &str = "pods";

pub(super) fn count(resource: &str, amount: Quantity) -> i64 {
    match resource {
        "cpu" => amount.milli_value(),
        _ => amount.value(),
    }
}

/// Resources nobody keeps books on are left out.
pub(super) fn counts(amounts: &Amounts) -> Counts {
    amounts
        .iter()
        .filter(|(name, _)| FIRST.contains(&name.as_str()) || is_scalar_resource(name))
        .map(|(name, amount)| (name.clone(), count(name, *amount)))
        .collect()
}

/// A resource of which there is not enough.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Lack {
    pub resource: String,
    pub requested: i64,
    pub used: i64,
    pub capacity: i64,
}

impl Lack {
    /// How much would have to be freed.
    pub fn missing(&self) -> i64 {
        let free = self.capacity.saturating_sub(self.used);
        self.requested.saturating_sub(free)
    }
}

impl fmt::Display for Lack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            resource,
            requested,
            used,
            capacity,
        } = self;
        write!(
            f,
            "Node didn't have enough resource: {resource}, requested: {requested}, \
             used: {used}, capacity: {capacity}"
        )
    }
}

/// All that is lacking for the pod beside the others.
pub(super) fn lacks(inputs: &AdmissionInputs<'_>, others: &[&AdmittedPod]) -> Vec<Lack> {
    let allocatable = &inputs.node.allocatable;
    let requested = requested(inputs);
    let lack = |resource: &str, requested: i64, used: i64| {
        let capacity = allocatable.get(resource).map_or(0, |q| count(resource, *q));
        let lack = Lack {
            resource: resource.to_owned(),
            requested,
            used,
            capacity,
        };
        (lack.missing() > 0).then_some(lack)
    };
    let pods = lack(PODS, 1, i64::try_from(others.len()).unwrap_or(i64::MAX));
    let rest = requested
        .keys()
        .map(String::as_str)
        .filter(|name| !FIRST.contains(name));
    let of_pod = FIRST.into_iter().chain(rest).filter_map(|resource| {
        let amount = requested.get(resource).copied().filter(|a| *a > 0)?;
        let used = others.iter().fold(0_i64, |sum, other| {
            sum.saturating_add(other.requests.get(resource).copied().unwrap_or(0))
        });
        lack(resource, amount, used)
    });
    pods.into_iter().chain(of_pod).collect()
}

/// What the pod asks of this node. Extended resources the node does not know are another's to give
/// (the cluster's, or a resource claim's), so they are not held against the pod.
fn requested(inputs: &AdmissionInputs<'_>) -> Counts {
    let settings = inputs.settings;
    let mappings = inputs
        .pod
        .status
        .as_ref()
        .filter(|_| settings.dra_extended_resources)
        .and_then(|s| s.extended_resource_claim_status.as_ref())
        .map_or(&[][..], |s| &s.request_mappings);
    let claimed = |container: &str, resource: &str| {
        mappings
            .iter()
            .any(|m| m.container_name == container && m.resource_name == resource)
            && (is_extended_resource(resource)
                || resource.starts_with("deviceclass.resource.kubernetes.io/"))
    };
    let known = |resource: &str| {
        !is_extended_resource(resource) || inputs.node.allocatable.contains_key(resource)
    };
    let rules = RequestRules {
        pod_level: settings.pod_level_resources,
        from_status: false,
    };
    counts(&pod_requests_of(
        inputs.pod,
        rules,
        |container, resource| known(resource) && !claimed(container, resource),
    ))
}
