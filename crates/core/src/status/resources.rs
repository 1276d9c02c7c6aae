//! What a pod asks for and may use as a whole, as its status tells it.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use krablet_pod::api::{PodSpec, ResourceRequirements};
use krablet_pod::resources::{Amounts, ApiList, add, aggregate, is_pod_level_resource, parse};

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
    let mut sums = whole(spec, |resources| resources.requests.as_ref());
    add(&mut sums, &parse(spec.overhead.as_ref()));
    into_api(sums)
}

fn limits(spec: &PodSpec) -> Option<ApiList> {
    let mut sums = whole(spec, |resources| resources.limits.as_ref());
    // No limit plus some overhead is still no limit.
    for (name, overhead) in parse(spec.overhead.as_ref()) {
        if let Some(limit) = sums.get_mut(&name).filter(|l| !l.is_zero()) {
            *limit = limit.saturating_add(overhead);
        }
    }
    into_api(sums)
}

/// Of the containers together, unless it is set for the pod.
fn whole(spec: &PodSpec, of: impl Fn(&ResourceRequirements) -> Option<&ApiList>) -> Amounts {
    let parsed = |resources: &Option<ResourceRequirements>| {
        let list = resources.as_ref().and_then(&of);
        parse(list)
    };
    let mut sums = aggregate(spec, |container, _| parsed(&container.resources));
    let set = parsed(&spec.resources).into_iter();
    sums.extend(set.filter(|(name, _)| is_pod_level_resource(name)));
    sums
}

fn into_api(sums: Amounts) -> Option<ApiList> {
    let list = sums
        .into_iter()
        .map(|(name, q)| (name, ApiQuantity(q.to_string())));
    Some(list.collect::<ApiList>()).filter(|l| !l.is_empty())
}
