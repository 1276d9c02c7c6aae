//! The first part of a sync: what must not run any more is stopped, what must not come to life again
//! removed.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use krablet_core::actions::{ContainerToKill, KillReason, PodActions, RemoveReason};
use krablet_core::restart::{RestartGates, current_instance, wants_start};
use krablet_events::{Subject, reason};
use krablet_pod::observed::ObservedPod;
use krablet_pod::{ContainerId, PodRef, paths};

use crate::error::RuntimeError;
use crate::kill::KillCause;
use crate::pod_runtime::PodRuntime;
use crate::start::LOG_DIR_MODE;
use crate::sync::{SyncInputs, SyncOutcome};

fn kills(inputs: &SyncInputs<'_>, actions: &PodActions) -> bool {
    match actions.kill_pod {
        true => inputs.observed.containers.iter().any(|c| c.is_running()),
        false => !actions.to_kill.is_empty(),
    }
}

impl PodRuntime {
    /// Kills and removals; the first that fails ends the sync.
    pub(crate) async fn take_down(
        &self,
        inputs: &SyncInputs<'_>,
        actions: &PodActions,
        out: &mut SyncOutcome,
    ) -> Result<(), RuntimeError> {
        let observed = inputs.observed;
        if actions.create_sandbox && actions.sandbox_id.is_some() {
            let subject = Subject::Pod(PodRef::of(inputs.pod));
            let text = "Pod sandbox changed, it will be killed and re-created.";
            let recorder = &self.inner.deps.recorder;
            recorder.normal(subject, reason::SANDBOX_CHANGED, text);
        }
        if actions.kill_pod {
            // A pod that has ended is left in peace; old sandboxes make room for a new one.
            if observed.is_alive() || (actions.create_sandbox && !observed.sandboxes.is_empty()) {
                out.acted = true;
                self.kill_pod(Some(inputs.pod), observed, None).await?;
            }
        } else {
            for doomed in &actions.to_kill {
                let cause = KillCause {
                    reason: doomed.reason,
                    message: doomed.message.clone(),
                    grace: None,
                };
                out.acted = true;
                if doomed.mark {
                    self.mark_restart(inputs, doomed).await?;
                }
                self.kill_observed(inputs, &doomed.id, cause).await?;
            }
        }
        for doomed in &actions.to_remove {
            out.acted = true;
            if doomed.kill {
                let cause = KillCause {
                    reason: KillReason::RestartAll,
                    message: "killing".into(),
                    grace: Some(0),
                };
                self.kill_observed(inputs, &doomed.id, cause).await?;
            }
            if doomed.reason == RemoveReason::NeverStarted {
                self.remove_never_started(&doomed.name, &doomed.id).await?;
                continue;
            }
            let removed = self.remove_container(&doomed.id).await;
            removed.map_err(|source| RuntimeError::RemoveContainer {
                container: doomed.name.clone(),
                source,
            })?;
            out.restart_all |= doomed.reason == RemoveReason::RestartAll;
        }
        self.trim_init(inputs, actions, out).await;
        Ok(())
    }

    /// What could not be marked is not stopped: it might not come back.
    async fn mark_restart(
        &self,
        inputs: &SyncInputs<'_>,
        doomed: &ContainerToKill,
    ) -> Result<(), RuntimeError> {
        let seen = inputs.observed.container(&doomed.id);
        let Some(path) = seen.and_then(|seen| paths::restart_mark(Path::new(&seen.log_path)))
        else {
            return Ok(());
        };
        let files = &self.inner.deps.files;
        let dir = path.parent().unwrap_or(&path);
        let marked = match files.touch(&path, 0o600).await {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                match files.create_dir_all(dir, LOG_DIR_MODE).await {
                    Ok(()) => files.touch(&path, 0o600).await,
                    failed => failed,
                }
            }
            marked => marked,
        };
        marked.map_err(|source| RuntimeError::File { path, source })
    }

    /// How those that were killed have ended, before others take their place.
    pub(crate) async fn see_ends(
        &self,
        inputs: &SyncInputs<'_>,
        actions: &PodActions,
    ) -> Result<(), RuntimeError> {
        if !kills(inputs, actions) {
            return Ok(());
        }
        let seen = (inputs.on_killed)().await;
        let seen = seen.map_err(RuntimeError::EndsNotSeen)?;
        self.check_ends(inputs, actions, &seen)
    }

    /// A container that came to its end before it could be stopped is not to be started again
    /// just because somebody was about to.
    fn check_ends(
        &self,
        inputs: &SyncInputs<'_>,
        actions: &PodActions,
        seen: &ObservedPod,
    ) -> Result<(), RuntimeError> {
        let gates = RestartGates {
            rules: self.inner.config.restart_rules,
            restart_all: self.inner.config.restart_all,
        };
        let Some(spec) = inputs.pod.spec.as_ref() else {
            return Ok(());
        };
        for killed in actions.to_kill.iter().filter(|killed| killed.mark) {
            let container = spec.containers.iter().find(|c| c.name == killed.name);
            let over = container.is_some_and(|c| {
                current_instance(seen, &c.name).is_some_and(|i| i.id == killed.id)
                    && !wants_start(inputs.pod, spec, c, seen, gates)
            });
            if over {
                let container = killed.name.clone();
                return Err(RuntimeError::EndedByItself { container });
            }
        }
        Ok(())
    }

    async fn kill_observed(
        &self,
        inputs: &SyncInputs<'_>,
        id: &ContainerId,
        cause: KillCause,
    ) -> Result<(), RuntimeError> {
        let Some(seen) = inputs.observed.container(id) else {
            return Ok(());
        };
        let job = self.kill_job(Some(inputs.pod), inputs.observed, seen, cause);
        self.kill_container(job).await
    }

    /// Finished init containers beyond the newest; what fails here is left to garbage collection.
    /// Where a new sandbox leaves none of them, their logs are all that remembers restart counts.
    async fn trim_init(
        &self,
        inputs: &SyncInputs<'_>,
        actions: &PodActions,
        out: &mut SyncOutcome,
    ) {
        let ids = actions.init_to_trim.iter();
        let mut doomed: Vec<_> = ids.filter_map(|id| inputs.observed.container(id)).collect();
        // The newest knows the restart count, so it goes last, and stays where an older one does.
        doomed.sort_by_key(|seen| seen.memory.restart_count);
        let mut stuck = BTreeSet::new();
        for seen in doomed {
            if stuck.contains(&seen.name) {
                continue;
            }
            out.acted = true;
            let pod = &inputs.observed.pod;
            let removed = match actions.create_sandbox {
                true => {
                    let container = seen.name.to_string();
                    let removed = self.remove_container(&seen.id).await;
                    removed.map_err(|source| RuntimeError::RemoveContainer { container, source })
                }
                false => self.remove_container_and_logs(pod, seen).await,
            };
            if let Err(error) = removed {
                tracing::error!(pod = %pod, podUID = %pod.uid, containerName = &*seen.name, %error, "Failed to remove pod init container");
                stuck.insert(seen.name.clone());
            }
        }
    }
}
