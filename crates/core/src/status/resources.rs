//! What a pod asks for and may use as a whole.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use krablet_pod::Quantity;
use krablet_pod::api::{Container, PodSpec, ResourceRequirements};
use krablet_pod::containers::{init_containers, is_sidecar};

type ApiList = BTreeMap<String, ApiQuantity>;
type Sums = BTreeMap<String, Quantity>;

/// Requests and limits of the whole pod.
pub(super) fn effective(spec: &PodSpec) -> ResourceRequirements {
    ResourceRequirements {
        requests: requests(spec),
        limits: limits(spec),
        ..spec.resources.clone().unwrap_or_default()
    }
}

/// Sum of the containers' requests, or the largest need while initialising if that is more, or what
/// is set for the whole pod; with the overhead of the runtime.
pub(super) fn requests(spec: &PodSpec) -> Option<ApiList> {
    let of = |c: &Container| c.resources.as_ref().and_then(|r| r.requests.clone());
    let pod_level = spec.resources.as_ref().and_then(|r| r.requests.as_ref());
    let mut sums = aggregate(spec, of, pod_level);
    add(&mut sums, &parse(spec.overhead.as_ref()));
    into_api(sums)
}

fn limits(spec: &PodSpec) -> Option<ApiList> {
    let of = |c: &Container| c.resources.as_ref().and_then(|r| r.limits.clone());
    let pod_level = spec.resources.as_ref().and_then(|r| r.limits.as_ref());
    let mut sums = aggregate(spec, of, pod_level);
    // No limit plus some overhead is still no limit.
    for (name, overhead) in parse(spec.overhead.as_ref()) {
        if let Some(limit) = sums.get_mut(&name).filter(|l| !l.is_zero()) {
            *limit = limit.saturating_add(overhead);
        }
    }
    into_api(sums)
}

fn aggregate(
    spec: &PodSpec,
    of: impl Fn(&Container) -> Option<ApiList>,
    pod_level: Option<&ApiList>,
) -> Sums {
    let mut sums = Sums::new();
    for container in &spec.containers {
        add(&mut sums, &parse(of(container).as_ref()));
    }
    let mut sidecars = Sums::new();
    let mut initialising = Sums::new();
    for container in init_containers(spec) {
        let own = parse(of(container).as_ref());
        // Each init container runs beside the sidecars before it.
        let mut at_once = sidecars.clone();
        add(&mut at_once, &own);
        if is_sidecar(container) {
            add(&mut sums, &own);
            add(&mut sidecars, &own);
        }
        raise(&mut initialising, at_once);
    }
    raise(&mut sums, initialising);
    for (name, amount) in parse(pod_level) {
        if name == "cpu" || name == "memory" || name.starts_with("hugepages-") {
            sums.insert(name, amount);
        }
    }
    sums
}

fn parse(list: Option<&ApiList>) -> Sums {
    list.into_iter()
        .flatten()
        .filter_map(|(name, amount)| Some((name.clone(), amount.0.parse().ok()?)))
        .collect()
}

fn add(sums: &mut Sums, more: &Sums) {
    for (name, amount) in more {
        let sum = sums.entry(name.clone()).or_insert(Quantity::ZERO);
        *sum = sum.saturating_add(*amount);
    }
}

fn raise(sums: &mut Sums, floor: Sums) {
    for (name, amount) in floor {
        let sum = sums.entry(name).or_insert(amount);
        *sum = (*sum).max(amount);
    }
}

fn into_api(sums: Sums) -> Option<ApiList> {
    let list = sums
        .into_iter()
        .map(|(name, q)| (name, ApiQuantity(q.to_string())));
    Some(list.collect::<ApiList>()).filter(|l| !l.is_empty())
}
