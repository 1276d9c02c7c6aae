//! What a port that is forwarded costs, beside a connection to the pod itself.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use krablet_cri::{RuntimeClient, RuntimeService as _, StreamingService as _, v1};
use krablet_testbed::Bed;
use serde_json::{Value, json};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::ground;
use super::link::{self, Link};
use super::sight::PATIENCE;
use super::spdy::{self, Spdy};
use crate::node::rest;
use crate::options::SERVER;
use crate::pods;
use crate::report::Row;
use crate::stats::Samples;

/// Bytes that the pod's port gives to each who comes.
const BYTES: usize = 256 << 20;
const PORT: u16 = 8080;
const TRANSFERS: usize = 5;
const PROTOCOL: &str = "portforward.k8s.io";

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

/// How long it takes to have all that the giver has.
#[derive(Default)]
pub struct Transfers {
    direct: Samples,
    forwarded: Samples,
    runtime_alone: Samples,
    direct_by_link: Samples,
    forwarded_by_link: Samples,
}

/// Bytes a second, in millions.
fn speed(times: &Samples) -> f64 {
    BYTES as f64 / times.median() / 1e6
}

/// Through krablet; and through the kubelet, for comparison.
pub fn rows(ours: &Transfers, theirs: &Transfers) -> Vec<Row> {
    let row = |how: &str, direct: &Samples, forwarded: &Samples| {
        let name = format!("{} MB through a forwarded port, {how}", BYTES >> 20);
        let share = speed(direct) / speed(forwarded);
        Row::new(SERVER, name, share, "× direct").at_most(1.25)
    };
    let by_link = format!("from a host behind {}", link::SPEED);
    vec![
        row(&by_link, &ours.direct_by_link, &ours.forwarded_by_link).remark(format!(
            "{:.0} MB/s beside {:.0} MB/s of a connection to the pod; through the kubelet {:.0} MB/s",
            speed(&ours.forwarded_by_link),
            speed(&ours.direct_by_link),
            speed(&theirs.forwarded_by_link),
        )),
        row("on the node itself", &ours.direct, &ours.forwarded).remark(format!(
            "{:.0} MB/s beside {:.0} MB/s of a connection to the pod and {:.0} MB/s at the runtime's own door; \
             through the kubelet {:.0} MB/s",
            speed(&ours.forwarded),
            speed(&ours.direct),
            speed(&ours.runtime_alone),
            speed(&theirs.forwarded),
        )),
    ]
}

/// The first pod is a giver.
pub async fn transfers(bed: &Bed, link: &Link, port: u16) -> Result<Transfers> {
    let runtime = bed.runtime()?;
    let name = pods::name(0);
    let (sandbox, address) = sandbox(&runtime, &name).await?;
    let pod = SocketAddr::from((address, PORT));
    open(pod).await?;
    let path = &format!("/portForward/default/{name}");
    let by_tls = |stream| Spdy::by_tls(stream, path, PROTOCOL);
    let mut times = Transfers::default();
    for _ in 0..TRANSFERS {
        let begun = Instant::now();
        taken(TcpStream::connect(pod).await?).await?;
        times.direct.add_time(begun.elapsed());

        let wanted = v1::PortForwardRequest {
            pod_sandbox_id: sandbox.clone(),
            port: Vec::new(),
        };
        let url = runtime.port_forward(wanted).await?;
        let begun = Instant::now();
        forward(Spdy::at(&url, PROTOCOL).await?).await?;
        times.runtime_alone.add_time(begun.elapsed());

        let begun = Instant::now();
        forward(by_tls(spdy::plain(&link::NODE.to_string(), port).await?).await?).await?;
        times.forwarded.add_time(begun.elapsed());

        let begun = Instant::now();
        taken(link.connect(pod).await?).await?;
        times.direct_by_link.add_time(begun.elapsed());

        let begun = Instant::now();
        let door = SocketAddr::from((link::NODE, port));
        forward(by_tls(link.connect(door).await?).await?).await?;
        times.forwarded_by_link.add_time(begun.elapsed());
    }
    Ok(times)
}

async fn sandbox(runtime: &RuntimeClient, pod: &str) -> Result<(String, IpAddr)> {
    let sandboxes = runtime.list_pod_sandbox(None).await?;
    let found = sandboxes.into_iter().find(|s| {
        // Dead ones of earlier pods of that name may still be there.
        let ready = s.state == v1::PodSandboxState::SandboxReady as i32;
        ready && s.metadata.as_ref().is_some_and(|m| m.name == pod)
    });
    let id = found.context("the pod has no sandbox")?.id;
    let status = runtime.pod_sandbox_status(&id).await?;
    let address = status.network.context("the pod has no address")?.ip;
    Ok((id, address.parse()?))
}

/// Until the port is open; the container may not have got so far yet.
async fn open(pod: SocketAddr) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    let once = async || taken(TcpStream::connect(pod).await?).await;
    while let Err(why) = once().await {
        ensure!(Instant::now() < deadline, "{why:#}");
        rest(Duration::from_millis(100)).await;
    }
    Ok(())
}

async fn taken(mut stream: TcpStream) -> Result<()> {
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
