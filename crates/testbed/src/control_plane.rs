//! A control plane: etcd, kube-apiserver, kube-controller-manager and kube-scheduler, the real ones,
//! set up as kubeadm would, in a directory and on ports of their own.
//!
//! It stands beside a [`Bed`](crate::Bed) and knows nothing of it: a test joins agents on any number
//! of beds to one control plane. Nothing in it belongs to one async runtime, so tests may share it.

mod client;
mod components;
mod kubeconfig;
mod kubectl;
mod metrics_server;
mod objects;
mod pki;
mod site;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::Signal;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::bed::tail;
use crate::keeper::Keeper;
use crate::parts::Bins;
use crate::{Response, ports};

use self::client::{Client, Credentials};
pub use self::components::Component;
use self::components::Site;
pub use self::kubeconfig::{Kubeconfig, Trust, User};
use self::objects::Token;
use self::pki::Authority;
pub use self::pki::{ClientCertificate, Pair};

/// How long a component may take to come up on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// How often other ports are tried when somebody took the first ones.
const ATTEMPTS: u32 = 5;

/// What a control plane may be asked for beyond the ordinary. The default has every component.
#[derive(Clone, Debug)]
pub struct ControlPlaneOptions {
    pub controller_manager: bool,
    pub scheduler: bool,
    /// How long the certificates live that are signed on request; `None` is the year of upstream.
    pub signing_duration: Option<Duration>,
    /// Further arguments of kube-apiserver.
    pub apiserver_args: Vec<String>,
    /// Further arguments of kube-controller-manager.
    pub controller_manager_args: Vec<String>,
    /// Further arguments of kube-scheduler.
    pub scheduler_args: Vec<String>,
}

impl Default for ControlPlaneOptions {
    fn default() -> Self {
        Self {
            controller_manager: true,
            scheduler: true,
            signing_duration: None,
            apiserver_args: Vec::new(),
            controller_manager_args: Vec::new(),
            scheduler_args: Vec::new(),
        }
    }
}

impl ControlPlaneOptions {
    fn components(&self) -> Vec<Component> {
        let mut all = vec![Component::Etcd, Component::Apiserver];
        all.extend(
            self.controller_manager
                .then_some(Component::ControllerManager),
        );
        all.extend(self.scheduler.then_some(Component::Scheduler));
        all
    }
}

/// A cluster without nodes, up from [`ControlPlane::up`] until [`ControlPlane::down`] or the end of
/// its owner, however that comes.
#[derive(Debug)]
pub struct ControlPlane {
    name: String,
    site: Site,
    bins: Bins,
    keeper: Arc<Mutex<Keeper>>,
    options: ControlPlaneOptions,
    authority: Authority,
    /// Has the authority's name and signs for those who are not to be believed.
    foreign: Authority,
    token: Token,
    admin: Client,
    /// What was started and not stopped since.
    pids: Mutex<BTreeMap<Component, u32>>,
}

impl ControlPlane {
    /// Brings up a control plane that nodes can join: the server is ready, bootstrap tokens are
    /// honoured, and the default namespace has what pods need. The first time ever this builds the
    /// parts, which takes minutes.
    pub async fn up(options: ControlPlaneOptions) -> Result<Self> {
        let mut plane = tokio::task::spawn_blocking(move || site::prepare(options)).await??;
        for attempt in 1..=ATTEMPTS {
            match plane.come_up().await {
                Ok(()) => return Ok(plane),
                Err(_) if attempt < ATTEMPTS && plane.port_is_taken() => plane.move_away().await?,
                Err(why) => return Err(why),
            }
        }
        bail!("no free ports for a control plane")
    }

    /// Its name, unique among living control planes and beds.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The directory that holds all of its files.
    pub fn dir(&self) -> &Path {
        &self.site.dir
    }

    /// Where the API server is, `https://127.0.0.1:…`.
    pub fn server_url(&self) -> String {
        format!("https://127.0.0.1:{}", self.site.port)
    }

    /// Where it is for those who are not on the machine's own loopback, such as pods.
    pub fn outside_url(&self) -> Option<String> {
        let address = self.site.address?;
        Some(format!("https://{address}:{}", self.site.port))
    }

    /// The file with the certificate of the cluster's authority.
    pub fn ca_file(&self) -> PathBuf {
        PathBuf::from(self.site.pki("ca.crt"))
    }

    /// The binaries of its parts, such as kubectl.
    pub fn bins(&self) -> &Bins {
        &self.bins
    }

    /// The process id of a component that was started and has not ended.
    pub fn pid(&self, component: Component) -> Option<u32> {
        let pid = self.pids().get(&component).copied()?;
        // The keeper reaps it as soon as it ends.
        Path::new("/proc")
            .join(pid.to_string())
            .exists()
            .then_some(pid)
    }

    /// Process id of the keeper.
    pub fn keeper_pid(&self) -> u32 {
        lock(&self.keeper).pid()
    }

    /// The last lines a component has logged.
    pub fn logs(&self, component: Component) -> String {
        tail(&self.site.log(component), 60)
    }

    /// The last lines of everybody's log.
    pub fn evidence(&self) -> String {
        let all = self.options.components();
        all.into_iter().map(|one| self.logs(one)).collect()
    }

    /// Takes it down and reports what could not be removed.
    pub async fn down(self) -> Result<()> {
        let keeper = Arc::clone(&self.keeper);
        tokio::task::spawn_blocking(move || lock(&keeper).down()).await?
    }
}

/// What an administrator asks of the server, without the cost of a kubectl.
impl ControlPlane {
    /// The object or list at that path, such as `/api/v1/nodes`.
    pub async fn get_json(&self, path: &str) -> Result<Value> {
        self.admin.json("GET", path, None).await
    }

    /// Creates an object in the collection at that path.
    pub async fn create(&self, path: &str, object: &Value) -> Result<Value> {
        self.admin.json("POST", path, Some(object)).await
    }

    /// Lays a merge patch over the object at that path.
    pub async fn patch(&self, path: &str, patch: &Value) -> Result<Value> {
        self.admin.json("PATCH", path, Some(patch)).await
    }

    /// Deletes the object at that path, with the grace it asks for.
    pub async fn delete(&self, path: &str) -> Result<Value> {
        self.admin.json("DELETE", path, None).await
    }

    /// Any request, with its answer whatever the status.
    pub async fn request(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Response> {
        self.admin.request(method, path, body).await
    }
}

/// The components come and go.
impl ControlPlane {
    /// Starts a component that does not run; of etcd and the API server also waits for the answer.
    pub async fn start(&self, component: Component) -> Result<()> {
        if self.pid(component).is_some() {
            bail!("{} runs already", component.name());
        }
        self.launch(component).await?;
        match component {
            Component::Etcd => self.wait_etcd().await,
            Component::Apiserver => self.wait_apiserver().await,
            Component::ControllerManager | Component::Scheduler => Ok(()),
        }
    }

    /// Ends a component as a service manager would.
    pub async fn stop(&self, component: Component) -> Result<()> {
        // One that was paused would not hear of it.
        self.signal(component, Signal::CONT)?;
        self.pids().remove(&component);
        self.ask(format!("stop {}", component.name()))
            .await
            .map(drop)
    }

    /// Ends a component with SIGKILL.
    pub async fn kill(&self, component: Component) -> Result<()> {
        self.pids().remove(&component);
        self.ask(format!("kill {}", component.name()))
            .await
            .map(drop)
    }

    /// Stops a component's process without ending it: whoever asks it gets no answer at all.
    pub fn pause(&self, component: Component) -> Result<()> {
        self.signal(component, Signal::STOP)
    }

    /// Lets a paused component go on.
    pub fn resume(&self, component: Component) -> Result<()> {
        self.signal(component, Signal::CONT)
    }

    pub async fn stop_apiserver(&self) -> Result<()> {
        self.stop(Component::Apiserver).await
    }

    pub async fn kill_apiserver(&self) -> Result<()> {
        self.kill(Component::Apiserver).await
    }

    /// Starts it on the port it had and waits until it is ready.
    pub async fn start_apiserver(&self) -> Result<()> {
        self.start(Component::Apiserver).await
    }

    pub fn pause_apiserver(&self) -> Result<()> {
        self.pause(Component::Apiserver)
    }

    pub fn resume_apiserver(&self) -> Result<()> {
        self.resume(Component::Apiserver)
    }

    /// The cluster loses its memory: everything stops, the data goes, and what makes joining possible
    /// is made again. Controllers start over too, since they would trust what they remember.
    pub async fn wipe_etcd(&self) -> Result<()> {
        let running: Vec<Component> = self.pids().keys().copied().collect();
        for component in running.into_iter().rev() {
            self.kill(component).await?;
        }
        fs::remove_dir_all(self.site.etcd_data()).context("removing etcd's data")?;
        self.start_everything().await
    }

    fn signal(&self, component: Component, signal: Signal) -> Result<()> {
        let pid = self
            .pid(component)
            .and_then(|pid| rustix::process::Pid::from_raw(i32::try_from(pid).ok()?))
            .with_context(|| format!("{} does not run", component.name()))?;
        Ok(rustix::process::kill_process(pid, signal)?)
    }
}

/// How it comes up.
impl ControlPlane {
    async fn come_up(&mut self) -> Result<()> {
        self.write_files()?;
        self.start_everything().await
    }

    async fn start_everything(&self) -> Result<()> {
        // In this order, since kube-controller-manager gives up on a server that is not there in time.
        for component in self.options.components() {
            self.start(component).await?;
        }
        self.furnish().await
    }

    async fn launch(&self, component: Component) -> Result<()> {
        let pid = self.ask(format!("start {}", component.name())).await?;
        let pid = pid.parse().context("process id")?;
        self.pids().insert(component, pid);
        Ok(())
    }

    async fn wait_etcd(&self) -> Result<()> {
        self.until("etcd listens", async || {
            TcpStream::connect(("127.0.0.1", self.site.etcd_port)).await?;
            Ok(())
        })
        .await
    }

    async fn wait_apiserver(&self) -> Result<()> {
        self.until("kube-apiserver is ready", async || {
            let answer = self.admin.request("GET", "/readyz", None).await?;
            if answer.status != 200 {
                bail!("{} {}", answer.status, answer.body);
            }
            Ok(())
        })
        .await
    }

    /// Makes what kubeadm makes, and waits for what controllers make.
    async fn furnish(&self) -> Result<()> {
        for (path, object) in objects::for_joining(&self.token) {
            self.place(&path, &object).await?;
        }
        let accounts = "/api/v1/namespaces/default/serviceaccounts";
        let maps = "/api/v1/namespaces/default/configmaps";
        if !self.options.controller_manager {
            self.place(accounts, &objects::default_account()).await?;
            let root = objects::root_authority(&self.authority.certificate());
            self.place(maps, &root).await?;
        }
        self.until("the default namespace has what pods need", async || {
            self.get_json(&format!("{accounts}/default")).await?;
            self.get_json(&format!("{maps}/kube-root-ca.crt")).await?;
            Ok(())
        })
        .await?;
        let authority = self.authority.certificate();
        let token = Credentials::Token(self.token.to_string());
        let joining = Client::new(self.site.port, &authority, token)?;
        self.until("the bootstrap token is honoured", async || {
            let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
            let question = objects::may_request_certificates();
            let answer = joining.json("POST", path, Some(&question)).await?;
            if answer["status"]["allowed"] != true {
                bail!("{}", answer["status"]);
            }
            Ok(())
        })
        .await
    }

    /// Creates an object as soon as the server takes it: roles and namespaces of its own come first.
    async fn place(&self, path: &str, object: &Value) -> Result<()> {
        self.until(path, async || {
            let answer = self.request("POST", path, Some(object)).await?;
            match answer.status {
                201 | 409 => Ok(()),
                other => bail!("{other} {}", answer.body),
            }
        })
        .await
    }

    /// Waits until `check` is content, unless a component ends first.
    async fn until(&self, what: &str, mut check: impl AsyncFnMut() -> Result<()>) -> Result<()> {
        let end = Instant::now() + PATIENCE;
        loop {
            let Err(why) = check().await else {
                return Ok(());
            };
            if let Some(dead) = self.ended_component() {
                bail!("{} has ended\n{}", dead.name(), self.logs(dead));
            }
            if Instant::now() > end {
                return Err(why.context(format!("not in time: {what}\n{}", self.evidence())));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn ended_component(&self) -> Option<Component> {
        let started: Vec<Component> = self.pids().keys().copied().collect();
        started.into_iter().find(|one| self.pid(*one).is_none())
    }

    fn port_is_taken(&self) -> bool {
        let logs = [Component::Etcd, Component::Apiserver].map(|one| self.logs(one));
        logs.iter()
            .any(|log| log.contains("address already in use"))
    }

    /// Ends what was started and takes other ports.
    async fn move_away(&mut self) -> Result<()> {
        let started: Vec<Component> = self.pids().keys().copied().collect();
        for component in started {
            self.kill(component).await?;
        }
        for component in self.options.components() {
            let _ = fs::remove_file(self.site.log(component));
        }
        let _ = fs::remove_dir_all(self.site.etcd_data());
        (self.site.etcd_port, self.site.port) = (ports::steady()?, ports::steady()?);
        self.admin.set_port(self.site.port);
        Ok(())
    }

    async fn ask(&self, command: String) -> Result<String> {
        let keeper = Arc::clone(&self.keeper);
        tokio::task::spawn_blocking(move || lock(&keeper).ask(&command)).await?
    }

    fn pids(&self) -> MutexGuard<'_, BTreeMap<Component, u32>> {
        self.pids.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn lock(keeper: &Mutex<Keeper>) -> MutexGuard<'_, Keeper> {
    keeper.lock().unwrap_or_else(PoisonError::into_inner)
}
