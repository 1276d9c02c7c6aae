//! Which statuses are taken, and the small changes between them.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use krablet_pod::ContainerId;

use super::*;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn inputs<'a>(pod: &'a Pod, cached: Option<&'a PodStatus>, second: i64) -> AcceptInputs<'a> {
    AcceptInputs {
        pod,
        cached,
        mirror: None,
        now: at(second),
        terminate: false,
        gates: RestartGates::default(),
    }
}

fn generated(pod: &Pod, old: Option<&PodStatus>, sight: &str) -> PodStatus {
    generated_from(pod, old, &seen(pod, sight), &node())
}

fn transition(status: &PodStatus, type_: &str) -> i64 {
    condition(status, type_)
        .unwrap()
        .last_transition_time
        .as_ref()
        .unwrap()
        .0
        .as_second()
}

#[test]
fn times_follow_what_they_time() {
    let pod = pod("c:a");
    let first = accept(&inputs(&pod, None, 100), generated(&pod, None, "S0")).status;
    assert_eq!(first.start_time, Some(Time(at(100))));
    assert_eq!(transition(&first, "Ready"), 100);
    let new = generated(&pod, Some(&first), "S0 a:run");
    let second = accept(&inputs(&pod, Some(&first), 200), new).status;
    assert_eq!(second.start_time, Some(Time(at(100))));
    assert_eq!(transition(&second, "Ready"), 200);
    assert_eq!(transition(&second, "PodScheduled"), 100);
    let new = generated(&pod, Some(&second), "S0 a:run a:exit1");
    let third = accept(&inputs(&pod, Some(&second), 300), new).status;
    assert_eq!(transition(&third, "Ready"), 200);
}

#[test]
fn the_same_status_is_no_change_unless_the_pod_is_going() {
    let mut pod = pod("c:a");
    let first = accept(&inputs(&pod, None, 1), generated(&pod, None, "S0 a:run"));
    assert!(first.changed);
    let again = generated(&pod, Some(&first.status), "S0 a:run");
    let second = accept(&inputs(&pod, Some(&first.status), 2), again.clone());
    assert!(!second.changed);
    assert_eq!(second.status, first.status);
    let last = AcceptInputs {
        terminate: true,
        ..inputs(&pod, Some(&first.status), 2)
    };
    assert!(accept(&last, again.clone()).changed);
    pod.metadata.deletion_timestamp = Some(Time(at(5)));
    assert!(accept(&inputs(&pod, Some(&first.status), 2), again).changed);
}

#[test]
fn what_others_write_is_no_change() {
    let pod = pod("c:a");
    let first = accept(&inputs(&pod, None, 1), generated(&pod, None, "S0 a:run")).status;
    let mut again = first.clone();
    again
        .conditions
        .as_mut()
        .unwrap()
        .push(krablet_pod::api::PodCondition {
            type_: "x/y".into(),
            status: "True".into(),
            ..Default::default()
        });
    again.resource_claim_statuses = Some(vec![]);
    assert!(!accept(&inputs(&pod, Some(&first), 2), again.clone()).changed);
    again.conditions.as_mut().unwrap()[0].message = Some("new".into());
    assert!(accept(&inputs(&pod, Some(&first), 2), again).changed);
}

#[test]
fn the_base_is_cache_then_mirror_then_api() {
    let mut pod = pod("c:a");
    let started = |s: i64| PodStatus {
        start_time: Some(Time(at(s))),
        ..PodStatus::default()
    };
    let start = |inputs: &AcceptInputs<'_>| {
        let status = accept(inputs, PodStatus::default()).status;
        status.start_time.unwrap().0.as_second()
    };
    assert_eq!(start(&inputs(&pod, None, 9)), 9);
    pod.status = Some(started(1));
    assert_eq!(start(&inputs(&pod, None, 9)), 1);
    let mirror = started(2);
    let with_mirror = AcceptInputs {
        mirror: Some(&mirror),
        ..inputs(&pod, None, 9)
    };
    assert_eq!(start(&with_mirror), 2);
    let cached = started(3);
    assert_eq!(
        start(&AcceptInputs {
            cached: Some(&cached),
            ..with_mirror
        }),
        3
    );
}

#[test]
fn generation_never_goes_back() {
    let pod = pod("c:a");
    let of = |g: i64| PodStatus {
        observed_generation: Some(g),
        ..PodStatus::default()
    };
    let cached = of(7);
    let taken = accept(&inputs(&pod, Some(&cached), 1), of(5)).status;
    assert_eq!(taken.observed_generation, Some(7));
    assert_eq!(
        accept(&inputs(&pod, Some(&cached), 1), of(8))
            .status
            .observed_generation,
        Some(8)
    );
}

#[test]
fn ended_containers_do_not_come_back_unless_they_may() {
    const ALL: &str = "policy=Never/rule=In:42:RestartAllContainers";
    let refused = "terminated container a attempted illegal transition to non-terminated state";
    let refused_init =
        "terminated init container x attempted illegal transition to non-terminated state";
    let all = format!("never c:a c:b/{ALL}");
    let cases = [
        ("never c:a", "S0 a:exit1", "S0 a:run/n=1", refused),
        ("never c:a", "S0 a:exit0", "S0 a:run/n=1", refused),
        ("always c:a", "S0 a:exit0", "S0 a:run/n=1", ""),
        ("onfailure c:a", "S0 a:exit1", "S0 a:run/n=1", ""),
        ("onfailure c:a", "S0 a:exit0", "S0 a:run/n=1", refused),
        ("never c:a/policy=Always", "S0 a:exit1", "S0 a:run/n=1", ""),
        (
            "never c:a/policy=Never/rule=In:3:Restart",
            "S0 a:exit3",
            "S0 a:run/n=1",
            "",
        ),
        (
            "never c:a/policy=Never/rule=In:3:Restart",
            "S0 a:exit4",
            "S0 a:run/n=1",
            refused,
        ),
        ("never c:a", "S0 a:exit1", "S0 a:exit2/n=1", ""),
        (&all, "S0 a:exit1", "S0 a:run/n=1", ""),
        ("never i:x c:a", "S0 x:exit1", "S0 x:run/n=1", refused_init),
        ("onfailure i:x c:a", "S0 x:exit1", "S0 x:run/n=1", ""),
        (
            "never i:x/policy=OnFailure c:a",
            "S0 x:exit1",
            "S0 x:run/n=1",
            "",
        ),
        ("never i:s* c:a", "S0 s:exit0", "S0 s:run/n=1", ""),
    ];
    check_all(cases.map(|(pod_text, before, then, expected)| {
        let pod = pod(pod_text);
        let old = after(&pod, before);
        let new = generated(&pod, Some(&old), then);
        let accepted = accept(&inputs(&pod, Some(&old), 1), new);
        let why = accepted.refused.unwrap_or_default();
        assert_eq!(accepted.changed, why.is_empty());
        (format!("{pod_text} | {before} > {then}"), expected, why)
    }));
}

#[test]
fn a_sandbox_that_is_initialised_anew_does_not_take_back_that_it_once_was() {
    let cases = [
        ("never i:x c:a", "S0 x:exit0", "S0 x:run/n=1", "x=exit0/0"),
        (
            "onfailure i:x c:a",
            "S0 x:exit0",
            "S1 x:run/n=1",
            "x=exit0/0",
        ),
        (
            "onfailure i:x c:a",
            "S0 x:exit0",
            "S1 x:made/n=1",
            "x=exit0/0",
        ),
        (
            "onfailure i:x c:a",
            "S0 x:exit0",
            "S1 x:exit0/n=1",
            "x=exit0/1",
        ),
        (
            "onfailure i:x c:a",
            "S0 x:exit0",
            "S1 x:exit3/n=1",
            "x=exit3/1",
        ),
        ("always i:x c:a", "S0 x:exit0", "S1 x:run/n=1", "x=run/1"),
        ("never i:s* c:a", "S0 s:exit0", "S1 s:run/n=1", "s=run/1"),
    ];
    check_all(cases.map(|(pod_text, before, then, expected)| {
        let pod = pod(pod_text);
        let old = after(&pod, before);
        let mut status = old;
        // Said again and again it is the same.
        for _ in 0..3 {
            let new = generated(&pod, Some(&status), then);
            let accepted = accept(&inputs(&pod, Some(&status), 1), new);
            assert_eq!(accepted.refused, None);
            status = accepted.status;
        }
        let of = |c: &ContainerStatus| {
            let state = c.state.clone().unwrap_or_default();
            let state = match (state.terminated, state.running) {
                (Some(end), _) => format!("exit{}", end.exit_code),
                (_, Some(_)) => "run".to_owned(),
                _ => "wait".to_owned(),
            };
            format!("{}={state}/{}", c.name, c.restart_count)
        };
        let said: Vec<String> = status
            .init_container_statuses
            .iter()
            .flatten()
            .map(of)
            .collect();
        (
            format!("{pod_text} | {before} > {then}"),
            expected,
            said.join(" "),
        )
    }));
}

#[test]
fn statuses_of_another_spec_are_refused() {
    let old = after(&pod("never i:x c:a"), "S0 x:run");
    let other = pod("never i:y c:a");
    let accepted = accept(&inputs(&other, Some(&old), 1), PodStatus::default());
    let why = "found mismatch between pod spec and status, container: x";
    assert_eq!(accepted.refused.as_deref(), Some(why));
    assert_eq!(accepted.status, old);
}

#[test]
fn long_messages_are_cut_and_lists_ordered() {
    let pod = pod("i:y i:x c:b c:a");
    let mut status = generated(&pod, None, "S0 a:exit1 b:run x:exit0 y:exit0");
    let list = status.container_statuses.as_mut().unwrap();
    let state = list[0].state.as_mut().unwrap().terminated.as_mut().unwrap();
    state.message = Some("ä".repeat(4000));
    state.finished_at = Some(Time("1970-01-01T00:00:05.9Z".parse().unwrap()));
    list.reverse();
    status.init_container_statuses.as_mut().unwrap().reverse();
    let accepted = accept(&inputs(&pod, None, 1), status).status;
    let names = |list: &Option<Vec<ContainerStatus>>| {
        let names: Vec<&str> = list.iter().flatten().map(|c| c.name.as_str()).collect();
        names.join(" ")
    };
    assert_eq!(names(&accepted.container_statuses), "a b");
    assert_eq!(names(&accepted.init_container_statuses), "y x");
    let state = accepted.container_statuses.unwrap()[0]
        .state
        .clone()
        .unwrap()
        .terminated
        .unwrap();
    // 12 KiB shared by four containers, cut between characters.
    assert_eq!(state.message.unwrap().len(), 3072);
    assert_eq!(state.finished_at, Some(Time(at(5))));
}

#[test]
fn readiness_between_syncs() {
    let pod = pod("i:s*/ready c:a/ready");
    let status = after(&pod, "S0 s:run/ready=ok a:run/ready=ok");
    assert_eq!(render(&status), "Running NICR s=run+ a=run+");
    let id = |text: &str| ContainerId::from(text);
    let less = with_readiness(&status, &pod, &id("a-0"), false).unwrap();
    assert_eq!(render(&less), "Running NI s=run+ a=run~");
    let more = with_readiness(&less, &pod, &id("a-0"), true).unwrap();
    assert_eq!(render(&more), render(&status));
    let less = with_readiness(&status, &pod, &id("s-0"), false).unwrap();
    assert_eq!(render(&less), "Running NI s=run~ a=run+");
    assert_eq!(with_readiness(&status, &pod, &id("a-0"), true), None);
    assert_eq!(with_readiness(&status, &pod, &id("b-0"), true), None);
}

#[test]
fn started_between_syncs() {
    let pod = pod("c:a/startup");
    let status = after(&pod, "S0 a:run");
    let started = with_started(&status, &"a-0".into(), true).unwrap();
    assert_eq!(render(&started), "Running NI a=run~");
    assert_eq!(with_started(&started, &"a-0".into(), true), None);
    assert_eq!(with_started(&started, &"a-1".into(), true), None);
}

#[test]
fn the_last_word() {
    let cases = [
        (
            "c:a",
            "S0 a:run",
            "Failed NI a=end137(ContainerStatusUnknown)",
        ),
        ("c:a", "S0 a:exit0", "Failed NI a=end0(Completed)"),
        ("never c:a", "S0 a:exit0", "Succeeded NI a=end0(Completed)"),
        ("c:a", "S0", "Failed NI a=end137(ContainerStatusUnknown)"),
        (
            "static c:a",
            "S0 a:run",
            "Running NI a=end137(ContainerStatusUnknown)",
        ),
        (
            "i:x c:a",
            "S0",
            "Failed N x=end137(ContainerStatusUnknown) a=wait(PodInitializing)",
        ),
        (
            "i:x i:y c:a",
            "S0 x:run",
            "Failed N x=end137(ContainerStatusUnknown) y=wait(PodInitializing) a=wait(PodInitializing)",
        ),
        (
            "i:x i:y c:a",
            "S0 y:exit1 x:exit0",
            "Failed N x=end0(Completed)+ y=end1(Error) a=wait(PodInitializing)",
        ),
        (
            "i:x c:a",
            "S0 x:exit0",
            "Failed NI x=end0(Completed)+ a=end137(ContainerStatusUnknown)",
        ),
        (
            "i:s* c:a",
            "S0 s:run",
            "Failed NI s=end137(ContainerStatusUnknown) a=end137(ContainerStatusUnknown)",
        ),
        (
            "i:s*/startup c:a",
            "S0 s:run",
            "Failed N s=end137(ContainerStatusUnknown) a=wait(PodInitializing)",
        ),
        (
            "i:x c:a c:b",
            "S0 x:exit0 a:run",
            "Failed NI x=end0(Completed)+ a=end137(ContainerStatusUnknown) b=end137(ContainerStatusUnknown)",
        ),
    ];
    check_all(cases.map(|(pod_text, sights, expected)| {
        let pod = pod(pod_text);
        let got = render(&terminate(&after(&pod, sights), &pod));
        (format!("{pod_text} | {sights}"), expected, got)
    }));
}
