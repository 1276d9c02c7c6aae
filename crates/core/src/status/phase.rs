//! The phase of a pod from the states of its containers.

use krablet_pod::api::{Container, ContainerStateTerminated, ContainerStatus, PodSpec};
use krablet_pod::containers::{init_containers, is_sidecar};

use super::{FAILED, PENDING, RUNNING, SUCCEEDED};
use crate::restart::{RestartGates, should_restart};
use crate::start::RESTARTING_ALL_CONTAINERS;

pub(super) struct PhaseInputs<'a> {
    pub spec: &'a PodSpec,
    /// Of init and regular containers.
    pub statuses: &'a [ContainerStatus],
    /// The pod will not run again.
    pub terminal: bool,
    pub is_static: bool,
    /// A regular container exists in the sandbox.
    pub initialised: bool,
    pub gates: RestartGates,
    /// Containers whose last instance was stopped to make way for another.
    pub making_way: &'a [&'a str],
}

/// What a status says of its container.
enum Seen<'a> {
    Unknown,
    Running {
        started: bool,
    },
    Terminated(&'a ContainerStateTerminated),
    /// Not running; with the end of the instance before, if there was one.
    Waiting(Option<&'a ContainerStateTerminated>),
    /// Made, and about to be started after the end of the instance before.
    Made(&'a ContainerStateTerminated),
}

#[derive(Default)]
struct Tally {
    pending_init: usize,
    pending_sidecars: usize,
    failed_init: usize,
    unknown: usize,
    running: usize,
    waiting: usize,
    stopped: usize,
    stopped_for_good: usize,
    succeeded: usize,
}

pub(super) fn phase(inputs: &PhaseInputs<'_>) -> &'static str {
    let tally = inputs.tally();
    if tally.failed_init > 0 {
        return FAILED;
    }
    let initialising =
        tally.pending_init > 0 || (tally.pending_sidecars > 0 && !inputs.initialised);
    if initialising || tally.waiting > 0 || tally.unknown > 0 {
        return PENDING;
    }
    if tally.running > 0 {
        return RUNNING;
    }
    if tally.stopped == 0 {
        return PENDING;
    }
    // The end of a static pod is not final: its manifest may bring it back under the same UID.
    let over = inputs.terminal && !inputs.is_static;
    if !over && tally.stopped != tally.stopped_for_good {
        RUNNING
    } else if tally.stopped == tally.succeeded {
        SUCCEEDED
    } else {
        FAILED
    }
}

impl PhaseInputs<'_> {
    fn tally(&self) -> Tally {
        let mut tally = Tally::default();
        for container in &self.spec.containers {
            self.add_regular(&mut tally, container);
        }
        // Then no sidecar is started any more, and one that is missing is not waited for.
        let over = tally.stopped_for_good == self.spec.containers.len();
        for container in init_containers(self.spec) {
            match self.seen(container) {
                Seen::Unknown | Seen::Waiting(None) if over && is_sidecar(container) => {}
                seen if is_sidecar(container) => tally.add_sidecar(&seen),
                seen => self.add_init(&mut tally, container, &seen),
            }
        }
        tally
    }

    fn seen(&self, container: &Container) -> Seen<'_> {
        let Some(status) = self.statuses.iter().find(|s| s.name == container.name) else {
            return Seen::Unknown;
        };
        let last = status
            .last_state
            .as_ref()
            .and_then(|s| s.terminated.as_ref());
        match status.state.as_ref() {
            Some(s) if s.running.is_some() => Seen::Running {
                started: status.started.unwrap_or(false),
            },
            Some(s) if s.terminated.is_some() => s
                .terminated
                .as_ref()
                .map_or(Seen::Unknown, Seen::Terminated),
            Some(s) if s.waiting.is_some() => match last {
                Some(end) if is_of_another(status, end) => Seen::Made(end),
                last => Seen::Waiting(last),
            },
            _ => Seen::Unknown,
        }
    }

    fn comes_back(&self, container: &Container, end: &ContainerStateTerminated) -> bool {
        let by_restart_all =
            self.gates.restart_all && end.reason.as_deref() == Some(RESTARTING_ALL_CONTAINERS);
        let makes_way = self.making_way.contains(&container.name.as_str());
        makes_way
            || by_restart_all
            || should_restart(self.spec, container, end.exit_code, self.gates).restarts()
    }

    fn add_init(&self, tally: &mut Tally, container: &Container, seen: &Seen<'_>) {
        match seen {
            Seen::Terminated(end) | Seen::Waiting(Some(end)) | Seen::Made(end) => {
                let failed = end.exit_code != 0 && !self.comes_back(container, end);
                tally.failed_init += usize::from(failed);
            }
            Seen::Unknown | Seen::Running { .. } | Seen::Waiting(None) => tally.pending_init += 1,
        }
    }

    fn add_regular(&self, tally: &mut Tally, container: &Container) {
        match self.seen(container) {
            Seen::Unknown => tally.unknown += 1,
            Seen::Running { .. } => tally.running += 1,
            Seen::Waiting(None) => tally.waiting += 1,
            Seen::Terminated(end) => {
                tally.add_stopped(self.comes_back(container, end));
                tally.succeeded += usize::from(end.exit_code == 0);
            }
            Seen::Waiting(Some(end)) => tally.add_stopped(self.comes_back(container, end)),
            Seen::Made(_) => tally.add_stopped(true),
        }
    }
}

/// There is an instance already that will run after the one that ended.
fn is_of_another(status: &ContainerStatus, end: &ContainerStateTerminated) -> bool {
    status.container_id.is_some() && status.container_id != end.container_id
}

impl Tally {
    fn add_stopped(&mut self, comes_back: bool) {
        self.stopped += 1;
        self.stopped_for_good += usize::from(!comes_back);
    }

    /// A sidecar that ended once does not count; it will be back.
    fn add_sidecar(&mut self, seen: &Seen<'_>) {
        match seen {
            Seen::Unknown => self.unknown += 1,
            Seen::Running { started } => {
                self.pending_sidecars += usize::from(!started);
                self.running += 1;
            }
            Seen::Waiting(None) => {
                self.pending_sidecars += 1;
                self.waiting += 1;
            }
            Seen::Terminated(_) | Seen::Waiting(Some(_)) | Seen::Made(_) => {}
        }
    }
}
