//! Objects of which only the status has changed.

use expect_test::expect;

use super::super::*;
use super::story::*;

#[test]
fn a_worker_holds_the_newest_object_of_one_wish() {
    let mut s = Story::new();
    s.seen(&api("a"))
        .create(&api("a"))
        .seen(&api("a"))
        .update(&api("a"))
        .seen(&api("a"))
        .done("a", Outcome::Done)
        .done("a", Outcome::Done);
    let newest = with_phase("a", "Running");
    s.seen(&newest);
    let effects = s.workers.wake(&"a".into());
    let [Effect::Run(_, work)] = &effects[..] else {
        panic!("{effects:?}");
    };
    assert!(
        work.desired
            .spec()
            .is_some_and(|pod| Arc::ptr_eq(pod, &newest))
    );
    s.note("wake", effects);
    // While a step of an older object runs.
    s.seen(&with_phase("a", "Running"))
        .done("a", Outcome::Cancelled);
    s.check(expect![[r#"
        seen: no worker
        create: run a Sync Create first
        seen: held
        update: -
        seen: held
        Done: wake a in 60s, run a Sync Update
        Done: wake a in 60s
        seen: held
        wake: run a Sync Sync
        seen: held
        Cancelled: run a Sync Sync
    "#]]);
}

#[test]
fn of_a_pod_that_ends_the_worker_keeps_what_it_was_told() {
    let mut s = Story::new();
    s.create(&api("a"))
        .done("a", Outcome::Done)
        .seen(&with_phase("a", "Failed"))
        .seen(&deleted("a", 5))
        .wake("a")
        .kill(&api("a"), KillRequest::default())
        .seen(&api("a"))
        .done("a", Outcome::Cancelled)
        .seen(&api("a"))
        .done("a", Outcome::Done)
        .seen(&api("a"))
        .done("a", Outcome::Done)
        .seen(&api("a"));
    s.check(expect![[r#"
        create: run a Sync Create first
        Done: wake a in 60s
        seen: not held
        seen: not held
        wake: run a Sync Sync
        kill: cancel a
        seen: not held
        Cancelled: run a Terminating Kill grace=30
        seen: not held
        Done: run a Terminated Sync grace=30
        seen: not held
        Done: -
        seen: not held
    "#]]);
}

#[test]
fn an_object_that_is_only_seen_gives_no_worker_a_spec() {
    let mut s = Story::new();
    s.orphan("x").seen(&api("x"));
    assert!(s.workers.spec(&"x".into()).is_none());
    s.done("x", Outcome::Done);
    // A static pod that waits for its name goes on waiting.
    s.create(&static_pod("a"))
        .create(&static_pod("b"))
        .seen(&static_pod("b"))
        .done("a", Outcome::Terminal)
        .done("a", Outcome::Done)
        .done("a", Outcome::Done);
    s.check(expect![[r#"
        orphan: run x TerminatingRuntime Kill grace=1 first
        seen: no worker
        Done: -
        create: run a Sync Create first
        create: -
        seen: held
        Terminal: run a Terminating Sync grace=30
        Done: run a Terminated Sync grace=30
        Done: run b Sync Create first
    "#]]);
}
