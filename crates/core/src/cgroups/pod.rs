//! What a pod's cgroup is held to.

use std::time::Duration;

use krablet_pod::Quantity;
use krablet_pod::api::{Pod, PodSpec, ResourceRequirements};
use krablet_pod::cgroups::{CgroupLimits, CpuQuota};
use krablet_pod::containers;
use krablet_pod::qos::{QosClass, qos_class};
use krablet_pod::resources::{
    Amounts, RequestRules, aggregate, has_pod_level_resources, is_pod_level_resource, parse,
    pod_requests,
};

use super::{cpu_quota, huge_pages, shares};

/// What decides beside the pod's spec.
#[derive(Clone, Debug)]
pub struct PodRules {
    /// `cpuCFSQuota`.
    pub cpu_cfs_quota: bool,
    /// `cpuCFSQuotaPeriod`.
    pub cpu_cfs_quota_period: Duration,
    /// The gate PodLevelResources.
    pub pod_level: bool,
    /// `podPidsLimit`, if it limits.
    pub pids: Option<i64>,
    /// Requested memory is protected: the gate MemoryQoS, with the policy TieredReservation, on
    /// cgroup v2.
    pub protect_memory: bool,
}

impl Default for PodRules {
    fn default() -> Self {
        Self {
            cpu_cfs_quota: true,
            cpu_cfs_quota_period: Duration::from_millis(100),
            pod_level: true,
            pids: None,
            protect_memory: false,
        }
    }
}

/// A limit holds for the pod if every container has one, or if the pod as a whole has.
pub fn pod_limits(pod: &Pod, rules: &PodRules) -> CgroupLimits {
    let default = PodSpec::default();
    let spec = pod.spec.as_ref().unwrap_or(&default);
    let qos = qos_class(spec);
    let requests = requests(pod, rules.pod_level);
    let limits = limits(spec, rules.pod_level);
    let limited = |resource: &str| {
        qos == QosClass::Guaranteed
            || qos == QosClass::Burstable && is_limited(spec, resource, rules.pod_level)
    };
    let milli = |amounts: &Amounts| amounts.get("cpu").map_or(0, |q| q.milli_value());
    let bytes = |amounts: &Amounts| amounts.get("memory").map_or(0, |q| q.value());
    let protected = Some(bytes(&requests)).filter(|b| rules.protect_memory && *b > 0);
    CgroupLimits {
        cpu_shares: Some(match qos {
            QosClass::BestEffort => shares(0),
            _ => shares(milli(&requests)),
        }),
        cpu_quota: limited("cpu").then(|| quota(milli(&limits), rules)),
        memory: limited("memory").then(|| bytes(&limits)),
        memory_min: protected.filter(|_| qos == QosClass::Guaranteed),
        memory_low: protected.filter(|_| qos != QosClass::Guaranteed),
        pids: rules.pids,
        huge_pages: huge_pages(&requests),
    }
}

pub(super) fn requests(pod: &Pod, pod_level: bool) -> Amounts {
    let from_status = false;
    let rules = RequestRules {
        pod_level,
        from_status,
    };
    pod_requests(pod, rules)
}

fn quota(milli: i64, rules: &PodRules) -> CpuQuota {
    let period = i64::try_from(rules.cpu_cfs_quota_period.as_micros()).unwrap_or(100_000);
    let micros = cpu_quota(milli, period);
    CpuQuota {
        micros: Some(micros).filter(|_| rules.cpu_cfs_quota),
        period_micros: u64::try_from(period).unwrap_or(100_000),
    }
}

/// Together, at the worst moment of the pod's life, or what is set for the pod; overhead comes on top
/// of what is limited at all.
fn limits(spec: &PodSpec, pod_level: bool) -> Amounts {
    let own = |r: &Option<ResourceRequirements>| parse(r.as_ref().and_then(|r| r.limits.as_ref()));
    let mut sums = aggregate(spec, |container, _| own(&container.resources));
    if pod_level {
        let set = own(&spec.resources).into_iter();
        sums.extend(set.filter(|(name, _)| is_pod_level_resource(name)));
    }
    for (name, overhead) in parse(spec.overhead.as_ref()) {
        if let Some(limit) = sums.get_mut(&name).filter(|l| !l.is_zero()) {
            *limit = limit.saturating_add(overhead);
        }
    }
    sums
}

fn is_limited(spec: &PodSpec, resource: &str, pod_level: bool) -> bool {
    let has = |r: Option<&ResourceRequirements>| {
        let limit = r.and_then(|r| r.limits.as_ref()?.get(resource));
        let limit = limit.and_then(|q| q.0.parse::<Quantity>().ok());
        limit.is_some_and(|q| !q.is_zero())
    };
    let of_pod = pod_level && has_pod_level_resources(spec) && has(spec.resources.as_ref());
    let init = containers::init_containers(spec).iter();
    of_pod
        || init
            .chain(&spec.containers)
            .all(|c| has(c.resources.as_ref()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use krablet_pod::cgroups::HugePageLimits;
    use serde_json::{Value, json};

    fn pod(spec: Value) -> Pod {
        serde_json::from_value(json!({"spec": spec})).unwrap()
    }

    fn container(requests: Value, limits: Value) -> Value {
        json!({"name": "c", "resources": {"requests": requests, "limits": limits}})
    }

    /// `shares quota/period memory pids`, with a dash for what is not set.
    fn shown(limits: &CgroupLimits) -> String {
        let text = |n: Option<i64>| n.map_or("-".to_owned(), |n| n.to_string());
        let quota = limits.cpu_quota.map_or("-".to_owned(), |q| {
            format!("{}/{}", q.micros.unwrap_or(-1), q.period_micros)
        });
        let shares = limits.cpu_shares.unwrap();
        format!(
            "{shares} {quota} {} {}",
            text(limits.memory),
            text(limits.pids)
        )
    }

    fn cases() -> Vec<(Value, &'static str)> {
        let none = || container(json!({}), json!({}));
        let asks = || container(json!({"cpu": "100m", "memory": "100Mi"}), json!({}));
        let both = || {
            container(
                json!({"cpu": "100m", "memory": "100Mi"}),
                json!({"cpu": "200m", "memory": "200Mi"}),
            )
        };
        let full = || {
            let all = json!({"cpu": "100m", "memory": "100Mi"});
            container(all.clone(), all)
        };
        let sidecar = |mut c: Value| {
            c["restartPolicy"] = "Always".into();
            c
        };
        vec![
            (json!({"containers": [none()]}), "2 - - -"),
            (json!({"containers": [asks()]}), "102 - - -"),
            (
                json!({"containers": [both()]}),
                "102 20000/100000 209715200 -",
            ),
            // One without a limit leaves the whole pod without.
            (json!({"containers": [both(), asks()]}), "204 - - -"),
            (
                json!({"containers": [both()], "initContainers": [asks()]}),
                "102 - - -",
            ),
            (
                json!({"containers": [both()], "initContainers": [sidecar(both())]}),
                "204 40000/100000 419430400 -",
            ),
            (
                json!({"containers": [full()]}),
                "102 10000/100000 104857600 -",
            ),
            (
                json!({"containers": [full(), full()]}),
                "204 20000/100000 209715200 -",
            ),
            (
                json!({"containers": [full()], "overhead": {"cpu": "50m", "memory": "1Mi"}}),
                "153 15000/100000 105906176 -",
            ),
            (
                json!({"containers": [asks()], "overhead": {"cpu": "50m", "memory": "1Mi"}}),
                "153 - - -",
            ),
            // What is set for the pod decides, and limits it although no container is limited.
            (
                json!({"containers": [none()], "resources": {
                    "requests": {"cpu": "500m", "memory": "64Mi"},
                    "limits": {"cpu": "1", "memory": "128Mi"}}}),
                "512 100000/100000 134217728 -",
            ),
            (
                json!({"containers": [none()], "resources": {
                    "requests": {"cpu": "1", "memory": "128Mi"},
                    "limits": {"cpu": "1", "memory": "128Mi"}}}),
                "1024 100000/100000 134217728 -",
            ),
            (
                json!({"containers": [both()], "resources": {"requests": {"cpu": "500m"}, "limits": {"cpu": "1"}}}),
                "512 100000/100000 209715200 -",
            ),
        ]
    }

    #[test]
    fn numbers_of_a_kubelet() {
        for (spec, expected) in cases() {
            let got = pod_limits(&pod(spec.clone()), &PodRules::default());
            assert_eq!(shown(&got), expected, "{spec}");
        }
    }

    #[test]
    fn the_nodes_settings() {
        let spec = || {
            let all = json!({"cpu": "200m", "memory": "100Mi"});
            pod(json!({"containers": [container(all.clone(), all)]}))
        };
        let short = PodRules {
            cpu_cfs_quota_period: Duration::from_millis(5),
            pids: Some(1000),
            ..PodRules::default()
        };
        assert_eq!(
            shown(&pod_limits(&spec(), &short)),
            "204 1000/5000 104857600 1000"
        );
        let off = PodRules {
            cpu_cfs_quota: false,
            ..PodRules::default()
        };
        assert_eq!(
            shown(&pod_limits(&spec(), &off)),
            "204 -1/100000 104857600 -"
        );
    }

    #[test]
    fn pod_level_resources_follow_their_gate() {
        let spec = json!({"containers": [container(json!({"cpu": "1"}), json!({}))],
            "resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "4"}}});
        let off = PodRules {
            pod_level: false,
            ..PodRules::default()
        };
        assert_eq!(shown(&pod_limits(&pod(spec), &off)), "1024 - - -");
    }

    #[test]
    fn huge_pages_are_those_asked_for() {
        let pages = json!({"hugepages-2Mi": "4Mi", "hugepages-1Gi": "1Gi", "cpu": "1"});
        let spec = json!({"containers": [container(pages.clone(), pages.clone()), container(pages.clone(), pages)]});
        let got = pod_limits(&pod(spec), &PodRules::default()).huge_pages;
        let expected = HugePageLimits::Only([(2 << 20, 8 << 20), (1 << 30, 2 << 30)].into());
        assert_eq!(got, expected);
        let none = pod_limits(&pod(json!({"containers": []})), &PodRules::default());
        assert_eq!(none.huge_pages, HugePageLimits::Only([].into()));
    }

    #[test]
    fn memory_is_protected_by_class() {
        let rules = PodRules {
            protect_memory: true,
            ..PodRules::default()
        };
        let all = json!({"cpu": "1", "memory": "1Mi"});
        let cases = [
            (container(all.clone(), all), (Some(1 << 20), None)),
            (
                container(json!({"memory": "1Mi"}), json!({})),
                (None, Some(1 << 20)),
            ),
            (container(json!({}), json!({})), (None, None)),
        ];
        for (container, expected) in cases {
            let got = pod_limits(&pod(json!({"containers": [container]})), &rules);
            assert_eq!((got.memory_min, got.memory_low), expected);
        }
    }
}
