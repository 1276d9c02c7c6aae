//! Volumes behind claims: what is mounted of them, whose they are, and what users are told of those that cannot be.

#![allow(clippy::unwrap_used, clippy::expect_used)] // all of it is test code

use std::path::Path;

use krablet_linux::fake::MemoryFiles;
use krablet_linux::{EntryKind, Files};
use krablet_pod::api::Pod;
use serde_json::json;

mod common;

use common::{UID, World, agent, assert_gone, node, pod, told, world};

#[tokio::test]
async fn claims_and_what_is_told_of_those_that_cannot_be() {
    let (world, files) = (world(), node());
    let claim = r#"[{"name":"v","persistentVolumeClaim":{"claimName":"data"}}]"#;
    let volumes = agent(&world, &files);
    let done = volumes.set_up(&pod(claim)).await.unwrap();
    let dir = "/var/lib/kubelet/pods/u-1/volumes/kubernetes.io~local-volume/pv-1";
    assert_eq!(done.mounts["v"].host_path, Path::new(dir));
    let calls = world.cluster.with(|s| s.calls);
    volumes.set_up(&pod(claim)).await.unwrap();
    assert_eq!(world.cluster.with(|s| s.calls), calls, "asked once");
    volumes.release(&UID.into()).await.unwrap();
    assert!(files.content(Path::new("/srv/data/precious")).is_some());

    let unbound = "Unable to attach or mount volumes: unmounted volumes=[v], unattached volumes=[], failed to process volumes=[v]: error processing PVC ns/data: ";
    type Change = fn(&mut common::Stored);
    let cases: [(Change, String); 6] = [
        (
            |s| s.claims.get_mut("data").unwrap()["status"]["phase"] = json!("Pending"),
            format!("{unbound}PVC is not bound"),
        ),
        (
            |s| {
                s.claims.remove("data");
            },
            format!("{unbound}failed to fetch PVC from API server: persistentvolumeclaims \"data\" not found"),
        ),
        (
            |s| {
                s.volumes.remove("pv-1");
            },
            format!("{unbound}failed to fetch PV pv-1 from API server: persistentvolumes \"pv-1\" not found"),
        ),
        (
            |s| s.volumes.get_mut("pv-1").unwrap()["spec"]["claimRef"]["uid"] = json!("other"),
            format!("{unbound}found PV object pv-1 but its pv.Spec.ClaimRef.UID other does not point to claim.UID data-uid"),
        ),
        (
            |s| {
                let terms = json!([{"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["n2"]}]}]);
                s.volumes.get_mut("pv-1").unwrap()["spec"]["nodeAffinity"] = json!({"required": {"nodeSelectorTerms": terms}});
            },
            "MountVolume.NodeAffinity check failed for volume \"pv-1\" : no matching NodeSelectorTerms".to_owned(),
        ),
        (
            |s| s.volumes.get_mut("pv-1").unwrap()["spec"]["local"]["path"] = json!("/srv/absent"),
            "MountVolume.NewMounter initialization failed for volume \"pv-1\" : path \"/srv/absent\" does not exist".to_owned(),
        ),
    ];
    for (change, expected) in cases {
        world.put_claim("data", "pv-1", json!({"local": {"path": "/srv/data"}}));
        world.cluster.with(change);
        assert_eq!(told(&volumes, &pod(claim)).await, [expected]);
    }
}

#[tokio::test]
async fn persistent_volumes_of_every_source() {
    let (world, files) = (world(), node());
    files
        .put(Path::new("/dev/sdx"), EntryKind::BlockDevice)
        .unwrap();
    world.put_claim("host", "pv-h", json!({"hostPath": {"path": "/srv/data"}}));
    world.put_claim(
        "net",
        "pv-n",
        json!({"nfs": {"server": "srv", "path": "/x"}, "mountOptions": ["vers=4.1"]}),
    );
    world.put_claim(
        "disk",
        "pv-d",
        json!({"local": {"path": "/dev/sdx"}, "volumeMode": "Block"}),
    );
    world.put_claim(
        "one",
        "pv-o",
        json!({"local": {"path": "/srv/data"}, "accessModes": ["ReadWriteOncePod"]}),
    );
    let volumes = agent(&world, &files);
    let mut pod = pod(
        r#"[{"name":"h","persistentVolumeClaim":{"claimName":"host","readOnly":true}},
                      {"name":"n","persistentVolumeClaim":{"claimName":"net"}},
                      {"name":"o","persistentVolumeClaim":{"claimName":"one"}},
                      {"name":"d","persistentVolumeClaim":{"claimName":"disk"}}]"#,
    );
    let container = &mut pod.spec.as_mut().unwrap().containers[0];
    container.volume_mounts.as_mut().unwrap().pop();
    let device = json!([{"name": "d", "devicePath": "/dev/x"}]);
    container.volume_devices = Some(serde_json::from_value(device).unwrap());
    let done = volumes.set_up(&pod).await.unwrap();
    let host = &done.mounts["h"];
    assert_eq!(
        (host.host_path.as_path(), host.read_only),
        (Path::new("/srv/data"), true)
    );
    let net = "/var/lib/kubelet/pods/u-1/volumes/kubernetes.io~nfs/pv-n";
    assert_eq!(
        world.tools.ran(),
        [format!("mount -t nfs -o vers=4.1 srv:/x {net}")]
    );
    let disk = &done.mounts["d"];
    assert!(disk.block);
    assert_eq!(
        disk.host_path,
        Path::new("/var/lib/kubelet/pods/u-1/volumeDevices/kubernetes.io~local-volume/pv-d")
    );
    // One pod has it, another may not.
    let mut other = common::pod(r#"[{"name":"o","persistentVolumeClaim":{"claimName":"one"}}]"#);
    other.metadata.uid = Some("u-2".to_owned());
    assert_eq!(
        told(&volumes, &other).await,
        [
            "MountVolume.SetUp failed for volume \"pv-o\" : volume uses the ReadWriteOncePod access mode and is already in use by another pod"
        ]
    );
    volumes.tear_down(&UID.into()).await.unwrap();
    assert!(told(&volumes, &other).await.is_empty());
    volumes.tear_down(&"u-2".into()).await.unwrap();
    assert_gone(&files, "").await;
}

#[tokio::test]
async fn a_group_gets_what_a_claim_holds_unless_it_has_it() {
    let (world, files) = (world(), node());
    let with = |policy: &str| {
        let mut pod = pod(r#"[{"name":"v","persistentVolumeClaim":{"claimName":"data"}}]"#);
        let context = json!({"fsGroup": 2000, "fsGroupChangePolicy": policy});
        let context = serde_json::from_value(context).unwrap();
        pod.spec.as_mut().unwrap().security_context = Some(context);
        pod
    };
    let precious = Path::new("/srv/data/precious");
    let volumes = agent(&world, &files);
    volumes.set_up(&with("OnRootMismatch")).await.unwrap();
    assert_eq!(
        (files.group(precious), files.mode(precious)),
        (Some(2000), Some(0o664))
    );
    volumes.release(&UID.into()).await.unwrap();
    files.put_file(Path::new("/srv/data/new"), b"").unwrap();
    volumes.set_up(&with("OnRootMismatch")).await.unwrap();
    assert_eq!(files.group(Path::new("/srv/data/new")), Some(0));
    volumes.release(&UID.into()).await.unwrap();
    volumes.set_up(&with("Always")).await.unwrap();
    assert_eq!(files.group(Path::new("/srv/data/new")), Some(2000));
}

const IN_USE: &str =
    "volume uses the ReadWriteOncePod access mode and is already in use by another pod";

/// A pod with these claims, each by its name.
fn user_of(claims: &[&str], uid: &str) -> Pod {
    let volumes = claims
        .iter()
        .map(|claim| json!({"name": claim, "persistentVolumeClaim": {"claimName": claim}}));
    let volumes: Vec<_> = volumes.collect();
    let mut pod = pod(&json!(volumes).to_string());
    pod.metadata.uid = Some(uid.to_owned());
    pod
}

/// Each of these is for one pod at a time: directories, bound and as they are, and a device.
fn world_for_one(files: &MemoryFiles) -> World {
    let world = world();
    let device = Path::new("/dev/sdx");
    files.put(device, EntryKind::BlockDevice).unwrap();
    for (claim, mut spec) in [
        ("one", json!({"local": {"path": "/srv/data"}})),
        ("two", json!({"local": {"path": "/srv/data"}})),
        ("host", json!({"hostPath": {"path": "/srv/data"}})),
        (
            "disk",
            json!({"local": {"path": "/dev/sdx"}, "volumeMode": "Block"}),
        ),
    ] {
        spec["accessModes"] = json!(["ReadWriteOncePod"]);
        world.put_claim(claim, &format!("pv-{claim}"), spec);
    }
    world
}

#[tokio::test]
async fn of_two_that_come_at_once_one_gets_what_is_for_one() {
    let files = node();
    let volumes = agent(&world_for_one(&files), &files);
    let (a, b) = (user_of(&["one"], UID), user_of(&["one"], "u-2"));
    let (first, second) = tokio::join!(told(&volumes, &a), told(&volumes, &b));
    assert!(first.is_empty(), "{first:?}");
    let refused = format!("MountVolume.SetUp failed for volume \"pv-one\" : {IN_USE}");
    assert_eq!(second, [refused.as_str()]);
    // As long as anything of it is mounted.
    let busy = || std::io::Error::from(std::io::ErrorKind::ResourceBusy);
    files.set_faults(move |call, _| (call == "unmount").then(|| busy().into()));
    volumes.tear_down(&UID.into()).await.unwrap_err();
    assert_eq!(told(&volumes, &b).await, [refused.as_str()]);
    files.clear_faults();
    volumes.tear_down(&UID.into()).await.unwrap();
    assert!(told(&volumes, &b).await.is_empty());
    volumes.tear_down(&"u-2".into()).await.unwrap();
    assert_gone(&files, "").await;
}

/// Else two pods that each have what the other waits for would wait for ever.
#[tokio::test]
async fn who_does_not_get_all_keeps_nothing() {
    let files = node();
    let volumes = agent(&world_for_one(&files), &files);
    let absent = user_of(&["one", "absent"], UID);
    assert_eq!(told(&volumes, &absent).await.len(), 1);
    let other = user_of(&["two", "one"], "u-2");
    assert!(told(&volumes, &other).await.is_empty());
}

#[tokio::test]
async fn what_is_for_one_is_so_across_restarts() {
    let device = || {
        let mut pod = user_of(&["disk"], UID);
        let container = &mut pod.spec.as_mut().unwrap().containers[0];
        container.volume_mounts = None;
        let device = json!([{"name": "disk", "devicePath": "/dev/x"}]);
        container.volume_devices = Some(serde_json::from_value(device).unwrap());
        pod
    };
    for (pod, step, recorded) in [
        (user_of(&["one"], UID), "MountVolume.SetUp", true),
        (user_of(&["one"], UID), "MountVolume.SetUp", false),
        (user_of(&["host"], UID), "MountVolume.SetUp", true),
        (device(), "MapVolume.SetUpDevice", true),
        (device(), "MapVolume.SetUpDevice", false),
    ] {
        let files = node();
        let world = world_for_one(&files);
        agent(&world, &files).set_up(&pod).await.unwrap();
        if !recorded {
            // As a kubelet leaves it.
            let record = Path::new(common::ROOT).join("pods/u-1/krablet-volumes.json");
            files.remove_file(&record).await.unwrap();
        }
        let mut other = pod.clone();
        other.metadata.uid = Some("u-2".to_owned());
        let volumes = agent(&world, &files);
        let name = &pod.spec.as_ref().unwrap().volumes.as_ref().unwrap()[0].name;
        let refused = format!("{step} failed for volume \"pv-{name}\" : {IN_USE}");
        assert_eq!(told(&volumes, &other).await, [refused.as_str()]);
        volumes.set_up(&pod).await.unwrap();
        assert_eq!(told(&volumes, &other).await, [refused.as_str()]);
        volumes.tear_down(&UID.into()).await.unwrap();
        assert!(told(&volumes, &other).await.is_empty(), "{name} {recorded}");

        // And of one that did not come back.
        let volumes = agent(&world, &files);
        assert_eq!(told(&volumes, &pod).await, [refused.as_str()]);
        volumes.tear_down(&"u-2".into()).await.unwrap();
        assert!(told(&volumes, &pod).await.is_empty(), "{name} {recorded}");
    }
}
