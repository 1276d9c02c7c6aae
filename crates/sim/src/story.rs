//! A schedule: what happens in the world, and when, drawn from the seed before it begins.

use std::time::Duration;

use jiff::SignedDuration;
use rand::RngExt;
use rand::rngs::StdRng;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// A static pod of this name: appears, or its manifest changes (another UID).
    WriteManifest(usize),
    RemoveManifest(usize),
    /// The manifest goes and comes back as it was, so the UID is the same.
    Rewrite(usize),
    /// A pod from the API server: appears, or its image changes.
    Bind(usize),
    /// It is to have other resources.
    Resize(usize),
    /// Somebody looks into it: one more ephemeral container.
    Debug(usize),
    /// Deletion with grace is requested.
    Delete(usize),
    /// Gone from the API server without having ended.
    ForceDelete(usize),
    KillAgent,
    /// Killed at the n-th call from now.
    KillAgentAtCall(u64),
    RuntimeDown(Duration),
    /// It is started again, and is there at once.
    RuntimeRestarts,
    /// Sandboxes and containers are dead, the agent is not.
    RuntimeLosesPods,
    /// All of the machine.
    Reboot,
    CutEvents,
    StepClock(SignedDuration),
    /// Another pod of the same name at once. From here on all are about an API server.
    Replace(usize),
    DeleteMirror(usize),
    /// One of those who keep an object, though it is deleted, does so no longer.
    Release(usize),
    /// Somebody else writes into a status.
    Meddle(usize),
    ServerDown(Duration),
    CutWatches,
    /// Watches have to begin anew.
    ForgetHistory,
}

/// How bad the weather is, in parts of a call, a file operation or an event.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Severity {
    pub(crate) calls: f64,
    pub(crate) files: f64,
    pub(crate) events: f64,
    /// Of probes and hooks.
    pub(crate) answers: f64,
    /// Of containers that end by themselves.
    pub(crate) crashes: f64,
    /// Of calls to the API server and of news from it.
    pub(crate) api: f64,
}

#[derive(Clone, Debug)]
pub(crate) struct Story {
    pub(crate) severity: Severity,
    /// Patience with one call.
    pub(crate) deadline: Duration,
    pub(crate) actions: Vec<(Duration, Action)>,
    /// When the bad weather ends.
    pub(crate) calm_at: Duration,
}

const STATIC_NAMES: usize = 3;
const API_NAMES: usize = 2;

impl Story {
    pub(crate) fn draw(dice: &mut StdRng, in_cluster: bool) -> Self {
        let of = |dice: &mut StdRng, from: &[f64]| from[dice.random_range(0..from.len())];
        let mut severity = Severity {
            calls: of(dice, &[0.0, 0.02, 0.08, 0.2, 0.35]),
            files: of(dice, &[0.0, 0.0, 0.01, 0.05]),
            events: of(dice, &[0.0, 0.1, 0.5, 1.0]),
            answers: of(dice, &[0.0, 0.1, 0.4]),
            crashes: of(dice, &[0.0, 0.3, 0.8]),
            api: 0.0,
        };
        let deadlines = [5, 20, 120];
        let deadline = Duration::from_secs(deadlines[dice.random_range(0..deadlines.len())]);
        let calm_at = Duration::from_secs(dice.random_range(20..150));
        let mut actions: Vec<(Duration, Action)> = Vec::new();
        for name in 0..dice.random_range(1..=STATIC_NAMES) {
            actions.push((Duration::ZERO, Action::WriteManifest(name)));
        }
        let count = dice.random_range(3..14);
        for _ in 0..count {
            let at = Duration::from_millis(dice.random_range(0..calm_at.as_millis() as u64));
            actions.push((at, action(dice)));
        }
        if in_cluster {
            severity.api = of(dice, &[0.0, 0.02, 0.1, 0.3]);
            for _ in 0..dice.random_range(2..12) {
                let at = Duration::from_millis(dice.random_range(0..calm_at.as_millis() as u64));
                actions.push((at, server_action(dice)));
            }
        }
        // Stable: what is drawn first happens first.
        actions.sort_by_key(|(at, _)| *at);
        Self {
            severity,
            deadline,
            actions,
            calm_at,
        }
    }
}

fn action(dice: &mut StdRng) -> Action {
    let manifest = dice.random_range(0..STATIC_NAMES);
    let bound = dice.random_range(0..API_NAMES);
    match dice.random_range(0..26) {
        0..=3 => Action::WriteManifest(manifest),
        4 | 5 => Action::RemoveManifest(manifest),
        6 => Action::Rewrite(manifest),
        7..=9 => Action::Bind(bound),
        10 => Action::Delete(bound),
        11 => Action::ForceDelete(bound),
        12 | 13 => Action::KillAgent,
        14 | 15 => Action::KillAgentAtCall(dice.random_range(1..60)),
        16 => Action::RuntimeDown(Duration::from_millis(dice.random_range(100..25_000))),
        17 => match dice.random_bool(0.5) {
            true => Action::RuntimeLosesPods,
            false => Action::Reboot,
        },
        18 => Action::CutEvents,
        19..=21 => Action::Resize(bound),
        22 | 23 => Action::Debug(bound),
        24 => Action::RuntimeRestarts,
        _ => {
            let far = [2, 60, 4000][dice.random_range(0..3)];
            Action::StepClock(SignedDuration::from_secs(dice.random_range(-far..=far)))
        }
    }
}

fn server_action(dice: &mut StdRng) -> Action {
    let manifest = dice.random_range(0..STATIC_NAMES);
    let bound = dice.random_range(0..API_NAMES);
    match dice.random_range(0..23) {
        0..=3 => Action::Bind(bound),
        4..=6 => Action::Delete(bound),
        7 => Action::ForceDelete(bound),
        8 | 9 => Action::Replace(bound),
        10 => Action::DeleteMirror(manifest),
        11 => Action::Meddle(bound),
        12 | 13 => Action::ServerDown(Duration::from_millis(dice.random_range(100..40_000))),
        14 => Action::CutWatches,
        15..=17 => Action::Resize(bound),
        18 | 19 => Action::Debug(bound),
        20 | 21 => Action::Release(bound),
        _ => Action::ForgetHistory,
    }
}
