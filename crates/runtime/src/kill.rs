//! Stopping containers with their preStop hooks and their grace, and whole pods in order.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::future::join_all;
use krablet_core::actions::KillReason;
use krablet_core::termination::{Grace, container_grace, remembered_grace, stop_order};
use krablet_events::{Subject, reason};
use krablet_pod::api::{Container, ContainerPort, LifecycleHandler, Pod};
use krablet_pod::containers::{self, ContainerKind};
use krablet_pod::observed::{ObservedContainer, ObservedPod, ObservedSandbox};
use krablet_pod::{ContainerId, PodRef};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use crate::error::RuntimeError;
use crate::hooks::HookTarget;
use crate::pod_runtime::PodRuntime;

/// Why and how hard.
#[derive(Clone, Debug)]
pub(crate) struct KillCause {
    pub reason: KillReason,
    /// Text of the `Killing` event; empty for the usual one.
    pub message: String,
    /// Replaces the grace the spec gives.
    pub grace: Option<i64>,
}

impl KillCause {
    fn whole_pod(grace: Option<i64>) -> Self {
        Self {
            reason: KillReason::Unknown,
            message: String::new(),
            grace,
        }
    }
}

/// All that is needed to stop one container, from its spec or from what it remembers.
#[derive(Clone, Debug)]
pub(crate) struct KillJob {
    pub pod: PodRef,
    pub kind: ContainerKind,
    pub name: String,
    pub id: ContainerId,
    pub message: String,
    pub grace: Grace,
    pub pre_stop: Option<LifecycleHandler>,
    pub ports: Vec<ContainerPort>,
    /// Where the pod is reached.
    pub ip: Option<String>,
}

impl KillJob {
    pub(crate) fn from_spec(
        pod: &Pod,
        kind: ContainerKind,
        container: &Container,
        id: ContainerId,
        cause: KillCause,
        ip: Option<String>,
    ) -> Self {
        let grace = container_grace(pod, Some(container), cause.reason);
        let lifecycle = container.lifecycle.as_ref();
        Self {
            pod: PodRef::of(pod),
            kind,
            name: container.name.clone(),
            id,
            message: cause.message,
            grace: Grace::new(grace, cause.grace),
            pre_stop: lifecycle.and_then(|l| l.pre_stop.clone()),
            ports: container.ports.clone().unwrap_or_default(),
            ip,
        }
    }

    /// For a container whose spec is not known: what its annotations say. What of them cannot be
    /// read does not count.
    pub(crate) fn from_memory(
        pod: &PodRef,
        seen: &ObservedContainer,
        cause: KillCause,
        ip: Option<String>,
    ) -> Self {
        fn parsed<T: serde::de::DeserializeOwned>(json: &Option<String>) -> Option<T> {
            serde_json::from_slice(json.as_deref()?.as_bytes()).ok()
        }
        Self {
            pod: pod.clone(),
            kind: ContainerKind::Regular,
            name: seen.name.to_string(),
            id: seen.id.clone(),
            message: cause.message,
            grace: Grace::new(remembered_grace(&seen.memory), cause.grace),
            pre_stop: parsed(&seen.memory.pre_stop),
            ports: parsed(&seen.memory.ports).unwrap_or_default(),
            ip,
        }
    }
}

/// A container of the spec, of any kind.
pub(crate) fn find_spec(pod: &Pod, name: &str) -> Option<(ContainerKind, Container)> {
    let spec = pod.spec.as_ref()?;
    if let Some(found) = containers::find(spec, name) {
        return Some((found.kind, found.container.clone()));
    }
    let ephemeral = containers::ephemeral_containers(spec).iter();
    let found = ephemeral.clone().find(|e| e.name == name)?;
    Some((
        ContainerKind::Ephemeral,
        containers::ephemeral_as_container(found),
    ))
}

/// Sidecars wait for those they serve.
struct StopOrder<'a> {
    waits_for: BTreeMap<&'a str, Vec<&'a str>>,
    ended: watch::Sender<BTreeSet<String>>,
}

impl<'a> StopOrder<'a> {
    fn new(pod: Option<&'a Pod>, running: &BTreeSet<&'a str>) -> Self {
        let spec = pod.and_then(|p| p.spec.as_ref());
        Self {
            waits_for: spec.map(|s| stop_order(s, running)).unwrap_or_default(),
            ended: watch::Sender::new(BTreeSet::new()),
        }
    }

    /// Waits until all that go before have ended, at most so long; tells how long it took.
    async fn turn(&self, name: &str, at_most: Duration) -> Duration {
        let before = self.waits_for.get(name).map_or(&[][..], Vec::as_slice);
        let begun = Instant::now();
        let mut ended = self.ended.subscribe();
        let all = ended.wait_for(|ended| before.iter().all(|name| ended.contains(*name)));
        // Out of time: the turn has come whoever is left.
        let _ = timeout(at_most, all).await;
        begun.elapsed()
    }

    fn has_ended(&self, name: &str) {
        self.ended.send_modify(|ended| {
            ended.insert(name.to_string());
        });
    }
}

impl PodRuntime {
    /// Stops every running container and then every sandbox of a pod. Without `pod`, the runtime's
    /// own memory of hooks and grace periods counts. All are tried; the first failure is told.
    pub async fn kill_pod(
        &self,
        pod: Option<&Pod>,
        observed: &ObservedPod,
        grace_override: Option<i64>,
    ) -> Result<(), RuntimeError> {
        let work = self.kill_all(pod, observed, grace_override);
        self.inner.stops.end(work).await
    }

    async fn kill_all(
        &self,
        pod: Option<&Pod>,
        observed: &ObservedPod,
        grace_override: Option<i64>,
    ) -> Result<(), RuntimeError> {
        let running: BTreeSet<&str> = observed.running().map(|c| &*c.name).collect();
        let order = StopOrder::new(pod, &running);
        let kills = observed.running().map(|seen| {
            let cause = KillCause::whole_pod(grace_override);
            self.kill_in_order(self.kill_job(pod, observed, seen, cause), &order)
        });
        let killed = join_all(kills).await;
        let stopped = join_all(observed.sandboxes.iter().map(|s| self.stop_sandbox(s))).await;
        killed.into_iter().chain(stopped).collect()
    }

    pub(crate) fn kill_job(
        &self,
        pod: Option<&Pod>,
        observed: &ObservedPod,
        seen: &ObservedContainer,
        cause: KillCause,
    ) -> KillJob {
        let ip = self.reached_at(observed);
        match pod.and_then(|p| Some((p, find_spec(p, &seen.name)?))) {
            Some((pod, (kind, container))) => {
                KillJob::from_spec(pod, kind, &container, seen.id.clone(), cause, ip)
            }
            None => KillJob::from_memory(&observed.pod, seen, cause, ip),
        }
    }

    /// The pod's address; the node's for a pod on the node's network.
    fn reached_at(&self, observed: &ObservedPod) -> Option<String> {
        let own = observed.ips().first();
        let on_host = observed.sandboxes.first().is_some_and(|s| s.host_network);
        let node = || self.inner.config.node.host_ips.texts().into_iter().next();
        own.cloned().or_else(|| node().filter(|_| on_host))
    }

    pub(crate) async fn kill_container(&self, job: KillJob) -> Result<(), RuntimeError> {
        let alone = StopOrder::new(None, &BTreeSet::new());
        self.kill_in_order(job, &alone).await
    }

    async fn kill_in_order(&self, job: KillJob, order: &StopOrder<'_>) -> Result<(), RuntimeError> {
        let subject = Subject::container(&job.pod, job.kind, &job.name);
        let message = match job.message.is_empty() {
            true => format!("Stopping container {}", job.name),
            false => job.message.replace(job.id.as_str(), &job.name),
        };
        let recorder = &self.inner.deps.recorder;
        recorder.normal(subject.clone(), reason::KILLING, message);
        let mut grace = self.pre_stop(&job, subject).await;
        if let Some(at_most) = grace.for_turn() {
            grace = grace.after(order.turn(&job.name, at_most).await);
        }
        let seconds = grace.stop_timeout_seconds();
        tracing::info!(pod = %job.pod, podUID = %job.pod.uid, containerName = job.name, containerID = %job.id, gracePeriod = seconds, "Killing container with a grace period");
        let runtime = &self.inner.deps.runtime;
        match runtime.stop_container(job.id.as_str(), seconds).await {
            Err(source) if !source.is_not_found() => Err(RuntimeError::KillContainer {
                container: job.name,
                source,
            }),
            _ => {
                order.has_ended(&job.name);
                Ok(())
            }
        }
    }

    /// Runs the hook within the grace, and tells what is left of it.
    async fn pre_stop(&self, job: &KillJob, subject: Subject) -> Grace {
        let (Some(handler), Some(at_most)) = (&job.pre_stop, job.grace.for_pre_stop()) else {
            return job.grace;
        };
        let target = HookTarget {
            pod: &job.pod,
            container: &job.name,
            id: &job.id,
            ports: &job.ports,
            ip: job.ip.as_deref(),
        };
        let begun = Instant::now();
        match timeout(at_most, self.inner.hooks.run(&target, handler)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::error!(pod = %job.pod, podUID = %job.pod.uid, containerName = job.name, error, "PreStop hook failed");
                // The text may hold secrets the command printed.
                let recorder = &self.inner.deps.recorder;
                recorder.warning(subject, reason::FAILED_PRE_STOP_HOOK, "PreStopHook failed");
            }
            Err(_) => {
                tracing::info!(pod = %job.pod, podUID = %job.pod.uid, containerName = job.name, "PreStop hook not completed in grace period");
            }
        }
        job.grace.after(begun.elapsed())
    }

    async fn stop_sandbox(&self, sandbox: &ObservedSandbox) -> Result<(), RuntimeError> {
        let id = sandbox.id.as_str();
        let stop = self.inner.deps.runtime.stop_pod_sandbox(id);
        match self.inner.stops.pass(stop).await {
            Err(source) if !source.is_not_found() => Err(RuntimeError::StopSandbox {
                sandbox: id.to_string(),
                source,
            }),
            _ => Ok(()),
        }
    }
}
