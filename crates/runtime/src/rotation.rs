//! Rotation of container logs. Each running container's log is looked at by its own clock: a
//! quiet one once a period, one that fills up in time before it is full. A full log is renamed and
//! the runtime asked to open a new one; what was rotated before is compressed, and what is too
//! much goes.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use jiff::tz::TimeZone;
use krablet_core::logs::{self, LogFile, LogPlan, RotationPolicy};
use krablet_core::restart::count_from_log_names;
use krablet_cri::RuntimeService;
use krablet_linux::{EntryKind, Files, WallClock};
use krablet_pod::observed::ObservedPod;
use krablet_pod::{ContainerId, PodRef};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

/// A container seen for the first time is looked at again so soon, to learn how fast it writes.
const SECOND_LOOK: Duration = Duration::from_secs(1);
/// One look at most, compressing included. What it cuts short the next look finds and mends.
const LOOK_DEADLINE: Duration = Duration::from_secs(120);

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
    /// Due and waiting for a worker, longest due first.
    queue: VecDeque<ContainerId>,
    busy: BTreeSet<ContainerId>,
}

impl LogRotation {
    pub fn new(config: RotationConfig, deps: RotationDeps) -> Self {
        Self {
            config,
            deps,
            running: BTreeMap::new(),
            watched: BTreeMap::new(),
            queue: VecDeque::new(),
            busy: BTreeSet::new(),
        }
    }

    /// Runs until it is dropped.
    pub async fn run(mut self) {
        let workers = self.config.workers.max(1);
        let mut looks = JoinSet::new();
        loop {
            // Only now: going through all containers after each single look would cost the square
            // of their number.
            if self.queue.is_empty() {
                self.refresh(Instant::now());
            }
            while looks.len() < workers {
                let Some(id) = self.queue.pop_front() else {
                    break;
                };
                if let Some(look) = self.look(&id) {
                    self.busy.insert(id);
                    looks.spawn(look);
                }
            }
            let idle = looks.len() < workers;
            let next = self.next_wake(Instant::now());
            tokio::select! {
                biased;
                Some(done) = looks.join_next() => match done {
                    Ok((id, result)) => {
                        self.busy.remove(&id);
                        self.learn(&id, result);
                    }
                    // A look that broke off cannot say whose it was: all start over.
                    Err(_) => {
                        looks.abort_all();
                        self.busy.clear();
                    }
                },
                () = sleep_until(next), if idle => {}
            }
        }
    }

    /// Takes in which containers run, and queues those whose log is due.
    fn refresh(&mut self, now: Instant) {
        self.running = running_logs(&(self.deps.pods)());
        self.watched.retain(|id, _| self.running.contains_key(id));
        for id in self.running.keys() {
            self.watched.entry(id.clone()).or_insert(Watched {
                due: now,
                last: None,
                failing: false,
            });
        }
        let mut due: Vec<(Instant, &ContainerId)> = self
            .watched
            .iter()
            .filter(|(id, w)| w.due <= now && !self.busy.contains(*id))
            .map(|(id, w)| (w.due, id))
            .collect();
        due.sort();
        self.queue.extend(due.into_iter().map(|(_, id)| id.clone()));
    }

    /// When there may be something to do again; new containers are noticed once a period at the
    /// latest.
    fn next_wake(&self, now: Instant) -> Instant {
        let idle = self
            .watched
            .iter()
            .filter(|(id, _)| !self.busy.contains(*id));
        let latest = now + self.config.period;
        let due = idle.map(|(_, w)| w.due).min();
        due.map_or(latest, |due| due.min(latest))
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
        let Some(entry) = self.watched.get_mut(id) else {
            return;
        };
        entry.due = now + wait;
        match result {
            Ok(seen) => {
                let size = if seen.rotated { 0 } else { seen.size };
                entry.last = Some((now, size));
                entry.failing = false;
            }
            Err(error) => {
                if !entry.failing {
                    tracing::error!(containerID = %id, %error, "Failed to rotate container log");
                }
                entry.failing = true;
            }
        }
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
    fn look(
        &self,
        id: &ContainerId,
    ) -> Option<impl Future<Output = (ContainerId, io::Result<Seen>)> + Send + 'static> {
        let watched = self.watched.get(id)?;
        let full = watched.last.is_none() || watched.failing;
        let look = Look {
            config: self.config.clone(),
            deps: self.deps.clone(),
            log: self.running.get(id)?.clone(),
        };
        Some(async move {
            let id = look.log.id.clone();
            let result = match timeout(LOOK_DEADLINE, look.run(full)).await {
                Ok(result) => result,
                Err(_) => Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    format!("no answer within {LOOK_DEADLINE:?}"),
                )),
            };
            (id, result)
        })
    }
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
    /// One `stat` unless there is something to do, or `full` asks to see the whole directory.
    async fn run(&self, full: bool) -> io::Result<Seen> {
        if !full {
            match self.deps.files.stat(&self.log.path).await {
                Ok(entry) if entry.size < self.config.policy.max_size => {
                    return Ok(Seen {
                        size: entry.size,
                        rotated: false,
                    });
                }
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
                _ => {}
            }
        }
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
                containerName = &*self.log.container,
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
