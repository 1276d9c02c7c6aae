//! Whether a container that ended is started again, and what number the next instance carries.

use krablet_pod::api::{Container, ContainerRestartRule, Pod, PodSpec};
use krablet_pod::containers;
use krablet_pod::observed::{ContainerState, ObservedContainer, ObservedPod};

/// The two feature gates that bear on restarts; both are on unless configured otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RestartGates {
    /// `ContainerRestartRules`: policy and rules of single containers count.
    pub rules: bool,
    /// `RestartAllContainersOnContainerExits`: a rule may restart the whole pod in place.
    pub restart_all: bool,
}

impl Default for RestartGates {
    fn default() -> Self {
        Self {
            rules: true,
            restart_all: true,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RestartDecision {
    /// It stays as it ended.
    No,
    Restart,
    /// Every container of the pod starts over, in the same sandbox.
    RestartAll,
}

impl RestartDecision {
    pub fn restarts(self) -> bool {
        self != RestartDecision::No
    }
}

/// What follows from a container's exit: its rules in order (first match wins), then its own
/// policy, then the pod's. A container without a policy of its own has no say, rules or not.
pub fn should_restart(
    spec: &PodSpec,
    container: &Container,
    exit_code: i32,
    gates: RestartGates,
) -> RestartDecision {
    let own_policy = container.restart_policy.as_deref().filter(|_| gates.rules);
    if own_policy.is_some() {
        match matching_rule(container, exit_code).map(|rule| rule.action.as_str()) {
            Some("Restart") => return RestartDecision::Restart,
            Some("RestartAllContainers") if gates.restart_all => {
                return RestartDecision::RestartAll;
            }
            _ => {}
        }
    }
    let again = match policy(spec, container, gates) {
        "Never" => false,
        "OnFailure" => exit_code != 0,
        _ => true,
    };
    if again {
        RestartDecision::Restart
    } else {
        RestartDecision::No
    }
}

/// The container's own policy, else the pod's.
fn policy<'a>(spec: &'a PodSpec, container: &'a Container, gates: RestartGates) -> &'a str {
    match container.restart_policy.as_deref().filter(|_| gates.rules) {
        Some(own @ ("Always" | "OnFailure" | "Never")) => own,
        _ => pod_policy(spec),
    }
}

/// Whether there is an exit the container is not started after again.
pub fn may_end(spec: &PodSpec, container: &Container, gates: RestartGates) -> bool {
    policy(spec, container, gates) != "Always"
}

/// Whether another instance follows one that has ended: its policy says so, or it was stopped for
/// that.
pub fn is_followed(
    spec: &PodSpec,
    container: &Container,
    ended: &ObservedContainer,
    gates: RestartGates,
) -> bool {
    was_stopped_to_restart(ended)
        || should_restart(spec, container, exit_code(ended), gates).restarts()
}

pub(crate) fn was_stopped_to_restart(ended: &ObservedContainer) -> bool {
    ended.exit.as_ref().is_some_and(|e| e.stopped_to_restart)
}

/// The pod's restart policy; `Always` where none is written.
pub fn pod_policy(spec: &PodSpec) -> &str {
    spec.restart_policy.as_deref().unwrap_or("Always")
}

/// Whether a failure that has no exit code (a failed probe, an unknown state) leads to a restart:
/// rules cannot be asked, the container's policy and then the pod's can.
pub fn restarts_on_failure(spec: &PodSpec, container: &Container, gates: RestartGates) -> bool {
    let own_policy = container.restart_policy.as_deref().filter(|_| gates.rules);
    own_policy.unwrap_or(pod_policy(spec)) != "Never"
}

/// Whether the container, in the state it was seen in, is to be started. A running one is not;
/// a created or unknown one always is, for it cannot be told whether it ever ran.
pub fn wants_start(
    pod: &Pod,
    spec: &PodSpec,
    container: &Container,
    observed: &ObservedPod,
    gates: RestartGates,
) -> bool {
    if pod.metadata.deletion_timestamp.is_some() {
        return false;
    }
    let Some(seen) = current_instance(observed, &container.name) else {
        return true;
    };
    match seen.state {
        ContainerState::Running => false,
        ContainerState::Created | ContainerState::Unknown => true,
        ContainerState::Exited => is_followed(spec, container, seen, gates),
    }
}

/// The instance that stands for a container: the newest running one if any runs, since a
/// running container must never be hidden behind a dead one; else the newest. One that was made
/// to follow the newest that ran, and was not started yet, stands for it: it was wanted though the
/// other had ended in a way its policy calls final, as after a change of its image.
pub fn current_instance<'a>(
    observed: &'a ObservedPod,
    name: &'a str,
) -> Option<&'a ObservedContainer> {
    let running = observed.instances(name).find(|c| c.is_running());
    running.or_else(|| {
        let newest = observed.newest(name)?;
        let mut instances = observed.instances(name);
        let next =
            instances.find(|c| c.state == ContainerState::Created && c.attempt > newest.attempt);
        next.or(Some(newest))
    })
}

/// The exit code as seen; 0 for a container the runtime says nothing of.
pub(crate) fn exit_code(container: &ObservedContainer) -> i32 {
    container.exit.as_ref().map_or(0, |e| e.exit_code)
}

/// The first rule of the container that the exit code matches.
fn matching_rule(container: &Container, exit_code: i32) -> Option<&ContainerRestartRule> {
    let rules = container.restart_policy_rules.as_deref();
    rules.unwrap_or_default().iter().find(|rule| {
        let Some(codes) = &rule.exit_codes else {
            return false;
        };
        let listed = codes
            .values
            .as_ref()
            .is_some_and(|v| v.contains(&exit_code));
        match codes.operator.as_str() {
            "In" => listed,
            "NotIn" => !listed,
            _ => false,
        }
    })
}

/// Whether this exit calls for a restart of all containers.
pub(crate) fn triggers_restart_all(container: &Container, exit_code: i32) -> bool {
    matching_rule(container, exit_code).is_some_and(|r| r.action == "RestartAllContainers")
}

/// Some container of the pod has a rule that restarts all of them.
pub fn could_restart_all(spec: &PodSpec) -> bool {
    containers::all(spec).any(|c| {
        let rules = c.container.restart_policy_rules.as_deref();
        rules
            .unwrap_or_default()
            .iter()
            .any(|r| r.action == "RestartAllContainers")
    })
}

/// A container has ended in a way that restarts all. It is removed after all others, so what is
/// seen in the runtime tells alone, also to an agent that was restarted in between.
pub fn restart_all_pending(spec: &PodSpec, observed: &ObservedPod, gates: RestartGates) -> bool {
    gates.restart_all
        && containers::all(spec).any(|c| {
            current_instance(observed, &c.container.name).is_some_and(|seen| {
                seen.state == ContainerState::Exited
                    && triggers_restart_all(c.container, exit_code(seen))
            })
        })
}

/// The restart count of the next instance: one more than any instance still known that may have run, and no less than that
/// of one that was only made, whose number it takes over; else what the log directory remembers (see
/// [`count_from_log_names`]). If one that was only made had a number of its own, it could pass for the successor of an
/// instance that was made after it and has ended for good, when the call that makes it has its effect too late.
pub fn next_restart_count(observed: &ObservedPod, name: &str, from_logs: Option<u32>) -> u32 {
    let after = |c: &ObservedContainer| {
        let may_have_run = c.state != ContainerState::Created;
        (c.memory.restart_count).saturating_add(u32::from(may_have_run))
    };
    observed
        .instances(name)
        .map(after)
        .max()
        .or(from_logs)
        .unwrap_or(0)
}

/// One more than the highest `<n>.log` (rotated ones included) in a container's log directory,
/// 0 if there is none: a runtime that lost its state in a reboot does not reset the count.
pub fn count_from_log_names<'a>(names: impl IntoIterator<Item = &'a str>) -> u32 {
    names
        .into_iter()
        .filter_map(|name| {
            let (digits, _) = name.split_once(".log")?;
            let all_digits = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
            let number: u32 = all_digits.then(|| digits.parse().ok())??;
            Some(number.saturating_add(1))
        })
        .max()
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::actions::testkit::{pod, seen};

    fn decision(pod_text: &str, code: i32, gates: RestartGates) -> RestartDecision {
        let spec = pod(pod_text).spec.unwrap();
        should_restart(&spec, &spec.containers[0], code, gates)
    }

    #[test]
    fn rules_then_own_policy_then_the_pods() {
        use RestartDecision::{No, Restart, RestartAll};
        for (pod_text, code, expected) in [
            ("c:a", 0, Restart),
            ("always c:a", 0, Restart),
            ("onfailure c:a", 0, No),
            ("onfailure c:a", 1, Restart),
            ("never c:a", 1, No),
            ("never c:a/policy=Always", 0, Restart),
            ("never c:a/policy=OnFailure", 0, No),
            ("never c:a/policy=OnFailure", 9, Restart),
            ("always c:a/policy=Never", 9, No),
            ("onfailure c:a/policy=Odd", 9, Restart),
            ("never c:a/policy=Never/rule=In:1,9:Restart", 9, Restart),
            ("never c:a/policy=Never/rule=In:1,9:Restart", 8, No),
            ("never c:a/policy=Never/rule=NotIn:1,9:Restart", 9, No),
            ("never c:a/policy=Never/rule=NotIn:1,9:Restart", 0, Restart),
            (
                "never c:a/policy=Never/rule=In:9:RestartAllContainers",
                9,
                RestartAll,
            ),
            // The first that matches wins, even if it says nothing we know.
            (
                "never c:a/policy=Never/rule=In:9:Odd/rule=In:9:Restart",
                9,
                No,
            ),
            (
                "never c:a/policy=Never/rule=In:9:RestartAllContainers/rule=In:9:Restart",
                9,
                RestartAll,
            ),
            ("never c:a/rule=In:9:Restart", 9, No),
        ] {
            let got = decision(pod_text, code, RestartGates::default());
            assert_eq!(got, expected, "{pod_text} {code}");
        }
    }

    #[test]
    fn gates_take_rules_away() {
        let none = RestartGates {
            rules: false,
            restart_all: false,
        };
        let no_restart_all = RestartGates {
            rules: true,
            restart_all: false,
        };
        let all = "never c:a/policy=OnFailure/rule=In:9:RestartAllContainers";
        assert_eq!(decision(all, 9, no_restart_all), RestartDecision::Restart);
        assert_eq!(decision(all, 9, none), RestartDecision::No);
        assert_eq!(
            decision("always c:a/policy=Never", 1, none),
            RestartDecision::Restart
        );
    }

    #[test]
    fn counts_go_on() {
        let pod = pod("c:a");
        let count = |sight: &str, logs| next_restart_count(&seen(&pod, sight).observed, "a", logs);
        assert_eq!(count("S0", None), 0);
        assert_eq!(count("S0", Some(4)), 4);
        assert_eq!(count("S0 a:exit1", Some(4)), 1);
        assert_eq!(count("S0 a:exit1 a:exit1", None), 2);
        assert_eq!(count("S0 a:exit1/n=3 a:exit1/n=7", None), 8);
        assert_eq!(count("S0 b:exit1", None), 0);
        // Whatever was only made leaves its number to the next.
        assert_eq!(count("S0 a:made", Some(4)), 0);
        assert_eq!(count("S0 a:exit1/n=2 a:made/n=3", None), 3);
        assert_eq!(count("S0 a:unknown/n=2 a:made/n=2", None), 3);
    }

    #[test]
    fn counts_from_logs() {
        let count = |names: &[&str]| count_from_log_names(names.iter().copied());
        assert_eq!(count(&[]), 0);
        assert_eq!(count(&["0.log"]), 1);
        assert_eq!(count(&["0.log", "3.log.20260101-000000.gz", "2.log"]), 4);
        assert_eq!(
            count(&[
                "x.log",
                "-1.log",
                "1.txt",
                ".log",
                "99999999999999999999.log"
            ]),
            0
        );
    }

    #[test]
    fn restart_of_all_is_told_by_what_is_there() {
        let pod = pod("never i:x/rule=In:42:RestartAllContainers c:a");
        let spec = pod.spec.clone().unwrap();
        let pending =
            |sight: &str, gates| restart_all_pending(&spec, &seen(&pod, sight).observed, gates);
        assert!(could_restart_all(&spec));
        assert!(pending("S0 x:exit42", RestartGates::default()));
        assert!(!pending("S0 x:exit41", RestartGates::default()));
        assert!(!pending("S0 x:run x:exit42", RestartGates::default()));
        assert!(!pending("S0 a:exit42", RestartGates::default()));
        let off = RestartGates {
            rules: true,
            restart_all: false,
        };
        assert!(!pending("S0 x:exit42", off));
    }
}
