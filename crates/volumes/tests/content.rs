//! Volumes made of objects, tokens and claims, over a node and a cluster in memory: what they show, how they follow,
//! what users are told, and that whatever a crash leaves is taken away exactly.

#![allow(clippy::unwrap_used, clippy::expect_used)] // all of it is test code

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use krablet_linux::fake::{Fault, MemoryFiles};
use krablet_linux::{Mounts, WallClock};
use krablet_objects::{ObjectError, ObjectKey};
use krablet_pod::api::{Pod, SecurityContext};
use krablet_pod::paths::RootDir;
use krablet_volumes::{Volumes, VolumesConfig};
use serde_json::json;
use tokio::sync::watch;
use tokio::time::timeout;

mod common;

use common::{ROOT, UID, agent, assert_gone, node, pod, told, world};

const POD_DIR: &str = "/var/lib/kubelet/pods/u-1";

/// Reads a file of a volume as its containers would.
fn shown(files: &MemoryFiles, plugin: &str, path: &str) -> Option<String> {
    let path = PathBuf::from(POD_DIR)
        .join("volumes")
        .join(plugin)
        .join(path);
    let bytes = files.content(&path)?;
    Some(String::from_utf8(bytes).unwrap())
}

#[tokio::test]
async fn what_volumes_show_and_with_which_rights() {
    let (world, files) = (world(), node());
    let bundle = "-----BEGIN CERTIFICATE-----\nAQID\n-----END CERTIFICATE-----\n";
    world.put_bundle("roots", bundle);
    let mut pod = pod(r#"[
        {"name":"conf","configMap":{"name":"settings","defaultMode":288}},
        {"name":"keys","secret":{"secretName":"keys","items":[{"key":"word","path":"deep/word","mode":256}]}},
        {"name":"self","downwardAPI":{"items":[{"path":"labels","fieldRef":{"fieldPath":"metadata.labels"}}]}},
        {"name":"all","projected":{"sources":[
            {"secret":{"name":"keys","items":[{"key":"user","path":"user"}]}},
            {"configMap":{"name":"settings"}},
            {"downwardAPI":{"items":[{"path":"name","fieldRef":{"fieldPath":"metadata.name"}}]}},
            {"clusterTrustBundle":{"name":"roots","path":"ca.pem"}},
            {"serviceAccountToken":{"path":"token","expirationSeconds":600}}]}}]"#);
    let volumes = agent(&world, &files);
    let done = volumes.set_up(&pod).await.unwrap();
    assert!(done.mounts.values().all(|m| m.read_only));
    assert_eq!(
        done.mounts["all"].host_path,
        Path::new("/var/lib/kubelet/pods/u-1/volumes/kubernetes.io~projected/all")
    );
    let expected = [
        ("kubernetes.io~configmap", "conf/key", "value", 0o440),
        ("kubernetes.io~secret", "keys/deep/word", "hidden", 0o400),
        (
            "kubernetes.io~downward-api",
            "self/labels",
            "app=\"web\"",
            0o644,
        ),
        ("kubernetes.io~projected", "all/user", "me", 0o644),
        ("kubernetes.io~projected", "all/key", "value", 0o644),
        ("kubernetes.io~projected", "all/name", "web", 0o644),
        ("kubernetes.io~projected", "all/token", "token-1", 0o644),
        (
            "kubernetes.io~projected",
            "all/ca.pem",
            "-----BEGIN CERTIFICATE-----\nAQID\n-----END CERTIFICATE-----\n",
            0o644,
        ),
    ];
    for (plugin, path, text, mode) in expected {
        assert_eq!(shown(&files, plugin, path).as_deref(), Some(text), "{path}");
        let file = Path::new(POD_DIR).join("volumes").join(plugin).join(path);
        assert_eq!(files.mode(&file), Some(mode), "{path}");
    }
    // What may be secret is in memory only.
    let mounts = files.mounts().below(Path::new("/")).await.unwrap();
    let mut on: Vec<_> = mounts
        .iter()
        .map(|m| m.point.file_name().unwrap().to_str().unwrap())
        .collect();
    on.sort_unstable();
    assert_eq!(on, ["all", "keys", "self"]);
    volumes.release(&UID.into()).await.unwrap();

    // With a group and one user, tokens are for that user, the rest is the group's to read.
    let spec = pod.spec.as_mut().unwrap();
    let context = json!({"fsGroup": 2000, "runAsUser": 7});
    spec.security_context = Some(serde_json::from_value(context).unwrap());
    volumes.set_up(&pod).await.unwrap();
    let all = Path::new(POD_DIR).join("volumes/kubernetes.io~projected/all");
    let rights = |path: &str| {
        let path = all.join(path);
        (
            files.owner(&path).unwrap(),
            files.group(&path).unwrap(),
            files.mode(&path).unwrap(),
        )
    };
    assert_eq!(rights("token"), (7, 2000, 0o640));
    assert_eq!(rights("key"), (0, 2000, 0o644));
    assert_eq!(rights("").1, 2000);
    volumes.release(&UID.into()).await.unwrap();
}

#[tokio::test]
async fn what_is_missing_is_told_in_upstreams_words_and_all_at_once() {
    let (world, files) = (world(), node());
    let volumes = agent(&world, &files);
    let cases: [(&str, &[&str]); 8] = [
        (
            r#"[{"name":"a","configMap":{"name":"none"}},{"name":"b","secret":{"secretName":"gone"}}]"#,
            &[
                "MountVolume.SetUp failed for volume \"a\" : configmap \"none\" not found",
                "MountVolume.SetUp failed for volume \"b\" : secret \"gone\" not found",
            ],
        ),
        (
            r#"[{"name":"a","configMap":{"name":"settings","items":[{"key":"no","path":"p"}]}}]"#,
            &[
                "MountVolume.SetUp failed for volume \"a\" : configmap references non-existent config key: no",
            ],
        ),
        (
            r#"[{"name":"a","secret":{"secretName":"keys","items":[{"key":"no","path":"p"}]}}]"#,
            &["MountVolume.SetUp failed for volume \"a\" : references non-existent secret key: no"],
        ),
        (
            r#"[{"name":"a","projected":{"sources":[{"configMap":{"name":"x"}},{"secret":{"name":"y"}}]}}]"#,
            &[
                "MountVolume.SetUp failed for volume \"a\" : [configmap \"x\" not found, secret \"y\" not found]",
            ],
        ),
        (
            r#"[{"name":"a","projected":{"sources":[{"podCertificate":{"signerName":"a/b","keyType":"DSA","keyPath":"k"}}]}}]"#,
            &[
                "MountVolume.SetUp failed for volume \"a\" : while creating initial PodCertificateRequest: unknown key type \"DSA\"",
            ],
        ),
        (
            r#"[{"name":"a","projected":{"sources":[{"clusterTrustBundle":{"name":"x","path":"p"}}]}}]"#,
            &[
                "MountVolume.SetUp failed for volume \"a\" : while getting ClusterTrustBundle: clustertrustbundle.certificates.k8s.io \"x\" not found",
            ],
        ),
        (
            r#"[{"name":"a","configMap":{"name":"settings","items":[{"key":"key","path":"../p"}]}}]"#,
            &[
                "MountVolume.SetUp failed for volume \"a\" : invalid path: must not contain '..': ../p",
            ],
        ),
        (
            r#"[{"name":"a","configMap":{"name":"none","optional":true}},
                {"name":"b","secret":{"secretName":"keys","optional":true,"items":[{"key":"no","path":"p"}]}},
                {"name":"c","projected":{"sources":[{"clusterTrustBundle":{"name":"x","path":"p","optional":true}}]}}]"#,
            &[],
        ),
    ];
    for (spec, expected) in cases {
        assert_eq!(told(&volumes, &pod(spec)).await, expected, "{spec}");
        volumes.release(&UID.into()).await.unwrap();
    }
    // What no container uses is not even looked for.
    let mut unused = pod(r#"[{"name":"a","configMap":{"name":"none"}}]"#);
    unused.spec.as_mut().unwrap().containers[0].volume_mounts = None;
    assert!(volumes.set_up(&unused).await.unwrap().mounts.is_empty());
}

#[tokio::test]
async fn content_follows_and_costs_nothing_while_nothing_changes() {
    let (world, files) = (world(), node());
    let volumes = agent(&world, &files);
    let pod = pod(r#"[{"name":"conf","configMap":{"name":"settings"}},
                      {"name":"keys","secret":{"secretName":"keys","optional":true}},
                      {"name":"self","downwardAPI":{"items":[{"path":"labels","fieldRef":{"fieldPath":"metadata.labels"}}]}}]"#);
    volumes.set_up(&pod).await.unwrap();
    files.set_faults(|op, path| panic!("asked for {op} of {}", path.display()));
    volumes.set_up(&pod).await.unwrap();
    files.clear_faults();

    let conf = |key: &str| shown(&files, "kubernetes.io~configmap", &format!("conf/{key}"));
    world.put_config_map("settings", json!({"key": "new", "more": "x"}));
    volumes.set_up(&pod).await.unwrap();
    assert_eq!(
        (conf("key"), conf("more")),
        (Some("new".into()), Some("x".into()))
    );
    world.put_config_map("settings", json!({"more": "x"}));
    volumes.set_up(&pod).await.unwrap();
    assert_eq!((conf("key"), conf("more")), (None, Some("x".into())));

    // Labels are not part of what a volume is made by, and show all the same.
    let mut labelled = pod.clone();
    let labels = [("app".to_owned(), "other".to_owned())];
    labelled.metadata.labels = Some(labels.into());
    volumes.set_up(&labelled).await.unwrap();
    let labels = shown(&files, "kubernetes.io~downward-api", "self/labels");
    assert_eq!(labels.as_deref(), Some("app=\"other\""));

    // An optional secret that goes leaves an empty volume; another object that goes leaves its last content.
    world.objects.remove(&ObjectKey::secret("ns", "keys"));
    world
        .objects
        .remove(&ObjectKey::config_map("ns", "settings"));
    let gone = "MountVolume.SetUp failed for volume \"conf\" : configmap \"settings\" not found";
    assert_eq!(told(&volumes, &labelled).await, [gone]);
    assert_eq!(shown(&files, "kubernetes.io~secret", "keys/word"), None);
    assert_eq!(conf("more").as_deref(), Some("x"));
    // For an agent that has just started too: a container that crashes then must come up again.
    let next = agent(&world, &files);
    let done = next.set_up(&labelled).await.unwrap();
    assert_eq!((done.mounts.len(), done.stale.len()), (3, 1));
    let away = ObjectError::NotRegistered {
        namespace: "ns".to_owned(),
        name: "settings".to_owned(),
    };
    let key = ObjectKey::config_map("ns", "settings");
    world.objects.fail(&key, Some(away));
    assert!(agent(&world, &files).set_up(&labelled).await.is_ok());
    world.objects.fail(&key, None);
    world.put_config_map("settings", json!({"more": "back"}));
    assert!(told(&next, &labelled).await.is_empty());
    assert_eq!(conf("more").as_deref(), Some("back"));
}

#[tokio::test]
async fn an_agent_that_starts_writes_nothing_that_is_there() {
    let (world, files) = (world(), node());
    let pod = pod(
        r#"[{"name":"conf","configMap":{"name":"settings"}},{"name":"keys","secret":{"secretName":"keys"}}]"#,
    );
    agent(&world, &files).set_up(&pod).await.unwrap();
    let before = files.paths();
    files.set_faults(|op, path| match op {
        "write_new" | "switch_link" | "tmpfs" => panic!("{op} of {}", path.display()),
        _ => None,
    });
    agent(&world, &files).set_up(&pod).await.unwrap();
    files.clear_faults();
    assert_eq!(files.paths(), before);
}

#[tokio::test]
async fn tokens_are_renewed_when_told_and_kept_while_the_server_is_away() {
    let (world, files) = (world(), node());
    let volumes = agent(&world, &files);
    let pod = pod(r#"[{"name":"t","projected":{"sources":[
        {"serviceAccountToken":{"path":"short","expirationSeconds":600}},
        {"serviceAccountToken":{"path":"long","expirationSeconds":6000,"audience":"vault"}}]}}]"#);
    let token =
        |path: &str| shown(&files, "kubernetes.io~projected", &format!("t/{path}")).unwrap();
    let renew_at = volumes.set_up(&pod).await.unwrap().renew_at.unwrap();
    assert_eq!(
        (token("short"), token("long")),
        ("token-1".into(), "token-2".into())
    );
    assert!((470..=480).contains(&renew_at.as_second()), "{renew_at}");
    assert_eq!(volumes.set_up(&pod).await.unwrap().renew_at, Some(renew_at));

    world.cluster.with(|s| s.away = true);
    world.clock.set(renew_at);
    let done = volumes.set_up(&pod).await.unwrap();
    assert_eq!(token("short"), "token-1");
    assert!(done.renew_at.unwrap() < Timestamp::from_second(500).unwrap());
    world.cluster.with(|s| s.away = false);
    world.clock.advance(Duration::from_secs(15));
    let done = volumes.set_up(&pod).await.unwrap();
    assert_eq!(
        (token("short"), token("long")),
        ("token-3".into(), "token-2".into())
    );
    assert!(done.renew_at.unwrap() > world.clock.now());
    // A pod that has ended has no tokens any more.
    volumes.release(&UID.into()).await.unwrap();
    volumes.set_up(&pod).await.unwrap();
    assert_eq!(token("long"), "token-5");
}

/// A volume of every kind that makes something, two of them used in part.
fn rich_pod() -> Pod {
    let mut pod = pod(r#"[{"name":"disk","emptyDir":{}},
            {"name":"ram","emptyDir":{"medium":"Memory"}},
            {"name":"conf","configMap":{"name":"settings"}},
            {"name":"keys","secret":{"secretName":"keys"}},
            {"name":"all","projected":{"sources":[
                {"configMap":{"name":"settings"}},
                {"serviceAccountToken":{"path":"token","expirationSeconds":600}}]}},
            {"name":"local","persistentVolumeClaim":{"claimName":"data"}}]"#);
    let spec = pod.spec.as_mut().unwrap();
    let mounts = spec.containers[0].volume_mounts.as_mut().unwrap();
    mounts[0].sub_path = Some("part".to_owned());
    mounts[3].sub_path = Some("word".to_owned());
    pod
}

/// What happens when the pod's container starts.
async fn bind_parts(files: &MemoryFiles) {
    let volumes = Path::new(POD_DIR).join("volumes");
    for (dir, relative, point) in [
        (
            "kubernetes.io~empty-dir/disk",
            "part",
            "volume-subpaths/disk/c/0",
        ),
        (
            "kubernetes.io~secret/keys",
            "word",
            "volume-subpaths/keys/c/3",
        ),
    ] {
        let point = Path::new(POD_DIR).join(point);
        let bound = files
            .mounts()
            .bind_below(&volumes.join(dir), Path::new(relative), &point)
            .await;
        bound.unwrap();
    }
}

fn spoil(files: &MemoryFiles, at: usize, fault: fn() -> Fault) -> Arc<AtomicUsize> {
    let calls = Arc::new(AtomicUsize::new(0));
    let count = calls.clone();
    files.set_faults(move |_, _| (count.fetch_add(1, Ordering::SeqCst) == at).then(fault));
    calls
}

const FAULTS: [fn() -> Fault; 3] = [
    || Fault::Hang,
    || Fault::Before(io::Error::other("broken")),
    || Fault::After(io::Error::other("broken")),
];

async fn every_mount_is_recorded(files: &MemoryFiles, note: &str) {
    let record = Path::new(POD_DIR).join("krablet-volumes.json");
    let text = String::from_utf8(files.content(&record).unwrap_or_default()).unwrap();
    for mount in files.mounts().below(Path::new("/")).await.unwrap() {
        let path = mount
            .point
            .strip_prefix(POD_DIR)
            .unwrap()
            .display()
            .to_string();
        assert!(
            text.contains(&format!("\"{path}\"")),
            "{note}: {path} in {text}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_set_up_cut_short_anywhere_is_finished_or_taken_away_exactly() {
    for fault in FAULTS {
        for at in 0.. {
            let (world, files) = (world(), node());
            let calls = spoil(&files, at, fault);
            let cut = agent(&world, &files);
            let done = timeout(Duration::from_secs(1), cut.set_up(&rich_pod())).await;
            drop(cut);
            files.clear_faults();
            let note = format!("call {at}");
            every_mount_is_recorded(&files, &note).await;
            if at % 2 == 0 {
                agent(&world, &files)
                    .set_up(&rich_pod())
                    .await
                    .expect(&note);
                let word = shown(&files, "kubernetes.io~secret", "keys/word");
                assert_eq!(word.as_deref(), Some("hidden"), "{note}");
                bind_parts(&files).await;
                every_mount_is_recorded(&files, &note).await;
            }
            agent(&world, &files)
                .tear_down(&UID.into())
                .await
                .expect(&note);
            assert_gone(&files, &note).await;
            if calls.load(Ordering::SeqCst) <= at {
                assert!(done.unwrap().is_ok(), "{note}");
                assert!(at > 30, "{at} calls");
                break;
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_tear_down_cut_short_anywhere_is_finished_by_the_next() {
    for fault in FAULTS {
        for at in 0.. {
            let (world, files) = (world(), node());
            agent(&world, &files).set_up(&rich_pod()).await.unwrap();
            bind_parts(&files).await;
            let calls = spoil(&files, at, fault);
            let cut = agent(&world, &files);
            let done = timeout(Duration::from_secs(1), cut.tear_down(&UID.into())).await;
            drop(cut);
            files.clear_faults();
            let note = format!("call {at}");
            agent(&world, &files)
                .tear_down(&UID.into())
                .await
                .expect(&note);
            assert_gone(&files, &note).await;
            if calls.load(Ordering::SeqCst) <= at {
                assert!(done.unwrap().is_ok(), "{note}");
                assert!(at > 10, "{at} calls");
                break;
            }
        }
    }
}

/// As one file or as two, for its user alone; kept for as long as it is good.
#[tokio::test]
async fn a_certificate_of_the_pods_own() {
    let (world, files) = (world(), node());
    let mut pod = pod(r#"[{"name":"c","projected":{"sources":[
        {"configMap":{"name":"settings"}},
        {"podCertificate":{"signerName":"a/b","keyType":"ECDSAP256","credentialBundlePath":"all.pem",
                           "keyPath":"key.pem","certificateChainPath":"chain.pem"}}]}}]"#);
    let container = &mut pod.spec.as_mut().unwrap().containers[0];
    container.security_context = Some(SecurityContext {
        run_as_user: Some(1000),
        ..SecurityContext::default()
    });
    let volumes = agent(&world, &files);
    let done = volumes.set_up(&pod).await.unwrap();
    let renew_at = done.renew_at.unwrap().as_second();
    assert!((1800..=2100).contains(&renew_at), "{renew_at}");
    let show = |name: &str| shown(&files, "kubernetes.io~projected", &format!("c/{name}")).unwrap();
    let (key, chain) = (show("key.pem"), show("chain.pem"));
    assert!(key.starts_with("-----BEGIN PRIVATE KEY-----\n"), "{key}");
    assert!(
        chain.starts_with("-----BEGIN CERTIFICATE-----\n"),
        "{chain}"
    );
    assert_eq!(show("all.pem"), format!("{key}{chain}"));
    for name in ["key.pem", "all.pem", "chain.pem"] {
        let path = Path::new(POD_DIR)
            .join("volumes/kubernetes.io~projected/c")
            .join(name);
        let owner = files.owner(&path).unwrap();
        assert_eq!((files.mode(&path), owner), (Some(0o600), 1000), "{name}");
    }
    volumes.set_up(&pod).await.unwrap();
    assert_eq!(show("key.pem"), key);
    volumes.release(&UID.into()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_certificate_that_is_not_there_yet_is_waited_for() {
    let (world, files) = (world(), node());
    world.signer.idle.store(true, Ordering::Relaxed);
    let pod = pod(r#"[{"name":"c","projected":{"sources":[
        {"podCertificate":{"signerName":"a/b","keyType":"ED25519","credentialBundlePath":"all.pem"}}]}}]"#);
    let volumes = agent(&world, &files);
    let expected =
        ["MountVolume.SetUp failed for volume \"c\" : credential bundle is not issued yet"];
    assert_eq!(told(&volumes, &pod).await, expected);
}

/// Whoever was shown some is told when there are others, until he goes.
#[tokio::test]
async fn other_trust_bundles_are_told_of() {
    let (world, files) = (world(), node());
    world.put_bundle(
        "roots",
        "-----BEGIN CERTIFICATE-----\nAQID\n-----END CERTIFICATE-----\n",
    );
    let deps = world.in_memory(&files);
    let bundles = deps.trust_bundles.clone().unwrap();
    let (rung, mut heard) = watch::channel(BTreeSet::new());
    let watching = tokio::spawn(bundles.watch(move |pods| {
        rung.send_replace(pods);
    }));
    let volumes = Volumes::new(VolumesConfig::new(RootDir::new(ROOT)), deps);
    let pod = pod(
        r#"[{"name":"c","projected":{"sources":[{"clusterTrustBundle":{"name":"roots","path":"ca.pem"}}]}}]"#,
    );
    let done = volumes.set_up(&pod).await.unwrap();
    assert_eq!(done.renew_at, None);
    world.put_bundle("more", "");
    heard
        .wait_for(|pods| *pods == BTreeSet::from([UID.into()]))
        .await
        .unwrap();
    volumes.release(&UID.into()).await.unwrap();
    world.put_bundle("and-more", "");
    heard.wait_for(BTreeSet::is_empty).await.unwrap();
    watching.abort();
}
