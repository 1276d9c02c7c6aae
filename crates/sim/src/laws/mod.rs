//! What must hold at any time, whatever the weather. The laws look on at the boundaries: calls as
//! they begin, what happens in the runtime, statuses as they are published. They keep their own
//! books and ask the agent nothing but what its handle tells everybody.

mod api;
mod calls;
mod deadlines;
mod finale;
mod restarts;
mod runtime;
mod sizes;
mod statuses;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use krablet_agent::AgentHandle;
use krablet_pod::api::{Pod, PodSpec};
use krablet_pod::marks::PodSource;
use krablet_pod::qos::{QosClass, qos_class};
use krablet_pod::{PodRef, PodUid};
use krablet_status::Standing;

use crate::clock::SimClock;

pub(crate) use api::Written;
pub(crate) use finale::Leftovers;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Law {
    /// No two running instances of one container of a pod. One of which the runtime does not know whether it runs counts
    /// as running, here and in all that follows.
    OneInstance,
    /// In one sandbox, and in each round of a pod whose containers are all restarted in it, a
    /// container is created only after every init container before it has ended well, or, if it is a
    /// sidecar, has started. Ephemeral ones wait for nobody.
    InitOrder,
    /// Nothing is begun for a pod once its agent has let it go or said that it has ended. One
    /// container that is being created at that moment may still be started, until the first stop.
    NothingAfterEnd,
    /// A container whose policy or rules call its end final does not start again once a status told
    /// of it.
    EndedForGood,
    /// An ephemeral container is started once.
    OnceOnly,
    /// Where one container's end restarts all, that one is removed last: nothing of the round
    /// before is left then.
    WholeRounds,
    /// A pod is said to have been there for too long only when it has.
    InTime,
    /// No containers of two static pods of one name run at the same time.
    OneOfAName,
    /// Restart counts never fall, neither in statuses nor in the runtime.
    CountsGrow,
    /// The end of a wanted container that ended by itself stands in a status, with its code and
    /// id: before the instance is removed, before the second-next one starts, and in the end.
    NoExitLost,
    /// Versions of a status grow; a terminal phase and a start time stay.
    NoStatusBack,
    /// The API server hears of a pod that it is over, and is asked to delete it, only when none of its
    /// containers runs; and to delete it only when somebody wants that and the last status is there.
    EndsEmpty,
    /// What the API server is told is said of the pod it keeps it for.
    RightPod,
    /// What stands at the API server never goes back either, over all lives of the agent: last
    /// phases stay, restart counts do not fall, what has ended for good does not run.
    ToldForward,
    /// A container is never given what only an earlier spec of its pod asked for, over all lives of the agent.
    SizesForward,
    /// Directories and mounts are not taken away under a running container.
    NotUnderfoot,
    /// Once all is well the node gets to exactly what is wanted, with nothing left over.
    Converges,
    /// And then changes nothing more, and between audits asks nothing.
    Quiet,
    /// A killed agent is dead, all of it.
    DeadIsDead,
    /// No part of the agent panics or ends by itself.
    LivesOn,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    pub law: Law,
    pub how: String,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.law, self.how)
    }
}

pub(crate) type Held = Result<(), Broken>;

pub(crate) fn broken<T>(law: Law, how: impl Into<String>) -> Result<T, Broken> {
    let how = how.into();
    Err(Broken { law, how })
}

/// A pod that was wanted at some time.
#[derive(Debug)]
struct Known {
    pod: Arc<Pod>,
    wanted: bool,
    /// Wanted again after it was not: its statuses and counts may begin anew, once.
    status_anew: bool,
    counts_anew: bool,
    came_back: bool,
}

/// How a container ended.
#[derive(Debug)]
struct End {
    pod: PodUid,
    container: String,
    number: u64,
    code: i32,
    recorded: bool,
    /// The agent had already decided to stop it.
    stop_asked: bool,
}

/// A pod its agent let go.
#[derive(Debug, Default)]
struct LetGo {
    started_one: bool,
    stopping: bool,
}

pub(crate) struct Laws {
    pods: BTreeMap<PodUid, Known>,
    sources: BTreeSet<PodSource>,
    agent: Option<(u64, AgentHandle)>,
    bell: u64,
    standings: BTreeMap<PodUid, Standing>,
    let_go: BTreeMap<PodUid, LetGo>,
    /// Restart counts by pod and container: the highest in a status of this agent, and the highest
    /// the runtime saw started.
    told: BTreeMap<(PodUid, String), i32>,
    counted: BTreeMap<(PodUid, String), u32>,
    /// Init containers of a sandbox that are done, sidecars that have started.
    done: BTreeMap<String, BTreeSet<String>>,
    ends: BTreeMap<String, End>,
    /// Containers whose end a status told, and that are not started again after it.
    over: BTreeSet<(PodUid, String)>,
    /// Containers the agent asked to stop, and sandboxes.
    stop_asked: BTreeSet<String>,
    /// Whose each container is or was.
    owners: BTreeMap<String, PodUid>,
    /// Pods of whose statuses one came when nobody waited for it any more.
    told_late: BTreeSet<PodUid>,
    sizes: sizes::Sizes,
    restarts: restarts::Book,
    deadlines: deadlines::Book,
}

impl Laws {
    pub(crate) fn new(sources: BTreeSet<PodSource>, clock: SimClock) -> Self {
        Self {
            sources,
            pods: BTreeMap::new(),
            agent: None,
            bell: 0,
            standings: BTreeMap::new(),
            let_go: BTreeMap::new(),
            told: BTreeMap::new(),
            counted: BTreeMap::new(),
            done: BTreeMap::new(),
            ends: BTreeMap::new(),
            over: BTreeSet::new(),
            stop_asked: BTreeSet::new(),
            owners: BTreeMap::new(),
            told_late: BTreeSet::new(),
            sizes: sizes::Sizes::default(),
            restarts: restarts::Book::default(),
            deadlines: deadlines::Book::new(clock),
        }
    }

    pub(crate) fn want(&mut self, pod: &Arc<Pod>) {
        let uid = PodRef::of(pod).uid;
        let again = self.pods.get(&uid).is_some_and(|k| !k.wanted);
        self.sizes.wish(pod, again);
        let known = self.pods.entry(uid).or_insert_with(|| Known {
            pod: pod.clone(),
            wanted: true,
            status_anew: false,
            counts_anew: false,
            came_back: false,
        });
        known.pod = pod.clone();
        known.wanted = true;
        known.status_anew |= again;
        known.counts_anew |= again;
        known.came_back |= again;
    }

    /// Its object is gone from the API server. An agent that does not know yet may begin it anew.
    pub(crate) fn unwant_object(&mut self, uid: &PodUid) {
        self.unwant(uid);
        if let Some(known) = self.pods.get_mut(uid) {
            known.counts_anew = true;
        }
    }

    pub(crate) fn unwant(&mut self, uid: &PodUid) {
        if let Some(known) = self.pods.get_mut(uid) {
            known.wanted = false;
        }
        self.ends.retain(|_, end| end.pod != *uid);
        self.over.retain(|(pod, _)| pod != uid);
    }

    fn is_wanted(&self, uid: &PodUid) -> bool {
        self.pods.get(uid).is_some_and(|k| k.wanted)
    }

    fn spec(&self, uid: &PodUid) -> Option<&PodSpec> {
        self.pods.get(uid)?.pod.spec.as_ref()
    }

    pub(crate) fn qos(&self, uid: &PodUid) -> QosClass {
        self.spec(uid).map_or(QosClass::BestEffort, qos_class)
    }

    /// A new agent, over what the one before left.
    pub(crate) fn agent_starts(&mut self, caller: u64, handle: AgentHandle) {
        self.agent = Some((caller, handle));
        self.bell = 0;
        self.standings.clear();
        self.let_go.clear();
        self.told.clear();
    }

    pub(crate) fn has_agent(&self) -> bool {
        self.agent.is_some()
    }

    pub(crate) fn lives(&self, caller: u64) -> bool {
        self.agent
            .as_ref()
            .is_some_and(|(alive, _)| *alive == caller)
    }

    pub(crate) fn agent_dies(&mut self) {
        self.agent = None;
    }
}
