//! An agent under measurement: krablet or the upstream kubelet, with the same settings and the same
//! way to the API server.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use krablet_testbed::{ClientCertificate, Krablet, KrabletOptions, Kubeconfig, User};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::ground::Ground;
use super::proxy::{Bytes, Proxy};
use super::sight::{NodeSight, PATIENCE};
use crate::calls::Calls;
use crate::node::{program, rest};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Krablet,
    Kubelet,
}

impl Kind {
    /// Also of its node.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Krablet => "krablet",
            Kind::Kubelet => "kubelet",
        }
    }
}

pub struct Agent {
    pub kind: Kind,
    process: Krablet,
    proxy: Proxy,
}

/// What an agent has used of its own and of the API server so far.
#[derive(Clone, Debug)]
pub struct Used {
    pub cpu: Duration,
    pub requests: Calls,
    pub bytes: Bytes,
}

impl Used {
    pub fn since(&self, before: &Used) -> Used {
        Used {
            cpu: self.cpu.saturating_sub(before.cpu),
            requests: self.requests.since(&before.requests),
            bytes: self.bytes.since(before.bytes),
        }
    }
}

impl Agent {
    /// With everything in place, not started.
    pub fn prepare(ground: &Ground, kind: Kind, pods: usize) -> Result<Self> {
        Self::prepare_with(ground, kind, pods, json!({}), &[])
    }

    /// The same, with these fields of its configuration and these arguments.
    pub fn prepare_with(
        ground: &Ground,
        kind: Kind,
        pods: usize,
        more: Value,
        arguments: &[&str],
    ) -> Result<Self> {
        let name = kind.name();
        let url = ground.plane.server_url();
        let port = url.rsplit(':').next().unwrap_or_default();
        let proxy = Proxy::start(port.parse().context("the API server's port")?)?;
        let kubeconfig = ground.plane.kubeconfig_with(
            &format!("bench-{name}"),
            &Kubeconfig {
                server: Some(proxy.url()),
                user: User::Certificate(ClientCertificate::node(name)),
                ..Kubeconfig::default()
            },
        )?;
        let dir = ground.bed.dir().join(name);
        let mut args = vec![
            format!("--kubeconfig={}", kubeconfig.display()),
            format!("--cert-dir={}", dir.join("pki").display()),
        ];
        args.extend(arguments.iter().map(|argument| (*argument).to_owned()));
        let program = match kind {
            Kind::Krablet => program()?,
            Kind::Kubelet => {
                args.push("--v=0".to_owned());
                ground.kubelet()?
            }
        };
        let plugins = dir.join("volume-plugins");
        let process = ground.bed.prepare_krablet(KrabletOptions {
            name: name.to_owned(),
            config: config(pods, &plugins.display().to_string(), more),
            args,
            program: Some(program),
            also_kubelet: kind == Kind::Kubelet,
            ..KrabletOptions::default()
        })?;
        Ok(Self {
            kind,
            process,
            proxy,
        })
    }

    /// Starts it, and tells how long it took until its node was seen to be ready.
    pub async fn start(&mut self, ground: &Ground) -> Result<Duration> {
        let mut sight = NodeSight::begin(&ground.kube, self.kind.name()).await?;
        let begun = Instant::now();
        self.process.start()?;
        let ready = tokio::select! {
            biased;
            ready = sight.ready() => ready,
            ended = self.process.wait(PATIENCE) => match ended {
                Ok(status) => bail!("it ended with {status}\n{}", self.process.log_tail()),
                Err(_) => bail!("its node does not get ready\n{}", self.process.log_tail()),
            },
        };
        let took = ready? - begun;
        // What follows a start is no rest yet.
        rest(Duration::from_secs(5)).await;
        Ok(took)
    }

    /// Ends it and all memory of its node.
    pub async fn stop(&mut self, ground: &Ground) -> Result<()> {
        self.process.terminate().await?;
        ground.forget_node(self.kind.name()).await?;
        ground.tidy().await
    }

    pub fn used(&self, ground: &Ground) -> Result<Used> {
        Ok(Used {
            cpu: self.process.cpu_time()?,
            requests: ground.audit.requests(self.kind.name())?,
            bytes: self.proxy.bytes(),
        })
    }

    pub fn rss(&self) -> Result<u64> {
        self.process.rss()
    }

    pub fn pid(&self) -> Result<u32> {
        self.process.pid().context("the agent does not run")
    }

    pub fn root_dir(&self) -> PathBuf {
        self.process.root_dir()
    }

    /// The last it said.
    pub fn log_tail(&self) -> String {
        self.process.log_tail()
    }
}

/// What both are told: room for the pods, no fear for a disk that is full of other things, and
/// nothing outside their own directories.
fn config(pods: usize, plugins: &str, more: Value) -> Value {
    let mut config = json!({
        "maxPods": pods.max(110),
        "evictionHard": {
            "memory.available": "100Mi",
            "nodefs.available": "1%",
            "nodefs.inodesFree": "1%",
            "imagefs.available": "1%",
        },
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "makeIPTablesUtilChains": false,
        // As in any cluster; without it each of them complains of each pod.
        "clusterDNS": ["10.96.0.10"],
        "clusterDomain": "cluster.local",
        "volumePluginDir": plugins,
    });
    for (field, value) in more.as_object().into_iter().flatten() {
        config[field] = value.clone();
    }
    config
}
