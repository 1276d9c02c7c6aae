//! Ends that would go unnoticed between two statuses.

use krablet_pod::api::{Container, ContainerStatus, PodSpec, PodStatus};
use krablet_pod::containers::{init_containers, is_sidecar};
use krablet_pod::observed::{ContainerState, ObservedContainer, ObservedPod};

use super::containers::{end_of, exited, runtime_id, terminated, waiting};
use crate::restart::{self, RestartGates, current_instance};

/// The status that stands with the ends of containers that were just killed to be started again.
/// Another instance follows at once and may end before the next full status, which can tell of two
/// ends at most. Nothing else changes: the pod goes on. `None` if there is nothing new to tell.
pub fn with_ends(
    standing: &PodStatus,
    spec: &PodSpec,
    observed: &ObservedPod,
    runtime_name: &str,
    gates: RestartGates,
) -> Option<PodStatus> {
    let mut status = standing.clone();
    let mut changed = false;
    let lists = [
        (&mut status.init_container_statuses, init_containers(spec)),
        (&mut status.container_statuses, &spec.containers[..]),
    ];
    for (statuses, containers) in lists {
        for told in statuses.iter_mut().flatten() {
            let container = containers.iter().find(|c| c.name == told.name);
            let name = told.name.clone();
            let seen = current_instance(observed, &name);
            let Some((container, seen)) = container.zip(seen).filter(|(_, s)| is_news(told, s))
            else {
                continue;
            };
            match comes_back(spec, container, seen, gates) {
                true => tell(told, seen, runtime_name),
                // Its end must not stand, for it would be the pod's.
                false if restart::was_stopped_to_restart(seen) => {
                    tell(told, seen, runtime_name);
                    told.last_state = told.state.replace(waiting(None, None));
                }
                false => continue,
            }
            changed = true;
        }
    }
    changed.then_some(status)
}

fn is_news(told: &ContainerStatus, seen: &ObservedContainer) -> bool {
    let ends = [&told.state, &told.last_state];
    let mut ids = ends
        .into_iter()
        .filter_map(|state| end_of(state.as_ref())?.container_id.as_deref());
    seen.state == ContainerState::Exited && !ids.any(|id| runtime_id(id) == seen.id.as_str())
}

/// Its policy says so. One whose end is final by it may be started again for another reason, such as a new
/// image, and is marked then.
fn comes_back(
    spec: &PodSpec,
    container: &Container,
    seen: &ObservedContainer,
    gates: RestartGates,
) -> bool {
    let code = restart::exit_code(seen);
    is_sidecar(container) || restart::should_restart(spec, container, code, gates).restarts()
}

fn tell(told: &mut ContainerStatus, seen: &ObservedContainer, runtime_name: &str) {
    let id = format!("{runtime_name}://{}", seen.id);
    if end_of(told.state.as_ref()).is_some() {
        told.last_state = told.state.take();
    }
    told.state = Some(terminated(exited(seen, &id)));
    let counted = i32::try_from(seen.memory.restart_count).unwrap_or(i32::MAX);
    told.restart_count = told.restart_count.max(counted);
    told.container_id = Some(id);
    told.ready = false;
    told.started = Some(false);
}
