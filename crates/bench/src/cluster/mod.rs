//! A node of a cluster: krablet and the upstream kubelet in turn on the same control plane and the
//! same runtime, beside the floor of CRI calls alone. Times are those at which a watch of the API
//! sees the change, since that is what the rest of the cluster goes by.

mod agent;
mod audit;
pub mod content;
mod course;
pub mod crowd;
mod followers;
mod ground;
mod link;
pub mod order;
mod ports;
mod proxy;
mod rows;
pub mod server;
mod sight;
mod spdy;
mod streams;

use anyhow::{Context, Result};
use serde_json::Value;

use self::agent::{Agent, Kind};
use self::course::Course;
use self::ground::Ground;
use crate::capture::{PodCalls, capture};
use crate::floor::Floor;
use crate::options::Options;
use crate::report::Row;
use crate::stats::Samples;
use crate::watch::Watch;

const MEASURE: &str = crate::options::CLUSTER;

pub async fn measure(options: &Options) -> Result<Vec<Row>> {
    let ground = Ground::up().await?;
    let calls = FloorCalls {
        quiet: captured(&ground, options, ground::quiet).await?,
        probed: captured(&ground, options, ground::probed).await?,
    };
    // The first pods ever pay for what is made once, such as the bridge.
    let few = calls.quiet.len().min(4);
    let (warm, _) = Floor::start(&ground.bed, &calls.quiet[..few]).await?;
    warm.stop().await?;
    let mut floor = FloorRuns::default();
    let mut krablet = Course::of(Agent::prepare(&ground, Kind::Krablet, options.pods)?);
    let mut kubelet = Course::of(Agent::prepare(&ground, Kind::Kubelet, options.pods)?);
    for round in 0..options.rounds {
        floor.round(&ground, &calls, options).await?;
        for course in [&mut krablet, &mut kubelet] {
            let taken = course.round(&ground, options, round == 0).await;
            taken.with_context(|| format!("round {} of {}", round + 1, course.name()))?;
        }
    }
    let rows = rows::rows(options, &floor, krablet.results(), kubelet.results());
    ground.down().await?;
    Ok(rows)
}

async fn captured(
    ground: &Ground,
    options: &Options,
    manifest: fn(usize) -> Value,
) -> Result<Vec<PodCalls>> {
    let manifests: Vec<_> = (0..options.pods).map(manifest).collect();
    capture(&ground.bed, &manifests).await
}

/// What the floor asks the runtime for.
struct FloorCalls {
    quiet: Vec<PodCalls>,
    /// A server takes longer to start than what does nothing.
    probed: Vec<PodCalls>,
}

/// The same pods by CRI calls alone.
#[derive(Default)]
pub struct FloorRuns {
    pub start: Samples,
    /// Of pods with a server in them.
    pub probed: Samples,
    pub stop: Samples,
    pub lone: Samples,
}

impl FloorRuns {
    async fn round(
        &mut self,
        ground: &Ground,
        calls: &FloorCalls,
        options: &Options,
    ) -> Result<()> {
        for _ in 0..lone_pods(options) {
            let (took, _) = floor(ground, &calls.quiet[..1]).await?;
            self.lone.add_time(took);
        }
        let (start, stop) = floor(ground, &calls.quiet).await?;
        let (probed, _) = floor(ground, &calls.probed).await?;
        eprintln!("floor: start {start:.2?}, stop {stop:.2?}, with servers {probed:.2?}");
        self.start.add_time(start);
        self.probed.add_time(probed);
        self.stop.add_time(stop);
        Ok(())
    }
}

type Times = (std::time::Duration, std::time::Duration);

/// Start and stop. Somebody listens to the events here too: telling them costs the runtime something.
async fn floor(ground: &Ground, calls: &[PodCalls]) -> Result<Times> {
    let mut watch = Watch::begin(&ground.bed).await?;
    let start = Floor::start(&ground.bed, calls);
    let (started, told) = tokio::join!(start, watch.running(calls.len()));
    let (floor, start) = started?;
    told?;
    let (stopped, told) = tokio::join!(floor.stop(), watch.ended(calls.len()));
    told?;
    Ok((start, stopped?))
}

/// In each round, so that all together are as many as asked for.
fn lone_pods(options: &Options) -> usize {
    options.lone_pods.div_ceil(options.rounds.max(1))
}
