//! The status of a pod as a step sees it.

use std::collections::BTreeMap;
use std::sync::Arc;

use krablet_core::mirror::tells_of_past_life;
use krablet_core::status::{self, StatusInputs};
use krablet_core::worker::StatusOverride;
use krablet_events::reason;
use krablet_pod::api::{Pod, PodStatus};
use krablet_pod::observed::ObservedPod;
use krablet_pod::{Actuation, PodRef};

use super::Steps;

/// What a status is to say beyond what was observed.
#[derive(Clone, Default)]
pub(super) struct StatusView<'a> {
    pub(super) status_override: Option<&'a StatusOverride>,
    /// The pod will not run again.
    pub(super) terminal: bool,
    pub(super) ready_to_start: Option<bool>,
    /// Of containers that neither the runtime nor a status remembers.
    pub(super) log_restart_counts: BTreeMap<String, u32>,
    /// What the containers were last given, if the pod was ever resized.
    pub(super) actuated: Option<&'a Actuation>,
}

impl Steps {
    pub(super) fn store_status(
        &self,
        pod: &Arc<Pod>,
        pod_ref: &PodRef,
        observed: &ObservedPod,
        view: StatusView<'_>,
    ) -> PodStatus {
        // The agent that saw the manifest go and come back may not have lived to replace it.
        let mirror = self.parts.desired.mirror_of(&pod_ref.uid);
        if mirror.is_some_and(|mirror| tells_of_past_life(&mirror, observed)) {
            self.parts.desired.lives_anew(pod);
        }
        let start_errors =
            self.with_start_errors(|e| e.get(&pod_ref.uid).cloned().unwrap_or_default());
        let now = self.parts.clock.now();
        let pod = &self.as_last_told(pod, pod_ref);
        let resize = self.parts.resizes.list(&pod_ref.uid);
        let recursive = self.parts.runtime.mounts_recursively_read_only(pod);
        let node = self.parts.node.now(recursive);
        let mut generated = PodStatus::default();
        let mut mismatch = None;
        let changed = self.parts.status.update(pod, now, |old| {
            // Read here, where no verdict can slip in between and be written over.
            let verdicts = self.parts.probes.verdicts(&pod_ref.uid);
            let mut new = status::generate(&StatusInputs {
                pod,
                observed,
                old,
                start_errors: &start_errors,
                verdicts: &verdicts,
                terminal: view.terminal,
                ready_to_start: view.ready_to_start,
                deadline_exceeded: status::deadline_exceeded(pod, old, now),
                node: &node,
                log_restart_counts: &view.log_restart_counts,
                gates: self.parts.gates,
                resize: &resize,
                actuated: view.actuated,
            });
            if let Some(o) = view.status_override {
                new.phase = Some(o.phase.to_owned());
                new.reason = Some(o.reason.clone());
                new.message = Some(o.message.clone());
                if let Some(condition) = &o.condition {
                    let conditions = new.conditions.get_or_insert_default();
                    conditions.retain(|c| c.type_ != condition.type_);
                    conditions.push(condition.clone());
                }
            }
            mismatch = status::host_family_mismatch(old.or(pod.status.as_ref()), &new);
            let accounts = &self.parts.accounts;
            accounts.status_changes(pod, &pod_ref.uid, old, &new, now);
            generated = new.clone();
            new
        });
        // From the first status that says so; without a cluster nobody else names the node's addresses.
        if let Some(message) = mismatch
            && changed
            && self.parts.node.in_cluster
        {
            self.warn(pod_ref, reason::HOST_IPS_IP_FAMILY_MISMATCH, message);
        }
        generated
    }

    /// The first status of this life stands on the last one of the life before. Meanwhile the API
    /// server may have shown a later one than the pod came with, if it came out of a state file.
    fn as_last_told(&self, pod: &Arc<Pod>, pod_ref: &PodRef) -> Arc<Pod> {
        if self.parts.status.get(&pod_ref.uid).is_some() {
            return pod.clone();
        }
        let newest = self.parts.desired.get(&pod_ref.uid);
        match newest.filter(|newest| newest.status != pod.status) {
            Some(newest) => Arc::new(Pod {
                status: newest.status.clone(),
                ..(**pod).clone()
            }),
            None => pod.clone(),
        }
    }
}
