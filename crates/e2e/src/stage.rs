//! A bed with an agent, and the questions scenarios ask of the two.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Pod;
use krablet_cri::{RuntimeClient, RuntimeService, v1};
use krablet_pod::labels;
use krablet_server::{EventLine, PodRow};
use krablet_testbed::{Bed, BedOptions, Krablet, KrabletOptions, eventually_or, leftovers};
use serde_json::{Value, json};

use crate::status;

/// Long enough for anything on a busy machine; nothing waits so long unless it fails.
pub const LONG: Duration = Duration::from_secs(120);
/// The node's name, which is added to the names of static pods.
pub const NODE: &str = "krablet";

/// A bed with an agent.
pub struct Stage {
    pub bed: Bed,
    pub krablet: Krablet,
    pub runtime: RuntimeClient,
}

impl Stage {
    /// The one most scenarios share. Restarts are quick on it, and logs small.
    pub async fn shared() -> Self {
        Self::up(json!({
            "crashLoopBackOff": {"maxContainerRestartPeriod": "1s"},
            "containerLogMaxSize": "100Ki",
            "containerLogMaxFiles": 3,
            "containerLogMonitorInterval": "3s",
        }))
        .await
    }

    /// A bed with an agent of this configuration.
    pub async fn up(config: Value) -> Self {
        let mut stage = Self::prepared(config).await;
        stage.start().await;
        stage
    }

    /// The same with the agent not started yet.
    pub async fn prepared(config: Value) -> Self {
        let bed = Bed::up(BedOptions::default()).await.unwrap();
        Self::on(bed, options(config))
    }

    /// An agent on a bed that is there, not started yet.
    pub fn on(bed: Bed, options: KrabletOptions) -> Self {
        let krablet = bed.prepare_krablet(options).unwrap();
        let runtime = bed.runtime().unwrap();
        Self {
            bed,
            krablet,
            runtime,
        }
    }

    /// A bed with an agent that takes configMaps and secrets from a directory, which is empty at first.
    pub async fn with_local_objects() -> (Self, PathBuf) {
        let bed = Bed::up(BedOptions::default()).await.unwrap();
        let directory = bed.dir().join("objects");
        fs::create_dir_all(&directory).unwrap();
        let mut options = options(json!({"crashLoopBackOff": {"maxContainerRestartPeriod": "1s"}}));
        let local = format!("--local-objects-dir={}", directory.display());
        options.args.push(local);
        let mut stage = Self::on(bed, options);
        stage.start().await;
        (stage, directory)
    }

    /// Starts the agent and waits until it is well.
    pub async fn start(&mut self) {
        self.krablet.start().unwrap();
        self.krablet.wait_healthy().await.unwrap();
    }

    /// Ends the agent with SIGKILL and starts it again.
    pub async fn crash(&mut self) {
        self.krablet.kill9().await.unwrap();
        self.start().await;
    }

    /// Stops the agent in good order and takes the bed down; nothing may be left of it.
    pub async fn down(mut self) {
        let ended = self.krablet.terminate().await.unwrap();
        assert!(
            ended.success(),
            "the agent ended with {ended}\n{}",
            self.krablet.log_tail()
        );
        let name = self.bed.name().to_owned();
        self.bed.down().await.unwrap();
        assert_eq!(leftovers(&name), Vec::<String>::new());
    }

    /// A directory of the machine for one scenario, gone with the bed.
    pub fn scratch(&self, name: &str) -> PathBuf {
        let dir = self.bed.dir().join("scratch").join(name);
        fs::create_dir_all(&dir).unwrap();
        dir
    }
}

/// How scenarios want their agent: talkative, and with these settings.
pub fn options(config: Value) -> KrabletOptions {
    KrabletOptions {
        config,
        args: vec!["-v=4".to_owned()],
        ..KrabletOptions::default()
    }
}

/// The name of a static pod on this node.
pub fn full(name: &str) -> String {
    format!("{name}-{NODE}")
}

/// Manifests and what becomes of them. Pods go by the name in their manifest.
impl Stage {
    pub fn apply(&self, name: &str, manifest: &Value) {
        let text = serde_json::to_string_pretty(manifest).unwrap();
        self.krablet
            .write_manifest(&format!("{name}.json"), &text)
            .unwrap();
    }

    pub fn remove(&self, name: &str) {
        self.krablet
            .remove_manifest(&format!("{name}.json"))
            .unwrap();
    }

    pub async fn pod(&self, name: &str) -> Result<Pod, String> {
        let pod = self.krablet.pod(&full(name)).await;
        pod.map_err(|e| format!("{e:#}"))
    }

    /// Waits until `check` finds in the pod what it looks for.
    pub async fn until<T>(
        &self,
        name: &str,
        what: &str,
        mut check: impl FnMut(&Pod) -> Result<T, String>,
    ) -> T {
        let what = format!("{name}: {what}");
        let evidence = || self.evidence(name);
        eventually_or(LONG, &what, evidence, async || {
            check(&self.pod(name).await?)
        })
        .await
    }

    /// Waits until any other thing holds; `name` says whose log lines tell why not.
    pub async fn wait<T>(
        &self,
        name: &str,
        what: &str,
        check: impl AsyncFnMut() -> Result<T, String>,
    ) -> T {
        self.wait_long(LONG, name, what, check).await
    }

    /// The same with another deadline, for crowds.
    pub async fn wait_long<T>(
        &self,
        deadline: Duration,
        name: &str,
        what: &str,
        check: impl AsyncFnMut() -> Result<T, String>,
    ) -> T {
        let what = format!("{name}: {what}");
        eventually_or(deadline, &what, || self.evidence(name), check).await
    }

    /// Applies the manifest and waits until all its containers run.
    pub async fn run(&self, name: &str, manifest: &Value) -> Pod {
        self.apply(name, manifest);
        self.running(name).await
    }

    pub async fn running(&self, name: &str) -> Pod {
        self.until(name, "runs", |pod| {
            status::all_running(pod)?;
            Ok(pod.clone())
        })
        .await
    }

    /// Waits for the phase and gives the pod in it.
    pub async fn phase(&self, name: &str, phase: &str) -> Pod {
        self.until(name, phase, |pod| {
            status::in_phase(pod, phase)?;
            Ok(pod.clone())
        })
        .await
    }

    /// Removes the manifest and waits until the pod is gone.
    pub async fn end(&self, name: &str) {
        let uid = self
            .pod(name)
            .await
            .map(|pod| status::uid(&pod))
            .unwrap_or_default();
        self.remove(name);
        self.gone(name, &uid).await;
    }

    /// Waits until nothing of the pod lives or is held: no container, no sandbox, no directory, no
    /// mount, no cgroup, no row.
    pub async fn gone(&self, name: &str, uid: &str) {
        self.wait(name, "is gone", async || {
            if let Ok(pod) = self.pod(name).await
                && (uid.is_empty() || status::uid(&pod) == uid)
            {
                return Err(format!("still shown: {}", status::shown(&pod)));
            }
            let alive = self.alive(name).await;
            let alive: Vec<&String> = alive.iter().filter(|a| a.contains(uid)).collect();
            if !alive.is_empty() {
                return Err(format!("still alive: {alive:?}"));
            }
            match self.held(uid) {
                held if held.is_empty() => Ok(()),
                held => Err(format!("still held: {held:?}")),
            }
        })
        .await;
    }

    /// Directories, mounts and cgroups of a pod.
    pub fn held(&self, uid: &str) -> Vec<String> {
        if uid.is_empty() {
            return Vec::new();
        }
        let mut held = Vec::new();
        let dir = self.krablet.root_dir().join("pods").join(uid);
        if dir.exists() {
            held.push(dir.display().to_string());
        }
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let of_pod = mounts
            .lines()
            .filter(|line| line.contains(&format!("/pods/{uid}/")));
        held.extend(of_pod.map(str::to_owned));
        held.extend(
            self.cgroups()
                .into_iter()
                .filter(|cgroup| cgroup.contains(uid)),
        );
        held
    }

    /// The cgroups of pods below the bed's.
    pub fn cgroups(&self) -> Vec<String> {
        let mut found = Vec::new();
        let hierarchies = fs::read_dir("/sys/fs/cgroup")
            .into_iter()
            .flatten()
            .flatten();
        let mut places: Vec<PathBuf> = hierarchies.map(|entry| entry.path()).collect();
        places.push("/sys/fs/cgroup".into());
        places.retain(|place| !place.is_symlink());
        let parent = self.bed.cgroup_parent();
        let parent = parent.trim_start_matches('/');
        for place in places {
            collect_pods(&place.join(parent), &mut found);
        }
        found
    }
}

/// Directories named like the cgroups of pods.
fn collect_pods(dir: &Path, found: &mut Vec<String>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if !path.is_dir() {
            continue;
        }
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with("pod") || name.contains("-pod") {
            found.push(path.display().to_string());
        } else {
            collect_pods(&path, found);
        }
    }
}

/// What the runtime holds.
impl Stage {
    pub async fn sandboxes(&self, name: &str) -> Vec<v1::PodSandbox> {
        let all = self.runtime.list_pod_sandbox(None).await.unwrap();
        all.into_iter()
            .filter(|s| s.labels.get(labels::POD_NAME) == Some(&full(name)))
            .collect()
    }

    pub async fn containers(&self, name: &str) -> Vec<v1::Container> {
        let all = self.runtime.list_containers(None).await.unwrap();
        all.into_iter()
            .filter(|c| c.labels.get(labels::POD_NAME) == Some(&full(name)))
            .collect()
    }

    /// Running containers and ready sandboxes of a pod, in words.
    pub async fn alive(&self, name: &str) -> Vec<String> {
        let containers = self.containers(name).await.into_iter();
        let running = containers
            .filter(|c| c.state == v1::ContainerState::ContainerRunning as i32)
            .map(|c| {
                format!(
                    "container {} of {}",
                    container_name(&c),
                    c.labels[labels::POD_UID]
                )
            });
        let sandboxes = self.sandboxes(name).await.into_iter();
        let ready = sandboxes
            .filter(|s| s.state == v1::PodSandboxState::SandboxReady as i32)
            .map(|s| format!("sandbox of {}", s.labels[labels::POD_UID]));
        running.chain(ready).collect()
    }

    /// Names and ids of the pod's running containers, by name.
    pub async fn running_ids(&self, name: &str) -> Vec<(String, String)> {
        let containers = self.containers(name).await.into_iter();
        let mut running: Vec<(String, String)> = containers
            .filter(|c| c.state == v1::ContainerState::ContainerRunning as i32)
            .map(|c| (container_name(&c), c.id))
            .collect();
        running.sort();
        running
    }

    /// Restarts the runtime if it refuses to remove a container for a task that its CRI service does not know of: once for each,
    /// and the agent tries again in its next round. A start that is cut off with the agent can leave such a task behind, and
    /// containerd looks for them only when it starts.
    pub async fn free_cut_off_starts(&self, freed: &mut BTreeSet<String>) {
        let log = self.krablet.log();
        let refused = log.split("cannot delete running task ").skip(1);
        let ids = refused.map(|text| text.chars().take_while(char::is_ascii_hexdigit).collect());
        let new: BTreeSet<String> = ids.filter(|id| !freed.contains(id)).collect();
        if !new.is_empty() {
            freed.extend(new);
            self.bed.stop_containerd().await.unwrap();
            self.bed.start_containerd().await.unwrap();
        }
    }

    /// Everything in the runtime, in words; for when nothing may be left.
    pub async fn in_runtime(&self) -> Vec<String> {
        let containers = self.runtime.list_containers(None).await.unwrap();
        let sandboxes = self.runtime.list_pod_sandbox(None).await.unwrap();
        let containers = containers.iter().map(|c| {
            let pod = c.labels.get(labels::POD_NAME);
            format!(
                "container {} of {pod:?} in state {}",
                container_name(c),
                c.state
            )
        });
        let sandboxes = sandboxes.iter().map(|s| {
            format!(
                "sandbox of {:?} in state {}",
                s.labels.get(labels::POD_NAME),
                s.state
            )
        });
        containers.chain(sandboxes).collect()
    }
}

pub fn container_name(container: &v1::Container) -> String {
    let metadata = container.metadata.as_ref();
    metadata.map(|m| m.name.clone()).unwrap_or_default()
}

/// krablet's own commands.
impl Stage {
    async fn ask(&self, command: &str) -> Result<String> {
        let root = format!("--root-dir={}", self.krablet.root_dir().display());
        let output = self.krablet.run(&[command, "--output=json", &root]).await?;
        anyhow::ensure!(output.status.success(), "krablet {command}: {output:?}");
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Every event the agent remembers of this pod, oldest first.
    pub async fn events(&self, name: &str) -> Result<Vec<EventLine>> {
        let text = self.ask("events").await?;
        let object = format!("default/{}", full(name));
        let lines = text
            .lines()
            .map(|line| serde_json::from_str(line).context("event"));
        let all: Vec<EventLine> = lines.collect::<Result<_>>()?;
        Ok(all.into_iter().filter(|e| e.object == object).collect())
    }

    pub async fn rows(&self) -> Result<Vec<PodRow>> {
        serde_json::from_str(&self.ask("pods").await?).context("rows")
    }

    /// Waits for an event of this reason whose message holds the text.
    pub async fn event(&self, name: &str, reason: &str, text: &str) -> EventLine {
        self.wait(name, &format!("event {reason}: {text}"), async || {
            let events = self.events(name).await.map_err(|e| format!("{e:#}"))?;
            let found = events
                .iter()
                .find(|e| e.reason == reason && e.message.contains(text))
                .cloned();
            found.ok_or_else(|| {
                let told: Vec<String> = events
                    .iter()
                    .map(|e| format!("{}: {}", e.reason, e.message))
                    .collect();
                told.join("\n")
            })
        })
        .await
    }

    /// What the agent said of a pod, and the end of the runtime's log.
    pub fn evidence(&self, name: &str) -> String {
        let log = self.krablet.log();
        let lines: Vec<&str> = log.lines().filter(|line| line.contains(name)).collect();
        let from = lines.len().saturating_sub(60);
        format!(
            "--- the agent about {name}\n{}\n--- the end of its log\n{}\n{}",
            lines[from..].join("\n"),
            log.lines()
                .rev()
                .take(15)
                .collect::<Vec<_>>()
                .into_iter()
                .rev()
                .collect::<Vec<_>>()
                .join("\n"),
            self.bed.log_tail(),
        )
    }

    /// The lines of a file that containers write, so far.
    pub fn lines(&self, scratch: &Path, file: &str) -> Vec<String> {
        let text = fs::read_to_string(scratch.join(file)).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// Waits until the file has these lines.
    pub async fn diary(&self, name: &str, scratch: &Path, expected: &[&str]) {
        self.wait(name, "writes its diary", async || {
            let lines = self.lines(scratch, "diary");
            match lines == expected {
                true => Ok(()),
                false => Err(format!("{lines:?} instead of {expected:?}")),
            }
        })
        .await;
    }
}
