//! One line per rule: a pod, what is seen of it, what is done.

use krablet_pod::api::Container;
use krablet_pod::containers;

use super::testkit::{check_all, pod, seen, table};
use super::*;

mod convergence;

fn names<'a>(list: &[Container], indexes: impl IntoIterator<Item = &'a usize>) -> String {
    let names: Vec<&str> = indexes
        .into_iter()
        .map(|i| list[*i].name.as_str())
        .collect();
    names.join(",")
}

pub(super) fn render(pod: &Pod, actions: &PodActions) -> String {
    let spec = pod.spec.as_ref().unwrap();
    let ephemeral: Vec<Container> = containers::ephemeral_containers(spec)
        .iter()
        .map(containers::ephemeral_as_container)
        .collect();
    let mut parts = Vec::new();
    if actions.kill_pod {
        parts.push("killpod".to_owned());
    }
    for k in &actions.to_kill {
        let mark = if k.mark { "^" } else { "" };
        parts.push(format!("kill{mark}:{}({:?})", k.id, k.reason));
    }
    for r in &actions.to_remove {
        let bang = if r.kill { "!" } else { "" };
        parts.push(format!("rm{bang}:{}", r.id));
    }
    for id in &actions.init_to_trim {
        parts.push(format!("trim:{id}"));
    }
    if actions.create_sandbox {
        parts.push(format!("sandbox{}", actions.attempt));
    }
    let lists = [
        ("eph", &ephemeral[..], &actions.ephemeral_to_start),
        (
            "init",
            containers::init_containers(spec),
            &actions.init_to_start,
        ),
        ("start", &spec.containers[..], &actions.regular_to_start),
    ];
    for (what, list, indexes) in lists {
        if !indexes.is_empty() {
            parts.push(format!("{what}:{}", names(list, indexes)));
        }
    }
    if parts.is_empty() {
        "-".into()
    } else {
        parts.join(" ")
    }
}

fn decide(pod_text: &str, seen_text: &str, rules: bool, restart_all: bool) -> String {
    let pod = pod(pod_text);
    let seen = seen(&pod, seen_text);
    let actions = compute_pod_actions(&ActionInputs {
        pod: &pod,
        observed: &seen.observed,
        verdicts: &seen.verdicts,
        rules_enabled: rules,
        restart_all_enabled: restart_all,
        actuated: None,
    });
    render(&pod, &actions)
}

fn check(cases: &str) {
    check_all(table(cases).map(|(pod_text, seen_text, expected)| {
        let got = decide(pod_text, seen_text, true, true);
        (format!("{pod_text} | {seen_text}"), expected, got)
    }));
}

#[test]
fn sandboxes() {
    check(
        r"
        c:a |  | killpod sandbox0 start:a
        c:a c:b |  | killpod sandbox0 start:a,b
        i:x c:a |  | killpod sandbox0 init:x
        i:x i:y* c:a e:d |  | killpod sandbox0 init:x
        c:a | S0 | start:a
        c:a | S0 a:run | -
        c:a | S0! | killpod sandbox1 start:a
        c:a | S3! | killpod sandbox4 start:a
        c:a | S0- | killpod sandbox1 start:a
        c:a | S1 S0 | killpod sandbox2 start:a
        c:a | S1 S0! a:run | -
        c:a | S1! S0 a:run | killpod sandbox2 start:a
        host c:a | S0h a:run | -
        host c:a | S0 a:run | killpod sandbox1 start:a
        c:a | S0h a:run | killpod sandbox1 start:a
        always c:a c:b | S0! a:exit0 b:exit1 | killpod sandbox1 start:a,b
        onfailure c:a c:b | S0! a:exit0 b:exit1 | killpod sandbox1 start:b
        onfailure c:a c:b | S0! a:exit0 b:exit0 | killpod
        onfailure i:x c:a | S0! a:exit0 x:exit0 | killpod
        onfailure i:x c:a | S0! x:exit0 | killpod trim:x-0 sandbox1 init:x
        onfailure i:x c:a c:b | S0! a:exit0 b:run x:exit0 | killpod trim:x-0 sandbox1 init:x
        never c:a | S0! | killpod sandbox1 start:a
        never c:a | S0! a:exit1 | killpod
        never c:a | S0! a:run | killpod
        never c:a | a:exit1 | killpod sandbox0 start:a
        never i:x c:a | S0! x:exit0 | killpod
        never c:a/policy=Always | S0! a:exit1 | killpod
        always c:a/policy=OnFailure c:b | S0! a:exit0 b:exit0 | killpod sandbox1 start:b
        onfailure c:a/policy=Always c:b | S0! a:exit0 b:exit0 | killpod sandbox1 start:a
        always c:a/policy=Never c:b | S0! a:exit1 b:exit1 | killpod sandbox1 start:b
        always c:a/policy=Never | S0! a:exit1 | killpod
        always i:x i:y* c:a | S0! a:run y:run x:exit0 | killpod trim:x-0 sandbox1 init:x
        always i:x c:a | S0! x:made | killpod rm:x-0 sandbox1 init:x
        always c:a | S0! a:made | killpod rm:a-0 sandbox1 start:a
        always c:a e:d | S0! | killpod sandbox1 start:a
        ",
    );
}

#[test]
fn regular_containers() {
    check(
        r"
        always c:a c:b | S0 a:run | start:b
        always c:a | S0 a:exit0 | start:a
        c:a | S0 a:exit0 | start:a
        always c:a | S0 a:exit1 | start:a
        onfailure c:a c:b | S0 a:exit1 b:run | start:a
        onfailure c:a c:b | S0 a:exit0 b:run | -
        onfailure c:a | S0 a:exit0 | killpod
        never c:a c:b | S0 a:exit1 b:run | -
        never c:a c:b | S0 a:exit1 b:exit0 | killpod
        never c:a c:b | S0 b:run | start:a
        never c:a | S0 a:made | rm:a-0 start:a
        always c:a | S0 a:made | rm:a-0 start:a
        always c:a | S0 a:made a:exit1 | rm:a-1 start:a
        always c:a | S0 a:exit1 a:made | rm:a-0 start:a
        onfailure c:a | S0 a:made a:exit0 | rm:a-1 start:a
        onfailure c:a | S0 a:exit0 a:made | killpod
        always c:a | S0 a:run a:made | -
        always c:a | S0 a:made a:run | -
        never c:a | S0 a:huh | kill:a-0(Unknown) start:a
        always c:a c:b | S0 a:huh b:run | kill:a-0(Unknown) start:a
        always c:a | S0 a:exit1 a:huh | kill:a-0(Unknown) start:a
        always c:a | S0 a:run a:huh | -
        always c:a | S0 a:exit1 a:run | -
        always c:a | S0 a:run a:run | kill:a-0(Duplicate)
        always c:a | S0 a:run/old a:run | kill:a-1(SpecChanged) kill:a-0(Duplicate) start:a
        always c:a | S0 a:exit1 a:exit1 a:exit1 | start:a
        always c:a | S1 S0! a:exit1/sb=0 | start:a
        ",
    );
}

#[test]
fn changed_definitions() {
    check(
        r"
        always c:a | S0 a:run/old | kill:a-0(SpecChanged) start:a
        never c:a | S0 a:run/old | kill^:a-0(SpecChanged) start:a
        never c:a/policy=Never | S0 a:run/old | kill^:a-0(SpecChanged) start:a
        always c:a | S0 a:run/nohash | kill:a-0(SpecChanged) start:a
        never c:a c:b | S0 a:exit0/old b:run | -
        onfailure c:a | S0 a:run/old | kill^:a-0(SpecChanged) start:a
        never c:a/policy=Always | S0 a:run/old | kill:a-0(SpecChanged) start:a
        # Stopped to be restarted, and nothing came of it yet: its end is not final.
        never c:a c:b | S0 a:exit0/way b:run | start:a
        onfailure c:a | S0 a:exit0/way | start:a
        onfailure c:a | S0! a:exit0/way | killpod sandbox1 start:a
        onfailure c:a | S0 a:exit0 a:exit0/way | killpod
        onfailure c:a | S0 a:made a:exit0/way | rm:a-1 start:a
        deleted onfailure c:a | S0 a:exit0/way | killpod
        always c:a c:b | S0 a:run/old b:run | kill:a-0(SpecChanged) start:a
        always c:a/live | S0 a:run/old/live=fail | kill:a-0(SpecChanged) start:a
        always i:s* c:a | S0 s:run/old a:run | kill:s-0(SpecChanged) init:s
        never i:s* c:a | S0 s:run/old a:run | kill:s-0(SpecChanged) init:s
        always i:s*/startup c:a | S0 s:run/old a:run | -
        always i:x c:a | S0 x:run/old | -
        always i:s* i:t* c:a | S0 s:run/old | kill:s-0(SpecChanged) init:s,t
        ",
    );
}

#[test]
fn failed_probes() {
    check(
        r"
        always c:a/live | S0 a:run/live=fail | kill:a-0(LivenessProbe) start:a
        onfailure c:a/live | S0 a:run/live=fail | kill^:a-0(LivenessProbe) start:a
        never c:a/live c:b | S0 a:run/live=fail b:run | kill:a-0(LivenessProbe)
        never c:a/live | S0 a:run/live=fail | killpod
        always c:a/startup | S0 a:run/startup=fail | kill:a-0(StartupProbe) start:a
        never c:a/startup c:b | S0 a:run/startup=fail b:run | kill:a-0(StartupProbe)
        always c:a/startup/live | S0 a:run/startup=fail/live=fail | kill:a-0(LivenessProbe) start:a
        always c:a/live | S0 a:run/live=ok | -
        always c:a/live | S0 a:run/live=unknown | -
        always c:a/ready | S0 a:run/ready=fail | -
        always c:a/live/policy=Never c:b | S0 a:run/live=fail b:run | kill:a-0(LivenessProbe)
        never c:a/live/policy=Always | S0 a:run/live=fail | kill:a-0(LivenessProbe) start:a
        never c:a/live/policy=OnFailure | S0 a:run/live=fail | kill^:a-0(LivenessProbe) start:a
        # Rules ask for exit codes, and there is none yet.
        never c:a/live/policy=Never/rule=NotIn:0:Restart c:b | S0 a:run/live=fail b:run | kill:a-0(LivenessProbe)
        # A verdict belongs to its instance.
        always c:a/live | S0 a:run a:exit1/live=fail | -
        ",
    );
}

#[test]
fn restart_rules() {
    check(
        r"
        never c:a/policy=Never/rule=In:42:Restart | S0 a:exit42 | start:a
        never c:a/policy=Never/rule=In:42:Restart | S0 a:exit1 | killpod
        never c:a/policy=Never/rule=NotIn:1,2:Restart | S0 a:exit3 | start:a
        never c:a/policy=Never/rule=NotIn:1,2:Restart | S0 a:exit2 | killpod
        never c:a/policy=OnFailure | S0 a:exit1 | start:a
        never c:a/policy=OnFailure | S0 a:exit0 | killpod
        never c:a/policy=Always | S0 a:exit0 | start:a
        always c:a/policy=Never | S0 a:exit1 | killpod
        always c:a/policy=OnFailure | S0 a:exit0 | killpod
        # Rules of a container without a policy of its own do not count for a plain restart.
        never c:a/rule=In:42:Restart | S0 a:exit42 | killpod
        never c:a/policy=Never/rule=Like:42:Restart | S0 a:exit42 | killpod
        never c:a/policy=Never/rule=In:42:Odd | S0 a:exit42 | killpod
        never i:x/policy=Always c:a | S0 x:exit1 | init:x
        never i:x/policy=OnFailure c:a | S0 x:exit1 | init:x
        always i:x/policy=Never c:a | S0 x:exit1 | killpod
        never i:x/policy=Never/rule=In:7:Restart c:a | S0 x:exit7 | init:x
        never i:x/policy=OnFailure c:a | S0 x:huh | kill:x-0(Unknown) init:x
        ",
    );
    let off = |pod: &str, seen: &str| decide(pod, seen, false, false);
    assert_eq!(off("never c:a/policy=Always", "S0 a:exit1"), "killpod");
    assert_eq!(off("always c:a/policy=Never", "S0 a:exit1"), "start:a");
    assert_eq!(
        off("always c:a/live/policy=Never", "S0 a:run/live=fail"),
        "kill:a-0(LivenessProbe) start:a"
    );
    assert_eq!(
        off("never i:x/policy=OnFailure c:a", "S0 x:exit1"),
        "killpod"
    );
    assert_eq!(
        off("always c:a/policy=OnFailure", "S0! a:exit0"),
        "killpod sandbox1 start:a"
    );
}

#[test]
fn restart_of_all_containers() {
    const RULE: &str = "policy=Never/rule=In:42:RestartAllContainers";
    let cases = r"
        never c:a/{} c:b | S0 a:exit42 b:run | rm!:b-0 rm:a-0
        always i:x i:s* c:a/{} c:b | S0 a:exit42 b:exit1 s:run x:exit0 | rm:b-0 rm:x-0 rm!:s-0 rm:a-0
        always c:a/{} c:b | S0 a:exit42 a:exit1 b:run | rm:a-0 rm!:b-0 rm:a-1
        always i:x/{} c:a | S0 x:exit42 | rm:x-0
        never i:x i:y/{} c:a | S0 y:exit42 x:exit0 | rm:x-0 rm:y-0
        never c:a/{} c:b | S0 a:exit42 | rm:a-0
        never c:a/{} c:b | S0 | start:a,b
        never c:a/{} c:b | S0 a:exit1 b:run | -
        never c:a/{} c:b | S0 a:run b:exit42 | -
        # The sandbox comes first; the trigger stays until then.
        always c:a/{} c:b | S0! a:exit42 b:exit1 | killpod sandbox1
        never i:x/{} c:a | S0! x:exit42 a:exit0 | killpod sandbox1
        never i:x/{} c:a | S1 S0! x:exit42/sb=0 a:exit0/sb=0 | rm:a-0 rm:x-0
        never deleted c:a/{} c:b | S0 a:exit42 b:run | -
        always c:a/{} | S0 a:run a:exit42 | -
        always c:a/{} c:b | S0 a:exit42 b:made b:exit0 | rm!:b-1 rm:b-0 rm:a-0
        always c:a/{} c:b | S0 a:exit42 b:huh | rm!:b-0 rm:a-0
    ";
    check_all(table(cases).map(|(pod_text, seen_text, expected)| {
        let pod_text = pod_text.replace("{}", RULE);
        let got = decide(&pod_text, seen_text, true, true);
        (format!("{pod_text} | {seen_text}"), expected, got)
    }));
    let pod_text = "never c:a/{} c:b".replace("{}", RULE);
    assert_eq!(decide(&pod_text, "S0 a:exit42 b:run", true, false), "-");
}

#[test]
fn init_containers() {
    check(
        r"
        i:x i:y c:a | S0 | init:x
        i:x i:y c:a | S0 x:run | -
        i:x i:y c:a | S0 x:exit0 | init:y
        i:x i:y c:a | S0 y:run x:exit0 | -
        # A create call that took effect too late: nobody will start what it made.
        i:x c:a | S0 x:made x:exit0 | start:a
        i:x i:y c:a | S0 y:exit0 x:exit0 | start:a
        # The trace of the last one is enough.
        i:x i:y c:a | S0 y:exit0 | start:a
        i:x i:y i:z c:a | S0 y:exit0 | init:z
        i:x i:y c:a | S0 a:run | -
        i:x i:y c:a c:b | S0 a:run | start:b
        i:x c:a | S0 a:made | rm:a-0 start:a
        # An exited one may be of before a reboot.
        always i:x c:a | S1 a:exit1/sb=0 | init:x
        always i:x c:a | S0 a:exit1 | init:x
        always i:x c:a | S0 a:exit1 x:exit0 | start:a
        # Nothing of an earlier sandbox tells of this one.
        always i:x c:a | S1 S0! x:exit0/sb=0 | init:x
        always i:x c:a | S1 S0! a:made/sb=0 | init:x
        always i:x c:a | S1 S0! x:exit0 x:exit0/sb=0 | trim:x-0 start:a
        always i:x c:a | S0 x:exit1 | init:x
        onfailure i:x c:a | S0 x:exit1 | init:x
        never i:x c:a | S0 x:exit1 | killpod
        always i:x i:y c:a | S0 y:exit1 x:exit0 | init:y
        never i:x i:y c:a | S0 y:exit1 x:exit0 | killpod
        always i:x c:a | S0 x:made | rm:x-0 init:x
        never i:x c:a | S0 x:made | rm:x-0 init:x
        always i:x c:a | S0 x:huh | kill:x-0(Unknown) init:x
        never i:x c:a | S0 x:huh | killpod
        always i:x c:a | S0 x:exit1 x:exit1 x:exit1 | trim:x-1 trim:x-0 init:x
        always i:x c:a | S0 x:run x:exit1 x:exit1 | trim:x-0
        always i:x c:a | S0 a:run x:exit0 x:exit1 | trim:x-0
        always i:x c:a | S0 a:run x:run | -
        always i:x i:y c:a | S0 x:exit0 y:exit1 x:exit1 | trim:x-0 init:y
        ",
    );
}

#[test]
fn sidecars() {
    check(
        r"
        i:s* c:a | S0 | init:s
        i:s* c:a | S0 s:run | start:a
        i:s* i:x c:a | S0 s:run | init:x
        i:s* i:t* c:a | S0 s:run | init:t
        i:s* i:t* c:a | S0 t:run s:run | start:a
        i:s*/startup i:x c:a | S0 s:run | -
        i:s*/startup i:x c:a | S0 s:run/startup=unknown | -
        i:s*/startup i:x c:a | S0 s:run/startup=ok | init:x
        i:s*/startup c:a | S0 s:run/startup=ok | start:a
        i:s*/startup c:a | S0 s:run/startup=fail | kill:s-0(StartupProbe) init:s
        never i:s*/startup c:a | S0 s:run/startup=fail | kill:s-0(StartupProbe) init:s
        i:s*/live i:x c:a | S0 s:run | init:x
        i:s*/live c:a | S0 s:run/live=fail a:run | kill:s-0(LivenessProbe) init:s
        i:s*/live i:x c:a | S0 s:run/live=fail | kill:s-0(LivenessProbe) init:s,x
        i:s*/live c:a | S0 s:run/live=fail | kill:s-0(LivenessProbe) init:s start:a
        i:s* i:x c:a | S0 s:exit0 | init:s
        i:s* i:x c:a | S0 x:run s:exit1 | init:s
        i:s* i:x c:a | S0 x:exit0 s:exit1 | init:s start:a
        never i:s* c:a | S0 a:run s:exit1 | init:s
        i:s* c:a | S0 a:run | init:s
        i:x i:s* i:t* c:a | S0 a:run t:run | init:s
        i:s* i:x i:t* c:a | S0 a:run t:exit0 s:exit0 | init:s,t
        i:s* c:a | S0 s:made | rm:s-0 init:s
        i:s* c:a | S0 a:run s:made | rm:s-0 init:s
        i:s* c:a | S0 s:huh a:run | kill:s-0(Unknown) init:s
        never i:s* c:a | S0 s:huh a:run | kill:s-0(Unknown) init:s
        # Sidecars alone do not keep the pod.
        never i:s* c:a | S0 a:exit0 s:run | killpod
        never i:s* c:a | S0 a:exit0 s:exit1 | init:s
        onfailure i:s* c:a | S0 a:exit0 s:run | killpod
        onfailure i:s* c:a | S0 a:exit1 s:run | start:a
        always i:s* c:a | S0 a:run s:run s:exit1 s:exit1 | trim:s-0
        always i:s* c:a | S0 a:run s:exit0 s:run | -
        always i:s* c:a | S0 a:run s:run s:run | kill:s-0(Duplicate)
        never i:s* i:x c:a | S0 x:exit1 s:run | killpod
        never i:s*/policy=Always c:a | S0 s:exit3 | init:s
        ",
    );
}

#[test]
fn ephemeral_containers() {
    check(
        r"
        c:a e:d | S0 a:run | eph:d
        c:a e:d | S0 a:run d:run | -
        c:a e:d | S0 a:run d:exit1 | -
        c:a e:d | S0 a:run d:made | -
        c:a e:d e:f | S0 a:run d:exit0 | eph:f
        i:x c:a e:d | S0 x:run | eph:d
        i:x c:a e:d | S0 | eph:d init:x
        never c:a e:d | S0 a:exit0 | killpod
        never c:a e:d | S0 a:exit0 d:run | killpod
        ",
    );
}

#[test]
fn deleted_pods_start_nothing() {
    check(
        r"
        deleted c:a |  | killpod
        deleted c:a | S0 a:run | -
        deleted c:a c:b | S0 a:run b:exit1 | -
        deleted c:a | S0 a:exit1 | killpod
        deleted i:x c:a | S0 | -
        deleted i:x c:a | S0 x:exit1 | killpod
        deleted i:s* c:a | S0 a:run | -
        deleted c:a e:d | S0 a:run | -
        deleted c:a/live c:b | S0 a:run/live=fail b:run | kill:a-0(LivenessProbe)
        deleted c:a c:b | S0 a:run/old b:run | kill:a-0(SpecChanged)
        deleted c:a | S0! a:run | killpod
        deleted c:a | S0 a:made | killpod
        ",
    );
}

#[test]
fn kill_messages_are_those_people_search_for() {
    let kills = |pod_text: &str, seen_text: &str| {
        let pod = pod(pod_text);
        let seen = seen(&pod, seen_text);
        let actions = compute_pod_actions(&ActionInputs {
            pod: &pod,
            observed: &seen.observed,
            verdicts: &seen.verdicts,
            rules_enabled: true,
            restart_all_enabled: true,
            actuated: None,
        });
        let texts: Vec<String> = actions.to_kill.into_iter().map(|k| k.message).collect();
        texts.join("; ")
    };
    let cases = [
        (
            "c:a",
            "S0 a:run/old",
            "Container a definition changed, will be restarted",
        ),
        (
            "c:a",
            "S0 a:run/live=fail",
            "Container a failed liveness probe, will be restarted",
        ),
        (
            "never c:a c:b",
            "S0 a:run/live=fail b:run",
            "Container a failed liveness probe",
        ),
        (
            "c:a",
            "S0 a:run/startup=fail",
            "Container a failed startup probe, will be restarted",
        ),
        (
            "c:a",
            "S0 a:huh",
            "Container is in \"unknown\" state, try killing it before restart",
        ),
        (
            "i:s*/startup c:a",
            "S0 s:run/startup=fail",
            "Init container s failed startup probe",
        ),
        (
            "i:s*/live c:a",
            "S0 s:run/live=fail a:run",
            "Init container s failed liveness probe",
        ),
        (
            "i:s* c:a",
            "S0 s:run/old a:run",
            "Init container s definition changed",
        ),
        (
            "i:x c:a",
            "S0 x:huh",
            "Init container is in \"unknown\" state, try killing it before restart",
        ),
    ];
    check_all(cases.map(|(p, s, expected)| (format!("{p} | {s}"), expected, kills(p, s))));
}

#[test]
fn a_pod_without_spec_needs_nothing() {
    let pod = Pod::default();
    let seen = seen(&super::testkit::pod("c:a"), "S0");
    let actions = compute_pod_actions(&ActionInputs {
        pod: &pod,
        observed: &seen.observed,
        verdicts: &seen.verdicts,
        rules_enabled: true,
        restart_all_enabled: true,
        actuated: None,
    });
    assert_eq!(actions, PodActions::default());
    assert!(actions.is_done(&seen.observed));
}
