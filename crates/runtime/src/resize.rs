//! Resizing what runs: the pod's cgroup and its containers, in the order the core has planned.

use std::io;

use krablet_core::actions::PodActions;
use krablet_core::cgroups::pod_limits;
use krablet_core::resize::{
    ContainerToUpdate, MemoryUse, ResizeStep, Resource, check_memory, given, needs_memory_check,
    plan,
};
use krablet_cri::{Code, Error as CriError, v1};
use krablet_linux::Cgroups;
use krablet_pod::api::{Container, PodSpec, ResourceRequirements};
use krablet_pod::cgroups::CgroupLimits;
use krablet_pod::containers;
use krablet_pod::qos::QosClass;
use krablet_pod::resources::ApiList;
use krablet_pod::{ActuatedContainer, Actuation, ContainerId, PodRef, PodUid};
use tokio::time::Instant;

use crate::container_config::format_pod;
use crate::error::RuntimeError;
use crate::pod_runtime::PodRuntime;
use crate::resources::{container_resources, overhead, sandbox_resources};
use crate::sync::{SyncInputs, SyncOutcome};

/// The cgroup of the pod that is synced.
#[derive(Clone, Copy)]
pub struct PodCgroup<'a> {
    pub cgroups: &'a dyn Cgroups,
    pub uid: &'a PodUid,
    pub qos: QosClass,
}

impl PodCgroup<'_> {
    async fn limits(&self) -> io::Result<Option<CgroupLimits>> {
        self.cgroups.limits(self.uid, self.qos).await
    }

    async fn update(&self, limits: &CgroupLimits) -> io::Result<()> {
        self.cgroups.update(self.uid, self.qos, limits).await
    }

    /// Of the pod or of one container; none if it cannot be told.
    async fn memory_used(&self, container: Option<&ContainerId>) -> Option<u64> {
        let used = self.cgroups.memory_used(self.uid, self.qos, container);
        used.await.ok().flatten()
    }
}

/// What a resize has to do with.
#[derive(Clone, Copy, Default)]
pub struct Sizes<'a> {
    /// What the containers were last given, if the pod was ever resized.
    pub actuated: Option<&'a Actuation>,
    /// Without one nothing of the pod itself is resized.
    pub cgroup: Option<PodCgroup<'a>>,
}

/// What came of resizes in a sync.
#[derive(Debug, Default)]
pub struct Resized {
    /// Containers that were updated or started, with what they were given.
    pub containers: Vec<(String, ActuatedContainer)>,
    /// The pod's cgroup holds what the pod is promised.
    pub pod: bool,
    /// A container was updated, or the pod's cgroup.
    pub changed: bool,
    /// Why it did not come to its end.
    pub error: Option<String>,
}

impl PodRuntime {
    /// A failure is noted, and tried again with the next sync.
    pub(crate) async fn resize(
        &self,
        inputs: &SyncInputs<'_>,
        actions: &PodActions,
        out: &mut SyncOutcome,
    ) {
        let begun = Instant::now();
        let done = self.try_resize(inputs, actions, out).await;
        let success = if done.is_ok() { "true" } else { "false" };
        let took = begun.elapsed().as_millis() as f64;
        let metrics = &self.inner.deps.metrics;
        metrics.resize_duration.observe(&[success], took);
        if let Err(message) = done {
            let pod = PodRef::of(inputs.pod);
            tracing::warn!(
                pod = %pod,
                podUID = %pod.uid,
                error = message,
                "A resize did not come to its end, will retry"
            );
            out.resized.error = Some(message.clone());
            let pod = format_pod(&pod);
            out.fail(RuntimeError::Resize { pod, message });
        }
    }

    async fn try_resize(
        &self,
        inputs: &SyncInputs<'_>,
        actions: &PodActions,
        out: &mut SyncOutcome,
    ) -> Result<(), String> {
        let resizes = &actions.resizes;
        let wanted = pod_limits(inputs.pod, &self.inner.config.resources.pod_rules());
        let now = match inputs.sizes.cgroup {
            Some(cgroup) => cgroup.limits().await.map_err(|e| {
                let pod = format_pod(&PodRef::of(inputs.pod));
                format!("unable to get pod cgroup config for pod {pod:?}: {e}")
            })?,
            None => None,
        };
        if needs_memory_check(now.as_ref(), &wanted, resizes) {
            let used = memory_use(inputs, &resizes.memory).await;
            check_memory(now.as_ref(), &wanted, resizes, &used)?;
        }
        for step in plan(now.as_ref(), &wanted, resizes) {
            match step {
                ResizeStep::Pod(limits) => self.resize_pod(inputs, actions, &limits).await?,
                ResizeStep::Container(resource, update) => {
                    out.acted = true;
                    self.update(inputs, resource, update, out).await?;
                }
            }
            out.resized.changed = true;
        }
        out.resized.pod = true;
        Ok(())
    }

    async fn resize_pod(
        &self,
        inputs: &SyncInputs<'_>,
        actions: &PodActions,
        limits: &CgroupLimits,
    ) -> Result<(), String> {
        let Some(cgroup) = inputs.sizes.cgroup else {
            return Ok(());
        };
        let config = &self.inner.config;
        if let Some(sandbox) = &actions.sandbox_id {
            let request = v1::UpdatePodSandboxResourcesRequest {
                pod_sandbox_id: sandbox.to_string(),
                overhead: Some(overhead(inputs.pod, &config.resources, &config.node)),
                resources: Some(sandbox_resources(
                    inputs.pod,
                    &config.resources,
                    &config.node,
                )),
            };
            let told = self
                .inner
                .deps
                .runtime
                .update_pod_sandbox_resources(request);
            match told.await {
                Err(e) if !is_unknown_call(&e) => {
                    return Err(format!(
                        "failed to notify runtime for UpdatePodSandboxResources; resize rejected: {e}"
                    ));
                }
                _ => {}
            }
        }
        let updated = cgroup.update(limits).await;
        updated.map_err(|e| e.to_string())
    }

    async fn update(
        &self,
        inputs: &SyncInputs<'_>,
        resource: Resource,
        update: ContainerToUpdate,
        out: &mut SyncOutcome,
    ) -> Result<(), String> {
        let done = &mut out.resized.containers;
        let before = done.iter().position(|(name, _)| *name == update.name);
        let current = match before {
            Some(i) => &done[i].1.resources,
            None => &update.current,
        };
        let then = given(current, &update.wanted, resource);
        let default = PodSpec::default();
        let spec = inputs.pod.spec.as_ref().unwrap_or(&default);
        let Some(found) = containers::find(spec, &update.name) else {
            return Ok(());
        };
        let container = with_resources(found.container, &then);
        let config = &self.inner.config;
        let linux = container_resources(inputs.pod, &container, &config.resources, &config.node);
        let linux = of_one_kind(linux, resource);
        let request = v1::UpdateContainerResourcesRequest {
            container_id: update.id.to_string(),
            linux: Some(linux),
            ..Default::default()
        };
        let updated = self.inner.deps.runtime.update_container_resources(request);
        updated.await.map_err(|e| e.to_string())?;
        let now = ActuatedContainer {
            id: Some(update.id),
            resources: then,
        };
        match before {
            Some(i) => done[i].1 = now,
            None => done.push((update.name, now)),
        }
        Ok(())
    }
}

/// What is not set stays as it is, whatever anybody remembers of it.
fn of_one_kind(
    all: v1::LinuxContainerResources,
    resource: Resource,
) -> v1::LinuxContainerResources {
    match resource {
        Resource::Cpu => v1::LinuxContainerResources {
            cpu_period: all.cpu_period,
            cpu_quota: all.cpu_quota,
            cpu_shares: all.cpu_shares,
            // Zero would be a value of its own.
            oom_score_adj: all.oom_score_adj,
            ..Default::default()
        },
        Resource::Memory => v1::LinuxContainerResources {
            cpu_period: 0,
            cpu_quota: 0,
            cpu_shares: 0,
            ..all
        },
    }
}

/// What cannot be found out is left out: the check is there to prevent harm, not to be in the way.
async fn memory_use(inputs: &SyncInputs<'_>, updates: &[ContainerToUpdate]) -> MemoryUse {
    let Some(cgroup) = inputs.sizes.cgroup else {
        return MemoryUse::default();
    };
    let mut used = MemoryUse {
        pod: cgroup.memory_used(None).await,
        ..MemoryUse::default()
    };
    for update in updates {
        if let Some(bytes) = cgroup.memory_used(Some(&update.id)).await {
            used.containers.insert(update.name.clone(), bytes);
        }
    }
    used
}

/// Some runtimes say that they do not know a call in words of their own.
fn is_unknown_call(error: &CriError) -> bool {
    error.code == Code::Unimplemented
        || error.code == Code::Unknown && error.message.contains("not implemented")
}

/// The container with other amounts of cpu and memory, and all else as it is.
fn with_resources(container: &Container, amounts: &ResourceRequirements) -> Container {
    let replaced = |own: Option<&ApiList>, amounts: Option<&ApiList>| {
        let mut list = own.cloned().unwrap_or_default();
        list.retain(|name, _| name != "cpu" && name != "memory");
        list.extend(amounts.cloned().unwrap_or_default());
        Some(list)
    };
    let own = container.resources.clone().unwrap_or_default();
    Container {
        resources: Some(ResourceRequirements {
            requests: replaced(own.requests.as_ref(), amounts.requests.as_ref()),
            limits: replaced(own.limits.as_ref(), amounts.limits.as_ref()),
            ..own
        }),
        ..container.clone()
    }
}
