//! Requests and limits of a spec as the numbers the kernel is given.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use krablet_core::cgroups::{cpu_quota, cpu_shares};
use krablet_cri::v1::{HugepageLimit, LinuxContainerResources};
use krablet_pod::api::{Container, Pod, PodSpec, ResourceRequirements};
use krablet_pod::cgroups::page_size_name;
use krablet_pod::qos::{QosClass, qos_class};
use krablet_pod::{Quantity, containers, marks};

use crate::config::{MemoryQos, NodeFacts, ResourceSettings};

const PAGE: i64 = 4096;

/// Last to be killed when memory runs out.
const GUARANTEED_OOM_SCORE: i64 = -997;
const BEST_EFFORT_OOM_SCORE: i64 = 1000;
const NODE_CRITICAL: &str = "system-node-critical";

type List = BTreeMap<String, ApiQuantity>;

fn get(list: Option<&List>, resource: &str) -> Option<Quantity> {
    list?.get(resource)?.0.parse().ok()
}

fn request(container: &Container, resource: &str) -> Option<Quantity> {
    get(container.resources.as_ref()?.requests.as_ref(), resource)
}

fn limit(container: &Container, resource: &str) -> Option<Quantity> {
    get(container.resources.as_ref()?.limits.as_ref(), resource)
}

fn pod_level<'a>(
    spec: &'a PodSpec,
    list: impl Fn(&'a ResourceRequirements) -> &'a Option<List>,
    resource: &str,
) -> Option<Quantity> {
    get(list(spec.resources.as_ref()?).as_ref(), resource)
}

/// Without a request, a CPU limit counts as one.
fn linux_resources(
    cpu_request: Option<Quantity>,
    cpu_limit: Option<Quantity>,
    memory_limit: Option<Quantity>,
    settings: &ResourceSettings,
    node: &NodeFacts,
) -> LinuxContainerResources {
    let milli = |q: Option<Quantity>| q.map_or(0, Quantity::milli_value);
    let mut resources = LinuxContainerResources {
        cpu_shares: cpu_shares(milli(cpu_request.or(cpu_limit))),
        memory_limit_in_bytes: memory_limit.map_or(0, Quantity::value),
        ..LinuxContainerResources::default()
    };
    if settings.cpu_cfs_quota {
        let period = i64::try_from(settings.cpu_cfs_quota_period.as_micros()).unwrap_or(100_000);
        resources.cpu_period = period;
        resources.cpu_quota = cpu_quota(milli(cpu_limit), period);
    }
    if node.cgroup_v2 && settings.single_process_oom_kill == Some(false) {
        let all = ("memory.oom.group".to_string(), "1".to_string());
        resources.unified.extend([all]);
    }
    resources
}

pub(crate) fn container_resources(
    pod: &Pod,
    container: &Container,
    settings: &ResourceSettings,
    node: &NodeFacts,
) -> LinuxContainerResources {
    let default = PodSpec::default();
    let spec = pod.spec.as_ref().unwrap_or(&default);
    // A container without a limit of its own may use the pod's.
    let effective = |resource| {
        limit(container, resource)
            .filter(|q| !q.is_zero())
            .or_else(|| pod_level(spec, |r| &r.limits, resource))
    };
    let mut resources = linux_resources(
        request(container, "cpu"),
        effective("cpu"),
        effective("memory"),
        settings,
        node,
    );
    resources.oom_score_adj = oom_score_adj(pod, spec, container, node.memory_capacity);
    resources.hugepage_limits = huge_page_limits(spec, container, &node.huge_page_sizes);
    if node.swap_controller {
        match swap_limit(pod, spec, container, settings, node) {
            Some(bytes) => {
                let some = ("memory.swap.max".to_string(), bytes.to_string());
                resources.unified.extend([some]);
            }
            None => forbid_swap(&mut resources, node.cgroup_v2),
        }
    }
    if let Some(memory_qos) = settings.memory_qos.filter(|_| node.cgroup_v2) {
        let unified = memory_files(spec, container, memory_qos, node);
        resources.unified.extend(unified);
    }
    resources
}

/// A Burstable container that leaves room between its request and its limit may use a share of the
/// node's swap, as large as that of the node's memory it asks for.
fn swap_limit(
    pod: &Pod,
    spec: &PodSpec,
    container: &Container,
    settings: &ResourceSettings,
    node: &NodeFacts,
) -> Option<i64> {
    let amount = |q: Option<Quantity>| q.map_or(0, Quantity::value);
    let asked = amount(request(container, "memory"));
    let limited = amount(limit(container, "memory"));
    let may = settings.limited_swap
        && node.cgroup_v2
        && !marks::is_critical(pod)
        && qos_class(spec) == QosClass::Burstable
        && asked != limited;
    let share = asked as f64 / node.memory_capacity.max(1) as f64;
    may.then_some((share * node.swap_capacity as f64) as i64)
}

/// What is asked for is protected, and beyond it the container is slowed down before its limit.
fn memory_files(
    spec: &PodSpec,
    container: &Container,
    memory_qos: MemoryQos,
    node: &NodeFacts,
) -> BTreeMap<String, String> {
    let asked = request(container, "memory").map_or(0, Quantity::value);
    let limited = limit(container, "memory").map_or(0, Quantity::value);
    let mut files = BTreeMap::new();
    let mut put = |file: &str, bytes: i64| {
        files.insert(file.to_string(), bytes.to_string());
    };
    match (asked != 0 && memory_qos.protect, qos_class(spec)) {
        (true, QosClass::Guaranteed) => put("memory.min", asked),
        (true, _) => put("memory.low", asked),
        (false, _) => {
            put("memory.min", 0);
            put("memory.low", 0);
        }
    }
    let most = match limited {
        0 => node.allocatable.get("memory").map_or(0, |q| q.value()),
        limited => limited,
    };
    if asked != limited && most > 0 {
        let room = (most - asked) as f64 * memory_qos.throttling;
        let high = ((asked as f64 + room) / PAGE as f64).floor() as i64 * PAGE;
        if high > asked {
            put("memory.high", high);
        }
    }
    files
}

fn forbid_swap(resources: &mut LinuxContainerResources, cgroup_v2: bool) {
    if cgroup_v2 {
        let none = ("memory.swap.max".to_string(), "0".to_string());
        resources.unified.extend([none]);
    } else {
        // Memory and swap together: equal to memory alone means none.
        resources.memory_swap_limit_in_bytes = resources.memory_limit_in_bytes;
    }
}

/// All sizes the kernel has are limited; to nothing, unless the spec says more.
fn huge_page_limits(spec: &PodSpec, container: &Container, sizes: &[String]) -> Vec<HugepageLimit> {
    let mut wanted = BTreeMap::new();
    let lists = [spec.resources.as_ref(), container.resources.as_ref()];
    for list in lists
        .into_iter()
        .flatten()
        .filter_map(|r| r.limits.as_ref())
    {
        for (name, amount) in list {
            let size = name.strip_prefix("hugepages-").map(|s| s.parse());
            if let (Some(Ok(size)), Ok(amount)) = (size, amount.0.parse::<Quantity>()) {
                let size = u64::try_from(Quantity::value(size)).unwrap_or(0);
                wanted.insert(page_size_name(size), amount.value());
            }
        }
    }
    let limit = |size: &String| wanted.get(size).copied().unwrap_or(0);
    sizes
        .iter()
        .map(|size| HugepageLimit {
            page_size: size.clone(),
            limit: u64::try_from(limit(size)).unwrap_or(0),
        })
        .collect()
}

/// A container that stays within its request is killed after those that do not.
fn oom_score_adj(pod: &Pod, spec: &PodSpec, container: &Container, capacity: i64) -> i64 {
    if marks::is_critical(pod) && spec.priority_class_name.as_deref() == Some(NODE_CRITICAL) {
        return GUARANTEED_OOM_SCORE;
    }
    match qos_class(spec) {
        QosClass::Guaranteed => return GUARANTEED_OOM_SCORE,
        QosClass::BestEffort => return BEST_EFFORT_OOM_SCORE,
        QosClass::Burstable => {}
    }
    let memory = |c: &Container| request(c, "memory").map_or(0, Quantity::value);
    let spare = spare_memory_per_container(spec);
    let score = |request: i64| {
        let request = i128::from(request.saturating_add(spare));
        let share = 1000 * request / i128::from(capacity.max(1));
        1000 - i64::try_from(share).unwrap_or(1000)
    };
    let mut adjust = score(memory(container));
    let is_sidecar = containers::is_sidecar(container)
        && containers::init_containers(spec)
            .iter()
            .any(|c| c.name == container.name);
    if is_sidecar {
        // A sidecar is not killed before the least of the containers it serves.
        let least = spec.containers.iter().map(memory).min().unwrap_or(0);
        adjust = adjust.min(score(least));
    }
    if adjust < 1000 + GUARANTEED_OOM_SCORE {
        1000 + GUARANTEED_OOM_SCORE
    } else if adjust == BEST_EFFORT_OOM_SCORE {
        adjust - 1
    } else {
        adjust
    }
}

/// What the pod asks for beyond its containers, in equal parts.
fn spare_memory_per_container(spec: &PodSpec) -> i64 {
    let Some(pod) = pod_level(spec, |r| &r.requests, "memory").filter(|q| !q.is_zero()) else {
        return 0;
    };
    let total = sum(spec, |c| request(c, "memory")).map_or(0, Quantity::value);
    let count = spec.containers.len() + containers::init_containers(spec).len();
    (pod.value() - total) / i64::try_from(count).unwrap_or(1).max(1)
}

/// What a pod needs of a resource: its containers and sidecars together, or the most that runs at
/// a time during initialisation.
fn sum(spec: &PodSpec, of: impl Fn(&Container) -> Option<Quantity>) -> Option<Quantity> {
    let add = |a: Option<Quantity>, b: Option<Quantity>| match (a, b) {
        (Some(a), Some(b)) => Some(a.saturating_add(b)),
        (a, b) => a.or(b),
    };
    let mut total = spec.containers.iter().map(&of).fold(None, add);
    let mut sidecars = None;
    let mut init = None;
    for container in containers::init_containers(spec) {
        let own = of(container);
        let at_once = add(own, sidecars);
        if containers::is_sidecar(container) {
            total = add(total, own);
            sidecars = at_once;
        }
        init = init.max(at_once);
    }
    total.max(init)
}

/// The sandbox's resources: those of the pod, without its overhead.
pub(crate) fn sandbox_resources(
    pod: &Pod,
    settings: &ResourceSettings,
    node: &NodeFacts,
) -> LinuxContainerResources {
    let default = PodSpec::default();
    let spec = pod.spec.as_ref().unwrap_or(&default);
    let request = pod_level(spec, |r| &r.requests, "cpu").or(sum(spec, |c| request(c, "cpu")));
    let limit = |resource: &str| {
        pod_level(spec, |r| &r.limits, resource).or(sum(spec, |c| limit(c, resource)))
    };
    linux_resources(request, limit("cpu"), limit("memory"), settings, node)
}

/// The pod's overhead, as a guaranteed amount.
pub(crate) fn overhead(
    pod: &Pod,
    settings: &ResourceSettings,
    node: &NodeFacts,
) -> LinuxContainerResources {
    let Some(overhead) = pod.spec.as_ref().and_then(|s| s.overhead.as_ref()) else {
        return LinuxContainerResources::default();
    };
    let cpu = get(Some(overhead), "cpu").or(Some(Quantity::ZERO));
    linux_resources(cpu, cpu, get(Some(overhead), "memory"), settings, node)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GI: i64 = 1 << 30;

    fn list(pairs: &[(&str, &str)]) -> Option<List> {
        let pairs = pairs.iter();
        Some(
            pairs
                .map(|(k, v)| (k.to_string(), ApiQuantity(v.to_string())))
                .collect(),
        )
    }

    fn container(name: &str, requests: &[(&str, &str)], limits: &[(&str, &str)]) -> Container {
        Container {
            name: name.into(),
            resources: Some(ResourceRequirements {
                requests: list(requests),
                limits: list(limits),
                ..ResourceRequirements::default()
            }),
            ..Container::default()
        }
    }

    fn pod(init: Vec<Container>, regular: Vec<Container>) -> Pod {
        Pod {
            spec: Some(PodSpec {
                init_containers: Some(init),
                containers: regular,
                ..PodSpec::default()
            }),
            ..Pod::default()
        }
    }

    fn node() -> NodeFacts {
        NodeFacts {
            memory_capacity: 4 * GI,
            huge_page_sizes: vec!["2MB".into(), "1GB".into()],
            ..NodeFacts::default()
        }
    }

    #[test]
    fn a_containers_numbers() {
        let c = container(
            "c",
            &[("cpu", "250m"), ("memory", "1Gi")],
            &[("cpu", "500m"), ("memory", "2Gi"), ("hugepages-2Mi", "4Mi")],
        );
        let p = pod(vec![], vec![c.clone()]);
        let got = container_resources(&p, &c, &ResourceSettings::default(), &node());
        assert_eq!(got.cpu_shares, 256);
        assert_eq!((got.cpu_quota, got.cpu_period), (50_000, 100_000));
        assert_eq!(got.memory_limit_in_bytes, 2 * GI);
        assert_eq!(got.oom_score_adj, 750);
        let pages: Vec<_> = got.hugepage_limits.iter().map(|h| h.limit).collect();
        assert_eq!(pages, [4 << 20, 0]);
        assert_eq!(got.memory_swap_limit_in_bytes, 0);
        assert!(got.unified.is_empty());
    }

    #[test]
    fn limits_count_as_requests_and_quota_can_be_off() {
        let c = container("c", &[], &[("cpu", "1")]);
        let off = ResourceSettings {
            cpu_cfs_quota: false,
            single_process_oom_kill: Some(false),
            ..ResourceSettings::default()
        };
        let v2 = NodeFacts {
            cgroup_v2: true,
            swap_controller: true,
            ..node()
        };
        let got = container_resources(&pod(vec![], vec![c.clone()]), &c, &off, &v2);
        assert_eq!(
            (got.cpu_shares, got.cpu_quota, got.cpu_period),
            (1024, 0, 0)
        );
        let unified: Vec<_> = got
            .unified
            .iter()
            .map(|(k, v)| format!("{k}={v}"))
            .collect();
        assert_eq!(unified, ["memory.oom.group=1", "memory.swap.max=0"]);
    }

    #[test]
    fn a_container_is_killed_whole_where_the_kernel_can() {
        let cases = [
            (Some(false), true, true),
            (Some(true), true, false),
            (None, true, false),
            (Some(false), false, false),
        ];
        for (single_process_oom_kill, cgroup_v2, whole) in cases {
            let settings = ResourceSettings {
                single_process_oom_kill,
                ..ResourceSettings::default()
            };
            let on = NodeFacts {
                cgroup_v2,
                ..node()
            };
            let c = container("c", &[], &[]);
            let p = pod(vec![], vec![c.clone()]);
            for got in [
                container_resources(&p, &c, &settings, &on),
                sandbox_resources(&p, &settings, &on),
            ] {
                let all = got.unified.get("memory.oom.group").map(String::as_str);
                assert_eq!(
                    all,
                    whole.then_some("1"),
                    "{single_process_oom_kill:?} {cgroup_v2}"
                );
            }
        }
    }

    fn unified(resources: &LinuxContainerResources) -> Vec<String> {
        let files = resources.unified.iter();
        files.map(|(k, v)| format!("{k}={v}")).collect()
    }

    #[test]
    fn burstable_containers_may_swap_their_share() {
        let settings = ResourceSettings {
            limited_swap: true,
            ..ResourceSettings::default()
        };
        let v2 = NodeFacts {
            cgroup_v2: true,
            swap_controller: true,
            swap_capacity: 8 * GI,
            ..node()
        };
        let asks = container("c", &[("memory", "1Gi")], &[]);
        let same = container("c", &[("memory", "1Gi")], &[("memory", "1Gi")]);
        let none = container("c", &[("cpu", "1")], &[]);
        let full = [("cpu", "1"), ("memory", "1Gi")];
        let cases = [
            (asks.clone(), 2 * GI),
            (same, 0),
            (none, 0),
            (container("c", &full, &full), 0),
        ];
        for (c, bytes) in cases {
            let got = container_resources(&pod(vec![], vec![c.clone()]), &c, &settings, &v2);
            assert_eq!(unified(&got), [format!("memory.swap.max={bytes}")], "{c:?}");
        }
        let v1 = NodeFacts {
            cgroup_v2: false,
            ..v2
        };
        let got = container_resources(&pod(vec![], vec![asks.clone()]), &asks, &settings, &v1);
        assert!(got.unified.is_empty());
    }

    #[test]
    fn memory_qos_protects_and_slows_down() {
        let of = |c: &Container, protect| {
            let settings = ResourceSettings {
                memory_qos: Some(MemoryQos {
                    throttling: 0.9,
                    protect,
                }),
                ..ResourceSettings::default()
            };
            let v2 = NodeFacts {
                cgroup_v2: true,
                allocatable: [("memory".into(), "4Gi".parse().unwrap())].into(),
                ..node()
            };
            let p = pod(vec![], vec![c.clone()]);
            unified(&container_resources(&p, c, &settings, &v2)).join(" ")
        };
        let full = [("cpu", "1"), ("memory", "1Gi")];
        let guaranteed = container("c", &full, &full);
        assert_eq!(of(&guaranteed, true), "memory.min=1073741824");
        assert_eq!(of(&guaranteed, false), "memory.low=0 memory.min=0");
        let burstable = container("c", &[("memory", "1Gi")], &[("memory", "2Gi")]);
        assert_eq!(
            of(&burstable, true),
            "memory.high=2040107008 memory.low=1073741824"
        );
        let open = container("c", &[("memory", "1Gi")], &[]);
        assert_eq!(
            of(&open, false),
            "memory.high=3972841472 memory.low=0 memory.min=0"
        );
    }

    #[test]
    fn oom_scores() {
        let full = [("cpu", "1"), ("memory", "1Gi")];
        let guaranteed = container("c", &full, &full);
        let best_effort = container("c", &[], &[]);
        let small = container("c", &[("memory", "1Mi")], &[]);
        let all = container("c", &[("memory", "4Gi")], &[]);
        let cases = [
            (guaranteed, -997),
            (best_effort, 1000),
            (small, 999),
            (all, 3),
        ];
        for (c, expected) in cases {
            let p = pod(vec![], vec![c.clone()]);
            let got = container_resources(&p, &c, &ResourceSettings::default(), &node());
            assert_eq!(got.oom_score_adj, expected, "{:?}", c.resources);
        }
        let mut sidecar = container("s", &[("memory", "1Mi")], &[]);
        sidecar.restart_policy = Some("Always".into());
        let main = container("c", &[("memory", "1Gi")], &[]);
        let p = pod(vec![sidecar.clone()], vec![main]);
        let got = container_resources(&p, &sidecar, &ResourceSettings::default(), &node());
        assert_eq!(got.oom_score_adj, 750);
    }

    #[test]
    fn a_sandbox_has_the_most_that_runs_at_once() {
        let mut sidecar = container("s", &[("cpu", "100m")], &[("memory", "1Gi")]);
        sidecar.restart_policy = Some("Always".into());
        let init = container("i", &[("cpu", "900m")], &[("memory", "1Gi")]);
        let main = container("c", &[("cpu", "500m")], &[("memory", "2Gi")]);
        let p = pod(vec![sidecar, init], vec![main]);
        let got = sandbox_resources(&p, &ResourceSettings::default(), &node());
        assert_eq!(got.cpu_shares, 1024);
        assert_eq!(got.memory_limit_in_bytes, 3 * GI);
        assert_eq!(
            overhead(&p, &ResourceSettings::default(), &node()),
            LinuxContainerResources::default()
        );
    }
}
