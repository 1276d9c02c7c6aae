//! Every rule of the worker as a short story: what comes in, and the effects that come out.

mod seen;
mod story;

use expect_test::expect;

use super::*;
use story::*;

#[test]
fn a_pod_runs_is_deleted_and_ends() {
    let mut s = Story::new();
    s.create(&api("a"))
        .done("a", Outcome::Done)
        .wake("a")
        .done("a", Outcome::Done)
        .update(&deleted("a", 5))
        .done("a", Outcome::Done)
        .done("a", Outcome::Done)
        .update(&deleted("a", 5))
        .housekeeping(&["a"])
        .housekeeping(&[]);
    s.check(expect![[r#"
        create: run a Sync Create first
        Done: wake a in 60s
        wake: run a Sync Sync
        Done: wake a in 60s
        update: run a Terminating Update grace=5
        Done: run a Terminated Sync grace=5
        Done: -
        update: -
        housekeeping [a=Finished]: -
        housekeeping []: -
    "#]]);
}

#[test]
fn only_the_newest_update_waits_in_the_mailbox() {
    let mut s = Story::new();
    s.create(&api("a"))
        .update(&api("a"))
        .update(&api("a"))
        .done("a", Outcome::Done)
        .done("a", Outcome::Done);
    s.check(expect![[r#"
        create: run a Sync Create first
        update: -
        update: -
        Done: wake a in 60s, run a Sync Update
        Done: wake a in 60s
    "#]]);
}

#[test]
fn a_terminal_phase_is_torn_down_at_once() {
    let mut s = Story::new();
    s.create(&api("a"))
        .done("a", Outcome::Terminal)
        .done("a", Outcome::Done)
        .done("a", Outcome::Done);
    s.check(expect![[r#"
        create: run a Sync Create first
        Terminal: run a Terminating Sync grace=30
        Done: run a Terminated Sync grace=30
        Done: -
    "#]]);
}

#[test]
fn what_comes_to_life_after_the_end_is_ended_again() {
    let mut s = Story::new();
    s.create(&api("a"))
        .end_again("a")
        .done("a", Outcome::Terminal)
        .done("a", Outcome::Done)
        .done("a", Outcome::Done)
        .end_again("a")
        .end_again("a")
        .done("a", Outcome::Failed)
        .wake("a")
        .done("a", Outcome::Done)
        .housekeeping(&["a"])
        .end_again("b");
    s.check(expect![[r#"
        create: run a Sync Create first
        end again: -
        Terminal: run a Terminating Sync grace=30
        Done: run a Terminated Sync grace=30
        Done: -
        end again: run a Terminated Sync grace=30
        end again: -
        Failed: wake a in 500ms
        wake: run a Terminated Sync grace=30
        Done: -
        housekeeping [a=Finished]: -
        end again: -
    "#]]);
}

#[test]
fn a_static_pod_that_is_ended_again_leaves_its_name_to_who_has_it() {
    let mut s = Story::new();
    s.create(&static_pod("a"))
        .create(&static_pod("b"))
        .create(&static_pod("c"))
        .done("a", Outcome::Terminal)
        .done("a", Outcome::Done)
        .done("a", Outcome::Done)
        .end_again("a")
        .done("a", Outcome::Done);
    s.check(expect![[r#"
        create: run a Sync Create first
        create: -
        create: -
        Terminal: run a Terminating Sync grace=30
        Done: run a Terminated Sync grace=30
        Done: run b Sync Create first
        end again: run a Terminated Sync grace=30
        Done: -
    "#]]);
}

#[test]
fn waits_follow_the_result() {
    let mut s = Story::new();
    s.create(&api("a"))
        .done("a", Outcome::Failed)
        .wake("a")
        .done("a", Outcome::NetworkNotReady)
        .wake("a")
        .done("a", Outcome::WaitUntil(Mono(Duration::from_secs(20))))
        .wake("a")
        .done("a", Outcome::WaitUntil(Mono(Duration::from_secs(300))))
        .wake("a")
        .done("a", Outcome::Cancelled);
    s.check(expect![[r#"
        create: run a Sync Create first
        Failed: wake a in 10s
        wake: run a Sync Sync
        NetworkNotReady: wake a in 1s
        wake: run a Sync Sync
        WaitUntil(Mono(20s)): wake a in 20s
        wake: run a Sync Sync
        WaitUntil(Mono(300s)): wake a in 60s
        wake: run a Sync Sync
        Cancelled: run a Sync Sync
    "#]]);
}

#[test]
fn spread_moves_a_wake_within_half_its_period() {
    let periods = Periods::default();
    let at = |spread| {
        next_wait(
            &periods,
            Outcome::Done,
            Step::Sync,
            0,
            Mono::default(),
            spread,
        )
    };
    assert_eq!(at(0.0), Duration::from_secs(60));
    assert_eq!(at(1.0), Duration::from_secs(90));
    assert_eq!(at(7.0), Duration::from_secs(90));
}

#[test]
fn failed_terminations_are_retried_soon_then_slower() {
    let mut s = Story::new();
    s.create(&api("a"))
        .done("a", Outcome::Done)
        .kill(&api("a"), KillRequest::default());
    for _ in 0..7 {
        s.done("a", Outcome::Failed).wake("a");
    }
    s.check(expect![[r#"
        create: run a Sync Create first
        Done: wake a in 60s
        kill: run a Terminating Kill grace=30
        Failed: wake a in 500ms
        wake: run a Terminating Sync grace=30
        Failed: wake a in 1s
        wake: run a Terminating Sync grace=30
        Failed: wake a in 2s
        wake: run a Terminating Sync grace=30
        Failed: wake a in 4s
        wake: run a Terminating Sync grace=30
        Failed: wake a in 8s
        wake: run a Terminating Sync grace=30
        Failed: wake a in 10s
        wake: run a Terminating Sync grace=30
        Failed: wake a in 10s
        wake: run a Terminating Sync grace=30
    "#]]);
}

#[test]
fn grace_only_shrinks_and_a_shorter_one_cancels_the_kill_in_flight() {
    let mut s = Story::new();
    s.create(&api("a"))
        .done("a", Outcome::Done)
        .update(&deleted("a", 20))
        .kill(&api("a"), grace(60))
        .kill(&api("a"), grace(5))
        .kill(&api("a"), grace(0))
        .done("a", Outcome::Cancelled);
    s.check(expect![[r#"
        create: run a Sync Create first
        Done: wake a in 60s
        update: run a Terminating Update grace=20
        kill: -
        kill: cancel a
        kill: cancel a
        Cancelled: run a Terminating Kill grace=1
    "#]]);
}

#[test]
fn becoming_terminating_cancels_a_sync_in_flight() {
    let mut s = Story::new();
    s.create(&api("a"))
        .update(&deleted("a", 3))
        .done("a", Outcome::Cancelled);
    s.check(expect![[r#"
        create: run a Sync Create first
        update: cancel a
        Cancelled: run a Terminating Update grace=3
    "#]]);
}

#[test]
fn waiters_are_released_when_containers_have_stopped() {
    let mut s = Story::new();
    s.create(&api("a"))
        .done("a", Outcome::Done)
        .kill(&api("a"), waiter(1))
        .kill(&api("a"), waiter(2))
        .done("a", Outcome::Done)
        .kill(&api("a"), waiter(3))
        .done("a", Outcome::Done)
        .kill(&api("a"), waiter(4));
    s.check(expect![[r#"
        create: run a Sync Create first
        Done: wake a in 60s
        kill: run a Terminating Kill grace=30
        kill: -
        Done: release 1, release 2, run a Terminated Kill grace=30
        kill: release 3
        Done: -
        kill: release 4
    "#]]);
}

#[test]
fn the_last_status_override_wins() {
    let with_reason = |reason: &str| KillRequest {
        status: Some(Arc::new(StatusOverride {
            phase: "Failed",
            reason: reason.into(),
            message: String::new(),
            condition: None,
        })),
        evicted: true,
        ..KillRequest::default()
    };
    let mut s = Story::new();
    s.create(&api("a"))
        .done("a", Outcome::Done)
        .kill(&api("a"), with_reason("Evicted"))
        .kill(&api("a"), with_reason("Terminated"))
        .done("a", Outcome::Failed);
    s.check(expect![[r#"
        create: run a Sync Create first
        Done: wake a in 60s
        kill: run a Terminating Kill grace=30 status=Evicted
        kill: -
        Failed: wake a in 500ms, run a Terminating Kill grace=30 status=Terminated
    "#]]);
    assert!(s.workers.may_remove_content(&"a".into()));
}

#[test]
fn a_pod_first_seen_finished_goes_straight_to_clean_up() {
    let mut s = Story::new();
    s.create(&with_phase("a", "Succeeded"))
        .done("a", Outcome::Done);
    s.check(expect![[r#"
        create: run a Terminated Create first
        Done: -
    "#]]);
}

#[test]
fn a_pod_first_seen_finished_with_something_running_is_stopped_first() {
    let mut s = Story::new();
    let update = Update {
        runtime_alive: true,
        ..Update::new(&with_phase("a", "Failed"), UpdateKind::Create)
    };
    s.send("create", update);
    s.check(expect![[r#"
        create: run a Terminating Create grace=30 first
    "#]]);
}

#[test]
fn runtime_only_pods_can_only_be_killed_and_leave_no_record() {
    let mut s = Story::new();
    let sync = Update {
        desired: Desired::RuntimeOnly(PodRef::new("x", "ns", "web")),
        kind: UpdateKind::Sync,
        kill: None,
        runtime_alive: true,
    };
    s.send("sync", sync)
        .orphan("x")
        .done("x", Outcome::Failed)
        .wake("x")
        .done("x", Outcome::Done);
    assert!(!s.workers.is_known(&"x".into()));
    s.check(expect![[r#"
        sync: -
        orphan: run x TerminatingRuntime Kill grace=1 first
        Failed: wake x in 500ms
        wake: run x TerminatingRuntime Sync grace=1
        Done: -
    "#]]);
}

#[test]
fn a_known_spec_is_used_for_a_runtime_only_kill() {
    let mut s = Story::new();
    s.create(&api("a")).done("a", Outcome::Done).orphan("a");
    s.check(expect![[r#"
        create: run a Sync Create first
        Done: wake a in 60s
        orphan: run a Terminating Kill grace=30
    "#]]);
}

#[test]
fn a_runtime_only_kill_after_the_end_is_an_old_sight() {
    let mut s = Story::new();
    s.create(&api("a"))
        .done("a", Outcome::Terminal)
        .done("a", Outcome::Done)
        .orphan("a")
        .done("a", Outcome::Done);
    s.check(expect![[r#"
        create: run a Sync Create first
        Terminal: run a Terminating Sync grace=30
        Done: run a Terminated Sync grace=30
        orphan: -
        Done: -
    "#]]);
}

#[test]
fn a_config_that_arrives_during_a_runtime_only_kill_is_started_anew() {
    let mut s = Story::new();
    s.orphan("a")
        .create(&api("a"))
        .done("a", Outcome::Done)
        .housekeeping(&["a"]);
    s.check(expect![[r#"
        orphan: run a TerminatingRuntime Kill grace=1 first
        create: -
        Done: -
        housekeeping []: -
    "#]]);
}

#[test]
fn a_fixed_uid_created_while_terminating_is_forgotten_once_finished() {
    let mut s = Story::new();
    let pod = static_pod("a");
    s.create(&pod)
        .done("a", Outcome::Done)
        .kill(&pod, KillRequest::default())
        .create(&pod)
        .housekeeping(&["a"])
        .done("a", Outcome::Done)
        .done("a", Outcome::Done)
        .housekeeping(&["a"])
        .create(&pod);
    s.check(expect![[r#"
        create: run a Sync Create first
        Done: wake a in 60s
        kill: run a Terminating Kill grace=30
        create: -
        housekeeping [a=Terminating { acknowledged: true }]: -
        Done: run a Terminated Sync grace=30
        Done: -
        housekeeping []: -
        create: run a Sync Create first
    "#]]);
}

#[test]
fn static_pods_of_one_name_take_turns_in_order_of_arrival() {
    let mut s = Story::new();
    s.create(&static_pod("a"))
        .done("a", Outcome::Done)
        .kill(&static_pod("a"), KillRequest::default())
        .create(&static_pod("b"))
        .create(&static_pod("c"))
        .done("a", Outcome::Done)
        .done("a", Outcome::Done)
        .kill(&static_pod("b"), KillRequest::default())
        .done("b", Outcome::Cancelled)
        .done("b", Outcome::Done)
        .done("b", Outcome::Done);
    s.check(expect![[r#"
        create: run a Sync Create first
        Done: wake a in 60s
        kill: run a Terminating Kill grace=30
        create: -
        create: -
        Done: run a Terminated Sync grace=30
        Done: run b Sync Create first
        kill: cancel b
        Cancelled: run b Terminating Kill grace=30
        Done: run b Terminated Sync grace=30
        Done: run c Sync Create first
    "#]]);
}

#[test]
fn a_static_pod_waits_for_a_predecessor_left_by_an_earlier_agent() {
    let mut s = Story::new();
    s.orphan("x")
        .orphan("y")
        .create(&static_pod("a"))
        .done("x", Outcome::Done)
        .done("y", Outcome::Done);
    s.check(expect![[r#"
        orphan: run x TerminatingRuntime Kill grace=1 first
        orphan: run y TerminatingRuntime Kill grace=1 first
        create: -
        Done: -
        Done: run a Sync Create first
    "#]]);
}

#[test]
fn a_waiter_told_to_end_is_finished_without_a_step() {
    let mut s = Story::new();
    s.create(&static_pod("a"))
        .create(&static_pod("b"))
        .create(&static_pod("c"))
        .kill(&static_pod("b"), waiter(7))
        .done("a", Outcome::Terminal)
        .done("a", Outcome::Done)
        .done("a", Outcome::Done);
    assert_eq!(s.workers.stage(&"b".into()), Some(Stage::Finished));
    s.check(expect![[r#"
        create: run a Sync Create first
        create: -
        create: -
        kill: release 7
        Terminal: run a Terminating Sync grace=30
        Done: run a Terminated Sync grace=30
        Done: run c Sync Create first
    "#]]);
}

#[test]
fn api_pods_of_one_name_may_overlap() {
    let mut s = Story::new();
    s.create(&api("a")).create(&api("b"));
    s.check(expect![[r#"
        create: run a Sync Create first
        create: run b Sync Create first
    "#]]);
}

#[test]
fn orphans_are_ended_by_housekeeping_and_forgotten_when_finished() {
    let mut s = Story::new();
    s.create(&api("a"))
        .housekeeping(&[])
        .done("a", Outcome::Cancelled)
        .housekeeping(&[])
        .done("a", Outcome::Done)
        .done("a", Outcome::Done)
        .housekeeping(&[]);
    s.check(expect![[r#"
        create: run a Sync Create first
        housekeeping [a=Terminating { acknowledged: false }]: cancel a
        Cancelled: run a Terminating Sync grace=30
        housekeeping [a=Terminating { acknowledged: true }]: -
        Done: run a Terminated Sync grace=30
        Done: -
        housekeeping []: -
    "#]]);
}

#[test]
fn an_orphan_never_started_is_dropped() {
    let mut s = Story::new();
    s.create(&static_pod("a"))
        .create(&static_pod("b"))
        .housekeeping(&["a"]);
    assert!(!s.workers.is_known(&"b".into()));
    s.check(expect![[r#"
        create: run a Sync Create first
        create: -
        housekeeping [a=Sync]: -
    "#]]);
}

#[test]
fn answers_before_and_after_the_desired_set_is_complete() {
    let mut s = Story::new();
    let unknown = PodUid::from("u");
    let answers =
        |w: &PodWorkers, uid: &PodUid| (w.may_remove_runtime(uid), w.may_remove_content(uid));
    assert_eq!(answers(&s.workers, &unknown), (false, false));
    s.housekeeping(&[]);
    assert_eq!(answers(&s.workers, &unknown), (true, true));

    let a = PodUid::from("a");
    s.create(&api("a"));
    assert_eq!(answers(&s.workers, &a), (false, false));
    s.update(&deleted("a", 1));
    assert_eq!(answers(&s.workers, &a), (false, false));
    s.done("a", Outcome::Cancelled);
    assert_eq!(answers(&s.workers, &a), (false, false));
    s.done("a", Outcome::Done);
    assert_eq!(answers(&s.workers, &a), (true, true));
}

#[test]
fn results_of_unknown_or_idle_workers_change_nothing() {
    let mut s = Story::new();
    s.done("ghost", Outcome::Done)
        .wake("ghost")
        .create(&api("a"))
        .done("a", Outcome::Done)
        .done("a", Outcome::Terminal);
    s.check(expect![[r#"
        Done: -
        wake: -
        create: run a Sync Create first
        Done: wake a in 60s
        Terminal: -
    "#]]);
}
