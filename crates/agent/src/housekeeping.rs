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

/// Look when there was no sign of change for so long: in a burst, pods come and go first.
const SETTLE: Duration = Duration::from_secs(2);
/// And so long after the first sign at the latest.
const PATIENCE: Duration = Duration::from_secs(10);
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

/// When the first and the last sign of change came since the last look.
#[derive(Clone, Copy)]
struct Signs {
    first: Instant,
    last: Instant,
}

impl Signs {
    fn due(&self) -> Instant {
        (self.last + SETTLE).min(self.first + PATIENCE)
    }
}

pub(crate) struct Housekeeping {
    places: Places,
    next_period: Instant,
    signs: Option<Signs>,
    looks: JoinSet<Option<Findings>>,
    chores: JoinSet<()>,
}

impl Housekeeping {
    pub(crate) fn new(places: Places) -> Self {
        Self {
            places,
            next_period: Instant::now(),
            signs: None,
            looks: JoinSet::new(),
            chores: JoinSet::new(),
        }
    }

    /// Something changed: look soon.
    pub(crate) fn soon(&mut self) {
        let last = Instant::now();
        let first = self.signs.map_or(last, |signs| signs.first);
        self.signs = Some(Signs { first, last });
    }

    /// The findings of the next look. May be dropped and called again without losing one.
    pub(crate) async fn next(&mut self) -> Findings {
        loop {
            if self.looks.is_empty() {
                let due = self
                    .signs
                    .map_or(self.next_period, |s| s.due().min(self.next_period));
                tokio::time::sleep_until(due).await;
                self.next_period = Instant::now() + PERIOD;
                self.signs = None;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_waits_for_calm_and_not_for_ever() {
        let first = Instant::now();
        for (last, due) in [(0, 2), (1, 3), (7, 9), (8, 10), (9, 10), (100, 10)] {
            let last = first + Duration::from_secs(last);
            let signs = Signs { first, last };
            assert_eq!(signs.due() - first, Duration::from_secs(due));
        }
    }
}
