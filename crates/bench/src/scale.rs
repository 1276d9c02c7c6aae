//! Many pods in one agent, over the simulated runtime: what each more of them takes of memory.
//!
//! Measured in a process of its own with the agent's allocator and settings. The simulated runtime
//! lives in the same process; what it grows by for the same pods is measured in another and told.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use krablet_agent::{Agent, AgentConfig, AgentDeps, AgentHandle, fake};
use krablet_linux::fake::MemoryFiles;
use krablet_linux::{EntryKind, SystemClock, WallClock};
use krablet_metrics::RuntimeMetrics;
use krablet_pod::api::Pod;
use krablet_pod::marks::PodSource;
use krablet_runtime::{PodRuntime, RuntimeDeps};
use krablet_sim::{SimNet, SimOptions, SimRuntime};
use krablet_sources::SourceSet;
use krablet_status::Standing;
use krablet_testbed::{images, rss};
use tokio::process::Command;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::capture::{NODE, decode, runtime_config, start};
use crate::node::rest;
use crate::options::Options;
use crate::pods;
use crate::report::Row;

const MEASURE: &str = "scale";
/// First argument of the process that does the measuring.
pub const CHILD: &str = "--measure-scale";
const HOME: &str = "/node";
const PATIENCE: Duration = Duration::from_secs(300);
/// Freed pages are given back some time after.
const SETTLE: Duration = Duration::from_secs(4);

pub async fn measure(options: &Options) -> Result<Vec<Row>> {
    let pods = options.simulated;
    let both = in_process(pods, "agent").await?;
    let world = in_process(pods, "world").await?;
    Ok(vec![
        Row::new(
            MEASURE,
            format!("memory per pod, {pods} simulated pods"),
            both.growth() / 1000.0 / pods as f64,
            "kB",
        )
        .remark(format!(
            "from {:.1} to {:.1} MB, the simulated runtime included, which alone grows by {:.1} MB",
            both.empty / 1e6,
            both.full / 1e6,
            world.growth() / 1e6,
        )),
    ])
}

/// Resident bytes without pods, and with all of them.
struct Sizes {
    empty: f64,
    full: f64,
}

impl Sizes {
    fn growth(&self) -> f64 {
        self.full - self.empty
    }
}

async fn in_process(pods: usize, what: &str) -> Result<Sizes> {
    let output = Command::new(std::env::current_exe()?)
        .args([CHILD, &pods.to_string(), what])
        .kill_on_drop(true)
        .output()
        .await?;
    let text = String::from_utf8_lossy(&output.stdout);
    let mut numbers = text.split_whitespace().map(str::parse::<f64>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(empty)), Some(Ok(full))) => Ok(Sizes { empty, full }),
        _ => {
            let why = String::from_utf8_lossy(&output.stderr);
            bail!(
                "the measuring process ended with {}: {text}{why}",
                output.status
            )
        }
    }
}

/// In the process of its own: prints the two sizes, of the agent with the simulated runtime or of
/// that runtime alone.
pub async fn child(pods: usize, with_agent: bool) -> Result<()> {
    let world = World::new()?;
    let (empty, full) = match with_agent {
        true => agent(&world, pods).await?,
        false => runtime_alone(&world, pods).await?,
    };
    println!("{empty} {full}");
    Ok(())
}

async fn agent(world: &World, pods: usize) -> Result<(u64, u64)> {
    let (agent, handle) = Agent::build(config(), world.deps());
    let mut tasks = JoinSet::new();
    tasks.spawn(agent.run());
    send(&handle, Vec::new()).await?;
    rest(SETTLE).await;
    let empty = rss(std::process::id())?;
    let wanted = (0..pods).map(pod).collect::<Result<_>>()?;
    send(&handle, wanted).await?;
    running(&handle, pods).await?;
    rest(SETTLE).await;
    Ok((empty, rss(std::process::id())?))
}

/// The same pods put into the runtime one by one, remembered by nobody else.
async fn runtime_alone(world: &World, pods: usize) -> Result<(u64, u64)> {
    let deps = world.deps();
    let runtime = PodRuntime::build(
        runtime_config(Path::new(HOME)),
        RuntimeDeps {
            runtime: deps.runtime,
            images: deps.images,
            files: deps.files,
            mounts: deps.mounts,
            net: deps.net,
            recorder: deps.recorder,
            clock: deps.clock,
            objects: std::sync::Arc::new(krablet_objects::Nowhere),
            services: std::sync::Arc::new(krablet_objects::Nowhere),
            keychain: Arc::default(),
            pull_records: None,
            classes: krablet_runtime::RuntimeClasses::default(),
            metrics: RuntimeMetrics::default(),
            epoch: Instant::now(),
        },
    );
    rest(SETTLE).await;
    let empty = rss(std::process::id())?;
    for index in 0..pods {
        start(&runtime, &pod(index)?, "/kubepods").await?;
    }
    rest(SETTLE).await;
    Ok((empty, rss(std::process::id())?))
}

fn pod(index: usize) -> Result<Arc<Pod>> {
    decode(index, &pods::quiet(index))
}

async fn send(handle: &AgentHandle, pods: Vec<Arc<Pod>>) -> Result<()> {
    let set = SourceSet {
        source: PodSource::File,
        pods,
        restored: false,
    };
    handle.sets.send(set).await.context("the agent has ended")
}

fn runs(standing: &Standing) -> bool {
    standing.status.phase.as_deref() == Some("Running")
}

async fn running(handle: &AgentHandle, pods: usize) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    let mut changes = handle.status.changes();
    loop {
        let all = handle.status.all();
        let running = all.values().filter(|standing| runs(standing)).count();
        if running == pods {
            return Ok(());
        }
        if tokio::time::timeout_at(deadline, changes.changed())
            .await
            .is_err()
        {
            let status = |s: &Standing| serde_json::to_string(&*s.status).unwrap_or_default();
            let other = all.values().find(|standing| !runs(standing)).map(status);
            let other = other.unwrap_or_default();
            bail!("{running} of {pods} simulated pods run; another one: {other}");
        }
    }
}

/// The simulated node.
struct World {
    runtime: SimRuntime,
    files: MemoryFiles,
}

impl World {
    fn new() -> Result<Self> {
        let clock: Arc<dyn WallClock> = Arc::new(SystemClock);
        let files = MemoryFiles::new(clock.clone());
        for dir in ["pod-logs", "root/pods"] {
            files.put(&Path::new(HOME).join(dir), EntryKind::Directory)?;
        }
        for file in ["/etc/hosts", "/etc/resolv.conf"] {
            files.put_file(Path::new(file), b"")?;
        }
        let runtime = SimRuntime::new(SimOptions::calm(clock));
        runtime.load_image(images::TOOL);
        Ok(Self { runtime, files })
    }

    fn deps(&self) -> AgentDeps {
        let runtime = Arc::new(self.runtime.clone());
        fake::deps(
            NODE,
            runtime.clone(),
            runtime,
            &self.files,
            Arc::new(SimNet::new(Arc::new(|_| true))),
            Arc::new(SystemClock),
        )
    }
}

fn config() -> AgentConfig {
    AgentConfig {
        runtime_name: "sim".to_owned(),
        ..AgentConfig::new(runtime_config(Path::new(HOME)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_simulated_pods_run() {
        let world = World::new().unwrap();
        agent(&world, 3).await.unwrap();
        runtime_alone(&World::new().unwrap(), 3).await.unwrap();
    }
}
