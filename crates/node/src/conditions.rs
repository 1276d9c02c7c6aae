//! The node's conditions: what they say, when they change, and what is told of a change.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use krablet_events::Kind;
use krablet_pod::api::NodeCondition;

use crate::health::{Health, one_line};

pub const READY: &str = "Ready";
const TRUE: &str = "True";
const FALSE: &str = "False";

/// What the node runs short of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pressures {
    pub memory: bool,
    pub disk: bool,
    pub pid: bool,
}

/// Something to record about the node once the status that tells of it is published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeEvent {
    pub kind: Kind,
    pub reason: &'static str,
    pub message: String,
}

impl NodeEvent {
    /// `Node n1 status is now: NodeReady`.
    pub(crate) fn status(node: &str, reason: &'static str) -> Self {
        Self {
            kind: Kind::Normal,
            reason,
            message: format!("Node {node} status is now: {reason}"),
        }
    }

    pub(crate) fn rebooted(node: &str, boot_id: &str) -> Self {
        Self {
            kind: Kind::Warning,
            reason: "Rebooted",
            message: format!("Node {node} has been rebooted, boot id: {boot_id}"),
        }
    }

    pub(crate) fn schedulable(node: &str, unschedulable: bool) -> Self {
        let reason = match unschedulable {
            true => "NodeNotSchedulable",
            false => "NodeSchedulable",
        };
        Self::status(node, reason)
    }
}

/// The words for one kind of pressure, and for its absence: reason, message, event.
struct Words {
    kind: &'static str,
    under: (&'static str, &'static str, &'static str),
    free: (&'static str, &'static str, &'static str),
}

const MEMORY: Words = Words {
    kind: "MemoryPressure",
    under: (
        "KubeletHasInsufficientMemory",
        "kubelet has insufficient memory available",
        "NodeHasInsufficientMemory",
    ),
    free: (
        "KubeletHasSufficientMemory",
        "kubelet has sufficient memory available",
        "NodeHasSufficientMemory",
    ),
};
const DISK: Words = Words {
    kind: "DiskPressure",
    under: (
        "KubeletHasDiskPressure",
        "kubelet has disk pressure",
        "NodeHasDiskPressure",
    ),
    free: (
        "KubeletHasNoDiskPressure",
        "kubelet has no disk pressure",
        "NodeHasNoDiskPressure",
    ),
};
const PID: Words = Words {
    kind: "PIDPressure",
    under: (
        "KubeletHasInsufficientPID",
        "kubelet has insufficient PID available",
        "NodeHasInsufficientPID",
    ),
    free: (
        "KubeletHasSufficientPID",
        "kubelet has sufficient PID available",
        "NodeHasSufficientPID",
    ),
};

/// What the conditions follow from.
pub(crate) struct ConditionInputs<'a> {
    pub node: &'a str,
    pub health: &'a Health,
    pub pressures: Pressures,
    /// Resources without which no pod can be placed.
    pub missing: Vec<&'static str>,
    pub now: Timestamp,
}

/// The new conditions; those of others stay as they are. Ready comes last on a new node.
pub(crate) fn conditions(
    old: &[NodeCondition],
    inputs: &ConditionInputs<'_>,
) -> (Vec<NodeCondition>, Vec<NodeEvent>) {
    let mut new = old.to_vec();
    let mut events = Vec::new();
    let pressures = inputs.pressures;
    for (words, under) in [
        (MEMORY, pressures.memory),
        (DISK, pressures.disk),
        (PID, pressures.pid),
    ] {
        events.extend(set_pressure(&mut new, &words, under, inputs));
    }
    events.extend(set_ready(&mut new, inputs));
    (new, events)
}

fn set_pressure(
    conditions: &mut Vec<NodeCondition>,
    words: &Words,
    under: bool,
    inputs: &ConditionInputs<'_>,
) -> Option<NodeEvent> {
    let (reason, message, event) = if under { words.under } else { words.free };
    let status = if under { TRUE } else { FALSE };
    let changed = set(conditions, words.kind, status, reason, message, inputs.now);
    let changed = changed != Change::None;
    changed.then(|| NodeEvent::status(inputs.node, event))
}

fn set_ready(
    conditions: &mut Vec<NodeCondition>,
    inputs: &ConditionInputs<'_>,
) -> Option<NodeEvent> {
    let mut problems = inputs.health.known_problems();
    if !inputs.missing.is_empty() {
        let missing = inputs.missing.join(", ");
        problems.push(format!("missing node capacity for resources: {missing}"));
    }
    // An agent that has just started knows nothing that speaks against what was true before.
    let published = conditions.iter().any(|c| c.type_ == READY);
    if problems.is_empty() && !inputs.health.is_settled() && published {
        return None;
    }
    problems.extend(inputs.health.unknowns());
    let (status, reason, message, event) = match problems.is_empty() {
        true => (
            TRUE,
            "KubeletReady",
            "kubelet is posting ready status".to_owned(),
            "NodeReady",
        ),
        false => (
            FALSE,
            "KubeletNotReady",
            one_line(&problems),
            "NodeNotReady",
        ),
    };
    match set(conditions, READY, status, reason, &message, inputs.now) {
        Change::None => None,
        // A node that is not ready at first is no news.
        Change::New if status == FALSE => None,
        _ => Some(NodeEvent::status(inputs.node, event)),
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Change {
    None,
    New,
    Status,
}

/// Every condition that is set says when; one whose status changes says since when.
fn set(
    conditions: &mut Vec<NodeCondition>,
    kind: &str,
    status: &str,
    reason: &str,
    message: &str,
    now: Timestamp,
) -> Change {
    let now = whole_seconds(now);
    let mut condition = NodeCondition {
        type_: kind.to_owned(),
        status: status.to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        last_heartbeat_time: Some(now.clone()),
        last_transition_time: Some(now),
    };
    let Some(old) = conditions.iter_mut().find(|c| c.type_ == kind) else {
        conditions.push(condition);
        return Change::New;
    };
    let mut change = Change::Status;
    if old.status == status {
        condition.last_transition_time = old.last_transition_time.clone();
        change = Change::None;
    }
    *old = condition;
    change
}

/// The API keeps whole seconds; a finer time would look like a change.
pub(crate) fn whole_seconds(time: Timestamp) -> Time {
    Time(Timestamp::from_second(time.as_second()).unwrap_or(time))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::health::{ObserverHealth, RuntimeConditions, RuntimeHealth};

    fn healthy() -> Health {
        Health {
            runtime: RuntimeHealth::Answers(RuntimeConditions::ready()),
            observer: ObserverHealth::Sees,
            ..Health::default()
        }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_millisecond(second * 1000 + 250).unwrap()
    }

    fn inputs<'a>(health: &'a Health, now: i64) -> ConditionInputs<'a> {
        ConditionInputs {
            node: "n1",
            health,
            pressures: Pressures::default(),
            missing: Vec::new(),
            now: at(now),
        }
    }

    fn shown(conditions: &[NodeCondition]) -> String {
        let second = |t: &Option<Time>| t.as_ref().map_or(-1, |t| t.0.as_second());
        let line = |c: &NodeCondition| {
            format!(
                "{}={} {} {:?} heartbeat {} since {}\n",
                c.type_,
                c.status,
                c.reason.clone().unwrap_or_default(),
                c.message.clone().unwrap_or_default(),
                second(&c.last_heartbeat_time),
                second(&c.last_transition_time),
            )
        };
        conditions.iter().map(line).collect()
    }

    fn reasons(events: &[NodeEvent]) -> Vec<&'static str> {
        events.iter().map(|e| e.reason).collect()
    }

    #[test]
    fn a_new_node_and_its_first_changes() {
        let (first, events) = conditions(&[], &inputs(&healthy(), 10));
        expect_test::expect![[r#"
            MemoryPressure=False KubeletHasSufficientMemory "kubelet has sufficient memory available" heartbeat 10 since 10
            DiskPressure=False KubeletHasNoDiskPressure "kubelet has no disk pressure" heartbeat 10 since 10
            PIDPressure=False KubeletHasSufficientPID "kubelet has sufficient PID available" heartbeat 10 since 10
            Ready=True KubeletReady "kubelet is posting ready status" heartbeat 10 since 10
        "#]]
        .assert_eq(&shown(&first));
        assert_eq!(
            reasons(&events),
            [
                "NodeHasSufficientMemory",
                "NodeHasNoDiskPressure",
                "NodeHasSufficientPID",
                "NodeReady"
            ]
        );
        assert_eq!(events[3].message, "Node n1 status is now: NodeReady");

        let mut trouble = healthy();
        trouble.observer = ObserverHealth::Blind {
            culprit: "ListContainers of pod ns/web: no answer within 30s".to_owned(),
            since: at(15),
        };
        let mut later = inputs(&trouble, 20);
        later.pressures.disk = true;
        let (second, events) = conditions(&first, &later);
        expect_test::expect![[r#"
            MemoryPressure=False KubeletHasSufficientMemory "kubelet has sufficient memory available" heartbeat 20 since 10
            DiskPressure=True KubeletHasDiskPressure "kubelet has disk pressure" heartbeat 20 since 20
            PIDPressure=False KubeletHasSufficientPID "kubelet has sufficient PID available" heartbeat 20 since 10
            Ready=False KubeletNotReady "PLEG is not healthy: ListContainers of pod ns/web: no answer within 30s, since 1970-01-01T00:00:15Z" heartbeat 20 since 20
        "#]]
        .assert_eq(&shown(&second));
        assert_eq!(reasons(&events), ["NodeHasDiskPressure", "NodeNotReady"]);
    }

    #[test]
    fn ready_does_not_flicker_when_the_agent_starts() {
        let (first, _) = conditions(&[], &inputs(&healthy(), 10));
        let unknown = Health::default();
        let (kept, events) = conditions(&first, &inputs(&unknown, 20));
        assert_eq!(kept[3], first[3]);
        assert!(events.is_empty());
        // What is known for certain counts at once.
        let shutdown = Health {
            shutdown: Some("node is shutting down".to_owned()),
            ..Health::default()
        };
        let (ended, events) = conditions(&first, &inputs(&shutdown, 20));
        assert_eq!(ended[3].status, FALSE);
        assert_eq!(reasons(&events), ["NodeNotReady"]);
    }

    #[test]
    fn a_node_that_never_was_ready_says_what_it_waits_for() {
        let (first, events) = conditions(&[], &inputs(&Health::default(), 10));
        assert_eq!(first[3].status, FALSE);
        assert!(!reasons(&events).contains(&"NodeNotReady"));
        let healthy = healthy();
        let mut inputs = inputs(&healthy, 11);
        inputs.missing = vec!["cpu", "memory"];
        let (second, _) = conditions(&first, &inputs);
        assert_eq!(
            second[3].message.as_deref(),
            Some("missing node capacity for resources: cpu, memory")
        );
    }

    #[test]
    fn conditions_of_others_stay() {
        let other = NodeCondition {
            type_: "NetworkUnavailable".to_owned(),
            status: FALSE.to_owned(),
            ..NodeCondition::default()
        };
        let (new, _) = conditions(std::slice::from_ref(&other), &inputs(&healthy(), 1));
        assert_eq!(new[0], other);
        assert_eq!(new.len(), 5);
    }
}
