//! The agent under test: the real binary with a generated configuration, started, asked and stopped.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use k8s_openapi::List;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};
use tokio::process::{Child, Command};
use tokio::time::Instant;

use crate::bed::tail;
use crate::{Bed, Response, http, ports, proc};

/// How long the agent may take to come up or to end on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// How a test wants its agent.
#[derive(Clone, Debug)]
pub struct KrabletOptions {
    /// Tells agents on one bed apart; the name of the directory that holds all of its files.
    pub name: String,
    /// Fields of the KubeletConfiguration to set; `null` takes a generated one away.
    pub config: Value,
    /// Further arguments.
    pub args: Vec<String>,
    /// Further environment variables.
    pub env: Vec<(String, String)>,
    /// The program; `None` is `$KRABLET_BIN` or the newest build in the target directory.
    pub program: Option<PathBuf>,
    /// The upstream kubelet is to run with the same arguments: none that only krablet knows.
    pub also_kubelet: bool,
}

impl Default for KrabletOptions {
    fn default() -> Self {
        Self {
            name: "krablet".to_owned(),
            config: Value::Null,
            args: Vec::new(),
            env: Vec::new(),
            program: None,
            also_kubelet: false,
        }
    }
}

/// Where an agent is to run.
#[derive(Clone, Debug)]
pub struct Home {
    /// Holds the agent's directories.
    pub dir: PathBuf,
    /// The runtime's endpoint, `unix://…`.
    pub endpoint: String,
    /// The cgroup to work below; `None` is the root.
    pub cgroup_root: Option<String>,
    /// The bed whose keeper ends the agent if nobody else does.
    pub bed: Option<PathBuf>,
}

/// An agent; it is killed when dropped, and by the bed's keeper when the test dies.
#[derive(Debug)]
pub struct Krablet {
    program: PathBuf,
    dir: PathBuf,
    arguments: Vec<String>,
    env: Vec<(String, String)>,
    read_only: String,
    healthz: String,
    child: Option<Child>,
}

impl Bed {
    /// Starts an agent on this bed and waits until its health check answers.
    pub async fn krablet(&self, options: KrabletOptions) -> Result<Krablet> {
        let mut krablet = self.prepare_krablet(options)?;
        krablet.start()?;
        krablet.wait_healthy().await?;
        Ok(krablet)
    }

    /// An agent on this bed with everything in place, not started.
    pub fn prepare_krablet(&self, options: KrabletOptions) -> Result<Krablet> {
        let home = Home {
            dir: self.dir().to_owned(),
            endpoint: self.cri_endpoint(),
            cgroup_root: Some(self.cgroup_parent()),
            bed: Some(self.dir().to_owned()),
        };
        Krablet::prepare(&home, options)
    }
}

impl Krablet {
    /// Writes the agent's configuration and makes its directories; does not start it.
    pub fn prepare(home: &Home, options: KrabletOptions) -> Result<Self> {
        let dir = home.dir.join(&options.name);
        for sub in ["root", "manifests", "pod-logs"] {
            fs::create_dir_all(dir.join(sub))
                .with_context(|| format!("making {sub} in {}", dir.display()))?;
        }
        let (read_only, healthz) = (ports::free()?, ports::free()?);
        let mut config = json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "staticPodPath": dir.join("manifests"),
            "podLogsDir": dir.join("pod-logs"),
            "containerRuntimeEndpoint": home.endpoint,
            "address": "127.0.0.1",
            "port": ports::free()?,
            "readOnlyPort": read_only,
            "healthzBindAddress": "127.0.0.1",
            "healthzPort": healthz,
            "cgroupDriver": "cgroupfs",
            "failCgroupV1": false,
            "failSwapOn": false,
            // How full the disk of the development machine is must not decide over the images and pods of a bed.
            "imageGCHighThresholdPercent": 100,
            "evictionHard": {
                "memory.available": "100Mi",
                "nodefs.available": "0%",
                "nodefs.inodesFree": "0%",
                "imagefs.available": "0%",
                "imagefs.inodesFree": "0%",
            },
            "authentication": {"anonymous": {"enabled": true}, "webhook": {"enabled": false}},
            "authorization": {"mode": "AlwaysAllow"},
        });
        if let Some(root) = &home.cgroup_root {
            merge(&mut config, json!({"cgroupRoot": root}));
        }
        merge(&mut config, options.config);
        // JSON is YAML, and easier to get right.
        fs::write(
            dir.join("config.yaml"),
            serde_json::to_string_pretty(&config)?,
        )?;
        let mut arguments = vec![
            format!("--config={}", dir.join("config.yaml").display()),
            format!("--root-dir={}", dir.join("root").display()),
            format!("--cert-dir={}", dir.join("pki").display()),
            format!("--hostname-override={}", options.name),
        ];
        if !options.also_kubelet {
            // No two beds, and nobody else on the machine, are to see each other's links.
            let links = container_logs(&dir);
            arguments.push(format!("--container-logs-dir={}", links.display()));
        }
        arguments.extend(options.args);
        let mut env = options.env;
        env.extend(
            home.bed
                .iter()
                .map(|bed| ("KRABLET_BED".to_owned(), bed.display().to_string())),
        );
        Ok(Self {
            program: options.program.map_or_else(program, Ok)?,
            dir,
            arguments,
            env,
            read_only: format!("127.0.0.1:{read_only}"),
            healthz: format!("127.0.0.1:{healthz}"),
            child: None,
        })
    }

    /// Starts the process; an error if it runs already.
    pub fn start(&mut self) -> Result<()> {
        if self.is_running() {
            bail!("{} runs already", self.program.display());
        }
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.log_path())?;
        let mut command = Command::new(&self.program);
        command
            .args(&self.arguments)
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .stdin(std::process::Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            // Ctrl-C at the terminal is for whoever owns the agent.
            .process_group(0)
            .kill_on_drop(true);
        self.child = Some(
            command
                .spawn()
                .with_context(|| format!("starting {}", self.program.display()))?,
        );
        Ok(())
    }

    /// Waits until the health check says ok.
    pub async fn wait_healthy(&mut self) -> Result<()> {
        let end = Instant::now() + PATIENCE;
        loop {
            let state = match self.healthz().await {
                Ok(answer) if answer.status == 200 => return Ok(()),
                Ok(answer) => format!("{} {}", answer.status, answer.body),
                Err(why) => format!("{why:#}"),
            };
            if let Some(status) = self.try_wait()? {
                bail!(
                    "{} ended with {status}\n{}",
                    self.program.display(),
                    self.log_tail()
                );
            }
            if Instant::now() > end {
                bail!("not healthy: {state}\n{}", self.log_tail());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Puts a manifest in place in one step, as a careful operator does.
    pub fn write_manifest(&self, name: &str, text: &str) -> Result<()> {
        let hidden = self.manifests().join(format!(".{name}.new"));
        fs::write(&hidden, text)?;
        fs::rename(&hidden, self.manifests().join(name)).with_context(|| format!("manifest {name}"))
    }

    pub fn remove_manifest(&self, name: &str) -> Result<()> {
        fs::remove_file(self.manifests().join(name)).with_context(|| format!("manifest {name}"))
    }

    /// The directory the agent takes static pods from.
    pub fn manifests(&self) -> PathBuf {
        self.dir.join("manifests")
    }

    /// The agent's root directory.
    pub fn root_dir(&self) -> PathBuf {
        self.dir.join("root")
    }

    /// The directory of the pods' logs.
    pub fn pod_logs(&self) -> PathBuf {
        self.dir.join("pod-logs")
    }

    /// The directory of the links to containers' logs; not that of an agent that takes turns with the kubelet.
    pub fn container_logs(&self) -> PathBuf {
        container_logs(&self.dir)
    }

    /// The next start is one of this program, over the same directories and with the same settings.
    pub fn replace_program(&mut self, program: PathBuf) {
        self.program = program;
    }

    /// The program it is started from.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// The pods as the read-only port shows them.
    pub async fn pods(&self) -> Result<List<Pod>> {
        let answer = self.get("/pods").await?;
        if answer.status != 200 {
            bail!("/pods: {} {}", answer.status, answer.body);
        }
        serde_json::from_str(&answer.body).context("/pods")
    }

    /// The pod of that name as `/pods` shows it; the error says which pods there are.
    pub async fn pod(&self, name: &str) -> Result<Pod> {
        let pods = self.pods().await?;
        let names: Vec<String> = pods
            .items
            .iter()
            .filter_map(|pod| pod.metadata.name.clone())
            .collect();
        let found = pods
            .items
            .into_iter()
            .find(|pod| pod.metadata.name.as_deref() == Some(name));
        found.with_context(|| format!("no pod {name} among {names:?}"))
    }

    /// Gets a path from the read-only port.
    pub async fn get(&self, path: &str) -> Result<Response> {
        http::get(&self.read_only, path).await
    }

    pub async fn healthz(&self) -> Result<Response> {
        http::get(&self.healthz, "/healthz").await
    }

    /// The text of `/metrics`.
    pub async fn metrics(&self) -> Result<String> {
        Ok(self.get("/metrics").await?.body)
    }

    /// The agent's process id while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().and_then(Child::id)
    }

    pub fn is_running(&mut self) -> bool {
        matches!(self.try_wait(), Ok(None)) && self.child.is_some()
    }

    /// How the process ended, if it has.
    pub fn try_wait(&mut self) -> Result<Option<ExitStatus>> {
        match &mut self.child {
            Some(child) => Ok(child.try_wait()?),
            None => Ok(None),
        }
    }

    /// Waits for the process to end by itself.
    pub async fn wait(&mut self, patience: Duration) -> Result<ExitStatus> {
        let child = self.child.as_mut().context("the agent was not started")?;
        let ended = tokio::time::timeout(patience, child.wait()).await;
        let status = ended.with_context(|| {
            format!(
                "the agent does not end\n{}",
                tail(&self.dir.join("krablet.log"), 40)
            )
        })??;
        self.child = None;
        Ok(status)
    }

    /// SIGKILL, as in a crash; returns when the process is gone.
    pub async fn kill9(&mut self) -> Result<()> {
        if let Some(mut child) = self.child.take() {
            child.kill().await?;
        }
        Ok(())
    }

    /// SIGTERM; returns how the process ended.
    pub async fn terminate(&mut self) -> Result<ExitStatus> {
        let pid = self
            .pid()
            .and_then(|pid| rustix::process::Pid::from_raw(i32::try_from(pid).ok()?));
        rustix::process::kill_process(
            pid.context("the agent does not run")?,
            rustix::process::Signal::TERM,
        )?;
        self.wait(PATIENCE).await
    }

    /// Stops it orderly and starts it again over the same directories.
    pub async fn restart(&mut self) -> Result<()> {
        self.terminate().await?;
        self.start()?;
        self.wait_healthy().await
    }

    /// Runs the program with other arguments, such as `pods`, and returns what it printed.
    pub async fn run(&self, arguments: &[&str]) -> Result<std::process::Output> {
        let run = Command::new(&self.program)
            .args(arguments)
            .kill_on_drop(true)
            .output();
        Ok(tokio::time::timeout(PATIENCE, run)
            .await
            .with_context(|| format!("{arguments:?} does not end"))??)
    }

    pub fn log_path(&self) -> PathBuf {
        self.dir.join("krablet.log")
    }

    /// Everything the agent has logged.
    pub fn log(&self) -> String {
        fs::read(self.log_path())
            .map(|text| String::from_utf8_lossy(&text).into_owned())
            .unwrap_or_default()
    }

    /// The last lines of the agent's log.
    pub fn log_tail(&self) -> String {
        tail(&self.log_path(), 60)
    }

    /// Resident memory in bytes.
    pub fn rss(&self) -> Result<u64> {
        proc::rss(self.pid().context("the agent does not run")?)
    }

    /// Processor time used so far.
    pub fn cpu_time(&self) -> Result<Duration> {
        proc::cpu_time(self.pid().context("the agent does not run")?)
    }
}

fn container_logs(dir: &Path) -> PathBuf {
    dir.join("containers")
}

/// The agent's binary: `$KRABLET_BIN`, else the later built of the release and the debug one.
pub fn program() -> Result<PathBuf> {
    if let Some(program) = std::env::var_os("KRABLET_BIN").filter(|value| !value.is_empty()) {
        return Ok(std::path::absolute(program)?);
    }
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target"),
        PathBuf::from,
    );
    ["release", "debug"]
        .map(|profile| target.join(profile).join("krablet"))
        .into_iter()
        .filter_map(|path| Some((fs::metadata(&path).ok()?.modified().ok()?, path)))
        .max()
        .map(|(_, path)| path)
        .context("no krablet binary: build it with `cargo build -p krablet`, or set KRABLET_BIN")
}

/// Lays `patch` over `base`: objects field by field, `null` removes, anything else replaces.
fn merge(base: &mut Value, patch: Value) {
    match (base, patch) {
        (Value::Object(base), Value::Object(patch)) => {
            for (key, value) in patch {
                if value.is_null() {
                    base.remove(&key);
                } else {
                    merge(base.entry(key).or_insert(Value::Null), value);
                }
            }
        }
        (_, Value::Null) => {}
        (base, patch) => *base = patch,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overrides_are_laid_over_the_generated_fields() {
        let mut config = json!({"a": {"b": 1, "c": 2}, "d": 3, "e": [1]});
        merge(
            &mut config,
            json!({"a": {"c": 4}, "d": null, "e": [2], "f": {"g": 5}}),
        );
        assert_eq!(
            config,
            json!({"a": {"b": 1, "c": 4}, "e": [2], "f": {"g": 5}})
        );
        merge(&mut config, Value::Null);
        assert_eq!(config["f"]["g"], 5);
    }
}
