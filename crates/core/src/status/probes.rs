//! Started and ready: what probes said, and what holds where they said nothing.

use krablet_pod::ContainerId;
use krablet_pod::api::{Container, ContainerStatus};
use krablet_pod::containers::{init_containers, is_sidecar};

use super::Cx;
use super::containers::runtime_id;
use crate::probe::{ContainerVerdicts, Verdict};

impl Cx<'_> {
    pub(super) fn set_started_and_ready(
        &self,
        init: &mut [ContainerStatus],
        regular: &mut [ContainerStatus],
    ) {
        let old = self.old.container_statuses.as_deref().unwrap_or_default();
        for status in regular {
            if let Some(c) = self.spec.containers.iter().find(|c| c.name == status.name) {
                self.judge(c, status, old);
            }
        }
        let old = self
            .old
            .init_container_statuses
            .as_deref()
            .unwrap_or_default();
        for status in init {
            let container = init_containers(self.spec)
                .iter()
                .find(|c| c.name == status.name);
            let Some(container) = container else { continue };
            self.judge(container, status, old);
            if !is_sidecar(container) {
                // Init containers have no probes; ready means done.
                let end = status.state.as_ref().and_then(|s| s.terminated.as_ref());
                status.ready = end.is_some_and(|t| t.exit_code == 0);
            }
        }
    }

    fn judge(&self, container: &Container, status: &mut ContainerStatus, old: &[ContainerStatus]) {
        let running = status.state.as_ref().is_some_and(|s| s.running.is_some());
        if !running {
            status.started = Some(false);
            status.ready = false;
            return;
        }
        let id = status
            .container_id
            .as_deref()
            .map(runtime_id)
            .unwrap_or_default();
        let verdicts = self.inputs.verdicts.get(&ContainerId::from(id));
        let verdicts = verdicts.copied().unwrap_or_default();
        // Only the same instance hands on what it was.
        let before = old
            .iter()
            .find(|o| o.name == status.name && o.container_id == status.container_id);
        let started = is_started(container, verdicts, before);
        status.started = Some(started);
        status.ready = started && is_ready(container, verdicts, before);
    }
}

/// A startup verdict decides; before there is one, what was said of this instance by an earlier
/// agent holds, else a container is started if it has no startup probe.
fn is_started(
    container: &Container,
    verdicts: ContainerVerdicts,
    before: Option<&ContainerStatus>,
) -> bool {
    match verdicts.startup {
        Some(verdict) => verdict == Verdict::Success,
        None => {
            before.and_then(|b| b.started).unwrap_or(false) || container.startup_probe.is_none()
        }
    }
}

fn is_ready(
    container: &Container,
    verdicts: ContainerVerdicts,
    before: Option<&ContainerStatus>,
) -> bool {
    match verdicts.readiness {
        Some(verdict) => verdict == Verdict::Success,
        None => container.readiness_probe.is_none() || before.is_some_and(|b| b.ready),
    }
}
