//! The node of `make run`: krablet without an API server on a copy of the examples, shown live.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use krablet_cri::v1::{PodSandbox, PodSandboxState};
use krablet_cri::{CallLog, Deadlines, Endpoint, RuntimeClient, RuntimeService};
use tokio::process::Command;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::Instant;

use crate::kernel::KernelSettings;
use crate::parts::Part;
use crate::{Bed, BedOptions, Home, Krablet, KrabletOptions, images, layout, parts};

/// How long pods get to end when the node is stopped.
const STOP_PATIENCE: Duration = Duration::from_secs(60);

/// Lets `make run` have a runtime in which there are pods already, which end then.
const TAKE: &str = "KRABLET_TAKE_RUNTIME";

/// Runs the node until Ctrl-C, on a private containerd or on the runtime at `endpoint` if not empty.
pub async fn standalone(endpoint: &str) -> Result<()> {
    if endpoint.is_empty() {
        let bed = Bed::up(BedOptions::default()).await?;
        let mut signals = Signals::listen()?;
        let krablet = bed.prepare_krablet(KrabletOptions::default())?;
        let outcome = show(krablet, &bed.cri_endpoint(), &mut signals).await;
        let down = bed.down().await;
        outcome.and(down)
    } else {
        look_for_others(endpoint).await?;
        let bringing = Bringing::prepare(endpoint).await?;
        // Not earlier: what takes minutes to build is left by a plain Ctrl-C.
        let mut signals = Signals::listen()?;
        let guest = Guest::arrive(bringing).await?;
        let outcome = match guest.agent(endpoint) {
            Ok(krablet) => show(krablet, endpoint, &mut signals).await,
            Err(why) => Err(why),
        };
        guest.leave().await;
        outcome
    }
}

/// Housekeeping ends every pod that none of the agent's sources names. On a runtime in use those are
/// all that are there, so somebody has to say that this is meant.
async fn look_for_others(endpoint: &str) -> Result<()> {
    let found = client(endpoint)?
        .list_pod_sandbox(None)
        .await
        .with_context(|| format!("RUNTIME={endpoint}: cannot list its pods"))?;
    let names: Vec<String> = found
        .into_iter()
        .filter_map(|sandbox| sandbox.metadata)
        .map(|pod| format!("{}/{}", pod.namespace, pod.name))
        .collect();
    let take = std::env::var(TAKE).is_ok_and(|value| value == "1");
    match may_take(endpoint, &names, take) {
        Ok(warning) => {
            print!("{warning}");
            Ok(())
        }
        Err(refusal) => bail!(refusal),
    }
}

/// Whether the agent may be started where these pods are: what to warn of, or why not.
fn may_take(endpoint: &str, pods: &[String], take: bool) -> Result<String, String> {
    let count = match pods {
        [] => return Ok(String::new()),
        [_] => "1 pod".to_owned(),
        more => format!("{} pods", more.len()),
    };
    let mut some = pods.iter().take(5).cloned().collect::<Vec<_>>().join(", ");
    if pods.len() > 5 {
        some.push_str(", …");
    }
    match take {
        true => Ok(format!(
            "{TAKE}=1: the {count} found at {endpoint} will be ended ({some}).\n"
        )),
        false => Err(format!(
            "RUNTIME={endpoint} has {count} already ({some}).\n\
             This node runs examples/ and nothing else: krablet would end them. Leave RUNTIME out for a private \
             containerd, or name a runtime without pods, or set {TAKE}=1 if they may be ended."
        )),
    }
}

/// Ctrl-C and requests to end. Whoever listens once has to go on listening, or the next one is lost.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    fn listen() -> Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            biased;
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// Waits for Ctrl-C or a request to end.
pub async fn interrupted() {
    if let Ok(mut signals) = Signals::listen() {
        signals.next().await;
    }
}

/// Runs the agent until it is told to end or dies, and takes away what it made either way.
async fn show(mut krablet: Krablet, endpoint: &str, signals: &mut Signals) -> Result<()> {
    let kernel = KernelSettings::now();
    let outcome = watch(&mut krablet, endpoint, signals).await;
    let stopped = stop(krablet, endpoint, signals).await;
    kernel.restore();
    outcome.and(stopped)
}

async fn watch(krablet: &mut Krablet, endpoint: &str, signals: &mut Signals) -> Result<()> {
    copy_examples(&krablet.manifests())?;
    krablet.start()?;
    tokio::select! {
        biased;
        () = signals.next() => return Ok(()),
        healthy = krablet.wait_healthy() => healthy?,
    }
    println!(
        "krablet runs. Its container runtime is at {endpoint}, its log is {}",
        krablet.log_path().display()
    );
    println!(
        "Pods come from {} (a copy of examples/): edit, add or remove files there.",
        krablet.manifests().display()
    );
    let web = tokio::select! {
        biased;
        () = signals.next() => return Ok(()),
        web = web_address(krablet) => web,
    };
    match web {
        Some(address) => println!("The web pod answers: curl http://{address}/"),
        None => println!("The web pod has no address yet; the table will tell."),
    }
    println!("Ctrl-C stops the pods and removes everything.\n");
    show_table(krablet, signals).await
}

async fn show_table(krablet: &mut Krablet, signals: &mut Signals) -> Result<()> {
    let mut table = Command::new(krablet.program())
        .args(["pods", "--watch", "--root-dir"])
        .arg(krablet.root_dir())
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .context("starting the table of pods")?;
    let mut shown = true;
    loop {
        tokio::select! {
            biased;
            () = signals.next() => return Ok(()),
            status = krablet.wait(Duration::MAX) => bail!("krablet ended: {}\n{}", status?, krablet.log_tail()),
            status = table.wait(), if shown => {
                let status = status?;
                // At a terminal Ctrl-C has reached the table too; any other end of it is no reason to stop.
                if status.code().is_none() {
                    return Ok(());
                }
                println!("The table of pods ended with {status}. Ctrl-C stops the node.");
                shown = false;
            }
        }
    }
}

/// The address of the web pod's server, once it has one.
async fn web_address(krablet: &Krablet) -> Option<String> {
    let end = Instant::now() + Duration::from_secs(30);
    while Instant::now() < end {
        let pods = krablet
            .pods()
            .await
            .map(|pods| pods.items)
            .unwrap_or_default();
        // A static pod's name ends in the node's.
        let web = pods.into_iter().find(|pod| {
            pod.metadata
                .name
                .as_deref()
                .is_some_and(|name| name.starts_with("web-"))
        });
        if let Some(ip) = web
            .and_then(|pod| pod.status)
            .and_then(|status| status.pod_ip)
        {
            return Some(format!("{ip}:8080"));
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    None
}

/// Takes the pods away first, so that they end as pods do, then the agent, then what both left in
/// the runtime. A second Ctrl-C hurries. An agent that has died already takes nothing away itself.
async fn stop(mut krablet: Krablet, endpoint: &str, signals: &mut Signals) -> Result<()> {
    println!("\nStopping the pods (Ctrl-C again to hurry) …");
    let runtime = client(endpoint)?;
    let uids = own_pods(&krablet).await;
    for entry in fs::read_dir(krablet.manifests())?.flatten() {
        let _ = fs::remove_file(entry.path());
    }
    if krablet.is_running() {
        tokio::select! {
            biased;
            () = signals.next() => {}
            () = pods_stopped(&runtime, &uids) => {}
        }
    }
    if krablet.is_running() {
        krablet.terminate().await?;
    }
    for sandbox in sandboxes(&runtime, &uids).await? {
        runtime.stop_pod_sandbox(&sandbox.id).await?;
        runtime.remove_pod_sandbox(&sandbox.id).await?;
    }
    Ok(())
}

/// The pods this agent has or had: those it tells of, and those it keeps a directory of, which is
/// there before anything of the pod is, and when the agent is not.
async fn own_pods(krablet: &Krablet) -> BTreeSet<String> {
    let told = krablet.pods().await.map(|pods| pods.items);
    let told = told.unwrap_or_default().into_iter();
    let kept = fs::read_dir(krablet.root_dir().join("pods"));
    let kept = kept.into_iter().flatten().flatten();
    told.filter_map(|pod| pod.metadata.uid)
        .chain(kept.filter_map(|entry| entry.file_name().into_string().ok()))
        .collect()
}

fn client(endpoint: &str) -> Result<RuntimeClient> {
    Ok(RuntimeClient::new(
        &Endpoint::parse(endpoint)?,
        Deadlines::default(),
        CallLog::default(),
    ))
}

/// The sandboxes of these pods, stopped or not.
async fn sandboxes(runtime: &RuntimeClient, uids: &BTreeSet<String>) -> Result<Vec<PodSandbox>> {
    let ours = |sandbox: &PodSandbox| {
        sandbox
            .metadata
            .as_ref()
            .is_some_and(|metadata| uids.contains(&metadata.uid))
    };
    Ok(runtime
        .list_pod_sandbox(None)
        .await?
        .into_iter()
        .filter(ours)
        .collect())
}

/// Waits until the runtime has none of these pods running. The agent stops listing a pod before that.
async fn pods_stopped(runtime: &RuntimeClient, uids: &BTreeSet<String>) {
    let end = Instant::now() + STOP_PATIENCE;
    while Instant::now() < end {
        match sandboxes(runtime, uids).await {
            Ok(sandboxes)
                if sandboxes
                    .iter()
                    .all(|s| s.state() != PodSandboxState::SandboxReady) =>
            {
                return;
            }
            _ => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

fn copy_examples(to: &Path) -> Result<()> {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    for entry in
        fs::read_dir(&examples).with_context(|| format!("reading {}", examples.display()))?
    {
        let path = entry?.path();
        if path
            .extension()
            .is_some_and(|extension| extension == "yaml")
            && let Some(name) = path.file_name()
        {
            fs::copy(&path, to.join(name))?;
        }
    }
    Ok(())
}

/// What a guest brings along.
struct Bringing {
    /// `ctr` and where it is to ask.
    ctr: Vec<String>,
    images: PathBuf,
}

impl Bringing {
    async fn prepare(endpoint: &str) -> Result<Self> {
        let socket = endpoint
            .strip_prefix("unix://")
            .with_context(|| format!("RUNTIME={endpoint}: not unix://PATH"))?;
        let (bins, images) = tokio::task::spawn_blocking(|| {
            anyhow::Ok((parts::ensure(&[Part::Containerd])?, images::standard()?))
        })
        .await??;
        let program = bins.path("ctr")?.display().to_string();
        let ctr = [&program, "--address", socket, "--namespace", "k8s.io"];
        Ok(Self {
            ctr: ctr.map(str::to_owned).to_vec(),
            images,
        })
    }
}

/// A stay at a runtime that is not ours: what we bring to it, we take away again.
struct Guest {
    dir: PathBuf,
    ctr: Vec<String>,
    images: Vec<String>,
    cgroups: Vec<PathBuf>,
}

impl Guest {
    async fn arrive(bringing: Bringing) -> Result<Self> {
        let pods = layout::cgroup_roots()
            .into_iter()
            .flat_map(|root| [root.join("kubepods"), root.join("kubepods.slice")]);
        let mut guest = Self {
            dir: PathBuf::from(format!("/var/tmp/krablet-run-{}", std::process::id())),
            ctr: bringing.ctr,
            images: Vec::new(),
            cgroups: pods.filter(|path| !path.exists()).collect(),
        };
        match guest.unpack(&bringing.images).await {
            Ok(()) => Ok(guest),
            Err(why) => {
                guest.leave().await;
                Err(why)
            }
        }
    }

    async fn unpack(&mut self, images: &Path) -> Result<()> {
        fs::create_dir_all(&self.dir)?;
        let before = self.run(&["images", "ls", "-q"]).await?;
        let imported = self
            .run(&["images", "import", &images.display().to_string()])
            .await;
        let after = self.run(&["images", "ls", "-q"]).await?;
        self.images = after
            .lines()
            .filter(|name| !before.lines().any(|had| had == *name))
            .map(str::to_owned)
            .collect();
        imported.map(drop)
    }

    /// An agent that keeps all it has in the guest's directory.
    fn agent(&self, endpoint: &str) -> Result<Krablet> {
        let home = Home {
            dir: self.dir.clone(),
            endpoint: endpoint.to_owned(),
            cgroup_root: None,
            bed: None,
        };
        let options = KrabletOptions {
            // A runtime of the machine's own has a cgroup driver of its own, which the agent asks it for.
            config: serde_json::json!({"cgroupDriver": null}),
            ..KrabletOptions::default()
        };
        Krablet::prepare(&home, options)
    }

    async fn run(&self, arguments: &[&str]) -> Result<String> {
        let (program, fixed) = self.ctr.split_first().context("no ctr")?;
        let output = Command::new(program)
            .args(fixed)
            .args(arguments)
            .output()
            .await?;
        if !output.status.success() {
            bail!(
                "{:?} {arguments:?}: {}",
                self.ctr,
                String::from_utf8_lossy(&output.stderr)
            );
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    async fn leave(self) {
        for image in &self.images {
            let _ = self.run(&["images", "rm", image]).await;
        }
        for root in &self.cgroups {
            remove_empty(root);
        }
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        // A volume that is still mounted must not lose its content to our tidying up.
        if mounts.contains(&format!(" {}/", self.dir.display())) {
            println!("{} stays: volumes are mounted in it", self.dir.display());
        } else {
            let _ = fs::remove_dir_all(&self.dir);
        }
    }
}

/// Removes a cgroup and those below it; the kernel refuses those in use.
fn remove_empty(cgroup: &Path) {
    for entry in fs::read_dir(cgroup).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_empty(&entry.path());
        }
    }
    let _ = fs::remove_dir(cgroup);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_runtime_in_use_is_taken_only_when_told_to() {
        let pods = |count: usize| -> Vec<String> {
            (0..count).map(|n| format!("default/pod-{n}")).collect()
        };
        let at = "unix:///run/some.sock";
        assert_eq!(may_take(at, &[], false), Ok(String::new()));
        assert_eq!(may_take(at, &[], true), Ok(String::new()));
        for (count, words) in [
            (1, "1 pod already (default/pod-0)."),
            (2, "2 pods already (default/pod-0, default/pod-1)."),
            (7, "default/pod-4, …)."),
        ] {
            let refusal = may_take(at, &pods(count), false).unwrap_err();
            for words in [words, at, "KRABLET_TAKE_RUNTIME=1"] {
                assert!(refusal.contains(words), "{refusal}");
            }
            let warning = may_take(at, &pods(count), true).unwrap();
            assert!(warning.contains("will be ended"), "{warning}");
        }
    }
}
