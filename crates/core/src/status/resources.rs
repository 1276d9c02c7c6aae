//! What a pod asks for and may use as a whole, and what its containers are held to, as its status
//! tells it.

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use krablet_pod::Quantity;
use krablet_pod::api::{ContainerStatus, PodSpec, ResourceRequirements};
use krablet_pod::observed::RuntimeResources;
use krablet_pod::quantity::Format;
use krablet_pod::resources::{Amounts, ApiList, add, aggregate, is_pod_level_resource, parse};

use super::Cx;
use crate::resize;

/// What the kernel makes of less: where both are not above it, the spec's word is as good.
const MIN_MILLI_CPU_LIMIT: i64 = 10;
const MIN_MILLI_CPU_REQUEST: i64 = 2;

/// What is known of a running container beside its spec.
pub(super) struct InUse<'a> {
    pub(super) told: Option<RuntimeResources>,
    /// By this agent, last.
    pub(super) given: Option<&'a ResourceRequirements>,
    /// Told before of the same instance.
    pub(super) old: Option<&'a ResourceRequirements>,
}

/// The resources a running container is promised, with what it is held to in the place of cpu and
/// memory. A runtime that tells nothing is taken to have done what it was asked.
pub(super) fn in_use(promised: ResourceRequirements, known: &InUse<'_>) -> ResourceRequirements {
    let mut resources = promised;
    let given = |list: fn(&ResourceRequirements) -> &Option<ApiList>, name: &str| {
        let list = list(known.given?).as_ref()?;
        list.get(name)?.0.parse::<Quantity>().ok()
    };
    let (cpu_limit, memory_limit, cpu_request) = match known.told {
        Some(told) => (
            told_cpu_limit(told),
            told_memory(told),
            told_cpu_request(told),
        ),
        None => (
            given(|r| &r.limits, "cpu"),
            given(|r| &r.limits, "memory"),
            given(|r| &r.requests, "cpu"),
        ),
    };
    let memory_request = given(|r| &r.requests, "memory").filter(|q| !q.is_zero());
    let old = known.old;
    if let Some(limits) = resources.limits.as_mut() {
        let before = old.and_then(|o| o.limits.as_ref());
        put(limits, "cpu", cpu_limit, MIN_MILLI_CPU_LIMIT, before);
        put(limits, "memory", memory_limit, 0, before);
    }
    if let Some(requests) = resources.requests.as_mut() {
        let before = old.and_then(|o| o.requests.as_ref());
        put(requests, "cpu", cpu_request, MIN_MILLI_CPU_REQUEST, before);
        put(requests, "memory", memory_request, 0, before);
    }
    resources
}

/// What is not known is as it was told before. The same amount keeps the words of the spec.
fn put(
    list: &mut ApiList,
    name: &str,
    amount: Option<Quantity>,
    least_milli: i64,
    before: Option<&ApiList>,
) {
    let standing = list.get(name).and_then(|q| q.0.parse::<Quantity>().ok());
    let Some(amount) = amount else {
        if let Some(before) = before.and_then(|b| b.get(name)) {
            list.insert(name.to_owned(), before.clone());
        }
        return;
    };
    let small = |q: Quantity| least_milli > 0 && q.milli_value() <= least_milli;
    let both_small = small(amount) && standing.is_none_or(small);
    if !both_small && standing != Some(amount) {
        list.insert(name.to_owned(), ApiQuantity(amount.to_string()));
    }
}

fn told_cpu_limit(told: RuntimeResources) -> Option<Quantity> {
    if told.cpu_period <= 0 || told.cpu_quota <= 0 {
        return None;
    }
    let milli = told.cpu_quota.saturating_mul(1000) / told.cpu_period;
    (milli > 0).then(|| Quantity::from_millis(milli))
}

fn told_memory(told: RuntimeResources) -> Option<Quantity> {
    let bytes = told.memory_limit;
    (bytes > 0).then(|| Quantity::from_units(bytes, Format::BinarySi))
}

/// Of shares, rounded up.
fn told_cpu_request(told: RuntimeResources) -> Option<Quantity> {
    let milli = told.cpu_shares.saturating_mul(1000).saturating_add(1023) / 1024;
    (told.cpu_shares >= 2).then(|| Quantity::from_millis(milli))
}

impl Cx<'_> {
    /// Of the whole pod: while it is being resized, what its containers are held to counts.
    pub(super) fn resources_in_use(&self, statuses: &[ContainerStatus]) -> ResourceRequirements {
        let under_way = self
            .inputs
            .resize
            .iter()
            .any(|c| c.type_ == resize::IN_PROGRESS);
        let mut spec = Cow::Borrowed(self.spec);
        if under_way && !self.inputs.terminal {
            let spec = spec.to_mut();
            if let Some(given) = self.inputs.actuated {
                spec.resources.clone_from(&given.pod);
            }
            let init = spec.init_containers.iter_mut().flatten();
            for container in init.chain(&mut spec.containers) {
                let status = statuses.iter().find(|s| s.name == container.name);
                if let Some(held) = status.and_then(|s| s.resources.as_ref()) {
                    container.resources = Some(held.clone());
                }
            }
        }
        effective(&spec)
    }
}

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
