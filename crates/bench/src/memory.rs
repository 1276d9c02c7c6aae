//! Resident memory: empty, full, and after all pods came and went three times.

use std::time::Duration;

use anyhow::Result;

use crate::node::{Node, rest};
use crate::options::Options;
use crate::pods;
use crate::report::Row;

const MEASURE: &str = "memory";
const CHURN: usize = 3;
/// Freed pages are given back some time after.
const SETTLE: Duration = Duration::from_secs(15);

pub async fn measure(options: &Options) -> Result<Vec<Row>> {
    let mut node = Node::up().await?;
    let manifests: Vec<_> = (0..options.pods).map(pods::quiet).collect();
    node.start_krablet().await?;
    rest(SETTLE).await;
    let empty = megabytes(&node)?;
    node.start_pods(&manifests).await?;
    rest(SETTLE).await;
    let full = megabytes(&node)?;
    node.stop_pods().await?;
    node.remove_dead().await?;
    for _ in 1..CHURN {
        node.start_pods(&manifests).await?;
        node.stop_pods().await?;
        node.remove_dead().await?;
    }
    rest(SETTLE).await;
    let emptied = megabytes(&node)?;
    node.start_pods(&manifests).await?;
    rest(SETTLE).await;
    let again = megabytes(&node)?;
    node.down().await?;
    let pods = options.pods;
    let row = |name: String, value: f64| Row::new(MEASURE, name, value, "MB");
    Ok(vec![
        row("resident memory, no pods".to_owned(), empty).at_most(16.0),
        row(format!("resident memory, {pods} pods"), full).at_most(26.0),
        row(
            format!("resident memory, {pods} pods come and gone {CHURN} times"),
            emptied,
        ),
        row(
            format!("resident memory, {pods} pods again after that"),
            again,
        )
        .at_most(26.0),
    ])
}

fn megabytes(node: &Node) -> Result<f64> {
    Ok(node.krablet.rss()? as f64 / 1e6)
}
