//! What the cgroups of the QoS classes are held to. That of Guaranteed pods is the one that holds all
//! others.

use std::collections::BTreeMap;

use krablet_pod::api::{Pod, PodSpec};
use krablet_pod::cgroups::{CgroupLimits, HugePageLimits};
use krablet_pod::qos::{QosClass, qos_class};

use super::pod::requests;
use super::shares;

/// What decides beside the pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassRules {
    /// The gate PodLevelResources.
    pub pod_level: bool,
    /// `qosReserved` of memory with its gate: the percentage of requests that lower classes may not
    /// have, and the bytes all pods together may have.
    pub reserved_memory: Option<(i64, i64)>,
    /// The gate MemoryQoS on cgroup v2.
    pub memory_qos: bool,
    /// The policy TieredReservation.
    pub protect_memory: bool,
}

impl Default for ClassRules {
    fn default() -> Self {
        Self {
            pod_level: true,
            reserved_memory: None,
            memory_qos: false,
            protect_memory: false,
        }
    }
}

#[derive(Default)]
struct Asked {
    burstable_milli: i64,
    burstable_memory: i64,
    guaranteed_memory: i64,
}

impl Asked {
    fn add(&mut self, pod: &Pod, pod_level: bool) {
        let qos = qos_class(pod.spec.as_ref().unwrap_or(&PodSpec::default()));
        if qos == QosClass::BestEffort {
            return;
        }
        let requests = requests(pod, pod_level);
        let memory = requests.get("memory").map_or(0, |q| q.value());
        match qos {
            QosClass::Guaranteed => add(&mut self.guaranteed_memory, memory),
            _ => {
                add(&mut self.burstable_memory, memory);
                let milli = requests.get("cpu").map_or(0, |q| q.milli_value());
                add(&mut self.burstable_milli, milli);
            }
        }
    }
}

fn add(sum: &mut i64, more: i64) {
    *sum = sum.saturating_add(more);
}

/// Of the pods that run or are about to. Huge pages are left to the pods' own cgroups.
pub fn class_limits<'a>(
    pods: impl IntoIterator<Item = &'a Pod>,
    rules: &ClassRules,
) -> BTreeMap<QosClass, CgroupLimits> {
    let mut asked = Asked::default();
    for pod in pods {
        asked.add(pod, rules.pod_level);
    }
    let unbounded = || CgroupLimits {
        huge_pages: HugePageLimits::Unbounded,
        ..CgroupLimits::default()
    };
    let mut all = unbounded();
    let mut burstable = CgroupLimits {
        cpu_shares: Some(shares(asked.burstable_milli)),
        ..unbounded()
    };
    let mut best_effort = CgroupLimits {
        cpu_shares: Some(shares(0)),
        ..unbounded()
    };
    if rules.memory_qos {
        // A parent's protection has to cover that of its children.
        let counted = i64::from(rules.protect_memory);
        let total = asked
            .guaranteed_memory
            .saturating_add(asked.burstable_memory);
        all.memory_min = Some(counted * total);
        burstable.memory_low = Some(counted * asked.burstable_memory);
    }
    if let Some((percent, allocatable)) = rules.reserved_memory.filter(|(_, all)| *all > 0) {
        let kept = |memory: i64| memory.saturating_mul(percent) / 100;
        let left = allocatable - kept(asked.guaranteed_memory);
        burstable.memory = Some(left);
        best_effort.memory = Some(left - kept(asked.burstable_memory));
    }
    BTreeMap::from([
        (QosClass::Guaranteed, all),
        (QosClass::Burstable, burstable),
        (QosClass::BestEffort, best_effort),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(requests: Value, limits: Value) -> Pod {
        let resources = json!({"requests": requests, "limits": limits});
        serde_json::from_value(
            json!({"spec": {"containers": [{"name": "c", "resources": resources}]}}),
        )
        .unwrap()
    }

    fn pods() -> Vec<Pod> {
        let full = json!({"cpu": "2", "memory": "1Gi"});
        vec![
            pod(full.clone(), full),
            pod(json!({"cpu": "500m", "memory": "256Mi"}), json!({})),
            pod(json!({"cpu": "250m", "memory": "256Mi"}), json!({})),
            pod(json!({}), json!({})),
        ]
    }

    #[test]
    fn burstable_weighs_what_its_pods_ask_for() {
        let of = |pods: &[Pod]| {
            let all = class_limits(pods, &ClassRules::default());
            let shares = |q| all[&q].cpu_shares;
            (
                shares(QosClass::Guaranteed),
                shares(QosClass::Burstable),
                shares(QosClass::BestEffort),
            )
        };
        assert_eq!(of(&pods()), (None, Some(768), Some(2)));
        assert_eq!(of(&pods()[2..]), (None, Some(256), Some(2)));
        assert_eq!(of(&[]), (None, Some(2), Some(2)));
        let all = class_limits(&pods(), &ClassRules::default());
        assert!(
            all.values()
                .all(|l| l.memory.is_none() && l.memory_min.is_none())
        );
        assert!(
            all.values()
                .all(|l| l.huge_pages == HugePageLimits::Unbounded)
        );
    }

    #[test]
    fn lower_classes_leave_memory_to_higher_ones() {
        let rules = ClassRules {
            reserved_memory: Some((50, 4 << 30)),
            ..ClassRules::default()
        };
        let all = class_limits(&pods(), &rules);
        assert_eq!(all[&QosClass::Guaranteed].memory, None);
        assert_eq!(all[&QosClass::Burstable].memory, Some(7 << 29));
        assert_eq!(
            all[&QosClass::BestEffort].memory,
            Some((7 << 29) - (1 << 28))
        );
        let unknown = ClassRules {
            reserved_memory: Some((50, 0)),
            ..ClassRules::default()
        };
        assert_eq!(
            class_limits(&pods(), &unknown)[&QosClass::Burstable].memory,
            None
        );
    }

    #[test]
    fn memory_is_protected_by_policy() {
        let protection = |protect_memory| {
            let rules = ClassRules {
                memory_qos: true,
                protect_memory,
                ..ClassRules::default()
            };
            let all = class_limits(&pods(), &rules);
            (
                all[&QosClass::Guaranteed].memory_min,
                all[&QosClass::Burstable].memory_low,
            )
        };
        assert_eq!(protection(true), (Some(3 << 29), Some(1 << 29)));
        assert_eq!(protection(false), (Some(0), Some(0)));
    }
}
