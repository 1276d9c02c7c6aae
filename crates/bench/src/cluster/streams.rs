//! What a stream through the HTTPS port costs: a command beside the runtime's own, and a port beside a connection to the
//! pod itself.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use krablet_cri::{RuntimeClient, RuntimeService as _, StreamingService as _, v1};
use krablet_testbed::Bed;
use serde_json::{Value, json};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::ground;
use super::sight::PATIENCE;
use super::spdy::Spdy;
use crate::node::rest;
use crate::options::SERVER;
use crate::pods;
use crate::report::Row;
use crate::stats::Samples;

const COMMANDS: usize = 20;
/// Bytes that the pod's port gives to each who comes.
const BYTES: usize = 256 << 20;
const PORT: u16 = 8080;
const TRANSFERS: usize = 5;

/// `true` in a container, through the port and by the runtime alone.
pub async fn commands(bed: &Bed, port: u16) -> Result<Row> {
    let runtime = bed.runtime()?;
    let name = pods::name(0);
    let container = container(&runtime, &name).await?;
    let (mut ours, mut theirs) = (Samples::default(), Samples::default());
    for _ in 0..COMMANDS {
        let begun = Instant::now();
        let command = vec!["/bin/true".to_owned()];
        let done = runtime.exec_sync(&container, command, PATIENCE).await?;
        theirs.add_time(begun.elapsed());
        ensure!(done.exit_code == 0, "true has failed");
        let begun = Instant::now();
        exec(port, &name).await?;
        ours.add_time(begun.elapsed());
    }
    let more = (ours.median() - theirs.median()) * 1e3;
    let row = Row::new(SERVER, "exec true through the port", more, "ms more");
    Ok(row.at_most(10.0).remark(format!(
        "{:.0} ms beside {:.0} ms of the runtime's ExecSync",
        ours.median() * 1e3,
        theirs.median() * 1e3
    )))
}

async fn container(runtime: &RuntimeClient, pod: &str) -> Result<String> {
    let containers = runtime.list_containers(None).await?;
    let of_pod = |label: Option<&String>| label.is_some_and(|name| name == pod);
    let found = containers
        .into_iter()
        .find(|c| of_pod(c.labels.get("io.kubernetes.pod.name")));
    Ok(found.context("the pod has no container")?.id)
}

/// From a new connection to the exit code.
async fn exec(port: u16, pod: &str) -> Result<()> {
    let path = format!("/exec/default/{pod}/main?command=/bin/true&output=1");
    let mut spdy = Spdy::connect(port, &path, "v4.channel.k8s.io").await?;
    spdy.open(&[("streamtype", "error")]).await?;
    spdy.open(&[("streamtype", "stdout")]).await?;
    let mut verdict = Vec::new();
    while let Some(told) = spdy.next().await? {
        if told.stream == 0 {
            verdict.extend_from_slice(spdy.payload());
            // The runtime does not say that this was all.
            if told.last || serde_json::from_slice::<Value>(&verdict).is_ok() {
                break;
            }
        }
    }
    let verdict = String::from_utf8_lossy(&verdict);
    ensure!(verdict.contains("Success"), "true has failed: {verdict}");
    Ok(())
}

/// A pod with a port that gives everyone who comes the same great number of zeros.
pub fn giver(index: usize) -> Value {
    let mut pod = ground::quiet(index);
    let script = format!(
        "exec nc -ll -p {PORT} -e dd if=/dev/zero bs=64k count={} 2>/dev/null",
        BYTES >> 16
    );
    pod["spec"]["containers"][0]["command"] = json!(["/bin/sh", "-c", script]);
    pod["spec"]["containers"][0]["args"] = Value::Null;
    pod
}

/// The first pod is a giver.
pub async fn ports(bed: &Bed, port: u16) -> Result<Row> {
    let runtime = bed.runtime()?;
    let name = pods::name(0);
    let sandboxes = runtime.list_pod_sandbox(None).await?;
    let sandbox = sandboxes
        .into_iter()
        .find(|s| {
            // Dead ones of earlier pods of that name may still be there.
            let ready = s.state == v1::PodSandboxState::SandboxReady as i32;
            ready && s.metadata.as_ref().is_some_and(|m| m.name == name)
        })
        .context("the pod has no sandbox")?;
    let status = runtime.pod_sandbox_status(&sandbox.id).await?;
    let address = status.network.context("the pod has no address")?.ip;
    open(&address).await?;
    let path = format!("/portForward/default/{name}");
    let (mut direct, mut forwarded, mut runtime_alone) = <(Samples, Samples, Samples)>::default();
    for _ in 0..TRANSFERS {
        let begun = Instant::now();
        taken(&address).await?;
        direct.add_time(begun.elapsed());
        let wanted = v1::PortForwardRequest {
            pod_sandbox_id: sandbox.id.clone(),
            port: Vec::new(),
        };
        let url = runtime.port_forward(wanted).await?;
        let begun = Instant::now();
        forward(Spdy::at(&url, PROTOCOL).await?).await?;
        runtime_alone.add_time(begun.elapsed());
        let begun = Instant::now();
        forward(Spdy::connect(port, &path, PROTOCOL).await?).await?;
        forwarded.add_time(begun.elapsed());
    }
    let speed = |times: &Samples| BYTES as f64 / times.median() / 1e6;
    let share = speed(&direct) / speed(&forwarded);
    let row = Row::new(
        SERVER,
        format!("{} MB through a forwarded port", BYTES >> 20),
        share,
        "× direct",
    );
    Ok(row.at_most(1.25).remark(format!(
        "{:.0} MB/s beside {:.0} MB/s of a connection to the pod and {:.0} MB/s at the runtime's own door",
        speed(&forwarded),
        speed(&direct),
        speed(&runtime_alone)
    )))
}

const PROTOCOL: &str = "portforward.k8s.io";

/// Until the port is open; the container may not have got so far yet.
async fn open(address: &str) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while let Err(why) = taken(address).await {
        ensure!(Instant::now() < deadline, "{why:#}");
        rest(Duration::from_millis(100)).await;
    }
    Ok(())
}

async fn taken(address: &str) -> Result<()> {
    let mut stream = TcpStream::connect((address, PORT)).await?;
    let mut buffer = vec![0; 256 * 1024];
    let mut sum = 0;
    loop {
        match stream.read(&mut buffer).await? {
            0 => break,
            count => sum += count,
        }
    }
    ensure!(sum == BYTES, "{sum} bytes came");
    Ok(())
}

async fn forward(mut spdy: Spdy) -> Result<()> {
    let port = PORT.to_string();
    for kind in ["error", "data"] {
        let headers = [("streamtype", kind), ("port", &port), ("requestid", "0")];
        spdy.open(&headers).await?;
    }
    let mut sum = 0;
    while sum < BYTES {
        let told = spdy.next().await?;
        let told = told.with_context(|| format!("it ended after {sum} bytes"))?;
        match told.stream {
            0 => ensure!(
                told.bytes == 0,
                "{}",
                String::from_utf8_lossy(spdy.payload())
            ),
            _ => sum += told.bytes,
        }
        ensure!(
            !told.last || told.stream == 0 || sum >= BYTES,
            "{sum} bytes came"
        );
    }
    Ok(())
}
