//! A bed: one isolated containerd with its images, its network and its cgroup parent.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use krablet_cri::v1::StatusResponse;
use krablet_cri::{CallLog, Deadlines, Endpoint, ImageClient, RuntimeClient, RuntimeService};
use tokio::net::UnixStream;
use tokio::process::Command;
use tokio::time::Instant;

use crate::images::Variant;
use crate::keeper::Keeper;
use crate::parts::{Bins, Part};
use crate::{cache, images, layout, packages, parts};

pub use crate::layout::beds_root;

/// How long containerd may take to come up on a busy machine.
const START_PATIENCE: Duration = Duration::from_secs(120);

/// Which containerd a bed has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Containerd {
    /// The one the project pins.
    #[default]
    Pinned,
    /// The distribution's, which many users have: CRI v1, but without container events.
    Debian,
}

/// What a bed may be asked for beyond the ordinary.
#[derive(Clone, Debug, Default)]
pub struct BedOptions {
    pub containerd: Containerd,
    /// Further variants of the tool image to have in the runtime.
    pub images: Vec<Variant>,
    /// Parts beside containerd and the CNI plugins whose binaries the test wants.
    pub parts: Vec<Part>,
    /// Lines added to containerd's configuration.
    pub containerd_config: String,
}

/// An isolated container runtime, up from [`Bed::up`] until [`Bed::down`] or the end of its owner.
///
/// Nothing outlives it: a keeper process of its own removes every process, mount, interface,
/// cgroup and directory of the bed when the bed is dropped or the process that holds it dies.
#[derive(Debug)]
pub struct Bed {
    name: String,
    dir: PathBuf,
    bins: Bins,
    keeper: Arc<Mutex<Keeper>>,
    /// Process id of containerd, 0 when it does not run.
    containerd: AtomicU32,
}

impl Bed {
    /// Brings up a bed and waits until its runtime is ready. The first time ever this builds
    /// containerd and the rest, which takes minutes; later it takes about a second.
    pub async fn up(options: BedOptions) -> Result<Self> {
        let ready = tokio::task::spawn_blocking(move || prepare(&options)).await??;
        let bed = Self {
            name: ready.name,
            dir: ready.dir,
            bins: ready.bins,
            keeper: Arc::new(Mutex::new(ready.keeper)),
            containerd: AtomicU32::new(0),
        };
        bed.start_containerd().await?;
        for archive in &ready.archives {
            let archive = archive.display().to_string();
            bed.ctr(&["images", "import", &archive]).await?;
        }
        Ok(bed)
    }

    /// The bed's name, unique among living beds; good as a hostname.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The directory that holds all of the bed's files.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The path of containerd's socket.
    pub fn socket(&self) -> PathBuf {
        layout::socket(&self.dir)
    }

    /// The same as a CRI endpoint, `unix://…`.
    pub fn cri_endpoint(&self) -> String {
        format!("unix://{}", self.socket().display())
    }

    /// A client of the runtime, with deadlines for a busy machine.
    pub fn runtime(&self) -> Result<RuntimeClient> {
        let endpoint = Endpoint::parse(&self.cri_endpoint())?;
        Ok(RuntimeClient::new(
            &endpoint,
            Deadlines::default(),
            CallLog::default(),
        ))
    }

    /// A client of the runtime's image service.
    pub fn images(&self) -> Result<ImageClient> {
        let endpoint = Endpoint::parse(&self.cri_endpoint())?;
        Ok(ImageClient::new(
            &endpoint,
            Deadlines::default(),
            CallLog::default(),
        ))
    }

    /// The cgroup below which the bed's pods belong, as an absolute cgroupfs path.
    pub fn cgroup_parent(&self) -> String {
        format!("/{}", layout::cgroup(&self.name))
    }

    /// The name of the bridge its pods are attached to.
    pub fn bridge(&self) -> String {
        layout::bridge(&self.name)
    }

    /// The binaries of the parts the bed was made with.
    pub fn bins(&self) -> &Bins {
        &self.bins
    }

    /// Runs `ctr` in the CRI plugin's namespace and returns what it printed.
    pub async fn ctr(&self, arguments: &[&str]) -> Result<String> {
        let mut command = Command::new(self.bins.path("ctr")?);
        command
            .arg("--address")
            .arg(self.socket())
            .args(["--namespace", "k8s.io"])
            .args(arguments)
            .kill_on_drop(true);
        let output = tokio::time::timeout(Duration::from_secs(120), command.output())
            .await
            .with_context(|| format!("ctr {arguments:?} does not end\n{}", self.log_tail()))??;
        if !output.status.success() {
            bail!(
                "ctr {arguments:?}: {}{}",
                String::from_utf8_lossy(&output.stderr),
                self.log_tail()
            );
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Starts containerd and waits until its CRI service answers and is ready.
    pub async fn start_containerd(&self) -> Result<()> {
        let pid = self.ask("start containerd").await?;
        self.containerd
            .store(pid.parse().context("pid of containerd")?, Ordering::Relaxed);
        self.wait_ready().await
    }

    /// Stops containerd as a service manager would; shims and containers go on.
    pub async fn stop_containerd(&self) -> Result<()> {
        self.containerd.store(0, Ordering::Relaxed);
        self.ask("stop containerd").await.map(drop)
    }

    /// Ends containerd with SIGKILL; shims and containers go on.
    pub async fn kill_containerd(&self) -> Result<()> {
        self.containerd.store(0, Ordering::Relaxed);
        self.ask("kill containerd").await.map(drop)
    }

    /// The machine of this bed loses its power: every process of it ends, agents too, and what is
    /// kept in memory is lost. [`start_containerd`](Self::start_containerd) follows.
    pub async fn power_cut(&self) -> Result<()> {
        self.containerd.store(0, Ordering::Relaxed);
        self.ask("cut").await.map(drop)
    }

    /// The process id of containerd, if it runs.
    pub fn containerd_pid(&self) -> Option<u32> {
        let pid = self.containerd.load(Ordering::Relaxed);
        // The keeper reaps it as soon as it ends.
        (pid != 0 && Path::new("/proc").join(pid.to_string()).exists()).then_some(pid)
    }

    /// The process ids of the bed's shims.
    pub fn shim_pids(&self) -> Vec<u32> {
        // The kernel keeps fifteen characters of a name.
        self.processes("containerd-shim")
    }

    /// Kills every shim, as if the machine had run out of memory for them.
    pub fn kill_shims(&self) {
        for pid in self.shim_pids() {
            kill(pid);
        }
    }

    fn processes(&self, name: &str) -> Vec<u32> {
        crate::leftovers::marked_processes(&self.dir)
            .into_iter()
            .filter(|pid| {
                fs::read_to_string(format!("/proc/{pid}/comm"))
                    .is_ok_and(|comm| comm.trim() == name)
            })
            .collect()
    }

    /// The last lines of containerd's log.
    pub fn log_tail(&self) -> String {
        tail(&self.dir.join("containerd.log"), 40)
    }

    /// Process id of the keeper.
    pub fn keeper_pid(&self) -> u32 {
        lock(&self.keeper).pid()
    }

    /// Takes the bed down and reports what could not be removed.
    pub async fn down(self) -> Result<()> {
        let keeper = Arc::clone(&self.keeper);
        tokio::task::spawn_blocking(move || lock(&keeper).down()).await?
    }

    async fn ask(&self, command: &'static str) -> Result<String> {
        let keeper = Arc::clone(&self.keeper);
        tokio::task::spawn_blocking(move || lock(&keeper).ask(command)).await?
    }

    async fn wait_ready(&self) -> Result<()> {
        let end = Instant::now() + START_PATIENCE;
        while let Err(why) = UnixStream::connect(self.socket()).await {
            if self.containerd_pid().is_none() || Instant::now() > end {
                bail!("containerd does not listen: {why}\n{}", self.log_tail());
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let runtime = self.runtime()?;
        loop {
            let state = match runtime.status().await {
                Ok(answer) => match unmet_conditions(answer) {
                    unmet if unmet.is_empty() => return Ok(()),
                    unmet => unmet.join(", "),
                },
                Err(why) => why.to_string(),
            };
            if self.containerd_pid().is_none() || Instant::now() > end {
                bail!("containerd is not ready: {state}\n{}", self.log_tail());
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// What the runtime says it still lacks. Other conditions than these two are advice.
fn unmet_conditions(answer: StatusResponse) -> Vec<String> {
    let conditions = answer.status.unwrap_or_default().conditions;
    let needed = ["RuntimeReady", "NetworkReady"].iter();
    let unmet = needed.filter(|name| !conditions.iter().any(|c| c.r#type == **name && c.status));
    unmet
        .map(|name| format!("{name} is missing in {conditions:?}"))
        .collect()
}

fn lock(keeper: &Mutex<Keeper>) -> MutexGuard<'_, Keeper> {
    keeper.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn kill(pid: u32) {
    let pid = i32::try_from(pid)
        .ok()
        .and_then(rustix::process::Pid::from_raw);
    if let Some(pid) = pid {
        // Gone already is as good.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
}

/// The last `count` lines of a file that a process is writing.
pub(crate) fn tail(path: &Path, count: usize) -> String {
    let text = fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    let from = lines.len().saturating_sub(count);
    format!(
        "--- {} (last {count} lines)\n{}\n",
        path.display(),
        lines.get(from..).unwrap_or_default().join("\n")
    )
}

/// A bed whose keeper is on watch and whose containerd is not started yet.
struct Ready {
    name: String,
    dir: PathBuf,
    bins: Bins,
    keeper: Keeper,
    archives: Vec<PathBuf>,
}

fn prepare(options: &BedOptions) -> Result<Ready> {
    let packages = packages::ensure(&packages::BED);
    if !rustix::process::geteuid().is_root() {
        let why = "a bed needs root rights: it makes cgroups, mounts and network interfaces";
        // Both at once: who gets the rights would only learn of the packages next.
        return Err(packages.map_or_else(|missing| missing.context(why), |()| anyhow!(why)));
    }
    packages?;
    let mut wanted = vec![Part::Containerd, Part::Cni];
    wanted.extend(&options.parts);
    let mut bins = parts::ensure(&wanted)?;
    if options.containerd == Containerd::Debian {
        bins = parts::with_debian_containerd(bins)?;
    }
    let mut archives = vec![images::standard()?];
    if !options.images.is_empty() {
        archives.push(images::variants(&options.images)?);
    }
    crate::keeper::program()?;
    let _registry = cache::lock("beds")?;
    let place = layout::claim()?;
    match furnish(&place, &bins, options) {
        Ok(keeper) => Ok(Ready {
            name: place.name,
            dir: place.dir,
            bins,
            keeper,
            archives,
        }),
        Err(why) => {
            // No keeper watches over it yet.
            let _ = fs::remove_dir_all(&place.dir);
            Err(why)
        }
    }
}

fn furnish(place: &layout::Place, bins: &Bins, options: &BedOptions) -> Result<Keeper> {
    layout::write_files(place, bins, options)?;
    let keeper = Keeper::start(&place.dir)?;
    layout::make_cgroups(&layout::cgroup(&place.name))?;
    Ok(keeper)
}
