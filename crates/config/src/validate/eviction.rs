//! Eviction thresholds, grace periods and reclaim amounts.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use super::Checks;
use crate::decode::join_path;
use crate::duration::Duration;
use crate::quantity::Quantity;
use crate::types::KubeletConfiguration;

const SIGNALS: &[&str] = &[
    "memory.available",
    "allocatableMemory.available",
    "nodefs.available",
    "nodefs.inodesFree",
    "imagefs.available",
    "imagefs.inodesFree",
    "containerfs.available",
    "containerfs.inodesFree",
    "pid.available",
];

pub(super) fn check(config: &KubeletConfiguration, checks: &mut Checks) {
    let eviction = &config.eviction;
    each(checks, "evictionHard", &eviction.hard, threshold_fault);
    each(checks, "evictionSoft", &eviction.soft, threshold_fault);
    each(
        checks,
        "evictionSoftGracePeriod",
        &eviction.soft_grace_period,
        grace_fault,
    );
    each(
        checks,
        "evictionMinimumReclaim",
        &eviction.minimum_reclaim,
        reclaim_fault,
    );
    for signal in eviction.soft.keys() {
        let known = SIGNALS.contains(&signal.as_str());
        if known && !eviction.soft_grace_period.contains_key(signal) {
            checks.refuse(
                join_path("evictionSoft", signal),
                "needs a grace period in evictionSoftGracePeriod",
            );
        }
    }
}

fn each(
    checks: &mut Checks,
    field: &str,
    map: &BTreeMap<String, String>,
    fault: fn(&str) -> Option<String>,
) {
    for (signal, value) in map {
        let field = join_path(field, signal);
        if SIGNALS.contains(&signal.as_str()) {
            if let Some(reason) = fault(value) {
                checks.refuse(field, reason);
            }
        } else {
            checks.refuse(field, format!("unknown eviction signal {signal:?}"));
        }
    }
}

/// A percentage from 0% (off) to 100% (off as well), or an amount above zero.
fn threshold_fault(value: &str) -> Option<String> {
    if let Some(percent) = value.strip_suffix('%') {
        return match percent.parse::<f32>() {
            Ok(percent) if (0.0..=100.0).contains(&percent) => None,
            Ok(_) => Some(format!("{value} must be between 0% and 100%")),
            Err(_) => Some(format!("{value:?} is not a percentage")),
        };
    }
    match Quantity::parse(value) {
        Ok(amount) if amount.sign() == Ordering::Greater => None,
        Ok(_) => Some(format!("{value} must be positive")),
        Err(reason) => Some(reason),
    }
}

fn grace_fault(value: &str) -> Option<String> {
    match value.parse::<Duration>() {
        Ok(grace) if grace >= Duration::ZERO => None,
        Ok(_) => Some(format!("{value} must not be negative")),
        Err(error) => Some(error.to_string()),
    }
}

fn reclaim_fault(value: &str) -> Option<String> {
    if let Some(percent) = value.strip_suffix('%') {
        return match percent.parse::<f32>() {
            Ok(percent) if percent > 0.0 => None,
            Ok(_) => Some(format!("{value} must be positive")),
            Err(_) => Some(format!("{value:?} is not a percentage")),
        };
    }
    match Quantity::parse(value) {
        Ok(amount) if amount.sign() != Ordering::Less => None,
        Ok(_) => Some(format!("{value} must not be negative")),
        Err(reason) => Some(reason),
    }
}
