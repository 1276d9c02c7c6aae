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
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::Instant;

use crate::parts::Part;
use crate::{Bed, BedOptions, Home, Krablet, KrabletOptions, images, layout, parts};

/// How long pods get to end when the node is stopped.
const STOP_PATIENCE: Duration = Duration::from_secs(60);

/// Runs the node until Ctrl-C, on a private containerd or on the runtime at `endpoint` if not empty.
pub async fn standalone(endpoint: &str) -> Result<()> {
    if endpoint.is_empty() {
        let bed = Bed::up(BedOptions::default()).await?;
        let krablet = bed.prepare_krablet(KrabletOptions::default())?;
        let outcome = show(krablet, &bed.cri_endpoint()).await;
        let down = bed.down().await;
        outcome.and(down)
    } else {
        let guest = Guest::arrive(endpoint).await?;
        let home = Home {
            dir: guest.dir.clone(),
            endpoint: endpoint.to_owned(),
            cgroup_root: None,
            bed: None,
        };
        // A runtime of the machine's own has a cgroup driver of its own, which the agent asks it for.
        let config = serde_json::json!({"cgroupDriver": null});
        let krablet = Krablet::prepare(
            &home,
            KrabletOptions {
                config,
                ..KrabletOptions::default()
            },
        );
        let outcome = match krablet {
            Ok(krablet) => show(krablet, endpoint).await,
            Err(why) => Err(why),
        };
        guest.leave().await;
        outcome
    }
}

/// Waits for Ctrl-C or a request to end.
pub async fn interrupted() {
    let (Ok(mut interrupt), Ok(mut terminate)) = (
        signal(SignalKind::interrupt()),
        signal(SignalKind::terminate()),
    ) else {
        return;
    };
    tokio::select! {
        biased;
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
}

async fn show(mut krablet: Krablet, endpoint: &str) -> Result<()> {
    copy_examples(&krablet.manifests())?;
    krablet.start()?;
    tokio::select! {
        biased;
        () = interrupted() => return stop(krablet, endpoint).await,
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
        () = interrupted() => return stop(krablet, endpoint).await,
        web = web_address(&krablet) => web,
    };
    match web {
        Some(address) => println!("The web pod answers: curl http://{address}/"),
        None => println!("The web pod has no address yet; the table will tell."),
    }
    println!("Ctrl-C stops the pods and removes everything.\n");
    let mut table = Command::new(krablet.program())
        .args(["pods", "--watch", "--root-dir"])
        .arg(krablet.root_dir())
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .context("starting the table of pods")?;
    let ended = tokio::select! {
        biased;
        () = interrupted() => None,
        status = table.wait() => Some(status?),
        status = krablet.wait(Duration::MAX) => bail!("krablet ended: {}\n{}", status?, krablet.log_tail()),
    };
    // At a terminal Ctrl-C has reached the table too; its end alone is no reason to stop.
    let by_signal = ended.is_none_or(|status| status.success() || status.code().is_none());
    if let Some(status) = ended
        && !by_signal
    {
        println!("The table of pods ended with {status}. Ctrl-C stops the node.");
        interrupted().await;
    }
    drop(table);
    stop(krablet, endpoint).await
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
/// the runtime. A second Ctrl-C hurries.
async fn stop(mut krablet: Krablet, endpoint: &str) -> Result<()> {
    println!("\nStopping the pods (Ctrl-C again to hurry) …");
    let runtime = RuntimeClient::new(
        &Endpoint::parse(endpoint)?,
        Deadlines::default(),
        CallLog::default(),
    );
    let pods = krablet
        .pods()
        .await
        .map(|pods| pods.items)
        .unwrap_or_default();
    let uids: BTreeSet<String> = pods
        .into_iter()
        .filter_map(|pod| pod.metadata.uid)
        .collect();
    for entry in fs::read_dir(krablet.manifests())?.flatten() {
        let _ = fs::remove_file(entry.path());
    }
    tokio::select! {
        biased;
        () = interrupted() => {}
        () = pods_stopped(&runtime, &uids) => {}
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

/// A stay at a runtime that is not ours: what we bring to it, we take away again.
struct Guest {
    dir: PathBuf,
    ctr: Vec<String>,
    images: Vec<String>,
    cgroups: Vec<PathBuf>,
}

impl Guest {
    async fn arrive(endpoint: &str) -> Result<Self> {
        let socket = endpoint
            .strip_prefix("unix://")
            .with_context(|| format!("RUNTIME={endpoint}: not unix://PATH"))?;
        let (bins, archive) = tokio::task::spawn_blocking(|| {
            anyhow::Ok((parts::ensure(&[Part::Containerd])?, images::standard()?))
        })
        .await??;
        let dir = PathBuf::from(format!("/var/tmp/krablet-run-{}", std::process::id()));
        fs::create_dir_all(&dir)?;
        let program = bins.path("ctr")?.display().to_string();
        let ctr = [
            program.as_str(),
            "--address",
            socket,
            "--namespace",
            "k8s.io",
        ]
        .map(str::to_owned)
        .to_vec();
        let pods = layout::cgroup_roots()
            .into_iter()
            .flat_map(|root| [root.join("kubepods"), root.join("kubepods.slice")]);
        let mut guest = Self {
            dir,
            ctr,
            images: Vec::new(),
            cgroups: pods.filter(|path| !path.exists()).collect(),
        };
        let before = guest.run(&["images", "ls", "-q"]).await?;
        guest
            .run(&["images", "import", &archive.display().to_string()])
            .await?;
        let after = guest.run(&["images", "ls", "-q"]).await?;
        guest.images = after
            .lines()
            .filter(|name| !before.lines().any(|had| had == *name))
            .map(str::to_owned)
            .collect();
        Ok(guest)
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
        if !mounts.contains(&format!(" {}/", self.dir.display())) {
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
