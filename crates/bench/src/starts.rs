//! All pods at once, to running and to the end, floor and krablet in turn.

use anyhow::Result;

use crate::capture::{PodCalls, capture};
use crate::floor::Floor;
use crate::node::Node;
use crate::options::Options;
use crate::pods;
use crate::report::Row;
use crate::stats::{Samples, paired_ratio};
use crate::watch::Watch;

const MEASURE: &str = "starts";

#[derive(Default)]
struct Runs {
    floor_start: Samples,
    floor_stop: Samples,
    start: Samples,
    shown: Samples,
    stop: Samples,
    gone: Samples,
    /// Processor time of the agent and of the runtime while pods start, in seconds.
    agent_cpu: Samples,
    containerd_cpu: Samples,
    floor_containerd_cpu: Samples,
    rows: Vec<Row>,
}

pub async fn measure(options: &Options) -> Result<Vec<Row>> {
    let mut node = Node::up().await?;
    let manifests: Vec<_> = (0..options.pods).map(pods::quiet).collect();
    let calls = capture(&node.bed, &manifests).await?;
    // The first pods ever pay for what is made once, such as the bridge.
    let (warm, _) = Floor::start(&node.bed, &calls[..calls.len().min(4)]).await?;
    warm.stop().await?;
    let mut runs = Runs::default();
    for round in 0..options.rounds {
        floor(&node, &calls, &mut runs).await?;
        krablet(&mut node, &manifests, &mut runs, round == 0).await?;
    }
    node.down().await?;
    Ok(rows(options.pods, runs))
}

async fn floor(node: &Node, calls: &[PodCalls], runs: &mut Runs) -> Result<()> {
    // Somebody listens to the events here too: telling them costs the runtime something.
    let mut watch = Watch::begin(&node.bed).await?;
    let before = node.containerd_cpu()?;
    let start = Floor::start(&node.bed, calls);
    let (started, told) = tokio::join!(start, watch.running(calls.len()));
    let (floor, start) = started?;
    told?;
    let cpu = node.containerd_cpu()? - before;
    let (stopped, told) = tokio::join!(floor.stop(), watch.ended(calls.len()));
    let stop = stopped?;
    told?;
    eprintln!("floor: start {start:.2?}, stop {stop:.2?}");
    runs.floor_start.add_time(start);
    runs.floor_stop.add_time(stop);
    runs.floor_containerd_cpu.add_time(cpu);
    Ok(())
}

async fn krablet(
    node: &mut Node,
    manifests: &[serde_json::Value],
    runs: &mut Runs,
    count_calls: bool,
) -> Result<()> {
    node.start_krablet().await?;
    let agent_before = node.krablet.cpu_time()?;
    let containerd_before = node.containerd_cpu()?;
    let calls_before = node.calls.read().await?;
    let start = node.start_pods(manifests).await?;
    runs.agent_cpu
        .add_time(node.krablet.cpu_time()? - agent_before);
    runs.containerd_cpu
        .add_time(node.containerd_cpu()? - containerd_before);
    let calls_started = node.calls.read().await?;
    // Looks that follow the start are not to fall into the stop.
    crate::node::rest(std::time::Duration::from_secs(3)).await;
    let calls_rested = node.calls.read().await?;
    let stop = node.stop_pods().await?;
    let calls_stopped = node.calls.read().await?;
    node.stop_krablet().await?;
    node.remove_dead().await?;
    eprintln!(
        "krablet: start {:.2?} (shown {:.2?}), stop {:.2?} (shown {:.2?})",
        start.runtime, start.shown, stop.runtime, stop.shown
    );
    runs.start.add_time(start.runtime);
    runs.shown.add_time(start.shown);
    runs.stop.add_time(stop.runtime);
    runs.gone.add_time(stop.shown);
    if count_calls {
        let pods = manifests.len();
        for (name, calls) in [
            (
                "CRI calls per pod to running (the floor: 3)",
                calls_started.since(&calls_before),
            ),
            (
                "CRI calls per pod after that",
                calls_rested.since(&calls_started),
            ),
            (
                "CRI calls per pod to its end (the floor: 2)",
                calls_stopped.since(&calls_rested),
            ),
        ] {
            let value = calls.total() as f64 / pods as f64;
            runs.rows
                .push(Row::new(MEASURE, name, value, "").remark(calls.per_pod(pods)));
        }
    }
    Ok(())
}

fn rows(pods: usize, runs: Runs) -> Vec<Row> {
    let row = |name: String, measured: &Samples, floor: &Samples| {
        let remark = format!(
            "{:.2} s ±{:.0} %, floor {:.2} s ±{:.0} %",
            measured.median(),
            100.0 * measured.spread(),
            floor.median(),
            100.0 * floor.spread(),
        );
        Row::new(MEASURE, name, paired_ratio(measured, floor), "× floor").remark(remark)
    };
    let mut rows = vec![
        row(
            format!("{pods} pods from manifests to running"),
            &runs.start,
            &runs.floor_start,
        )
        .at_most(1.15),
        row(
            format!("{pods} pods from manifests to shown as Running"),
            &runs.shown,
            &runs.floor_start,
        ),
        row(format!("stop of {pods} pods"), &runs.stop, &runs.floor_stop).at_most(1.15),
        row(
            format!("stop of {pods} pods, until none is shown"),
            &runs.gone,
            &runs.floor_stop,
        ),
        row(
            "processor time of containerd during the start".to_owned(),
            &runs.containerd_cpu,
            &runs.floor_containerd_cpu,
        ),
    ];
    let per_pod = 1000.0 * runs.agent_cpu.median() / pods as f64;
    rows.push(Row::new(
        MEASURE,
        "processor time of krablet per pod started",
        per_pod,
        "ms",
    ));
    rows.extend(runs.rows);
    rows
}
