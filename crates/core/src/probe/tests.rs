use super::*;

const fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

const fn at(seconds: u64) -> Mono {
    Mono(s(seconds))
}

fn timing() -> Timing {
    Timing::of(&Probe::default())
}

fn running(id: &str, age: u64) -> Seen {
    Seen {
        id: id.into(),
        running: true,
        age: s(age),
        previous: None,
    }
}

/// A probe whose container `a` just started, the agent being old.
fn fresh(kind: ProbeKind, timing: Timing) -> ProbeState {
    let mut state = ProbeState::new(kind, timing, at(1000), 0.0);
    state.see(None, s(1000), at(1000));
    state.see(Some(&running("a", 0)), s(1002), at(1002));
    state
}

fn run(state: &mut ProbeState, outcomes: &[Outcome]) -> Vec<Option<Verdict>> {
    let mut now = at(2000);
    let mut changes = Vec::new();
    for outcome in outcomes {
        state.begin(now);
        changes.push(state.finish(&"a".into(), *outcome, now));
        now = now + s(10);
    }
    changes
}

#[test]
fn commands_that_hang_are_run_less_often_once_the_verdict_stands() {
    let mut state = fresh(ProbeKind::Readiness, timing());
    state.schedule(true, at(2000));
    let mut pauses = Vec::new();
    for outcome in [
        Outcome::Hung,
        Outcome::Failure,
        Outcome::Hung,
        Outcome::Hung,
        Outcome::Hung,
        Outcome::Failure,
        Outcome::Hung,
        Outcome::Success,
        Outcome::Hung,
    ] {
        state.begin(at(2000));
        state.finish(&"a".into(), outcome, at(2000));
        let due = state.schedule(true, at(2000)).unwrap_or(at(0));
        pauses.push((due - at(2000)).as_secs());
    }
    assert_eq!(pauses, [10, 10, 20, 40, 40, 10, 20, 10, 10]);
}

#[test]
fn a_server_that_is_not_ready_is_looked_at_again_soon() {
    use Outcome::{Error as E, Failure as F, Success as S};
    let every = |seconds| Timing {
        period: s(seconds),
        ..timing()
    };
    let eager = |kind, seconds| {
        let mut state = ProbeState::new(kind, every(seconds), at(1000), 0.0).eager();
        state.see(Some(&running("a", 0)), s(1000), at(1000));
        state
    };
    let old = || {
        let mut state = ProbeState::new(ProbeKind::Readiness, every(1), at(1000), 0.0).eager();
        state.see(Some(&running("a", 100)), s(20), at(1000));
        state
    };
    let readiness = |seconds| eager(ProbeKind::Readiness, seconds);
    let table: [(ProbeState, &[Outcome], &[u64]); 7] = [
        (readiness(1), &[F; 7], &[50, 100, 200, 400, 800, 1000, 1000]),
        (readiness(2), &[F, F, S, F, F], &[50, 100, 2000, 2000, 2000]),
        (readiness(1), &[S, F], &[1000, 1000]),
        (readiness(1), &[F, E, F, F], &[50, 1000, 100, 200]),
        (eager(ProbeKind::Liveness, 1), &[F, F], &[1000, 1000]),
        (eager(ProbeKind::Startup, 1), &[F, F], &[1000, 1000]),
        (old(), &[F, F], &[1000, 1000]),
    ];
    for (mut state, outcomes, pauses) in table {
        state.schedule(true, at(1000));
        let mut got = Vec::new();
        for outcome in outcomes {
            state.begin(at(2000));
            state.finish(&"a".into(), *outcome, at(2000));
            let due = state.schedule(true, at(2000)).unwrap_or(at(0));
            let pause = (due - at(2000)).as_millis() as u64;
            assert_eq!(
                state.looks_again_soon(),
                pause < 1000 || *outcome == E,
                "{outcomes:?}"
            );
            got.push(pause);
        }
        assert_eq!(got, pauses, "{:?} {outcomes:?}", state.kind());
    }
}

#[test]
fn numbers_have_the_apis_defaults() {
    assert_eq!(
        timing(),
        Timing {
            initial_delay: s(0),
            period: s(10),
            timeout: s(1),
            success_threshold: 1,
            failure_threshold: 3
        }
    );
    let odd = Probe {
        period_seconds: Some(0),
        timeout_seconds: Some(-5),
        ..Probe::default()
    };
    assert_eq!(Timing::of(&odd), timing());
}

#[test]
fn initial_verdicts() {
    for (kind, verdict) in [
        (ProbeKind::Startup, Verdict::Unknown),
        (ProbeKind::Readiness, Verdict::Failure),
        (ProbeKind::Liveness, Verdict::Success),
    ] {
        let state = fresh(kind, timing());
        assert_eq!(state.verdict(), Some((&"a".into(), verdict)));
    }
}

/// Kind, success threshold, outcomes, and the change each makes.
type Row = (
    ProbeKind,
    u32,
    &'static [Outcome],
    &'static [Option<Verdict>],
);

#[test]
fn thresholds_count_in_a_row() {
    use Outcome::{Error as E, Failure as F, Success as S};
    let table: &[Row] = &[
        (
            ProbeKind::Liveness,
            1,
            &[F, F, F],
            &[None, None, Some(Verdict::Failure)],
        ),
        (
            ProbeKind::Liveness,
            1,
            &[F, F, S, F, F],
            &[None, None, None, None, None],
        ),
        // An error is no result: it neither counts nor breaks the row.
        (
            ProbeKind::Liveness,
            1,
            &[F, E, F, E, F],
            &[None, None, None, None, Some(Verdict::Failure)],
        ),
        (
            ProbeKind::Readiness,
            2,
            &[S, S, F, F, F],
            &[
                None,
                Some(Verdict::Success),
                None,
                None,
                Some(Verdict::Failure),
            ],
        ),
        (ProbeKind::Readiness, 1, &[F, F, F, F], &[None; 4]),
        (
            ProbeKind::Startup,
            1,
            &[F, S],
            &[None, Some(Verdict::Success)],
        ),
        (
            ProbeKind::Startup,
            1,
            &[F, F, F],
            &[None, None, Some(Verdict::Failure)],
        ),
    ];
    for (kind, success_threshold, outcomes, changes) in table {
        let timing = Timing {
            success_threshold: *success_threshold,
            ..timing()
        };
        let mut state = fresh(*kind, timing);
        assert_eq!(run(&mut state, outcomes), *changes, "{kind:?} {outcomes:?}");
    }
}

#[test]
fn a_verdict_holds_until_there_is_a_new_instance() {
    for (kind, outcome) in [
        (ProbeKind::Liveness, Outcome::Failure),
        (ProbeKind::Startup, Outcome::Failure),
        (ProbeKind::Startup, Outcome::Success),
    ] {
        let mut state = fresh(kind, timing());
        assert!(state.schedule(true, at(1002)).is_some());
        run(&mut state, &[outcome; 3]);
        assert_eq!(state.schedule(true, at(2050)), None, "{kind:?} {outcome:?}");
        state.see(Some(&running("b", 0)), s(2060), at(2060));
        assert!(state.schedule(true, at(2060)).is_some());
        assert_eq!(state.verdict(), Some((&"b".into(), kind.initial())));
        // The row of the old instance is not carried over.
        assert_eq!(
            state.finish(&"b".into(), Outcome::Failure, at(2070)),
            None,
            "{kind:?}"
        );
    }
}

#[test]
fn readiness_and_liveness_wait_for_startup() {
    for kind in [ProbeKind::Readiness, ProbeKind::Liveness] {
        let mut state = fresh(kind, timing());
        assert_eq!(state.schedule(false, at(1002)), None);
        assert!(state.schedule(true, at(1030)).is_some());
    }
    assert!(
        fresh(ProbeKind::Startup, timing())
            .schedule(false, at(1002))
            .is_some()
    );
}

#[test]
fn first_runs() {
    let delayed = Timing {
        initial_delay: s(15),
        ..timing()
    };
    let table = [
        // Readiness looks as soon as it may, the others at a tick of their own.
        (ProbeKind::Readiness, timing(), at(1002)),
        (ProbeKind::Liveness, timing(), at(1010)),
        (ProbeKind::Startup, timing(), at(1010)),
        (ProbeKind::Readiness, delayed, at(1017)),
        (ProbeKind::Liveness, delayed, at(1020)),
    ];
    for (kind, timing, due) in table {
        let mut state = fresh(kind, timing);
        assert_eq!(state.schedule(true, at(1002)), Some(due), "{kind:?}");
        state.begin(due);
        assert_eq!(state.schedule(true, due), Some(due + s(10)));
        // A slow one is followed at once.
        let late = due + s(25);
        let _ = state.finish(&"a".into(), Outcome::Success, late);
        if kind != ProbeKind::Startup {
            assert_eq!(state.schedule(true, late), Some(late));
        }
    }
}

#[test]
fn a_created_container_counts_its_delay_from_its_start() {
    let delayed = Timing {
        initial_delay: s(15),
        ..timing()
    };
    let mut state = ProbeState::new(ProbeKind::Readiness, delayed, at(1000), 0.0);
    let created = Seen {
        running: false,
        ..running("a", 0)
    };
    state.see(Some(&created), s(1000), at(1000));
    assert_eq!(state.schedule(true, at(1000)), None);
    state.see(Some(&running("a", 1)), s(1030), at(1030));
    assert_eq!(state.schedule(true, at(1030)), Some(at(1044)));
}

#[test]
fn a_wall_clock_step_does_not_eat_the_initial_delay() {
    let delayed = Timing {
        initial_delay: s(15),
        ..timing()
    };
    let mut state = fresh(ProbeKind::Readiness, delayed);
    state.see(Some(&running("b", 86400)), s(1007), at(1007));
    assert_eq!(state.schedule(true, at(1007)), Some(at(1017)));
}

#[test]
fn an_instance_that_follows_without_a_gap_has_its_own_delay() {
    let delayed = Timing {
        initial_delay: s(15),
        ..timing()
    };
    let mut state = fresh(ProbeKind::Readiness, delayed);
    assert_eq!(state.schedule(true, at(1002)), Some(at(1017)));
    state.begin(at(1017));
    state.see(Some(&running("b", 0)), s(1020), at(1020));
    assert_eq!(state.schedule(true, at(1020)), Some(at(1035)));
}

#[test]
fn containers_older_than_the_agent_keep_what_they_were() {
    let seen = |age, previous| Seen {
        previous,
        ..running("a", age)
    };
    let verdict_of = |kind, seen: &Seen| {
        let mut state = ProbeState::new(kind, timing(), at(5), 0.5);
        state.see(Some(seen), s(5), at(5));
        let due = state.schedule(true, at(5));
        (state.verdict().map(|(_, v)| v), due)
    };
    use ProbeKind::{Liveness, Readiness, Startup};
    use Verdict::{Failure, Success, Unknown};
    let spread = Some(at(10));
    let table = [
        (Readiness, seen(16, Some(true)), Success, spread),
        (Readiness, seen(16, Some(false)), Failure, spread),
        (Readiness, seen(16, None), Failure, spread),
        // Started less than ten seconds before the agent: like a new one.
        (Readiness, seen(15, Some(true)), Failure, Some(at(5))),
        // Has started, so it is not asked again.
        (Startup, seen(16, Some(true)), Success, None),
        (Startup, seen(16, Some(false)), Unknown, spread),
        (Liveness, seen(16, Some(true)), Success, spread),
    ];
    for (kind, seen, verdict, due) in table {
        assert_eq!(
            verdict_of(kind, &seen),
            (Some(verdict), due),
            "{kind:?} {seen:?}"
        );
    }
}

#[test]
fn an_exit_makes_unready_and_stops_probing() {
    let mut state = fresh(ProbeKind::Readiness, timing());
    let _ = run(&mut state, &[Outcome::Success]);
    let exited = Seen {
        running: false,
        ..running("a", 0)
    };
    state.see(Some(&exited), s(1010), at(1010));
    assert_eq!(state.schedule(true, at(1010)), None);
    assert_eq!(state.verdict(), Some((&"a".into(), Verdict::Failure)));
    // A result that was still under way for another instance changes nothing.
    assert_eq!(state.finish(&"z".into(), Outcome::Success, at(1011)), None);
}

#[test]
fn a_stopped_probe_is_silent_and_good() {
    let mut state = fresh(ProbeKind::Liveness, timing());
    let _ = run(&mut state, &[Outcome::Failure; 2]);
    state.stop();
    assert_eq!(state.schedule(true, at(3000)), None);
    assert_eq!(state.finish(&"a".into(), Outcome::Failure, at(3000)), None);
    assert_eq!(state.verdict(), Some((&"a".into(), Verdict::Success)));
}

#[test]
fn a_probe_born_beside_a_running_container_ticks_from_its_start() {
    let mut state = ProbeState::new(ProbeKind::Liveness, timing(), at(1000), 0.0);
    state.align(s(23), at(1000));
    state.see(Some(&running("a", 23)), s(1000), at(1000));
    assert_eq!(state.schedule(true, at(1000)), Some(at(1007)));
}
