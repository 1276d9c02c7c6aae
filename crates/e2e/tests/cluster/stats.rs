//! What a node tells of itself in figures: the summary, the pages for scrapers, and `kubectl top`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use krablet_e2e::manifest::{self, shell, tool};
use krablet_e2e::{Member, status};
use krablet_metrics::exposition::{self, Family, Sample};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

const MIB: u64 = 1 << 20;

/// What the node answers at that path, through the API server.
async fn raw(node: &Member, path: &str) -> Result<String, String> {
    let path = format!("/api/v1/nodes/{}/proxy{path}", node.name);
    let said = node.plane.kubectl(&["get", "--raw", &path]).await;
    said.map_err(|e| format!("{e:#}"))
}

async fn summary(node: &Member) -> Result<Value, String> {
    let text = raw(node, "/stats/summary").await?;
    serde_json::from_str(&text).map_err(|e| format!("{e}: {text}"))
}

fn named<'a>(list: &'a Value, name: &str) -> Result<&'a Value, String> {
    let mut all = list.as_array().into_iter().flatten();
    let found = all.find(|one| one["name"] == name || one["podRef"]["name"] == name);
    found.ok_or_else(|| format!("no {name} in {list}"))
}

fn number(of: &Value, name: &str) -> Result<u64, String> {
    of[name]
        .as_u64()
        .ok_or_else(|| format!("no {name} in {of}"))
}

/// Within two per cent.
fn close(told: u64, read: u64, what: &str) -> Result<(), String> {
    match told.abs_diff(read) * 50 <= read {
        true => Ok(()),
        false => Err(format!("{what}: {told} is told, {read} is read")),
    }
}

/// The directory of a container's cgroup in the hierarchy of a controller.
fn cgroup(controller: &str, id: &str) -> PathBuf {
    let own = Path::new("/sys/fs/cgroup").join(controller);
    let top = match own.is_dir() {
        true => own,
        false => "/sys/fs/cgroup".into(),
    };
    let mut waiting = vec![top];
    while let Some(dir) = waiting.pop() {
        for entry in std::fs::read_dir(&dir).into_iter().flatten().flatten() {
            if !entry.file_type().is_ok_and(|t| t.is_dir()) {
                continue;
            }
            if entry.file_name().to_string_lossy().contains(id) {
                return entry.path();
            }
            waiting.push(entry.path());
        }
    }
    panic!("no cgroup of {id}");
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap()
}

fn keyed(text: &str, key: &str) -> u64 {
    let mut lines = text.lines().filter_map(|line| line.split_once(' '));
    let found = lines.find(|(name, _)| *name == key);
    found.unwrap().1.trim().parse().unwrap()
}

/// The cgroup of a container, or of the pod around it, where its memory and its CPU time are counted.
struct Counted {
    memory: PathBuf,
    cpu: PathBuf,
}

impl Counted {
    fn of(id: &str) -> Self {
        Self {
            memory: cgroup("memory", id),
            cpu: cgroup("cpuacct", id),
        }
    }

    fn around(&self) -> Self {
        let parent = |dir: &Path| dir.parent().unwrap().to_owned();
        Self {
            memory: parent(&self.memory),
            cpu: parent(&self.cpu),
        }
    }

    fn read(&self) -> Reading {
        let stat = read(&self.memory.join("memory.stat"));
        let v2 = self.memory.join("memory.current").exists();
        let (usage, inactive, resident) = match v2 {
            true => ("memory.current", "inactive_file", "anon"),
            false => ("memory.usage_in_bytes", "total_inactive_file", "total_rss"),
        };
        let usage: u64 = read(&self.memory.join(usage)).trim().parse().unwrap();
        let cpu = match v2 {
            true => keyed(&read(&self.cpu.join("cpu.stat")), "usage_usec") * 1000,
            false => read(&self.cpu.join("cpuacct.usage"))
                .trim()
                .parse()
                .unwrap(),
        };
        Reading {
            usage,
            working_set: usage - keyed(&stat, inactive),
            resident: keyed(&stat, resident),
            cpu,
        }
    }
}

/// Bytes and nanoseconds, read by other means than the agent's.
struct Reading {
    usage: u64,
    working_set: u64,
    resident: u64,
    cpu: u64,
}

fn pod(name: &str) -> Value {
    let script = "dd if=/dev/zero of=/memory/file bs=1M count=40; \
                  dd if=/dev/zero of=/scratch/file bs=1M count=8; \
                  dd if=/dev/zero of=/written bs=1M count=4; sync; touch /scratch/done; \
                  while :; do echo here; sleep 1; done";
    let main = manifest::with(
        shell("main", script),
        json!({
            "resources": {"limits": {"memory": "128Mi"}},
            "volumeMounts": [
                {"name": "memory", "mountPath": "/memory"},
                {"name": "scratch", "mountPath": "/scratch"},
            ],
            "readinessProbe": {
                "exec": {"command": ["/bin/sh", "-c", "test -e /scratch/done"]},
                "periodSeconds": 1,
            },
        }),
    );
    let spec = json!({
        "containers": [main, tool("web", &["http", "-port", "8080"])],
        "volumes": [
            {"name": "memory", "emptyDir": {"medium": "Memory"}},
            {"name": "scratch", "emptyDir": {}},
        ],
    });
    manifest::pod(name, spec)
}

pub async fn figures(node: &Member) {
    let made = node.run(&pod("figures")).await;
    let uid = status::uid(&made);
    let containers = node.containers(&uid).await;
    let main = containers
        .iter()
        .find(|c| c.metadata.as_ref().is_some_and(|m| m.name == "main"));
    let id = &main.unwrap().id;
    let counted = Counted::of(id);
    traffic(&made.status.as_ref().unwrap().pod_ip.clone().unwrap()).await;

    node.wait("figures", "memory is told as it is", async || {
        let told = summary(node).await?;
        let container = named(&named(&told["pods"], "figures")?["containers"], "main")?;
        let Reading {
            usage, working_set, ..
        } = counted.read();
        close(number(&container["memory"], "usageBytes")?, usage, "usage")?;
        let told = number(&container["memory"], "workingSetBytes")?;
        close(told, working_set, "working set")?;
        assert!(working_set > 40 * MIB, "{working_set}");
        let available = number(&container["memory"], "availableBytes")?;
        assert_eq!(available, 128 * MIB - told);
        Ok(())
    })
    .await;
    let before = counted.read().cpu;
    node.wait("figures", "CPU time is told as it is", async || {
        let told = summary(node).await?;
        let after = counted.read().cpu;
        let container = named(&named(&told["pods"], "figures")?["containers"], "main")?;
        let told = number(&container["cpu"], "usageCoreNanoSeconds")?;
        number(&container["cpu"], "usageNanoCores")?;
        assert!(told <= after, "{told} {after}");
        match told >= before {
            true => Ok(()),
            false => Err(format!("{told} is told, {before} was read before")),
        }
    })
    .await;
    node.wait("figures", "files and traffic are told", async || {
        let told = summary(node).await?;
        check_pod(named(&told["pods"], "figures")?)?;
        check_node(&told["node"], &node.name)
    })
    .await;
    let less = raw(node, "/stats/summary?only_cpu_and_memory=true").await;
    let less: Value = serde_json::from_str(&less.unwrap()).unwrap();
    assert!(less["node"].get("fs").is_none(), "{less}");
    let less = named(&less["pods"], "figures").unwrap();
    assert!(less.get("network").is_none() && less["memory"].is_object());

    pages(node, id).await;
    node.end("figures").await;
}

/// What is told of a container or a pod is what its cgroup says, within two per cent.
fn check_figures(told: &Value, counted: &Counted, who: &str) -> Result<(), String> {
    let Reading {
        usage,
        working_set,
        resident,
        cpu,
    } = counted.read();
    for (part, field, read) in [
        ("memory", "usageBytes", usage),
        ("memory", "workingSetBytes", working_set),
        ("memory", "rssBytes", resident),
        ("cpu", "usageCoreNanoSeconds", cpu),
    ] {
        let told = number(&told[part], field)?;
        close(told, read, &format!("{field} of {who}"))?;
    }
    Ok(())
}

/// All containers of a pod, and the pod with all it has: in the summary and for scrapers.
pub async fn each_container_and_the_pod(node: &Member) {
    let name = "counted";
    // One that holds much, one that has worked much and rests, one that does next to nothing.
    let work =
        "n=0; while [ $n -lt 1000000 ]; do n=$((n+1)); done; echo done; exec tail -f /dev/null";
    let spec = json!({"containers": [
        tool("holds", &["eat-memory", "64"]),
        shell("works", work),
        tool("rests", &["hold"]),
    ]});
    let made = node.run(&manifest::pod(name, spec)).await;
    node.wait(name, "has worked", async || {
        let said = node.plane.kubectl(&["logs", name, "-c", "works"]).await;
        match said.map_err(|e| format!("{e:#}"))? {
            said if said == "done\n" => Ok(()),
            said => Err(said),
        }
    })
    .await;
    let counted = ["holds", "works", "rests"].map(|container| {
        let id = status::id(status::container(&made, container).unwrap());
        (container, Counted::of(&id))
    });
    let around = counted[0].1.around();
    node.wait(name, "is told in the summary as it is", async || {
        let told = summary(node).await?;
        let told = named(&told["pods"], name)?;
        for (container, counted) in &counted {
            let told = named(&told["containers"], container)?;
            check_figures(told, counted, container)?;
        }
        check_figures(told, &around, "the pod")
    })
    .await;
    let all = around.read();
    assert!(all.working_set > 64 * MIB, "{}", all.working_set);
    let [holds, works, _] = &counted;
    assert!(holds.1.read().resident > 64 * MIB);
    assert!(works.1.read().cpu * 2 > all.cpu, "{}", all.cpu);

    for (path, pod_has_series) in [("/metrics/resource", true), ("/metrics/cadvisor", false)] {
        node.wait(name, &format!("is told on {path} as it is"), async || {
            let page = page(node, path).await;
            let of_pod = [("namespace", "default"), ("pod", name)];
            let check = |series: [&str; 2], labels: &[(&str, &str)], counted: &Counted| {
                let read = counted.read();
                let who = format!("{labels:?}");
                let told = sample(&page, series[0], labels).value;
                close(told as u64, read.working_set, &who)?;
                let told = sample(&page, series[1], labels).value;
                close((told * 1e9) as u64, read.cpu, &who)
            };
            for (container, counted) in &counted {
                let labels = [of_pod[0], of_pod[1], ("container", container)];
                let series = [
                    "container_memory_working_set_bytes",
                    "container_cpu_usage_seconds_total",
                ];
                check(series, &labels, counted)?;
            }
            let series = match pod_has_series {
                true => [
                    "pod_memory_working_set_bytes",
                    "pod_cpu_usage_seconds_total",
                ],
                false => [
                    "container_memory_working_set_bytes",
                    "container_cpu_usage_seconds_total",
                ],
            };
            let whole = [of_pod[0], of_pod[1], ("container", "")];
            let labels = if pod_has_series {
                &whole[..2]
            } else {
                &whole[..]
            };
            check(series, labels, &around)
        })
        .await;
    }
    node.end(name).await;
}

/// Something for the pod's interface to count.
async fn traffic(ip: &str) {
    let mut stream = TcpStream::connect((ip, 8080)).await.unwrap();
    let asked = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    stream.write_all(asked).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    assert!(!answer.is_empty());
}

fn at_least(of: &Value, name: &str, least: u64) -> Result<(), String> {
    match number(of, name)? {
        found if found >= least => Ok(()),
        found => Err(format!("{name} is {found}, not yet {least}")),
    }
}

fn check_pod(pod: &Value) -> Result<(), String> {
    for direction in ["rxBytes", "txBytes"] {
        at_least(&pod["network"], direction, 100)?;
    }
    let scratch = named(&pod["volume"], "scratch")?;
    at_least(scratch, "usedBytes", 8 * MIB)?;
    assert!(number(scratch, "usedBytes")? < 9 * MIB, "{scratch}");
    at_least(named(&pod["volume"], "memory")?, "usedBytes", 40 * MIB)?;
    let main = named(&pod["containers"], "main")?;
    at_least(&main["rootfs"], "usedBytes", 4 * MIB)?;
    at_least(&main["logs"], "usedBytes", 1)?;
    at_least(&main["logs"], "capacityBytes", MIB)?;
    at_least(&pod["ephemeral-storage"], "usedBytes", 12 * MIB)?;
    // Two shells' worth, a server, and the sandbox.
    at_least(&pod["process_stats"], "process_count", 3)?;
    at_least(&pod["memory"], "workingSetBytes", 40 * MIB)?;
    assert!(pod["startTime"].is_string());
    Ok(())
}

fn check_node(node: &Value, name: &str) -> Result<(), String> {
    assert_eq!(node["nodeName"], name);
    at_least(&node["cpu"], "usageCoreNanoSeconds", 1)?;
    at_least(&node["cpu"], "usageNanoCores", 1)?;
    at_least(&node["memory"], "workingSetBytes", MIB)?;
    at_least(&node["memory"], "availableBytes", MIB)?;
    at_least(&node["fs"], "usedBytes", MIB)?;
    at_least(&node["runtime"]["imageFs"], "usedBytes", 1)?;
    at_least(&node["rlimit"], "maxpid", 100)?;
    at_least(&node["rlimit"], "curproc", 1)?;
    let pods = named(&node["systemContainers"], "pods")?;
    at_least(&pods["memory"], "workingSetBytes", 40 * MIB)
}

/// A page as a scraper reads it; samples may say when they were taken.
async fn page(node: &Member, path: &str) -> BTreeMap<String, Family> {
    let text = raw(node, path).await.unwrap();
    let mut plain = String::new();
    for line in text.lines() {
        let bare = match line.rsplit_once(' ') {
            Some((bare, moment)) if !line.starts_with('#') && is_moment(moment) => bare,
            _ => line,
        };
        plain.push_str(bare);
        plain.push('\n');
    }
    exposition::parse(&plain).unwrap_or_else(|e| panic!("{path}: {e}\n{text}"))
}

/// Milliseconds of this century, after a value.
fn is_moment(text: &str) -> bool {
    text.len() == 13 && text.bytes().all(|b| b.is_ascii_digit())
}

fn sample<'a>(
    page: &'a BTreeMap<String, Family>,
    name: &str,
    labels: &[(&str, &str)],
) -> &'a Sample {
    let family = page.get(name).unwrap_or_else(|| panic!("no {name}"));
    let fits = |s: &&Sample| labels.iter().all(|(k, v)| s.label(k) == Some(v));
    let found = family.samples.iter().find(fits);
    found.unwrap_or_else(|| panic!("no {name} of {labels:?}: {:?}", family.samples))
}

async fn pages(node: &Member, id: &str) {
    let resource = page(node, "/metrics/resource").await;
    let main = [
        ("pod", "figures"),
        ("namespace", "default"),
        ("container", "main"),
    ];
    let memory = "container_memory_working_set_bytes";
    assert!(sample(&resource, memory, &main).value > (40 * MIB) as f64);
    let cpu = "container_cpu_usage_seconds_total";
    assert!(sample(&resource, cpu, &main).value > 0.0);
    for name in [
        "container_start_time_seconds",
        "container_swap_usage_bytes",
        "pod_cpu_usage_seconds_total",
        "pod_memory_working_set_bytes",
    ] {
        sample(&resource, name, &main[..2]);
    }
    for name in [
        "node_cpu_usage_seconds_total",
        "node_memory_working_set_bytes",
    ] {
        assert!(sample(&resource, name, &[]).value > 0.0, "{name}");
    }
    assert_eq!(sample(&resource, "resource_scrape_error", &[]).value, 0.0);

    let cadvisor = page(node, "/metrics/cadvisor").await;
    let told = sample(&cadvisor, memory, &main);
    assert!(told.value > (40 * MIB) as f64);
    assert_eq!(told.label("name"), Some(id));
    assert!(told.label("id").is_some_and(|path| path.contains(id)));
    assert!(told.label("image").is_some_and(|image| !image.is_empty()));
    assert_eq!(sample(&cadvisor, cpu, &main).label("cpu"), Some("total"));
    let limit = sample(&cadvisor, "container_spec_memory_limit_bytes", &main);
    assert_eq!(limit.value, (128 * MIB) as f64);
    assert!(sample(&cadvisor, "container_fs_usage_bytes", &main).value >= (4 * MIB) as f64);
    let sandbox = [("pod", "figures"), ("container", ""), ("interface", "eth0")];
    let received = "container_network_receive_bytes_total";
    let received = sample(&cadvisor, received, &sandbox);
    assert!(received.value > 0.0);
    assert!(
        received
            .label("image")
            .is_some_and(|image| !image.is_empty())
    );
    sample(&cadvisor, cpu, &[("id", "/")]);
    assert!(sample(&cadvisor, "machine_memory_bytes", &[]).value > 0.0);
    assert_eq!(sample(&cadvisor, "container_scrape_error", &[]).value, 0.0);
}

pub async fn top(node: &Member) {
    let busy = "while :; do n=0; while [ $n -lt 20000 ]; do n=$((n+1)); done; sleep 0.2; done";
    node.run(&manifest::single("top", shell("main", busy)))
        .await;
    node.plane.start_metrics_server().await.unwrap();
    let answer = async |arguments: &[&str]| {
        let said = node.plane.kubectl(arguments).await;
        said.map_err(|e| format!("{e:#}\n{}", node.plane.metrics_server_logs()))
    };
    let pods = ["top", "pod", "top", "--containers", "--no-headers"];
    let pods = node
        .wait("top", "kubectl top pod answers", async || {
            answer(&pods).await
        })
        .await;
    let columns: Vec<&str> = pods.split_whitespace().collect();
    assert_eq!(columns[..2], ["top", "main"], "{pods}");
    let millis: u64 = columns[2].trim_end_matches('m').parse().unwrap();
    assert!(columns[2].ends_with('m') && millis > 0, "{pods}");
    assert!(columns[3].ends_with("Mi"), "{pods}");
    let nodes = ["top", "node", &node.name, "--no-headers"];
    let nodes = node
        .wait("top", "kubectl top node answers", async || {
            answer(&nodes).await
        })
        .await;
    let columns: Vec<&str> = nodes.split_whitespace().collect();
    assert_eq!((columns[0], columns.len()), (&*node.name, 5), "{nodes}");
    assert!(!nodes.contains("unknown"), "{nodes}");
    node.plane.stop_metrics_server().await.unwrap();
    node.end("top").await;
}
