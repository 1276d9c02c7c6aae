//! What volumes take, found in the background: one volume at a time, a few entries at a step, and each once a minute, or
//! sooner for who has to know. Whoever asks gets the last figure there is; a volume that hangs holds up nobody.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use krablet_linux::WallClock;
use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statvfs, statx};
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{Instant, sleep, timeout};

use crate::reading::{FileSystem, Usage};
use crate::walk::Walk;

/// How long a figure stands at most.
pub(crate) const FRESH: Duration = Duration::from_secs(60);
/// A figure stands so many times as long as it took to find: of a core, a volume gets no more than that.
const WORTH: u32 = 20;
/// Entries of one step, and the pause after it.
const STEP: u64 = 2_000;
const PAUSE: Duration = Duration::from_millis(5);
/// A step that takes longer hangs; the volume is left alone until it is through.
const PATIENCE: Duration = Duration::from_secs(10);

/// What was found out about one directory.
#[derive(Clone, Debug)]
pub struct Measured {
    pub file_system: FileSystem,
    pub usage: Usage,
    pub at: Timestamp,
    found: Instant,
    stands: Duration,
}

#[derive(Default)]
struct State {
    known: BTreeMap<PathBuf, Measured>,
    waiting: VecDeque<PathBuf>,
    /// With a step that has not come back.
    stuck: BTreeSet<PathBuf>,
    at_work: bool,
}

type Shared = Arc<Mutex<State>>;

/// No writer panics between two writes, so a poisoned state is still whole.
fn lock(state: &Shared) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

pub struct Measure {
    state: Shared,
    clock: Arc<dyn WallClock>,
    /// How long a figure stands at least.
    fresh: Duration,
    /// The one who measures, while there is something to do.
    work: Mutex<JoinSet<()>>,
}

impl Measure {
    pub fn new(clock: Arc<dyn WallClock>, fresh: Duration) -> Self {
        Self {
            state: Shared::default(),
            clock,
            fresh,
            work: Mutex::default(),
        }
    }

    /// The figures there are of these directories. Those that are missing or old are looked for, those of other
    /// directories forgotten. Needs the runtime's context.
    pub fn figures(&self, wanted: &BTreeSet<PathBuf>) -> BTreeMap<PathBuf, Measured> {
        let now = Instant::now();
        let mut state = lock(&self.state);
        state.known.retain(|path, _| wanted.contains(path));
        let is_fresh = |m: &Measured| now.saturating_duration_since(m.found) < m.stands;
        let old = wanted
            .iter()
            .filter(|path| !state.known.get(*path).is_some_and(is_fresh));
        let old: VecDeque<PathBuf> = old
            .filter(|path| !state.stuck.contains(*path))
            .cloned()
            .collect();
        state.waiting = old;
        if !state.waiting.is_empty() && !state.at_work {
            state.at_work = true;
            let mut work = self.work.lock().unwrap_or_else(PoisonError::into_inner);
            while work.try_join_next().is_some() {}
            let (state, clock) = (self.state.clone(), self.clock.clone());
            work.spawn(measure_all(state, clock, self.fresh));
        }
        state.known.clone()
    }
}

async fn measure_all(state: Shared, clock: Arc<dyn WallClock>, fresh: Duration) {
    loop {
        let next = {
            let mut state = lock(&state);
            let next = state.waiting.pop_front();
            state.at_work = next.is_some();
            next
        };
        let Some(path) = next else {
            return;
        };
        // What cannot be measured has no figure; the next scrape asks again.
        let begun = Instant::now();
        if let Ok((file_system, usage)) = measure(&path, &state).await {
            let measured = Measured {
                file_system,
                usage,
                at: clock.now(),
                found: Instant::now(),
                stands: (begun.elapsed() * WORTH).clamp(fresh, FRESH),
            };
            lock(&state).known.insert(path, measured);
        }
    }
}

/// A mount of its own is as full as its file system says; anything else is walked through.
async fn measure(path: &Path, state: &Shared) -> io::Result<(FileSystem, Usage)> {
    let top = path.to_owned();
    let begin = move || -> io::Result<(FileSystem, Option<Walk>)> {
        let fs = file_system(&top)?;
        let walk = match is_mount(&top)? {
            true => None,
            false => Some(Walk::new(&top)?),
        };
        Ok((fs, walk))
    };
    let (fs, walk) = patiently(path, state, begin).await??;
    let Some(mut walk) = walk else {
        let usage = Usage {
            bytes: fs.used,
            inodes: fs.inodes.saturating_sub(fs.inodes_free),
        };
        return Ok((fs, usage));
    };
    loop {
        let step = move || {
            let usage = walk.step(STEP);
            (walk, usage)
        };
        let (rest, usage) = patiently(path, state, step).await?;
        if let Some(usage) = usage {
            return Ok((fs, usage));
        }
        walk = rest;
        sleep(PAUSE).await;
    }
}

/// A call that may block for ever, for as long as we care. Until it comes back its volume counts as stuck.
async fn patiently<T: Send + 'static>(
    path: &Path,
    state: &Shared,
    call: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    let (name, shared) = (path.to_owned(), state.clone());
    lock(state).stuck.insert(path.to_owned());
    let work = spawn_blocking(move || {
        let done = call();
        lock(&shared).stuck.remove(&name);
        done
    });
    match timeout(PATIENCE, work).await {
        Ok(done) => done.map_err(io::Error::other),
        Err(late) => Err(io::Error::new(io::ErrorKind::TimedOut, late)),
    }
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

    use super::*;

    async fn until(measure: &Measure, wanted: &BTreeSet<PathBuf>) -> BTreeMap<PathBuf, Measured> {
        loop {
            let found = measure.figures(wanted);
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
        let measure = Measure::new(Arc::new(SystemClock), FRESH);
        let wanted = BTreeSet::from([dir.path().to_owned()]);
        assert!(measure.figures(&wanted).is_empty());
        let found = until(&measure, &wanted).await;
        let one = &found[dir.path()];
        assert!(one.usage.bytes >= 50_000 && one.usage.inodes == 2);
        assert!(one.file_system.capacity > one.usage.bytes);
        // A fresh figure stands, whatever happens meanwhile.
        std::fs::remove_file(dir.path().join("file")).unwrap();
        assert_eq!(measure.figures(&wanted)[dir.path()].usage, one.usage);
        assert!(measure.figures(&BTreeSet::new()).is_empty());
        assert!(lock(&measure.state).known.is_empty());
    }

    #[tokio::test]
    async fn what_is_not_there_has_no_figure_and_a_mount_is_not_walked() {
        let measure = Measure::new(Arc::new(SystemClock), FRESH);
        let wanted = BTreeSet::from([PathBuf::from("/no/such/place"), PathBuf::from("/proc")]);
        loop {
            let found = measure.figures(&wanted);
            if let Some(proc) = found.get(Path::new("/proc")) {
                assert_eq!(proc.usage.bytes, 0);
                assert_eq!(found.len(), 1);
                return;
            }
            tokio::task::yield_now().await;
        }
    }
}
