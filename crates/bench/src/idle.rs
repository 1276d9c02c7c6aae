//! What a node full of quiet pods costs: the agent itself, and what it makes the runtime do.
//!
//! containerd is never quite idle: it gathers statistics of its containers whoever asks, and that
//! sways by more than krablet may cause. So the calls krablet makes are counted, and what one of
//! them costs is measured by making many; the plain difference is told beside it.

use std::time::Duration;

use anyhow::Result;
use krablet_cri::RuntimeService;
use tokio::time::Instant;

use crate::node::{Node, rest};
use crate::options::Options;
use crate::pods;
use crate::report::Row;

const MEASURE: &str = "idle";
/// Enough calls to stand out from what the runtime does by itself.
const LISTS: u32 = 200;

pub async fn measure(options: &Options) -> Result<Vec<Row>> {
    let time = Duration::from_secs(options.idle_seconds);
    let mut node = Node::up().await?;
    let manifests: Vec<_> = (0..options.pods).map(pods::quiet).collect();
    node.start_krablet().await?;
    node.start_pods(&manifests).await?;
    // What follows a start is no rest yet.
    rest(Duration::from_secs(10)).await;
    let calls = node.calls.read().await?;
    let agent = node.krablet.cpu_time()?;
    let with_agent = containerd_share(&node, time).await?;
    let agent = (node.krablet.cpu_time()? - agent).as_secs_f64() / time.as_secs_f64();
    let calls = node.calls.read().await?.since(&calls);
    node.stop_krablet().await?;
    rest(Duration::from_secs(2)).await;
    let without_agent = containerd_share(&node, time).await?;
    let list = cost_of_a_list(&node, without_agent).await?;
    node.down().await?;
    let caused = calls.total() as f64 * list / time.as_secs_f64();
    let per_minute = calls.total() as f64 * 60.0 / time.as_secs_f64();
    let share = |name: String, value: f64| Row::new(MEASURE, name, 100.0 * value, "% of a core");
    let pods = options.pods;
    Ok(vec![
        share(format!("krablet with {pods} quiet pods"), agent).at_most(0.5),
        share("what its calls cost containerd".to_owned(), caused)
            .at_most(0.3)
            .remark(format!(
                "{:.1} ms a call; containerd in all: {:.2} % with krablet, {:.2} % without",
                1000.0 * list,
                100.0 * with_agent,
                100.0 * without_agent,
            )),
        Row::new(MEASURE, "CRI calls per minute", per_minute, "").remark(calls.per_pod(1)),
    ])
}

/// The share of a core containerd uses while nobody but the agent asks it anything.
async fn containerd_share(node: &Node, time: Duration) -> Result<f64> {
    let before = node.containerd_cpu()?;
    rest(time).await;
    let used = node.containerd_cpu()? - before;
    Ok(used.as_secs_f64() / time.as_secs_f64())
}

/// Seconds of processor time a full list takes of containerd, beyond the share it uses anyway.
async fn cost_of_a_list(node: &Node, anyway: f64) -> Result<f64> {
    let runtime = node.bed.runtime()?;
    let before = node.containerd_cpu()?;
    let begun = Instant::now();
    for _ in 0..LISTS {
        runtime.list_pod_sandbox(None).await?;
        runtime.list_containers(None).await?;
    }
    let anyway = anyway * begun.elapsed().as_secs_f64();
    let used = (node.containerd_cpu()? - before).as_secs_f64();
    Ok((used - anyway).max(0.0) / f64::from(2 * LISTS))
}
