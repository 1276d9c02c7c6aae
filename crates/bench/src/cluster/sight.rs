//! What others see of a node: watches of its Node object and its pods, with the time at which each
//! change arrives, and beside them what the runtime tells of containers.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use futures::StreamExt;
use krablet_cri::v1::{ContainerEventResponse, ContainerEventType};
use krablet_cri::{EventStream, RuntimeService};
use krablet_kube::{Call, Kube, Verb, Watch, WatchEvent, decode_watch_line, paths};
use krablet_pod::api::{Node, Pod};
use krablet_testbed::Bed;
use tokio::time::Instant;

use crate::stats::Samples;

/// More than any of this takes on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(300);

async fn watch(kube: &Kube, path: &str, field: &str, value: &str) -> Result<Watch> {
    let call = Call::new(Verb::Get, path.to_owned())
        .query("watch", "true")
        .query("fieldSelector", format!("{field}={value}"));
    let watch = kube.api().watch(call).await;
    watch.with_context(|| format!("watching {path}"))
}

async fn next_line(watch: &mut Watch) -> Result<impl AsRef<[u8]> + use<>> {
    Ok(watch.next().await.context("the watch has ended")??)
}

/// The Node object of one node.
pub struct NodeSight(Watch);

impl NodeSight {
    pub async fn begin(kube: &Kube, name: &str) -> Result<Self> {
        let watch = watch(kube, paths::NODES, "metadata.name", name).await?;
        Ok(Self(watch))
    }

    /// The moment the node is ready.
    pub async fn ready(&mut self) -> Result<Instant> {
        loop {
            let line = next_line(&mut self.0).await?;
            let at = Instant::now();
            if let WatchEvent::Added(node) | WatchEvent::Modified(node) =
                decode_watch_line::<Node>(line.as_ref())?
                && node_is_ready(&node)
            {
                return Ok(at);
            }
        }
    }
}

fn node_is_ready(node: &Node) -> bool {
    let conditions = node
        .status
        .iter()
        .flat_map(|s| s.conditions.iter().flatten());
    let mut conditions = conditions.map(|c| (c.type_.as_str(), c.status.as_str()));
    conditions.any(|condition| condition == ("Ready", "True"))
}

/// The pods of one node.
pub struct PodSight {
    pods: Watch,
    events: EventStream,
}

/// When containers ran and pods were ready, by the name of the pod.
#[derive(Debug, Default)]
pub struct Seen {
    started: BTreeMap<String, Instant>,
    ready: BTreeMap<String, Instant>,
}

impl Seen {
    /// When the last pod was ready.
    pub fn last(&self) -> Option<Instant> {
        self.ready.values().max().copied()
    }

    /// How long after its container ran the last pod was ready.
    pub fn last_delay(&self) -> Option<Duration> {
        let (pod, ready) = self.ready.iter().max_by_key(|(_, at)| **at)?;
        let started = self.started.get(pod)?;
        Some(ready.saturating_duration_since(*started))
    }

    /// The same for all of them.
    pub fn delays(&self) -> Samples {
        let mut delays = Samples::default();
        for (pod, ready) in &self.ready {
            if let Some(started) = self.started.get(pod) {
                delays.add_time(ready.saturating_duration_since(*started));
            }
        }
        delays
    }

    fn hear(&mut self, event: &ContainerEventResponse, at: Instant) {
        let started = event.container_event_type() == ContainerEventType::ContainerStartedEvent;
        let Some(sandbox) = &event.pod_sandbox_status else {
            return;
        };
        if let (true, Some(pod)) = (
            started && event.container_id != sandbox.id,
            &sandbox.metadata,
        ) {
            self.started.entry(pod.name.clone()).or_insert(at);
        }
    }
}

impl PodSight {
    /// Sees what happens from now on.
    pub async fn begin(kube: &Kube, bed: &Bed, node: &str) -> Result<Self> {
        Ok(Self {
            pods: watch(kube, paths::PODS, "spec.nodeName", node).await?,
            events: bed.runtime()?.container_events().await?,
        })
    }

    /// Waits until so many pods are ready.
    pub async fn ready(&mut self, count: usize) -> Result<Seen> {
        let deadline = Instant::now() + PATIENCE;
        let mut seen = Seen::default();
        while seen.ready.len() < count || seen.started.len() < count {
            tokio::select! {
                biased;
                line = next_line(&mut self.pods) => {
                    let at = Instant::now();
                    match decode_watch_line::<Pod>(line?.as_ref())? {
                        WatchEvent::Added(pod) | WatchEvent::Modified(pod) => {
                            if is_ready(&pod)? {
                                seen.ready.entry(name(&pod)).or_insert(at);
                            }
                        }
                        WatchEvent::Deleted(pod) => bail!("{} was deleted", name(&pod)),
                        WatchEvent::Bookmark(_) => {}
                    }
                }
                event = self.events.next() => {
                    let event = event.context("the runtime's events ended")??;
                    seen.hear(&event, Instant::now());
                }
                () = tokio::time::sleep_until(deadline) => bail!(
                    "{} of {count} pods are ready, {} run", seen.ready.len(), seen.started.len()
                ),
            }
        }
        Ok(seen)
    }

    /// The moment so many pods are gone.
    pub async fn gone(&mut self, count: usize) -> Result<Instant> {
        let deadline = Instant::now() + PATIENCE;
        let mut gone = BTreeSet::new();
        let mut last = Instant::now();
        while gone.len() < count {
            tokio::select! {
                biased;
                line = next_line(&mut self.pods) => {
                    if let WatchEvent::Deleted(pod) = decode_watch_line::<Pod>(line?.as_ref())? {
                        last = Instant::now();
                        gone.insert(name(&pod));
                    }
                }
                // Nobody listening would hold up the runtime.
                event = self.events.next() => {
                    event.context("the runtime's events ended")??;
                }
                () = tokio::time::sleep_until(deadline) => bail!(
                    "{} of {count} pods are gone", gone.len()
                ),
            }
        }
        Ok(last)
    }
}

fn name(pod: &Pod) -> String {
    pod.metadata.name.clone().unwrap_or_default()
}

/// An error if it never will be.
fn is_ready(pod: &Pod) -> Result<bool> {
    let Some(status) = &pod.status else {
        return Ok(false);
    };
    if status.phase.as_deref() == Some("Failed") {
        bail!(
            "{} has failed: {} {}",
            name(pod),
            status.reason.as_deref().unwrap_or_default(),
            status.message.as_deref().unwrap_or_default(),
        );
    }
    let mut conditions = status.conditions.iter().flatten();
    Ok(conditions.any(|c| c.type_ == "Ready" && c.status == "True"))
}
