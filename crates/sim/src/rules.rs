//! What a spec says of the ends of its containers. Read here once more, so that neither the laws nor
//! the API server have to take the agent's word for it.

use krablet_pod::api::{Container, ContainerRestartRule, PodSpec};
use krablet_pod::containers;

const RESTART_ALL: &str = "RestartAllContainers";

/// What follows the end of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Follows {
    Nothing,
    /// Another instance of it.
    Restart,
    /// Another round of all containers.
    RestartAll,
}

/// Its rules in their order, then its own policy, then the pod's.
pub(crate) fn after_exit(spec: &PodSpec, container: &Container, code: i32) -> Follows {
    let mut rules = container.restart_policy_rules.iter().flatten();
    let rule = rules.find(|rule| speaks_of(rule, code));
    match rule.map(|rule| rule.action.as_str()) {
        Some("Restart") => return Follows::Restart,
        Some(RESTART_ALL) => return Follows::RestartAll,
        _ => {}
    }
    match policy(spec, container) {
        Some("Never") => Follows::Nothing,
        Some("OnFailure") if code == 0 => Follows::Nothing,
        _ => Follows::Restart,
    }
}

/// The container's own, else the pod's.
fn policy<'a>(spec: &'a PodSpec, container: &'a Container) -> Option<&'a str> {
    let own = container.restart_policy.as_deref();
    own.or(spec.restart_policy.as_deref())
}

/// Whatever its rules say. Ephemeral ones have no policy.
pub(crate) fn is_never_restarted(spec: &PodSpec, name: &str) -> bool {
    containers::find(spec, name).is_some_and(|c| policy(spec, c.container) == Some("Never"))
}

fn speaks_of(rule: &ContainerRestartRule, code: i32) -> bool {
    rule.exit_codes.as_ref().is_some_and(|codes| {
        let listed = codes.values.iter().flatten().any(|value| *value == code);
        listed == (codes.operator == "In")
    })
}

/// Some end of some container leads to another round of all.
pub(crate) fn may_restart_all(spec: &PodSpec) -> bool {
    containers::all(spec).any(|c| {
        let mut rules = c.container.restart_policy_rules.iter().flatten();
        rules.any(|rule| rule.action == RESTART_ALL)
    })
}

/// That the container of this name calls for another round if it ends so.
pub(crate) fn restarts_all(spec: &PodSpec, name: &str, code: i32) -> bool {
    containers::find(spec, name)
        .is_some_and(|c| after_exit(spec, c.container, code) == Follows::RestartAll)
}

pub(crate) fn is_ephemeral(spec: &PodSpec, name: &str) -> bool {
    let mut all = containers::ephemeral_containers(spec).iter();
    all.any(|c| c.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(policy: &str, own: serde_json::Value) -> PodSpec {
        let mut container = serde_json::json!({"name": "a"});
        if let (Some(container), serde_json::Value::Object(own)) = (container.as_object_mut(), own)
        {
            container.extend(own);
        }
        let spec = serde_json::json!({"restartPolicy": policy, "containers": [container]});
        serde_json::from_value(spec).unwrap()
    }

    #[test]
    fn rules_then_own_policy_then_the_pods() {
        use Follows::{Nothing, Restart, RestartAll};
        let rules = serde_json::json!({"restartPolicy": "OnFailure", "restartPolicyRules": [
            {"action": "Restart", "exitCodes": {"operator": "In", "values": [0, 42]}},
            {"action": RESTART_ALL, "exitCodes": {"operator": "NotIn", "values": [1]}},
        ]});
        let never = serde_json::json!({"restartPolicy": "Never"});
        let none = serde_json::json!({});
        for (policy, own, code, expected) in [
            ("Always", &none, 0, Restart),
            ("OnFailure", &none, 0, Nothing),
            ("OnFailure", &none, 1, Restart),
            ("Never", &none, 1, Nothing),
            ("Always", &never, 1, Nothing),
            ("Never", &rules, 42, Restart),
            ("Never", &rules, 0, Restart),
            ("Never", &rules, 2, RestartAll),
            ("Never", &rules, 1, Restart),
        ] {
            let spec = spec(policy, own.clone());
            let got = after_exit(&spec, &spec.containers[0], code);
            assert_eq!(got, expected, "{policy} {own} {code}");
            assert_eq!(may_restart_all(&spec), own == &rules);
            let never = own == &never || (own == &none && policy == "Never");
            assert_eq!(is_never_restarted(&spec, "a"), never);
            assert_eq!(restarts_all(&spec, "a", code), expected == RestartAll);
        }
    }
}
