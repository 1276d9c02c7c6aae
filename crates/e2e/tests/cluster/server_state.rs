//! What a node tells of its state to those on it and to those who measure it: resources of pods, volumes in metrics, the
//! read-only port, a profile of its processor time, and as much of its log as is wanted.

use std::process::Stdio;
use std::time::Duration;

use krablet_e2e::cluster_stage::Joining;
use krablet_e2e::manifest::{self, shell, single, with};
use krablet_e2e::{Member, status};
use krablet_metrics::exposition;
use krablet_podresources::v1::pod_resources_lister_client::PodResourcesListerClient;
use krablet_podresources::v1::{
    AllocatableResourcesRequest, AllocatableResourcesResponse, GetPodResourcesRequest,
    ListPodResourcesRequest, PodResources,
};
use krablet_profile::proto::Profile;
use krablet_testbed::images;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tonic::transport::{Channel, Endpoint};

use crate::server::spawn_kubectl;
use crate::server_more::{address, ask};
use crate::volumes::{bound_claim, on_node, release_claim};

const WAITING: &str = "echo here; exec tail -f /dev/null";

fn proxy(node: &Member, path: &str) -> String {
    format!("/api/v1/nodes/{}/proxy{path}", node.name)
}

pub async fn raw(node: &Member, path: &str) -> Result<String, String> {
    let path = proxy(node, path);
    let said = node.plane.kubectl(&["get", "--raw", &path]).await;
    said.map_err(|e| format!("{e:#}"))
}

/// The pod resources service, over its socket.
struct Lister(PodResourcesListerClient<Channel>);

impl Lister {
    async fn of(node: &Member) -> Self {
        let root = node.stage.krablet.root_dir();
        let socket = root.join("pod-resources/kubelet.sock");
        let endpoint = Endpoint::try_from(format!("unix://{}", socket.display())).unwrap();
        let channel = endpoint.connect().await.unwrap();
        Self(PodResourcesListerClient::new(channel))
    }

    async fn listed(&mut self, name: &str) -> Option<PodResources> {
        let all = self.0.list(ListPodResourcesRequest {}).await.unwrap();
        let mut all = all.into_inner().pod_resources.into_iter();
        all.find(|pod| pod.name == name && pod.namespace == "default")
    }

    async fn get(&mut self, name: &str) -> Result<PodResources, String> {
        let request = GetPodResourcesRequest {
            pod_name: name.to_owned(),
            pod_namespace: "default".to_owned(),
        };
        let answer = self.0.get(request).await;
        let answer = answer.map_err(|status| status.message().to_owned())?;
        Ok(answer.into_inner().pod_resources.unwrap())
    }
}

pub async fn resources_of_pods(node: &Member) {
    let name = "resources-told";
    let spec = json!({
        "initContainers": [
            shell("first", "exit 0"),
            with(shell("beside", WAITING), json!({"restartPolicy": "Always"})),
        ],
        "containers": [shell("main", WAITING)],
    });
    node.run(&manifest::pod(name, spec)).await;
    let mut lister = Lister::of(node).await;
    let listed = lister.listed(name).await.unwrap();
    let names: Vec<&str> = listed.containers.iter().map(|c| &*c.name).collect();
    assert_eq!(names, ["beside", "main"]);
    assert!(listed.containers.iter().all(|c| c.devices.is_empty()));
    assert_eq!(lister.get(name).await.unwrap(), listed);
    let why = lister.get("nobody").await.unwrap_err();
    assert_eq!(why, "pod nobody in namespace default not found");
    let allocatable = lister
        .0
        .get_allocatable_resources(AllocatableResourcesRequest {})
        .await
        .unwrap();
    let nothing = AllocatableResourcesResponse::default();
    assert_eq!(allocatable.into_inner(), nothing);
    node.end(name).await;
    assert_eq!(lister.listed(name).await, None);
}

const VOLUME_SERIES: [(&str, &str); 6] = [
    ("kubelet_volume_stats_capacity_bytes", "capacityBytes"),
    ("kubelet_volume_stats_available_bytes", "availableBytes"),
    ("kubelet_volume_stats_used_bytes", "usedBytes"),
    ("kubelet_volume_stats_inodes", "inodes"),
    ("kubelet_volume_stats_inodes_free", "inodesFree"),
    ("kubelet_volume_stats_inodes_used", "inodesUsed"),
];

/// The agent's own metrics tell of a claim what the summary tells of its volume.
pub async fn volumes_in_metrics(node: &Member) {
    let name = "state-claim";
    let source =
        json!({"local": {"path": node.stage.scratch(name)}, "nodeAffinity": on_node(node)});
    bound_claim(node, name, source).await;
    let mounts = json!({"volumeMounts": [{"name": "data", "mountPath": "/data"}]});
    let mut pod = single(name, with(shell("main", WAITING), mounts));
    pod["spec"]["volumes"] =
        json!([{"name": "data", "persistentVolumeClaim": {"claimName": name}}]);
    node.run(&pod).await;
    node.wait(name, "is told in metrics as in the summary", async || {
        let summary = raw(node, "/stats/summary").await?;
        let metrics = raw(node, "/metrics").await?;
        let volume = summary_of_claim(&summary, name)?;
        for (series, field) in VOLUME_SERIES {
            let told = sample(&metrics, series, &[("persistentvolumeclaim", name)])?;
            let summed = volume[field].as_u64().ok_or(format!("no {field}"))?;
            if told != summed as f64 {
                return Err(format!("{series} {told}, in the summary {summed}"));
            }
        }
        Ok(())
    })
    .await;
    let metrics = raw(node, "/metrics").await.unwrap();
    let disk = rustix::fs::statvfs(node.stage.scratch(name)).unwrap();
    let claim = [("namespace", "default"), ("persistentvolumeclaim", name)];
    let capacity = sample(&metrics, VOLUME_SERIES[0].0, &claim).unwrap();
    assert_eq!(capacity, (disk.f_blocks * disk.f_frsize) as f64);
    let log = "kubelet_container_log_filesystem_used_bytes";
    let log = sample(&metrics, log, &[("pod", name), ("container", "main")]);
    assert!(log.unwrap() > 0.0);
    node.end(name).await;
    release_claim(node, name).await;
    node.wait(name, "is told no more", async || {
        let metrics = raw(node, "/metrics").await?;
        match metrics.contains(&format!("persistentvolumeclaim=\"{name}\"")) {
            true => Err("still told".to_owned()),
            false => Ok(()),
        }
    })
    .await;
}

fn summary_of_claim(summary: &str, claim: &str) -> Result<Value, String> {
    let summary: Value = serde_json::from_str(summary).map_err(|e| e.to_string())?;
    let pods = summary["pods"].as_array().into_iter().flatten();
    let volumes = pods.flat_map(|pod| pod["volume"].as_array().into_iter().flatten());
    let mut volumes = volumes.filter(|v| v["pvcRef"]["name"] == claim);
    let found = volumes.next().ok_or("not in the summary")?;
    Ok(found.clone())
}

pub fn sample(page: &str, name: &str, labels: &[(&str, &str)]) -> Result<f64, String> {
    let page = exposition::parse(page).map_err(|e| format!("{e:?}"))?;
    let family = page.get(name).ok_or_else(|| format!("no {name}"))?;
    let fits = |s: &&exposition::Sample| labels.iter().all(|(k, v)| s.label(k) == Some(v));
    let found = family.samples.iter().find(fits);
    found
        .map(|s| s.value)
        .ok_or_else(|| format!("no {name} of {labels:?}"))
}

/// Without a word on who asks: figures, and nothing that changes or reveals anything else.
pub async fn read_only_port(node: &Member) {
    let get = async |path: &str| {
        let answer = node.stage.krablet.get(path).await.unwrap();
        (answer.status, answer.body)
    };
    assert_eq!(get("/healthz").await, (200, "ok".to_owned()));
    for (path, part) in [
        ("/pods", r#""kind":"PodList""#),
        ("/stats/summary", r#""nodeName""#),
        ("/metrics", "kubelet_node_name"),
        ("/metrics/resource", "node_cpu_usage_seconds_total"),
        ("/metrics/cadvisor", "machine_memory_bytes"),
        ("/metrics/probes", "process_start_time_seconds"),
        ("/metrics/slis", "kubernetes_healthcheck"),
    ] {
        let (code, text) = get(path).await;
        assert!(code == 200 && text.contains(part), "{path}: {code} {text}");
    }
    for path in [
        "/exec/default/p/c",
        "/runningpods/",
        "/logs/",
        "/debug/pprof/",
    ] {
        let shut = (405, "Debug endpoints are disabled.".to_owned());
        assert_eq!(get(path).await, shut, "{path}");
    }
    for path in ["/configz", "/flagz", "/debug/flags/v", "/"] {
        assert_eq!(get(path).await.0, 404, "{path}");
    }
}

/// A command without streams, and what runs as the runtime tells it.
pub async fn run_and_running_pods(node: &Member) {
    let name = "state-run";
    let made = node.run(&single(name, shell("main", WAITING))).await;
    let uid = status::uid(&made);
    let at = |command: &str| format!("/run/default/{name}/main?cmd={command}");
    // Through the API server, and with the UID as a client of the node may give it.
    let path = proxy(node, &at("cat%20/etc/image"));
    let admin = node.plane.admin_kubeconfig();
    let post = ["create", "--raw", &path, "-f", "-"];
    let said = node.plane.kubectl_as(&admin, &post, Some("{}")).await;
    assert_eq!(said.unwrap().trim_end(), images::TOOL);
    let with_uid = format!("/run/default/{name}/{uid}/main?cmd=cat%20/etc/image");
    let said = ask(node, "POST", &with_uid).await;
    assert_eq!(said, (200, format!("{}\n", images::TOOL)));

    let (code, why) = ask(node, "POST", &at("ls%20/nowhere")).await;
    assert_eq!(code, 500, "{why}");
    assert!(
        why.contains(
            "command 'ls /nowhere' exited with 1: ls: /nowhere: No such file or directory"
        ),
        "{why}"
    );
    let nobody = ask(node, "POST", "/run/default/nobody/main?cmd=true").await;
    assert_eq!(nobody, (404, "pod does not exist".to_owned()));
    let other = format!("/run/default/{name}/other?cmd=true");
    let why = (500, r#"container not found ("other")"#.to_owned());
    assert_eq!(ask(node, "POST", &other).await, why);
    let (code, why) = ask(node, "GET", &at("true")).await;
    assert_eq!(code, 405, "{why}");

    let running = async || {
        let (code, text) = ask(node, "GET", "/runningpods/").await;
        assert_eq!(code, 200, "{text}");
        let mut all: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(all["kind"], "PodList");
        let all = all["items"].take();
        let mut all = all.as_array().unwrap().iter();
        all.find(|pod| pod["metadata"]["uid"] == *uid).cloned()
    };
    let told = running().await.unwrap();
    assert_eq!(told["metadata"]["name"], name);
    assert_eq!(told["metadata"]["namespace"], "default");
    let containers = told["spec"]["containers"].as_array().unwrap();
    assert_eq!(containers.len(), 1, "{told}");
    assert_eq!(containers[0]["name"], "main");
    assert!(
        containers[0]["image"]
            .as_str()
            .is_some_and(|image| !image.is_empty())
    );
    let through = raw(node, "/runningpods/").await.unwrap();
    assert!(through.contains(&uid), "{through}");
    node.end(name).await;
    node.wait(
        name,
        "is among those that run no more",
        async || match running().await {
            None => Ok(()),
            Some(pod) => Err(pod.to_string()),
        },
    )
    .await;
}

/// Every field of `wanted` is in `told`, with the same value.
fn assert_within(told: &Value, wanted: &Value, place: &str) {
    match wanted {
        Value::Object(fields) => {
            for (name, value) in fields {
                assert_within(&told[name], value, &format!("{place}.{name}"));
            }
        }
        value => assert_eq!(told, value, "{place}"),
    }
}

/// `/configz`: what the file says, what flags say over it, and what is so if nobody says anything.
pub async fn configuration(main: &Member) {
    let joining = Joining {
        config: json!({
            "maxPods": 16,
            "podPidsLimit": 1234,
            "containerLogMaxSize": "3Mi",
            "evictionHard": {"memory.available": "123Mi"},
            "systemReserved": {"memory": "64Mi"},
            "nodeStatusUpdateFrequency": "7s",
            "streamingConnectionIdleTimeout": "90s",
        }),
        args: vec!["--max-pods=17".to_owned(), "--registry-qps=9".to_owned()],
        ..Joining::default()
    };
    let mut node = main.prepared_beside("configured", joining).await;
    node.start().await;
    let told = raw(&node, "/configz").await.unwrap();
    let told: Value = serde_json::from_str(&told).unwrap();
    let told = &told["kubeletconfig"];
    let written = std::fs::read(node.dir().join("config.yaml")).unwrap();
    let mut written: Value = serde_json::from_slice(&written).unwrap();
    for (field, value) in [
        ("maxPods", json!(17)),
        ("streamingConnectionIdleTimeout", json!("1m30s")),
    ] {
        assert_ne!(written[field], value);
        written[field] = value;
    }
    for field in ["kind", "apiVersion"] {
        written.as_object_mut().unwrap().remove(field);
    }
    assert_within(told, &written, "of the file");
    let defaults = json!({
        "registryPullQPS": 9,
        "logging": {"verbosity": 4, "format": "text"},
        "enableServer": true,
        "syncFrequency": "30m0s",
        "fileCheckFrequency": "20s",
        "containerLogMaxFiles": 5,
        "imageGCLowThresholdPercent": 80,
        "hairpinMode": "promiscuous-bridge",
        "cpuManagerPolicy": "none",
        "serializeImagePulls": true,
        "nodeLeaseDurationSeconds": 40,
        "makeIPTablesUtilChains": true,
        "maxOpenFiles": 1_000_000,
    });
    assert_within(told, &defaults, "by default");
    let capacity = node.node().await.unwrap().status.unwrap().capacity.unwrap();
    assert_eq!(capacity["pods"].0, "17");
    node.kubectl(&["delete", "node", &node.name]).await;
    node.down().await;
}

/// Where the agent spends its time while it is asked for much.
pub async fn profile(node: &Member) {
    let path = proxy(node, "/debug/pprof/profile?seconds=2");
    let mut child = spawn_kubectl(node, &["get", "--raw", &path], Stdio::null());
    let mut out = child.stdout.take().unwrap();
    let mut packed = Vec::new();
    let taken = out.read_to_end(&mut packed);
    let asked = async {
        loop {
            node.stage.krablet.get("/metrics/cadvisor").await.unwrap();
        }
    };
    tokio::select! {
        biased;
        taken = taken => { taken.unwrap(); }
        () = asked => {}
    }
    assert!(child.wait().await.unwrap().success());
    let profile = Profile::unpack(&packed).unwrap();
    let program = node.stage.krablet.program().canonicalize().unwrap();
    let own = |m: &&krablet_profile::proto::Mapping| {
        profile.text(m.filename) == program.to_string_lossy()
    };
    let own = profile.mapping.iter().find(own).unwrap().id;
    let inside = |id: &u64| {
        let mut places = profile.location.iter();
        places.any(|place| place.id == *id && place.mapping_id == own)
    };
    let ours = profile
        .sample
        .iter()
        .filter(|s| s.location_id.iter().any(inside));
    assert!(ours.count() > 0, "{} samples", profile.sample.len());
    assert!(profile.duration_nanos >= 2_000_000_000);
    let kinds: Vec<_> = profile
        .sample_type
        .iter()
        .map(|t| profile.text(t.kind))
        .collect();
    assert_eq!(kinds, ["samples", "cpu"]);
}

/// A line that is only told to who wants to know much, and told whenever somebody talks nonsense to the port.
const CHATTER: &str = "A TLS handshake failed";

/// On a node of its own, for the logs of others are read by others.
pub async fn verbosity(main: &Member) {
    let mut node = main.prepared_beside("talkative", Joining::default()).await;
    node.start().await;
    let before = nonsense(&node, 1).await;
    set_verbosity(&node, "0").await.unwrap();
    let (host, port) = address(&node).await;
    talk_nonsense(&host, port).await;
    set_verbosity(&node, "4").await.unwrap();
    let after = nonsense(&node, before + 1).await;
    assert_eq!(after, before + 1, "{}", node.stage.krablet.log_tail());
    let why = set_verbosity(&node, "many").await.unwrap_err();
    assert!(why.contains("BadRequest"), "{why}");
    node.kubectl(&["delete", "node", &node.name]).await;
    node.down().await;
}

async fn set_verbosity(node: &Member, level: &str) -> Result<(), String> {
    let path = proxy(node, "/debug/flags/v");
    let admin = node.plane.admin_kubeconfig();
    let put = ["replace", "--raw", &path, "-f", "-"];
    let said = node.plane.kubectl_as(&admin, &put, Some(level)).await;
    let said = said.map_err(|e| format!("{e:#}"))?;
    assert!(said.contains(&format!("set klog.logging.verbosity to {level}")));
    Ok(())
}

/// Talks nonsense until the log has said so that often, and tells how often it has.
async fn nonsense(node: &Member, times: usize) -> usize {
    let (host, port) = address(node).await;
    talk_nonsense(&host, port).await;
    node.wait("log", "tells of nonsense", async || {
        let log = node.stage.krablet.log();
        match log.matches(CHATTER).count() {
            found if found >= times => Ok(found),
            found => Err(format!("{found} times")),
        }
    })
    .await
}

async fn talk_nonsense(host: &str, port: u16) {
    let mut stream = TcpStream::connect((host, port)).await.unwrap();
    stream.write_all(b"nonsense\r\n\r\n").await.unwrap();
    let mut farewell = Vec::new();
    let ended = stream.read_to_end(&mut farewell);
    let _ = tokio::time::timeout(Duration::from_secs(30), ended).await;
}
