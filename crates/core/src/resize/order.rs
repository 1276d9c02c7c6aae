//! Who of those that wait is asked first.

use std::cmp::Reverse;

use jiff::Timestamp;
use krablet_pod::api::Pod;
use krablet_pod::qos::{QosClass, qos_class};
use krablet_pod::resources::{RequestRules, pod_requests};
use krablet_pod::{Allocation, PodUid};

/// A resize that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    pub uid: PodUid,
    /// It asks for more than the pod has.
    pub increases: bool,
    pub priority: i32,
    pub guaranteed: bool,
    /// Since when it is told to wait.
    pub since: Option<Timestamp>,
}

impl Waiting {
    pub fn of(
        pod: &Pod,
        allocation: Option<&Allocation>,
        pod_level: bool,
        since: Option<Timestamp>,
    ) -> Self {
        let rules = RequestRules {
            pod_level,
            from_status: false,
        };
        let increases = allocation.is_some_and(|allocation| {
            let had = pod_requests(&allocation.applied(pod), rules);
            let asked = pod_requests(pod, rules);
            ["cpu", "memory"]
                .iter()
                .any(|r| asked.get(*r) > had.get(*r))
        });
        let spec = pod.spec.as_ref();
        Self {
            uid: pod.metadata.uid.as_deref().unwrap_or_default().into(),
            increases,
            priority: spec.and_then(|s| s.priority).unwrap_or(0),
            guaranteed: spec.is_some_and(|s| qos_class(s) == QosClass::Guaranteed),
            since,
        }
    }
}

/// First those that ask for no more than they have, since they make room; then by priority; then
/// Guaranteed pods; then who has waited longest.
pub fn order(mut waiting: Vec<Waiting>) -> Vec<PodUid> {
    waiting.sort_by_key(|w| {
        let newcomer = w.since.is_none();
        (
            w.increases,
            Reverse(w.priority),
            !w.guaranteed,
            newcomer,
            w.since,
        )
    });
    waiting.into_iter().map(|w| w.uid).collect()
}
