//! The container runtime as the node tells of it: asked every few seconds, more often until it is
//! ready for the first time.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use krablet_linux::WallClock;
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::{info, warn};

use crate::health::{HealthBoard, RuntimeConditions, RuntimeHealth};

/// What the status call of a runtime tells, together with its name and version.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuntimeReport {
    pub conditions: RuntimeConditions,
    pub facts: RuntimeFacts,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuntimeFacts {
    pub name: String,
    pub version: String,
    pub handlers: Vec<Handler>,
    /// Whether the policy is known to the runtime; none if it does not say.
    pub supplemental_groups_policy: Option<bool>,
}

/// One way of the runtime to run a pod. The default one has no name.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Handler {
    pub name: String,
    pub recursive_read_only_mounts: bool,
    pub user_namespaces: bool,
}

#[async_trait]
pub trait RuntimeStatus: Send + Sync {
    /// Within a deadline of its own. An error names the call.
    async fn report(&self) -> Result<RuntimeReport, String>;
}

#[derive(Clone, Copy, Debug)]
pub struct RuntimeWatchConfig {
    pub period: Duration,
    /// Until the runtime is ready for the first time, but not for ever.
    pub first_period: Duration,
    pub first_for: Duration,
    /// While it is not ready.
    pub troubled_period: Duration,
    /// Silent for so long, it counts as down.
    pub down_after: Duration,
}

impl Default for RuntimeWatchConfig {
    fn default() -> Self {
        Self {
            period: Duration::from_secs(5),
            first_period: Duration::from_millis(100),
            first_for: Duration::from_secs(120),
            troubled_period: Duration::from_secs(1),
            down_after: Duration::from_secs(30),
        }
    }
}

/// Asks the runtime how it is, for as long as it runs, and writes the answer on the board.
pub struct RuntimeWatch {
    config: RuntimeWatchConfig,
    runtime: Arc<dyn RuntimeStatus>,
    clock: Arc<dyn WallClock>,
    board: HealthBoard,
    facts: watch::Sender<Option<RuntimeFacts>>,
    silent_since: Option<Instant>,
    was_ready: bool,
}

impl RuntimeWatch {
    pub fn build(
        config: RuntimeWatchConfig,
        runtime: Arc<dyn RuntimeStatus>,
        clock: Arc<dyn WallClock>,
        board: HealthBoard,
    ) -> (Self, watch::Receiver<Option<RuntimeFacts>>) {
        let (facts, told) = watch::channel(None);
        let watch = Self {
            config,
            runtime,
            clock,
            board,
            facts,
            silent_since: None,
            was_ready: false,
        };
        (watch, told)
    }

    pub async fn run(mut self) {
        let hurry_until = Instant::now() + self.config.first_for;
        loop {
            let asked = (Instant::now(), self.clock.now());
            let ready = match self.runtime.report().await {
                Ok(report) => self.answered(report),
                Err(error) => self.silent(error, asked),
            };
            let first = !self.was_ready && Instant::now() < hurry_until;
            let pause = match ready {
                true => self.config.period,
                false if first => self.config.first_period,
                false => self.config.troubled_period,
            };
            tokio::time::sleep(pause).await;
        }
    }

    /// Tells whether it is ready.
    fn answered(&mut self, report: RuntimeReport) -> bool {
        if self.silent_since.take().is_some() {
            info!("The container runtime answers again");
        }
        let ready = is_ready(&report.conditions);
        self.was_ready |= ready;
        let mut facts = report.facts;
        // A runtime lists its handlers in any order; a new order is no news.
        facts.handlers.sort();
        let facts = Some(facts);
        self.facts.send_if_modified(|held| {
            let changed = *held != facts;
            *held = facts;
            changed
        });
        let answer = RuntimeHealth::Answers(report.conditions);
        self.board.set(|health| health.runtime = answer);
        ready
    }

    /// The words of the first failure stay, and those of the one that made it count as down. It is silent since it
    /// was first asked in vain, however long that question took to fail.
    fn silent(&mut self, error: String, (asked, wall): (Instant, Timestamp)) -> bool {
        if self.silent_since.is_none() {
            warn!(err = error, "The container runtime does not answer");
        }
        let began = *self.silent_since.get_or_insert(asked);
        let down = began.elapsed() >= self.config.down_after;
        self.board.set(|health| {
            let (since, last) = match &mut health.runtime {
                RuntimeHealth::Silent { down: known, .. } if *known == down => return,
                RuntimeHealth::Silent { since, last, .. } => (*since, last.take()),
                RuntimeHealth::Answers(last) => (wall, Some(std::mem::take(last))),
                RuntimeHealth::Unknown => (wall, None),
            };
            health.runtime = RuntimeHealth::Silent {
                error,
                since,
                down,
                last,
            };
        });
        false
    }
}

fn is_ready(conditions: &RuntimeConditions) -> bool {
    [&conditions.runtime, &conditions.network]
        .into_iter()
        .all(|condition| condition.as_ref().is_some_and(|c| c.status))
}

#[cfg(test)]
mod tests {
    use super::*;
    use krablet_linux::fake::FixedClock;
    use std::collections::VecDeque;
    use std::sync::Mutex;

    /// Answers what it was told, in order, the last one for ever.
    struct Script(Mutex<VecDeque<Result<RuntimeReport, String>>>);

    #[async_trait]
    impl RuntimeStatus for Script {
        async fn report(&self) -> Result<RuntimeReport, String> {
            let mut script = self.0.lock().unwrap();
            match script.len() {
                1 => script[0].clone(),
                _ => script.pop_front().unwrap(),
            }
        }
    }

    fn report(handlers: &[&str]) -> RuntimeReport {
        let handler = |name: &&str| Handler {
            name: (*name).to_owned(),
            ..Handler::default()
        };
        RuntimeReport {
            conditions: RuntimeConditions::ready(),
            facts: RuntimeFacts {
                handlers: handlers.iter().map(handler).collect(),
                ..RuntimeFacts::default()
            },
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_runtime_is_down_after_a_while_and_comes_back() {
        let script = [
            Err("Status: connection refused".to_owned()),
            Ok(report(&["runc", ""])),
            Ok(report(&["", "runc"])),
            Err("Status: no answer within 10s".to_owned()),
        ];
        let clock = FixedClock::at(Timestamp::UNIX_EPOCH);
        let runtime = Arc::new(Script(Mutex::new(script.into())));
        let board = HealthBoard::default();
        let mut told = board.subscribe();
        let (watch, mut facts) = RuntimeWatch::build(
            RuntimeWatchConfig::default(),
            runtime.clone(),
            Arc::new(clock),
            board,
        );
        let task = tokio::spawn(watch.run());
        let mut next = async || {
            told.changed().await.unwrap();
            told.borrow_and_update().runtime.clone()
        };
        let ready = RuntimeHealth::Answers(RuntimeConditions::ready());
        let silent = |health: RuntimeHealth| match health {
            RuntimeHealth::Silent { down, last, .. } => Some((down, last.is_some())),
            _ => None,
        };
        assert_eq!(silent(next().await), Some((false, false)));
        assert_eq!(next().await, ready);
        let names: Vec<String> = {
            let facts = facts.borrow_and_update();
            let handlers = facts.iter().flat_map(|f| &f.handlers);
            handlers.map(|h| h.name.clone()).collect()
        };
        assert_eq!(names, ["", "runc"]);
        assert_eq!(silent(next().await), Some((false, true)));
        assert!(!facts.has_changed().unwrap(), "another order is no news");
        assert_eq!(silent(next().await), Some((true, true)));
        runtime.0.lock().unwrap()[0] = Ok(report(&[]));
        assert_eq!(next().await, ready);
        task.abort();
    }

    /// Answers once; then its questions fail only after that long.
    struct Hangs(Duration, Mutex<bool>);

    #[async_trait]
    impl RuntimeStatus for Hangs {
        async fn report(&self) -> Result<RuntimeReport, String> {
            if !std::mem::replace(&mut *self.1.lock().unwrap(), true) {
                return Ok(report(&[]));
            }
            tokio::time::sleep(self.0).await;
            Err("Version: no answer within 30s".to_owned())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_question_that_hangs_counts_from_when_it_was_asked() {
        let config = RuntimeWatchConfig::default();
        let runtime = Arc::new(Hangs(config.down_after, Mutex::default()));
        let board = HealthBoard::default();
        let mut told = board.subscribe();
        let clock = Arc::new(FixedClock::at(Timestamp::UNIX_EPOCH));
        let (watch, _) = RuntimeWatch::build(config, runtime, clock, board);
        let task = tokio::spawn(watch.run());
        told.changed().await.unwrap();
        told.mark_unchanged();
        told.changed().await.unwrap();
        let health = told.borrow().runtime.clone();
        assert!(
            matches!(health, RuntimeHealth::Silent { down: true, .. }),
            "{health:?}"
        );
        task.abort();
    }
}
