//! All probes there are: their states, when each is due, and the changes nobody has read yet.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use krablet_core::Mono;
use krablet_core::probe::{
    Outcome, ProbeKind, ProbeState, Seen, Timing, Verdict, Verdicts, was_before_agent,
};
use krablet_pod::api::{Container, ContainerStatus, Pod, PodSpec, PodStatus, Probe};
use krablet_pod::containers::{ContainerKind, all, is_sidecar};
use krablet_pod::observed::ObservedPod;
use krablet_pod::{ContainerId, PodRef, PodUid};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tokio::task::AbortHandle;

use crate::ProbeUpdate;
use crate::execute::{Job, probe_of};
use crate::metrics::{Counts, ProbeMetrics};

/// Which probe.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) pod: PodUid,
    pub(crate) container: Arc<str>,
    pub(crate) kind: ProbeKind,
}

/// Which places an execution takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    Network,
    Exec,
}

/// One execution: a number tells it from others of the same probe.
#[derive(Clone, Debug)]
pub(crate) struct Start {
    pub(crate) key: Key,
    pub(crate) run: u64,
    pub(crate) class: Class,
    pub(crate) job: Job,
}

/// What an execution that still counts has brought.
pub(crate) struct Ended {
    pub(crate) pod: PodRef,
    pub(crate) kind: ContainerKind,
    /// The verdict is another one.
    pub(crate) changed: bool,
    /// A failure is worth an event: it is not that of a server which is given some time to come up.
    pub(crate) told: bool,
}

/// What a sync knows of a pod.
pub(crate) struct Look<'a> {
    pub(crate) pod: &'a Arc<Pod>,
    pub(crate) observed: &'a ObservedPod,
    pub(crate) status: &'a PodStatus,
    pub(crate) wall: Timestamp,
    pub(crate) now: Mono,
}

struct ProbedPod {
    pod: PodRef,
    spec: Arc<Pod>,
    ip: Option<Arc<str>>,
    probes: BTreeMap<(Arc<str>, ProbeKind), Worker>,
}

struct Worker {
    state: ProbeState,
    kind: ContainerKind,
    class: Class,
    place: Place,
    counts: Counts,
}

/// Where a probe stands.
enum Place {
    /// Nothing to do.
    Parked,
    /// In the queue of due times.
    Due(Mono),
    /// Due, and waiting for a free place.
    Waiting,
    Running {
        run: u64,
        began: Mono,
        id: ContainerId,
        abort: Option<AbortHandle>,
    },
}

impl Worker {
    fn new(
        probe: ProbeKind,
        kind: ContainerKind,
        spec: &Probe,
        seen: Option<&Seen>,
        now: Mono,
        rng: &mut StdRng,
    ) -> Self {
        let state = new_state(probe, Timing::of(spec), seen, now, rng);
        let (class, state) = match spec.exec {
            Some(_) => (Class::Exec, state),
            None => (Class::Network, state.eager()),
        };
        Self {
            state,
            kind,
            class,
            place: Place::Parked,
            counts: Counts::default(),
        }
    }

    fn note(&mut self, seen: Option<&Seen>, look: &Look<'_>, probe: ProbeKind) {
        self.state.see(seen, look.now.0, look.now);
        let terminating = look.pod.metadata.deletion_timestamp.is_some();
        if terminating && probe != ProbeKind::Readiness {
            self.state.stop();
        }
        self.abort_if_stale(seen);
    }

    /// Ends an execution under way.
    fn abort(&mut self) {
        if let Place::Running { abort, .. } = &self.place {
            if let Some(abort) = abort {
                abort.abort();
            }
            self.place = Place::Parked;
        }
    }

    /// An execution against an instance that is gone, or stopped, is of no use any more.
    fn abort_if_stale(&mut self, seen: Option<&Seen>) {
        if let Place::Running { id, .. } = &self.place
            && (self.state.is_stopped() || seen.is_none_or(|s| !s.running || s.id != *id))
        {
            self.abort();
        }
    }
}

pub(crate) struct Table {
    pods: BTreeMap<PodUid, ProbedPod>,
    due: BTreeSet<(Mono, Key)>,
    waiting_network: VecDeque<Key>,
    waiting_exec: VecDeque<Key>,
    updates: BTreeMap<(PodUid, ContainerId, ProbeKind), Verdict>,
    rng: StdRng,
    runs: u64,
}

impl Table {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            pods: BTreeMap::new(),
            due: BTreeSet::new(),
            waiting_network: VecDeque::new(),
            waiting_exec: VecDeque::new(),
            updates: BTreeMap::new(),
            rng: StdRng::seed_from_u64(seed),
            runs: 0,
        }
    }

    /// Takes note of a pod. Returns whether something is due sooner than before.
    pub(crate) fn set_pod(&mut self, look: &Look<'_>) -> bool {
        let pod = PodRef::of(look.pod);
        let Some(spec) = look.pod.spec.as_ref().filter(|s| has_probes(s)) else {
            self.remove(&pod.uid);
            return false;
        };
        let before = self.first_due();
        let uid = pod.uid.clone();
        let entry = self.pods.entry(uid.clone()).or_insert_with(|| ProbedPod {
            pod,
            spec: look.pod.clone(),
            ip: None,
            probes: BTreeMap::new(),
        });
        entry.spec = look.pod.clone();
        entry.ip = address(look).map(Into::into).or(entry.ip.take());
        let mut wanted = BTreeSet::new();
        for (kind, container) in probed_containers(spec) {
            let (seen, status) = seen(look, container);
            for probe in ProbeKind::ALL {
                let Some(spec) = probe_of(container, probe) else {
                    continue;
                };
                let key = (Arc::from(container.name.as_str()), probe);
                wanted.insert(key.clone());
                let seen = seen.clone().map(|seen| Seen {
                    previous: status.and_then(|s| previous(s, probe)),
                    ..seen
                });
                let worker = entry.probes.entry(key).or_insert_with(|| {
                    Worker::new(probe, kind, spec, seen.as_ref(), look.now, &mut self.rng)
                });
                worker.note(seen.as_ref(), look, probe);
            }
        }
        self.drop_probes(&uid, |key| wanted.contains(key));
        self.schedule(&uid, look.now);
        self.first_due() < before || (before.is_none() && self.first_due().is_some())
    }

    fn first_due(&self) -> Option<Mono> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Puts every probe of a pod that has nothing under way where it belongs.
    fn schedule(&mut self, uid: &PodUid, now: Mono) {
        let Some(pod) = self.pods.get_mut(uid) else {
            return;
        };
        let started: BTreeMap<Arc<str>, bool> = pod
            .probes
            .iter()
            .filter(|((_, kind), _)| *kind == ProbeKind::Startup)
            .map(|((name, _), w)| {
                let verdict = w.state.verdict().map(|(_, v)| v);
                (name.clone(), verdict == Some(Verdict::Success))
            })
            .collect();
        for ((name, kind), worker) in &mut pod.probes {
            let key = || Key {
                pod: uid.clone(),
                container: name.clone(),
                kind: *kind,
            };
            let started = started.get(name).copied().unwrap_or(true);
            let next = worker.state.schedule(started, now);
            match (&worker.place, next) {
                (Place::Running { .. }, _) | (Place::Waiting, Some(_)) => {}
                (Place::Due(at), Some(next)) if *at == next => {}
                (place, next) => {
                    match place {
                        Place::Due(at) => drop(self.due.remove(&(*at, key()))),
                        Place::Waiting => {
                            let key = key();
                            self.waiting_network.retain(|k| *k != key);
                            self.waiting_exec.retain(|k| *k != key);
                        }
                        _ => {}
                    }
                    worker.place = match next {
                        Some(next) => {
                            self.due.insert((next, key()));
                            Place::Due(next)
                        }
                        None => Place::Parked,
                    };
                }
            }
        }
    }

    /// Takes what may start now, given the free places, and tells when to look again.
    pub(crate) fn take_due(
        &mut self,
        now: Mono,
        mut free_network: usize,
        mut free_exec: usize,
    ) -> (Vec<Start>, Option<Mono>) {
        while let Some((at, key)) = self.due.pop_first() {
            if at > now {
                self.due.insert((at, key));
                break;
            }
            if let Some(worker) = self.worker(&key) {
                worker.place = Place::Waiting;
                match worker.class {
                    Class::Network => self.waiting_network.push_back(key),
                    Class::Exec => self.waiting_exec.push_back(key),
                }
            }
        }
        let mut starts = Vec::new();
        while free_network > 0
            && let Some(key) = self.waiting_network.pop_front()
        {
            if let Some(start) = self.start(key, now) {
                free_network -= 1;
                starts.push(start);
            }
        }
        while free_exec > 0
            && let Some(key) = self.waiting_exec.pop_front()
        {
            if let Some(start) = self.start(key, now) {
                free_exec -= 1;
                starts.push(start);
            }
        }
        (starts, self.first_due())
    }

    fn worker(&mut self, key: &Key) -> Option<&mut Worker> {
        let pod = self.pods.get_mut(&key.pod)?;
        pod.probes.get_mut(&(key.container.clone(), key.kind))
    }

    fn start(&mut self, key: Key, now: Mono) -> Option<Start> {
        let pod = self.pods.get_mut(&key.pod)?;
        let worker = pod.probes.get_mut(&(key.container.clone(), key.kind))?;
        if !matches!(worker.place, Place::Waiting) {
            return None;
        }
        let id = worker.state.verdict()?.0.clone();
        self.runs += 1;
        worker.state.begin(now);
        worker.place = Place::Running {
            run: self.runs,
            began: now,
            id: id.clone(),
            abort: None,
        };
        let job = Job {
            spec: pod.spec.clone(),
            pod: pod.pod.clone(),
            container: key.container.clone(),
            kind: key.kind,
            id,
            ip: pod.ip.clone(),
            timing: worker.state.timing(),
        };
        Some(Start {
            class: worker.class,
            run: self.runs,
            key,
            job,
        })
    }

    /// Hands over the means to end an execution; one that is wanted no more ends here.
    pub(crate) fn attach(&mut self, key: &Key, run: u64, handle: AbortHandle) {
        match self.worker(key).map(|w| &mut w.place) {
            Some(Place::Running {
                run: running,
                abort,
                ..
            }) if *running == run => *abort = Some(handle),
            _ => handle.abort(),
        }
    }

    /// An execution ended. Returns whose it was if it still counts.
    pub(crate) fn finish(
        &mut self,
        key: &Key,
        run: u64,
        outcome: Outcome,
        now: Mono,
    ) -> Option<Ended> {
        let pod = self.pods.get_mut(&key.pod)?;
        let worker = pod.probes.get_mut(&(key.container.clone(), key.kind))?;
        let (began, id) = match &worker.place {
            Place::Running {
                run: running,
                began,
                id,
                ..
            } if *running == run => (*began, id.clone()),
            _ => return None,
        };
        worker.place = Place::Parked;
        worker.counts.count(outcome, now - began);
        let changed = worker.state.finish(&id, outcome, now);
        let ended = Ended {
            pod: pod.pod.clone(),
            kind: worker.kind,
            changed: changed.is_some(),
            told: outcome != Outcome::Failure || !worker.state.looks_again_soon(),
        };
        if let Some(verdict) = changed {
            self.updates
                .insert((key.pod.clone(), id, key.kind), verdict);
        }
        self.schedule(&key.pod, now);
        Some(ended)
    }

    pub(crate) fn stop_liveness_and_startup(&mut self, uid: &PodUid, now: Mono) -> bool {
        let before = self.first_due();
        let Some(pod) = self.pods.get_mut(uid) else {
            return false;
        };
        for ((_, kind), worker) in &mut pod.probes {
            if *kind != ProbeKind::Readiness {
                worker.state.stop();
                worker.abort();
            }
        }
        self.updates
            .retain(|(pod, _, kind), _| pod != uid || *kind == ProbeKind::Readiness);
        self.schedule(uid, now);
        self.first_due().is_some() && self.first_due() != before
    }

    pub(crate) fn remove(&mut self, uid: &PodUid) {
        self.drop_probes(uid, |_| false);
        if self.pods.remove(uid).is_some() {
            self.updates.retain(|(pod, _, _), _| pod != uid);
        }
    }

    pub(crate) fn retain(&mut self, keep: &dyn Fn(&PodUid) -> bool) {
        let gone: Vec<PodUid> = self.pods.keys().filter(|u| !keep(u)).cloned().collect();
        gone.iter().for_each(|uid| self.remove(uid));
    }

    fn drop_probes(&mut self, uid: &PodUid, keep: impl Fn(&(Arc<str>, ProbeKind)) -> bool) {
        let Some(pod) = self.pods.get_mut(uid) else {
            return;
        };
        let due = &mut self.due;
        pod.probes.retain(|key, worker| {
            if keep(key) {
                return true;
            }
            worker.abort();
            if let Place::Due(at) = worker.place {
                let (container, kind) = key.clone();
                let pod = uid.clone();
                due.remove(&(
                    at,
                    Key {
                        pod,
                        container,
                        kind,
                    },
                ));
            }
            false
        });
        let waits = |key: &Key| key.pod != *uid || keep(&(key.container.clone(), key.kind));
        self.waiting_network.retain(waits);
        self.waiting_exec.retain(waits);
    }

    pub(crate) fn verdicts(&self, uid: &PodUid) -> Verdicts {
        let mut verdicts = Verdicts::new();
        let Some(pod) = self.pods.get(uid) else {
            return verdicts;
        };
        for ((_, kind), worker) in &pod.probes {
            let Some((id, verdict)) = worker.state.verdict() else {
                continue;
            };
            let of = verdicts.entry(id.clone()).or_default();
            let slot = match kind {
                ProbeKind::Startup => &mut of.startup,
                ProbeKind::Readiness => &mut of.readiness,
                ProbeKind::Liveness => &mut of.liveness,
            };
            *slot = Some(verdict);
        }
        verdicts
    }

    pub(crate) fn pop_update(&mut self) -> Option<ProbeUpdate> {
        let ((pod, container, kind), verdict) = self.updates.pop_first()?;
        Some(ProbeUpdate {
            pod,
            container,
            kind,
            verdict,
        })
    }

    pub(crate) fn metrics(&self) -> Vec<ProbeMetrics> {
        let pods = self.pods.values();
        pods.flat_map(|pod| {
            pod.probes
                .iter()
                .map(|((container, kind), worker)| ProbeMetrics {
                    pod: pod.pod.clone(),
                    container: container.clone(),
                    kind: *kind,
                    successful: worker.counts.successful,
                    failed: worker.counts.failed,
                    durations: worker.counts.durations,
                })
        })
        .collect()
    }
}

fn has_probes(spec: &PodSpec) -> bool {
    probed_containers(spec).any(|(_, c)| ProbeKind::ALL.iter().any(|k| probe_of(c, *k).is_some()))
}

/// Regular containers and sidecars: the ones that stay.
fn probed_containers(spec: &PodSpec) -> impl Iterator<Item = (ContainerKind, &Container)> {
    all(spec)
        .filter(|c| c.kind == ContainerKind::Regular || is_sidecar(c.container))
        .map(|c| (c.kind, c.container))
}

/// The pod's address: of its network, or of the node whose network it shares.
fn address(look: &Look<'_>) -> Option<String> {
    let host_network = look.pod.spec.as_ref().and_then(|s| s.host_network) == Some(true);
    let status = look.status.pod_ip.clone().filter(|ip| !ip.is_empty());
    let own = || look.observed.ips().first().cloned();
    let local = || host_network.then(|| "127.0.0.1".to_string());
    status.or_else(own).or_else(local)
}

/// The newest instance, and what the last status said of it.
fn seen<'a>(look: &Look<'a>, container: &Container) -> (Option<Seen>, Option<&'a ContainerStatus>) {
    let Some(newest) = look.observed.newest(&container.name) else {
        return (None, None);
    };
    let nanos = look
        .wall
        .as_nanosecond()
        .saturating_sub(newest.started_at.into());
    let age = match newest.started_at {
        0 => Duration::ZERO,
        _ => Duration::from_nanos(u64::try_from(nanos).unwrap_or_default()),
    };
    let seen = Seen {
        id: newest.id.clone(),
        running: newest.is_running(),
        age,
        previous: None,
    };
    let regular = look.status.container_statuses.iter().flatten();
    let init = look.status.init_container_statuses.iter().flatten();
    let status = regular.chain(init).find(|s| {
        let id = s.container_id.as_deref().unwrap_or_default();
        let id = id.split_once("://").map_or(id, |(_, id)| id);
        s.name == container.name && id == newest.id.as_str()
    });
    (Some(seen), status)
}

/// What a status tells of the last verdict of a probe.
fn previous(status: &ContainerStatus, probe: ProbeKind) -> Option<bool> {
    match probe {
        ProbeKind::Startup => status.started,
        ProbeKind::Readiness => Some(status.ready),
        ProbeKind::Liveness => None,
    }
}

/// A probe that meets a container older than the agent starts somewhere within its period; one
/// that meets a younger one ticks from the container's start.
fn new_state(
    kind: ProbeKind,
    timing: Timing,
    seen: Option<&Seen>,
    now: Mono,
    rng: &mut StdRng,
) -> ProbeState {
    let running = seen.filter(|s| s.running);
    match running {
        Some(seen) if was_before_agent(seen.age, now.0) => {
            ProbeState::new(kind, timing, now, rng.random())
        }
        Some(seen) => {
            let mut state = ProbeState::new(kind, timing, now, 0.0);
            state.align(seen.age, now);
            state
        }
        None => ProbeState::new(kind, timing, now, 0.0),
    }
}
