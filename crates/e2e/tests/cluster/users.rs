//! Pods with users of their own, for real: with a runc that can keep them apart.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use krablet_cri::RuntimeService;
use krablet_e2e::cluster_stage::{Joining, PODS};
use krablet_e2e::manifest::{pod, tool, with};
use krablet_e2e::{Member, status};
use krablet_testbed::BedOptions;
use krablet_testbed::parts::{NEXT_RUNC, Part};
use serde_json::{Value, json};

use crate::inside::{end_all, inside, running_id};

const CLASSES: &str = "/apis/node.k8s.io/v1/runtimeclasses";
/// How many ids a pod has.
const LENGTH: u64 = 65_536;

/// Each pod has a range of ids to itself, and none of it is seen inside: from the first container to
/// after the last, through a crash of the agent.
pub async fn of_their_own(main: &Member) {
    let joining = Joining {
        bed: BedOptions {
            parts: vec![Part::Runc],
            ..BedOptions::default()
        },
        ..Joining::default()
    };
    let mut node = main.prepared_beside("mapped", joining).await;
    node.start().await;
    handlers_are_told(&node).await;
    make_objects(&node).await;
    refused_by_its_class(&node).await;

    let mut group = holding("mapped-two");
    group["spec"]["securityContext"] =
        json!({"runAsUser": 1000, "runAsGroup": 3000, "fsGroup": 5000});
    create(&node, "mapped", &holding("mapped-one")).await;
    create(&node, "mapped", &group).await;
    let one = range(&node, "mapped-one").await;
    let two = range(&node, "mapped-two").await;
    apart(one, two);
    roots_files_are_roots(&node, "mapped-one").await;
    files_of_a_group(&node, "mapped-two").await;
    filtered(&node, "mapped-one").await;
    assert_eq!(seen_from_outside(&node, "mapped-one").await, one);
    assert_eq!(seen_from_outside(&node, "mapped-two").await, two + 1000);

    ranges_outlive_the_agent(&mut node, &[("mapped-one", one), ("mapped-two", two)]).await;
    node.end("mapped-one").await;
    whole_proc(&node, one).await;

    end_all(&node, &["mapped-two", "mapped-three", "mapped-open"]).await;
    node.empty().await;
    for path in objects().map(|(plural, object)| {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        format!("{plural}/{name}")
    }) {
        node.plane.delete(&path).await.unwrap();
    }
    node.down().await;
}

fn apart(one: u64, other: u64) {
    assert!(one.abs_diff(other) >= LENGTH, "{one} and {other} overlap");
}

/// Killed and started again, the agent leaves these pods as they are, and gives nobody else what they have.
async fn ranges_outlive_the_agent(node: &mut Member, pods: &[(&str, u64)]) {
    let before = ids(node, pods).await;
    node.stage.crash().await;
    node.ready().await;
    create(node, "mapped", &holding("mapped-three")).await;
    let three = range(node, "mapped-three").await;
    for (name, first) in pods {
        assert_eq!(range(node, name).await, *first, "{name}");
        apart(*first, three);
    }
    assert_eq!(ids(node, pods).await, before);
    // What a pod has, its next container has too.
    let id = running_id(node, "mapped-three", None).await.unwrap();
    let stopped = node.stage.runtime.stop_container(&id, 0).await;
    stopped.unwrap();
    node.until("mapped-three", "its container is another", |pod| {
        status::running(pod, "main")?;
        match status::container(pod, "main")?.restart_count {
            0 => Err(status::shown(pod)),
            _ => Ok(()),
        }
    })
    .await;
    assert_eq!(range(node, "mapped-three").await, three);
}

/// Nothing of `/proc` is hidden from who asks for it. The range is that of the pod that went: it is free again.
async fn whole_proc(node: &Member, free: u64) {
    let context = json!({"securityContext": {"procMount": "Unmasked"}});
    let main = with(tool("main", &["hold"]), context);
    let manifest = pod("mapped-open", json!({"containers": [main]}));
    create(node, "mapped", &manifest).await;
    assert_eq!(range(node, "mapped-open").await, free);
    let hidden = "grep -c ' /proc/' /proc/mounts || true";
    let open = inside(node, "mapped-open", hidden).await;
    assert_eq!(open.as_deref(), Ok("0"));
    let masked = inside(node, "mapped-two", hidden).await;
    assert_ne!(masked.as_deref(), Ok("0"));
}

/// The node says which of its runtimes can do it.
async fn handlers_are_told(node: &Member) {
    let handlers = node.ready().await.status.unwrap().runtime_handlers;
    let able = |name: &str| {
        let mut all = handlers.iter().flatten();
        let found = all.find(|h| h.name.as_deref() == Some(name));
        found.and_then(|h| h.features.as_ref()?.user_namespaces)
    };
    assert_eq!(able(NEXT_RUNC), Some(true), "{handlers:?}");
}

/// What the pods refer to, each with the path of its kind.
fn objects() -> [(&'static str, Value); 4] {
    let class = |name: &str, handler: &str| json!({"metadata": {"name": name}, "handler": handler});
    let secret = json!({"metadata": {"name": "mapped"}, "stringData": {"word": "hush"}});
    let map = json!({"metadata": {"name": "mapped"}, "data": {"word": "aloud"}});
    [
        (CLASSES, class("mapped", NEXT_RUNC)),
        (CLASSES, class("unmapped", "runc")),
        ("/api/v1/namespaces/default/secrets", secret),
        ("/api/v1/namespaces/default/configmaps", map),
    ]
}

async fn make_objects(node: &Member) {
    for (plural, object) in objects() {
        node.plane.create(plural, &object).await.unwrap();
    }
}

/// Creates a pod of the class on the node.
async fn create(node: &Member, class: &str, manifest: &Value) {
    let mut manifest = manifest.clone();
    manifest["spec"] = with(
        manifest["spec"].take(),
        json!({
            "hostUsers": false,
            "runtimeClassName": class,
            "nodeName": node.name,
            "automountServiceAccountToken": false,
        }),
    );
    let name = manifest["metadata"]["name"].as_str().unwrap().to_owned();
    node.wait(&name, "is let in", async || {
        // The API server learns of a new class a moment later.
        let made = node.plane.create(PODS, &manifest).await;
        made.map_err(|e| format!("{e:#}"))
    })
    .await;
}

/// A pod with volumes of several kinds, that is ready when it answers over the pod network.
fn holding(name: &str) -> Value {
    let at = |volume: &str| json!({"name": volume, "mountPath": format!("/{volume}")});
    let part = json!({"name": "disk", "mountPath": "/part", "subPath": "part"});
    let main = with(
        tool("main", &["http", "-port", "8080"]),
        json!({
            "volumeMounts": [at("disk"), at("memory"), at("secret"), at("map"), part],
            "readinessProbe": {"httpGet": {"path": "/", "port": 8080}, "periodSeconds": 1},
            "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        }),
    );
    let volumes = json!([
        {"name": "disk", "emptyDir": {}},
        {"name": "memory", "emptyDir": {"medium": "Memory"}},
        {"name": "secret", "secret": {"secretName": "mapped", "defaultMode": 0o400}},
        {"name": "map", "configMap": {"name": "mapped"}},
    ]);
    pod(name, json!({"containers": [main], "volumes": volumes}))
}

/// A class whose runtime cannot do it is named.
async fn refused_by_its_class(node: &Member) {
    let name = "mapped-not";
    create(node, "unmapped", &holding(name)).await;
    let why = "can't set `spec.hostUsers: false`, RuntimeClass handler \"runc\" does not support user namespaces";
    node.event(name, "FailedCreatePodSandBox", why).await;
    assert!(!record(node, name).await.exists());
    node.end(name).await;
}

/// Where the agent notes the range of a pod.
async fn record(node: &Member, pod: &str) -> PathBuf {
    let uid = status::uid(&node.pod(pod).await.unwrap());
    let pods = node.stage.krablet.root_dir().join("pods");
    pods.join(uid).join("userns")
}

/// The first id of a running pod's range: noted on the disk, and what the kernel maps root to.
async fn range(node: &Member, pod: &str) -> u64 {
    node.running(pod).await;
    let text = fs::read(record(node, pod).await).unwrap();
    let record: Value = serde_json::from_slice(&text).unwrap();
    let first = record["uidMappings"][0]["hostId"].as_u64().unwrap();
    assert!(first >= LENGTH, "{record}");
    let mapping = json!([{"hostId": first, "containerId": 0, "length": LENGTH}]);
    let whole = json!({"uidMappings": mapping, "gidMappings": mapping});
    assert_eq!(record, whole);
    for map in ["uid_map", "gid_map"] {
        let seen = inside(node, pod, &format!("cat /proc/self/{map}")).await;
        let seen = seen.unwrap();
        let numbers: Vec<&str> = seen.split_whitespace().collect();
        let expected = ["0".to_owned(), first.to_string(), LENGTH.to_string()];
        assert_eq!(numbers, expected, "{map} of {pod}");
    }
    first
}

async fn all_say(node: &Member, pod: &str, cases: &[(&str, &str)]) {
    for (script, expected) in cases {
        let said = inside(node, pod, script).await;
        assert_eq!(said.as_deref(), Ok(*expected), "{pod}: {script}");
    }
}

/// Whose a file is on the disk that was written into the volume `disk`.
async fn owner_on_disk(node: &Member, pod: &str) -> (u32, u32) {
    let volumes = record(node, pod).await.with_file_name("volumes");
    let file = volumes.join("kubernetes.io~empty-dir/disk/own");
    let found = fs::metadata(file).unwrap();
    (found.uid(), found.gid())
}

/// What root writes and what it is given is root's inside, and so it is on the disk.
async fn roots_files_are_roots(node: &Member, pod: &str) {
    let cases = [
        ("id -u; id -g", "0\n0"),
        ("echo a > /disk/own; stat -c %u:%g /disk/own", "0:0"),
        ("echo b > /memory/own; stat -c %u:%g /memory/own", "0:0"),
        (
            "echo c > /part/own; stat -c %u:%g /part/own /disk/part/own",
            "0:0\n0:0",
        ),
        (
            "cat /secret/word; stat -Lc ' %u:%g %a' /secret/word",
            "hush 0:0 400",
        ),
        ("cat /map/word; stat -Lc ' %u:%g' /map/word", "aloud 0:0"),
        (
            "stat -c %u:%g / /etc/hosts /dev/termination-log",
            "0:0\n0:0\n0:0",
        ),
    ];
    all_say(node, pod, &cases).await;
    assert_eq!(owner_on_disk(node, pod).await, (0, 0));
}

/// Users and groups that a pod asks for are those it sees, of files too.
async fn files_of_a_group(node: &Member, pod: &str) {
    let cases = [
        // One of the groups is the image's own idea of user 1000.
        ("id -u; id -G", "1000\n3000 2000 5000"),
        ("echo a > /disk/own; stat -c %u:%g /disk/own", "1000:5000"),
        (
            "echo b > /memory/own; stat -c %u:%g /memory/own",
            "1000:5000",
        ),
        (
            "cat /secret/word; stat -Lc ' %u:%g %a' /secret/word",
            "hush 0:5000 440",
        ),
    ];
    all_say(node, pod, &cases).await;
    assert_eq!(owner_on_disk(node, pod).await, (1000, 5000));
}

/// The runtime's filter of system calls holds as ever.
async fn filtered(node: &Member, pod: &str) {
    let filter = "sed -n 's/^Seccomp:\\t//p' /proc/self/status";
    all_say(node, pod, &[(filter, "2")]).await;
}

/// Who the pod's process is to the node: nobody that the node knows.
async fn seen_from_outside(node: &Member, pod: &str) -> u64 {
    let id = running_id(node, pod, None).await.unwrap();
    let tasks = node.stage.bed.ctr(&["tasks", "ls"]).await.unwrap();
    let line = tasks.lines().find(|line| line.starts_with(&id)).unwrap();
    let pid = line.split_whitespace().nth(1).unwrap();
    fs::metadata(format!("/proc/{pid}")).unwrap().uid().into()
}

/// The ids of the pods' containers and how often they were restarted.
async fn ids(node: &Member, pods: &[(&str, u64)]) -> Vec<(String, i32)> {
    let mut found = Vec::new();
    for (name, _) in pods {
        let seen = node.pod(name).await.unwrap();
        let main = status::container(&seen, "main").unwrap();
        assert_eq!(
            running_id(node, name, None).await.unwrap(),
            status::id(main)
        );
        found.push((status::id(main), main.restart_count));
    }
    found
}
