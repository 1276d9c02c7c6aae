//! What becomes of containers that are to have other resources than they were given.

use krablet_pod::api::Container;
use krablet_pod::containers::{self, ContainerKind};
use krablet_pod::observed::ObservedContainer;

use super::{KillReason, Sync};
use crate::resize::{
    ContainerResize, ContainerToUpdate, PodResizes, Resource, Size, actuated, container_resize,
    is_whole_pod_resized, started_with,
};
use crate::restart::current_instance;

impl Sync<'_> {
    /// False if the running container has to be restarted to have what it is promised.
    pub(super) fn keep_or_resize(
        &mut self,
        container: &Container,
        seen: &ObservedContainer,
    ) -> bool {
        let Some(current) = actuated(&container.name, Some(seen), self.actuated) else {
            return true;
        };
        let wanted = started_with(self.pod, container);
        let sizes = (Size::of(&current), Size::of(&wanted));
        let (cpu, memory) = match container_resize(container, &sizes.0, &sizes.1) {
            ContainerResize::Keep => return true,
            ContainerResize::Restart => return self.pod.metadata.deletion_timestamp.is_some(),
            ContainerResize::Update { cpu, memory } => (cpu, memory),
        };
        let update = ContainerToUpdate {
            id: seen.id.clone(),
            name: container.name.clone(),
            current,
            wanted,
        };
        if memory {
            self.actions.resizes.add(update.clone(), Resource::Memory);
        }
        if cpu {
            self.actions.resizes.add(update, Resource::Cpu);
        }
        true
    }

    /// Whatever its restart policy. The caller lists it to be started.
    pub(super) fn restart_resized(
        &mut self,
        container: &Container,
        seen: &ObservedContainer,
        kind: ContainerKind,
    ) {
        let message = format!("Container {} resize requires restart", container.name);
        self.kill(seen, kind, message, KillReason::SpecChanged);
        if kind == ContainerKind::Regular {
            self.mark_killed(container);
        }
        self.actions.resizes.pod = true;
    }

    /// Where all is made anew, all has its new size; where all goes, none is needed.
    pub(super) fn settle_resizes(&mut self) {
        let deleted = self.pod.metadata.deletion_timestamp.is_some();
        if deleted || self.actions.kill_pod || self.actions.create_sandbox {
            self.actions.resizes = PodResizes::default();
            return;
        }
        let starts = self.starts_with_other_size();
        self.actions.resizes.pod |= starts || is_whole_pod_resized(self.pod, self.actuated);
    }

    /// A container that starts now was resized while it did not run.
    fn starts_with_other_size(&self) -> bool {
        if self.actuated.is_none() {
            return false;
        }
        let names = self.names_to_start();
        let mut starting = containers::all(self.spec)
            .map(|c| c.container)
            .filter(|c| names.contains(c.name.as_str()));
        starting.any(|container| {
            let instance = current_instance(self.observed, &container.name);
            let had = actuated(&container.name, instance, self.actuated);
            let wanted = Size::of(&started_with(self.pod, container));
            had.is_some_and(|had| Size::of(&had) != wanted)
        })
    }
}
