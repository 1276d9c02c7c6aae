//! What the runtime was seen to hold of one pod, at one ticket.

use std::sync::Arc;

use crate::marks::PodSource;
use crate::{ContainerId, PodRef, SandboxId, Ticket};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ContainerState {
    Created,
    Running,
    Exited,
    Unknown,
}

/// What a container's annotations remember of the spec it was started from. Read back for pods
/// whose spec this agent does not know (orphans), and for take-over from another agent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerMemory {
    /// `io.kubernetes.container.hash`, as written.
    pub hash: Option<String>,
    pub restart_count: u32,
    pub termination_message_path: Option<String>,
    pub termination_message_policy: Option<String>,
    /// JSON of the preStop handler.
    pub pre_stop: Option<String>,
    /// JSON of the container ports (named ports of HTTP hooks).
    pub ports: Option<String>,
    /// JSON of the resources the instance was started with.
    pub resources: Option<String>,
    pub deletion_grace_seconds: Option<i64>,
    pub termination_grace_seconds: Option<i64>,
}

/// How a container ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerExit {
    pub exit_code: i32,
    pub signal: i32,
    /// As the runtime says it (`Completed`, `Error`, `OOMKilled`, …).
    pub reason: String,
    /// Termination message, already read from its file or from the log's tail.
    pub message: String,
    /// Unix nanoseconds; 0 when the container never started.
    pub started_at: i64,
    pub finished_at: i64,
    /// It was stopped to make way for another instance, which follows whatever the restart policy says of
    /// this end (see [`crate::paths::restart_mark`]).
    pub stopped_to_restart: bool,
}

/// Whom a container's first process was started as.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerUser {
    pub uid: i64,
    pub gid: i64,
    pub supplemental_groups: Vec<i64>,
}

/// What a runtime says a container is held to, in the kernel's numbers; 0 for what it does not tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuntimeResources {
    /// Microseconds.
    pub cpu_period: i64,
    /// Microseconds; -1 for as much as there is.
    pub cpu_quota: i64,
    pub cpu_shares: i64,
    /// Bytes.
    pub memory_limit: i64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedContainer {
    pub id: ContainerId,
    pub name: Arc<str>,
    pub sandbox_id: SandboxId,
    pub state: ContainerState,
    /// The runtime's attempt counter of this container name.
    pub attempt: u32,
    /// Unix nanoseconds.
    pub created_at: i64,
    /// Unix nanoseconds; 0 unless running or exited.
    pub started_at: i64,
    /// Set when `state` is `Exited`.
    pub exit: Option<ContainerExit>,
    /// The image as the spec named it.
    pub image: Arc<str>,
    /// The resolved image reference (`image@digest`) or id.
    pub image_ref: Arc<str>,
    /// None where the runtime does not tell.
    pub user: Option<ContainerUser>,
    /// None where the runtime does not tell.
    pub resources: Option<RuntimeResources>,
    pub memory: ContainerMemory,
    /// Log file on the host.
    pub log_path: String,
}

impl ObservedContainer {
    pub fn is_running(&self) -> bool {
        self.state == ContainerState::Running
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedSandbox {
    pub id: SandboxId,
    pub ready: bool,
    pub attempt: u32,
    /// Unix nanoseconds.
    pub created_at: i64,
    /// Primary address first. Empty for host-network pods.
    pub ips: Vec<String>,
    pub host_network: bool,
    /// Who wanted the pod when the sandbox was made, as far as it says.
    pub source: Option<PodSource>,
}

/// Everything the runtime holds of one pod. Both lists are newest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedPod {
    pub pod: PodRef,
    /// Taken before the first call of the observation.
    pub ticket: Ticket,
    pub sandboxes: Vec<ObservedSandbox>,
    pub containers: Vec<ObservedContainer>,
}

impl ObservedPod {
    /// A pod the runtime was proven to know nothing of.
    pub fn absent(pod: PodRef, ticket: Ticket) -> Self {
        Self {
            pod,
            ticket,
            sandboxes: Vec::new(),
            containers: Vec::new(),
        }
    }

    /// The newest instance of a container that ever ran. One that was only created stands for it
    /// where there is no other: a create call that had its effect too late leaves one that nobody
    /// will start.
    pub fn newest<'a>(&'a self, name: &'a str) -> Option<&'a ObservedContainer> {
        self.instances(name)
            .find(|c| c.state != ContainerState::Created)
            .or_else(|| self.instances(name).next())
    }

    /// All instances of a container, newest first.
    pub fn instances<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a ObservedContainer> {
        self.containers.iter().filter(move |c| &*c.name == name)
    }

    pub fn container(&self, id: &ContainerId) -> Option<&ObservedContainer> {
        self.containers.iter().find(|c| &c.id == id)
    }

    pub fn running(&self) -> impl Iterator<Item = &ObservedContainer> {
        self.containers.iter().filter(|c| c.is_running())
    }

    pub fn ready_sandboxes(&self) -> impl Iterator<Item = &ObservedSandbox> {
        self.sandboxes.iter().filter(|s| s.ready)
    }

    /// Addresses of the newest sandbox if it is ready.
    pub fn ips(&self) -> &[String] {
        self.sandboxes
            .first()
            .filter(|s| s.ready)
            .map_or(&[], |s| s.ips.as_slice())
    }

    /// Nothing at all is left in the runtime.
    pub fn is_absent(&self) -> bool {
        self.sandboxes.is_empty() && self.containers.is_empty()
    }

    /// Something of the pod still lives: a container that runs or a sandbox that is ready.
    pub fn is_alive(&self) -> bool {
        self.running().next().is_some() || self.ready_sandboxes().next().is_some()
    }
}
