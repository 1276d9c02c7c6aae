//! Who makes room for whom.

use super::*;

#[test]
fn who_may_preempt_whom() {
    let door = Door::new("cpu=1 memory=1Gi pods=10");
    for (candidate, other, expected) in [
        ("a cpu=1 static", "b cpu=1", "after b"),
        ("a cpu=1 mirror", "b cpu=1", "after b"),
        (
            "a cpu=1 prio=2000000000",
            "b cpu=1 prio=1999999999",
            "after b",
        ),
        (
            "a cpu=1 prio=2000001000",
            "b cpu=1 prio=2000000000",
            "after b",
        ),
        ("a cpu=1 prio=1999999999", "b cpu=1", "OutOfcpu"),
        (
            "a cpu=1 static",
            "b cpu=1 static",
            "UnexpectedAdmissionError",
        ),
        (
            "a cpu=1 static prio=2000001000",
            "b cpu=1 static prio=2000000000",
            "after b",
        ),
        (
            "a cpu=1 prio=2000000000",
            "b cpu=1 prio=2000000000",
            "UnexpectedAdmissionError",
        ),
    ] {
        let answer = door.ask(candidate, &[other]);
        let told = answer.split(':').next().unwrap_or_default();
        assert_eq!(told, expected, "{candidate} / {other}");
    }
}

#[test]
fn the_choice_of_victims() {
    let big = "cpu=10 memory=100 pods=10";
    let cases: &[(&str, &str, &[&str], &str)] = &[
        // The nearest pod, not the largest: one that frees enough and asks for the least.
        (
            big,
            "a cpu=3 static",
            &["b cpu=3", "c cpu=5", "d cpu=2"],
            "after b",
        ),
        (
            big,
            "a cpu=3 static",
            &["b cpu=3", "c cpu=4", "d cpu=3"],
            "after d",
        ),
        // Of pods equally near the one with less memory, then less cpu.
        (
            big,
            "a cpu=3 static",
            &["b cpu=5 memory=9", "c cpu=5 memory=8"],
            "after c",
        ),
        // Two small ones when no single one is enough; the nearer first.
        (
            big,
            "a cpu=9 static",
            &["b cpu=4", "c cpu=3", "d cpu=3"],
            "after b c d",
        ),
        (
            big,
            "a cpu=7 static",
            &["b cpu=4", "c cpu=3", "d cpu=3"],
            "after b c",
        ),
        // Best-effort pods free no cpu, so they are left alone; they free a place.
        (big, "a cpu=9 static", &["b cpu=4", "c"], "after b"),
        ("cpu=10 pods=2", "a static", &["b cpu=4", "c"], "after c"),
        (
            "cpu=10 pods=2",
            "a static",
            &["b !cpu=4 !memory=1", "c cpu=1"],
            "after c",
        ),
        // Guaranteed pods only go when all others together are not enough.
        (
            "cpu=10 memory=100 pods=9",
            "a cpu=4 static",
            &["g !cpu=5 !memory=1", "b cpu=2", "c cpu=3"],
            "after c b",
        ),
        (
            "cpu=10 memory=100 pods=9",
            "a cpu=6 static",
            &["g !cpu=5 !memory=1", "b cpu=2", "c cpu=3"],
            "after b g",
        ),
        // Two resources at once: first the pod that helps with both.
        (
            "cpu=10 memory=100 pods=9",
            "a cpu=5 memory=50 static",
            &["b cpu=5 memory=1", "c memory=50 cpu=1", "d cpu=4 memory=49"],
            "after d b",
        ),
        // Overhead is freed with its pod.
        (
            big,
            "a cpu=3 static",
            &["b cpu=2 overhead:cpu=1", "c cpu=7"],
            "after b",
        ),
    ];
    for (node, candidate, others, expected) in cases {
        let answer = Door::new(node).ask(candidate, others);
        assert_eq!(answer, *expected, "{candidate} / {others:?}");
    }
}

#[test]
fn when_nobody_can_make_room() {
    let door = Door::new("cpu=2 memory=10 pods=10");
    assert_eq!(
        door.ask(
            "a cpu=4 memory=20 static",
            &["b cpu=1 memory=4", "c cpu=1 static"]
        ),
        "UnexpectedAdmissionError: Unexpected error while attempting to recover from admission \
         failure: preemption: error finding a set of pods to preempt: no set of running pods found \
         to reclaim resources: [(res: cpu, q: 3000), (res: memory, q: 10), ]"
    );
}

#[test]
fn nobody_is_preempted_for_a_pod_that_is_refused_anyway() {
    let door = Door::new("cpu=1 pods=10");
    let answer = door.ask("a cpu=1 selector=zone:b static", &["b cpu=1"]);
    assert!(answer.starts_with("NodeAffinity: "), "{answer}");
    let mut door = Door::new("cpu=1 pods=10");
    door.conditions.shutting_down = true;
    let answer = door.ask("a cpu=1 static", &["b cpu=1"]);
    assert!(answer.starts_with("NodeShutdown: "), "{answer}");
}

#[test]
fn those_on_their_way_out_are_waited_for_first() {
    let door = Door::new("cpu=10 memory=100 pods=10");
    let others = ["b cpu=4 LEAVING", "c cpu=3", "d cpu=3", "e cpu=3 static"];
    for (candidate, expected) in [
        // e has taken three of the four that b leaves.
        ("a cpu=1", "after b"),
        ("a cpu=1 static", "after b"),
        ("a cpu=2 static", "after b d"),
        ("a", "admit"),
    ] {
        assert_eq!(door.ask(candidate, &others), expected, "{candidate}");
    }
    let answer = door.ask("a cpu=2", &others);
    assert_eq!(
        answer,
        "OutOfcpu: Node didn't have enough resource: cpu, requested: 2000, used: 9000, capacity: 10000"
    );
}

#[test]
fn what_the_victims_are_told() {
    let told = preempted(&pod("a"));
    assert_eq!((told.phase, told.reason.as_str()), ("Failed", "Preempting"));
    assert_eq!(told.message, "Preempted in order to admit critical pod");
    let condition = told.condition.unwrap_or_default();
    assert_eq!(condition.type_, "DisruptionTarget");
    assert_eq!(condition.reason.as_deref(), Some("TerminationByKubelet"));
}

#[test]
fn what_room_is_made_for_want_of() {
    let door = Door::new("cpu=1 memory=1Gi pods=2");
    for (candidate, others, expected) in [
        ("a cpu=1 static", &["b cpu=1"][..], Some("cpu")),
        (
            "a cpu=1 memory=1Gi static",
            &["b memory=1Gi"],
            Some("memory"),
        ),
        ("a cpu=1 static", &["b cpu=1", "c"], Some("pods")),
    ] {
        let verdict = door.verdict(&pod(candidate), others);
        let Verdict::AdmitAfterPreempting(room) = verdict else {
            panic!("{candidate}: {verdict:?}");
        };
        assert_eq!(room.lacking.as_deref(), expected, "{candidate}");
    }
}
