//! Many more pods than a node usually has, all of them from the API server: what the agent keeps of each of them is to be
//! little. The pods are real, on a real runtime; krablet is measured alone, since only its memory is of interest.

use std::time::Duration;

use anyhow::{Context, Result};

use super::agent::{Agent, Kind};
use super::course::{appear, disappear};
use super::ground::{self, Ground};
use super::sight::PodSight;
use crate::node::rest;
use crate::options::{CROWD, Options};
use crate::report::Row;

/// Freed pages are given back some time after the last change, and events trail behind a burst.
const SETTLE: Duration = Duration::from_secs(25);

pub async fn measure(options: &Options) -> Result<Vec<Row>> {
    let ground = Ground::up().await?;
    let pods = options.crowd;
    let mut agent = Agent::prepare(&ground, Kind::Krablet, pods)?;
    agent.start(&ground).await?;
    let sizes = sizes(&ground, &agent, pods).await;
    let [empty, full, emptied] = sizes.with_context(|| agent.log_tail())?;
    agent.stop(&ground).await?;
    ground.down().await?;
    let row = |name: String, value: f64| Row::new(CROWD, name, value, "MB");
    let each = (full - empty) * 1e3 / pods as f64;
    Ok(vec![
        row("resident memory of a node without pods".to_owned(), empty).at_most(16.0),
        row(
            format!("resident memory with {pods} pods of the API server"),
            full,
        )
        .at_most(26.0)
        .remark(format!("{each:.0} kB a pod")),
        row(format!("resident memory after {pods} pods"), emptied),
    ])
}

/// In megabytes: without pods, with all of them, and when they are gone.
async fn sizes(ground: &Ground, agent: &Agent, pods: usize) -> Result<[f64; 3]> {
    let size = || anyhow::Ok(agent.rss()? as f64 / 1e6);
    let node = agent.kind.name();
    let mut sight = PodSight::begin(&ground.kube, &ground.bed, node).await?;
    rest(SETTLE).await;
    let empty = size()?;
    let (took, _) = appear(ground, node, &mut sight, pods, ground::quiet).await?;
    eprintln!("{node}: {pods} pods Ready {took:.2?}");
    rest(SETTLE).await;
    let full = size()?;
    disappear(ground, &mut sight, pods).await?;
    rest(SETTLE).await;
    Ok([empty, full, size()?])
}
