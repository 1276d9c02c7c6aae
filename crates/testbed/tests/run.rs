//! `make run`: what a new user sees first shows the examples at work, and leaves nothing behind.
//! On somebody's runtime it touches nothing it did not bring.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test may fail by panicking"
)]

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use krablet_cri::RuntimeService;
use krablet_cri::v1::{ContainerState, ContainerStatus};
use krablet_testbed::{
    Bed, BedOptions, RawPod, eventually, get, krablet_program, leftovers, packages,
};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::process::{Child, Command};

const LONG: Duration = Duration::from_secs(180);

/// `krablet-lab run`, as `make run` has it, and all it has said so far.
struct Run {
    child: Child,
    said: Arc<Mutex<String>>,
}

impl Run {
    fn start(settings: &[(&str, &str)]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_krablet-lab"))
            .arg("run")
            .env("KRABLET_BIN", krablet_program().unwrap())
            .env_remove("RUNTIME")
            .env_remove("KRABLET_TAKE_RUNTIME")
            .envs(settings.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let said = Arc::default();
        listen(child.stdout.take().unwrap(), &said);
        listen(child.stderr.take().unwrap(), &said);
        Self { child, said }
    }

    fn said(&self) -> String {
        self.said.lock().unwrap().clone()
    }

    /// Waits until it has said these words, and returns the rest of that line.
    async fn says(&self, words: &str) -> String {
        eventually(LONG, words, async || {
            let said = self.said();
            let rest = said.lines().find_map(|line| line.split_once(words));
            rest.map(|(_, rest)| rest.to_owned()).ok_or(said)
        })
        .await
    }

    /// Waits until one line of the table has all of these words.
    async fn shows(&self, words: &[&str]) {
        eventually(LONG, &format!("a row with {words:?}"), async || {
            let said = self.said();
            let row = |line: &str| words.iter().all(|word| line.contains(word));
            said.lines().any(row).then_some(()).ok_or(said)
        })
        .await;
    }

    fn pid(&self) -> u32 {
        self.child.id().expect("krablet-lab runs")
    }

    /// Ends by itself; returns whether all was well.
    async fn ends(&mut self) -> bool {
        let ended = tokio::time::timeout(LONG, self.child.wait()).await;
        ended
            .unwrap_or_else(|_| panic!("krablet-lab does not end\n{}", self.said()))
            .unwrap()
            .success()
    }

    /// Ctrl-C.
    async fn interrupt(&mut self) {
        signal(self.pid(), Signal::INT);
        assert!(self.ends().await, "{}", self.said());
    }
}

fn listen(output: impl AsyncRead + Unpin + Send + 'static, said: &Arc<Mutex<String>>) {
    let said = Arc::clone(said);
    let mut lines = BufReader::new(output).lines();
    tokio::spawn(async move {
        while let Ok(Some(line)) = lines.next_line().await {
            let mut said = said.lock().unwrap();
            said.push_str(&line);
            said.push('\n');
        }
    });
}

fn signal(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
}

async fn answers(address: &str) {
    eventually(LONG, "the web pod answers", async || {
        match get(address, "/").await {
            Ok(answer) if answer.status == 200 => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
}

/// The examples run, edits are taken, and Ctrl-C leaves nothing.
#[tokio::test]
async fn the_examples_run_until_ctrl_c() {
    let mut run = Run::start(&[]);
    let place = run.says("Its container runtime is at unix://").await;
    let socket = Path::new(place.split(',').next().unwrap());
    let manifests = run.says("Pods come from ").await;
    let manifests = PathBuf::from(manifests.split(' ').next().unwrap());
    let bed = manifests.ancestors().nth(2).unwrap();
    assert!(socket.starts_with(bed), "{place} and {manifests:?}");
    let name = bed.file_name().unwrap().to_str().unwrap();

    let address = run.says("The web pod answers: curl http://").await;
    let address = address.trim_end_matches('/');
    answers(address).await;
    run.shows(&["web-krablet", "1/1", "Running"]).await;
    run.shows(&["init-and-sidecar-krablet", "2/2", "Running"])
        .await;
    run.shows(&["crash-loop-krablet", "CrashLoopBackOff"]).await;

    let text = std::fs::read_to_string(manifests.join("web.yaml")).unwrap();
    let another = text.replace("name: web\n", "name: another\n");
    std::fs::write(manifests.join("another.yaml"), another).unwrap();
    run.shows(&["another-krablet", "1/1", "Running"]).await;

    assert!(!leftovers(name).is_empty(), "a node in use is seen");
    run.interrupt().await;
    assert_eq!(leftovers(name), Vec::<String>::new());
}

/// What must not change of a container that is left alone.
fn life(status: &ContainerStatus) -> (ContainerState, i64, i64) {
    (status.state(), status.started_at, status.finished_at)
}

/// Where a run on somebody's runtime keeps its files.
fn luggage(run: u32) -> PathBuf {
    PathBuf::from(format!("/var/tmp/krablet-run-{run}"))
}

#[tokio::test]
async fn a_runtime_with_pods_is_left_alone() {
    let bed = Bed::up(BedOptions::default()).await.unwrap();
    let runtime = bed.runtime().unwrap();
    let foreign = RawPod::run(&bed, &runtime, "foreign", &["hold"])
        .await
        .unwrap();
    let before = runtime.container_status(&foreign.container).await.unwrap();
    assert_eq!(before.state(), ContainerState::ContainerRunning);

    for take in ["", "0", "no"] {
        let endpoint = bed.cri_endpoint();
        let settings = [
            ("RUNTIME", endpoint.as_str()),
            ("KRABLET_TAKE_RUNTIME", take),
        ];
        let mut run = Run::start(&settings);
        let pid = run.pid();
        assert!(!run.ends().await, "{}", run.said());
        run.says("has 1 pod already (default/foreign)").await;
        run.says("KRABLET_TAKE_RUNTIME=1").await;
        assert!(!luggage(pid).exists());
    }

    let after = runtime.container_status(&foreign.container).await.unwrap();
    assert_eq!(life(&after), life(&before));
    assert_eq!(runtime.list_pod_sandbox(None).await.unwrap().len(), 1);
    bed.down().await.unwrap();
}

/// The process below this one whose program is called so.
fn child_of(parent: u32, name: &str) -> Option<u32> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.into_iter().find(|pid| {
        let read = |file: &str| std::fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
        let stat = String::from_utf8_lossy(&read("stat")).into_owned();
        let of = stat
            .rsplit_once(") ")
            .and_then(|(_, rest)| rest.split(' ').nth(1));
        let line = String::from_utf8_lossy(&read("cmdline")).into_owned();
        of == Some(&parent.to_string()) && line.contains(name)
    })
}

/// On a runtime without pods the examples run, and what was brought is taken away again: after Ctrl-C, and
/// also by a run whose agent has died.
#[tokio::test]
async fn a_guest_takes_away_what_it_brought() {
    let bed = Bed::up(BedOptions::default()).await.unwrap();
    let runtime = bed.runtime().unwrap();
    let endpoint = bed.cri_endpoint();
    for dies in [false, true] {
        let mut run = Run::start(&[("RUNTIME", &endpoint)]);
        let pid = run.pid();
        let address = run.says("The web pod answers: curl http://").await;
        answers(address.trim_end_matches('/')).await;
        run.shows(&["init-and-sidecar-krablet", "2/2", "Running"])
            .await;
        assert!(luggage(pid).exists());
        if dies {
            let agent = child_of(pid, "--hostname-override").expect("an agent");
            signal(agent, Signal::KILL);
            assert!(!run.ends().await, "a dead agent is a failure");
            run.says("krablet ended: signal: 9").await;
        } else {
            run.interrupt().await;
        }
        let left = runtime.list_pod_sandbox(None).await.unwrap();
        assert!(left.is_empty(), "{left:?}\n{}", run.said());
        assert!(!luggage(pid).exists(), "{}", run.said());
    }
    let name = bed.name().to_owned();
    bed.down().await.unwrap();
    assert_eq!(leftovers(&name), Vec::<String>::new());
}

/// The Makefile looks for the same packages before anything is built.
#[test]
fn the_makefile_knows_the_packages() {
    let makefile = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../Makefile");
    let makefile = std::fs::read_to_string(makefile).unwrap();
    for (variable, known) in [
        ("BED_NEEDS", packages::BED.as_slice()),
        ("VM_NEEDS", packages::VM.as_slice()),
    ] {
        let line = makefile.lines().find(|line| line.starts_with(variable));
        let (_, value) = line.and_then(|line| line.split_once(":=")).unwrap();
        let mut listed: Vec<&str> = value.split_whitespace().collect();
        let known = known.iter().map(|p| format!("{}:{}", p.name, p.command));
        let mut known: Vec<String> = known.collect();
        listed.sort_unstable();
        known.sort_unstable();
        assert_eq!(listed, known, "{variable}");
    }
}
