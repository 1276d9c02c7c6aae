//! The simulation itself: it is the same every time, it notices what is broken on purpose, and the
//! agent holds all laws under it.

#![allow(clippy::unwrap_used)] // helpers of tests

use krablet_sim::{Law, Mutation, Options, run_seed};

#[test]
fn two_runs_of_one_seed_leave_the_same_trace() {
    for seed in 0..10 {
        let first = run_seed(seed, Options::default()).unwrap();
        let second = run_seed(seed, Options::default()).unwrap();
        assert_eq!(first.hash, second.hash, "seed {seed}");
    }
    let other = run_seed(10, Options::default()).unwrap();
    assert_ne!(other.hash, run_seed(11, Options::default()).unwrap().hash);
}

#[test]
fn the_laws_hold() {
    for seed in 0..300 {
        let report = run_seed(seed, Options::default()).unwrap();
        if let Some(broken) = report.broken {
            panic!("seed {seed}: {broken}\n{}", report.tail.join("\n"));
        }
    }
}

/// Schedules in which a mutation has to be noticed. Most take a few; what is rare must not hang on a few of them.
const SEEDS: u64 = 200;

/// The laws that a mutation breaks, in as many seeds as it takes to break that one.
fn noticed(mutation: Mutation, cluster: bool, law: &Law) -> Vec<Law> {
    let options = Options {
        mutation: Some(mutation),
        cluster: Some(cluster),
        ..Options::default()
    };
    let mut laws: Vec<Law> = Vec::new();
    for seed in 0..SEEDS {
        laws.extend(run_seed(seed, options).unwrap().broken.map(|b| b.law));
        if laws.contains(law) {
            break;
        }
    }
    laws.sort();
    laws.dedup();
    laws
}

#[test]
fn what_is_broken_on_purpose_is_noticed() {
    check_noticed(
        false,
        &[
            (Mutation::DoubleStart, Law::OneInstance),
            (Mutation::ForgetExit, Law::NoExitLost),
            (Mutation::IgnoreInitOrder, Law::InitOrder),
            (Mutation::SkipKill, Law::Converges),
            // What was not stopped still runs when its successor of the same name starts.
            (Mutation::SkipKill, Law::OneOfAName),
            (Mutation::LateStart, Law::NothingAfterEnd),
            (Mutation::CountReset, Law::CountsGrow),
            (Mutation::StaleStatus, Law::NoStatusBack),
            (Mutation::NoisyEvents, Law::Quiet),
            (Mutation::LeakCgroup, Law::Converges),
            (Mutation::SkipResize, Law::Converges),
            (Mutation::UndoResize, Law::SizesForward),
            (Mutation::ForgetEphemeral, Law::OnceOnly),
            (Mutation::ForgetEnded, Law::EndedForGood),
            (Mutation::EarlyUnmount, Law::NotUnderfoot),
            (Mutation::SkipRemoval, Law::WholeRounds),
            (Mutation::FastClock, Law::InTime),
            (Mutation::Zombie, Law::DeadIsDead),
        ],
    );
}

#[test]
fn what_is_broken_at_the_api_server_is_noticed() {
    check_noticed(
        true,
        &[
            (Mutation::IgnoreUid, Law::RightPod),
            (Mutation::HastyDelete, Law::EndsEmpty),
            (Mutation::OldStatus, Law::ToldForward),
            (Mutation::LoseStatus, Law::Converges),
        ],
    );
}

fn check_noticed(cluster: bool, expected: &[(Mutation, Law)]) {
    for (mutation, law) in expected {
        let laws = noticed(*mutation, cluster, law);
        assert!(laws.contains(law), "{mutation} broke {laws:?}, not {law:?}");
    }
}
