//! Startup, liveness and readiness probes. One task holds the due times of all of them and runs
//! those that are due; a probe that waits costs an entry in a table, not a task. A probe's life is
//! its own: it does not depend on a sync that goes on or ends, and stopping it drops what it does.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use krablet_core::Mono;
use krablet_core::probe::{Verdict, Verdicts};
use krablet_cri::RuntimeService;
use krablet_events::Recorder;
use krablet_net::Net;
use krablet_pod::api::{Pod, PodStatus};
use krablet_pod::observed::ObservedPod;
use krablet_pod::{ContainerId, PodUid};
use tokio::sync::Notify;
use tokio::time::Instant;

mod execute;
mod expand;
mod metrics;
mod table;
mod task;

pub use krablet_core::probe::ProbeKind;
pub use metrics::{Durations, ProbeMetrics};
pub use task::Probes;

use table::{Look, Table};

/// How many probes may be under way at once, so that neither sockets nor the runtime are
/// overrun; those above wait for a place. Commands have places of their own: a runtime that hangs
/// does not keep other probes from running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbesConfig {
    pub network_at_once: usize,
    pub exec_at_once: usize,
}

impl Default for ProbesConfig {
    fn default() -> Self {
        Self {
            network_at_once: 256,
            exec_at_once: 64,
        }
    }
}

pub struct ProbesDeps {
    pub runtime: Arc<dyn RuntimeService>,
    pub net: Arc<dyn Net>,
    pub recorder: Recorder,
    /// The wall clock, to tell how long a container has been running when it is first seen.
    pub clock: Arc<dyn Fn() -> Timestamp + Send + Sync>,
    /// Of the spread of first probes.
    pub seed: u64,
}

/// The agent starts with this call, as far as probes are concerned: containers that are older keep
/// what they were until their first result.
pub fn build(config: ProbesConfig, deps: ProbesDeps) -> (Probes, ProbesHandle) {
    let handle = ProbesHandle {
        shared: Arc::new(Shared {
            table: Mutex::new(Table::new(deps.seed)),
            wake: Notify::new(),
            updated: Notify::new(),
            born: Instant::now(),
        }),
        clock: deps.clock,
    };
    let probes = Probes::new(
        config,
        handle.shared.clone(),
        deps.runtime,
        deps.net,
        deps.recorder,
    );
    (probes, handle)
}

/// The table and its two bells. The lock is held for moments, never across an await.
struct Shared {
    table: Mutex<Table>,
    /// Something is due sooner than the task thinks.
    wake: Notify,
    /// There are updates to read.
    updated: Notify,
    born: Instant,
}

impl Shared {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Mono {
        Mono(Instant::now() - self.born)
    }

    fn instant(&self, at: Mono) -> Instant {
        self.born + at.0
    }
}

/// A verdict that changed. A later one of the same probe replaces one not yet read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeUpdate {
    pub pod: PodUid,
    pub container: ContainerId,
    pub kind: ProbeKind,
    pub verdict: Verdict,
}

/// The changes of verdicts. There is one reader.
pub struct ProbeUpdates {
    shared: Arc<Shared>,
}

impl ProbeUpdates {
    /// Waits for the next change. Never `None`; safe to drop.
    pub async fn next(&mut self) -> Option<ProbeUpdate> {
        loop {
            let update = self.shared.table().pop_update();
            if update.is_some() {
                return update;
            }
            self.shared.updated.notified().await;
        }
    }
}

/// What the rest of the agent holds of the probes. Clones share one table.
#[derive(Clone)]
pub struct ProbesHandle {
    shared: Arc<Shared>,
    clock: Arc<dyn Fn() -> Timestamp + Send + Sync>,
}

impl ProbesHandle {
    /// Tells what is wanted and seen of a pod; to be called at each sync, before containers are
    /// started and after they were seen to change. Takes up new probes, notes new instances and
    /// addresses. `status` is the pod's last known status: it gives the pod's address and what
    /// containers older than the agent were. Verdicts of new instances stand when this returns.
    pub fn set_pod(&self, pod: &Arc<Pod>, observed: &ObservedPod, status: &PodStatus) {
        let look = Look {
            pod,
            observed,
            status,
            wall: (self.clock)(),
            now: self.shared.now(),
        };
        let sooner = self.shared.table().set_pod(&look);
        if sooner {
            self.shared.wake.notify_one();
        }
    }

    /// The pod is being terminated: from now on only readiness is asked.
    pub fn stop_liveness_and_startup(&self, pod: &PodUid) {
        let now = self.shared.now();
        let sooner = self.shared.table().stop_liveness_and_startup(pod, now);
        if sooner {
            self.shared.wake.notify_one();
        }
    }

    /// Ends all probes of a pod, also those under way, and forgets it.
    pub fn remove(&self, pod: &PodUid) {
        self.shared.table().remove(pod);
    }

    /// Removes the pods that are not to be kept.
    pub fn retain(&self, keep: &dyn Fn(&PodUid) -> bool) {
        self.shared.table().retain(keep);
    }

    /// The standing verdicts of a pod's containers.
    pub fn verdicts(&self, pod: &PodUid) -> Verdicts {
        self.shared.table().verdicts(pod)
    }

    pub fn take_updates(&self) -> ProbeUpdates {
        ProbeUpdates {
            shared: self.shared.clone(),
        }
    }

    /// Counters of every probe there is, in the order of pods, containers and kinds.
    pub fn metrics(&self) -> Vec<ProbeMetrics> {
        self.shared.table().metrics()
    }
}
