//! A node of a cluster: krablet and the upstream kubelet in turn on the same control plane and the
//! same runtime, beside the floor of CRI calls alone. Times are those at which a watch of the API
//! sees the change, since that is what the rest of the cluster goes by.

mod agent;
mod audit;
pub mod content;
mod course;
mod ground;
mod proxy;
mod rows;
pub mod server;
mod sight;
mod spdy;
mod streams;

use anyhow::{Context, Result};

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
    let manifests: Vec<_> = (0..options.pods).map(ground::quiet).collect();
    let calls = capture(&ground.bed, &manifests).await?;
    // The first pods ever pay for what is made once, such as the bridge.
    let (warm, _) = Floor::start(&ground.bed, &calls[..calls.len().min(4)]).await?;
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

/// The same pods by CRI calls alone.
#[derive(Default)]
pub struct FloorRuns {
    pub start: Samples,
    pub stop: Samples,
    pub lone: Samples,
}

impl FloorRuns {
    async fn round(
        &mut self,
        ground: &Ground,
        calls: &[PodCalls],
        options: &Options,
    ) -> Result<()> {
        for _ in 0..lone_pods(options) {
            let (took, _) = floor(ground, &calls[..1]).await?;
            self.lone.add_time(took);
        }
        let (start, stop) = floor(ground, calls).await?;
        eprintln!("floor: start {start:.2?}, stop {stop:.2?}");
        self.start.add_time(start);
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
