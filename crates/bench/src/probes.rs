//! Three HTTP probes a second for each of 110 pods: what they cost the agent.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Result;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::node::{Node, rest};
use crate::options::Options;
use crate::pods;
use crate::report::Row;

const MEASURE: &str = "probes";
const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok";

pub async fn measure(options: &Options) -> Result<Vec<Row>> {
    let time = Duration::from_secs(options.idle_seconds.min(60));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let port = listener.local_addr()?.port();
    let served = Arc::new(AtomicU64::new(0));
    let mut server = JoinSet::new();
    server.spawn(serve(listener, served.clone()));
    let mut node = Node::up().await?;
    // One container and two by turns: three probes a second for a pod on average.
    let manifests: Vec<_> = (0..options.pods)
        .map(|index| pods::probed(index, 1 + index % 2, port))
        .collect();
    node.start_krablet().await?;
    node.start_pods(&manifests).await?;
    rest(Duration::from_secs(5)).await;
    let before = (node.krablet.cpu_time()?, served.load(Ordering::Relaxed));
    rest(time).await;
    let cpu = node.krablet.cpu_time()? - before.0;
    let probes = served.load(Ordering::Relaxed) - before.1;
    node.down().await?;
    let rate = probes as f64 / time.as_secs_f64();
    let share = 100.0 * cpu.as_secs_f64() / time.as_secs_f64();
    let each = 1e6 * cpu.as_secs_f64() / probes.max(1) as f64;
    Ok(vec![
        Row::new(
            MEASURE,
            format!("krablet at {rate:.0} HTTP probes a second"),
            share,
            "% of a core",
        )
        .at_most(10.0)
        .remark(format!("{each:.0} µs a probe")),
    ])
}

/// The cheapest server there is: one read, one answer, next.
async fn serve(listener: TcpListener, served: Arc<AtomicU64>) {
    let mut answers = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        while answers.try_join_next().is_some() {}
        answers.spawn(answer(stream, served.clone()));
    }
}

async fn answer(mut stream: TcpStream, served: Arc<AtomicU64>) {
    let mut request = [0; 2048];
    if stream.read(&mut request).await.is_ok_and(|read| read > 0)
        && stream.write_all(ANSWER).await.is_ok()
    {
        served.fetch_add(1, Ordering::Relaxed);
    }
    // Wait for the other side to close, so that nobody gets a reset.
    let _ = tokio::time::timeout(Duration::from_secs(1), stream.read(&mut request)).await;
}
