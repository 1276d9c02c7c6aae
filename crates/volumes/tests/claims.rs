//! Volumes behind claims: what is mounted of them, whose they are, and what users are told of those that cannot be.

#![allow(clippy::unwrap_used, clippy::expect_used)] // all of it is test code

use std::path::Path;

use krablet_linux::EntryKind;
use serde_json::json;

mod common;

use common::{UID, agent, assert_gone, node, pod, told, world};

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
