//! The floor: the same pods through CRI calls alone, a few at a time.

use std::time::Duration;

use anyhow::Result;
use futures::stream::{self, StreamExt, TryStreamExt};
use krablet_cri::{RuntimeClient, RuntimeService};
use krablet_testbed::Bed;
use tokio::time::Instant;

use crate::capture::PodCalls;

/// How many pods are under way at a time: on two cores the runtime is fastest so.
pub const WIDTH: usize = 4;

/// The grace a pod has when its manifest says nothing.
const GRACE_SECONDS: i64 = 30;

/// Pods that run, by sandbox and container.
pub struct Floor {
    runtime: RuntimeClient,
    pods: Vec<(String, String)>,
}

impl Floor {
    /// Starts all, and tells how long the first call to the end of the last took.
    pub async fn start(bed: &Bed, pods: &[PodCalls]) -> Result<(Self, Duration)> {
        let runtime = bed.runtime()?;
        // The connection is there before the first call counts.
        runtime.version().await?;
        let begun = Instant::now();
        let started = stream::iter(pods.iter().cloned())
            .map(|pod| start(&runtime, pod))
            .buffer_unordered(WIDTH)
            .try_collect()
            .await?;
        let took = begun.elapsed();
        Ok((
            Self {
                runtime,
                pods: started,
            },
            took,
        ))
    }

    /// Stops all, and tells how long that took; then removes what is left of them.
    pub async fn stop(self) -> Result<Duration> {
        let begun = Instant::now();
        let runtime = &self.runtime;
        self.each(async |sandbox, container| {
            runtime.stop_container(container, GRACE_SECONDS).await?;
            runtime.stop_pod_sandbox(sandbox).await
        })
        .await?;
        let took = begun.elapsed();
        self.each(async |sandbox, container| {
            runtime.remove_container(container).await?;
            runtime.remove_pod_sandbox(sandbox).await
        })
        .await?;
        Ok(took)
    }

    async fn each(&self, work: impl AsyncFn(&str, &str) -> krablet_cri::Result<()>) -> Result<()> {
        let work = &work;
        let all = stream::iter(&self.pods)
            .map(|(sandbox, container)| async move { work(sandbox, container).await })
            .buffer_unordered(WIDTH);
        Ok(all.try_collect::<()>().await?)
    }
}

async fn start(runtime: &RuntimeClient, pod: PodCalls) -> krablet_cri::Result<(String, String)> {
    let sandbox = runtime.run_pod_sandbox(pod.sandbox.clone(), "").await?;
    let container = runtime
        .create_container(&sandbox, pod.container, pod.sandbox)
        .await?;
    runtime.start_container(&container).await?;
    Ok((sandbox, container))
}
