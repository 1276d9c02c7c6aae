//! What the runtime itself says: when the last container ran, when the last sandbox had ended.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use futures::StreamExt;
use krablet_cri::v1::ContainerEventType;
use krablet_cri::{EventStream, RuntimeClient, RuntimeService, v1};
use krablet_testbed::Bed;
use tokio::time::Instant;

/// More than any of this takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(300);

pub struct Watch {
    events: EventStream,
    runtime: RuntimeClient,
}

impl Watch {
    /// Sees what happens from now on.
    pub async fn begin(bed: &Bed) -> Result<Self> {
        let runtime = bed.runtime()?;
        Ok(Self {
            events: runtime.container_events().await?,
            runtime,
        })
    }

    /// The moment the `count`th container runs.
    pub async fn running(&mut self, count: usize) -> Result<Instant> {
        let started = ContainerEventType::ContainerStartedEvent;
        self.until(count, |event, sandbox| {
            event.container_event_type() == started && event.container_id != sandbox
        })
        .await
        .with_context(|| format!("{count} containers do not start"))
    }

    /// The moment the `count`th sandbox has ended, and with it all of its pod.
    pub async fn ended(&mut self, count: usize) -> Result<Instant> {
        let stopped = ContainerEventType::ContainerStoppedEvent;
        let end = self
            .until(count, |event, sandbox| {
                event.container_event_type() == stopped && event.container_id == sandbox
            })
            .await
            .with_context(|| format!("{count} sandboxes do not end"))?;
        Ok(end)
    }

    async fn until(
        &mut self,
        count: usize,
        matches: impl Fn(&v1::ContainerEventResponse, &str) -> bool,
    ) -> Result<Instant> {
        let deadline = Instant::now() + PATIENCE;
        let mut seen = BTreeSet::new();
        while seen.len() < count {
            let Ok(event) = tokio::time::timeout_at(deadline, self.events.next()).await else {
                let listed = self.runtime.list_containers(None).await?.len();
                bail!("{} seen; the runtime holds {listed} containers", seen.len());
            };
            let event = event.context("the runtime's events ended")??;
            let status = event.pod_sandbox_status.as_ref();
            if matches(&event, status.map_or("", |status| status.id.as_str())) {
                seen.insert(event.container_id);
            }
        }
        Ok(Instant::now())
    }
}
