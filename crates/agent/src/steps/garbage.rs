//! What is left of pods that are gone, and how it is taken away without standing in the way of those that come back.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use krablet_core::gc::Fate;
use krablet_events::{Subject, reason};
use krablet_pod::observed::ObservedPod;
use krablet_pod::{ContainerId, PodUid};
use krablet_runtime::gc::{Claim, GcRound};
use tracing::warn;

use super::Steps;
use crate::clearing::{Cleared, Round};
use crate::housekeeping::Leftovers;

/// What was known of a pod's remains at the time of the look.
#[derive(Clone, Copy)]
pub(crate) struct KnownFate {
    pub(crate) fate: Fate,
    /// A source wanted the pod then.
    pub(crate) wanted: bool,
}

/// What a collection of garbage is told.
pub(crate) struct Garbage {
    pub(crate) pods: Vec<Arc<ObservedPod>>,
    pub(crate) fates: BTreeMap<PodUid, KnownFate>,
    /// Containers whose end stands in a status.
    pub(crate) recorded: BTreeSet<ContainerId>,
    /// Else a source may still claim what nobody knows.
    pub(crate) all_spoke: bool,
}

impl Steps {
    /// What is left of pods that are gone: their directories, and cgroups of an earlier agent.
    pub(crate) async fn release_leftovers(&self, round: &Round, leftovers: Leftovers) {
        let (mut found, mut failed) = (0, 0);
        for uid in leftovers.directories {
            let Some(_claim) = self.claim(round, &uid) else {
                continue;
            };
            let done = self.parts.volumes.tear_down(&uid).await;
            found += 1;
            failed += u64::from(done.is_err());
            if let Some(text) = self.held_volumes.news(&uid, &done) {
                warn!(podUID = %uid, err = text, "Could not remove the directory of a pod that is gone, will retry");
            }
        }
        self.parts.volumes.swept(found, failed);
        for (uid, qos) in leftovers.cgroups {
            let Some(_claim) = self.claim(round, &uid) else {
                continue;
            };
            self.release_cgroup(&uid, qos).await;
        }
    }

    /// To be opened when it is decided what a round may take away.
    pub(crate) fn open_round(&self) -> Round {
        self.clearing.open()
    }

    /// For one who takes away the remains of a pod; `None` if it is wanted again.
    fn claim(&self, round: &Round, uid: &PodUid) -> Option<Cleared> {
        let claim = round.claim(uid)?;
        (!self.parts.desired.contains(uid)).then_some(claim)
    }

    pub(crate) async fn collect_garbage(&self, round: &Round, garbage: Garbage) {
        // A pod nobody knows may go whole once every source has spoken. What has become wanted since the
        // look has containers and logs that the look knows nothing of.
        let fate = |uid: &PodUid| match garbage.fates.get(uid) {
            Some(known) if known.wanted => known.fate,
            _ if self.parts.desired.contains(uid) => Fate::Live,
            Some(known) => known.fate,
            None if !garbage.all_spoke => Fate::Live,
            None => Fate::ContentRemovable,
        };
        let claim = |uid: &PodUid| match garbage.fates.get(uid) {
            // A living pod loses only what its steps have no use for.
            Some(known) if known.fate == Fate::Live => Some(Box::new(()) as Claim),
            // One that has ended and is wanted may be about to begin anew.
            Some(known) if known.wanted => Some(Box::new(round.claim(uid)?) as Claim),
            _ => Some(Box::new(self.claim(round, uid)?) as Claim),
        };
        let report = self
            .parts
            .gc
            .run(&GcRound {
                pods: &garbage.pods,
                fate: &fate,
                recorded: &|id| garbage.recorded.contains(id),
                claim: &claim,
                sources_ready: garbage.all_spoke,
                evict_terminated: false,
            })
            .await;
        if let Some(failure) = report.failures.first() {
            let message = failure.clone();
            self.parts
                .recorder
                .warning(Subject::Node, reason::CONTAINER_GC_FAILED, message);
        }
    }
}
