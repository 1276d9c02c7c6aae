//! Runs scenarios. Those that share go side by side on one bed with one agent; the others bring a
//! bed of their own, and never more than [`BEDS`] beds are up at once.

use std::cell::RefCell;
use std::panic::AssertUnwindSafe;
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::LocalBoxFuture;
use tokio::sync::Semaphore;
use tokio::task::{JoinSet, LocalSet};
use tokio::time::Instant;

use crate::Stage;

/// Two cores carry no more.
const BEDS: usize = 2;
/// Scenarios at once on the shared bed. They mostly wait.
const SIDE_BY_SIDE: usize = 6;
/// A scenario has deadlines of its own; this one is for mistakes in them.
const LIMIT: Duration = Duration::from_secs(600);

/// What scenarios share.
#[allow(async_fn_in_trait, reason = "everything here runs on one thread")]
pub trait Common: Sized + 'static {
    async fn shared() -> Self;

    /// Takes it down; nothing may be left of it.
    async fn down(self);
}

impl Common for Stage {
    async fn shared() -> Self {
        Self::shared().await
    }

    async fn down(self) {
        self.down().await;
    }
}

/// A scenario on what is shared.
pub type OnStage<S> = fn(Rc<S>) -> LocalBoxFuture<'static, ()>;
/// A scenario by itself.
pub type ByItself = fn() -> LocalBoxFuture<'static, ()>;

/// How a scenario is run.
pub enum Run<S> {
    /// On the shared bed, beside others.
    Shared(OnStage<S>),
    /// On a bed of its own.
    Alone(ByItself),
    /// Without any bed.
    Bare(ByItself),
}

/// One thing that is to hold, under the name it can be asked for.
pub struct Scenario<S> {
    pub name: &'static str,
    pub run: Run<S>,
}

/// Lists scenarios by their paths: `scenarios! { on Stage; shared: life::runs, …; alone: …; bare: … }`.
#[macro_export]
macro_rules! scenarios {
    (on $stage:ty; shared: $($shared:path),+ ; alone: $($alone:path),+ ; $(bare: $($bare:path),+ ;)?) => {
        [
            $($crate::Scenario::<$stage> {
                name: stringify!($shared),
                run: $crate::harness::Run::Shared(|stage| Box::pin(async move { $shared(&stage).await })),
            },)+
            $($crate::Scenario::<$stage> {
                name: stringify!($alone),
                run: $crate::harness::Run::Alone(|| Box::pin($alone())),
            },)+
            $($($crate::Scenario::<$stage> {
                name: stringify!($bare),
                run: $crate::harness::Run::Bare(|| Box::pin($bare())),
            },)+)?
        ]
    };
}

/// What the command line asks for; the words are libtest's, as far as they make sense here.
#[derive(Debug, Default)]
struct Wish {
    filters: Vec<String>,
    skip: Vec<String>,
    exact: bool,
    list: bool,
}

impl Wish {
    fn read(arguments: impl Iterator<Item = String>) -> Self {
        let mut wish = Self::default();
        let mut arguments = arguments;
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--exact" => wish.exact = true,
                "--list" => wish.list = true,
                "--skip" => wish.skip.extend(arguments.next()),
                "--test-threads" | "--format" | "--color" => drop(arguments.next()),
                other if other.starts_with('-') => {}
                _ => wish.filters.push(argument),
            }
        }
        wish
    }

    fn wants(&self, name: &str) -> bool {
        let is = |filter: &String| match self.exact {
            true => name == filter,
            false => name.contains(filter.as_str()),
        };
        !self.skip.iter().any(is) && (self.filters.is_empty() || self.filters.iter().any(is))
    }
}

/// Name, how long it took, and why it failed.
type Verdict = (&'static str, Duration, Result<(), String>);

/// The `main` of a test binary of scenarios.
pub fn main<S: Common>(scenarios: impl IntoIterator<Item = Scenario<S>>) -> ExitCode {
    let wish = Wish::read(std::env::args().skip(1));
    let chosen: Vec<Scenario<S>> = scenarios
        .into_iter()
        .filter(|s| wish.wants(s.name))
        .collect();
    if wish.list {
        for scenario in &chosen {
            println!("{}: test", scenario.name);
        }
        return ExitCode::SUCCESS;
    }
    if !cfg!(target_os = "linux") || !rustix::process::geteuid().is_root() {
        eprintln!(
            "the end-to-end tests need Linux and root rights: they make cgroups, mounts and network interfaces"
        );
        return ExitCode::FAILURE;
    }
    remember_places_of_panics();
    // One thread is enough for those who mostly wait, and leaves the cores to the agents.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let failed = LocalSet::new().block_on(&runtime, run_all(chosen));
    match failed {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

async fn run_all<S: Common>(chosen: Vec<Scenario<S>>) -> usize {
    println!("\nrunning {} scenarios", chosen.len());
    let begun = Instant::now();
    let beds = Arc::new(Semaphore::new(BEDS));
    let mut groups: JoinSet<Vec<Verdict>> = JoinSet::new();
    let (mut shared, mut others) = (Vec::new(), Vec::new());
    for scenario in chosen {
        match scenario.run {
            Run::Shared(run) => shared.push((scenario.name, run)),
            Run::Alone(run) => others.push((scenario.name, run, true)),
            Run::Bare(run) => others.push((scenario.name, run, false)),
        }
    }
    // The shared bed is asked for first, so that it is there from the beginning.
    if !shared.is_empty() {
        let permit = beds.clone().acquire_owned().await;
        groups.spawn_local(async move {
            let verdicts = run_shared(shared).await;
            drop(permit);
            verdicts
        });
    }
    for (name, run, bed) in others {
        let beds = beds.clone();
        groups.spawn_local(async move {
            let _permit = match bed {
                true => beds.acquire_owned().await.ok(),
                false => None,
            };
            vec![judge(name, run()).await]
        });
    }
    let verdicts: Vec<Verdict> = groups.join_all().await.into_iter().flatten().collect();
    report(&verdicts, begun.elapsed())
}

async fn run_shared<S: Common>(scenarios: Vec<(&'static str, OnStage<S>)>) -> Vec<Verdict> {
    let stage = match guarded(S::shared()).await {
        Ok(stage) => Rc::new(stage),
        Err(why) => {
            let failed = |(name, _): &(&'static str, _)| {
                (*name, Duration::ZERO, Err(format!("no shared bed: {why}")))
            };
            return scenarios.iter().map(failed).collect();
        }
    };
    let places = Arc::new(Semaphore::new(SIDE_BY_SIDE));
    let mut tasks = JoinSet::new();
    for (name, run) in scenarios {
        let (places, stage) = (places.clone(), stage.clone());
        tasks.spawn_local(async move {
            let _place = places.acquire_owned().await;
            judge(name, run(stage)).await
        });
    }
    let mut verdicts = tasks.join_all().await;
    if let Some(stage) = Rc::into_inner(stage) {
        verdicts.push(judge("the shared bed is left clean", stage.down()).await);
    }
    verdicts
}

async fn judge(name: &'static str, scenario: impl Future<Output = ()>) -> Verdict {
    let begun = Instant::now();
    let outcome = match tokio::time::timeout(LIMIT, guarded(scenario)).await {
        Ok(outcome) => outcome,
        Err(_) => Err(format!("did not end within {LIMIT:?}")),
    };
    let took = begun.elapsed();
    let word = if outcome.is_ok() { "ok" } else { "FAILED" };
    println!("test {name} ... {word} ({:.1}s)", took.as_secs_f64());
    if let Err(why) = &outcome {
        println!("\n---- {name} ----\n{why}\n");
    }
    (name, took, outcome)
}

thread_local! {
    static LAST_PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Scenarios run beside each other, so what a panic says is kept for the report instead of printed.
fn remember_places_of_panics() {
    std::panic::set_hook(Box::new(|info| {
        LAST_PANIC.with_borrow_mut(|last| *last = info.to_string());
    }));
}

async fn guarded<T>(scenario: impl Future<Output = T>) -> Result<T, String> {
    let outcome = AssertUnwindSafe(scenario).catch_unwind().await;
    // The panic was on this thread, just now.
    outcome.map_err(|_| LAST_PANIC.take())
}

fn report(verdicts: &[Verdict], took: Duration) -> usize {
    let failed = verdicts.iter().filter(|v| v.2.is_err()).count();
    if failed > 0 {
        println!("\nfailed:");
        for (name, ..) in verdicts.iter().filter(|v| v.2.is_err()) {
            println!("    {name}");
        }
    }
    let word = if failed == 0 { "ok" } else { "FAILED" };
    let passed = verdicts.len() - failed;
    println!(
        "\ntest result: {word}. {passed} passed; {failed} failed; finished in {:.1}s\n",
        took.as_secs_f64()
    );
    failed
}
