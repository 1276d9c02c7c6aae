//! What the node must look like once the weather is good and nothing more happens.

use krablet_core::restart::pod_policy;
use krablet_core::status;
use krablet_pod::PodUid;
use krablet_pod::api::{Container, PodSpec, PodStatus};
use krablet_pod::containers::{self, ephemeral_containers, init_containers, is_sidecar};
use krablet_pod::observed::ContainerState;

use super::{Known, Laws, deadlines, sizes};
use crate::rules::{self, Follows};
use crate::runtime::{Instance, Machine};

/// What lies around on the node of a pod.
#[derive(Clone, Debug, Default)]
pub(crate) struct Leftovers {
    pub(crate) directories: Vec<PodUid>,
    pub(crate) cgroups: Vec<PodUid>,
    /// Pods with something mounted.
    pub(crate) mounts: Vec<PodUid>,
    /// Directories of logs, by the UID in their name.
    pub(crate) logs: Vec<PodUid>,
}

/// A late call may leave a newer instance that was never started: it counts if there is no other.
fn newest<'a>(machine: &'a Machine, uid: &'a PodUid, name: &str) -> Option<&'a Instance> {
    let all = machine.of_pod(uid).filter(|c| c.name == name);
    all.max_by_key(|c| (c.state != ContainerState::Created, c.number))
}

impl Laws {
    /// Why the node is not yet as it should be.
    pub(crate) fn unsettled(&self, machine: &Machine, left: &Leftovers) -> Option<String> {
        let Some((_, handle)) = &self.agent else {
            return Some("there is no agent".to_owned());
        };
        for (uid, known) in &self.pods {
            let why = match known.wanted {
                true => self.wanted_pod(machine, uid, known, left),
                false => gone_pod(machine, uid, left),
            };
            if let Some(why) = why {
                return Some(format!("{uid}: {why}"));
            }
        }
        for uid in handle.status.all().keys() {
            if !self.is_wanted(uid) {
                return Some(format!("{uid}: has a status and is not wanted"));
            }
        }
        let strange = machine.sandboxes.values().map(|s| &s.pod.uid);
        let strange = strange.chain(machine.containers.values().map(|c| &c.pod.uid));
        for uid in strange {
            if !self.pods.contains_key(uid) {
                return Some(format!("{uid}: nobody ever wanted it"));
            }
        }
        let lost = self.ends.iter().find(|(_, e)| !e.recorded && !e.stop_asked);
        lost.map(|(id, e)| {
            format!(
                "the exit {} of {id} ({} of {}) stands in no status",
                e.code, e.container, e.pod
            )
        })
    }

    /// Whether some wanted pod can neither run nor end.
    pub(crate) fn any_stranded(&self, machine: &Machine) -> bool {
        self.pods.iter().any(|(uid, known)| {
            let spec = known.pod.spec.as_ref();
            known.wanted && spec.is_some_and(|spec| stranded(machine, uid, spec))
        })
    }

    fn wanted_pod(
        &self,
        machine: &Machine,
        uid: &PodUid,
        known: &Known,
        left: &Leftovers,
    ) -> Option<String> {
        let spec = known.pod.spec.as_ref()?;
        if known.pod.metadata.deletion_timestamp.is_some() {
            return Some("is to be deleted and has not ended".to_owned());
        }
        let Some(standing) = self.standings.get(uid) else {
            return Some("has no status".to_owned());
        };
        if status::is_terminal(&standing.status) {
            // Its next life may have found the remains of the last, on their way out.
            if known.came_back && machine.of_pod(uid).next().is_none() {
                return None;
            }
            return ended_pod(machine, uid, spec, &standing.status, left);
        }
        if let Some(why) = self.has_to_end(uid) {
            return Some(why);
        }
        if stranded(machine, uid, spec) {
            return None;
        }
        if status::phase_of(&standing.status) != status::RUNNING {
            return Some(format!("is {}", status::phase_of(&standing.status)));
        }
        let ready = machine.sandboxes_of(uid).filter(|s| s.ready).count();
        if ready != 1 {
            return Some(format!("has {ready} ready sandboxes"));
        }
        let sidecars = init_containers(spec).iter().filter(|c| is_sidecar(c));
        let staying = sidecars.map(|c| (c, true));
        let regular = spec.containers.iter().map(|c| (c, false));
        let mut running = 0;
        for (container, sidecar) in staying.chain(regular) {
            match container_runs(machine, uid, spec, container, sidecar) {
                Ok(true) => running += usize::from(!sidecar),
                Ok(false) => {}
                Err(why) => return Some(why),
            }
        }
        if running == 0 {
            return Some("no container of it runs, and it has not ended".to_owned());
        }
        // As with the kubelet, one whose start failed is not tried again.
        let mut ephemeral = ephemeral_containers(spec).iter();
        let missing = ephemeral.find(|c| newest(machine, uid, &c.name).is_none());
        if let Some(missing) = missing {
            return Some(format!("{} was never created", missing.name));
        }
        self.status_tells(machine, uid)
    }

    /// The status says of every container what the runtime would say.
    fn status_tells(&self, machine: &Machine, uid: &PodUid) -> Option<String> {
        let status = &self.standings.get(uid)?.status;
        let restarting = status::condition(status, "AllContainersRestarting");
        if restarting.is_some_and(|c| c.status == "True") {
            return Some("is still told to restart all its containers".to_owned());
        }
        let ephemeral = status.ephemeral_container_statuses.iter().flatten();
        let ephemeral = ephemeral.map(|told| (told, false));
        let regular = status.container_statuses.iter().flatten();
        for (told, serves) in regular.map(|told| (told, true)).chain(ephemeral) {
            // A late call may leave a newer instance that was never started beside the one that runs.
            let mut all = machine.of_pod(uid).filter(|c| c.name == told.name);
            let running = all.find(|c| c.is_running());
            let Some(seen) = running.or_else(|| newest(machine, uid, &told.name)) else {
                continue;
            };
            let id = told.container_id.as_deref().unwrap_or_default();
            let runs = told.state.as_ref().is_some_and(|s| s.running.is_some());
            if !id.ends_with(&seen.id) || runs != seen.is_running() {
                return Some(format!("the status of {} is out of date", told.name));
            }
            if serves && runs && !told.ready {
                return Some(format!("{} is not ready", told.name));
            }
        }
        None
    }
}

/// A pod that never restarts and lost its sandbox half-way is not run again, so it neither runs nor
/// ends: as with the kubelet, it waits to be deleted. Only a restart of all gives it another sandbox.
fn stranded(machine: &Machine, uid: &PodUid, spec: &PodSpec) -> bool {
    let begun = machine.of_pod(uid).next().is_some();
    // One that was made to follow another stands for it, though it could not be started.
    let restarts = containers::all(spec).any(|c| {
        let name = &c.container.name;
        let all = machine.of_pod(uid).filter(|seen| seen.name == *name);
        all.max_by_key(|seen| seen.number).is_some_and(|seen| {
            seen.state == ContainerState::Exited && rules::restarts_all(spec, name, seen.exit_code)
        })
    });
    pod_policy(spec) == "Never" && begun && !machine.is_alive(uid) && !restarts
}

/// Whether it runs; an error if it should and does not, or the other way round.
fn container_runs(
    machine: &Machine,
    uid: &PodUid,
    spec: &PodSpec,
    container: &Container,
    sidecar: bool,
) -> Result<bool, String> {
    let name = &container.name;
    let all = machine.of_pod(uid).filter(|c| c.name == *name);
    let mut running = all.filter(|c| c.is_running());
    if let Some(seen) = running.next() {
        if running.next().is_some() {
            return Err(format!("{name} runs more than once"));
        }
        if Some(seen.image()) != container.image.as_deref() {
            return Err(format!("{name} runs from {}", seen.image()));
        }
        if let Some(why) = wrong_size(seen, container) {
            return Err(format!("{name} {why}"));
        }
        return Ok(true);
    }
    let Some(seen) = newest(machine, uid, name) else {
        return Err(format!("{name} was never created"));
    };
    if seen.state != ContainerState::Exited {
        return Err(format!("{name} is {:?}", seen.state));
    }
    let may_rest = rules::after_exit(spec, container, seen.exit_code) == Follows::Nothing;
    match may_rest && !sidecar {
        true => Ok(false),
        false => Err(format!(
            "{name} ended with {} and does not run",
            seen.exit_code
        )),
    }
}

/// There is room for all, so all have what they ask for.
fn wrong_size(seen: &Instance, container: &Container) -> Option<String> {
    let expected = sizes::wanted(container)?;
    let numbers = sizes::held(seen)?;
    (numbers != expected).then(|| format!("is held to {numbers:?} instead of {expected:?}"))
}

fn ended_pod(
    machine: &Machine,
    uid: &PodUid,
    spec: &PodSpec,
    status: &PodStatus,
    left: &Leftovers,
) -> Option<String> {
    let phase = status::phase_of(status);
    if machine.is_alive(uid) {
        return Some(format!("is {phase} and something of it is alive"));
    }
    // Its directory stays as long as it is wanted: it holds what people may want to see.
    if left.mounts.contains(uid) || left.cgroups.contains(uid) {
        return Some(format!("is {phase} and has not released what it held"));
    }
    if deadlines::says_exceeded(status) || init_failed(machine, uid, spec) {
        return (phase != status::FAILED).then(|| format!("is {phase} and has failed"));
    }
    let mut all_well = true;
    for container in &spec.containers {
        let name = &container.name;
        let Some(seen) = newest(machine, uid, name) else {
            // An agent may die once it has removed all to start them again, before it could tell of it. As
            // with the kubelet, what was told to run and is gone has failed then.
            let removed = phase == status::FAILED && rules::may_restart_all(spec);
            return (!removed).then(|| format!("is {phase} and {name} was never created"));
        };
        if rules::after_exit(spec, container, seen.exit_code) != Follows::Nothing {
            let code = seen.exit_code;
            return Some(format!("is {phase} though {name} is to run after {code}"));
        }
        all_well &= seen.exit_code == 0;
    }
    match phase {
        status::SUCCEEDED if !all_well => Some("is Succeeded with failed containers".into()),
        status::FAILED if all_well => Some("is Failed, and all ended well".into()),
        _ => None,
    }
}

/// An init container has failed for good, and the pod with it.
fn init_failed(machine: &Machine, uid: &PodUid, spec: &PodSpec) -> bool {
    let mut init = init_containers(spec).iter().filter(|c| !is_sidecar(c));
    init.any(|c| {
        newest(machine, uid, &c.name).is_some_and(|seen| {
            seen.exit_code != 0 && rules::after_exit(spec, c, seen.exit_code) == Follows::Nothing
        })
    })
}

fn gone_pod(machine: &Machine, uid: &PodUid, left: &Leftovers) -> Option<String> {
    if machine.is_alive(uid) {
        return Some("is not wanted and something of it is alive".to_owned());
    }
    if machine.of_pod(uid).next().is_some() || machine.sandboxes_of(uid).next().is_some() {
        return Some("is not wanted and the runtime still holds some of it".to_owned());
    }
    let places = [
        ("a directory", &left.directories),
        ("a cgroup", &left.cgroups),
        ("a mount", &left.mounts),
        ("logs", &left.logs),
    ];
    let (what, _) = places.iter().find(|(_, uids)| uids.contains(uid))?;
    Some(format!("is not wanted and left {what}"))
}
