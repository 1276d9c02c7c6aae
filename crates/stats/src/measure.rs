//! What volumes take, found in the background: one volume at a time for each who asks, a few entries at a step, and each
//! once a minute, or sooner for who has to know. Whoever asks gets the last figure there is, whoever it was found for; a
//! volume that hangs holds up nobody.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use krablet_linux::{InTurn, Threads, WallClock};
use krablet_metrics::HistogramVec;
use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statvfs, statx};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::reading::{FileSystem, Usage};
use crate::walk::Walk;

/// How long a figure stands at most.
const LONGEST: Duration = Duration::from_secs(60);
/// A figure stands so many times as long as it took to find: of a core, a volume gets no more than that.
const WORTH: u32 = 20;
/// Entries of one step, and the pause after it.
const STEP: u64 = 2_000;
const PAUSE: Duration = Duration::from_millis(5);
/// A step that takes longer hangs; the volume is left alone until it is through.
const PATIENCE: Duration = Duration::from_secs(10);
/// Volumes that may hang, for each who asks: every one keeps a thread. With that many no other is measured either, until
/// one comes back.
const MOST_STUCK: usize = 64;

/// For whom it is measured. Each has a queue of its own, so that pods are held to their limits however many large volumes
/// a scrape waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asker {
    Scrapes,
    /// Of pods that may keep so much and no more.
    Limits,
}

impl Asker {
    /// How long a figure stands at least.
    fn shortest(self) -> Duration {
        match self {
            Self::Scrapes => LONGEST,
            Self::Limits => crate::local::FRESH,
        }
    }
}

/// How a volume was measured, in upstream's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Method {
    /// Its file system was asked.
    Asked,
    Walked,
}

impl Method {
    fn source(self) -> &'static str {
        match self {
            Self::Asked => "statfs",
            Self::Walked => "du",
        }
    }
}

/// What was found out about one directory.
#[derive(Clone, Debug)]
pub struct Measured {
    pub file_system: FileSystem,
    pub usage: Usage,
    pub at: Timestamp,
    found: Instant,
    took: Duration,
}

impl Measured {
    fn is_fresh(&self, asker: Asker, now: Instant) -> bool {
        let stands = (self.took * WORTH).clamp(asker.shortest(), LONGEST);
        now.saturating_duration_since(self.found) < stands
    }
}

/// What is to be done for one who asks.
#[derive(Default)]
struct Queue {
    /// All that was asked for last.
    wanted: BTreeSet<PathBuf>,
    waiting: VecDeque<PathBuf>,
    /// Being measured; somebody is at work as long as there is one.
    current: Option<PathBuf>,
}

#[derive(Default)]
struct State {
    known: BTreeMap<PathBuf, Measured>,
    scrapes: Queue,
    limits: Queue,
    /// With a step that has not come back.
    stuck: BTreeSet<PathBuf>,
}

impl State {
    fn queue(&mut self, asker: Asker) -> &mut Queue {
        match asker {
            Asker::Scrapes => &mut self.scrapes,
            Asker::Limits => &mut self.limits,
        }
    }

    /// Whether a volume is to be measured for somebody: the figure is missing or old, and nobody is at it.
    fn is_due(&self, path: &Path, asker: Asker, now: Instant) -> bool {
        let known = self.known.get(path);
        let queues = [&self.scrapes, &self.limits];
        !known.is_some_and(|known| known.is_fresh(asker, now))
            && !self.stuck.contains(path)
            && queues.iter().all(|q| q.current.as_deref() != Some(path))
    }

    /// Takes up what is wanted now: queues what is due, and forgets what nobody wants any more.
    fn want(&mut self, asker: Asker, wanted: BTreeSet<PathBuf>, now: Instant) {
        let due = wanted.iter().filter(|path| self.is_due(path, asker, now));
        let waiting = due.cloned().collect();
        let queue = self.queue(asker);
        queue.wanted = wanted;
        queue.waiting = waiting;
        let (scrapes, limits) = (&self.scrapes.wanted, &self.limits.wanted);
        self.known
            .retain(|path, _| scrapes.contains(path) || limits.contains(path));
    }

    /// The next one to measure. What was queued may have been measured for somebody else meanwhile.
    fn next(&mut self, asker: Asker, now: Instant) -> Option<PathBuf> {
        let mut next = self.queue(asker).waiting.pop_front();
        while next.as_ref().is_some_and(|p| !self.is_due(p, asker, now)) {
            next = self.queue(asker).waiting.pop_front();
        }
        next
    }

    fn figures(&self, of: &BTreeSet<PathBuf>) -> BTreeMap<PathBuf, Measured> {
        let known = self.known.iter().filter(|(path, _)| of.contains(*path));
        known.map(|(path, m)| (path.clone(), m.clone())).collect()
    }
}

type Shared = Arc<Mutex<State>>;

/// What a volume's file system tells at once, and the walk if that is not all.
type Begin = Arc<dyn Fn(&Path) -> io::Result<(FileSystem, Option<Walk>)> + Send + Sync>;

/// No writer panics between two writes, so a poisoned state is still whole.
fn lock(state: &Shared) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

pub struct Measure {
    state: Shared,
    clock: Arc<dyn WallClock>,
    /// How long it took, by the source of the figure.
    durations: HistogramVec,
    scrapes: Threads,
    limits: Threads,
    begin: Begin,
    /// Those who measure, while there is something to do.
    work: Mutex<JoinSet<()>>,
}

impl Measure {
    pub fn new(
        clock: Arc<dyn WallClock>,
        durations: HistogramVec,
        threads: fn(usize) -> Threads,
    ) -> Self {
        Self {
            state: Shared::default(),
            clock,
            durations,
            scrapes: threads(MOST_STUCK),
            limits: threads(MOST_STUCK),
            begin: Arc::new(begin),
            work: Mutex::default(),
        }
    }

    /// The figures there are of these directories. Those that are missing or old are looked for, those of directories
    /// that nobody asks for any more forgotten. Needs the runtime's context.
    pub fn figures(&self, asker: Asker, wanted: &BTreeSet<PathBuf>) -> BTreeMap<PathBuf, Measured> {
        let now = Instant::now();
        let mut state = lock(&self.state);
        state.want(asker, wanted.clone(), now);
        if state.queue(asker).current.is_none()
            && let Some(first) = state.next(asker, now)
        {
            state.queue(asker).current = Some(first.clone());
            let mut work = self.work.lock().unwrap_or_else(PoisonError::into_inner);
            while work.try_join_next().is_some() {}
            work.spawn(self.round(asker).measure_all(first));
        }
        state.figures(wanted)
    }

    fn round(&self, asker: Asker) -> Round {
        let threads = match asker {
            Asker::Scrapes => &self.scrapes,
            Asker::Limits => &self.limits,
        };
        Round {
            asker,
            state: self.state.clone(),
            clock: self.clock.clone(),
            durations: self.durations.clone(),
            begin: self.begin.clone(),
            turns: threads.in_turn(),
        }
    }
}

/// Is at work for one who asks, as long as there is something to do.
struct Round {
    asker: Asker,
    state: Shared,
    clock: Arc<dyn WallClock>,
    durations: HistogramVec,
    begin: Begin,
    /// Volumes have many steps, and share a thread until one hangs.
    turns: InTurn,
}

impl Round {
    /// Measures what is current, and then all that waits.
    async fn measure_all(mut self, first: PathBuf) {
        let mut current = Some(first);
        while let Some(path) = current {
            // What cannot be measured has no figure; the next scrape asks again.
            let begun = Instant::now();
            let found = self.measure(&path).await;
            let now = Instant::now();
            let mut state = lock(&self.state);
            if let Ok((file_system, usage, method)) = found {
                let took = now.saturating_duration_since(begun);
                self.durations.observe_duration(&[method.source()], took);
                let measured = Measured {
                    file_system,
                    usage,
                    at: self.clock.now(),
                    found: now,
                    took,
                };
                state.known.insert(path, measured);
            }
            current = state.next(self.asker, now);
            state.queue(self.asker).current = current.clone();
        }
    }

    async fn measure(&mut self, path: &Path) -> io::Result<(FileSystem, Usage, Method)> {
        let (begin, top) = (self.begin.clone(), path.to_owned());
        let (fs, walk) = self.patiently(path, move || begin(&top)).await??;
        let Some(mut walk) = walk else {
            let usage = Usage {
                bytes: fs.used,
                inodes: fs.inodes.saturating_sub(fs.inodes_free),
            };
            return Ok((fs, usage, Method::Asked));
        };
        loop {
            let step = move || {
                let usage = walk.step(STEP);
                (walk, usage)
            };
            let (rest, usage) = self.patiently(path, step).await?;
            if let Some(usage) = usage {
                return Ok((fs, usage, Method::Walked));
            }
            walk = rest;
            sleep(PAUSE).await;
        }
    }

    /// A call that may block for ever, for as long as we care. Until it comes back its volume counts as stuck.
    async fn patiently<T: Send + 'static>(
        &mut self,
        path: &Path,
        call: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<T> {
        let stuck = Stuck::new(path, &self.state);
        let work = self.turns.ask(move || {
            let done = call();
            drop(stuck);
            done
        });
        match timeout(PATIENCE, work).await {
            Ok(done) => done,
            Err(late) => Err(io::Error::new(io::ErrorKind::TimedOut, late)),
        }
    }
}

/// Of a volume with a step under way, also if nobody waits for it any more.
struct Stuck {
    path: PathBuf,
    state: Shared,
}

impl Stuck {
    fn new(path: &Path, state: &Shared) -> Self {
        lock(state).stuck.insert(path.to_owned());
        Self {
            path: path.to_owned(),
            state: state.clone(),
        }
    }
}

impl Drop for Stuck {
    fn drop(&mut self) {
        lock(&self.state).stuck.remove(&self.path);
    }
}

/// A mount of its own is as full as its file system says; anything else is walked through.
fn begin(top: &Path) -> io::Result<(FileSystem, Option<Walk>)> {
    let fs = file_system(top)?;
    let walk = match is_mount(top)? {
        true => None,
        false => Some(Walk::new(top)?),
    };
    Ok((fs, walk))
}

fn is_mount(path: &Path) -> io::Result<bool> {
    let found = statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::MODE)?;
    Ok(found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}

/// The file system a path is on; its device is for others to name.
pub fn file_system(path: &Path) -> io::Result<FileSystem> {
    let found = statvfs(path)?;
    let bytes = |blocks: u64| found.f_frsize.saturating_mul(blocks);
    Ok(FileSystem {
        device: String::new(),
        capacity: bytes(found.f_blocks),
        available: bytes(found.f_bavail),
        used: bytes(found.f_blocks.saturating_sub(found.f_bfree)),
        inodes: found.f_files,
        inodes_free: found.f_ffree,
    })
}

#[cfg(test)]
mod tests {
    use krablet_linux::SystemClock;
    use krablet_metrics::VolumeMetrics;
    use tokio::task::spawn_blocking;

    use super::*;

    fn measure() -> (Measure, HistogramVec) {
        let durations = VolumeMetrics::default().measured;
        let measure = Measure::new(Arc::new(SystemClock), durations.clone(), Threads::new);
        (measure, durations)
    }

    /// How often each source was used.
    fn counted(durations: &HistogramVec) -> Vec<(String, u64)> {
        let all = durations.get().into_iter();
        all.map(|(source, seen)| (source.join(" "), seen.count()))
            .collect()
    }

    async fn until(measure: &Measure, wanted: &BTreeSet<PathBuf>) -> BTreeMap<PathBuf, Measured> {
        loop {
            let found = measure.figures(Asker::Scrapes, wanted);
            if found.len() == wanted.len() {
                return found;
            }
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn figures_come_after_the_first_question_and_go_with_the_last() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("file"), vec![0; 50_000]).unwrap();
        let (measure, durations) = measure();
        let wanted = BTreeSet::from([dir.path().to_owned()]);
        assert!(measure.figures(Asker::Scrapes, &wanted).is_empty());
        let found = until(&measure, &wanted).await;
        let one = &found[dir.path()];
        assert!(one.usage.bytes >= 50_000 && one.usage.inodes == 2);
        assert!(one.file_system.capacity > one.usage.bytes);
        // A fresh figure stands, whatever happens meanwhile.
        std::fs::remove_file(dir.path().join("file")).unwrap();
        let again = measure.figures(Asker::Scrapes, &wanted);
        assert_eq!(again[dir.path()].usage, one.usage);
        assert_eq!(counted(&durations), [("du".to_owned(), 1)]);
        // Who else asks has it too, and it goes with the last who does.
        let theirs = measure.figures(Asker::Limits, &wanted);
        assert_eq!(theirs[dir.path()].usage, one.usage);
        let (none, all) = (BTreeSet::new(), |m: &Measure| lock(&m.state).known.len());
        assert!(measure.figures(Asker::Scrapes, &none).is_empty());
        assert_eq!(all(&measure), 1);
        assert!(measure.figures(Asker::Limits, &none).is_empty());
        assert_eq!(all(&measure), 0);
    }

    #[tokio::test]
    async fn what_is_not_there_has_no_figure_and_a_mount_is_not_walked() {
        let (measure, durations) = measure();
        let wanted = BTreeSet::from([PathBuf::from("/no/such/place"), PathBuf::from("/proc")]);
        loop {
            let found = measure.figures(Asker::Scrapes, &wanted);
            if let Some(proc) = found.get(Path::new("/proc")) {
                assert_eq!(proc.usage.bytes, 0);
                assert_eq!(found.len(), 1);
                assert_eq!(counted(&durations), [("statfs".to_owned(), 1)]);
                return;
            }
            tokio::task::yield_now().await;
        }
    }

    /// Volumes of servers that are away, until `back` is dropped: those whose names say so.
    struct Away {
        dir: tempfile::TempDir,
        measure: Measure,
        back: std::sync::mpsc::Sender<()>,
    }

    impl Away {
        fn new(most: usize) -> Self {
            let (back, away) = std::sync::mpsc::channel();
            let away = Mutex::new(away);
            let (mut measure, _) = measure();
            measure.scrapes = Threads::new(most);
            measure.begin = Arc::new(move |top| {
                if hangs(top) {
                    let _ = away.lock().unwrap().recv();
                }
                begin(top)
            });
            let dir = tempfile::tempdir().unwrap();
            Self { dir, measure, back }
        }

        fn make(&self, names: &[&str]) -> BTreeSet<PathBuf> {
            let paths = names.iter().map(|name| self.dir.path().join(name));
            paths
                .inspect(|path| std::fs::create_dir_all(path).unwrap())
                .collect()
        }

        /// Asks, and is patient with what hangs. The clock stands but for that, since nobody here ever rests.
        async fn ask(&self, wanted: &BTreeSet<PathBuf>) -> BTreeSet<PathBuf> {
            self.measure.figures(Asker::Scrapes, wanted);
            while let Some(path) = self.current() {
                match hangs(&path) {
                    true => tokio::time::advance(PATIENCE).await,
                    false => tokio::task::yield_now().await,
                }
            }
            let found = self.measure.figures(Asker::Scrapes, wanted);
            found.into_keys().collect()
        }

        fn current(&self) -> Option<PathBuf> {
            lock(&self.measure.state).scrapes.current.clone()
        }

        fn stuck(&self) -> BTreeSet<PathBuf> {
            lock(&self.measure.state).stuck.clone()
        }
    }

    fn hangs(path: &Path) -> bool {
        path.to_string_lossy().ends_with("-away")
    }

    fn run(test: impl Future<Output = ()>) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .max_blocking_threads(1)
            .enable_time()
            .start_paused(true)
            .build();
        runtime.unwrap().block_on(test);
    }

    #[test]
    fn volumes_that_hang_keep_no_thread_of_the_pool_and_no_other_volume() {
        run(async {
            let away = Away::new(4);
            let hung = away.make(&["a-away", "b-away", "c-away"]);
            let fine = away.make(&["d"]);
            let all = &hung | &fine;
            assert_eq!(away.ask(&all).await, fine);
            assert_eq!(away.stuck(), hung);
            spawn_blocking(|| ()).await.unwrap();
            drop(away.back);
            assert_eq!(until(&away.measure, &all).await.len(), 4);
        });
    }

    #[test]
    fn with_as_many_as_may_hang_no_other_is_measured_until_one_is_back() {
        run(async {
            let away = Away::new(1);
            let hung = away.make(&["a-away"]);
            let fine = away.make(&["b"]);
            let all = &hung | &fine;
            assert!(away.ask(&all).await.is_empty());
            assert_eq!(away.stuck(), hung);
            // Those who are held to limits have threads of their own.
            while away.measure.figures(Asker::Limits, &fine).is_empty() {
                tokio::task::yield_now().await;
            }
            drop(away.back);
            assert_eq!(until(&away.measure, &all).await.len(), 2);
        });
    }

    fn measured(found: Instant, took: u64) -> Measured {
        Measured {
            file_system: FileSystem::default(),
            usage: Usage::default(),
            at: Timestamp::UNIX_EPOCH,
            found,
            took: Duration::from_millis(took),
        }
    }

    fn paths(names: &[&str]) -> BTreeSet<PathBuf> {
        names.iter().map(PathBuf::from).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn how_long_a_figure_stands() {
        let found = Instant::now();
        // Milliseconds it took, its age in seconds, and for whom it is fresh.
        for (took, age, scrapes, limits) in [
            (0, 0, true, true),
            (0, 8, true, true),
            (0, 9, true, false),
            (1_000, 19, true, true),
            (1_000, 20, true, false),
            (0, 59, true, false),
            (0, 60, false, false),
            (60_000, 59, true, true),
            (60_000, 60, false, false),
        ] {
            let now = found + Duration::from_secs(age);
            let one = measured(found, took);
            let fresh = [Asker::Scrapes, Asker::Limits].map(|asker| one.is_fresh(asker, now));
            assert_eq!(fresh, [scrapes, limits], "{took} ms, {age} s ago");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_volume_is_measured_once_for_all() {
        let now = Instant::now();
        let mut state = State::default();
        state.want(Asker::Scrapes, paths(&["a", "b", "c"]), now);
        state.scrapes.current = state.next(Asker::Scrapes, now);
        assert_eq!(state.scrapes.current.as_deref(), Some(Path::new("a")));
        // Who asks while it is measured does not queue it again, nor does somebody else.
        state.want(Asker::Scrapes, paths(&["a", "b", "c"]), now);
        assert_eq!(state.scrapes.waiting, ["b", "c"].map(PathBuf::from));
        state.want(Asker::Limits, paths(&["a", "b"]), now);
        assert_eq!(state.limits.waiting, ["b"].map(PathBuf::from));
        // Those of limits do not wait for the rest; what is done for them is done for the scrapes.
        state.limits.current = state.next(Asker::Limits, now);
        assert_eq!(state.limits.current.as_deref(), Some(Path::new("b")));
        state.known.insert("a".into(), measured(now, 0));
        state.scrapes.current = state.next(Asker::Scrapes, now);
        assert_eq!(state.scrapes.current.as_deref(), Some(Path::new("c")));
        assert_eq!(state.next(Asker::Scrapes, now), None);
        // What hangs is left alone.
        state.limits.current = None;
        state.stuck.insert("b".into());
        state.want(Asker::Limits, paths(&["b"]), now);
        assert_eq!(state.next(Asker::Limits, now), None);
    }
}
