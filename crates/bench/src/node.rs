//! The node under measurement: a bed, and krablet on it.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use krablet_cri::v1::ImageSpec;
use krablet_cri::{ImageService, RuntimeService};
use krablet_testbed::{Bed, BedOptions, Krablet, KrabletOptions, cpu_time, free_port, images};
use serde_json::Value;
use tokio::time::Instant;

use crate::calls::Counter;
use crate::pods;
use crate::watch::Watch;

/// More than any of this takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(300);

pub struct Node {
    pub bed: Bed,
    pub calls: Counter,
    pub krablet: Krablet,
}

/// When something was reached.
#[derive(Clone, Copy, Debug)]
pub struct Reached {
    /// By what the runtime says.
    pub runtime: Duration,
    /// By what krablet shows.
    pub shown: Duration,
}

impl Node {
    /// A bed, and an agent on it that does not run yet.
    pub async fn up() -> Result<Self> {
        let calls = Counter::at(free_port()?);
        let bed = Bed::up(BedOptions {
            containerd_config: calls.containerd_config(),
            ..BedOptions::default()
        })
        .await?;
        wait_for_image(&bed).await?;
        let krablet = bed.prepare_krablet(KrabletOptions {
            program: Some(program()?),
            ..KrabletOptions::default()
        })?;
        Ok(Self {
            bed,
            calls,
            krablet,
        })
    }

    /// Starts krablet and lets it come to rest.
    pub async fn start_krablet(&mut self) -> Result<()> {
        self.krablet.start()?;
        self.krablet.wait_healthy().await?;
        rest(Duration::from_secs(3)).await;
        Ok(())
    }

    pub async fn stop_krablet(&mut self) -> Result<()> {
        self.krablet.terminate().await.map(drop)
    }

    /// Puts manifests in place all at once and waits until every container runs.
    pub async fn start_pods(&self, manifests: &[Value]) -> Result<Reached> {
        let containers = manifests.iter().map(|manifest| {
            let containers = manifest["spec"]["containers"].as_array();
            containers.map_or(0, Vec::len)
        });
        let containers = containers.sum();
        let ready = self.bed.dir().join("ready-manifests");
        fs::create_dir_all(&ready)?;
        for (index, manifest) in manifests.iter().enumerate() {
            fs::write(ready.join(file(index)), manifest.to_string())?;
        }
        let mut watch = Watch::begin(&self.bed).await?;
        let begun = Instant::now();
        for index in 0..manifests.len() {
            let place = self.krablet.manifests().join(file(index));
            fs::rename(ready.join(file(index)), place)?;
        }
        let runtime = watch.running(containers).await? - begun;
        let shown = self.shows(manifests.len(), "Running").await? - begun;
        Ok(Reached { runtime, shown })
    }

    /// Takes all manifests away and waits until nothing is alive.
    pub async fn stop_pods(&self) -> Result<Reached> {
        let files: Vec<PathBuf> = fs::read_dir(self.krablet.manifests())?
            .map(|entry| Ok(entry?.path()))
            .collect::<Result<_>>()?;
        let mut watch = Watch::begin(&self.bed).await?;
        let begun = Instant::now();
        for file in &files {
            fs::remove_file(file)?;
        }
        let runtime = watch.ended(files.len()).await? - begun;
        let shown = self.shows(0, "").await? - begun;
        Ok(Reached { runtime, shown })
    }

    /// Removes what stopped and is still listed; garbage collection may come first.
    pub async fn remove_dead(&self) -> Result<()> {
        remove_dead(&self.bed).await
    }

    /// Waits until krablet shows so many pods, all in that phase.
    async fn shows(&self, count: usize, phase: &str) -> Result<Instant> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let pods = self.krablet.pods().await?.items;
            let there = pods.iter().filter(|pod| {
                let status = pod.status.as_ref();
                status.and_then(|status| status.phase.as_deref()) == Some(phase)
            });
            let there = there.count();
            let now = Instant::now();
            if there == count && pods.len() == count {
                return Ok(now);
            }
            if now > deadline {
                bail!(
                    "{there} of {count} pods {phase}\n{}",
                    self.krablet.log_tail()
                );
            }
            rest(Duration::from_millis(10)).await;
        }
    }

    pub fn containerd_cpu(&self) -> Result<Duration> {
        cpu_time(self.bed.containerd_pid().context("containerd is gone")?)
    }

    pub async fn down(mut self) -> Result<()> {
        if self.krablet.is_running() {
            self.stop_krablet().await?;
        }
        self.bed.down().await
    }
}

/// Removes every sandbox with what is in it.
pub async fn remove_dead(bed: &Bed) -> Result<()> {
    let runtime = bed.runtime()?;
    for sandbox in runtime.list_pod_sandbox(None).await? {
        match runtime.remove_pod_sandbox(&sandbox.id).await {
            Err(error) if !error.is_not_found() => return Err(error.into()),
            _ => {}
        }
    }
    Ok(())
}

/// An imported image is known to the CRI a moment later.
pub async fn wait_for_image(bed: &Bed) -> Result<()> {
    let service = bed.images()?;
    let spec = ImageSpec {
        image: images::TOOL.to_owned(),
        ..ImageSpec::default()
    };
    let deadline = Instant::now() + PATIENCE;
    while service.image_status(spec.clone()).await?.is_none() {
        if Instant::now() > deadline {
            bail!("the runtime does not know {}", images::TOOL);
        }
        rest(Duration::from_millis(10)).await;
    }
    Ok(())
}

/// Lets time pass: measuring is one of the few reasons to.
pub async fn rest(time: Duration) {
    tokio::time::sleep(time).await;
}

fn file(index: usize) -> String {
    format!("{}.json", pods::name(index))
}

/// `$KRABLET_BIN`, else the release build: no other is worth measuring.
pub fn program() -> Result<PathBuf> {
    if let Some(program) = std::env::var_os("KRABLET_BIN").filter(|value| !value.is_empty()) {
        return Ok(std::path::absolute(program)?);
    }
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(
        || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../target"),
        PathBuf::from,
    );
    let program = target.join("release/krablet");
    if !program.exists() {
        bail!("no release build: `cargo build --release -p krablet`, or set KRABLET_BIN");
    }
    Ok(program)
}
