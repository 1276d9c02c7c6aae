//! Files, mounts, cgroups and clock that live in memory. Clones share one state, so a simulated
//! agent can be dropped at any point and a new one built over what the old one left behind.
//! Every call yields once before its effect: a place where an agent may be dropped, and other
//! tasks may come in between.

mod cgroups;
mod disk;
mod files;
mod mounts;
mod space;
mod tools;
mod trees;

use std::future::pending;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

pub use cgroups::MemoryCgroups;
pub use files::MemoryFiles;
pub use mounts::MemoryMounts;
pub use space::MemorySpace;
pub use tools::FakeTools;

use crate::clock::WallClock;
use disk::Disk;

/// A clock that stands still until it is moved. Clones show the same time.
#[derive(Clone, Debug)]
pub struct FixedClock(Arc<Mutex<Timestamp>>);

impl FixedClock {
    pub fn at(time: Timestamp) -> Self {
        Self(Arc::new(Mutex::new(time)))
    }

    pub fn set(&self, time: Timestamp) {
        *lock(&self.0) = time;
    }

    /// Saturates at the end of time.
    pub fn advance(&self, by: Duration) {
        let by = SignedDuration::try_from(by).unwrap_or(SignedDuration::MAX);
        let mut time = lock(&self.0);
        *time = time.saturating_add(by).unwrap_or(Timestamp::MAX);
    }
}

impl Default for FixedClock {
    fn default() -> Self {
        Self::at(Timestamp::UNIX_EPOCH)
    }
}

impl WallClock for FixedClock {
    fn now(&self) -> Timestamp {
        *lock(&self.0)
    }
}

/// What goes wrong with one call.
#[derive(Debug)]
pub enum Fault {
    /// The call fails and changes nothing.
    Before(io::Error),
    /// The call does its work and still reports a failure.
    After(io::Error),
    /// The call never returns.
    Hang,
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        Fault::Before(error)
    }
}

/// Asked before every call, with its name and path.
type FaultHook = Arc<dyn Fn(&'static str, &Path) -> Option<Fault> + Send + Sync>;

struct State {
    disk: Disk,
    clock: Arc<dyn WallClock>,
    faults: Option<FaultHook>,
}

type Shared = Arc<Mutex<State>>;

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One call: a chance to be dropped, a chance to fail, the effect.
async fn call<T>(
    shared: &Shared,
    name: &'static str,
    path: &Path,
    effect: impl FnOnce(&mut Disk) -> io::Result<T> + Send,
) -> io::Result<T> {
    tokio::task::yield_now().await;
    let hook = lock(shared).faults.clone();
    let fault = hook.and_then(|hook| hook(name, path));
    match fault {
        Some(Fault::Before(e)) => return Err(e),
        Some(Fault::Hang) => pending().await,
        Some(Fault::After(_)) | None => {}
    }
    let result = {
        let mut state = lock(shared);
        state.disk.now = state.clock.now().as_second();
        effect(&mut state.disk)
    };
    match fault {
        Some(Fault::After(e)) => Err(e),
        _ => result,
    }
}
