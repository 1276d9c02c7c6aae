//! What a pod asks of a node: the sum of its containers, the largest need while initialising if
//! that is more, what is set for the pod as a whole, and the overhead of its runtime.
//!
//! Schedulers and nodes must agree on these sums, so the rules are those of the API.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;

use crate::Quantity;
use crate::api::{Container, ContainerStatus, Pod, PodSpec, ResourceRequirements};
use crate::containers::{init_containers, is_sidecar, statuses};

pub type ApiList = BTreeMap<String, ApiQuantity>;

/// Amounts by the resource's name.
pub type Amounts = BTreeMap<String, Quantity>;

/// How a pod's requests are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestRules {
    /// Whether resources of the whole pod count (the gate PodLevelResources).
    pub pod_level: bool,
    /// Whether what the status reports as given is counted when it is more than the spec, as for a
    /// pod that runs and is being resized.
    pub from_status: bool,
}

/// All a pod asks for, overhead included.
pub fn pod_requests(pod: &Pod, rules: RequestRules) -> Amounts {
    pod_requests_of(pod, rules, |_, _| true)
}

/// [`pod_requests`] of those container requests only for which `counts(container, resource)` holds.
pub fn pod_requests_of(
    pod: &Pod,
    rules: RequestRules,
    counts: impl Fn(&str, &str) -> bool,
) -> Amounts {
    let Some(spec) = pod.spec.as_ref() else {
        return Amounts::new();
    };
    let mut sums = container_requests(pod, spec, rules.from_status, counts);
    if rules.pod_level {
        sums.extend(pod_level_requests(pod, rules.from_status));
    }
    add(&mut sums, &parse(spec.overhead.as_ref()));
    sums
}

/// What the containers ask for together, without pod-level resources and overhead.
fn container_requests(
    pod: &Pod,
    spec: &PodSpec,
    from_status: bool,
    counts: impl Fn(&str, &str) -> bool,
) -> Amounts {
    aggregate(spec, |container, lasting| {
        let status = (from_status && lasting).then(|| status_of(pod, &container.name));
        let mut own = effective(pod, container, status.flatten());
        own.retain(|resource, _| counts(&container.name, resource));
        own
    })
}

/// What containers need together at the worst moment of the pod's life, if each needs `of(container,
/// lasting)`. Regular containers and sidecars last as long as the pod.
pub fn aggregate(spec: &PodSpec, of: impl Fn(&Container, bool) -> Amounts) -> Amounts {
    let mut sums = Amounts::new();
    for container in &spec.containers {
        add(&mut sums, &of(container, true));
    }
    let mut sidecars = Amounts::new();
    let mut initialising = Amounts::new();
    for container in init_containers(spec) {
        let sidecar = is_sidecar(container);
        let own = of(container, sidecar);
        // Each init container runs beside the sidecars before it.
        let mut at_once = sidecars.clone();
        add(&mut at_once, &own);
        if sidecar {
            add(&mut sums, &own);
            sidecars.clone_from(&at_once);
        }
        raise(&mut initialising, &at_once);
    }
    raise(&mut sums, &initialising);
    sums
}

fn status_of<'a>(pod: &'a Pod, name: &str) -> Option<&'a ContainerStatus> {
    statuses(pod)
        .map(|(_, status)| status)
        .find(|status| status.name == name)
}

/// A container's requests: what its spec says, or what the status reports as given if that is more.
fn effective(pod: &Pod, container: &Container, status: Option<&ContainerStatus>) -> Amounts {
    let spec = container
        .resources
        .as_ref()
        .and_then(|r| r.requests.as_ref());
    match status.and_then(|s| Some((s, s.resources.as_ref()?))) {
        Some((status, given)) => largest(
            pod,
            spec,
            given.requests.as_ref(),
            status.allocated_resources.as_ref(),
        ),
        None => parse(spec),
    }
}

/// A resize that can never be granted does not count; one that waits does.
fn largest(
    pod: &Pod,
    spec: Option<&ApiList>,
    actuated: Option<&ApiList>,
    allocated: Option<&ApiList>,
) -> Amounts {
    let mut amounts = match is_resize_infeasible(pod) {
        true => Amounts::new(),
        false => parse(spec),
    };
    raise(&mut amounts, &parse(actuated));
    raise(&mut amounts, &parse(allocated));
    amounts
}

fn is_resize_infeasible(pod: &Pod) -> bool {
    pod.status
        .iter()
        .flat_map(|s| s.conditions.iter().flatten())
        .find(|c| c.type_ == "PodResizePending")
        .is_some_and(|c| c.reason.as_deref() == Some("Infeasible"))
}

/// Resources that can be set for a pod as a whole.
pub fn is_pod_level_resource(name: &str) -> bool {
    name == "cpu" || name == "memory" || name.starts_with("hugepages-")
}

/// Whether any resource is set for the pod as a whole.
pub fn has_pod_level_resources(spec: &PodSpec) -> bool {
    spec.resources.as_ref().is_some_and(|r| {
        let lists = [r.requests.as_ref(), r.limits.as_ref()];
        let mut names = lists.into_iter().flatten().flat_map(|list| list.keys());
        names.any(|name| is_pod_level_resource(name))
    })
}

/// Requests set for the pod as a whole.
pub fn pod_level_requests(pod: &Pod, from_status: bool) -> Amounts {
    let requests = pod
        .spec
        .as_ref()
        .and_then(|s| s.resources.as_ref()?.requests.as_ref());
    let status = pod.status.as_ref().filter(|_| from_status);
    let given = status.and_then(|s| Some((s, s.resources.as_ref()?)));
    let mut amounts = parse(requests);
    if let Some((status, given)) = given {
        let allocated = status.allocated_resources.as_ref();
        let more = largest(pod, requests, given.requests.as_ref(), allocated);
        for (name, amount) in &mut amounts {
            *amount = more.get(name).copied().unwrap_or(Quantity::ZERO);
        }
    }
    amounts.retain(|name, _| is_pod_level_resource(name));
    amounts
}

/// A container's resources, with the pod's limits of cpu and memory where it has none of its own:
/// what it is started with.
pub fn with_pod_limits(
    own: &ResourceRequirements,
    pod: Option<&ResourceRequirements>,
) -> ResourceRequirements {
    let mut effective = own.clone();
    let of_pod = pod.and_then(|p| p.limits.as_ref());
    for resource in ["cpu", "memory"] {
        let Some(limit) = of_pod.and_then(|limits| limits.get(resource)) else {
            continue;
        };
        let limits = effective.limits.get_or_insert_default();
        let own = limits.get(resource);
        let own = own.and_then(|l| l.0.parse::<Quantity>().ok());
        if own.is_none_or(Quantity::is_zero) {
            limits.insert(resource.to_owned(), limit.clone());
        }
    }
    effective
}

/// The numbers of a list; what is no quantity is left out.
pub fn parse(list: Option<&ApiList>) -> Amounts {
    list.into_iter()
        .flatten()
        .filter_map(|(name, amount)| Some((name.clone(), amount.0.parse().ok()?)))
        .collect()
}

pub fn add(sums: &mut Amounts, more: &Amounts) {
    for (name, amount) in more {
        let sum = sums.entry(name.clone()).or_insert(Quantity::ZERO);
        *sum = sum.saturating_add(*amount);
    }
}

/// Lifts each amount to at least the one in `floor`.
pub fn raise(sums: &mut Amounts, floor: &Amounts) {
    for (name, amount) in floor {
        let sum = sums.entry(name.clone()).or_insert(*amount);
        *sum = (*sum).max(*amount);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const PLAIN: RequestRules = RequestRules {
        pod_level: true,
        from_status: false,
    };

    fn pod(spec: serde_json::Value) -> Pod {
        serde_json::from_value(json!({ "spec": spec })).unwrap()
    }

    fn asks(cpu: &str) -> serde_json::Value {
        json!({"name": "c", "resources": {"requests": {"cpu": cpu}}})
    }

    fn cpu(pod: &Pod, rules: RequestRules) -> i64 {
        pod_requests(pod, rules)
            .get("cpu")
            .map_or(0, |q| q.milli_value())
    }

    #[test]
    fn sums_maxima_sidecars_and_overhead() {
        let sidecar = |cpu: &str| {
            let mut c = asks(cpu);
            c["restartPolicy"] = "Always".into();
            c
        };
        let cases = [
            (json!({"containers": [asks("1"), asks("500m")]}), 1500),
            // The largest init container wins when it is larger than all others together.
            (
                json!({"initContainers": [asks("2"), asks("3")], "containers": [asks("1")]}),
                3000,
            ),
            // A sidecar counts beside the containers, and beside the init containers after it.
            (
                json!({"initContainers": [sidecar("1"), asks("3")], "containers": [asks("1")]}),
                4000,
            ),
            (
                json!({"initContainers": [asks("3"), sidecar("1")], "containers": [asks("1")]}),
                3000,
            ),
            (
                json!({"initContainers": [sidecar("1"), sidecar("1")], "containers": [asks("1")]}),
                3000,
            ),
            (
                json!({"containers": [asks("1")], "overhead": {"cpu": "250m"}}),
                1250,
            ),
            // What is set for the pod counts instead of the containers, and overhead on top.
            (
                json!({"containers": [asks("1")], "overhead": {"cpu": "250m"},
                    "resources": {"requests": {"cpu": "4"}}}),
                4250,
            ),
            (
                json!({"containers": [asks("1")], "resources": {"limits": {"cpu": "4"}}}),
                1000,
            ),
        ];
        for (spec, expected) in cases {
            assert_eq!(cpu(&pod(spec.clone()), PLAIN), expected, "{spec}");
        }
    }

    #[test]
    fn pod_level_resources_follow_their_gate() {
        let off = RequestRules {
            pod_level: false,
            ..PLAIN
        };
        let spec =
            json!({"containers": [asks("1")], "resources": {"requests": {"cpu": "4", "x": "1"}}});
        assert_eq!(cpu(&pod(spec.clone()), off), 1000);
        assert!(!pod_requests(&pod(spec), PLAIN).contains_key("x"));
    }

    #[test]
    fn a_running_pod_counts_for_what_it_was_given() {
        let rules = RequestRules {
            from_status: true,
            ..PLAIN
        };
        let mut pod = pod(json!({"containers": [asks("1")]}));
        let status = |conditions: serde_json::Value| {
            json!({"conditions": conditions, "containerStatuses": [{"name": "c", "image": "", "imageID": "",
                "ready": true, "restartCount": 0, "allocatedResources": {"cpu": "500m"},
                "resources": {"requests": {"cpu": "2"}}}]})
        };
        pod.status = serde_json::from_value(status(json!([]))).unwrap();
        assert_eq!(cpu(&pod, rules), 2000);
        assert_eq!(cpu(&pod, PLAIN), 1000);
        let infeasible =
            json!([{"type": "PodResizePending", "status": "True", "reason": "Infeasible"}]);
        pod.spec.as_mut().unwrap().containers = vec![serde_json::from_value(asks("9")).unwrap()];
        pod.status = serde_json::from_value(status(infeasible)).unwrap();
        assert_eq!(cpu(&pod, rules), 2000);
    }

    #[test]
    fn single_requests_can_be_left_out() {
        let pod = pod(json!({"containers": [asks("1")]}));
        let without = pod_requests_of(&pod, PLAIN, |container, resource| {
            (container, resource) != ("c", "cpu")
        });
        assert!(without.is_empty());
    }
}
