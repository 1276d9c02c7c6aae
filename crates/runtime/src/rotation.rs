//! Rotation of container logs. Each running container's log is looked at by its own clock: a
//! quiet one once a period, one that fills up in time before it is full. A full log is renamed and
//! the runtime asked to open a new one; what was rotated before is compressed, and what is too
//! much goes.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use jiff::tz::TimeZone;
use krablet_core::logs::{self, LogFile, LogPlan, RotationPolicy};
use krablet_core::restart::count_from_log_names;
use krablet_cri::RuntimeService;
use krablet_linux::{EntryKind, Files, FirstWrites, WallClock};
use krablet_pod::observed::ObservedPod;
use krablet_pod::{ContainerId, PodRef};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};
use tracing::field::display;

/// A container seen for the first time is looked at again so soon, to learn how fast it writes.
const SECOND_LOOK: Duration = Duration::from_secs(1);
/// One look at most, compressing included. What it cuts short the next look finds and mends.
const LOOK_DEADLINE: Duration = Duration::from_secs(120);
/// Of all quiet logs together; they are only asked how long they are.
const GLANCE_DEADLINE: Duration = Duration::from_secs(10);

#[derive(Clone, Debug)]
pub struct RotationConfig {
    pub policy: RotationPolicy,
    /// `containerLogMonitorInterval`.
    pub period: Duration,
    /// `containerLogMaxWorkers`: logs looked at or rotated at once.
    pub workers: usize,
    /// In whose time rotated files are stamped.
    pub time_zone: TimeZone,
}

/// As an empty configuration has it, in the time of all places.
impl Default for RotationConfig {
    fn default() -> Self {
        Self {
            policy: RotationPolicy {
                max_size: 10 << 20,
                max_files: 5,
            },
            period: Duration::from_secs(10),
            workers: 1,
            time_zone: TimeZone::UTC,
        }
    }
}

#[derive(Clone)]
pub struct RotationDeps {
    pub runtime: Arc<dyn RuntimeService>,
    pub files: Arc<dyn Files>,
    pub clock: Arc<dyn WallClock>,
    /// What the runtime was last seen to hold; asked often, so it must be cheap.
    pub pods: Arc<dyn Fn() -> Vec<Arc<ObservedPod>> + Send + Sync>,
}

/// A log that is being written to.
#[derive(Clone, Debug, PartialEq, Eq)]
struct RunningLog {
    pod: PodRef,
    container: Arc<str>,
    id: ContainerId,
    path: PathBuf,
    /// Logs of the container's other instances that can still be asked for.
    kept: BTreeSet<String>,
}

/// What is known of a running container's log between two looks.
#[derive(Clone, Copy, Debug)]
struct Watched {
    due: Instant,
    /// None before the first look.
    last: Option<(Instant, u64)>,
    /// The last look failed; told once.
    failing: bool,
    /// The next write to it will be told.
    expected: bool,
}

/// What came of a task.
enum Done {
    /// Of many logs, how long each is.
    Glanced(Vec<(ContainerId, io::Result<u64>)>),
    Looked(ContainerId, io::Result<Seen>),
}

/// What one look saw.
struct Seen {
    /// Bytes before anything was done.
    size: u64,
    rotated: bool,
}

pub struct LogRotation {
    config: RotationConfig,
    deps: RotationDeps,
    running: BTreeMap<ContainerId, RunningLog>,
    watched: BTreeMap<ContainerId, Watched>,
    /// Due, and probably nothing to do for them.
    quiet: Vec<ContainerId>,
    /// To be looked at closely and waiting for a worker, longest due first.
    queue: VecDeque<ContainerId>,
    busy: BTreeSet<ContainerId>,
    /// Quiet logs are looked at whole periods after it, all in one go.
    begun: Instant,
    refreshed: Option<Instant>,
    /// Containers may have started since, so the next refresh does not wait for a log to be due.
    soon: Option<Instant>,
    bells: Bells,
}

/// What does not wait for the next look.
pub struct Bells {
    /// Of logs that were quiet.
    pub writes: Box<dyn FirstWrites>,
    /// Containers may have started.
    pub pods: Arc<Notify>,
}

impl LogRotation {
    pub fn new(config: RotationConfig, deps: RotationDeps, bells: Bells) -> Self {
        Self {
            config,
            deps,
            running: BTreeMap::new(),
            watched: BTreeMap::new(),
            quiet: Vec::new(),
            queue: VecDeque::new(),
            busy: BTreeSet::new(),
            begun: Instant::now(),
            refreshed: None,
            soon: None,
            bells,
        }
    }

    /// Runs until it is dropped.
    pub async fn run(mut self) {
        let workers = self.config.workers.max(1);
        let mut looks = JoinSet::new();
        loop {
            // Only now: going through all containers after each single look would cost the square
            // of their number.
            let now = Instant::now();
            if self.queue.is_empty() && self.quiet.is_empty() && self.next_wake(now) <= now {
                self.refresh(now);
            }
            while looks.len() < workers {
                if !self.quiet.is_empty() {
                    looks.spawn(self.glance().boxed());
                } else if let Some(id) = self.queue.pop_front() {
                    if let Some(look) = self.look(&id) {
                        self.busy.insert(id);
                        looks.spawn(look.boxed());
                    }
                } else {
                    break;
                }
            }
            let idle = looks.len() < workers;
            let next = if idle { self.next_wake(now) } else { now };
            tokio::select! {
                biased;
                Some(done) = looks.join_next() => match done {
                    Ok(Done::Looked(id, result)) => {
                        self.busy.remove(&id);
                        self.learn(&id, result);
                    }
                    Ok(Done::Glanced(sizes)) => self.glanced(sizes),
                    // A look that broke off cannot say whose it was: all start over.
                    Err(_) => {
                        looks.shutdown().await;
                        self.busy.clear();
                    }
                },
                path = self.bells.writes.next() => self.written(&path),
                () = self.bells.pods.notified() => self.soon = Some(self.second_after(Instant::now())),
                () = sleep_until(next), if idle => {}
            }
        }
    }

    /// Takes in which containers run, and queues those whose log is due.
    fn refresh(&mut self, now: Instant) {
        self.refreshed = Some(now);
        self.soon = None;
        self.running = running_logs(&(self.deps.pods)());
        self.watched.retain(|id, _| self.running.contains_key(id));
        for id in self.running.keys() {
            self.watched.entry(id.clone()).or_insert(Watched {
                due: now,
                last: None,
                failing: false,
                expected: false,
            });
        }
        let due = self
            .watched
            .iter()
            .filter(|(id, w)| w.due <= now && !self.busy.contains(*id));
        let (quiet, mut due): (Vec<_>, Vec<_>) =
            due.partition(|(_, w)| w.last.is_some() && !w.failing);
        self.quiet = quiet.into_iter().map(|(id, _)| id.clone()).collect();
        due.sort_by_key(|(_, w)| w.due);
        self.queue.extend(due.into_iter().map(|(id, _)| id.clone()));
    }

    /// How long the quiet logs are now: for most of them that is all there is to know.
    fn glance(&mut self) -> impl Future<Output = Done> + Send + 'static {
        let quiet = std::mem::take(&mut self.quiet);
        let (ids, paths): (Vec<_>, Vec<_>) = quiet
            .into_iter()
            .filter_map(|id| {
                let path = self.running.get(&id)?.path.clone();
                Some((id, path))
            })
            .unzip();
        self.busy.extend(ids.iter().cloned());
        let files = self.deps.files.clone();
        async move {
            let paths: Vec<&Path> = paths.iter().map(PathBuf::as_path).collect();
            let sizes = match timeout(GLANCE_DEADLINE, files.stat_all(&paths)).await {
                Ok(found) => found.into_iter().map(|e| e.map(|e| e.size)).collect(),
                Err(_) => {
                    let none = || Err(no_answer(GLANCE_DEADLINE));
                    paths.iter().map(|_| none()).collect::<Vec<_>>()
                }
            };
            Done::Glanced(ids.into_iter().zip(sizes).collect())
        }
    }

    fn glanced(&mut self, sizes: Vec<(ContainerId, io::Result<u64>)>) {
        for (id, size) in sizes {
            self.busy.remove(&id);
            let look = match &size {
                Ok(size) => *size >= self.config.policy.max_size,
                // One that hangs has held up the others: each has its own look then.
                Err(e) => matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::TimedOut),
            };
            if look {
                self.queue.push_back(id);
                continue;
            }
            let rotated = false;
            self.learn(&id, size.map(|size| Seen { size, rotated }));
        }
    }

    /// When there may be something to do again; if nobody tells of new containers, they are noticed once a
    /// period.
    fn next_wake(&self, now: Instant) -> Instant {
        let idle = self
            .watched
            .iter()
            .filter(|(id, _)| !self.busy.contains(*id));
        let latest = self.refreshed.map_or(now, |at| at + self.config.period);
        let due = idle.map(|(_, w)| w.due).chain(self.soon).min();
        due.map_or(latest, |due| due.min(latest))
    }

    /// A quiet log is written to. One more look in a moment tells how fast, so that a container that suddenly says a
    /// lot does not fill the disk before its turn comes.
    fn written(&mut self, path: &Path) {
        let now = Instant::now();
        let soon = self.second_after(now + SECOND_LOOK);
        let mut running = self.running.values();
        let of_path = running.find(|log| log.path == path);
        if let Some(entry) = of_path.and_then(|log| self.watched.get_mut(&log.id)) {
            entry.expected = false;
            entry.last = entry.last.map(|(_, size)| (now, size));
            entry.due = entry.due.min(soon);
        }
    }

    /// A whole second after the beginning: whoever is told of much at a time wakes once.
    fn second_after(&self, now: Instant) -> Instant {
        let past = now.duration_since(self.begun).as_secs() + 1;
        self.begun + Duration::from_secs(past)
    }

    fn learn(&mut self, id: &ContainerId, result: io::Result<Seen>) {
        let now = Instant::now();
        let Some(last) = self.watched.get(id).map(|w| w.last) else {
            // It ended meanwhile.
            return;
        };
        let wait = match &result {
            Ok(seen) => self.wait_after(seen, last, now),
            Err(_) => self.config.period,
        };
        let due = self.due_after(wait, now);
        let Some(entry) = self.watched.get_mut(id) else {
            return;
        };
        entry.due = due;
        match result {
            Ok(seen) => {
                let size = if seen.rotated { 0 } else { seen.size };
                entry.last = Some((now, size));
                entry.failing = false;
                entry.expected &= !seen.rotated;
                if let (false, Some(log)) = (entry.expected, self.running.get(id))
                    && wait >= self.config.period
                {
                    self.bells.writes.expect(&log.path);
                    entry.expected = true;
                }
            }
            Err(error) => {
                if !entry.failing {
                    let log = self.running.get(id);
                    let pod = log.map(|log| display(&log.pod));
                    let uid = log.map(|log| display(&log.pod.uid));
                    let name = log.map(|log| &*log.container);
                    tracing::error!(pod, podUID = uid, containerName = name, containerID = %id, %error, "Failed to rotate container log");
                }
                entry.failing = true;
            }
        }
    }

    /// A log that can wait for a whole period is looked at with all the others that can: each wake goes
    /// through all containers.
    fn due_after(&self, wait: Duration, now: Instant) -> Instant {
        let period = self.config.period;
        let due = now + wait;
        if wait < period || period.is_zero() {
            return due;
        }
        let since = due.duration_since(self.begun);
        let past = since.as_nanos() % period.as_nanos();
        due - Duration::from_nanos(u64::try_from(past).unwrap_or_default())
    }

    fn wait_after(&self, seen: &Seen, last: Option<(Instant, u64)>, now: Instant) -> Duration {
        let Some((at, before)) = last else {
            return SECOND_LOOK.min(self.config.period);
        };
        let mut policy = self.config.policy;
        if seen.rotated {
            // The new file starts empty: all the room there is, at the speed seen so far.
            policy.max_size = policy.max_size.saturating_add(seen.size);
        }
        policy.next_check(before, seen.size, now - at, self.config.period)
    }

    /// One look, as a future of its own. None if the container runs no more.
    fn look(&self, id: &ContainerId) -> Option<impl Future<Output = Done> + Send + 'static> {
        let look = Look {
            config: self.config.clone(),
            deps: self.deps.clone(),
            log: self.running.get(id)?.clone(),
        };
        Some(async move {
            let id = look.log.id.clone();
            let result = timeout(LOOK_DEADLINE, look.run()).await;
            Done::Looked(id, result.unwrap_or_else(|_| Err(no_answer(LOOK_DEADLINE))))
        })
    }
}

fn no_answer(deadline: Duration) -> io::Error {
    let text = format!("no answer within {deadline:?}");
    io::Error::new(io::ErrorKind::TimedOut, text)
}

fn running_logs(pods: &[Arc<ObservedPod>]) -> BTreeMap<ContainerId, RunningLog> {
    let mut found = BTreeMap::new();
    for pod in pods {
        for container in pod.running().filter(|c| !c.log_path.is_empty()) {
            let others = pod
                .instances(&container.name)
                .filter(|c| c.id != container.id);
            let log = RunningLog {
                pod: pod.pod.clone(),
                container: container.name.clone(),
                id: container.id.clone(),
                path: PathBuf::from(&container.log_path),
                kept: others
                    .filter_map(|c| file_name(Path::new(&c.log_path)))
                    .collect(),
            };
            found.insert(container.id.clone(), log);
        }
    }
    found
}

fn file_name(path: &Path) -> Option<String> {
    path.file_name()?.to_str().map(str::to_owned)
}

struct Look {
    config: RotationConfig,
    deps: RotationDeps,
    log: RunningLog,
}

impl Look {
    async fn run(&self) -> io::Result<Seen> {
        let (Some(dir), Some(current)) = (self.log.path.parent(), file_name(&self.log.path)) else {
            return Err(io::Error::other(format!(
                "{} is not the path of a log",
                self.log.path.display()
            )));
        };
        let present = self.present(dir).await?;
        let size = present
            .iter()
            .find(|f| f.name == current)
            .map_or(0, |f| f.size);
        let now = self
            .deps
            .clock
            .now()
            .to_zoned(self.config.time_zone.clone())
            .datetime();
        let plan = logs::plan(&current, &self.log.kept, &present, self.config.policy, now);
        let rotated = plan.rotate.is_some();
        self.carry_out(dir, plan).await?;
        Ok(Seen { size, rotated })
    }

    async fn present(&self, dir: &Path) -> io::Result<Vec<LogFile>> {
        let entries = match self.deps.files.list(dir).await {
            Ok(entries) => entries,
            Err(e) if e.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(e) => return Err(e),
        };
        let files = entries.iter().filter(|e| e.kind == EntryKind::File);
        let logs = files.filter_map(|e| {
            Some(LogFile {
                name: file_name(&e.path)?,
                size: e.size,
            })
        });
        Ok(logs.collect())
    }

    /// The full log makes way before older ones are compressed: compressing takes its time, and the
    /// container goes on writing meanwhile.
    async fn carry_out(&self, dir: &Path, plan: LogPlan) -> io::Result<()> {
        let files = &self.deps.files;
        for name in &plan.delete {
            files.remove_file(&dir.join(name)).await?;
        }
        if let Some((from, to)) = &plan.rotate {
            self.rotate(&dir.join(from), &dir.join(to)).await?;
        }
        if plan.reopen {
            self.reopen().await?;
        }
        for (from, to) in &plan.compress {
            files.gzip(&dir.join(from), &dir.join(to)).await?;
        }
        Ok(())
    }

    async fn rotate(&self, log: &Path, rotated: &Path) -> io::Result<()> {
        let files = &self.deps.files;
        files.rename(log, rotated).await?;
        let Err(error) = self.reopen().await else {
            tracing::debug!(
                pod = %self.log.pod,
                podUID = %self.log.pod.uid,
                containerName = &*self.log.container,
                containerID = %self.log.id,
                path = %rotated.display(),
                "Rotated container log"
            );
            return Ok(());
        };
        // The runtime may have done it and failed to say so. Then a new log stands there, and
        // putting the old one over it would lose lines.
        match files.lstat(log).await {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                files.rename(rotated, log).await?;
                Err(error)
            }
            Ok(_) => Ok(()),
            Err(_) => Err(error),
        }
    }

    async fn reopen(&self) -> io::Result<()> {
        let id = self.log.id.as_str();
        let done = self.deps.runtime.reopen_container_log(id).await;
        done.map_err(|e| io::Error::other(format!("failed to reopen container log {id:?}: {e}")))
    }
}

/// The restart count the next instance of a container would carry by the logs of its former ones:
/// one more than the highest `<n>.log` in `<pod log dir>/<container>`. None without such a log;
/// it outlives a runtime that lost everything.
pub async fn log_restart_count(
    files: &dyn Files,
    pod_log_dir: &Path,
    container: &str,
) -> Option<u32> {
    let entries = files.list(&pod_log_dir.join(container)).await.ok()?;
    let names: Vec<String> = entries
        .iter()
        .filter(|e| e.kind != EntryKind::Directory)
        .filter_map(|e| file_name(&e.path))
        .collect();
    let count = count_from_log_names(names.iter().map(String::as_str));
    (count > 0).then_some(count)
}

#[cfg(test)]
mod tests;
