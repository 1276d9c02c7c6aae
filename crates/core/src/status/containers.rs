//! The statuses of single containers.

use std::borrow::Cow;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use krablet_pod::api::{
    Container, ContainerState as ApiState, ContainerStateRunning, ContainerStateTerminated,
    ContainerStateWaiting, ContainerStatus, ContainerUser as ApiUser, LinuxContainerUser,
    ResourceRequirements, VolumeMount, VolumeMountStatus,
};
use krablet_pod::containers::{
    ContainerKind, ephemeral_as_container, ephemeral_containers, init_containers, is_sidecar,
};
use krablet_pod::observed::{ContainerState, ContainerUser, ObservedContainer};

use super::resources::{InUse, in_use};
use super::{CONTAINER_STATUS_UNKNOWN, Cx, UNKNOWN_EXIT_CODE};
use crate::resize::actuated;
use crate::restart::{self, current_instance};
use crate::start::RESTARTING_ALL_CONTAINERS;

const CONTAINER_CREATING: &str = "ContainerCreating";
const POD_INITIALIZING: &str = "PodInitializing";
pub(super) const NOT_LOCATED: &str =
    "The container could not be located when the pod was terminated";
const WAS_RUNNING: &str = "The container could not be located when the pod was deleted.  The container used to be Running";
const REMOVED_FOR_RESTART: &str = "The container is removed because RestartAllContainers in place";
const TAKEN_AS_COMPLETED: &str = "Unable to get init container status from container runtime and pod has been initialized, treat it as exited normally";

/// The runtime's id in the id of a status, which has the runtime's name for a scheme.
pub(crate) fn runtime_id(status_id: &str) -> &str {
    status_id.split_once("://").map_or(status_id, |(_, id)| id)
}

/// A moment as statuses tell it: in whole seconds.
pub(super) fn whole_seconds(time: Timestamp) -> Time {
    Time(Timestamp::from_second(time.as_second()).unwrap_or(time))
}

fn moment(unix_nanos: i64) -> Option<Time> {
    let time = Timestamp::from_nanosecond(i128::from(unix_nanos)).ok()?;
    Some(whole_seconds(time))
}

/// The end of a container that nobody saw.
pub(super) fn lost(reason: &str, message: &str) -> ContainerStateTerminated {
    ContainerStateTerminated {
        exit_code: UNKNOWN_EXIT_CODE,
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        ..ContainerStateTerminated::default()
    }
}

pub(super) fn terminated(end: ContainerStateTerminated) -> ApiState {
    ApiState {
        terminated: Some(end),
        ..ApiState::default()
    }
}

pub(super) fn waiting(reason: Option<&str>, message: Option<&str>) -> ApiState {
    ApiState {
        waiting: Some(ContainerStateWaiting {
            reason: reason.map(str::to_owned),
            message: message.map(str::to_owned),
        }),
        ..ApiState::default()
    }
}

pub(super) fn end_of(state: Option<&ApiState>) -> Option<&ContainerStateTerminated> {
    state.and_then(|s| s.terminated.as_ref())
}

fn said(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

impl Cx<'_> {
    /// Statuses of one kind: init containers in the order of the spec, the others by name.
    pub(super) fn container_statuses(&self, kind: ContainerKind) -> Vec<ContainerStatus> {
        let restarting_all = self.restarting_all();
        let (containers, old): (Vec<Cow<'_, Container>>, _) = match kind {
            ContainerKind::Init => (
                init_containers(self.spec)
                    .iter()
                    .map(Cow::Borrowed)
                    .collect(),
                &self.old.init_container_statuses,
            ),
            ContainerKind::Regular => (
                self.spec.containers.iter().map(Cow::Borrowed).collect(),
                &self.old.container_statuses,
            ),
            ContainerKind::Ephemeral => (
                ephemeral_containers(self.spec)
                    .iter()
                    .map(|e| Cow::Owned(ephemeral_as_container(e)))
                    .collect(),
                &self.old.ephemeral_container_statuses,
            ),
        };
        let mut statuses: Vec<ContainerStatus> = containers
            .iter()
            .map(|container| {
                let old = old.iter().flatten().find(|s| s.name == container.name);
                let one = One {
                    cx: self,
                    container,
                    kind,
                    old,
                    restarting_all,
                };
                one.status()
            })
            .collect();
        if kind != ContainerKind::Init {
            statuses.sort_by(|a, b| a.name.cmp(&b.name));
        }
        statuses
    }

    /// Some regular container was created at some time.
    fn any_regular_seen(&self) -> bool {
        let observed = self.inputs.observed;
        self.spec.containers.iter().any(|c| {
            observed
                .instances(&c.name)
                .any(|seen| seen.state != ContainerState::Unknown)
        })
    }
}

/// One container and what is known of it.
struct One<'a> {
    cx: &'a Cx<'a>,
    container: &'a Container,
    kind: ContainerKind,
    old: Option<&'a ContainerStatus>,
    restarting_all: bool,
}

impl One<'_> {
    fn status(&self) -> ContainerStatus {
        let mut status = match self.instance() {
            Some(seen) => self.of_seen(seen),
            None => self.of_missing(),
        };
        self.explain_waiting(&mut status);
        status
    }

    /// The instance that stands for the container. One that was made after an init container was
    /// done in its sandbox, by a call that had its effect too late, is not started any more.
    fn instance(&self) -> Option<&ObservedContainer> {
        let observed = self.cx.inputs.observed;
        let current = current_instance(observed, &self.container.name)?;
        let inits = self.kind == ContainerKind::Init && !is_sidecar(self.container);
        let done = |c: &&ObservedContainer| {
            c.state == ContainerState::Exited
                && restart::exit_code(c) == 0
                && c.sandbox_id == current.sandbox_id
        };
        let late = inits && current.state == ContainerState::Created;
        let newest = observed.newest(&self.container.name);
        Some(newest.filter(|c| late && done(c)).unwrap_or(current))
    }

    fn old_end(&self) -> Option<&ContainerStateTerminated> {
        end_of(self.old?.state.as_ref())
    }

    fn old_was_running(&self) -> bool {
        let state = self.old.and_then(|o| o.state.as_ref());
        state.is_some_and(|s| s.running.is_some())
    }

    fn old_count(&self) -> i32 {
        self.old.map_or(0, |o| o.restart_count)
    }

    /// How often it was started anew. An instance that was only made is no restart yet: it may be removed, and
    /// another made under its number.
    fn restarts(&self, seen: &ObservedContainer) -> u32 {
        let newest = self.cx.inputs.observed.newest(&self.container.name);
        let ran = newest.filter(|_| seen.state == ContainerState::Created);
        ran.unwrap_or(seen).memory.restart_count
    }

    /// A container the runtime holds at least one instance of.
    fn of_seen(&self, seen: &ObservedContainer) -> ContainerStatus {
        let id = format!("{}://{}", self.cx.inputs.node.runtime_name, seen.id);
        let same = self
            .old
            .filter(|o| o.container_id.as_deref() == Some(id.as_str()));
        let counted = i32::try_from(self.restarts(seen)).unwrap_or(i32::MAX);
        let mut restart_count = counted.max(self.old_count());
        let state = match seen.state {
            ContainerState::Running => {
                // The instance before was removed together with its count.
                if self.old_end().is_some() && self.old_count() >= counted {
                    restart_count = self.old_count().saturating_add(1);
                }
                ApiState {
                    running: Some(ContainerStateRunning {
                        started_at: moment(seen.started_at),
                    }),
                    ..ApiState::default()
                }
            }
            ContainerState::Created => waiting(None, None),
            ContainerState::Exited if self.cx.makes_way(self.container, seen) => {
                waiting(None, None)
            }
            ContainerState::Exited => terminated(exited(seen, &id)),
            ContainerState::Unknown if self.old_was_running() => {
                restart_count = self.old_count().saturating_add(1);
                let reason = if self.restarting_all {
                    RESTARTING_ALL_CONTAINERS
                } else {
                    CONTAINER_STATUS_UNKNOWN
                };
                terminated(lost(reason, NOT_LOCATED))
            }
            // Once told to be over it stays so.
            ContainerState::Unknown => match same.and_then(|o| end_of(o.state.as_ref())) {
                Some(end) => terminated(end.clone()),
                None => waiting(None, None),
            },
        };
        ContainerStatus {
            name: self.container.name.clone(),
            restart_count,
            image: seen.image.to_string(),
            image_id: seen.image_ref.to_string(),
            last_state: self.last_state(seen, &id),
            container_id: Some(id),
            state: Some(state),
            resources: Some(self.resources(seen, same)),
            allocated_resources: self
                .container
                .resources
                .as_ref()
                .and_then(|r| r.requests.clone()),
            volume_mounts: self.volume_mounts(),
            user: seen.user.as_ref().map(user),
            ..ContainerStatus::default()
        }
    }

    /// What the instance is held to, as the runtime tells it; of one that does not run, what it will have.
    fn resources(
        &self,
        seen: &ObservedContainer,
        old: Option<&ContainerStatus>,
    ) -> ResourceRequirements {
        let promised = self.container.resources.clone().unwrap_or_default();
        if !seen.is_running() {
            return promised;
        }
        let old = old.filter(|_| self.old_was_running());
        let given = actuated(&self.container.name, Some(seen), self.cx.inputs.actuated);
        in_use(
            promised,
            &InUse {
                told: seen.resources,
                given: given.as_ref(),
                old: old.and_then(|o| o.resources.as_ref()),
            },
        )
    }

    /// The end of the instance before: as the runtime holds it, else as it was last told.
    fn last_state(&self, seen: &ObservedContainer, id: &str) -> Option<ApiState> {
        let observed = self.cx.inputs.observed;
        if self.cx.makes_way(self.container, seen) {
            return Some(terminated(exited(seen, id)));
        }
        let before = observed
            .instances(&self.container.name)
            .find(|c| c.id != seen.id && c.state == ContainerState::Exited);
        if let Some(before) = before {
            let id = format!("{}://{}", self.cx.inputs.node.runtime_name, before.id);
            return Some(terminated(exited(before, &id)));
        }
        let old = self.old?;
        let of_another = old.container_id.as_deref() != Some(id);
        let end = end_of(old.state.as_ref())
            .filter(|_| of_another)
            .or(end_of(old.last_state.as_ref()))
            .filter(|end| end.container_id.as_deref() != Some(id))?;
        Some(terminated(end.clone()))
    }

    /// A container the runtime holds nothing of.
    fn of_missing(&self) -> ContainerStatus {
        if self.restarting_all && self.old.is_some_and(|o| !is_waiting(o)) {
            let end = lost(RESTARTING_ALL_CONTAINERS, REMOVED_FOR_RESTART);
            return ContainerStatus {
                state: Some(waiting(
                    Some(RESTARTING_ALL_CONTAINERS),
                    Some(REMOVED_FOR_RESTART),
                )),
                last_state: Some(terminated(end)),
                restart_count: self.old_count().saturating_add(1),
                ..self.waiting_by_default()
            };
        }
        if let Some(old) = self.old.filter(|_| self.old_end().is_some()) {
            return old.clone();
        }
        let mut status = self.waiting_by_default();
        if self.old_was_running() && end_of(status.last_state.as_ref()).is_none() {
            status.last_state = Some(terminated(lost(CONTAINER_STATUS_UNKNOWN, WAS_RUNNING)));
            if self.cx.inputs.pod.metadata.deletion_timestamp.is_none() {
                let count = self.old_count().saturating_add(1);
                status.restart_count = status.restart_count.max(count);
            }
        }
        status
    }

    fn waiting_by_default(&self) -> ContainerStatus {
        let reason = if init_containers(self.cx.spec).is_empty() {
            CONTAINER_CREATING
        } else {
            POD_INITIALIZING
        };
        let from_logs = self.cx.inputs.log_restart_counts.get(&self.container.name);
        let from_logs = from_logs.map_or(0, |n| i32::try_from(*n).unwrap_or(i32::MAX));
        ContainerStatus {
            name: self.container.name.clone(),
            image: self.container.image.clone().unwrap_or_default(),
            state: Some(waiting(Some(reason), None)),
            last_state: self.old.and_then(|o| o.last_state.clone()),
            restart_count: self.old_count().max(from_logs),
            volume_mounts: self.volume_mounts(),
            ..ContainerStatus::default()
        }
    }

    /// A container that is to be started and could not be is waiting, and says for what. Init
    /// containers that are done and gone count as completed.
    fn explain_waiting(&self, status: &mut ContainerStatus) {
        let inputs = self.cx.inputs;
        if self.kind == ContainerKind::Init && !is_sidecar(self.container) {
            let seen = self.instance();
            let done = |c: &ObservedContainer| {
                c.state == ContainerState::Exited && restart::exit_code(c) == 0
            };
            if seen.is_some_and(done) {
                return;
            }
            let gone = seen.is_none() && !self.restarting_all && is_waiting(status);
            if gone && self.cx.any_regular_seen() {
                status.state = Some(terminated(ContainerStateTerminated {
                    exit_code: 0,
                    reason: Some("Completed".to_owned()),
                    message: Some(TAKEN_AS_COMPLETED.to_owned()),
                    ..ContainerStateTerminated::default()
                }));
                return;
            }
        }
        let Some(error) = inputs.start_errors.get(&self.container.name) else {
            return;
        };
        let wanted = restart::wants_start(
            inputs.pod,
            self.cx.spec,
            self.container,
            inputs.observed,
            inputs.gates,
        );
        if !wanted {
            return;
        }
        if end_of(status.state.as_ref()).is_some() {
            status.last_state = status.state.take();
        }
        status.state = Some(waiting(Some(error.reason), said(&error.message).as_deref()));
    }

    fn volume_mounts(&self) -> Option<Vec<VolumeMountStatus>> {
        let can = self.cx.inputs.node.recursive_read_only;
        let mounts = self.container.volume_mounts.iter().flatten();
        super::non_empty(mounts.map(|m| mount_status(m, can)).collect())
    }
}

fn user(seen: &ContainerUser) -> ApiUser {
    ApiUser {
        linux: Some(LinuxContainerUser {
            uid: seen.uid,
            gid: seen.gid,
            supplemental_groups: super::non_empty(seen.supplemental_groups.clone()),
        }),
    }
}

fn is_waiting(status: &ContainerStatus) -> bool {
    status.state.as_ref().is_some_and(|s| s.waiting.is_some())
}

pub(super) fn exited(seen: &ObservedContainer, id: &str) -> ContainerStateTerminated {
    let exit = seen.exit.clone().unwrap_or_default();
    ContainerStateTerminated {
        exit_code: exit.exit_code,
        reason: said(&exit.reason),
        message: said(&exit.message),
        started_at: moment(exit.started_at),
        finished_at: moment(exit.finished_at),
        container_id: Some(id.to_owned()),
        ..ContainerStateTerminated::default()
    }
}

fn mount_status(mount: &VolumeMount, runtime_can: bool) -> VolumeMountStatus {
    let read_only = mount.read_only.unwrap_or(false);
    let recursive = runtime_can
        && matches!(
            mount.recursive_read_only.as_deref(),
            Some("Enabled" | "IfPossible")
        );
    let mode = if recursive { "Enabled" } else { "Disabled" };
    VolumeMountStatus {
        name: mount.name.clone(),
        mount_path: mount.mount_path.clone(),
        read_only: mount.read_only.filter(|r| *r),
        recursive_read_only: read_only.then(|| mode.to_owned()),
        ..VolumeMountStatus::default()
    }
}
