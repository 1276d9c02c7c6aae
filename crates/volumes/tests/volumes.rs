//! Volumes over files and mounts in memory: what is made, what is refused, and that it is taken away exactly.

#![allow(clippy::unwrap_used, clippy::expect_used)] // all of it is test code

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use krablet_linux::fake::Fault;
use krablet_linux::{EntryKind, Files, Mounts};
use krablet_pod::PodUid;
use krablet_pod::api::Pod;
use krablet_pod::paths::RootDir;
use krablet_volumes::{PodMounts, Volumes, VolumesConfig};

mod common;

use common::{
    EMPTY_DIRS, ROOT, UID, World, agent_over, assert_nothing_left, full_pod, node, pod, under_root,
};

async fn set_up(volumes: &Volumes, pod: &Pod) -> PodMounts {
    volumes.set_up(pod).await.unwrap().mounts
}

#[tokio::test]
async fn everything_is_made_as_upstream_and_taken_away() {
    let files = node();
    let volumes = agent_over(&files);
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
    assert_nothing_left(&files, "").await;
    assert_eq!(volumes.recorded().await.unwrap(), []);
}

#[tokio::test]
async fn again_costs_no_call_and_a_new_agent_keeps_what_is_there() {
    let files = node();
    let volumes = agent_over(&files);
    let first = set_up(&volumes, &full_pod()).await;
    files.set_faults(|op, _| panic!("asked for {op}"));
    assert_eq!(set_up(&volumes, &full_pod()).await, first);
    files.clear_faults();

    // The pod changed its own directory; a new agent leaves that alone.
    let disk = Path::new(EMPTY_DIRS).join("disk");
    let ram = Path::new(EMPTY_DIRS).join("ram");
    files.set_mode(&disk, 0o700).await.unwrap();
    files.put_file(&ram.join("kept"), b"x").unwrap();
    assert_eq!(set_up(&agent_over(&files), &full_pod()).await, first);
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
    assert_nothing_left(&files, "").await;
}

#[tokio::test]
async fn a_pod_another_kubelet_left_is_taken_over() {
    let files = node();
    let ram = Path::new(EMPTY_DIRS).join("ram");
    files.put(&ram, EntryKind::Directory).unwrap();
    files.mounts().tmpfs(&ram, None).await.unwrap();
    files.put_file(&ram.join("kept"), b"x").unwrap();
    let volumes = agent_over(&files);
    volumes.set_up(&full_pod()).await.unwrap();
    assert!(files.content(&ram.join("kept")).is_some());
    volumes.tear_down(&UID.into()).await.unwrap();
    assert_nothing_left(&files, "").await;
}

#[tokio::test]
async fn a_pod_without_volumes_has_directories_and_a_record_too() {
    let files = node();
    let volumes = agent_over(&files);
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
    agent_over(&files).set_up(&pod("[]")).await.unwrap();
    volumes.tear_down(&UID.into()).await.unwrap();
    assert_nothing_left(&files, "").await;
}

#[tokio::test]
async fn fs_group_owns_empty_directories() {
    let files = node();
    let mut pod = full_pod();
    let context = serde_json::from_str(r#"{"fsGroup":2000}"#).unwrap();
    pod.spec.as_mut().unwrap().security_context = Some(context);
    agent_over(&files).set_up(&pod).await.unwrap();
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
        let volumes = agent_over(&files);
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
            r#"[{"name":"f","flexVolume":{"driver":"example.com/d"}}]"#,
            "Unable to attach or mount volumes: unmounted volumes=[f], unattached volumes=[], failed to process volumes=[f]: failed to get Plugin from volumeSpec for volume \"f\" err=no volume plugin matched",
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
        let error = agent_over(&files).set_up(&pod(volumes)).await.unwrap_err();
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
        let error = agent_over(&files).set_up(&pod).await.unwrap_err();
        assert!(error.to_string().ends_with(text), "{error}");
    }
    for uid in ["", ".", "..", "a/b", "/etc", "../../etc", "a/"] {
        let mut pod = pod("[]");
        pod.metadata.uid = Some(uid.to_owned());
        let volumes = agent_over(&files);
        assert!(volumes.set_up(&pod).await.is_err(), "{uid}");
        assert!(volumes.tear_down(&uid.into()).await.is_err(), "{uid}");
    }
}

#[tokio::test]
async fn a_busy_mount_keeps_its_content_and_is_named_with_its_holder() {
    let files = node();
    let volumes = agent_over(&files);
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
    assert_nothing_left(&files, "").await;
}

#[tokio::test]
async fn who_never_lets_go_is_not_waited_for_without_end() {
    let files = node();
    let volumes = agent_over(&files);
    volumes.set_up(&full_pod()).await.unwrap();
    files
        .mounts()
        .set_busy(&Path::new(EMPTY_DIRS).join("ram"), true);
    let mut tries = 0;
    while volumes.tear_down(&UID.into()).await.is_err() {
        tries += 1;
    }
    assert_eq!(tries, 8);
    assert_nothing_left(&files, "").await;
}

#[tokio::test]
async fn mounts_nobody_recorded_go_too_and_a_link_for_a_pod_directory_is_not_followed() {
    let files = node();
    let volumes = agent_over(&files);
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
    assert_nothing_left(&files, "").await;

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
    let volumes = agent_over(&files);
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
    // What stands is not waited for a second time.
    let totals = metrics.totals.get();
    let totals = totals.iter().map(|(k, n)| (k.join(" "), n.count()));
    let expected = [
        (format!("overall_volume_mount {DISK}"), 3),
        (format!("overall_volume_mount {HOST}"), 1),
    ];
    assert!(totals.eq(expected));
}

#[tokio::test]
async fn volumes_of_earlier_lives_are_counted() {
    let files = node();
    let of_this_life = || {
        let deps = World::default().in_memory(&files);
        let metrics = deps.metrics.earlier.clone();
        let volumes = Volumes::new(VolumesConfig::new(RootDir::new(ROOT)), deps);
        (volumes, metrics)
    };
    let (volumes, metrics) = of_this_life();
    set_up(&volumes, &full_pod()).await;
    volumes.find_in_use().await.unwrap();
    assert_eq!(metrics.found.get(), 0, "they are of this life");

    // A kubelet's pod, of which there is no record.
    let theirs = PodUid::from("theirs");
    for volume in ["kubernetes.io~empty-dir/a", "kubernetes.io~secret/b"] {
        let dir = RootDir::new(ROOT).volumes(&theirs).join(volume);
        files.create_dir_all(&dir, 0o750).await.unwrap();
    }
    let (volumes, metrics) = of_this_life();
    volumes.find_in_use().await.unwrap();
    let recorded = metrics.found.get() - metrics.unknown.get();
    // A path of the host leaves nothing in the pod's directory.
    assert_eq!((recorded, metrics.unknown.get()), (3, 2));
    volumes.tear_down(&theirs).await.unwrap();
    volumes.tear_down(&PodUid::from(UID)).await.unwrap();
    assert_eq!((metrics.cleaned.get(), metrics.clean_errors.get()), (2, 0));
}
