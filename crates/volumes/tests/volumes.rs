//! Volumes over files and mounts in memory: what is made, what is refused, and that whatever a
//! crash or an error leaves is taken away exactly.

#![allow(clippy::unwrap_used, clippy::expect_used)] // all of it is test code

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use krablet_linux::fake::{Fault, MemoryFiles};
use krablet_linux::{EntryKind, Files, Mounts};
use krablet_pod::PodUid;
use krablet_pod::api::Pod;
use krablet_pod::paths::RootDir;
use krablet_volumes::{PodMounts, Volumes, VolumesConfig};
use tokio::time::timeout;

mod common;

use common::{UID, World, pod};

const ROOT: &str = "/var/lib/kubelet";
const EMPTY_DIRS: &str = "/var/lib/kubelet/pods/u-1/volumes/kubernetes.io~empty-dir";

fn agent(files: &MemoryFiles) -> Volumes {
    let config = VolumesConfig::new(RootDir::new(ROOT));
    Volumes::new(config, World::default().in_memory(files))
}

async fn set_up(volumes: &Volumes, pod: &Pod) -> PodMounts {
    volumes.set_up(pod).await.unwrap().mounts
}

/// A node with something on it that must survive everything.
fn node() -> MemoryFiles {
    let files = MemoryFiles::default();
    files.put(Path::new(ROOT), EntryKind::Directory).unwrap();
    files
        .put_file(Path::new("/srv/data/precious"), b"x")
        .unwrap();
    files
}

fn full_pod() -> Pod {
    pod(r#"[{"name":"disk","emptyDir":{}},
            {"name":"ram","emptyDir":{"medium":"Memory","sizeLimit":"1Mi"}},
            {"name":"ram2","emptyDir":{"medium":"Memory"}},
            {"name":"host","hostPath":{"path":"/srv/data","type":"Directory"}}]"#)
}

fn under_root(files: &MemoryFiles) -> Vec<String> {
    files
        .paths()
        .iter()
        .filter_map(|p| p.strip_prefix(ROOT).ok())
        .map(|p| p.display().to_string())
        .filter(|p| !p.is_empty())
        .collect()
}

async fn assert_gone(files: &MemoryFiles, note: &str) {
    let left: Vec<_> = under_root(files)
        .into_iter()
        .filter(|p| p != "pods")
        .collect();
    assert_eq!(left, Vec::<String>::new(), "{note}");
    let mounts = files.mounts().below(Path::new("/")).await.unwrap();
    assert_eq!(mounts, [], "{note}");
    assert!(
        files.content(Path::new("/srv/data/precious")).is_some(),
        "{note}"
    );
}

#[tokio::test]
async fn everything_is_made_as_upstream_and_taken_away() {
    let files = node();
    let volumes = agent(&files);
    let mounted = set_up(&volumes, &full_pod()).await;
    let seen: Vec<_> = mounted
        .iter()
        .map(|(name, m)| {
            (
                name.as_str(),
                m.host_path.display().to_string(),
                m.se_linux_relabel,
            )
        })
        .collect();
    assert_eq!(
        seen,
        [
            ("disk", format!("{EMPTY_DIRS}/disk"), true),
            ("host", "/srv/data".to_owned(), false),
            ("ram", format!("{EMPTY_DIRS}/ram"), true),
            ("ram2", format!("{EMPTY_DIRS}/ram2"), true),
        ]
    );
    let mode = |p: &str| files.mode(&Path::new(ROOT).join(p)).unwrap();
    for dir in ["pods", "pods/u-1", "pods/u-1/volumes", "pods/u-1/plugins"] {
        assert_eq!(mode(dir), 0o750, "{dir}");
    }
    assert_eq!(mode("pods/u-1/krablet-volumes.json"), 0o600);
    assert_eq!(mode("pods/u-1/volumes/kubernetes.io~empty-dir/disk"), 0o777);
    assert_eq!(mode("pods/u-1/volumes/kubernetes.io~empty-dir/ram"), 0o1777);
    assert!(
        under_root(&files)
            .contains(&"pods/u-1/plugins/kubernetes.io~empty-dir/disk/ready".to_owned())
    );
    let mounts = files.mounts();
    let ram = PathBuf::from(EMPTY_DIRS).join("ram");
    assert_eq!(mounts.size_of(&ram), Some(1 << 20));
    assert_eq!(mounts.below(Path::new(ROOT)).await.unwrap().len(), 2);
    assert_eq!(volumes.recorded().await.unwrap(), [PodUid::from(UID)]);

    files.put_file(&ram.join("in/side"), b"x").unwrap();
    files
        .put_file(&Path::new(EMPTY_DIRS).join("disk/file"), b"x")
        .unwrap();
    files
        .put_file(&Path::new(ROOT).join("pods/u-1/containers/c/1"), b"x")
        .unwrap();

    volumes.release(&UID.into()).await.unwrap();
    let mut left = under_root(&files);
    left.retain(|p| p.starts_with("pods/u-1/"));
    assert_eq!(
        left,
        [
            "pods/u-1/containers",
            "pods/u-1/containers/c",
            "pods/u-1/containers/c/1"
        ]
    );
    volumes.tear_down(&UID.into()).await.unwrap();
    volumes.tear_down(&UID.into()).await.unwrap();
    assert_gone(&files, "").await;
    assert_eq!(volumes.recorded().await.unwrap(), []);
}

#[tokio::test]
async fn again_costs_no_call_and_a_new_agent_keeps_what_is_there() {
    let files = node();
    let volumes = agent(&files);
    let first = set_up(&volumes, &full_pod()).await;
    files.set_faults(|op, _| panic!("asked for {op}"));
    assert_eq!(set_up(&volumes, &full_pod()).await, first);
    files.clear_faults();

    // The pod changed its own directory; a new agent leaves that alone.
    let disk = Path::new(EMPTY_DIRS).join("disk");
    let ram = Path::new(EMPTY_DIRS).join("ram");
    files.set_mode(&disk, 0o700).await.unwrap();
    files.put_file(&ram.join("kept"), b"x").unwrap();
    assert_eq!(set_up(&agent(&files), &full_pod()).await, first);
    assert_eq!(files.mode(&disk), Some(0o700));
    assert!(files.content(&ram.join("kept")).is_some());
    assert_eq!(files.mounts().below(Path::new("/")).await.unwrap().len(), 2);

    // A changed spec is set up, and what both specs made goes in the end.
    volumes
        .set_up(&pod(r#"[{"name":"other","emptyDir":{"medium":"Memory"}}]"#))
        .await
        .unwrap();
    assert_eq!(files.mounts().below(Path::new("/")).await.unwrap().len(), 3);
    volumes.tear_down(&UID.into()).await.unwrap();
    assert_gone(&files, "").await;
}

#[tokio::test]
async fn a_pod_another_kubelet_left_is_taken_over() {
    let files = node();
    let ram = Path::new(EMPTY_DIRS).join("ram");
    files.put(&ram, EntryKind::Directory).unwrap();
    files.mounts().tmpfs(&ram, None).await.unwrap();
    files.put_file(&ram.join("kept"), b"x").unwrap();
    let volumes = agent(&files);
    volumes.set_up(&full_pod()).await.unwrap();
    assert!(files.content(&ram.join("kept")).is_some());
    volumes.tear_down(&UID.into()).await.unwrap();
    assert_gone(&files, "").await;
}

#[tokio::test]
async fn a_pod_without_volumes_has_directories_and_a_record_too() {
    let files = node();
    let volumes = agent(&files);
    assert!(set_up(&volumes, &pod("[]")).await.is_empty());
    assert_eq!(
        under_root(&files),
        [
            "pods",
            "pods/u-1",
            "pods/u-1/krablet-volumes.json",
            "pods/u-1/plugins",
            "pods/u-1/volumes"
        ]
    );
    agent(&files).set_up(&pod("[]")).await.unwrap();
    volumes.tear_down(&UID.into()).await.unwrap();
    assert_gone(&files, "").await;
}

#[tokio::test]
async fn fs_group_owns_empty_directories() {
    let files = node();
    let mut pod = full_pod();
    let context = serde_json::from_str(r#"{"fsGroup":2000}"#).unwrap();
    pod.spec.as_mut().unwrap().security_context = Some(context);
    agent(&files).set_up(&pod).await.unwrap();
    for (name, mode) in [("disk", 0o2777), ("ram", 0o3777)] {
        let dir = Path::new(EMPTY_DIRS).join(name);
        assert_eq!(
            (files.group(&dir), files.mode(&dir)),
            (Some(2000), Some(mode)),
            "{name}"
        );
    }
    assert_eq!(files.group(Path::new("/srv/data")), Some(0));
}

#[tokio::test]
async fn host_paths_of_every_type() {
    let files = node();
    for (path, kind) in [
        ("/h/dir", EntryKind::Directory),
        ("/h/file", EntryKind::File),
        ("/h/sock", EntryKind::Socket),
        ("/h/char", EntryKind::CharDevice),
        ("/h/block", EntryKind::BlockDevice),
    ] {
        files.put(Path::new(path), kind).unwrap();
    }
    files
        .symlink(Path::new("/h/dir"), Path::new("/h/link"))
        .await
        .unwrap();
    let ok = "";
    let cases = [
        ("", "/h/absent", ok),
        ("Directory", "/h/dir", ok),
        ("Directory", "/h/link", ok),
        (
            "Directory",
            "/h/file",
            "hostPath type check failed: /h/file is not a directory",
        ),
        (
            "Directory",
            "/h/absent",
            "hostPath type check failed: /h/absent is not a directory",
        ),
        (
            "DirectoryOrCreate",
            "/h/file",
            "hostPath type check failed: /h/file is not a directory",
        ),
        ("DirectoryOrCreate", "/h/new/deep", ok),
        ("File", "/h/file", ok),
        (
            "File",
            "/h/dir",
            "hostPath type check failed: /h/dir is not a file",
        ),
        (
            "FileOrCreate",
            "/h/dir",
            "hostPath type check failed: /h/dir is not a file",
        ),
        ("FileOrCreate", "/h/newfile", ok),
        (
            "FileOrCreate",
            "/nodir/newfile",
            "create /nodir/newfile: No such file or directory (os error 2)",
        ),
        ("Socket", "/h/sock", ok),
        (
            "Socket",
            "/h/file",
            "hostPath type check failed: /h/file is not a socket file",
        ),
        ("CharDevice", "/h/char", ok),
        (
            "CharDevice",
            "/h/block",
            "hostPath type check failed: /h/block is not a character device",
        ),
        ("BlockDevice", "/h/block", ok),
        (
            "BlockDevice",
            "/h/absent",
            "hostPath type check failed: /h/absent is not a block device",
        ),
        ("Nonsense", "/h/dir", "Nonsense is an invalid volume type"),
        (
            "",
            "/h/../etc",
            "invalid HostPath `/h/../etc`: must not contain '..'",
        ),
    ];
    for (kind, path, refusal) in cases {
        let volumes = agent(&files);
        let pod = pod(&format!(
            r#"[{{"name":"h","hostPath":{{"path":"{path}","type":"{kind}"}}}}]"#
        ));
        match volumes.set_up(&pod).await {
            Ok(done) => {
                let mounts = done.mounts;
                assert_eq!(refusal, ok, "{kind} {path}");
                assert_eq!(mounts["h"].host_path, Path::new(path));
            }
            Err(e) => assert_eq!(
                e.to_string(),
                format!("MountVolume.SetUp failed for volume \"h\" : {refusal}"),
                "{kind} {path}"
            ),
        }
        volumes.tear_down(&UID.into()).await.unwrap();
    }
    assert_eq!(files.mode(Path::new("/h/new/deep")), Some(0o755));
    assert_eq!(files.mode(Path::new("/h/newfile")), Some(0o644));
}

#[tokio::test]
async fn what_cannot_be_is_refused_before_anything_is_made() {
    let files = node();
    let cases = [
        (
            r#"[{"name":"a","emptyDir":{}},{"name":"c","rbd":{"image":"x","monitors":[]}}]"#,
            "Unable to attach or mount volumes: unmounted volumes=[c], unattached volumes=[], failed to process volumes=[c]: failed to get Plugin from volumeSpec for volume \"c\" err=no volume plugin matched",
        ),
        (
            r#"[{"name":"g","gitRepo":{"repository":"x"}}]"#,
            "MountVolume.SetUp failed for volume \"g\" : git-repo volume plugin has been disabled; if necessary, it may be re-enabled by enabling the feature-gate `GitRepoVolumeDriver`",
        ),
        (
            r#"[{"name":"../x","emptyDir":{}}]"#,
            "MountVolume.SetUp failed for volume \"../x\" : the name cannot be that of a directory",
        ),
    ];
    for (volumes, text) in cases {
        let error = agent(&files).set_up(&pod(volumes)).await.unwrap_err();
        assert_eq!(error.to_string(), text);
        assert_eq!(under_root(&files), Vec::<String>::new());
    }
    for (source, text) in [
        (r#"{"medium":"Wood"}"#, "unknown storage medium \"Wood\""),
        (
            r#"{"medium":"Memory","sizeLimit":"lots"}"#,
            "size limit \"lots\" is not a quantity",
        ),
    ] {
        let pod = pod(&format!(r#"[{{"name":"a","emptyDir":{source}}}]"#));
        let error = agent(&files).set_up(&pod).await.unwrap_err();
        assert!(error.to_string().ends_with(text), "{error}");
    }
    for uid in ["", ".", "..", "a/b", "/etc", "../../etc", "a/"] {
        let mut pod = pod("[]");
        pod.metadata.uid = Some(uid.to_owned());
        let volumes = agent(&files);
        assert!(volumes.set_up(&pod).await.is_err(), "{uid}");
        assert!(volumes.tear_down(&uid.into()).await.is_err(), "{uid}");
    }
}

/// Counts calls and lets `fault` spoil call number `at`.
fn spoil(
    files: &MemoryFiles,
    at: usize,
    fault: impl Fn() -> Fault + Send + Sync + 'static,
) -> Arc<AtomicUsize> {
    let calls = Arc::new(AtomicUsize::new(0));
    let count = calls.clone();
    files.set_faults(move |_, _| (count.fetch_add(1, Ordering::SeqCst) == at).then(&fault));
    calls
}

fn broken() -> io::Error {
    io::Error::other("broken")
}

type MakeFault = fn() -> Fault;

const FAULTS: [(&str, MakeFault); 3] = [
    ("crash before", || Fault::Hang),
    ("error before", || Fault::Before(broken())),
    ("error after", || Fault::After(broken())),
];

#[tokio::test(start_paused = true)]
async fn a_set_up_cut_short_anywhere_is_finished_or_taken_away_exactly() {
    for (kind, fault) in FAULTS {
        let mut at = 0;
        loop {
            let files = node();
            let calls = spoil(&files, at, fault);
            let cut = agent(&files);
            let done = timeout(Duration::from_secs(1), cut.set_up(&full_pod())).await;
            drop(cut);
            files.clear_faults();
            if calls.load(Ordering::SeqCst) <= at {
                assert!(done.unwrap().is_ok(), "{kind} {at}");
                break;
            }
            let note = format!("{kind} at call {at}");
            // Every mount that is there is in the record.
            let record = Path::new(ROOT).join("pods/u-1/krablet-volumes.json");
            let text = String::from_utf8(files.content(&record).unwrap_or_default()).unwrap();
            for mount in files.mounts().below(Path::new("/")).await.unwrap() {
                let name = mount.point.file_name().unwrap().to_str().unwrap();
                assert!(text.contains(&format!("/{name}\"")), "{note}: {text}");
            }
            if at % 2 == 0 {
                let done = agent(&files).set_up(&full_pod()).await.expect(&note);
                assert_eq!(done.mounts.len(), 4, "{note}");
                assert_eq!(
                    files.mode(&Path::new(EMPTY_DIRS).join("disk")),
                    Some(0o777),
                    "{note}"
                );
                assert_eq!(
                    files.mounts().below(Path::new("/")).await.unwrap().len(),
                    2,
                    "{note}"
                );
            }
            agent(&files).tear_down(&UID.into()).await.expect(&note);
            assert_gone(&files, &note).await;
            at += 1;
        }
        assert!(at > 10, "{kind}: {at} calls");
    }
}

#[tokio::test(start_paused = true)]
async fn a_tear_down_cut_short_anywhere_is_finished_by_the_next() {
    for (kind, fault) in FAULTS {
        let mut at = 0;
        loop {
            let files = node();
            agent(&files).set_up(&full_pod()).await.unwrap();
            files
                .put_file(&Path::new(EMPTY_DIRS).join("ram/x"), b"x")
                .unwrap();
            let calls = spoil(&files, at, fault);
            let cut = agent(&files);
            let done = timeout(Duration::from_secs(1), cut.tear_down(&UID.into())).await;
            drop(cut);
            files.clear_faults();
            if calls.load(Ordering::SeqCst) <= at {
                assert!(done.unwrap().is_ok(), "{kind} {at}");
                break;
            }
            let note = format!("{kind} at call {at}");
            agent(&files).tear_down(&UID.into()).await.expect(&note);
            assert_gone(&files, &note).await;
            at += 1;
        }
        assert!(at > 6, "{kind}: {at} calls");
    }
}

#[tokio::test]
async fn a_torn_or_foreign_record_is_set_aside_and_the_mount_table_tells() {
    for text in [
        "",
        "{\"version\":1,\"volu",
        r#"{"version":9,"volumes":[]}"#,
        r#"{"version":1,"volumes":[{"name":"x","plugin":"p","path":"/srv/data","mounted":true}]}"#,
    ] {
        let files = node();
        let volumes = agent(&files);
        volumes.set_up(&full_pod()).await.unwrap();
        let record = Path::new(ROOT).join("pods/u-1/krablet-volumes.json");
        files.put_file(&record, text.as_bytes()).unwrap();
        // Setting up goes on from there, with a new record.
        agent(&files).set_up(&full_pod()).await.unwrap();
        let aside = record.with_extension("json.unreadable");
        assert_eq!(files.content(&aside).unwrap(), text.as_bytes());
        files.put_file(&record, text.as_bytes()).unwrap();
        volumes.tear_down(&UID.into()).await.unwrap();
        assert_gone(&files, text).await;
    }
}

#[tokio::test]
async fn a_busy_mount_keeps_its_content_and_is_named_with_its_holder() {
    let files = node();
    let volumes = agent(&files);
    volumes.set_up(&full_pod()).await.unwrap();
    let (ram, ram2) = (
        Path::new(EMPTY_DIRS).join("ram"),
        Path::new(EMPTY_DIRS).join("ram2"),
    );
    files.put_file(&ram.join("x"), b"x").unwrap();
    files.mounts().set_busy(&ram, true);
    let error = volumes.tear_down(&UID.into()).await.unwrap_err();
    assert!(error.is_busy());
    let text = error.to_string();
    assert!(
        text.contains("/ram failed") && text.contains("held by process"),
        "{text}"
    );
    assert!(files.content(&ram.join("x")).is_some());
    assert!(files.mounts().below(&ram2).await.unwrap().is_empty());
    files.mounts().set_busy(&ram, false);
    volumes.tear_down(&UID.into()).await.unwrap();
    assert_gone(&files, "").await;
}

#[tokio::test]
async fn who_never_lets_go_is_not_waited_for_without_end() {
    let files = node();
    let volumes = agent(&files);
    volumes.set_up(&full_pod()).await.unwrap();
    files
        .mounts()
        .set_busy(&Path::new(EMPTY_DIRS).join("ram"), true);
    let mut tries = 0;
    while volumes.tear_down(&UID.into()).await.is_err() {
        tries += 1;
    }
    assert_eq!(tries, 8);
    assert_gone(&files, "").await;
}

#[tokio::test]
async fn mounts_nobody_recorded_go_too_and_a_link_for_a_pod_directory_is_not_followed() {
    let files = node();
    let volumes = agent(&files);
    volumes.set_up(&full_pod()).await.unwrap();
    let strange = Path::new(EMPTY_DIRS).join("disk/inner");
    files.put(&strange, EntryKind::Directory).unwrap();
    files.mounts().tmpfs(&strange, None).await.unwrap();
    files
        .symlink(
            Path::new("/srv/data"),
            &Path::new(EMPTY_DIRS).join("disk/link"),
        )
        .await
        .unwrap();
    volumes.tear_down(&UID.into()).await.unwrap();
    assert_gone(&files, "").await;

    let trap = Path::new(ROOT).join("pods/u-1");
    files.symlink(Path::new("/srv/data"), &trap).await.unwrap();
    assert!(volumes.tear_down(&UID.into()).await.is_err());
    assert_eq!(volumes.recorded().await.unwrap(), []);
    assert!(files.content(Path::new("/srv/data/precious")).is_some());
}

#[tokio::test(start_paused = true)]
async fn a_path_that_hangs_is_asked_once_and_keeps_nobody_else() {
    let files = node();
    files.put(Path::new("/nfs"), EntryKind::Directory).unwrap();
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    files.set_faults(move |op, path| {
        let hangs = op == "stat" && path == Path::new("/nfs");
        if hangs {
            count.fetch_add(1, Ordering::SeqCst);
        }
        hangs.then_some(Fault::Hang)
    });
    let volumes = agent(&files);
    let stuck = pod(r#"[{"name":"n","hostPath":{"path":"/nfs","type":"Directory"}}]"#);
    let mut other = full_pod();
    other.metadata.uid = Some("u-2".to_owned());
    for _ in 0..3 {
        let error = volumes.set_up(&stuck).await.unwrap_err();
        assert!(
            error.to_string().contains("/nfs did not answer within 10s"),
            "{error}"
        );
        volumes.set_up(&other).await.unwrap();
    }
    assert_eq!(asked.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn volumes_are_counted() {
    const DISK: &str = "kubernetes.io/empty-dir";
    const HOST: &str = "kubernetes.io/host-path";
    let (desired, actual) = ("desired_state_of_world", "actual_state_of_world");
    let files = node();
    let deps = World::default().in_memory(&files);
    let metrics = deps.metrics.clone();
    let volumes = Volumes::new(VolumesConfig::new(RootDir::new(ROOT)), deps);
    let wanted = [Arc::new(full_pod())];
    let before = [((DISK, desired), 3), ((HOST, desired), 1)];
    assert!(volumes.census(&wanted).into_iter().eq(before));
    for _ in 0..2 {
        set_up(&volumes, &wanted[0]).await;
    }
    let standing = [
        ((DISK, actual), 3),
        ((DISK, desired), 3),
        ((HOST, actual), 1),
        ((HOST, desired), 1),
    ];
    assert!(volumes.census(&wanted).into_iter().eq(standing));
    volumes.tear_down(&PodUid::from(UID)).await.unwrap();
    assert!(volumes.census(&[]).is_empty());
    let counted = metrics.operations.get();
    let counted = counted.iter().map(|(k, n)| (k.join(" "), n.count()));
    let expected = [
        (format!("false volume_mount success {DISK}"), 3),
        (format!("false volume_mount success {HOST}"), 1),
        (format!("false volume_unmount success {DISK}"), 3),
    ];
    assert!(counted.eq(expected));
}
