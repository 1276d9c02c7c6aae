//! What configMaps and secrets cost a node, and how long a change of one takes to reach a container.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use krablet_kube::{Call, PatchKind, Verb, paths};
use krablet_pod::api::Pod;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};

use super::agent::{Agent, Kind};
use super::course::{appear, disappear};
use super::ground::{self, Ground};
use super::sight::{PATIENCE, PodSight};
use crate::node::rest;
use crate::options::{CONTENT, Options};
use crate::pods;
use crate::report::Row;
use crate::stats::Samples;

/// Of each pod, no two alike: a secret and two configMaps.
const OBJECTS: usize = 3;
/// What each of them holds, about the size of a certificate.
const SIZE: usize = 1024;
/// Changes of each kind of volume.
const CHANGES: usize = 10;
/// How closely a file is watched.
const GLANCE: Duration = Duration::from_millis(2);
/// What comes after a start, such as the last statuses, has come.
const SETTLED: Duration = Duration::from_secs(15);
const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
const SECRETS: &str = "/api/v1/namespaces/default/secrets";
const MEGABYTE: f64 = 1e6;

pub async fn measure(options: &Options) -> Result<Vec<Row>> {
    let ground = Ground::up().await?;
    let count = options.pods.min(100);
    for index in 0..count {
        make_objects(&ground, index).await?;
    }
    let plain = loaded(&ground, count, ground::quiet, async |_| Ok(())).await?;
    let mut changes = Vec::new();
    let full = loaded(&ground, count, with_objects, async |agent| {
        for kind in KINDS {
            changes.push((kind, seen_after(&ground, agent, kind).await?));
        }
        Ok(())
    })
    .await?;
    ground.down().await?;
    let objects = count * OBJECTS;
    let cost = Row::new(
        CONTENT,
        format!("memory of {objects} objects in {count} pods"),
        (full - plain) / MEGABYTE,
        "MB",
    );
    let remark = format!(
        "{:.1} MB beside {:.1} MB",
        full / MEGABYTE,
        plain / MEGABYTE
    );
    let changes = changes.into_iter().map(|(kind, times)| {
        let row = Row::new(
            CONTENT,
            format!("a change in a {} volume", kind.name),
            times.greatest(),
            "s",
        );
        let median = times.median() * 1e3;
        row.at_most(2.0)
            .remark(format!("the longest of {CHANGES}; p50 {median:.0} ms"))
    });
    let cost = cost.at_most(10.0).remark(remark);
    Ok(std::iter::once(cost).chain(changes).collect())
}

/// The memory of a new agent with these pods.
async fn loaded(
    ground: &Ground,
    count: usize,
    manifest: impl Fn(usize) -> Value,
    then: impl AsyncFnOnce(&Agent) -> Result<()>,
) -> Result<f64> {
    let mut agent = Agent::prepare(ground, Kind::Krablet, count)?;
    agent.start(ground).await?;
    let node = Kind::Krablet.name();
    let mut sight = PodSight::begin(&ground.kube, &ground.bed, node).await?;
    appear(ground, node, &mut sight, count, manifest).await?;
    rest(SETTLED).await;
    let rss = agent.rss()? as f64;
    then(&agent).await.with_context(|| agent.log_tail())?;
    disappear(ground, &mut sight, count).await?;
    agent.stop(ground).await?;
    Ok(rss)
}

async fn make_objects(ground: &Ground, index: usize) -> Result<()> {
    let text = "x".repeat(SIZE);
    for part in ["a", "b"] {
        let object = json!({"metadata": {"name": format!("{part}-{index}")}, "data": {"k": text}});
        ground.make(CONFIG_MAPS, &object).await?;
    }
    let object = json!({"metadata": {"name": format!("s-{index}")}, "stringData": {"k": text}});
    ground.make(SECRETS, &object).await
}

/// Mounts all there is for it, and its own annotations.
fn with_objects(index: usize) -> Value {
    let mut pod = ground::quiet(index);
    let name = |part: &str| format!("{part}-{index}");
    let word = json!({"path": "k", "fieldRef": {"fieldPath": "metadata.annotations['k']"}});
    pod["spec"]["volumes"] = json!([
        {"name": "a", "configMap": {"name": name("a")}},
        {"name": "b", "configMap": {"name": name("b")}},
        {"name": "s", "secret": {"secretName": name("s")}},
        {"name": "d", "downwardAPI": {"items": [word]}},
    ]);
    let mounts = ["a", "b", "s", "d"];
    let mounts = mounts.map(|volume| json!({"name": volume, "mountPath": format!("/{volume}")}));
    pod["spec"]["containers"][0]["volumeMounts"] = json!(mounts);
    pod
}

/// A kind of volume whose content follows something.
#[derive(Clone, Copy)]
struct Follows {
    name: &'static str,
    directory: &'static str,
    volume: &'static str,
    /// What it shows, in the first pod.
    object: fn() -> String,
    change: fn(&str) -> Value,
}

const KINDS: [Follows; 3] = [
    Follows {
        name: "configMap",
        directory: "kubernetes.io~configmap",
        volume: "a",
        object: || format!("{CONFIG_MAPS}/a-0"),
        change: |text| json!({"data": {"k": text}}),
    },
    Follows {
        name: "secret",
        directory: "kubernetes.io~secret",
        volume: "s",
        object: || format!("{SECRETS}/s-0"),
        change: |text| json!({"stringData": {"k": text}}),
    },
    Follows {
        name: "downwardAPI",
        directory: "kubernetes.io~downward-api",
        volume: "d",
        object: || paths::pod("default", pods::name(0)),
        change: |text| json!({"metadata": {"annotations": {"k": text}}}),
    },
];

/// From the server's word that a change is made until it stands in the volume.
async fn seen_after(ground: &Ground, agent: &Agent, kind: Follows) -> Result<Samples> {
    let pod: Pod = ground
        .kube
        .get(paths::pod("default", pods::name(0)))
        .await?;
    let uid = pod.metadata.uid.context("a pod without UID")?;
    let file: PathBuf = ["pods", &uid, "volumes", kind.directory, kind.volume, "k"]
        .iter()
        .collect();
    let file = agent.root_dir().join(file);
    let mut times = Samples::default();
    for number in 0..CHANGES {
        let text = format!("change {number}");
        let body = (kind.change)(&text).to_string();
        let call = Call::new(Verb::Patch(PatchKind::Merge), (kind.object)()).body(body);
        ground.kube.api().call(call).await?;
        let begun = Instant::now();
        timeout(PATIENCE, until_it_says(&file, &text))
            .await
            .with_context(|| format!("{} never says {text:?}", file.display()))?;
        times.add_time(begun.elapsed());
        rest(Duration::from_millis(200)).await;
    }
    Ok(times)
}

async fn until_it_says(file: &Path, text: &str) {
    while std::fs::read_to_string(file).ok().as_deref() != Some(text) {
        sleep(GLANCE).await;
    }
}
