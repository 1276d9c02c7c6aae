//! The keeper's children, reaped as they end, whether it started them or inherited them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::{PATIENCE, Spec, sys};

/// The children, known to the thread that reaps them and to whoever waits for one.
#[derive(Clone)]
pub struct Family(Arc<(Mutex<Children>, Condvar)>);

#[derive(Default)]
struct Children {
    started: BTreeSet<i32>,
    ended: BTreeMap<i32, i32>,
}

impl Family {
    pub fn new() -> Self {
        let family = Self(Arc::new((Mutex::default(), Condvar::new())));
        let reaper = family.clone();
        std::thread::spawn(move || reaper.reap());
        family
    }

    fn children(&self) -> MutexGuard<'_, Children> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn reap(&self) {
        loop {
            match sys::wait_any() {
                Some((pid, status)) => {
                    let mut children = self.children();
                    if children.started.remove(&pid) {
                        children.ended.insert(pid, status);
                    }
                    self.0.1.notify_all();
                }
                None => {
                    let children = self.children();
                    // Woken by the next start; the limit only guards against a missed wake-up.
                    drop(self.0.1.wait_timeout(children, Duration::from_millis(100)));
                }
            }
        }
    }

    pub fn spawn(&self, command: &mut Command) -> Result<i32, String> {
        // The lock is held over the start so that the reaper cannot see the end first.
        let mut children = self.children();
        let child = command
            .process_group(0)
            .spawn()
            .map_err(|e| format!("{}: {e}", command.get_program().display()))?;
        let pid = i32::try_from(child.id()).map_err(|e| e.to_string())?;
        children.started.insert(pid);
        self.0.1.notify_all();
        Ok(pid)
    }

    pub fn wait(&self, pid: i32, patience: Duration) -> Option<i32> {
        let deadline = Instant::now() + patience;
        let mut children = self.children();
        loop {
            if let Some(status) = children.ended.remove(&pid) {
                return Some(status);
            }
            let left = deadline.checked_duration_since(Instant::now())?;
            children = self
                .0
                .1
                .wait_timeout(children, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    /// Waits until a child ends or the time is over, whichever is first.
    pub fn pause(&self, time: Duration) {
        drop(self.0.1.wait_timeout(self.children(), time));
    }

    /// Runs a command to its end, with its input and output in files of the bed.
    pub fn run(
        &self,
        spec: &Spec,
        input: Option<&str>,
        program: &str,
        arguments: &[&str],
    ) -> Result<String, String> {
        let out = spec.dir.join("keeper.out");
        let stdin = match input {
            None => Stdio::null(),
            Some(text) => {
                let path = spec.dir.join("keeper.in");
                fs::write(&path, text).map_err(|e| e.to_string())?;
                File::open(&path).map_err(|e| e.to_string())?.into()
            }
        };
        let file = File::create(&out).map_err(|e| e.to_string())?;
        let mut command = Command::new(program);
        command
            .args(arguments)
            .env("PATH", &spec.path)
            .stdin(stdin)
            .stdout(file)
            .stderr(Stdio::null());
        let pid = self.spawn(&mut command)?;
        let status = self.wait(pid, PATIENCE);
        let text = fs::read_to_string(&out).unwrap_or_default();
        match status {
            Some(0) => Ok(text),
            _ => Err(format!("{program} {}: {status:?}", arguments.join(" "))),
        }
    }
}
