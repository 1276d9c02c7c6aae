//! One line per rule: a pod, what was seen of it (one sight after the other, parted by `>`), and
//! the last status: phase, true conditions, containers.

use krablet_pod::api::{ContainerState, ContainerStateTerminated};

use super::*;
use crate::actions::testkit::{Seen, check_all, pod, seen, table};

mod accepting;
mod api;
mod details;
mod ends;
mod steady;

/// `Succeeded`, `R`eady and so on: the first letters of the true conditions.
fn letters(status: &PodStatus) -> String {
    let known = [
        ("PodReadyToStartContainers", 'N'),
        ("Initialized", 'I'),
        ("ContainersReady", 'C'),
        ("Ready", 'R'),
        ("AllContainersRestarting", 'A'),
    ];
    let is_true = |t: &str| condition(status, t).is_some_and(|c| c.status == "True");
    known
        .iter()
        .filter(|(t, _)| is_true(t))
        .map(|(_, letter)| *letter)
        .collect()
}

fn end(end: &ContainerStateTerminated) -> String {
    let reason = end.reason.as_deref().unwrap_or_default();
    format!("{}({reason})", end.exit_code)
}

fn state(state: Option<&ContainerState>) -> String {
    let Some(state) = state else {
        return "none".into();
    };
    match (&state.running, &state.terminated, &state.waiting) {
        (Some(_), None, None) => "run".into(),
        (None, Some(t), None) => format!("end{}", end(t)),
        (None, None, Some(w)) => format!("wait({})", w.reason.as_deref().unwrap_or_default()),
        _ => "odd".into(),
    }
}

/// `a=run+` is ready, `a=run~` started but not ready; `x2` restarts; `<1(Error)` the last end.
pub(super) fn render(status: &PodStatus) -> String {
    let lists = [
        &status.init_container_statuses,
        &status.container_statuses,
        &status.ephemeral_container_statuses,
    ];
    let mut parts = vec![format!("{} {}", phase_of(status), letters(status))];
    if let Some(reason) = &status.reason {
        parts.push(reason.clone());
    }
    for c in lists.into_iter().flatten().flatten() {
        let flag = match (c.ready, c.started) {
            (true, _) => "+",
            (false, Some(true)) => "~",
            _ => "",
        };
        let count = if c.restart_count > 0 {
            format!("x{}", c.restart_count)
        } else {
            String::new()
        };
        let last = c.last_state.as_ref().and_then(|s| s.terminated.as_ref());
        let last = last.map(|t| format!("<{}", end(t))).unwrap_or_default();
        parts.push(format!(
            "{}={}{flag}{count}{last}",
            c.name,
            state(c.state.as_ref())
        ));
    }
    parts.join(" ")
}

pub(super) fn node() -> NodeFacts {
    NodeFacts {
        runtime_name: "containerd".into(),
        ..NodeFacts::default()
    }
}

/// The status of a pod of which no more is known than what was seen.
fn generated_from(pod: &Pod, old: Option<&PodStatus>, seen: &Seen, node: &NodeFacts) -> PodStatus {
    generate(&StatusInputs {
        pod,
        observed: &seen.observed,
        old,
        start_errors: &seen.errors,
        verdicts: &seen.verdicts,
        terminal: false,
        ready_to_start: None,
        deadline_exceeded: false,
        node,
        log_restart_counts: &BTreeMap::new(),
        gates: RestartGates::default(),
        resize: &[],
        actuated: None,
    })
}

/// The status after one more sight, on top of the one that stands.
pub(super) fn next(pod: &Pod, old: Option<&PodStatus>, sight: &str) -> PodStatus {
    let seen = seen(pod, sight);
    let word = |w: &str| seen.words.iter().any(|x| x == w);
    let logs = seen
        .words
        .iter()
        .filter_map(|w| w.strip_prefix("log=")?.split_once(','));
    let status = generate(&StatusInputs {
        pod,
        observed: &seen.observed,
        old,
        start_errors: &seen.errors,
        verdicts: &seen.verdicts,
        terminal: word("terminal"),
        ready_to_start: word("sandboxready").then_some(true),
        deadline_exceeded: word("late"),
        node: &node(),
        log_restart_counts: &logs
            .map(|(n, c)| (n.to_owned(), c.parse().unwrap()))
            .collect(),
        gates: RestartGates::default(),
        resize: &[],
        actuated: None,
    });
    let accepted = accept(
        &AcceptInputs {
            pod,
            cached: old,
            mirror: None,
            now: Timestamp::UNIX_EPOCH,
            terminate: false,
            gates: RestartGates::default(),
        },
        status,
    );
    assert_eq!(accepted.refused, None);
    accepted.status
}

pub(super) fn after(pod: &Pod, sights: &str) -> PodStatus {
    let mut sights = sights.split('>');
    let status = next(pod, None, sights.next().unwrap_or_default());
    sights.fold(status, |old, sight| next(pod, Some(&old), sight))
}

fn check(cases: &str) {
    check_all(table(cases).map(|(pod_text, sights, expected)| {
        let got = render(&after(&pod(pod_text), sights));
        (format!("{pod_text} | {sights}"), expected, got)
    }));
}

#[test]
fn regular_containers_and_phase() {
    check(
        r"
        c:a |  | Pending I a=wait(ContainerCreating)
        c:a | S0 | Pending NI a=wait(ContainerCreating)
        c:a | sandboxready | Pending NI a=wait(ContainerCreating)
        c:a | S0 a:made | Pending NI a=wait()
        c:a | S0 a:run | Running NICR a=run+
        c:b c:a | S0 a:run b:run | Running NICR a=run+ b=run+
        c:a c:b | S0 a:run | Pending NI a=run+ b=wait(ContainerCreating)
        always c:a | S0 a:exit0 | Running NI a=end0(Completed)
        always c:a | S0 a:exit1 | Running NI a=end1(Error)
        onfailure c:a | S0 a:exit1 | Running NI a=end1(Error)
        onfailure c:a | S0 a:exit0 | Succeeded NI a=end0(Completed)
        onfailure c:a c:b | S0 a:exit0 b:exit1 | Running NI a=end0(Completed) b=end1(Error)
        never c:a | S0 a:exit0 | Succeeded NI a=end0(Completed)
        never c:a | S0 a:exit1 | Failed NI a=end1(Error)
        never c:a c:b | S0 a:exit1 b:run | Running NI a=end1(Error) b=run+
        never c:a c:b | S0 a:exit0 b:exit1 | Failed NI a=end0(Completed) b=end1(Error)
        never c:a/policy=Always | S0 a:exit1 | Running NI a=end1(Error)
        always c:a/policy=Never | S0 a:exit1 | Failed NI a=end1(Error)
        always c:a/policy=Never | S0 a:exit0 | Succeeded NI a=end0(Completed)
        never c:a/policy=Never/rule=In:42:Restart | S0 a:exit42 | Running NI a=end42(Error)
        c:a | S0 a:run a:exit1 | Running NICR a=run+x1<1(Error)
        c:a | S0 a:exit2 a:exit1 | Running NI a=end2(Error)x1<1(Error)
        c:a | S0 a:run a:exit2 a:exit1 | Running NICR a=run+x2<2(Error)
        c:a | S0 a:run/n=7 | Running NICR a=run+x7
        c:a | S0 a:made a:exit1 | Running NI a=wait()<1(Error)
        onfailure c:a | S0 a:made a:exit0 | Running NI a=wait()<0(Completed)
        c:a | S0! | Pending I a=wait(ContainerCreating)
        c:a | S0-  a:run | Running ICR a=run+
        c:a c:b | S0! a:exit137 b:exit137 | Running I a=end137(Error) b=end137(Error)
        ",
    );
}

#[test]
fn one_that_makes_way_for_another_has_not_ended_for_good() {
    check(
        r"
        onfailure c:a | S0 a:run > S0 a:exit0/way | Running NI a=wait()<0(Completed)
        onfailure c:a | S0 a:run > S0 a:exit0/way > S0 a:run a:exit0/way | Running NICR a=run+x1<0(Completed)
        onfailure c:a | S0 a:run > S0 a:exit0/way !a=CreateContainerError | Running NI a=wait(CreateContainerError)<0(Completed)
        onfailure c:a | S0 a:run > S0! a:exit0/way | Running I a=wait()<0(Completed)
        onfailure c:a | S0 a:exit1/way | Running NI a=end1(Error)
        never c:a | S0 a:run > S0 a:exit1/way | Running NI a=wait()<1(Error)
        never c:a c:b | S0 a:exit1/way b:exit0 | Running NI a=wait()<1(Error) b=end0(Completed)
        always c:a | S0 a:exit1/way | Running NI a=end1(Error)
        # Nothing follows any more.
        never c:a | S0 a:run > S0 a:exit1/way > S0! a:exit1/way terminal | Failed I a=end1(Error)
        deleted never c:a | S0 a:run > S0! a:exit0/way | Succeeded I a=end0(Completed)
        never c:a | S0 a:exit0/way late | Failed NI DeadlineExceeded a=end0(Completed)
        # What came after it counts.
        never c:a | S0 a:exit1 a:exit0/way | Failed NI a=end1(Error)x1<0(Completed)
        ",
    );
}

#[test]
fn containers_that_are_gone() {
    check(
        r"
        c:a | S0 a:run > S0 | Running NI a=wait(ContainerCreating)x1<137(ContainerStatusUnknown)
        c:a | S0 a:run > S0 > S0 | Running NI a=wait(ContainerCreating)x1<137(ContainerStatusUnknown)
        c:a | S0 a:run > S0 > S0 a:run/n=1 | Running NICR a=run+x1<137(ContainerStatusUnknown)
        deleted c:a | S0 a:run > S0 | Running NI a=wait(ContainerCreating)<137(ContainerStatusUnknown)
        never c:a | S0 a:run > S0 | Failed NI a=wait(ContainerCreating)x1<137(ContainerStatusUnknown)
        c:a | S0 a:exit3 > S0 | Running NI a=end3(Error)
        c:a | S0 a:exit3/n=2 > S0 | Running NI a=end3(Error)x2
        c:a | S0 a:exit3 > S0 a:run/n=1 | Running NICR a=run+x1<3(Error)
        c:a | S0 a:exit3/n=1 > S0 a:run/n=0 | Running NICR a=run+x2<3(Error)
        c:a | S0 a:run a:exit3 > S0 a:run/n=1 | Running NICR a=run+x1<3(Error)
        c:a | S0 a:run a:exit3 > S0 | Running NI a=wait(ContainerCreating)x1<3(Error)
        c:a | S0 log=a,4 | Pending NI a=wait(ContainerCreating)x4
        c:a | S0 a:run > log=a,1 | Running I a=wait(ContainerCreating)x1<137(ContainerStatusUnknown)
        c:a | S0 a:run > S0 a:huh | Running NI a=end137(ContainerStatusUnknown)x1
        c:a | S0 a:run > S0 a:huh > S0 a:huh | Running NI a=end137(ContainerStatusUnknown)x1
        never c:a | S0 a:run > S0 a:huh | Failed NI a=end137(ContainerStatusUnknown)x1
        c:a | S0 a:huh | Pending NI a=wait()
        c:a | S0 a:exit1 a:run | Running NICR a=run+<1(Error)
        i:x c:a | S0 a:run | Running NICR x=end0(Completed)+ a=run+
        i:x c:a | S0 a:exit0 | Running NI x=end0(Completed)+ a=end0(Completed)
        i:x c:a | S0 x:exit0 > S0 a:run | Running NICR x=end0(Completed)+ a=run+
        i:s* c:a | S0 a:run | Pending NI s=wait(PodInitializing) a=run+
        i:s* c:a | S0 a:run s:run > S0 a:run | Running NI s=wait(PodInitializing)x1<137(ContainerStatusUnknown) a=run+
        i:x c:a | S0 | Pending N x=wait(PodInitializing) a=wait(PodInitializing)
        ",
    );
}

#[test]
fn init_containers_and_sidecars() {
    check(
        r"
        i:x c:a |  | Pending  x=wait(PodInitializing) a=wait(PodInitializing)
        i:x c:a | S0 x:run | Pending N x=run~ a=wait(PodInitializing)
        i:x c:a | S0 x:exit0 | Pending NI x=end0(Completed)+ a=wait(PodInitializing)
        i:x c:a | S0 x:exit0 a:run | Running NICR x=end0(Completed)+ a=run+
        always i:x c:a | S0 x:exit1 | Pending N x=end1(Error) a=wait(PodInitializing)
        onfailure i:x c:a | S0 x:exit1 | Pending N x=end1(Error) a=wait(PodInitializing)
        never i:x c:a | S0 x:exit1 | Failed N x=end1(Error) a=wait(PodInitializing)
        never i:x/policy=OnFailure c:a | S0 x:exit1 | Pending N x=end1(Error) a=wait(PodInitializing)
        always i:x/policy=Never c:a | S0 x:exit1 | Failed N x=end1(Error) a=wait(PodInitializing)
        i:y i:x c:a | S0 x:run y:exit0 | Pending N y=end0(Completed)+ x=run~ a=wait(PodInitializing)
        i:x c:a | S0 x:exit0 x:exit1 | Pending NI x=end0(Completed)+x1<1(Error) a=wait(PodInitializing)
        i:s* c:a | S0 s:run | Pending NI s=run+ a=wait(PodInitializing)
        i:s* c:a | S0 s:run a:run | Running NICR s=run+ a=run+
        i:s*/startup c:a | S0 s:run | Pending N s=run a=wait(PodInitializing)
        i:s*/startup c:a | S0 s:run/startup=ok | Pending NI s=run+ a=wait(PodInitializing)
        i:s*/startup c:a | S0 s:run a:run | Running NI s=run a=run+
        i:s*/ready c:a | S0 s:run/ready=fail a:run | Running NI s=run~ a=run+
        i:s* c:a | S0 s:exit1 a:run | Running NI s=end1(Error) a=run+
        never i:s* c:a | S0 s:exit1 a:run | Running NI s=end1(Error) a=run+
        never i:s* c:a | S0 s:run a:exit0 | Running NI s=run+ a=end0(Completed)
        never i:s* c:a | S0 s:exit137 a:exit0 | Succeeded NI s=end137(Error) a=end0(Completed)
        never i:s* c:a | S0 s:exit0 a:exit1 | Failed NI s=end0(Completed) a=end1(Error)
        # A sidecar that is gone does not keep what is over from being over.
        never i:s* c:a | S0! a:exit1 | Failed I s=wait(PodInitializing) a=end1(Error)
        onfailure i:s* c:a | S0! a:exit0 | Succeeded I s=wait(PodInitializing) a=end0(Completed)
        i:s* c:a | S1 S0! a:exit1/sb=0 | Pending NI s=wait(PodInitializing) a=end1(Error)
        # Once initialised, always initialised.
        i:x c:a | S0 x:exit0 > S1 x:run/n=1 | Pending NI x=run~x1<0(Completed) a=wait(PodInitializing)
        c:a e:d | S0 a:run d:run | Running NICR a=run+ d=run
        c:a e:d | S0 a:run d:exit1 | Running NICR a=run+ d=end1(Error)
        c:a e:d | S0 a:run | Running NICR a=run+ d=wait(ContainerCreating)
        c:a e:f e:d | S0 a:run !f=ErrImagePull d:run | Running NICR a=run+ d=run f=wait(ErrImagePull)
        ",
    );
}

#[test]
fn probes_make_ready_and_started() {
    check(
        r"
        c:a/ready | S0 a:run | Running NI a=run~
        c:a/ready | S0 a:run/ready=fail | Running NI a=run~
        c:a/ready | S0 a:run/ready=unknown | Running NI a=run~
        c:a/ready | S0 a:run/ready=ok | Running NICR a=run+
        c:a/startup | S0 a:run | Running NI a=run
        c:a/startup | S0 a:run/startup=unknown | Running NI a=run
        c:a/startup | S0 a:run/startup=ok | Running NICR a=run+
        c:a/startup/ready | S0 a:run/startup=unknown/ready=ok | Running NI a=run
        c:a/startup/ready | S0 a:run/startup=ok/ready=fail | Running NI a=run~
        c:a/live | S0 a:run/live=fail | Running NICR a=run+
        # What was said of this instance holds until its probes say more.
        c:a/startup/ready | S0 a:run/startup=ok/ready=ok > S0 a:run | Running NICR a=run+
        c:a/ready | S0 a:run/ready=ok > S0 a:run/ready=fail | Running NI a=run~
        c:a/startup/ready | S0 a:run/startup=ok/ready=ok > S0 a:run a:exit1 | Running NI a=runx1<1(Error)
        c:a/ready | S0 a:run/ready=ok > S0 a:exit1/ready=ok | Running NI a=end1(Error)
        c:a/ready c:b | S0 a:run/ready=fail b:run | Running NI a=run~ b=run+
        ",
    );
}

#[test]
fn recorded_start_errors() {
    check(
        r"
        c:a | S0 !a=ErrImagePull | Pending NI a=wait(ErrImagePull)
        c:a | S0 a:exit1 !a=CrashLoopBackOff | Running NI a=wait(CrashLoopBackOff)<1(Error)
        c:a | S0 a:exit2 a:exit1 !a=CrashLoopBackOff | Running NI a=wait(CrashLoopBackOff)x1<2(Error)
        c:a | S0 a:exit1 > S0 a:exit1 !a=CrashLoopBackOff > S0 a:run a:exit1 | Running NICR a=run+x1<1(Error)
        c:a | S0 a:made !a=RunContainerError | Pending NI a=wait(RunContainerError)
        c:a | S0 a:run !a=CrashLoopBackOff | Running NICR a=run+
        never c:a | S0 a:exit1 !a=CrashLoopBackOff | Failed NI a=end1(Error)
        onfailure c:a | S0 a:exit0 !a=CrashLoopBackOff | Succeeded NI a=end0(Completed)
        deleted c:a | S0 a:exit1 !a=CrashLoopBackOff | Running NI a=end1(Error)
        i:x c:a | S0 x:exit1 !x=CrashLoopBackOff | Pending N x=wait(CrashLoopBackOff)<1(Error) a=wait(PodInitializing)
        i:x c:a | S0 x:exit0 !x=CrashLoopBackOff | Pending NI x=end0(Completed)+ a=wait(PodInitializing)
        never i:s* c:a | S0 s:exit0 !s=CrashLoopBackOff a:run | Running NI s=wait(CrashLoopBackOff)<0(Completed) a=run+
        i:x c:a | S0 x:exit0 !a=ImagePullBackOff | Pending NI x=end0(Completed)+ a=wait(ImagePullBackOff)
        c:a | S0 a:run > S0 !a=CreateContainerError | Running NI a=wait(CreateContainerError)x1<137(ContainerStatusUnknown)
        ",
    );
}

#[test]
fn terminal_pods() {
    check(
        r"
        always c:a | S0! a:exit0 terminal | Succeeded I a=end0(Completed)
        always c:a c:b | S0! a:exit0 b:exit137 terminal | Failed I a=end0(Completed) b=end137(Error)
        always c:a | S0 a:run terminal | Running NICR a=run+
        always c:a | S0! terminal | Pending I a=wait(ContainerCreating)
        always static c:a | S0! a:exit0 terminal | Running I a=end0(Completed)
        never static c:a | S0! a:exit0 terminal | Succeeded I a=end0(Completed)
        never static c:a | S0! a:exit1 terminal | Failed I a=end1(Error)
        # Said once, said for good.
        always c:a | S0! a:exit1 terminal > S1 a:run/n=1 | Failed NI a=run+x1<1(Error)
        c:a | S0 a:run > S0 a:run late | Failed NI DeadlineExceeded a=run+
        c:a | S0 a:run > S0 a:run late > S0! a:exit137 | Failed I DeadlineExceeded a=end137(Error)
        always c:a | S0 a:run late > S0! a:exit0 terminal | Failed I DeadlineExceeded a=end0(Completed)
        c:a | S0 late | Failed NI DeadlineExceeded a=wait(ContainerCreating)
        # Over in time, and taken down after it.
        never c:a | S0 a:exit0 > S0! a:exit0 terminal late | Succeeded I a=end0(Completed)
        ",
    );
}

#[test]
fn restart_of_all_containers() {
    const RULE: &str = "policy=Never/rule=In:42:RestartAllContainers";
    let cases = r"
        never c:a/{} c:b | S0 a:run b:run | Running NICR a=run+ b=run+
        never c:a/{} c:b | S0 a:exit42 b:run | Running NIA a=end42(Error) b=run+
        never c:a/{} c:b | S0 a:exit1 b:run | Running NI a=end1(Error) b=run+
        never c:a/{} c:b | S0 a:run b:run > S0 a:exit42 b:run > S0 a:exit42 | Running NIA a=end42(Error) b=wait(RestartingAllContainers)x1<137(RestartingAllContainers)
        never c:a/{} c:b | S0 a:exit42 b:run > S0 | Running NI a=wait(RestartingAllContainers)x1<137(RestartingAllContainers) b=wait(RestartingAllContainers)x1<137(RestartingAllContainers)
        never c:a/{} c:b | S0 a:exit42 b:run > S0 > S0 a:run/n=1 b:run/n=1 | Running NICR a=run+x1<137(RestartingAllContainers) b=run+x1<137(RestartingAllContainers)
        never i:x c:a/{} | S0 x:exit0 a:run > S0 x:exit0 a:exit42 > S0 > S0 x:run/n=1 | Pending NI x=run~x1<137(RestartingAllContainers) a=wait(PodInitializing)x1<137(RestartingAllContainers)
    ";
    check_all(table(cases).map(|(pod_text, sights, expected)| {
        let pod_text = pod_text.replace("{}", RULE);
        let got = render(&after(&pod(&pod_text), sights));
        (format!("{pod_text} | {sights}"), expected, got)
    }));
}
