//! What is asked of the machine, and set for this process, before anything else is done.

use std::fs::File;
use std::io;
use std::path::Path;

use anyhow::{Context, Result, bail};
use krablet_config::{Gate, Loaded};
use krablet_events::{Recorder, Subject, reason};
use rustix::fs::{FlockOperation, Mode, OFlags, flock, inotify, open};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::sync::watch;
use tracing::{info, warn};

/// Kernel settings a node needs, and the values it needs them to have.
const KERNEL: [(&str, i64); 6] = [
    ("vm/overcommit_memory", 1),
    ("vm/panic_on_oom", 0),
    ("kernel/panic", 10),
    ("kernel/panic_on_oops", 1),
    ("kernel/keys/root_maxkeys", 1_000_000),
    ("kernel/keys/root_maxbytes", 25_000_000),
];

const MAY_BE_SWAPPED: &str = "The tmpfs noswap option is not supported. Memory-backed volumes (e.g. secrets, emptyDirs, etc.) might be swapped to disk and should no longer be considered secure.";

/// Whether the agent may start on this machine as it is, or as it can be made to be.
pub fn check(loaded: &Loaded) -> Result<()> {
    let config = &loaded.config;
    if config.cgroups.fail_swap_on && is_swap_on(&swaps()) {
        bail!(
            "running with swap on is not supported, please disable swap or set --fail-swap-on flag to false"
        );
    }
    let protect = config.process.protect_kernel_defaults;
    let forgiving = loaded.gates.enabled(Gate::KubeletInUserNamespace);
    settle_kernel(protect, forgiving, &mut ProcSys)?;
    set_open_files(config.process.max_open_files);
    set_oom_score(config.cgroups.oom_score_adj);
    Ok(())
}

/// Who runs with swap had to allow it, and is to hear that what pods keep in memory might get to the disk.
pub fn warn_of_swap(recorder: &Recorder) {
    if is_swap_on(&swaps()) && !krablet_linux::tmpfs_stays_in_memory() {
        recorder.warning(
            Subject::Node,
            reason::POSSIBLE_MEMORY_BACKED_VOLUMES_ON_DISK,
            MAY_BE_SWAPPED,
        );
    }
}

fn swaps() -> String {
    std::fs::read_to_string("/proc/swaps").unwrap_or_default()
}

/// The first line is a heading.
fn is_swap_on(swaps: &str) -> bool {
    swaps.trim().lines().count() > 1
}

trait Sysctls {
    fn get(&self, name: &str) -> io::Result<i64>;
    fn set(&mut self, name: &str, value: i64) -> io::Result<()>;
}

struct ProcSys;

impl Sysctls for ProcSys {
    fn get(&self, name: &str) -> io::Result<i64> {
        let text = std::fs::read_to_string(Path::new("/proc/sys").join(name))?;
        let value = text.trim().parse();
        value.map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))
    }

    fn set(&mut self, name: &str, value: i64) -> io::Result<()> {
        std::fs::write(Path::new("/proc/sys").join(name), value.to_string())
    }
}

/// With `protect` a setting that differs is told, without it is changed. All that is wrong is told at once. Within a
/// user namespace nobody may change them: who says that the agent runs in one is `forgiving`.
fn settle_kernel(protect: bool, forgiving: bool, sysctls: &mut dyn Sysctls) -> Result<()> {
    let mut wrong = Vec::new();
    for (name, wanted) in KERNEL {
        let value = match sysctls.get(name) {
            Ok(value) if value == wanted => continue,
            Ok(value) => value,
            Err(e) => {
                wrong.push(format!("cannot read the kernel flag {name}: {e}"));
                continue;
            }
        };
        if protect {
            wrong.push(format!(
                "invalid kernel flag: {name}, expected value: {wanted}, actual value: {value}"
            ));
            continue;
        }
        info!(
            flag = name,
            expectedValue = wanted,
            actualValue = value,
            "Updating kernel flag"
        );
        match sysctls.set(name, wanted) {
            Ok(()) => {}
            Err(e) if forgiving => {
                warn!(flag = name, err = %e, "Updating kernel flag failed (running in UserNS, ignoring)");
            }
            Err(e) => wrong.push(format!(
                "cannot set the kernel flag {name} to {wanted}: {e}"
            )),
        }
    }
    match wrong.as_slice() {
        [] => Ok(()),
        [one] => bail!("{one}"),
        all => bail!("[{}]", all.join(", ")),
    }
}

/// As many as are asked for; where that takes a right the agent does not have, as many as it may.
fn set_open_files(most: i64) {
    let Ok(most) = u64::try_from(most) else {
        return;
    };
    let wanted = Rlimit {
        current: Some(most),
        maximum: Some(most),
    };
    let Err(e) = setrlimit(Resource::Nofile, wanted) else {
        return;
    };
    warn!(maxOpenFiles = most, err = %e, "Failed to set rlimit on max file handles");
    let now = getrlimit(Resource::Nofile);
    let allowed = Rlimit {
        current: within(most, now.maximum),
        maximum: now.maximum,
    };
    if let Err(e) = setrlimit(Resource::Nofile, allowed) {
        warn!(err = %e, "Failed to raise the limit of open files to what is allowed");
    }
}

/// Nothing stands for no limit.
fn within(wanted: u64, most: Option<u64>) -> Option<u64> {
    Some(most.map_or(wanted, |most| wanted.min(most)))
}

fn set_oom_score(score: i32) {
    if let Err(e) = std::fs::write("/proc/self/oom_score_adj", score.to_string()) {
        warn!(oomScoreAdj = score, err = %e, "Failed to ApplyOOMScoreAdj");
    }
}

/// The file of `--lock-file`, which only one agent holds at a time.
pub struct LockFile {
    _held: File,
    /// Closed once another agent has opened the file.
    others: Option<watch::Receiver<()>>,
}

impl LockFile {
    /// Waits for as long as another agent holds the file.
    pub async fn acquire(path: &str, exit_on_contention: bool) -> Result<Self> {
        let failed = || format!("unable to acquire file lock on {path:?}");
        info!(path, "Acquiring file lock");
        let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC;
        let file = open(path, flags, Mode::RUSR | Mode::WUSR).with_context(failed)?;
        let locked = tokio::task::spawn_blocking(move || {
            flock(&file, FlockOperation::LockExclusive).map(|()| file)
        });
        let file = locked.await.context("the lock was not waited for")?;
        let file = file.with_context(failed)?;
        let others = match exit_on_contention {
            true => Some(watch_opens(path).with_context(|| format!("cannot watch {path:?}"))?),
            false => None,
        };
        Ok(Self {
            _held: File::from(file),
            others,
        })
    }

    /// Until another agent opens the file, which wants this one to go; for ever if nobody minds.
    pub async fn contended(&self) {
        let Some(mut others) = self.others.clone() else {
            return std::future::pending().await;
        };
        while others.changed().await.is_ok() {}
        info!("Another agent wants the lock file: stopping; the pods go on");
    }
}

/// A thread of its own waits, and ends with the first word of the kernel.
fn watch_opens(path: &str) -> io::Result<watch::Receiver<()>> {
    let watcher = inotify::init(inotify::CreateFlags::CLOEXEC)?;
    let what = inotify::WatchFlags::OPEN | inotify::WatchFlags::DELETE_SELF;
    inotify::add_watch(&watcher, path, what)?;
    let (open, opened) = watch::channel(());
    std::thread::spawn(move || {
        let mut buffer = [0_u8; 4096];
        while rustix::io::read(&watcher, &mut buffer) == Err(rustix::io::Errno::INTR) {}
        drop(open);
    });
    Ok(opened)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::time::Duration;

    struct Told {
        values: BTreeMap<&'static str, i64>,
        writable: bool,
    }

    impl Sysctls for Told {
        fn get(&self, name: &str) -> io::Result<i64> {
            let value = self.values.get(name).copied();
            value.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
        }

        fn set(&mut self, name: &str, value: i64) -> io::Result<()> {
            if !self.writable {
                return Err(io::Error::from(io::ErrorKind::ReadOnlyFilesystem));
            }
            let entry = self.values.get_mut(name);
            *entry.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))? = value;
            Ok(())
        }
    }

    fn kernel(different: &[(&'static str, i64)], writable: bool) -> Told {
        let mut values: BTreeMap<&'static str, i64> = KERNEL.into();
        values.extend(different.iter().copied());
        Told { values, writable }
    }

    #[test]
    fn swap_is_on_when_a_line_follows_the_heading() {
        let heading = "Filename\tType\tSize\tUsed\tPriority\n";
        assert!(!is_swap_on(""));
        assert!(!is_swap_on(heading));
        assert!(is_swap_on(&format!(
            "{heading}/dev/sda2 partition 1 0 -2\n"
        )));
    }

    #[test]
    fn kernel_settings_are_changed_or_told() {
        let odd = [("kernel/panic", 1), ("vm/overcommit_memory", 0)];
        let told = |protect, forgiving, sysctls: &mut Told| {
            let done = settle_kernel(protect, forgiving, sysctls);
            done.err().map(|e| e.to_string()).unwrap_or_default()
        };
        let mut changed = kernel(&odd, true);
        assert_eq!(told(false, false, &mut changed), "");
        assert_eq!(changed.values, KERNEL.into());
        assert_eq!(told(true, false, &mut changed), "");
        assert_eq!(
            told(true, true, &mut kernel(&odd, true)),
            "[invalid kernel flag: vm/overcommit_memory, expected value: 1, actual value: 0, \
             invalid kernel flag: kernel/panic, expected value: 10, actual value: 1]"
        );
        let refused = told(false, false, &mut kernel(&odd[..1], false));
        assert_eq!(
            refused,
            "cannot set the kernel flag kernel/panic to 10: read-only filesystem or storage medium"
        );
        assert_eq!(told(false, true, &mut kernel(&odd, false)), "");
        let mut unknown = kernel(&[], true);
        unknown.values.remove("kernel/panic");
        assert!(told(false, true, &mut unknown).starts_with("cannot read the kernel flag"));
    }

    #[test]
    fn open_files_within_what_is_allowed() {
        assert_eq!(within(1000, None), Some(1000));
        assert_eq!(within(1000, Some(20)), Some(20));
        assert_eq!(within(10, Some(20)), Some(10));
    }

    #[tokio::test]
    async fn a_second_agent_makes_the_first_one_go() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let path = path.to_str().unwrap().to_owned();
        let first = LockFile::acquire(&path, true).await.unwrap();
        let second = tokio::spawn({
            let path = path.clone();
            async move { LockFile::acquire(&path, false).await }
        });
        tokio::time::timeout(Duration::from_secs(60), first.contended())
            .await
            .unwrap();
        drop(first);
        let second = tokio::time::timeout(Duration::from_secs(60), second).await;
        assert!(second.unwrap().unwrap().is_ok());
    }
}
