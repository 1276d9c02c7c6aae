//! Looking around: what runs, and what lies on disk, that nobody may want any more. The looking is
//! done here, beside the sync loop; what follows from it the loop decides.

use std::sync::Arc;
use std::time::Duration;

use krablet_linux::Cgroups;
use krablet_observer::ObserverHandle;
use krablet_pod::observed::ObservedPod;
use krablet_pod::qos::QosClass;
use krablet_pod::{PodRef, PodUid};
use krablet_volumes::Volumes;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::warn;

/// After a sign of change, wait this long for more before looking.
const SETTLE: Duration = Duration::from_secs(2);
/// Look even if there was no sign.
const PERIOD: Duration = Duration::from_secs(60);

/// What a look found.
#[derive(Clone, Debug, Default)]
pub(crate) struct Findings {
    /// Pods with something alive in the runtime, proven by a full list.
    pub(crate) alive: Vec<PodRef>,
    /// Everything the runtime holds, as the look saw it.
    pub(crate) pods: Vec<Arc<ObservedPod>>,
    /// What pods have on the node.
    pub(crate) leftovers: Leftovers,
}

/// Directories and cgroups of pods.
#[derive(Clone, Debug, Default)]
pub(crate) struct Leftovers {
    pub(crate) directories: Vec<PodUid>,
    pub(crate) cgroups: Vec<(PodUid, QosClass)>,
}

impl Leftovers {
    pub(crate) fn retain(&mut self, keep: impl Fn(&PodUid) -> bool) {
        self.directories.retain(&keep);
        self.cgroups.retain(|(uid, _)| keep(uid));
    }
}

/// Where a look looks.
#[derive(Clone)]
pub(crate) struct Places {
    pub(crate) observer: ObserverHandle,
    pub(crate) volumes: Arc<Volumes>,
    pub(crate) cgroups: Arc<dyn Cgroups>,
}

pub(crate) struct Housekeeping {
    places: Places,
    next_period: Instant,
    soon: Option<Instant>,
    looks: JoinSet<Option<Findings>>,
    chores: JoinSet<()>,
}

impl Housekeeping {
    pub(crate) fn new(places: Places) -> Self {
        Self {
            places,
            next_period: Instant::now(),
            soon: None,
            looks: JoinSet::new(),
            chores: JoinSet::new(),
        }
    }

    /// Something changed: look soon.
    pub(crate) fn soon(&mut self) {
        self.soon.get_or_insert_with(|| Instant::now() + SETTLE);
    }

    /// The findings of the next look. May be dropped and called again without losing one.
    pub(crate) async fn next(&mut self) -> Findings {
        loop {
            if self.looks.is_empty() {
                let due = self
                    .soon
                    .map_or(self.next_period, |s| s.min(self.next_period));
                tokio::time::sleep_until(due).await;
                self.next_period = Instant::now() + PERIOD;
                self.soon = None;
                self.looks.spawn(look(self.places.clone()));
            }
            match self.looks.join_next().await {
                Some(Ok(Some(findings))) => return findings,
                // The runtime did not answer, or the look broke off: look again.
                _ => self.soon(),
            }
        }
    }

    /// Does a chore beside the loop, after those before it have ended.
    pub(crate) fn spawn(&mut self, chore: impl Future<Output = ()> + Send + 'static) -> bool {
        while self.chores.try_join_next().is_some() {}
        if !self.chores.is_empty() {
            return false;
        }
        self.chores.spawn(chore);
        true
    }
}

async fn look(places: Places) -> Option<Findings> {
    let ticket = places.observer.ticket();
    let pods = match places.observer.all_newer_than(ticket).await {
        Ok(pods) => pods,
        Err(e) => {
            warn!(err = %e, "Housekeeping could not list the pods of the runtime");
            return None;
        }
    };
    let alive = pods.iter().filter(|p| p.is_alive()).map(|p| p.pod.clone());
    let mut findings = Findings {
        alive: alive.collect(),
        pods,
        leftovers: Leftovers::default(),
    };
    match places.volumes.recorded().await {
        Ok(uids) => findings.leftovers.directories = uids,
        Err(e) => warn!(err = %e, "Housekeeping could not list pod directories"),
    }
    match places.cgroups.list_pods().await {
        Ok(uids) => findings.leftovers.cgroups = uids,
        Err(e) => warn!(err = %e, "Housekeeping could not list pod cgroups"),
    }
    Some(findings)
}
