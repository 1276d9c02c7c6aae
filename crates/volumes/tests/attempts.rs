//! What is heard of while a pod's volumes are made, and pods that are to end meanwhile.

#![allow(clippy::unwrap_used, clippy::expect_used)] // all of it is test code

use std::path::Path;
use std::pin::pin;
use std::sync::Mutex;
use std::time::Duration;

use krablet_linux::fake::{FakeTools, Fault, MemoryFiles};
use krablet_linux::{EntryKind, Mounts, ToolOutput};
use krablet_pod::PodUid;
use krablet_pod::api::Pod;
use krablet_volumes::{Attempt, News, SetUpError, VolumeError, VolumeErrors};
use serde_json::json;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

mod common;

use common::{UID, World, agent, assert_gone, node, pod, world};

const CLAIM: &str = r#"[{"name":"v","persistentVolumeClaim":{"claimName":"data"}}]"#;
const DIR: &str = "u-1/volumes/kubernetes.io~local-volume/pv-1";

fn with_group(uid: &str, group: i64) -> Pod {
    let mut pod = pod(CLAIM);
    pod.metadata.uid = Some(uid.to_owned());
    let context = json!({"fsGroup": group});
    let spec = pod.spec.as_mut().unwrap();
    spec.security_context = Some(serde_json::from_value(context).unwrap());
    pod
}

/// Whoever gives a volume to a group never comes to an end of it.
fn endless(files: &MemoryFiles) {
    files.set_faults(|call, _| (call == "share").then_some(Fault::Hang));
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_takes_long_is_told_of() {
    let (world, files) = (world(), node());
    endless(&files);
    let heard = Mutex::new(Vec::new());
    let hear = |news| heard.lock().unwrap().push(news);
    let attempt = Attempt {
        cancel: None,
        hear: &hear,
    };
    let volumes = agent(&world, &files);
    let pod = with_group(UID, 2000);
    let attempted = timeout(Duration::from_secs(151), volumes.attempt(&pod, attempt));
    attempted.await.unwrap_err();
    let told = |files| News::Ownership {
        dir: DIR.to_owned(),
        files,
    };
    let heard = heard.into_inner().unwrap();
    assert_eq!(heard, [told(None), told(Some(0)), told(Some(0))]);
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_to_end_does_not_wait_for_its_group() {
    let (world, files) = (world(), node());
    endless(&files);
    let volumes = agent(&world, &files);
    let cancel = CancellationToken::new();
    let attempt = Attempt {
        cancel: Some(&cancel),
        ..Attempt::PATIENT
    };
    let pod = with_group(UID, 2000);
    {
        let mut attempted = pin!(volumes.attempt(&pod, attempt));
        let waits = timeout(Duration::from_secs(600), attempted.as_mut());
        assert!(waits.await.is_err(), "it has all the time");
        cancel.cancel();
        let at_once = timeout(Duration::from_millis(1), attempted);
        let VolumeErrors(errors) = at_once.await.unwrap().unwrap_err();
        assert!(is_cancelled(&errors), "{errors:?}");
    }
    // Nor does one that was to end before it came so far.
    let VolumeErrors(errors) = volumes.attempt(&pod, attempt).await.unwrap_err();
    assert!(is_cancelled(&errors), "{errors:?}");
    assert!(
        files
            .mounts()
            .below(Path::new("/"))
            .await
            .unwrap()
            .is_empty(),
        "the pod never had it"
    );
    volumes.tear_down(&UID.into()).await.unwrap();
    assert_gone(&files, "").await;
}

fn is_cancelled(errors: &[VolumeError]) -> bool {
    matches!(
        errors,
        [VolumeError::SetUp {
            cause: SetUpError::Cancelled,
            ..
        }]
    )
}

#[tokio::test]
async fn a_group_that_differs_from_the_one_others_gave_a_volume() {
    let (world, files) = (world(), node());
    let volumes = agent(&world, &files);
    let heard = Mutex::new(Vec::new());
    let hear = |news| heard.lock().unwrap().push(news);
    let attempt = Attempt {
        cancel: None,
        hear: &hear,
    };
    for (uid, group) in [(UID, 2000), ("u-2", 2000), ("u-3", 3000)] {
        volumes
            .attempt(&with_group(uid, group), attempt)
            .await
            .unwrap();
    }
    let other = News::OtherGroup {
        volume: "pv-1".to_owned(),
        wanted: 3000,
        found: 2000,
    };
    assert_eq!(heard.into_inner().unwrap(), [other]);
    assert_eq!(files.group(Path::new("/srv/data")), Some(2000));
    for uid in [UID, "u-2", "u-3"] {
        volumes.tear_down(&PodUid::from(uid)).await.unwrap();
    }
}

/// A node whose disk has ext4, and whose mounts fail.
fn with_disk(fs_type: &str) -> (World, MemoryFiles) {
    let tools = FakeTools::answering(|line| {
        let (code, text) = match line.split(' ').next() {
            Some("blkid") => (0, "TYPE=ext4\n"),
            Some("mount") => (32, "wrong fs type"),
            _ => (0, ""),
        };
        Ok(ToolOutput {
            code: Some(code),
            text: text.to_owned(),
        })
    });
    let world = World { tools, ..world() };
    let source = json!({"local": {"path": "/dev/sdx", "fsType": fs_type}});
    world.put_claim("data", "pv-1", source);
    world
        .cluster
        .with(|s| s.volumes.get_mut("pv-1").unwrap()["metadata"]["uid"] = json!("u-pv"));
    let files = node();
    let disk = Path::new("/dev/sdx");
    files.put(disk, EntryKind::BlockDevice).unwrap();
    (world, files)
}

#[tokio::test]
async fn a_disk_with_another_file_system_than_its_volume_says() {
    for (fs_type, told) in [("xfs", true), ("ext4", false)] {
        let (world, files) = with_disk(fs_type);
        let heard = Mutex::new(Vec::new());
        let hear = |news: News| heard.lock().unwrap().push(news);
        let attempt = Attempt {
            cancel: None,
            hear: &hear,
        };
        let volumes = agent(&world, &files);
        let failed = volumes.attempt(&pod(CLAIM), attempt).await.unwrap_err();
        let failed = failed.to_string();
        let begins = "MountVolume.MountDevice failed for volume \"pv-1\" : local: failed to mount device /dev/sdx at ";
        assert!(failed.starts_with(begins), "{failed}");
        let heard = heard.into_inner().unwrap();
        assert_eq!(heard.len(), usize::from(told), "{fs_type}: {heard:?}");
        for news in heard {
            let text = news.to_string();
            let begins =
                "MountVolume failed for volume \"pv-1\" local: failed to mount device /dev/sdx at ";
            assert!(text.starts_with(begins), "{text}");
            assert!(matches!(news, News::OtherFileSystem { uid, .. } if uid == "u-pv"));
        }
    }
}
