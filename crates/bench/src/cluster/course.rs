//! What one agent goes through in a round, and what was measured.

use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;
use tokio::time::Instant;

use super::agent::{Agent, Used};
use super::ground::{self, Ground};
use super::lone_pods;
use super::proxy::Bytes;
use super::sight::{PodSight, Seen};
use crate::node::rest;
use crate::options::Options;
use crate::stats::Samples;

/// How long what a burst causes may trail behind it, such as events that wait for their turn.
const AFTERMATH: Duration = Duration::from_secs(10);
const QUIET: Duration = Duration::from_secs(60);

/// Of all rounds, in seconds where nothing else is said.
#[derive(Clone, Debug, Default)]
pub struct Results {
    pub start: Samples,
    pub lone: Samples,
    pub burst: Samples,
    /// From the last container's start to the last Ready.
    pub last: Samples,
    /// The same for every pod.
    pub delay: Samples,
    pub probed: Samples,
    pub deletion: Samples,
    pub cpu: Samples,
    pub requests: Samples,
    pub bytes: Samples,
    /// Which requests and bytes these were, in the last burst.
    pub kinds: String,
    pub ways: String,
    pub quiet: Option<Quiet>,
}

/// A node full of pods that do nothing.
#[derive(Clone, Debug)]
pub struct Quiet {
    /// As a share of one processor.
    pub cpu: f64,
    /// The same of the runtime.
    pub containerd: f64,
    pub rss: f64,
    /// Of a minute, as the bytes.
    pub requests: f64,
    pub bytes: f64,
    /// Which these were in all the time.
    pub kinds: String,
    pub ways: String,
}

pub struct Course {
    agent: Agent,
    results: Results,
}

impl Course {
    pub fn of(agent: Agent) -> Self {
        Self {
            agent,
            results: Results::default(),
        }
    }

    pub fn name(&self) -> &'static str {
        self.agent.kind.name()
    }

    pub fn results(&self) -> &Results {
        &self.results
    }

    /// From the start of the agent to its end.
    pub async fn round(&mut self, ground: &Ground, options: &Options, quiet: bool) -> Result<()> {
        let start = self.agent.start(ground).await?;
        self.results.start.add_time(start);
        let done = self.pods(ground, options, quiet).await;
        done.with_context(|| self.agent.log_tail())?;
        self.agent.stop(ground).await
    }

    async fn pods(&mut self, ground: &Ground, options: &Options, quiet: bool) -> Result<()> {
        let mut sight = PodSight::begin(&ground.kube, &ground.bed, self.name()).await?;
        for _ in 0..lone_pods(options) {
            let (took, _) = appear(ground, self.name(), &mut sight, 1, ground::quiet).await?;
            self.results.lone.add_time(took);
            disappear(ground, &mut sight, 1).await?;
            rest(Duration::from_secs(1)).await;
        }
        self.burst(ground, &mut sight, options.pods).await?;
        if quiet {
            let time = QUIET.min(Duration::from_secs(options.idle_seconds));
            self.results.quiet = Some(self.quiet(ground, time).await?);
        }
        let before = self.agent.used(ground)?;
        let deletion = disappear(ground, &mut sight, options.pods).await?;
        let requests = self.agent.used(ground)?.since(&before).requests;
        self.results.deletion.add_time(deletion);
        // The remains of the pods are cleared away, and the names free.
        rest(AFTERMATH).await;
        let appear = appear(
            ground,
            self.name(),
            &mut sight,
            options.pods,
            ground::probed,
        );
        let (probed, _) = appear.await.context("pods with probes")?;
        self.results.probed.add_time(probed);
        disappear(ground, &mut sight, options.pods).await?;
        eprintln!(
            "{}: deletion {deletion:.2?} ({} of each pod until then), with probes Ready {probed:.2?}",
            self.name(),
            requests.per_pod(options.pods)
        );
        Ok(())
    }

    async fn burst(&mut self, ground: &Ground, sight: &mut PodSight, pods: usize) -> Result<()> {
        let before = self.agent.used(ground)?;
        let (took, seen) = appear(ground, self.name(), sight, pods, ground::quiet).await?;
        let cpu = self.agent.used(ground)?.since(&before).cpu;
        rest(AFTERMATH).await;
        let used = self.agent.used(ground)?.since(&before);
        let last = seen.last_delay().unwrap_or_default();
        eprintln!(
            "{}: all Ready {took:.2?}, the last {last:.2?} after its container ran; {} requests",
            self.name(),
            used.requests.total(),
        );
        let results = &mut self.results;
        results.burst.add_time(took);
        results.last.add_time(last);
        results.delay.extend(seen.delays());
        results.cpu.add_time(cpu);
        results.requests.add(used.requests.total() as f64);
        results.bytes.add(used.bytes.total() as f64);
        results.kinds = used.requests.per_pod(pods);
        results.ways = ways(used.bytes);
        Ok(())
    }

    async fn quiet(&self, ground: &Ground, time: Duration) -> Result<Quiet> {
        let before = self.agent.used(ground)?;
        let containerd = ground.containerd_cpu()?;
        rest(time).await;
        let containerd = ground.containerd_cpu()?.saturating_sub(containerd);
        let Used {
            cpu,
            requests,
            bytes,
        } = self.agent.used(ground)?.since(&before);
        let minutes = time.as_secs_f64() / 60.0;
        Ok(Quiet {
            cpu: cpu.div_duration_f64(time),
            containerd: containerd.div_duration_f64(time),
            rss: self.agent.rss()? as f64,
            requests: requests.total() as f64 / minutes,
            bytes: bytes.total() as f64 / minutes,
            kinds: requests.per_pod(1),
            ways: ways(bytes),
        })
    }
}

/// Creates pods on the agent's node; the time until the last is ready.
pub async fn appear(
    ground: &Ground,
    node: &str,
    sight: &mut PodSight,
    count: usize,
    manifest: impl Fn(usize) -> Value,
) -> Result<(Duration, Seen)> {
    let pods = (0..count).map(|index| ground::bound(manifest(index), node));
    let pods: Vec<Value> = pods.collect();
    let begun = Instant::now();
    let ((), seen) = tokio::try_join!(ground.create(&pods), sight.ready(count))?;
    let last = seen.last().context("no pod")?;
    Ok((last - begun, seen))
}

fn ways(bytes: Bytes) -> String {
    format!(
        "{:.1} kB sent, {:.1} kB received",
        bytes.sent as f64 / 1e3,
        bytes.received as f64 / 1e3
    )
}

/// Deletes the pods; the time until the last is gone.
pub async fn disappear(ground: &Ground, sight: &mut PodSight, count: usize) -> Result<Duration> {
    let begun = Instant::now();
    let ((), last) = tokio::try_join!(ground.delete(count), sight.gone(count))?;
    Ok(last - begun)
}
