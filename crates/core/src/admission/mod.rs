//! The door of the node: whether a pod that was sent here may run here.
//!
//! The handlers are asked in a fixed order and the first refusal stands. Reasons and messages are
//! the ones people's scripts match on. A critical pod that lacks nothing but room may make
//! room: then the verdict names the pods that have to go first. [`PodAdmission`] remembers who was
//! let in, so that nobody is asked twice.

mod affinity;
mod apparmor;
mod fit;
mod handlers;
mod names;
mod neighbour;
mod ports;
mod predicates;
mod preemption;
mod state;
mod sysctls;
mod tolerations;

use std::collections::{BTreeMap, BTreeSet};

use krablet_pod::api::{Pod, PodStatus, Taint};
use krablet_pod::qos::{QosClass, qos_class};
use krablet_pod::resources::Amounts;
use krablet_pod::{PodUid, marks};

use crate::resize::ResizeSettings;
use crate::status::{generation, terminated_by_kubelet};
use crate::worker::StatusOverride;

pub use affinity::{matches_any_term, matches_node};
pub use apparmor::app_armor_profile;
pub use neighbour::AdmittedPod;
pub use state::{PodAdmission, ResizeVerdict, Surroundings};
pub use sysctls::{KernelVersion, SysctlAllowlist, SysctlError};
pub use tolerations::tolerates;

/// The node as far as the door looks at it.
#[derive(Clone, Debug, Default)]
pub struct NodeView {
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub taints: Vec<Taint>,
    /// What pods may use, by the resource's name; `pods` is their number.
    pub allocatable: Amounts,
    /// The operating system as pods name it, `linux`.
    pub os: String,
    /// Whether the runtime knows supplementalGroupsPolicy.
    pub supplemental_groups_policy: bool,
    /// What the agent would tell of the node, and nobody else yet: labels that others gave it are missing.
    pub provisional: bool,
}

/// What passes: pressure and shutdown.
#[derive(Clone, Debug, Default)]
pub struct NodeConditions {
    /// The pressures the node is under, as its conditions say.
    pub pressures: Vec<Pressure>,
    pub shutting_down: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pressure {
    Memory,
    Disk,
    Pid,
}

impl Pressure {
    /// The type of the node's condition.
    pub fn as_str(self) -> &'static str {
        match self {
            Pressure::Memory => "MemoryPressure",
            Pressure::Disk => "DiskPressure",
            Pressure::Pid => "PIDPressure",
        }
    }
}

/// What is fixed when the agent starts. The default is that of the gates.
#[derive(Clone, Debug)]
pub struct AdmissionSettings {
    pub sysctls: SysctlAllowlist,
    /// Whether the kernel enforces AppArmor profiles.
    pub apparmor: bool,
    /// The gate PodLevelResources.
    pub pod_level_resources: bool,
    /// The gate TaintTolerationComparisonOperators.
    pub toleration_comparison: bool,
    /// The gate DRAExtendedResource.
    pub dra_extended_resources: bool,
    /// What this node declares in its status, when the gate NodeDeclaredFeatures is on.
    pub declared_features: Option<BTreeSet<String>>,
    pub resize: ResizeSettings,
}

impl Default for AdmissionSettings {
    fn default() -> Self {
        Self {
            sysctls: SysctlAllowlist::default(),
            apparmor: false,
            pod_level_resources: true,
            toleration_comparison: false,
            dra_extended_resources: true,
            declared_features: None,
            resize: ResizeSettings::default(),
        }
    }
}

/// All a verdict depends on.
#[derive(Clone, Copy, Debug)]
pub struct AdmissionInputs<'a> {
    pub pod: &'a Pod,
    pub node: &'a NodeView,
    pub conditions: &'a NodeConditions,
    pub settings: &'a AdmissionSettings,
    /// The pods already let in that have not ended, without the one that is asked about.
    pub others: &'a [&'a AdmittedPod],
    /// What the owners of devices, CPUs and memory had against the pod.
    pub allocation_failure: Option<&'a Rejection>,
}

impl AdmissionInputs<'_> {
    fn is_critical(&self) -> bool {
        marks::is_critical(self.pod)
    }
}

/// Why a pod is refused: a word and a sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    pub reason: String,
    pub message: String,
    /// Nothing but the node's labels stood against the pod. They may be newer than we know: read the
    /// node again and ask once more before refusing.
    pub only_labels: bool,
}

impl Rejection {
    pub fn new(reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            reason: reason.into(),
            message: message.into(),
            only_labels: false,
        }
    }

    /// A failure to allocate devices, CPUs or memory that has no reason of its own.
    pub fn unexpected(why: impl std::fmt::Display) -> Self {
        let message = format!("Allocate failed due to {why}, which is unexpected");
        Self::new(UNEXPECTED_ADMISSION_ERROR, message)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Admit,
    /// May run once these pods have ended; they are to be killed with [`preempted`]. Some of them may
    /// be on their way out already.
    AdmitAfterPreempting(Room),
    Reject(Rejection),
}

/// How room is made for a critical pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Room {
    pub victims: Vec<PodUid>,
    /// What there is too little of, the first of it; none if those that leave anyway make room enough.
    pub lacking: Option<String>,
}

const UNEXPECTED_ADMISSION_ERROR: &str = "UnexpectedAdmissionError";

type Handler = fn(&AdmissionInputs<'_>) -> Verdict;

/// In the order they are asked. What only concerns a resize does not stand here.
const HANDLERS: [Handler; 8] = [
    handlers::eviction_pressure,
    sysctls::sysctls,
    handlers::allocation,
    predicates::predicates,
    apparmor::apparmor,
    handlers::pod_level_resources,
    handlers::declared_features,
    handlers::node_shutdown,
];

/// Whether the pod may run here. Nobody is pre-empted for a pod that is refused for another reason.
pub fn admit(inputs: &AdmissionInputs<'_>) -> Verdict {
    let mut verdict = Verdict::Admit;
    for handler in HANDLERS {
        match handler(inputs) {
            Verdict::Admit => {}
            reject @ Verdict::Reject(_) => return reject,
            after @ Verdict::AdmitAfterPreempting(_) => verdict = after,
        }
    }
    verdict
}

/// Reasons of which there are only so many.
const COUNTED_REASONS: [&str; 21] = [
    "AppArmor",
    "Evicted",
    "InitContainerRestartPolicyForbidden",
    "InvalidNodeInfo",
    "NodeShutdown",
    "OutOfcpu",
    "OutOfephemeral-storage",
    "OutOfmemory",
    "OutOfpods",
    "PodFeatureUnsupported",
    "PodLevelResourcesNotSupported",
    "PodOSNotSupported",
    "PodOSSelectorNodeLabelDoesNotMatch",
    "SupplementalGroupsPolicyNotSupported",
    "SysctlForbidden",
    "TopologyAffinityError",
    "UnexpectedAdmissionError",
    "UnexpectedPredicateFailureType",
    "UnknownReason",
    "VolumeAttachmentLimitExceeded",
    "node(s) had taints that the pod didn't tolerate",
];

impl Rejection {
    /// What the refusal is counted as: the reason, unless there could be any number of such.
    pub fn counted_as(&self) -> &'static str {
        let known = COUNTED_REASONS.iter().find(|known| **known == self.reason);
        match known {
            Some(known) => known,
            None if self.reason.starts_with("OutOf") => "OutOfExtendedResources",
            None => "Other",
        }
    }
}

/// The status of a pod that was refused.
pub fn rejected_status(pod: &Pod, rejection: &Rejection) -> PodStatus {
    PodStatus {
        phase: Some("Failed".into()),
        reason: Some(rejection.reason.clone()),
        message: Some(format!("Pod was rejected: {}", rejection.message)),
        qos_class: Some(qos_of(pod).as_str().into()),
        observed_generation: generation(pod),
        ..PodStatus::default()
    }
}

/// Reason of the event and of the status of a pod that had to make room.
pub const PREEMPTING: &str = "Preempting";
/// Message of the event and of the status of a pod that had to make room.
pub const PREEMPTING_MESSAGE: &str = "Preempted in order to admit critical pod";

/// What the final status of a pod says that had to make room.
pub fn preempted(pod: &Pod) -> StatusOverride {
    StatusOverride {
        phase: "Failed",
        reason: PREEMPTING.into(),
        message: PREEMPTING_MESSAGE.into(),
        condition: Some(terminated_by_kubelet(
            pod,
            "Pod was preempted by Kubelet to accommodate a critical pod.",
        )),
    }
}

/// The class the API recorded, else the one the spec makes.
fn qos_of(pod: &Pod) -> QosClass {
    let recorded = pod.status.as_ref().and_then(|s| s.qos_class.as_deref());
    match recorded {
        Some("Guaranteed") => QosClass::Guaranteed,
        Some("Burstable") => QosClass::Burstable,
        Some("BestEffort") => QosClass::BestEffort,
        _ => pod.spec.as_ref().map_or(QosClass::BestEffort, qos_class),
    }
}

#[cfg(test)]
mod tests;
