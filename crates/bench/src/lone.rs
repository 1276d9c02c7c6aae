//! One pod on an empty node.

use anyhow::Result;

use crate::capture::capture;
use crate::floor::Floor;
use crate::node::Node;
use crate::options::Options;
use crate::pods;
use crate::report::Row;
use crate::stats::{Samples, paired_ratio};
use crate::watch::Watch;

const MEASURE: &str = "lone";

pub async fn measure(options: &Options) -> Result<Vec<Row>> {
    let mut node = Node::up().await?;
    let manifests = [pods::quiet(0)];
    let calls = capture(&node.bed, &manifests).await?;
    Floor::start(&node.bed, &calls).await?.0.stop().await?;
    let (mut floor, mut start, mut shown) = <(Samples, Samples, Samples)>::default();
    for _ in 0..options.lone_rounds {
        // Somebody listens to the runtime's events in both: telling them costs it something.
        let mut watch = Watch::begin(&node.bed).await?;
        let (pod, told) = tokio::join!(Floor::start(&node.bed, &calls), watch.running(1));
        let (pod, took) = pod?;
        told?;
        pod.stop().await?;
        floor.add_time(took);
        // The agent would take the floor's pod for an orphan, so it runs for its own pod only.
        node.start_krablet().await?;
        let reached = node.start_pods(&manifests).await?;
        node.stop_pods().await?;
        node.stop_krablet().await?;
        node.remove_dead().await?;
        start.add_time(reached.runtime);
        shown.add_time(reached.shown);
    }
    node.down().await?;
    let row = |name: &str, measured: &Samples| {
        let remark = format!(
            "{:.0} ms ±{:.0} %, floor {:.0} ms ±{:.0} %",
            1000.0 * measured.median(),
            100.0 * measured.spread(),
            1000.0 * floor.median(),
            100.0 * floor.spread(),
        );
        Row::new(MEASURE, name, paired_ratio(measured, &floor), "× floor").remark(remark)
    };
    Ok(vec![
        row("a lone pod from manifest to running", &start).at_most(1.25),
        row("a lone pod from manifest to shown as Running", &shown),
    ])
}
