//! Which pods make room for a critical one.
//!
//! The least harm: as few guaranteed pods as possible, then as few burstable ones, then best-effort
//! ones; among those of one class, the pods that come closest to what is missing.

use krablet_pod::PodUid;
use krablet_pod::api::Pod;
use krablet_pod::marks;
use krablet_pod::qos::QosClass;

use super::AdmittedPod;
use super::fit::{Lack, PODS};

/// What is still missing, by resource. Nothing in it is zero or less.
#[derive(Clone, Debug)]
struct Missing(Vec<(String, i64)>);

impl Missing {
    fn of(lacks: &[Lack]) -> Self {
        let missing = lacks.iter().map(|l| (l.resource.clone(), l.missing()));
        Self(missing.collect())
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn without<'a>(&self, pods: impl IntoIterator<Item = &'a AdmittedPod> + Clone) -> Self {
        let rest = self.0.iter().filter_map(|(resource, missing)| {
            let rest = pods.clone().into_iter().fold(*missing, |rest, pod| {
                rest.saturating_sub(freed(pod, resource))
            });
            (rest > 0).then(|| (resource.clone(), rest))
        });
        Self(rest.collect())
    }

    /// How far a pod's end is from freeing all of it: each resource counts by the share left over.
    fn distance(&self, pod: &AdmittedPod) -> f64 {
        self.0
            .iter()
            .map(|(resource, missing)| (missing.saturating_sub(freed(pod, resource)), *missing))
            .filter(|(rest, _)| *rest > 0)
            .map(|(rest, missing)| (rest as f64 / missing as f64).powi(2))
            .sum()
    }

    fn unmet(&self) -> String {
        let list: String = self
            .0
            .iter()
            .map(|(resource, missing)| format!("(res: {resource}, q: {missing}), "))
            .collect();
        format!("no set of running pods found to reclaim resources: [{list}]")
    }
}

fn freed(pod: &AdmittedPod, resource: &str) -> i64 {
    match resource {
        PODS => 1,
        _ => pod.freed.get(resource).copied().unwrap_or(0),
    }
}

/// Who has to go so that `pod` lacks nothing, or why there is no such set.
pub(super) fn victims(
    pod: &Pod,
    others: &[&AdmittedPod],
    lacks: &[Lack],
) -> Result<Vec<PodUid>, String> {
    let of_class = |class: QosClass| -> Vec<&AdmittedPod> {
        let others = others.iter().copied();
        others
            .filter(|o| o.qos == class && gives_way(o, pod))
            .collect()
    };
    let best_effort = of_class(QosClass::BestEffort);
    let burstable = of_class(QosClass::Burstable);
    let guaranteed = of_class(QosClass::Guaranteed);
    let missing = Missing::of(lacks);
    let all = best_effort.iter().chain(&burstable).chain(&guaranteed);
    let unmet = missing.without(all.copied());
    if !unmet.is_empty() {
        return Err(unmet.unmet());
    }
    let lesser = best_effort.iter().chain(&burstable).copied();
    let from_guaranteed = nearest(guaranteed, missing.without(lesser))?;
    let lesser = best_effort.iter().chain(&from_guaranteed).copied();
    let from_burstable = nearest(burstable, missing.without(lesser))?;
    let chosen = from_burstable.iter().chain(&from_guaranteed).copied();
    let from_best_effort = nearest(best_effort, missing.without(chosen))?;
    let chosen = [from_best_effort, from_burstable, from_guaranteed];
    Ok(chosen
        .into_iter()
        .flatten()
        .map(|p| p.uid.clone())
        .collect())
}

/// A pod that is not critical gives way to one that is; else the higher priority wins.
fn gives_way(other: &AdmittedPod, to: &Pod) -> bool {
    if marks::is_critical(to) && !other.critical {
        return true;
    }
    let priority = to.spec.as_ref().and_then(|s| s.priority);
    matches!((priority, other.priority), (Some(mine), Some(theirs)) if mine > theirs)
}

/// Again and again the pod that leaves the least missing; of equals the one that asks for less.
fn nearest(mut pods: Vec<&AdmittedPod>, mut missing: Missing) -> Result<Vec<&AdmittedPod>, String> {
    let mut chosen = Vec::new();
    while !missing.is_empty() {
        let mut best: Option<(usize, f64)> = None;
        for (index, pod) in pods.iter().enumerate() {
            let distance = missing.distance(pod);
            let better = best.is_none_or(|(other, least)| {
                distance < least || (distance == least && asks_for_less(pod, pods[other]))
            });
            if better {
                best = Some((index, distance));
            }
        }
        let Some((index, _)) = best else {
            return Err(missing.unmet());
        };
        let pod = pods.swap_remove(index);
        missing = missing.without([pod]);
        chosen.push(pod);
    }
    Ok(chosen)
}

/// Memory first, then cpu; equal counts as less.
fn asks_for_less(pod: &AdmittedPod, other: &AdmittedPod) -> bool {
    let asks = |pod| (freed(pod, "memory"), freed(pod, "cpu"));
    asks(pod) <= asks(other)
}
