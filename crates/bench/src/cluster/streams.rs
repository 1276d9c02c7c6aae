//! What a command through the HTTPS port costs, beside the runtime's own.

use anyhow::{Context, Result, ensure};
use krablet_cri::{RuntimeClient, RuntimeService as _, StreamingService as _, v1};
use krablet_testbed::Bed;
use serde_json::Value;
use tokio::time::Instant;

use super::link;
use super::sight::PATIENCE;
use super::spdy::{self, Spdy};
use crate::options::SERVER;
use crate::pods;
use crate::report::Row;
use crate::stats::Samples;

const COMMANDS: usize = 20;
const COMMAND: &str = "/bin/true";
const PROTOCOL: &str = "v4.channel.k8s.io";

/// `true` in a container: through the port, and by the runtime alone, which can run it to its end in one call or stream it.
pub async fn commands(bed: &Bed, port: u16) -> Result<Row> {
    let runtime = bed.runtime()?;
    let name = pods::name(0);
    let container = container(&runtime, &name).await?;
    let (mut ours, mut theirs) = (Samples::default(), Samples::default());
    let mut streamed = Samples::default();
    for _ in 0..COMMANDS {
        let begun = Instant::now();
        let command = vec![COMMAND.to_owned()];
        let done = runtime.exec_sync(&container, command, PATIENCE).await?;
        theirs.add_time(begun.elapsed());
        ensure!(done.exit_code == 0, "true has failed");
        let begun = Instant::now();
        through_the_port(port, &name).await?;
        ours.add_time(begun.elapsed());
        let begun = Instant::now();
        at_the_runtime(&runtime, &container).await?;
        streamed.add_time(begun.elapsed());
    }
    let more = (ours.median() - theirs.median()) * 1e3;
    let row = Row::new(SERVER, "exec true through the port", more, "ms more");
    Ok(row.at_most(10.0).remark(format!(
        "{:.0} ms beside {:.0} ms of the runtime's ExecSync; {:.0} ms streamed at the runtime's own door",
        ours.median() * 1e3,
        theirs.median() * 1e3,
        streamed.median() * 1e3
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
async fn through_the_port(port: u16, pod: &str) -> Result<()> {
    let path = format!("/exec/default/{pod}/main?command={COMMAND}&output=1");
    let stream = spdy::plain(&link::NODE.to_string(), port).await?;
    verdict(Spdy::by_tls(stream, &path, PROTOCOL).await?).await
}

async fn at_the_runtime(runtime: &RuntimeClient, container: &str) -> Result<()> {
    let wanted = v1::ExecRequest {
        container_id: container.to_owned(),
        cmd: vec![COMMAND.to_owned()],
        stdout: true,
        ..v1::ExecRequest::default()
    };
    let url = runtime.exec(wanted).await?;
    verdict(Spdy::at(&url, PROTOCOL).await?).await
}

async fn verdict(mut spdy: Spdy) -> Result<()> {
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
