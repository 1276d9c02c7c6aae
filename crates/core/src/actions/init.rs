//! The walk over init containers: which one comes next, which sidecars are kept running.

use krablet_pod::ContainerId;
use krablet_pod::api::Container;
use krablet_pod::containers::{self, ContainerKind, is_sidecar};
use krablet_pod::observed::{ContainerState, ObservedContainer};

use super::{KillReason, Sync, UNKNOWN_INIT_MESSAGE, definition_changed};
use crate::probe::Verdict;
use crate::restart;

/// Where the walk stands after one container.
enum Step {
    Onward,
    /// The last init container is done, so the pod is initialised.
    Initialised,
    /// It failed for good, and the pod with it.
    Failed,
}

impl<'a> Sync<'a> {
    /// Lists what is to be done with init containers; true if the pod is initialised.
    ///
    /// The walk goes from the last container to the first: finished ones may have been removed,
    /// and the last one that left a trace tells that all before it are done. After that one,
    /// only sidecars matter.
    pub(super) fn walk_init(&mut self) -> bool {
        let init = containers::init_containers(self.spec);
        if init.is_empty() {
            return true;
        }
        let mut initialised = self.any_regular_alive();
        let mut past_frontier = initialised;
        for (i, container) in init.iter().enumerate().rev() {
            let Some(seen) = self.init_instance(container) else {
                if past_frontier && is_sidecar(container) {
                    self.actions.init_to_start.push(i);
                }
                continue;
            };
            if past_frontier && !is_sidecar(container) {
                continue;
            }
            match self.init_step(i, container, seen, past_frontier) {
                Step::Onward => {}
                Step::Initialised => initialised = true,
                Step::Failed => {
                    self.actions.kill_pod = true;
                    self.actions.init_to_start.clear();
                    return false;
                }
            }
            past_frontier = true;
        }
        if !past_frontier {
            self.actions.init_to_start.push(0);
        }
        self.actions.init_to_start.reverse();
        initialised
    }

    /// A regular container was created or runs in this sandbox. Ended ones do not count, so that
    /// the last of them to end waits for the sidecars before it is started again.
    fn any_regular_alive(&self) -> bool {
        self.spec.containers.iter().any(|c| {
            self.in_sandbox(&c.name).any(|seen| {
                matches!(
                    seen.state,
                    ContainerState::Created | ContainerState::Running
                )
            })
        })
    }

    /// Instances of a container in the sandbox that is used.
    fn in_sandbox(&self, name: &'a str) -> impl Iterator<Item = &'a ObservedContainer> {
        let sandbox = self.actions.sandbox_id.clone();
        self.observed
            .instances(name)
            .filter(move |c| Some(&c.sandbox_id) == sandbox.as_ref())
    }

    /// What stands for an init container: traces of an earlier sandbox do not count, for a new
    /// sandbox is initialised anew.
    fn init_instance(&self, container: &'a Container) -> Option<&'a ObservedContainer> {
        let name = &container.name;
        self.in_sandbox(name)
            .find(|c| c.is_running())
            .or_else(|| {
                self.in_sandbox(name)
                    .find(|c| c.state != ContainerState::Created)
            })
            .or_else(|| self.in_sandbox(name).next())
    }

    fn init_step(
        &mut self,
        i: usize,
        container: &Container,
        seen: &ObservedContainer,
        past_frontier: bool,
    ) -> Step {
        match (seen.state, is_sidecar(container)) {
            (ContainerState::Created, _) | (ContainerState::Exited, true) => {
                self.actions.init_to_start.push(i);
                Step::Onward
            }
            (ContainerState::Running, false) => {
                // One that may not be updated in place has what it was started with until it ends.
                self.keep_or_resize(container, seen);
                Step::Onward
            }
            (ContainerState::Running, true) => {
                self.running_sidecar(i, container, seen, past_frontier)
            }
            (ContainerState::Exited, false) => self.exited_init(i, container, seen),
            (ContainerState::Unknown, sidecar) => {
                if !sidecar && !restart::restarts_on_failure(self.spec, container, self.gates) {
                    return Step::Failed;
                }
                let message = UNKNOWN_INIT_MESSAGE.to_owned();
                self.kill(seen, ContainerKind::Init, message, KillReason::Unknown);
                self.actions.init_to_start.push(i);
                Step::Onward
            }
        }
    }

    fn exited_init(&mut self, i: usize, container: &Container, seen: &ObservedContainer) -> Step {
        let code = restart::exit_code(seen);
        if code == 0 {
            return self.after(i);
        }
        let again = self.pod.metadata.deletion_timestamp.is_none()
            && restart::should_restart(self.spec, container, code, self.gates).restarts();
        // Without the gate a failed init container under `OnFailure` and `Always` alike runs again,
        // which is what the pod's policy says for a non-zero code.
        if !again {
            return Step::Failed;
        }
        self.actions.init_to_start.push(i);
        Step::Onward
    }

    /// Container `i` is done: the next one may start, or all are done.
    fn after(&mut self, i: usize) -> Step {
        if i + 1 == containers::init_containers(self.spec).len() {
            return Step::Initialised;
        }
        self.actions.init_to_start.push(i + 1);
        Step::Onward
    }

    fn running_sidecar(
        &mut self,
        i: usize,
        container: &Container,
        seen: &ObservedContainer,
        past_frontier: bool,
    ) -> Step {
        let name = &container.name;
        let verdicts = self.verdicts_of(seen);
        if container.startup_probe.is_some() && verdicts.startup != Some(Verdict::Success) {
            if verdicts.startup == Some(Verdict::Failure) {
                let message = format!("Init container {name} failed startup probe");
                self.restart_sidecar(i, seen, message, KillReason::StartupProbe);
            }
            return Step::Onward;
        }
        let last = i + 1 == containers::init_containers(self.spec).len();
        let step = if last || !past_frontier {
            self.after(i)
        } else {
            Step::Onward
        };
        if definition_changed(container, seen) {
            let message = format!("Init container {name} definition changed");
            self.restart_sidecar(i, seen, message, KillReason::SpecChanged);
        } else if container.liveness_probe.is_some() && verdicts.liveness == Some(Verdict::Failure)
        {
            let message = format!("Init container {name} failed liveness probe");
            self.restart_sidecar(i, seen, message, KillReason::LivenessProbe);
        } else if !self.keep_or_resize(container, seen) {
            self.restart_resized(container, seen, ContainerKind::Init);
            self.actions.init_to_start.push(i);
        }
        step
    }

    fn restart_sidecar(
        &mut self,
        i: usize,
        seen: &ObservedContainer,
        message: String,
        reason: KillReason,
    ) {
        self.kill(seen, ContainerKind::Init, message, reason);
        self.actions.init_to_start.push(i);
    }

    /// Finished init containers that tell nothing: all of them when the sandbox is made anew, else
    /// all but the newest of each. While all containers are to start over none is trimmed, for one of
    /// them may be all that tells of it.
    pub(super) fn init_to_trim(&self) -> Vec<ContainerId> {
        if restart::restart_all_pending(self.spec, self.observed, self.gates) {
            return Vec::new();
        }
        let removing = &self.actions.to_remove;
        containers::init_containers(self.spec)
            .iter()
            .flat_map(|c| {
                let keep = usize::from(!self.actions.create_sandbox);
                let all = self.actions.create_sandbox;
                self.observed
                    .instances(&c.name)
                    .filter(move |seen| match seen.state {
                        ContainerState::Exited | ContainerState::Unknown => true,
                        ContainerState::Created => all,
                        // Nobody has seen its end yet; the next sync will.
                        ContainerState::Running => false,
                    })
                    .skip(keep)
            })
            .filter(|seen| removing.iter().all(|r| r.id != seen.id))
            .map(|seen| seen.id.clone())
            .collect()
    }
}
