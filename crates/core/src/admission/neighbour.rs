//! A pod that was let in, as the next one at the door sees it.

use krablet_pod::api::{Pod, PodSpec};
use krablet_pod::qos::QosClass;
use krablet_pod::resources::{
    Amounts, RequestRules, add, has_pod_level_resources, parse, pod_level_requests, pod_requests,
};
use krablet_pod::{PodUid, marks};

use super::fit::{Counts, count, counts};
use super::ports::{HostPort, host_ports};
use super::{AdmissionSettings, qos_of};

/// Reckoned once when the pod is let in, so that a crowd at the door costs little.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdmittedPod {
    pub uid: PodUid,
    /// On its way out to make room: no longer in the way, but still there.
    pub leaving: bool,
    pub(super) requests: Counts,
    pub(super) freed: Counts,
    pub(super) ports: Vec<HostPort>,
    pub(super) qos: QosClass,
    pub(super) critical: bool,
    pub(super) priority: Option<i32>,
}

impl AdmittedPod {
    /// `pod` carries the resources it was let in with.
    pub fn of(pod: &Pod, settings: &AdmissionSettings) -> Self {
        let rules = RequestRules {
            pod_level: settings.pod_level_resources,
            from_status: true,
        };
        Self {
            uid: pod.metadata.uid.as_deref().unwrap_or_default().into(),
            leaving: false,
            requests: counts(&pod_requests(pod, rules)),
            freed: freed(pod, settings.pod_level_resources),
            ports: pod.spec.as_ref().map(host_ports).unwrap_or_default(),
            qos: qos_of(pod),
            critical: marks::is_critical(pod),
            priority: pod.spec.as_ref().and_then(|s| s.priority),
        }
    }
}

/// What pre-emption takes to be freed by a pod's end. Unlike the sum that admission counts,
/// pod-level resources hide the containers' other resources, and overhead is only added to what
/// is asked for at all.
fn freed(pod: &Pod, pod_level: bool) -> Counts {
    let Some(spec) = pod.spec.as_ref() else {
        return Counts::new();
    };
    let mut amounts = match pod_level && has_pod_level_resources(spec) {
        true => pod_level_requests(pod, false),
        false => without_overhead(pod, spec),
    };
    let mut overhead = parse(spec.overhead.as_ref());
    overhead.retain(|name, _| amounts.get(name).is_some_and(|amount| !amount.is_zero()));
    add(&mut amounts, &overhead);
    let counted = amounts
        .iter()
        .map(|(name, amount)| (name.clone(), count(name, *amount)));
    counted.collect()
}

fn without_overhead(pod: &Pod, spec: &PodSpec) -> Amounts {
    let rules = RequestRules {
        pod_level: false,
        from_status: false,
    };
    match &spec.overhead {
        None => pod_requests(pod, rules),
        Some(_) => {
            let spec = PodSpec {
                overhead: None,
                ..spec.clone()
            };
            let bare = Pod {
                spec: Some(spec),
                ..pod.clone()
            };
            pod_requests(&bare, rules)
        }
    }
}
