//! What one sync of a pod does in the runtime, from its spec and what was seen of it.
//!
//! Order of work, for whoever carries the actions out: kill the pod or the listed containers;
//! remove what must not come to life again; trim finished init containers; make the sandbox; resize
//! what runs and the pod's cgroup; start ephemeral, init and regular containers. A failed kill or removal
//! ends the sync, a failed resize does not.

mod init;
mod resizes;
mod sandbox;
#[cfg(test)]
pub(crate) mod testkit;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use krablet_pod::api::{Container, Pod, PodSpec};
use krablet_pod::containers::{self, ContainerKind};
use krablet_pod::hash::container_hash_text;
use krablet_pod::observed::{ContainerState, ObservedContainer, ObservedPod};
use krablet_pod::{Actuation, ContainerId, SandboxId};

use crate::probe::{ContainerVerdicts, Verdict, Verdicts};
use crate::resize::PodResizes;
use crate::restart::{self, RestartGates, current_instance};

pub use sandbox::{SandboxNeed, sandbox_need};

#[derive(Clone, Copy, Debug)]
pub struct ActionInputs<'a> {
    pub pod: &'a Pod,
    pub observed: &'a ObservedPod,
    pub verdicts: &'a Verdicts,
    /// Feature gate `ContainerRestartRules`.
    pub rules_enabled: bool,
    /// Feature gate `RestartAllContainersOnContainerExits`.
    pub restart_all_enabled: bool,
    /// What the pod's containers were last given, if it was ever resized. The pod itself carries what
    /// they are promised.
    pub actuated: Option<&'a Actuation>,
}

/// Why a container is stopped; decides whose grace period counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum KillReason {
    /// Its state is unknown, or nothing more is to be said (the whole pod goes).
    Unknown,
    StartupProbe,
    LivenessProbe,
    /// The container's definition changed.
    SpecChanged,
    FailedPostStartHook,
    RestartAll,
    /// Another instance of the same container runs.
    Duplicate,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerToKill {
    pub id: ContainerId,
    pub name: String,
    pub kind: ContainerKind,
    /// Text of the `Killing` event.
    pub message: String,
    pub reason: KillReason,
    /// Another instance follows, though its policy may say of the end that it is final: a mark has to
    /// stand before it is stopped (see [`krablet_pod::paths::restart_mark`]).
    pub mark: bool,
}

/// A container to take out of the runtime before anything is started. Its logs stay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerToRemove {
    pub id: ContainerId,
    pub name: String,
    pub kind: ContainerKind,
    /// Stop it first, without grace.
    pub kill: bool,
    pub reason: RemoveReason,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RemoveReason {
    /// All containers start over.
    RestartAll,
    /// Created but never seen running: an outstanding start must not bring it to life beside
    /// its successor.
    NeverStarted,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodActions {
    /// Stop every container that runs or may run, and every sandbox; `to_kill` is empty then.
    pub kill_pod: bool,
    pub create_sandbox: bool,
    /// The newest sandbox seen, if any; what containers are started in unless one is created.
    pub sandbox_id: Option<SandboxId>,
    /// Attempt number of the sandbox: of the one to create, else of the one there is.
    pub attempt: u32,
    /// Indexes into `spec.initContainers`, in the order of start.
    pub init_to_start: Vec<usize>,
    /// Indexes into `spec.containers`.
    pub regular_to_start: Vec<usize>,
    /// Indexes into `spec.ephemeralContainers`.
    pub ephemeral_to_start: Vec<usize>,
    pub to_kill: Vec<ContainerToKill>,
    /// In this order; one that triggered a restart of all comes last, so that the intent
    /// survives the agent.
    pub to_remove: Vec<ContainerToRemove>,
    /// Finished init containers to remove with their logs; a failure here changes nothing.
    pub init_to_trim: Vec<ContainerId>,
    /// Before anything is started.
    pub resizes: PodResizes,
}

impl PodActions {
    pub fn starts_anything(&self) -> bool {
        let lists = [
            &self.init_to_start,
            &self.regular_to_start,
            &self.ephemeral_to_start,
        ];
        lists.iter().any(|list| !list.is_empty())
    }

    /// Nothing is left to do: what is seen is what is wanted.
    #[cfg(test)]
    fn is_done(&self, observed: &ObservedPod) -> bool {
        let pending = self.create_sandbox
            || self.starts_anything()
            || !self.to_kill.is_empty()
            || !self.to_remove.is_empty()
            || !self.init_to_trim.is_empty()
            || !self.resizes.is_empty()
            || (self.kill_pod && observed.is_alive());
        !pending
    }
}

/// Decides one sync of a pod.
pub fn compute_pod_actions(inputs: &ActionInputs<'_>) -> PodActions {
    let Some(spec) = inputs.pod.spec.as_ref() else {
        return PodActions::default();
    };
    let mut sync = Sync {
        pod: inputs.pod,
        spec,
        observed: inputs.observed,
        verdicts: inputs.verdicts,
        gates: RestartGates {
            rules: inputs.rules_enabled,
            restart_all: inputs.restart_all_enabled,
        },
        actuated: inputs.actuated,
        actions: PodActions::default(),
    };
    sync.decide();
    sync.settle();
    sync.actions
}

/// One decision in the making.
struct Sync<'a> {
    pod: &'a Pod,
    spec: &'a PodSpec,
    observed: &'a ObservedPod,
    verdicts: &'a Verdicts,
    gates: RestartGates,
    actuated: Option<&'a Actuation>,
    actions: PodActions,
}

impl<'a> Sync<'a> {
    fn decide(&mut self) {
        let need = sandbox_need(self.spec, self.observed);
        self.actions.kill_pod = need.create;
        self.actions.create_sandbox = need.create;
        self.actions.sandbox_id = need.existing;
        self.actions.attempt = need.attempt;
        if restart::restart_all_pending(self.spec, self.observed, self.gates) {
            // With the sandbox gone everything is killed first; the removal follows in the next
            // sync, for the trigger is still there.
            if !need.create {
                self.reset_all();
            }
            return;
        }
        if need.create {
            self.start_over();
            return;
        }
        self.start_ephemeral();
        let initialised = self.walk_init();
        if self.actions.kill_pod || !initialised {
            return;
        }
        self.check_regular();
    }

    /// Last corrections that hold whatever was decided.
    fn settle(&mut self) {
        let deleted = self.pod.metadata.deletion_timestamp.is_some();
        if deleted {
            self.actions.create_sandbox = false;
            self.actions.to_remove.clear();
        }
        let killed_for_good = self.actions.kill_pod && !self.actions.create_sandbox;
        if deleted || killed_for_good {
            self.actions.init_to_start.clear();
            self.actions.regular_to_start.clear();
            self.actions.ephemeral_to_start.clear();
        }
        if !killed_for_good {
            self.clear_the_way();
        }
        if self.actions.kill_pod {
            self.actions.to_kill.clear();
        }
        self.actions.init_to_trim = self.init_to_trim();
        self.settle_resizes();
    }

    /// Every container of the pod is killed and removed, those that called for it last.
    fn reset_all(&mut self) {
        let (init_sources, init_targets) = self.resets(ContainerKind::Init);
        let (sources, targets) = self.resets(ContainerKind::Regular);
        self.actions.to_remove = [targets, init_targets, sources, init_sources].concat();
    }

    /// (those that triggered the restart, the others) of one kind.
    fn resets(&self, kind: ContainerKind) -> (Vec<ContainerToRemove>, Vec<ContainerToRemove>) {
        let observed = self.observed;
        containers::all(self.spec)
            .filter(|c| c.kind == kind)
            .flat_map(|c| {
                let instances = observed.instances(&c.container.name);
                instances.map(move |seen| (c.container, seen))
            })
            .map(|(container, seen)| {
                let exited = seen.state == ContainerState::Exited;
                let trigger =
                    exited && restart::triggers_restart_all(container, restart::exit_code(seen));
                (
                    trigger,
                    to_remove(seen, kind, !exited, RemoveReason::RestartAll),
                )
            })
            .fold((Vec::new(), Vec::new()), |mut lists, (trigger, remove)| {
                let list = if trigger { &mut lists.0 } else { &mut lists.1 };
                list.push(remove);
                lists
            })
    }

    /// A new sandbox is needed: all starts from the beginning, unless the pod has had its run.
    fn start_over(&mut self) {
        let never = restart::pod_policy(self.spec) == "Never";
        if never && self.actions.attempt != 0 && !self.observed.containers.is_empty() {
            self.actions.create_sandbox = false;
            return;
        }
        let wanted: Vec<usize> = (0..self.spec.containers.len())
            .filter(|i| !self.has_had_its_run(&self.spec.containers[*i]))
            .collect();
        if wanted.is_empty() && self.any_regular_seen() {
            self.actions.create_sandbox = false;
        } else if containers::init_containers(self.spec).is_empty() {
            self.actions.regular_to_start = wanted;
        } else {
            self.actions.init_to_start = vec![0];
        }
    }

    /// Ended, and not to be started again: a new sandbox is no reason to run it twice.
    fn has_had_its_run(&self, container: &Container) -> bool {
        let own_policy = self.gates.rules && container.restart_policy.is_some();
        let decides = own_policy || restart::pod_policy(self.spec) == "OnFailure";
        decides
            && current_instance(self.observed, &container.name).is_some_and(|c| {
                c.state == ContainerState::Exited
                    && !restart::is_followed(self.spec, container, c, self.gates)
            })
    }

    /// Some regular container was created at some time, so initialisation was done.
    fn any_regular_seen(&self) -> bool {
        self.spec.containers.iter().any(|c| {
            let mut instances = self.observed.instances(&c.name);
            instances.any(|seen| seen.state != ContainerState::Unknown)
        })
    }

    /// Ephemeral containers are started once, also before initialisation is done.
    fn start_ephemeral(&mut self) {
        self.actions.ephemeral_to_start = containers::ephemeral_containers(self.spec)
            .iter()
            .enumerate()
            .filter(|(_, c)| self.observed.newest(&c.name).is_none())
            .map(|(i, _)| i)
            .collect();
    }

    fn check_regular(&mut self) {
        let mut kept = 0;
        for (i, container) in self.spec.containers.iter().enumerate() {
            match current_instance(self.observed, &container.name) {
                Some(seen) if seen.is_running() => {
                    kept += usize::from(self.check_running(i, container, seen));
                }
                _ => {
                    let wants = restart::wants_start(
                        self.pod,
                        self.spec,
                        container,
                        self.observed,
                        self.gates,
                    );
                    if wants {
                        self.actions.regular_to_start.push(i);
                    }
                }
            }
        }
        if kept == 0 && self.actions.regular_to_start.is_empty() {
            // Sidecars alone do not keep a pod alive.
            self.actions.kill_pod = true;
        }
    }

    /// Whether the running container is kept; if not, it is listed to be killed.
    fn check_running(&mut self, i: usize, container: &Container, seen: &ObservedContainer) -> bool {
        let name = &container.name;
        let verdicts = self.verdicts_of(seen);
        let (mut message, reason) = if definition_changed(container, seen) {
            (
                format!("Container {name} definition changed"),
                KillReason::SpecChanged,
            )
        } else if verdicts.liveness == Some(Verdict::Failure) {
            (
                format!("Container {name} failed liveness probe"),
                KillReason::LivenessProbe,
            )
        } else if verdicts.startup == Some(Verdict::Failure) {
            (
                format!("Container {name} failed startup probe"),
                KillReason::StartupProbe,
            )
        } else {
            return self.keep_or_resize(container, seen) || {
                self.restart_resized(container, seen, ContainerKind::Regular);
                self.actions.regular_to_start.push(i);
                false
            };
        };
        let again = self.pod.metadata.deletion_timestamp.is_none()
            && (reason == KillReason::SpecChanged
                || restart::restarts_on_failure(self.spec, container, self.gates));
        if again {
            message.push_str(", will be restarted");
            self.actions.regular_to_start.push(i);
        }
        self.kill(seen, ContainerKind::Regular, message, reason);
        if again {
            self.mark_killed(container);
        }
        false
    }

    /// The one listed last is followed by another instance.
    fn mark_killed(&mut self, container: &Container) {
        let mark = restart::may_end(self.spec, container, self.gates);
        if let Some(last) = self.actions.to_kill.last_mut() {
            last.mark = mark;
        }
    }

    fn verdicts_of(&self, seen: &ObservedContainer) -> ContainerVerdicts {
        self.verdicts.get(&seen.id).copied().unwrap_or_default()
    }

    fn kill(
        &mut self,
        seen: &ObservedContainer,
        kind: ContainerKind,
        message: String,
        reason: KillReason,
    ) {
        self.actions.to_kill.push(ContainerToKill {
            id: seen.id.clone(),
            name: seen.name.to_string(),
            kind,
            message,
            reason,
            mark: false,
        });
    }

    /// Nothing that may live, or come to life, is left beside an instance that runs or is
    /// started: duplicates and unknown ones are killed, created ones removed.
    fn clear_the_way(&mut self) {
        let starting: BTreeSet<&str> = self.names_to_start();
        let listed: BTreeSet<ContainerId> =
            self.actions.to_kill.iter().map(|k| k.id.clone()).collect();
        let removing: BTreeSet<ContainerId> = self
            .actions
            .to_remove
            .iter()
            .map(|r| r.id.clone())
            .collect();
        for c in containers::all(self.spec) {
            let name = c.container.name.as_str();
            let starts = starting.contains(name);
            let keeper = current_instance(self.observed, name)
                .filter(|k| k.is_running() && !starts)
                .map(|k| &k.id);
            if !starts && keeper.is_none() {
                continue;
            }
            for seen in self.observed.instances(name) {
                if Some(&seen.id) == keeper
                    || listed.contains(&seen.id)
                    || removing.contains(&seen.id)
                {
                    continue;
                }
                match seen.state {
                    ContainerState::Exited => {}
                    ContainerState::Created if starts => self.actions.to_remove.push(to_remove(
                        seen,
                        c.kind,
                        false,
                        RemoveReason::NeverStarted,
                    )),
                    ContainerState::Created => {}
                    ContainerState::Unknown if !starts => {}
                    ContainerState::Unknown => {
                        let message = match c.kind {
                            ContainerKind::Init => UNKNOWN_INIT_MESSAGE,
                            _ => UNKNOWN_MESSAGE,
                        };
                        self.kill(seen, c.kind, message.to_owned(), KillReason::Unknown);
                    }
                    ContainerState::Running => {
                        let message = format!("Container {name} runs more than once");
                        self.kill(seen, c.kind, message, KillReason::Duplicate);
                    }
                }
            }
        }
    }

    fn names_to_start(&self) -> BTreeSet<&'a str> {
        let init = containers::init_containers(self.spec);
        let init = self.actions.init_to_start.iter().map(|i| &init[*i]);
        let regular = self
            .actions
            .regular_to_start
            .iter()
            .map(|i| &self.spec.containers[*i]);
        init.chain(regular).map(|c| c.name.as_str()).collect()
    }
}

const UNKNOWN_MESSAGE: &str = "Container is in \"unknown\" state, try killing it before restart";
const UNKNOWN_INIT_MESSAGE: &str =
    "Init container is in \"unknown\" state, try killing it before restart";

fn to_remove(
    seen: &ObservedContainer,
    kind: ContainerKind,
    kill: bool,
    reason: RemoveReason,
) -> ContainerToRemove {
    ContainerToRemove {
        id: seen.id.clone(),
        name: seen.name.to_string(),
        kind,
        kill,
        reason,
    }
}

/// The container runs from another name or image than the spec has now. One that carries no hash
/// was not started by a kubelet we know and counts as changed.
fn definition_changed(container: &Container, seen: &ObservedContainer) -> bool {
    seen.memory.hash.as_deref() != Some(container_hash_text(container).as_str())
}
