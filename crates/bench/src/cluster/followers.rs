//! Followers of logs: a crowd behind a container that writes much, and how long a line takes to who waits for it.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::StreamExt as _;
use futures::future::try_join_all;
use jiff::Timestamp;
use krablet_kube::{Api, Call, Verb};
use serde_json::{Value, json};
use tokio::time::interval;

use super::agent::{Agent, Kind};
use super::course::{appear, disappear};
use super::ground::{self, Ground};
use super::sight::PodSight;
use crate::options::SERVER;
use crate::pods;
use crate::report::Row;
use crate::stats::Samples;

const FOLLOWERS: usize = 50;
/// Lines of the log they follow, in as many seconds as there are ten thousand of them.
const LINES: usize = 100_000;
/// Lines that are waited for, ten a second.
const SINGLE: usize = 200;

/// The one pod of these measures, with a script that comes to its end.
fn writer(script: &str) -> impl Fn(usize) -> Value {
    move |index| {
        let mut pod = ground::quiet(index);
        pod["spec"]["restartPolicy"] = json!("Never");
        pod["spec"]["containers"][0]["command"] = json!(["/bin/sh", "-c", script]);
        pod["spec"]["containers"][0]["args"] = Value::Null;
        pod
    }
}

fn log() -> Call {
    let path = format!("/containerLogs/default/{}/main", pods::name(0));
    Call::new(Verb::Get, path).query("follow", "true")
}

/// A container that writes ten thousand lines a second, and a crowd that follows it from its beginning to its end.
pub async fn crowd(ground: &Ground, agent: &Agent, api: &Arc<dyn Api>) -> Result<Vec<Row>> {
    let script = format!(
        "i=0; while [ $i -lt {} ]; do /bin/busybox seq $((i * 10000 + 1)) $((i * 10000 + 10000)); i=$((i + 1)); sleep 1; done; sleep 5",
        LINES / 10_000
    );
    let mut sight = PodSight::begin(&ground.kube, &ground.bed, Kind::Krablet.name()).await?;
    let node = Kind::Krablet.name();
    appear(ground, node, &mut sight, 1, writer(&script)).await?;
    let crowd = try_join_all((0..FOLLOWERS).map(|_| follow(api.clone())));
    tokio::pin!(crowd);
    let mut most = 0;
    let mut glances = interval(Duration::from_millis(100));
    let lost = loop {
        tokio::select! {
            biased;
            lost = &mut crowd => break lost?,
            _ = glances.tick() => most = most.max(agent.rss()?),
        }
    };
    disappear(ground, &mut sight, 1).await?;
    let what = format!("{FOLLOWERS} followers of 10,000 lines a second");
    let lost = lost.iter().sum::<usize>() as f64;
    let lost = Row::new(SERVER, format!("{what}: lines lost"), lost, "lines");
    let memory = most as f64 / 1e6;
    let memory = Row::new(SERVER, format!("{what}: resident memory"), memory, "MB");
    Ok(vec![lost.at_most(0.0), memory.at_most(40.0)])
}

/// How many lines are missing, or not in their place.
async fn follow(api: Arc<dyn Api>) -> Result<usize> {
    let mut lines = api.watch(log()).await?;
    let mut next = 1;
    let mut wrong = 0;
    while let Some(line) = lines.next().await {
        let line = line?;
        let number: Option<usize> = std::str::from_utf8(&line)
            .ok()
            .and_then(|text| text.trim().parse().ok());
        match number {
            Some(number) if number == next => {}
            _ => wrong += 1,
        }
        next += 1;
    }
    Ok(wrong + (LINES + 1).saturating_sub(next))
}

/// From the moment the runtime has of a line to the follower that waits for it.
pub async fn delay(ground: &Ground, api: &Arc<dyn Api>) -> Result<Row> {
    let script = format!(
        "i=0; while [ $i -lt {SINGLE} ]; do echo $i; i=$((i + 1)); sleep 0.1; done; sleep 2"
    );
    let node = Kind::Krablet.name();
    let mut sight = PodSight::begin(&ground.kube, &ground.bed, node).await?;
    appear(ground, node, &mut sight, 1, writer(&script)).await?;
    let begun = now();
    let mut lines = api.watch(log().query("timestamps", "true")).await?;
    let mut delays = Samples::default();
    while let Some(line) = lines.next().await {
        let (heard, line) = (now(), line?);
        let text = String::from_utf8_lossy(&line);
        let moment = text.split(' ').next().unwrap_or_default();
        let written: Timestamp = moment.parse().with_context(|| format!("a line {text:?}"))?;
        // What was written before is not waited for.
        if written > begun {
            delays.add(heard.duration_since(written).as_secs_f64());
        }
    }
    disappear(ground, &mut sight, 1).await?;
    ensure!(delays.count() > SINGLE / 2, "too few lines were waited for");
    let row = Row::new(
        SERVER,
        "a line of a followed log, written to seen",
        delays.median() * 1e3,
        "ms",
    );
    Ok(row.at_most(100.0).remark(format!(
        "the slowest of {}: {:.0} ms",
        delays.count(),
        delays.greatest() * 1e3
    )))
}

#[allow(
    clippy::disallowed_methods,
    reason = "what is compared with it was written by the runtime"
)]
fn now() -> Timestamp {
    Timestamp::now()
}
