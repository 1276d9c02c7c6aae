//! What a node's HTTPS port costs: statistics and metrics of a full node asked for again and again, beside the upstream
//! kubelet; commands in a container beside the runtime's own; a forwarded port; and a crowd that follows one log.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use krablet_kube::{Api, Call, Verb};
use krablet_testbed::free_port;
use serde_json::json;
use tokio::time::{Instant, interval};

use super::agent::{Agent, Kind};
use super::course::{appear, disappear};
use super::followers;
use super::ground::{self, Ground};
use super::link::{self, Link};
use super::ports::{self, Transfers};
use super::sight::PodSight;
use super::streams;
use crate::node::rest;
use crate::options::{Options, SERVER};
use crate::report::Row;
use crate::stats::Samples;

const SUMMARY: &str = "/stats/summary";
const CADVISOR: &str = "/metrics/cadvisor";
/// What a monitoring system asks of a node.
pub const ENDPOINTS: [&str; 5] = [
    SUMMARY,
    CADVISOR,
    "/metrics",
    "/metrics/resource",
    "/metrics/probes",
];
/// Longer than anybody keeps an answer for the next who asks.
const PAUSE: Duration = Duration::from_secs(4);
/// What an answer leaves behind is done so soon after it.
const SETTLE: Duration = Duration::from_millis(250);
/// Seconds of a processor below which nothing can be told apart.
const LEAST: f64 = 1e-4;
/// As monitoring systems do.
const CADENCE: Duration = Duration::from_secs(15);

pub async fn measure(options: &Options) -> Result<Vec<Row>> {
    let ground = Ground::up().await?;
    let link = Link::up()?;
    let krablet = of_agent(&ground, &link, options, Kind::Krablet).await?;
    let kubelet = of_agent(&ground, &link, options, Kind::Kubelet).await?;
    let collecting = kubelet.summary.between - without_collecting(&ground, options).await?;
    ground.down().await?;
    let mut rows = Vec::new();
    for (path, ours, theirs) in [
        (SUMMARY, &krablet.summary, &kubelet.summary),
        (CADVISOR, &krablet.cadvisor, &kubelet.cadvisor),
    ] {
        let pods = options.pods;
        let answer = Row::new(
            SERVER,
            format!("processor time of a {path} with {pods} pods, the answer alone"),
            ours.cpu / theirs.cpu,
            "× kubelet",
        );
        rows.push(answer.remark(format!(
            "{:.1} ms beside {:.1} ms",
            ours.cpu * 1e3,
            theirs.cpu * 1e3
        )));
        rows.push(collected_row(path, options, ours, theirs, collecting));
        let (slowest, their_slowest) = (ours.times.greatest(), theirs.times.greatest());
        let latency = Row::new(
            SERVER,
            format!("the slowest {path} with {pods} pods"),
            slowest / their_slowest.max(1e-9),
            "× kubelet",
        );
        rows.push(latency.at_most(0.5).remark(format!(
            "{:.0} ms beside {:.0} ms, p50 {:.0} ms beside {:.0} ms",
            slowest * 1e3,
            their_slowest * 1e3,
            ours.times.median() * 1e3,
            theirs.times.median() * 1e3
        )));
    }
    rows.extend(monitored_rows(
        options,
        &krablet.monitored,
        &kubelet.monitored,
    ));
    rows.extend(krablet.own);
    rows.extend(ports::rows(&krablet.transfers, &kubelet.transfers));
    Ok(rows)
}

/// An answer of the kubelet's is made of what it has collected since the one before, krablet's of what it reads for it: to
/// be compared, each has to bear all that its answers cost.
fn collected_row(path: &str, options: &Options, ours: &Asked, theirs: &Asked, share: f64) -> Row {
    let collecting = share.max(0.0) * CADENCE.as_secs_f64();
    let row = Row::new(
        SERVER,
        format!(
            "processor time of a {path} with {} pods, and of what is collected for it in {} s",
            options.pods,
            CADENCE.as_secs()
        ),
        ours.cpu / (theirs.cpu + collecting),
        "× kubelet",
    );
    row.at_most(0.2).remark(format!(
        "{:.1} ms, nothing collected, beside {:.1} ms and {:.0} ms of collecting ({:.2} % of a core)",
        ours.cpu * 1e3,
        theirs.cpu * 1e3,
        collecting * 1e3,
        share * 100.0
    ))
}

fn monitored_rows(options: &Options, ours: &Monitored, theirs: &Monitored) -> Vec<Row> {
    let pods = options.pods;
    let what = format!(
        "all endpoints every {} s with {pods} pods",
        CADENCE.as_secs()
    );
    let row = |name: &str, value, unit| Row::new(SERVER, format!("{name}, {what}"), value, unit);
    let beside = |of: f64, unit: &str| format!("the kubelet {of:.2} {unit}");
    vec![
        row("processor", ours.share * 100.0, "%")
            .at_most(1.0)
            .remark(beside(theirs.share * 100.0, "%")),
        row("processor", ours.share / theirs.share, "× kubelet").at_most(0.2),
        row("resident memory", ours.memory, "MB")
            .at_most(26.0)
            .remark(beside(theirs.memory, "MB")),
    ]
}

struct Results {
    summary: Asked,
    cadvisor: Asked,
    monitored: Monitored,
    transfers: Transfers,
    own: Vec<Row>,
}

/// An agent that a monitoring system watches.
struct Monitored {
    /// Of a processor, whatever for.
    share: f64,
    /// Resident, in megabytes.
    memory: f64,
}

/// One path, asked for many times.
struct Asked {
    /// Seconds of the agent's for one answer, beyond what it uses anyway.
    cpu: f64,
    /// The share of a processor it uses anyway.
    between: f64,
    times: Samples,
}

/// An agent, and a way to its HTTPS port.
struct Door<'a> {
    ground: &'a Ground,
    agent: &'a Agent,
    api: Arc<dyn Api>,
    port: u16,
}

async fn of_agent(ground: &Ground, link: &Link, options: &Options, kind: Kind) -> Result<Results> {
    let port = free_port()?;
    let place = json!({"address": link::NODE, "port": port});
    let mut agent = Agent::prepare_with(ground, kind, options.pods, place, &[])?;
    agent.start(ground).await?;
    let mut sight = PodSight::begin(&ground.kube, &ground.bed, kind.name()).await?;
    appear(ground, kind.name(), &mut sight, options.pods, ground::quiet).await?;
    rest(Duration::from_secs(15)).await;
    let door = Door {
        ground,
        agent: &agent,
        api: api(&ground.bed.dir().join(kind.name()), port)?,
        port,
    };
    let asked = door.asked(options, kind).await;
    let mut results = asked.with_context(|| agent.log_tail())?;
    disappear(ground, &mut sight, options.pods).await?;
    let more = async {
        results.transfers = transfers(ground, link, kind, port).await?;
        if kind == Kind::Krablet {
            let api = api(&ground.bed.dir().join(kind.name()), port)?;
            results
                .own
                .extend(followers::crowd(ground, &agent, &api).await?);
            results.own.push(followers::delay(ground, &api).await?);
        }
        anyhow::Ok(())
    };
    more.await.with_context(|| agent.log_tail())?;
    agent.stop(ground).await?;
    Ok(results)
}

/// The share of a processor that the kubelet uses with all pods quiet when it collects no statistics.
async fn without_collecting(ground: &Ground, options: &Options) -> Result<f64> {
    let arguments = ["--housekeeping-interval=1h"];
    let (kind, pods) = (Kind::Kubelet, options.pods);
    let mut agent = Agent::prepare_with(ground, kind, pods, json!({}), &arguments)?;
    agent.start(ground).await?;
    let share = async {
        let mut sight = PodSight::begin(&ground.kube, &ground.bed, kind.name()).await?;
        appear(ground, kind.name(), &mut sight, pods, ground::quiet).await?;
        rest(Duration::from_secs(15)).await;
        let begun = (Instant::now(), agent.used(ground)?.cpu);
        rest(Duration::from_secs(options.idle_seconds)).await;
        let used = agent.used(ground)?.cpu.saturating_sub(begun.1);
        let share = used.div_duration_f64(begun.0.elapsed());
        disappear(ground, &mut sight, pods).await?;
        anyhow::Ok(share)
    };
    let share = share.await.with_context(|| agent.log_tail())?;
    agent.stop(ground).await?;
    Ok(share)
}

/// Whoever asks needs to show nothing, and believes whoever answers.
pub fn api(dir: &Path, port: u16) -> Result<Arc<dyn Api>> {
    let file = dir.join("door.kubeconfig");
    let server = format!("https://{}:{port}", link::NODE);
    let cluster = json!({"server": server, "insecure-skip-tls-verify": true});
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "door", "cluster": cluster}],
        "users": [{"name": "nobody", "user": {}}],
        "contexts": [{"name": "door", "context": {"cluster": "door", "user": "nobody"}}],
        "current-context": "door",
    });
    std::fs::write(&file, config.to_string())?;
    Ok(ground::client(&file)?.api().clone())
}

impl Door<'_> {
    async fn asked(&self, options: &Options, kind: Kind) -> Result<Results> {
        let times = match options.rounds {
            1 => 10,
            _ => 20,
        };
        let summary = self.ask(SUMMARY, times).await?;
        let cadvisor = self.ask(CADVISOR, times).await?;
        let monitored = self.monitored(options).await?;
        let own = match kind {
            Kind::Krablet => vec![streams::commands(&self.ground.bed, self.port).await?],
            Kind::Kubelet => Vec::new(),
        };
        Ok(Results {
            summary,
            cadvisor,
            monitored,
            transfers: Transfers::default(),
            own,
        })
    }

    /// What is used while a question is answered, without what the agent uses anyway in such a time.
    async fn ask(&self, path: &str, times: usize) -> Result<Asked> {
        self.get(path).await?;
        let mut samples = Samples::default();
        let (mut asked, mut answering, mut anyway) = (0.0, 0.0, 0.0);
        for _ in 0..times {
            let begun = self.cpu()?;
            rest(PAUSE).await;
            let between = self.cpu()?;
            let question = Instant::now();
            samples.add_time(self.get(path).await?);
            rest(SETTLE).await;
            answering += question.elapsed().as_secs_f64();
            asked += self.cpu()?.saturating_sub(between).as_secs_f64();
            anyway += between.saturating_sub(begun).as_secs_f64();
        }
        let between = anyway / (times as f64 * PAUSE.as_secs_f64());
        Ok(Asked {
            cpu: ((asked - between * answering) / times as f64).max(LEAST),
            between,
            times: samples,
        })
    }

    /// Every endpoint at the pace of a monitoring system.
    async fn monitored(&self, options: &Options) -> Result<Monitored> {
        let begun = (Instant::now(), self.cpu()?);
        let mut ticks = interval(CADENCE);
        ticks.tick().await;
        let rounds = options.idle_seconds.div_ceil(CADENCE.as_secs());
        for _ in 0..rounds {
            ticks.tick().await;
            for path in ENDPOINTS {
                self.get(path).await?;
            }
        }
        let used = self.cpu()?.saturating_sub(begun.1);
        Ok(Monitored {
            share: used.div_duration_f64(begun.0.elapsed()),
            memory: self.agent.rss()? as f64 / 1e6,
        })
    }

    async fn get(&self, path: &str) -> Result<Duration> {
        get(&*self.api, path).await
    }

    fn cpu(&self) -> Result<Duration> {
        Ok(self.agent.used(self.ground)?.cpu)
    }
}

/// How long an answer takes.
pub async fn get(api: &dyn Api, path: &str) -> Result<Duration> {
    let begun = Instant::now();
    let call = Call::new(Verb::Get, path.to_owned());
    let answer = api.call(call).await.with_context(|| path.to_owned())?;
    ensure!(!answer.is_empty(), "{path} is empty");
    Ok(begun.elapsed())
}

/// A pod with much to give, and its port.
async fn transfers(ground: &Ground, link: &Link, kind: Kind, port: u16) -> Result<Transfers> {
    let node = kind.name();
    let mut sight = PodSight::begin(&ground.kube, &ground.bed, node).await?;
    appear(ground, node, &mut sight, 1, ports::giver).await?;
    let times = ports::transfers(&ground.bed, link, port).await?;
    disappear(ground, &mut sight, 1).await?;
    Ok(times)
}
