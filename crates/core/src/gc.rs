//! Which dead containers, sandboxes and logs go. Nothing here removes anything; what is chosen is
//! safe to remove in the order given. An exit that has not been recorded in a status yet is never
//! chosen while someone may still read it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use krablet_pod::observed::{ContainerState, ObservedContainer, ObservedPod};
use krablet_pod::paths::{legacy_log_symlink, uid_of_log_dir};
use krablet_pod::{ContainerId, PodRef, PodUid, SandboxId};

/// More dead containers than this are trimmed whatever the flags say: a runtime's list of them
/// must stay well under the size of one message, or neither the list nor its cleaning works.
pub const DEAD_CONTAINERS_LIMIT: usize = 2000;

/// The three flags. `None` is no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GcPolicy {
    /// `--minimum-container-ttl-duration`
    pub min_age: Duration,
    /// `--maximum-dead-containers-per-container`
    pub per_container: Option<usize>,
    /// `--maximum-dead-containers`
    pub total: Option<usize>,
}

impl Default for GcPolicy {
    fn default() -> Self {
        Self {
            min_age: Duration::ZERO,
            per_container: Some(1),
            total: None,
        }
    }
}

/// What the pod workers say of a pod's remains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fate {
    /// Keep what is needed to show and restart it.
    Live,
    /// Terminated: nothing of it will run again, but its containers and logs can still be read.
    RuntimeRemovable,
    /// Evicted, or deleted and terminated, or unknown: all of it may go.
    ContentRemovable,
}

/// What a collection looks at.
#[derive(Clone, Copy)]
pub struct GcInputs<'a> {
    pub pods: &'a [Arc<ObservedPod>],
    pub fate: &'a dyn Fn(&PodUid) -> Fate,
    /// The exit of this container stands in a status that was stored.
    pub recorded: &'a dyn Fn(&ContainerId) -> bool,
    /// Before every source has spoken, a pod that is not known may still be wanted.
    pub sources_ready: bool,
    /// Disk is short: terminated pods lose their content too.
    pub evict_terminated: bool,
    pub policy: GcPolicy,
    /// Wall clock in unix nanoseconds; only for the minimum age.
    pub now: i64,
}

impl GcInputs<'_> {
    fn all_goes(&self, uid: &PodUid) -> bool {
        match (self.fate)(uid) {
            Fate::ContentRemovable => true,
            Fate::RuntimeRemovable => self.evict_terminated,
            Fate::Live => false,
        }
    }

    /// One that never ran does not take the place of one that did. Before the sources have spoken, a
    /// pod that seems to be gone may still come.
    fn tells_nothing(&self, candidate: &Candidate<'_>) -> bool {
        let known = candidate.fate != Fate::ContentRemovable || self.sources_ready;
        candidate.container.state == ContainerState::Created && known
    }
}

/// A container to remove, with its log and its link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadContainer {
    pub pod: PodRef,
    pub id: ContainerId,
    pub name: Arc<str>,
    pub log_path: String,
    /// Its state is not known: stop it first.
    pub stop_first: bool,
    /// It was created and not started: look whether that is still so.
    pub never_started: bool,
}

impl DeadContainer {
    pub fn new(pod: &PodRef, container: &ObservedContainer) -> Self {
        Self {
            pod: pod.clone(),
            id: container.id.clone(),
            name: container.name.clone(),
            log_path: container.log_path.clone(),
            stop_first: container.state == ContainerState::Unknown,
            never_started: container.state == ContainerState::Created,
        }
    }
}

/// One dead container that may be chosen.
struct Candidate<'a> {
    pod: &'a PodRef,
    container: &'a ObservedContainer,
    fate: Fate,
    /// The newest instance of its name.
    newest: bool,
}

/// Dead instances of one container, newest first.
type Units<'a> = BTreeMap<(&'a PodUid, &'a str), Vec<Candidate<'a>>>;

/// The dead containers to remove.
pub fn dead_containers(inputs: &GcInputs<'_>) -> Vec<DeadContainer> {
    let mut chosen = Vec::new();
    let mut units = candidates(inputs);
    for unit in units.values_mut() {
        let (tells_nothing, rest) = std::mem::take(unit)
            .into_iter()
            .partition(|c| inputs.tells_nothing(c));
        *unit = rest;
        chosen.extend::<Vec<_>>(tells_nothing);
    }
    if inputs.sources_ready {
        units.retain(|(uid, _), unit| {
            let goes = inputs.all_goes(uid);
            if goes {
                chosen.append(unit);
            }
            !goes
        });
    }
    let old = |c: &Candidate<'_>| {
        let age = inputs.now.saturating_sub(c.container.created_at).max(0);
        u64::try_from(age).is_ok_and(|age| Duration::from_nanos(age) >= inputs.policy.min_age)
    };
    if let Some(keep) = inputs.policy.per_container {
        trim(&mut units, keep, &mut chosen, &old);
    }
    if let Some(total) = inputs.policy.total {
        // An equal share for each, then the oldest of all.
        let count: usize = units.values().map(Vec::len).sum();
        if count > total {
            let share = (total / units.len().max(1)).max(1);
            trim(&mut units, share, &mut chosen, &old);
            drop_oldest(&mut units, total, &mut chosen, &old);
        }
    }
    let count: usize = units.values().map(Vec::len).sum();
    if count > DEAD_CONTAINERS_LIMIT {
        trim(&mut units, 1, &mut chosen, &|_| true);
        drop_oldest(&mut units, DEAD_CONTAINERS_LIMIT, &mut chosen, &|c| {
            c.fate != Fate::Live
        });
    }
    chosen
        .into_iter()
        .map(|c| DeadContainer::new(c.pod, c.container))
        .collect()
}

fn candidates<'a>(inputs: &GcInputs<'a>) -> Units<'a> {
    let mut units = Units::new();
    for pod in inputs.pods {
        let fate = (inputs.fate)(&pod.pod.uid);
        let mut seen = BTreeSet::new();
        for container in &pod.containers {
            let newest = seen.insert(&*container.name);
            let candidate = Candidate {
                pod: &pod.pod,
                container,
                fate,
                newest,
            };
            if may_go(&candidate, inputs) {
                units
                    .entry((&pod.pod.uid, &*container.name))
                    .or_default()
                    .push(candidate);
            }
        }
    }
    units
}

fn may_go(candidate: &Candidate<'_>, inputs: &GcInputs<'_>) -> bool {
    let Candidate {
        container,
        fate,
        newest,
        ..
    } = candidate;
    // Whether a pod is gone for good is known when all sources have spoken.
    let gone = *fate == Fate::ContentRemovable && inputs.sources_ready;
    match container.state {
        ContainerState::Running => false,
        _ if gone => true,
        // The newest one may be about to be started.
        ContainerState::Created => !*newest || *fate != Fate::Live,
        ContainerState::Exited => (inputs.recorded)(&container.id),
        // The newest one is the sync's to stop and replace.
        ContainerState::Unknown => !*newest || *fate != Fate::Live,
    }
}

/// Leaves `keep` of each unit, the newest; what is not `old` enough is left too.
fn trim<'a>(
    units: &mut Units<'a>,
    keep: usize,
    chosen: &mut Vec<Candidate<'a>>,
    old: &dyn Fn(&Candidate<'a>) -> bool,
) {
    for unit in units.values_mut() {
        let mut left = 0;
        // Those too young to go do not shield the older ones from being counted out.
        let (go, stay) = std::mem::take(unit).into_iter().partition(|c| {
            left += 1;
            left > keep && old(c)
        });
        *unit = stay;
        chosen.extend::<Vec<_>>(go);
    }
}

/// Takes the oldest of all units until `total` are left, or none that is `old` enough.
fn drop_oldest<'a>(
    units: &mut Units<'a>,
    total: usize,
    chosen: &mut Vec<Candidate<'a>>,
    old: &dyn Fn(&Candidate<'a>) -> bool,
) {
    let count: usize = units.values().map(Vec::len).sum();
    let mut all: Vec<Candidate<'a>> = Vec::with_capacity(count);
    units.values_mut().for_each(|unit| all.append(unit));
    // Terminated pods before live ones, then by age; the id makes the order complete.
    all.sort_by_key(|c| {
        (
            c.fate == Fate::Live,
            c.container.created_at,
            c.container.id.clone(),
        )
    });
    let mut surplus = count.saturating_sub(total);
    for candidate in all {
        if surplus > 0 && old(&candidate) {
            surplus -= 1;
            chosen.push(candidate);
        } else {
            units
                .entry((&candidate.pod.uid, &*candidate.container.name))
                .or_default()
                .push(candidate);
        }
    }
}

/// The sandboxes to stop and remove: not ready, no container left in them (those in `removed` are
/// gone by now), and not the newest of a pod that is still there.
pub fn dead_sandboxes(
    inputs: &GcInputs<'_>,
    removed: &BTreeSet<ContainerId>,
) -> Vec<(PodRef, SandboxId)> {
    let mut chosen = Vec::new();
    for pod in inputs.pods {
        let occupied: BTreeSet<&SandboxId> = pod
            .containers
            .iter()
            .filter(|c| !removed.contains(&c.id))
            .map(|c| &c.sandbox_id)
            .collect();
        let all_goes = inputs.sources_ready && inputs.all_goes(&pod.pod.uid);
        let keep = usize::from(!all_goes);
        let mut dead: Vec<_> = pod
            .sandboxes
            .iter()
            .skip(keep)
            .filter(|s| !s.ready && !occupied.contains(&s.id))
            .map(|s| (pod.pod.clone(), s.id.clone()))
            .collect();
        // Oldest first, so that what a failure leaves is the newest.
        dead.reverse();
        chosen.append(&mut dead);
    }
    chosen
}

/// The pod log directories to remove, of those named: directories of pods that are gone, with whose
/// they are. A name that is not a pod's is not ours to judge.
pub fn gone_log_dirs<'a>(
    names: impl IntoIterator<Item = &'a str>,
    fate: &dyn Fn(&PodUid) -> Fate,
    sources_ready: bool,
) -> Vec<(PodUid, &'a str)> {
    names
        .into_iter()
        .filter(|_| sources_ready)
        .filter_map(|name| Some((uid_of_log_dir(name)?, name)))
        .filter(|(uid, _)| fate(uid) == Fate::ContentRemovable)
        .collect()
}

/// The links in the flat directory of container logs to remove, of those that lead nowhere. A
/// link of a container that has not ended stays: its log may be between two files of a rotation.
pub fn dead_symlinks<'a>(
    dangling: impl IntoIterator<Item = &'a str>,
    pods: &[Arc<ObservedPod>],
) -> Vec<&'a str> {
    let mut living = BTreeSet::new();
    for pod in pods {
        for c in &pod.containers {
            if c.state == ContainerState::Exited {
                continue;
            }
            let link = legacy_log_symlink(Path::new(""), &pod.pod, &c.name, &c.id);
            living.insert(link.to_string_lossy().into_owned());
        }
    }
    dangling
        .into_iter()
        .filter(|name| name.ends_with(".log") && !living.contains(*name))
        .collect()
}

#[cfg(test)]
mod tests;
