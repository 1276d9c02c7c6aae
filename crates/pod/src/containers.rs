//! Walking a pod's containers in their three kinds.

use crate::api::{Container, ContainerStatus, EphemeralContainer, Pod, PodSpec};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ContainerKind {
    Init,
    Regular,
    Ephemeral,
}

/// A container of a spec together with its kind. Ephemeral containers are seen through their
/// common fields (see [`ephemeral_as_container`]).
#[derive(Clone, Copy, Debug)]
pub struct SpecContainer<'a> {
    pub kind: ContainerKind,
    pub container: &'a Container,
}

/// A sidecar: an init container that is always restarted and stays beside the main ones.
pub fn is_sidecar(container: &Container) -> bool {
    container.restart_policy.as_deref() == Some("Always")
}

pub fn init_containers(spec: &PodSpec) -> &[Container] {
    spec.init_containers.as_deref().unwrap_or_default()
}

pub fn ephemeral_containers(spec: &PodSpec) -> &[EphemeralContainer] {
    spec.ephemeral_containers.as_deref().unwrap_or_default()
}

/// Init and regular containers in spec order.
pub fn all(spec: &PodSpec) -> impl Iterator<Item = SpecContainer<'_>> {
    let init = init_containers(spec).iter().map(|container| SpecContainer {
        kind: ContainerKind::Init,
        container,
    });
    let regular = spec.containers.iter().map(|container| SpecContainer {
        kind: ContainerKind::Regular,
        container,
    });
    init.chain(regular)
}

/// Finds an init or regular container by name.
pub fn find<'a>(spec: &'a PodSpec, name: &str) -> Option<SpecContainer<'a>> {
    all(spec).find(|c| c.container.name == name)
}

/// The fields an ephemeral container shares with an ordinary one.
pub fn ephemeral_as_container(e: &EphemeralContainer) -> Container {
    Container {
        name: e.name.clone(),
        image: e.image.clone(),
        command: e.command.clone(),
        args: e.args.clone(),
        working_dir: e.working_dir.clone(),
        ports: e.ports.clone(),
        env: e.env.clone(),
        env_from: e.env_from.clone(),
        resources: e.resources.clone(),
        volume_mounts: e.volume_mounts.clone(),
        volume_devices: e.volume_devices.clone(),
        image_pull_policy: e.image_pull_policy.clone(),
        security_context: e.security_context.clone(),
        stdin: e.stdin,
        stdin_once: e.stdin_once,
        tty: e.tty,
        termination_message_path: e.termination_message_path.clone(),
        termination_message_policy: e.termination_message_policy.clone(),
        restart_policy: e.restart_policy.clone(),
        ..Container::default()
    }
}

/// The event field path of a container, e.g. `spec.containers{web}`.
pub fn field_path(kind: ContainerKind, name: &str) -> String {
    let list = match kind {
        ContainerKind::Init => "spec.initContainers",
        ContainerKind::Regular => "spec.containers",
        ContainerKind::Ephemeral => "spec.ephemeralContainers",
    };
    format!("{list}{{{name}}}")
}

/// All container statuses of a pod, with their kinds.
pub fn statuses(pod: &Pod) -> impl Iterator<Item = (ContainerKind, &ContainerStatus)> {
    let status = pod.status.as_ref();
    let lists = [
        (
            ContainerKind::Init,
            status.and_then(|s| s.init_container_statuses.as_deref()),
        ),
        (
            ContainerKind::Regular,
            status.and_then(|s| s.container_statuses.as_deref()),
        ),
        (
            ContainerKind::Ephemeral,
            status.and_then(|s| s.ephemeral_container_statuses.as_deref()),
        ),
    ];
    lists
        .into_iter()
        .flat_map(|(kind, list)| list.unwrap_or_default().iter().map(move |s| (kind, s)))
}
