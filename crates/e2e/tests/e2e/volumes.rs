//! Volumes: made as asked, and gone with the pod.

use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use krablet_e2e::manifest::{pod, scratch_volume, scratched, shell, tool, with};
use krablet_e2e::{Stage, status};
use serde_json::json;

/// Where the pod's volume of this name is.
fn empty_dir(stage: &Stage, uid: &str, name: &str) -> PathBuf {
    let pods = stage.krablet.root_dir().join("pods");
    pods.join(uid)
        .join("volumes/kubernetes.io~empty-dir")
        .join(name)
}

/// File system and options of what is mounted at this path.
fn mounted(path: &Path) -> Option<(String, String)> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let point = path.display().to_string();
    let line = mounts
        .lines()
        .find(|line| line.split(' ').nth(4) == Some(&point))?;
    let mut fields = line.split(" - ").nth(1)?.split(' ');
    Some((fields.next()?.to_owned(), fields.nth(1)?.to_owned()))
}

pub async fn empty_dirs_are_shared_and_removed(stage: &Stage) {
    let name = "empty-dir";
    let mounts = json!({"volumeMounts": [
        {"name": "disk", "mountPath": "/disk"}, {"name": "memory", "mountPath": "/memory"},
    ]});
    let reader = "while ! test -f /disk/from-writer -a -f /memory/from-writer; do sleep 0.1; done; \
                  echo seen > /disk/from-reader; exec /tool hold";
    let writer = "echo 1 > /disk/from-writer; echo 1 > /memory/from-writer; exec /tool hold";
    let manifest = pod(
        name,
        json!({
            "volumes": [
                {"name": "disk", "emptyDir": {}},
                {"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
            ],
            "containers": [
                with(shell("writer", writer), mounts.clone()),
                with(shell("reader", reader), mounts),
            ],
        }),
    );
    let pod = stage.run(name, &manifest).await;
    let uid = status::uid(&pod);
    let (disk, memory) = (
        empty_dir(stage, &uid, "disk"),
        empty_dir(stage, &uid, "memory"),
    );
    stage
        .wait(
            name,
            "one container sees what the other wrote",
            async || match disk.join("from-reader").exists() && memory.join("from-writer").exists()
            {
                true => Ok(()),
                false => Err("nothing seen".to_owned()),
            },
        )
        .await;
    use std::os::unix::fs::PermissionsExt;
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode(&disk), 0o777);
    assert_eq!(mounted(&disk), None);
    let (kind, options) = mounted(&memory).expect("the memory volume is mounted");
    assert_eq!(kind, "tmpfs");
    assert!(options.contains("size=1024k"), "{options}");
    stage.end(name).await;
    assert!(!disk.exists() && mounted(&memory).is_none());
}

/// A memory volume takes no more than its limit, which the writer is told.
pub async fn memory_volume_is_limited(stage: &Stage) {
    let name = "memory-limit";
    let script = "dd if=/dev/zero of=/memory/file bs=1024 count=2048 2>/dev/null && exit 1; \
                  stat -c %s /memory/file > /dev/termination-log; exit 0";
    let container = with(
        shell("main", script),
        json!({"volumeMounts": [{"name": "memory", "mountPath": "/memory"}]}),
    );
    let manifest = pod(
        name,
        json!({
            "restartPolicy": "Never",
            "volumes": [{"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}],
            "containers": [container],
        }),
    );
    stage.apply(name, &manifest);
    let pod = stage.phase(name, "Succeeded").await;
    let ended = status::ended(&pod, "main").unwrap();
    assert_eq!(ended.message.as_deref(), Some("1048576\n"));
    stage.end(name).await;
}

/// The volume outlives a restart of the container, not the pod.
pub async fn empty_dir_outlives_a_restart(stage: &Stage) {
    let name = "empty-dir-restart";
    let script =
        "echo run >> /data/runs; test $(grep -c run /data/runs) -ge 2 && exec /tool hold; exit 1";
    let container = with(
        shell("main", script),
        json!({"volumeMounts": [{"name": "data", "mountPath": "/data"}]}),
    );
    let manifest = pod(
        name,
        json!({"volumes": [{"name": "data", "emptyDir": {}}], "containers": [container]}),
    );
    let pod = stage.run(name, &manifest).await;
    stage
        .until(name, "holds after one restart", |pod| {
            status::running(pod, "main")?;
            match status::container(pod, "main")?.restart_count {
                1 => Ok(()),
                _ => Err(status::shown(pod)),
            }
        })
        .await;
    let runs = empty_dir(stage, &status::uid(&pod), "data").join("runs");
    assert_eq!(std::fs::read_to_string(runs).unwrap(), "run\nrun\n");
    stage.end(name).await;
}

pub async fn host_paths_of_every_type(stage: &Stage) {
    let (name, scratch) = ("host-path", stage.scratch("host-path"));
    let _socket = UnixListener::bind(scratch.join("socket")).unwrap();
    std::fs::write(scratch.join("file"), "from the host").unwrap();
    let block = std::fs::read_dir("/dev").unwrap().flatten().find(|entry| {
        use std::os::unix::fs::FileTypeExt;
        entry.file_type().is_ok_and(|kind| kind.is_block_device())
    });
    let mut paths = vec![
        ("any", scratch.clone(), ""),
        ("directory", scratch.clone(), "Directory"),
        ("made", scratch.join("made/below"), "DirectoryOrCreate"),
        ("file", scratch.join("file"), "File"),
        ("new-file", scratch.join("new-file"), "FileOrCreate"),
        ("socket", scratch.join("socket"), "Socket"),
        ("char", "/dev/null".into(), "CharDevice"),
    ];
    paths.extend(block.map(|entry| ("block", entry.path(), "BlockDevice")));
    let volumes: Vec<_> = paths
        .iter()
        .map(|(name, path, kind)| json!({"name": name, "hostPath": {"path": path, "type": kind}}))
        .collect();
    let mounts: Vec<_> = paths
        .iter()
        .map(|(name, ..)| json!({"name": name, "mountPath": format!("/host/{name}")}))
        .collect();
    let script = "cp /host/file /host/made/copy && echo hello > /host/new-file && exec /tool hold";
    let manifest = pod(
        name,
        json!({
            "volumes": volumes,
            "containers": [with(shell("main", script), json!({"volumeMounts": mounts}))],
        }),
    );
    stage.run(name, &manifest).await;
    stage
        .wait(
            name,
            "it wrote to the host",
            async || match std::fs::read_to_string(scratch.join("new-file")) {
                Ok(text) if text == "hello\n" => Ok(()),
                other => Err(format!("{other:?}")),
            },
        )
        .await;
    let copied = std::fs::read_to_string(scratch.join("made/below/copy")).unwrap();
    assert_eq!(copied, "from the host");
    stage.end(name).await;
    assert!(
        scratch.join("new-file").exists() && scratch.join("made/below/copy").exists(),
        "what belongs to the host stays"
    );
}

/// A path that is not what it should be: told, tried again, and all is well once it is.
pub async fn wrong_host_path_is_told_and_retried(stage: &Stage) {
    let (name, scratch) = ("host-path-wrong", stage.scratch("host-path-wrong"));
    let missing = scratch.join("missing");
    let manifest = pod(
        name,
        json!({
            "volumes": [{"name": "data", "hostPath": {"path": missing, "type": "Directory"}}],
            "containers": [with(
                tool("main", &["hold"]),
                json!({"volumeMounts": [{"name": "data", "mountPath": "/data"}]}),
            )],
        }),
    );
    stage.apply(name, &manifest);
    let event = stage.event(name, "FailedMount", "is not a directory").await;
    assert_eq!(event.kind, "Warning");
    assert!(stage.containers(name).await.is_empty());
    std::fs::create_dir(&missing).unwrap();
    stage.running(name).await;
    stage.end(name).await;
}

/// A read-only mount and one of a part of the volume.
pub async fn mounts_are_read_only_and_partial_when_asked(stage: &Stage) {
    let (name, scratch) = ("mounts", stage.scratch("mounts"));
    std::fs::create_dir(scratch.join("part")).unwrap();
    std::fs::write(scratch.join("part/inside"), "part").unwrap();
    let script = "echo x > /read-only/new 2>/dev/null && exit 1; cat /part/inside; \
                  cat /part/inside > /dev/termination-log; test ! -e /part/part";
    let container = with(
        scratched(shell("main", script)),
        json!({"volumeMounts": [
            {"name": "scratch", "mountPath": "/read-only", "readOnly": true},
            {"name": "scratch", "mountPath": "/part", "subPath": "part"},
        ]}),
    );
    let manifest = pod(
        name,
        json!({
            "restartPolicy": "Never",
            "volumes": [scratch_volume(&scratch)],
            "containers": [container],
        }),
    );
    stage.apply(name, &manifest);
    let pod = stage.phase(name, "Succeeded").await;
    let ended = status::ended(&pod, "main").unwrap();
    assert_eq!(ended.message.as_deref(), Some("part"));
    assert!(!scratch.join("new").exists());
    stage.end(name).await;
}
