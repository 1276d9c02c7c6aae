//! Runs schedules of the simulated world: many seeds over all cores, or one with its trace.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use krablet_sim::{Broken, Law, Mutation, Options, Report, run_seed};

const USAGE: &str = "\
usage: krablet-sim [--seeds N] [--from N] [--threads N] [--mutation NAME] [--cluster] [--alone] [--quiet]
       krablet-sim --seed N [--trace] [--log] [--mutation NAME] [--cluster] [--alone]
       krablet-sim --list-mutations";

/// Failures told in full; the rest are counted.
const TOLD: usize = 3;

struct Args {
    seeds: u64,
    from: u64,
    seed: Option<u64>,
    threads: usize,
    options: Options,
    quiet: bool,
}

fn parse(mut words: impl Iterator<Item = String>) -> Result<Args, String> {
    let mut args = Args {
        seeds: 1000,
        from: 0,
        seed: None,
        threads: std::thread::available_parallelism().map_or(1, |n| n.get()),
        options: Options::default(),
        quiet: false,
    };
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
        match word.as_str() {
            "--seeds" => args.seeds = number(&value()?)?,
            "--from" => args.from = number(&value()?)?,
            "--seed" => args.seed = Some(number(&value()?)?),
            "--threads" => args.threads = number(&value()?)?.max(1) as usize,
            "--mutation" => args.options.mutation = Some(value()?.parse()?),
            "--trace" => args.options.print = true,
            "--cluster" => args.options.cluster = Some(true),
            "--alone" => args.options.cluster = Some(false),
            "--log" => log(),
            "--quiet" => args.quiet = true,
            other => return Err(format!("unknown argument {other:?}")),
        }
    }
    Ok(args)
}

/// What the agent itself has to say, beside the trace.
fn log() {
    tracing_subscriber::fmt()
        .with_writer(std::io::stdout)
        .with_max_level(tracing::Level::DEBUG)
        .without_time()
        .with_ansi(false)
        .init();
}

fn number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("{text:?} is no number"))
}

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1).peekable();
    if words.peek().map(String::as_str) == Some("--list-mutations") {
        Mutation::ALL.iter().for_each(|m| println!("{m}"));
        return ExitCode::SUCCESS;
    }
    let args = match parse(words) {
        Ok(args) => args,
        Err(why) => {
            eprintln!("krablet-sim: {why}\n{USAGE}");
            return ExitCode::FAILURE;
        }
    };
    let ended = match args.seed {
        Some(seed) => run_one(seed, &args),
        None => run_many(&args),
    };
    match ended {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("krablet-sim: {e}");
            ExitCode::FAILURE
        }
    }
}

/// A panic of the schedule itself, and not of one of its tasks, is told like any other failure: with
/// its seed and how to replay it.
fn guarded(seed: u64, run: impl FnOnce() -> std::io::Result<Report>) -> std::io::Result<Report> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let words = panic.downcast_ref::<String>().map(String::as_str);
        let words = words.or_else(|| panic.downcast_ref::<&str>().copied());
        Ok(Report {
            seed,
            hash: 0,
            broken: Some(Broken {
                law: Law::LivesOn,
                how: format!("the schedule panicked: {}", words.unwrap_or("no message")),
            }),
            tail: Vec::new(),
        })
    })
}

fn run_one(seed: u64, args: &Args) -> std::io::Result<bool> {
    let report = guarded(seed, || run_seed(seed, args.options))?;
    match &report.broken {
        Some(_) => tell(&report, args),
        None => println!("seed {seed}: all laws held, trace {:016x}", report.hash),
    }
    Ok(report.broken.is_none())
}

fn tell(report: &Report, args: &Args) {
    let Some(broken) = &report.broken else {
        return;
    };
    let seed = report.seed;
    println!(
        "\nseed {seed} broke a law\n  {broken}\nthe end of its trace {:016x}:",
        report.hash
    );
    if !args.options.print {
        report.tail.iter().for_each(|line| println!("  {line}"));
    }
    let mutation = args.options.mutation;
    let mut more = mutation.map_or(String::new(), |m| format!(" --mutation {m}"));
    if let Some(cluster) = args.options.cluster {
        more.push_str(if cluster { " --cluster" } else { " --alone" });
    }
    match more.is_empty() {
        true => println!("replay: make sim SEED={seed}"),
        false => println!("replay: krablet-sim --seed {seed} --trace{more}"),
    }
}

/// What the threads share.
struct Progress {
    next: AtomicU64,
    done: AtomicU64,
    stop: AtomicBool,
    failed: Mutex<Vec<Report>>,
    /// Seeds that run now.
    running: Mutex<BTreeSet<u64>>,
}

impl Progress {
    fn failures(&self) -> MutexGuard<'_, Vec<Report>> {
        let failed = self.failed.lock();
        failed.unwrap_or_else(PoisonError::into_inner)
    }

    fn running(&self) -> MutexGuard<'_, BTreeSet<u64>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn run_many(args: &Args) -> std::io::Result<bool> {
    let progress = Progress {
        next: AtomicU64::new(args.from),
        done: AtomicU64::new(0),
        stop: AtomicBool::new(false),
        failed: Mutex::default(),
        running: Mutex::default(),
    };
    let clock = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()?;
    let begun = clock.block_on(async { tokio::time::Instant::now() });
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..args.threads)
            .map(|_| scope.spawn(|| work(args, &progress)))
            .collect();
        if !args.quiet {
            clock.block_on(show(args, &progress, || {
                workers.iter().all(|w| w.is_finished())
            }));
        }
        let dead = || std::io::Error::other("a thread that runs schedules panicked");
        workers
            .into_iter()
            .try_for_each(|w| w.join().unwrap_or_else(|_| Err(dead())))
    })?;
    let mut failed = progress.failures();
    failed.sort_by_key(|report| report.seed);
    failed
        .iter()
        .take(TOLD)
        .for_each(|report| tell(report, args));
    let done = progress.done.load(Ordering::Relaxed);
    let took = begun.elapsed().as_secs_f64();
    println!(
        "{done} schedules in {took:.1} s ({:.0}/s), {} broke a law{}",
        done as f64 / took.max(0.001),
        failed.len(),
        by_law(&failed),
    );
    if failed.len() > TOLD {
        for report in failed.iter() {
            let broken = report.broken.as_ref().map(ToString::to_string);
            println!("seed {}: {}", report.seed, broken.unwrap_or_default());
        }
    }
    if done < args.seeds {
        println!("only {done} of {} schedules were run", args.seeds);
    }
    Ok(failed.is_empty() && done >= args.seeds)
}

fn by_law(failed: &[Report]) -> String {
    let mut laws = BTreeMap::new();
    for broken in failed.iter().filter_map(|r| r.broken.as_ref()) {
        *laws.entry(broken.law).or_insert(0_u64) += 1;
    }
    let each: Vec<String> = laws.iter().map(|(law, n)| format!("{law:?} {n}")).collect();
    match each.is_empty() {
        true => String::new(),
        false => format!(" ({})", each.join(", ")),
    }
}

fn work(args: &Args, progress: &Progress) -> std::io::Result<()> {
    let end = args.from.saturating_add(args.seeds);
    loop {
        let seed = progress.next.fetch_add(1, Ordering::Relaxed);
        if seed >= end || progress.stop.load(Ordering::Relaxed) {
            return Ok(());
        }
        progress.running().insert(seed);
        let report = guarded(seed, || run_seed(seed, args.options))?;
        progress.running().remove(&seed);
        progress.done.fetch_add(1, Ordering::Relaxed);
        if report.broken.is_some() {
            let mut failed = progress.failures();
            failed.push(report);
            // Enough to see a pattern.
            if failed.len() >= 100 {
                progress.stop.store(true, Ordering::Relaxed);
            }
        }
    }
}

/// One line every two seconds, until all threads are done.
async fn show(args: &Args, progress: &Progress, ended: impl Fn() -> bool) {
    let mut shown = 0;
    let mut ticks = 0_u32;
    while !ended() {
        tokio::time::sleep(Duration::from_millis(50)).await;
        ticks += 1;
        if ticks.is_multiple_of(40) {
            let done = progress.done.load(Ordering::Relaxed);
            let failed = progress.failures().len();
            eprintln!(
                "{done}/{} schedules, {:.0}/s, {failed} broke a law",
                args.seeds,
                (done - shown) as f64 / 2.0
            );
            if done == shown {
                eprintln!("still running: seeds {:?}", progress.running());
            }
            shown = done;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_a_failure_of_its_seed() {
        let told = |run: fn() -> std::io::Result<Report>| {
            let report = guarded(7, run).unwrap();
            (report.seed, report.broken.map(|broken| broken.how))
        };
        let with = |words: &str| (7, Some(format!("the schedule panicked: {words}")));
        assert_eq!(told(|| panic!("plain words")), with("plain words"));
        let number = || panic!("a number: {}", std::hint::black_box(3));
        assert_eq!(told(number), with("a number: 3"));
        assert_eq!(
            told(|| std::panic::panic_any(3)),
            with("no message"),
            "what is no text"
        );
        let well = guarded(7, || run_seed(7, Options::default())).unwrap();
        assert!(well.broken.is_none(), "{well:?}");
        assert!(guarded(7, || Err(std::io::Error::other("no threads"))).is_err());
    }
}
