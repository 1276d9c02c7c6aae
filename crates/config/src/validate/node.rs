//! The node, its API calls, reservations, cgroups and managers.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use super::Checks;
use crate::decode::join_path;
use crate::duration::Duration;
use crate::flags::{is_memory_type, is_taint_effect};
use crate::gates::{FeatureGates, Gate};
use crate::labels::{key_fault, value_fault};
use crate::quantity::Quantity;
use crate::types::KubeletConfiguration;

const ENFORCEMENTS: &[&str] = &[
    "none",
    "pods",
    "system-reserved",
    "system-reserved-compressible",
    "kube-reserved",
    "kube-reserved-compressible",
];

pub(super) fn check(config: &KubeletConfiguration, checks: &mut Checks) {
    let node = &config.node;
    checks.require(
        node.node_lease_duration_seconds > 0,
        "nodeLeaseDurationSeconds",
        || {
            format!(
                "{} must be greater than 0",
                node.node_lease_duration_seconds
            )
        },
    );
    checks.not_negative("eventBurst", node.event_burst.into());
    checks.not_negative("eventRecordQPS", node.event_record_qps.into());
    checks.not_negative("kubeAPIBurst", node.kube_api_burst.into());
    checks.not_negative("kubeAPIQPS", node.kube_api_qps.into());
    checks.require(
        node.node_status_max_images >= -1,
        "nodeStatusMaxImages",
        || format!("{} must be -1 or greater", node.node_status_max_images),
    );
    checks.one_of(
        "configMapAndSecretChangeDetectionStrategy",
        &node.config_map_and_secret_change_detection_strategy,
        &["Get", "Cache", "Watch"],
    );
    for (index, taint) in node.register_with_taints.iter().enumerate() {
        let field = format!("registerWithTaints[{index}]");
        let fault = key_fault(&taint.key).or_else(|| value_fault(&taint.value));
        if let Some(fault) = fault {
            checks.refuse(&field, format!("invalid taint: {fault}"));
        }
        let effect_known = taint.effect.is_empty() || is_taint_effect(&taint.effect);
        checks.require(effect_known, &format!("{field}.effect"), || {
            format!(
                "{:?} must be NoSchedule, PreferNoSchedule or NoExecute",
                taint.effect
            )
        });
        checks.require(
            taint.time_added.is_none(),
            &format!("{field}.timeAdded"),
            || "must not be set".to_owned(),
        );
    }
}

pub(super) fn check_resources(
    config: &KubeletConfiguration,
    gates: &FeatureGates,
    checks: &mut Checks,
) {
    check_cgroups(config, gates, checks);
    check_managers(config, checks);
    check_reservations(config, checks);
    check_enforcement(config, checks);
}

fn check_cgroups(config: &KubeletConfiguration, gates: &FeatureGates, checks: &mut Checks) {
    let cgroups = &config.cgroups;
    checks.require(
        cgroups.system_cgroups.is_empty() || !cgroups.cgroup_root.is_empty(),
        "systemCgroups",
        || "needs cgroupRoot".to_owned(),
    );
    let period = cgroups.cpu_cfs_quota_period;
    if gates.enabled(Gate::CustomCPUCFSQuotaPeriod) {
        let allowed = Duration::from_millis(1)..=Duration::from_secs(1);
        checks.require(allowed.contains(&period), "cpuCFSQuotaPeriod", || {
            format!("{period} must be between 1ms and 1s")
        });
    } else {
        checks.require(
            period == Duration::from_millis(100),
            "cpuCFSQuotaPeriod",
            || format!("{period} needs the feature gate CustomCPUCFSQuotaPeriod"),
        );
    }
    checks.between("oomScoreAdj", cgroups.oom_score_adj.into(), -1000, 1000);
    check_memory(config, gates, checks);
    for (resource, share) in &cgroups.qos_reserved {
        let field = join_path("qosReserved", resource);
        checks.require(resource == "memory", &field, || {
            format!("{resource:?} cannot be reserved, only memory can")
        });
        let percent = share.strip_suffix('%').and_then(|p| p.parse::<i64>().ok());
        checks.require(
            percent.is_some_and(|p| (0..=100).contains(&p)),
            &field,
            || format!("{share:?} must be a percentage from 0% to 100%"),
        );
    }
}

fn check_memory(config: &KubeletConfiguration, gates: &FeatureGates, checks: &mut Checks) {
    let cgroups = &config.cgroups;
    let qos = gates.enabled(Gate::MemoryQoS);
    match cgroups.memory_throttling_factor {
        None => checks.require(!qos, "memoryThrottlingFactor", || {
            "must be set while the feature gate MemoryQoS is on".to_owned()
        }),
        Some(factor) => checks.require(
            factor > 0.0 && factor <= 1.0,
            "memoryThrottlingFactor",
            || format!("{factor} must be greater than 0 and at most 1"),
        ),
    }
    let policy = &cgroups.memory_reservation_policy;
    checks.one_of(
        "memoryReservationPolicy",
        policy,
        &["None", "TieredReservation"],
    );
    checks.require(
        qos || policy != "TieredReservation",
        "memoryReservationPolicy",
        || "TieredReservation needs the feature gate MemoryQoS".to_owned(),
    );
    let swap = &cgroups.memory_swap.swap_behavior;
    if gates.enabled(Gate::NodeSwap) {
        checks.require(
            matches!(swap.as_str(), "" | "NoSwap" | "LimitedSwap"),
            "memorySwap.swapBehavior",
            || format!("{swap:?} must be empty, LimitedSwap or NoSwap"),
        );
    } else {
        checks.require(swap.is_empty(), "memorySwap.swapBehavior", || {
            "needs the feature gate NodeSwap".to_owned()
        });
    }
}

fn check_managers(config: &KubeletConfiguration, checks: &mut Checks) {
    let managers = &config.managers;
    checks.one_of(
        "cpuManagerPolicy",
        &managers.cpu_manager_policy,
        &["none", "static"],
    );
    checks.one_of(
        "memoryManagerPolicy",
        &managers.memory_manager_policy,
        &["None", "Static"],
    );
    checks.one_of(
        "topologyManagerPolicy",
        &managers.topology_manager_policy,
        &["none", "best-effort", "restricted", "single-numa-node"],
    );
    checks.one_of(
        "topologyManagerScope",
        &managers.topology_manager_scope,
        &["container", "pod"],
    );
    let mut seen = BTreeSet::new();
    for (index, reservation) in managers.reserved_memory.iter().enumerate() {
        let node = reservation.numa_node;
        for (kind, amount) in &reservation.limits {
            let field = join_path(&format!("reservedMemory[{index}].limits"), kind);
            checks.require(is_memory_type(kind), &field, || {
                format!("the type {kind:?} for NUMA node {node} is not supported, want memory or hugepages-<size>")
            });
            checks.require(amount.sign() != Ordering::Equal, &field, || {
                format!("the amount for NUMA node {node} must not be zero")
            });
            checks.require(seen.insert((node, kind)), &field, || {
                format!("NUMA node {node} has this type twice")
            });
        }
    }
}

fn check_reservations(config: &KubeletConfiguration, checks: &mut Checks) {
    let allocatable = &config.allocatable;
    check_resource_list("systemReserved", &allocatable.system_reserved, checks);
    check_resource_list("kubeReserved", &allocatable.kube_reserved, checks);
    let cpus = &allocatable.reserved_system_cpus;
    if cpus.is_empty() {
        return;
    }
    let no_cgroups = allocatable.system_reserved_cgroup.is_empty()
        && allocatable.kube_reserved_cgroup.is_empty();
    checks.require(no_cgroups, "reservedSystemCPUs", || {
        "cannot be used together with systemReservedCgroup or kubeReservedCgroup".to_owned()
    });
    checks.require(is_cpu_list(cpus), "reservedSystemCPUs", || {
        format!("{cpus:?} is not a CPU list such as 0-1,4")
    });
}

fn check_resource_list(field: &str, list: &BTreeMap<String, String>, checks: &mut Checks) {
    for (resource, amount) in list {
        let field = join_path(field, resource);
        if !matches!(
            resource.as_str(),
            "cpu" | "memory" | "ephemeral-storage" | "pid"
        ) {
            checks.refuse(
                &field,
                format!(
                    "{resource:?} cannot be reserved, want cpu, memory, ephemeral-storage or pid"
                ),
            );
            continue;
        }
        match Quantity::parse(amount) {
            Ok(quantity) => checks.require(quantity.sign() != Ordering::Less, &field, || {
                format!("{amount} must not be negative")
            }),
            Err(reason) => checks.refuse(&field, reason),
        }
    }
}

fn is_cpu_list(text: &str) -> bool {
    text.split(',').all(|part| {
        let number = |text: &str| text.parse::<u32>().ok();
        match part.split_once('-') {
            Some((low, high)) => number(low)
                .zip(number(high))
                .is_some_and(|(low, high)| low <= high),
            None => number(part).is_some(),
        }
    })
}

fn check_enforcement(config: &KubeletConfiguration, checks: &mut Checks) {
    const FIELD: &str = "enforceNodeAllocatable";
    let allocatable = &config.allocatable;
    let wanted = &allocatable.enforce_node_allocatable;
    let has = |key: &str| wanted.iter().any(|value| value == key);
    for side in ["system-reserved", "kube-reserved"] {
        let compressible = format!("{side}-compressible");
        checks.require(!(has(side) && has(&compressible)), FIELD, || {
            format!("{side} and {compressible} exclude each other")
        });
    }
    let mut seen = BTreeSet::new();
    for value in wanted {
        if !seen.insert(value) {
            checks.refuse(FIELD, format!("{value} is listed twice"));
            continue;
        }
        if !ENFORCEMENTS.contains(&value.as_str()) {
            checks.one_of(FIELD, value, ENFORCEMENTS);
            continue;
        }
        if value == "none" {
            checks.require(wanted.len() == 1, FIELD, || {
                "none cannot stand beside other values".to_owned()
            });
            continue;
        }
        let (cgroup, field) = if value.starts_with("system-") {
            (&allocatable.system_reserved_cgroup, "systemReservedCgroup")
        } else {
            (&allocatable.kube_reserved_cgroup, "kubeReservedCgroup")
        };
        checks.require(value == "pods" || !cgroup.is_empty(), field, || {
            format!("must be set while {FIELD} holds {value}")
        });
        checks.require(config.cgroups.cgroups_per_qos, "cgroupsPerQOS", || {
            format!("must be true while {FIELD} holds {value}")
        });
    }
}

pub(super) fn notes(config: &KubeletConfiguration) -> Vec<String> {
    let agent = &config.cgroups.kubelet_cgroups;
    let reserved = &config.allocatable.kube_reserved_cgroup;
    let outside =
        !agent.is_empty() && !reserved.is_empty() && !agent.starts_with(reserved.as_str());
    outside
        .then(|| format!("kubeletCgroups {agent} is not within kubeReservedCgroup {reserved}"))
        .into_iter()
        .collect()
}
