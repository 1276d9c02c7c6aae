//! What the kernel holds pods, their classes and the node to: the files of their cgroups.

use std::fs;
use std::path::{Path, PathBuf};

use krablet_cri::RuntimeService;
use krablet_e2e::cluster_stage::Joining;
use krablet_e2e::manifest::{single, tool, with};
use krablet_e2e::stage::options;
use krablet_e2e::{LONG, Member, status};
use serde_json::{Value, json};

use crate::inside::{end_all, inside, says};

const MOUNT: &str = "/sys/fs/cgroup";

fn unified() -> bool {
    Path::new(MOUNT).join("cgroup.controllers").exists()
}

/// A file of a cgroup, by what it is called in either version.
pub fn read(cgroup: &str, controller: &str, v1: &str, v2: &str) -> String {
    let (dir, file) = match unified() {
        true => (PathBuf::from(MOUNT), v2),
        false => (Path::new(MOUNT).join(controller), v1),
    };
    let path = dir.join(cgroup.trim_start_matches('/')).join(file);
    let text = fs::read_to_string(&path);
    let text = text.unwrap_or_else(|e| format!("{}: {e}", path.display()));
    text.trim().to_owned()
}

/// As `cpu.shares` count; a weight is told as the shares that come nearest from below.
fn shares(cgroup: &str) -> String {
    read(cgroup, "cpu", "cpu.shares", "cpu.weight")
}

/// The shares in the words of this machine.
fn weight(shares: u64) -> String {
    match unified() {
        true => 1 + (shares - 2) * 9999 / 262_142,
        false => shares,
    }
    .to_string()
}

/// Microseconds in a tenth of a second, or -1.
pub fn quota(cgroup: &str) -> String {
    let text = read(cgroup, "cpu", "cpu.cfs_quota_us", "cpu.max");
    let first = text.split(' ').next().unwrap_or_default();
    first.replace("max", "-1")
}

/// Bytes, or `max`.
pub fn memory(cgroup: &str) -> String {
    let text = read(cgroup, "memory", "memory.limit_in_bytes", "memory.max");
    match text.parse::<u64>() {
        Ok(bytes) if bytes > 1 << 60 => "max".to_owned(),
        _ => text,
    }
}

fn pids(cgroup: &str) -> String {
    read(cgroup, "pids", "pids.max", "pids.max")
}

fn asking(name: &str, requests: Value, limits: Value) -> Value {
    let resources = json!({"resources": {"requests": requests, "limits": limits}});
    single(name, with(tool("main", &["hold"]), resources))
}

/// The cgroup of a pod of that class.
pub async fn cgroup(node: &Member, pod: &str, class: &str) -> String {
    let uid = status::uid(&node.pod(pod).await.unwrap());
    format!("{}{class}/pod{uid}", root(node))
}

fn root(node: &Member) -> String {
    format!("{}/kubepods", node.stage.bed.cgroup_parent())
}

/// `shares quota memory pids` of a cgroup.
fn shown(cgroup: &str) -> [String; 4] {
    [shares(cgroup), quota(cgroup), memory(cgroup), pids(cgroup)]
}

fn expected(shares: u64, quota: &str, memory: &str, pids: &str) -> [String; 4] {
    [weight(shares), quota.into(), memory.into(), pids.into()]
}

/// A cgroup for the daemons of a node, in every hierarchy; it goes with this.
struct Daemons {
    name: String,
}

impl Daemons {
    fn new() -> Self {
        let name = format!("/krablet-daemons-{}", std::process::id());
        let daemons = Self { name };
        daemons
            .dirs()
            .iter()
            .for_each(|dir| fs::create_dir(dir).unwrap());
        daemons
    }

    fn dirs(&self) -> Vec<PathBuf> {
        let roots: Vec<PathBuf> = match unified() {
            true => vec![PathBuf::from(MOUNT)],
            false => fs::read_dir(MOUNT)
                .unwrap()
                .map(|entry| entry.unwrap().path())
                .filter(|path| !path.is_symlink() && path.join("cgroup.procs").exists())
                .collect(),
        };
        let below = self.name.trim_start_matches('/');
        roots.iter().map(|root| root.join(below)).collect()
    }
}

impl Drop for Daemons {
    fn drop(&mut self) {
        for dir in self.dirs() {
            let _ = fs::remove_dir(dir);
        }
    }
}

/// A node that reserves something for the system, and something for daemons in that cgroup.
async fn reserving(node: &Member, daemons: &Daemons) -> Member {
    let config = json!({
        "podPidsLimit": 77,
        // As it is everywhere with the first version of cgroups.
        "singleProcessOOMKill": true,
        "systemReserved": {"cpu": "400m", "memory": "256Mi", "pid": "1000"},
        "kubeReserved": {"cpu": "100m", "memory": "256Mi", "pid": "500"},
        "kubeReservedCgroup": daemons.name,
        "enforceNodeAllocatable": ["pods", "kube-reserved"],
    });
    let joining = Joining {
        config,
        ..Joining::default()
    };
    let mut other = node.prepared_beside("limited", joining).await;
    other.start().await;
    other
}

/// Every class of pod, and what is set for a pod as a whole.
pub async fn pods_and_classes_are_held_to_their_limits(node: &Member) {
    let daemons = Daemons::new();
    let node = reserving(node, &daemons).await;
    let seen = shown(&daemons.name);
    assert_eq!(seen, expected(102, "-1", "268435456", "500"));
    let text = format!("Updated limits on kube reserved cgroup {}", daemons.name);
    node.event(&node.name, "NodeAllocatableEnforced", &text)
        .await;
    let root = root(&node);
    let burstable = format!("{root}/burstable");
    let best_effort = format!("{root}/besteffort");
    assert_eq!(shares(&best_effort), weight(2));
    assert_eq!(shares(&burstable), weight(2));
    of_the_node(&node, &root).await;

    let all = json!({"cpu": "250m", "memory": "64Mi"});
    node.run(&asking("guaranteed", all.clone(), all)).await;
    let seen = shown(&cgroup(&node, "guaranteed", "").await);
    assert_eq!(seen, expected(256, "25000", "67108864", "77"));
    assert_eq!(shares(&burstable), weight(2));

    let some = json!({"cpu": "100m", "memory": "32Mi"});
    let more = json!({"cpu": "200m", "memory": "96Mi"});
    node.run(&asking("limited", some.clone(), more)).await;
    let limited = cgroup(&node, "limited", "/burstable").await;
    assert_eq!(shown(&limited), expected(102, "20000", "100663296", "77"));
    assert_eq!(shares(&burstable), weight(102));

    node.run(&asking("open", some, json!({}))).await;
    let open = cgroup(&node, "open", "/burstable").await;
    assert_eq!(shown(&open), expected(102, "-1", "max", "77"));
    assert_eq!(shares(&burstable), weight(204));

    let mut whole = single("as-a-whole", tool("main", &["hold"]));
    whole["spec"]["resources"] = json!({
        "requests": {"cpu": "300m", "memory": "64Mi"},
        "limits": {"cpu": "400m", "memory": "128Mi"},
    });
    node.run(&whole).await;
    let whole = cgroup(&node, "as-a-whole", "/burstable").await;
    assert_eq!(shown(&whole), expected(307, "40000", "134217728", "77"));
    assert_eq!(shares(&burstable), weight(512));

    node.run(&single("best-effort", tool("main", &["hold"])))
        .await;
    let nothing = cgroup(&node, "best-effort", "/besteffort").await;
    assert_eq!(shown(&nothing), expected(2, "-1", "max", "77"));

    one_process_is_killed(&node, "limited").await;
    more_processes_than_it_may(&node, "best-effort").await;
    classes_follow(&node, &burstable).await;
    end_all(&node, &["guaranteed", "open", "best-effort"]).await;
    node.down().await;
}

/// Whoever takes more memory than there is is killed, and the container's first process runs on.
async fn one_process_is_killed(node: &Member, pod: &str) {
    let eat = "/tool eat-memory 200 0s > /dev/null; echo $?";
    assert_eq!(inside(node, pod, eat).await.as_deref(), Ok("137"));
    let seen = node.running(pod).await;
    assert_eq!(status::container(&seen, "main").unwrap().restart_count, 0);
    says(node, pod, "cat /proc/1/comm", "tool").await;
}

/// The pod has as many processes as it may, and no more.
async fn more_processes_than_it_may(node: &Member, pod: &str) {
    let fork =
        "n=0; while [ $n -lt 100 ]; do sleep 1000 > /dev/null 2>&1 & n=$((n+1)); done; echo all";
    let said = inside(node, pod, fork).await.unwrap_err();
    assert!(said.contains("can't fork"), "{said}");
    let cgroup = cgroup(node, pod, "/besteffort").await;
    let now = read(&cgroup, "pids", "pids.current", "pids.current");
    assert!(now.parse::<u32>().is_ok_and(|n| n <= 77), "{now}");
}

/// What all pods together may have: what is reserved is not in it.
async fn of_the_node(node: &Member, root: &str) {
    let status = node.ready().await.status.unwrap();
    let capacity = status.capacity.unwrap();
    let cpus: u64 = capacity["cpu"].0.parse().unwrap();
    assert_eq!(shares(root), weight((cpus * 1000 - 500) * 1024 / 1000));
    let kilobytes: u64 = capacity["memory"].0.trim_end_matches("Ki").parse().unwrap();
    let bytes = kilobytes * 1024 - (512 << 20);
    assert_eq!(memory(root), bytes.to_string());
    let number = |file: &str| -> u64 {
        let text = fs::read_to_string(file).unwrap();
        text.trim().parse().unwrap()
    };
    let most = number("/proc/sys/kernel/pid_max").min(number("/proc/sys/kernel/threads-max"));
    assert_eq!(pids(root), (most - 1500).to_string());
    let text = "Updated Node Allocatable limit across pods";
    node.event(&node.name, "NodeAllocatableEnforced", text)
        .await;
}

/// Pods that end take their weight with them.
async fn classes_follow(node: &Member, burstable: &str) {
    node.end("limited").await;
    node.wait("node", "the class weighs less", async || {
        let now = shares(burstable);
        (now == weight(409)).then_some(()).ok_or(now)
    })
    .await;
    node.end("as-a-whole").await;
    node.wait("node", "the class weighs what is left", async || {
        let now = shares(burstable);
        (now == weight(102)).then_some(()).ok_or(now)
    })
    .await;
}

/// A runtime that cannot keep users apart does not get to run a pod that wants them apart.
pub async fn users_of_its_own(node: &Member) {
    let runtime = node.stage.runtime.status().await.unwrap();
    let mut handlers = runtime.runtime_handlers.into_iter();
    let able = handlers
        .find(|h| h.name.is_empty())
        .and_then(|h| h.features)
        .is_some_and(|f| f.user_namespaces);
    let name = "own-users";
    let mut pod = single(name, tool("main", &["hold"]));
    pod["spec"]["hostUsers"] = json!(false);
    let uid = status::uid(&node.create(&pod).await);
    let record = node
        .stage
        .krablet
        .root_dir()
        .join("pods")
        .join(&uid)
        .join("userns");
    if able {
        node.running(name).await;
        let record: Value = serde_json::from_slice(&fs::read(&record).unwrap()).unwrap();
        let first = record["uidMappings"][0]["hostId"].as_u64().unwrap();
        assert_eq!((first % 65_536, first >= 65_536), (0, true));
        let show = ["exec", name, "--", "/bin/cat", "/proc/self/uid_map"];
        let map = node.kubectl(&show).await;
        let map: Vec<String> = map.split_whitespace().map(str::to_owned).collect();
        assert_eq!(map, ["0".to_owned(), first.to_string(), "65536".to_owned()]);
    } else {
        let text = "can't set `spec.hostUsers: false`, runtime does not support user namespaces";
        node.event(name, "FailedCreatePodSandBox", text).await;
        assert!(!record.exists());
    }
    node.end(name).await;
}

/// Reservations that are more than there is, or of a cgroup that is not there, end the agent with one line.
pub async fn reservations_that_cannot_be_kept(node: &Member) {
    let nowhere = "/krablet-nowhere";
    for (name, config, words) in [
        (
            "reserves-too-much",
            json!({"systemReserved": {"memory": "1Pi"}}),
            "invalid Node Allocatable configuration. Resource \"memory\" has a reservation of ",
        ),
        (
            "reserves-nowhere",
            json!({
                "kubeReserved": {"cpu": "100m"},
                "kubeReservedCgroup": nowhere,
                "enforceNodeAllocatable": ["pods", "kube-reserved-compressible"],
            }),
            "Failed to enforce Kube Reserved Compressible Cgroup Limits on \"/krablet-nowhere\": cgroup [\"krablet-nowhere\"] has some missing ",
        ),
    ] {
        // Beside the shared agent, but not in its cgroups.
        let below = format!("{}/{name}", node.stage.bed.cgroup_parent());
        let mut wish = options(with(config, json!({"cgroupRoot": below})));
        wish.name = name.to_owned();
        let mut agent = node.stage.bed.prepare_krablet(wish).unwrap();
        agent.start().unwrap();
        let ended = agent.wait(LONG).await.unwrap();
        let log = agent.log().replace("\\\"", "\"");
        assert_eq!(ended.code(), Some(1), "{log}");
        assert!(log.contains(words), "{words} is missing in {log}");
    }
}
