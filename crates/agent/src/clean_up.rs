//! Housekeeping: what follows from a look around the node, in its order, each step a function of
//! its own.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use krablet_core::gc::Fate;
use krablet_core::worker::{Stage, UpdateKind};
use krablet_pod::observed::ObservedPod;
use krablet_pod::{ContainerId, PodRef, PodUid};
use krablet_status::StatusStore;

use crate::housekeeping::Findings;
use crate::steps::garbage::{Garbage, KnownFate};
use crate::sync_loop::SyncLoop;

impl SyncLoop {
    pub(crate) fn clean_up(&mut self, findings: Findings) {
        let all_spoke = self.tidy();
        if all_spoke {
            self.end_unknown_pods(&findings);
            self.found_at_start = Vec::new();
        }
        self.release_and_collect(findings, all_spoke);
    }

    /// The part that needs no look at the node. Nothing unknown may be touched while a source may
    /// still claim it: false then. Pods that have workers are known whoever is silent: one that its source took
    /// away and brought back does not wait for another source, which may be what it is to bring up.
    pub(crate) fn tidy(&mut self) -> bool {
        let all_spoke = self.parts.desired.sources_ready(&self.parts.sources);
        self.drop_gone_workers(all_spoke);
        self.stop_probes_of_ended_pods();
        if all_spoke {
            self.drop_statuses_of_gone_pods();
        }
        self.start_pods_without_worker(all_spoke);
        all_spoke
    }

    fn drop_gone_workers(&mut self, all_spoke: bool) {
        let desired = self.parts.desired.clone();
        let known = |uid: &PodUid| desired.contains(uid);
        let (_, effects) = self.workers.sync_known(known, all_spoke);
        self.carry_out(effects);
        let workers = &self.workers;
        self.ended.retain(|uid, _| workers.is_known(uid));
        // One that was let go before its first step has ended without any.
        let alive = |uid: &PodUid| workers.stage(uid).is_some_and(|s| s < Stage::Finished);
        desired.retain_ending(alive);
        self.parts.accounts.note_all(workers);
    }

    fn stop_probes_of_ended_pods(&self) {
        let workers = &self.workers;
        self.parts
            .probes
            .retain(&|uid| workers.stage(uid).is_some_and(|s| s < Stage::Terminated));
    }

    fn drop_statuses_of_gone_pods(&mut self) {
        let keep = |uid: &PodUid| self.parts.desired.contains(uid) || self.workers.is_known(uid);
        self.parts.status.retain(keep);
        self.parts.steps.retain(&keep);
        self.parts.resizes.retain(keep);
        let (desired, workers) = (&self.parts.desired, &self.workers);
        self.door
            .retain(|uid| desired.contains(uid) || workers.is_known(uid));
    }

    /// Wanted pods whose record was dropped (the UID was used again) start anew, as do those that waited for sources to
    /// speak.
    fn start_pods_without_worker(&mut self, all_spoke: bool) {
        for pod in self.parts.desired.all() {
            let uid = PodRef::of(&pod).uid;
            let held = self.parts.desired.is_refused(&uid) || self.door.is_waiting(&uid);
            if held || self.workers.is_known(&uid) {
                continue;
            }
            if all_spoke || self.make_way(&pod) {
                // What was said of its last life is not true of the next one.
                self.parts.status.retain(|other| *other != uid);
                self.parts.desired.lives_anew(&pod);
                self.parts.steps.retain(&|other| *other != uid);
                self.parts.accounts.restarted(&pod);
                self.pod_wanted(&pod, UpdateKind::Create);
            }
        }
    }

    /// Pods that run without anybody wanting them, or once they have ended.
    fn end_unknown_pods(&mut self, findings: &Findings) {
        for pod in &findings.alive {
            let known = self
                .workers
                .stage(&pod.uid)
                .is_some_and(|s| s != Stage::Finished);
            match self.parts.desired.contains(&pod.uid) {
                _ if known => {}
                true => self.end_again(pod),
                false => self.end_unknown(pod.clone()),
            }
        }
    }

    /// A pod that has ended for good, and that its source still wants, had something come to life afterwards.
    fn end_again(&mut self, pod: &PodRef) {
        // The look may be older than the pod's last step.
        let latest = self.parts.observer.latest(&pod.uid);
        if latest.is_some_and(|observed| observed.is_alive()) {
            let effects = self.workers.end_again(&pod.uid);
            self.parts.accounts.note(&pod.uid, &self.workers);
            self.carry_out(effects);
        }
    }

    /// Directories and cgroups of pods that are gone, then dead containers, sandboxes and logs.
    fn release_and_collect(&mut self, findings: Findings, all_spoke: bool) {
        let mut leftovers = findings.leftovers;
        leftovers.retain(|uid| {
            all_spoke
                && !self.workers.is_known(uid)
                && !self.parts.desired.contains(uid)
                && !findings.alive.iter().any(|p| p.uid == *uid)
        });
        let garbage = Garbage {
            fates: self.fates(&findings.pods),
            recorded: recorded_exits(&self.parts.status, &findings.pods),
            pods: findings.pods,
            all_spoke,
        };
        let steps = self.parts.steps.clone();
        let round = steps.open_round();
        self.housekeeping.spawn(async move {
            steps.release_leftovers(&round, leftovers).await;
            steps.collect_garbage(&round, garbage).await;
        });
    }

    /// What the workers say of each pod's remains.
    fn fates(&self, pods: &[Arc<ObservedPod>]) -> BTreeMap<PodUid, KnownFate> {
        let fate = |uid: &PodUid| {
            if self.parts.desired.contains(uid) && !self.workers.is_known(uid) {
                Fate::Live
            } else if self.workers.may_remove_content(uid) {
                Fate::ContentRemovable
            } else if self.workers.may_remove_runtime(uid) {
                Fate::RuntimeRemovable
            } else {
                Fate::Live
            }
        };
        let seen = pods.iter().map(|p| &p.pod.uid).chain(self.workers.uids());
        let known = |uid: &PodUid| KnownFate {
            fate: fate(uid),
            wanted: self.parts.desired.contains(uid),
        };
        seen.map(|uid| (uid.clone(), known(uid))).collect()
    }
}

/// Containers whose end stands in a status, and older instances of them: an instance is only ever
/// followed by another once its end was told.
fn recorded_exits(status: &StatusStore, pods: &[Arc<ObservedPod>]) -> BTreeSet<ContainerId> {
    let mut recorded = BTreeSet::new();
    for standing in status.all().values() {
        let s = &standing.status;
        let lists = [
            &s.init_container_statuses,
            &s.container_statuses,
            &s.ephemeral_container_statuses,
        ];
        for container in lists.into_iter().flatten().flatten() {
            let ends = [&container.state, &container.last_state]
                .into_iter()
                .flatten();
            let ids = ends.filter_map(|s| s.terminated.as_ref()?.container_id.as_deref());
            recorded.extend(ids.map(|id| ContainerId::from(id.rsplit("://").next().unwrap_or(id))));
        }
    }
    for pod in pods {
        let mut told = BTreeSet::new();
        for container in &pod.containers {
            if recorded.contains(&container.id) {
                told.insert(container.name.clone());
            } else if told.contains(&container.name) {
                recorded.insert(container.id.clone());
            }
        }
    }
    recorded
}
