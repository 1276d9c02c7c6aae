//! Servers that stop answering: their pods end all the same, and no other pod waits.

#![allow(clippy::unwrap_used, clippy::expect_used)] // all of it is test code

use std::path::Path;
use std::pin::pin;
use std::sync::{Arc, Mutex};

use krablet_linux::fake::{Fault, MemoryFiles};
use krablet_linux::{Mounts, PatientMounts};
use krablet_pod::PodUid;
use krablet_pod::api::Pod;
use krablet_pod::paths::RootDir;
use krablet_volumes::{Volumes, VolumesConfig};

mod common;

use common::{ROOT, UID, World, assert_gone, node, pod, world};

const EXPORT: &str = "/var/lib/kubelet/pods/u-1/volumes/kubernetes.io~nfs/net";

/// What was asked of the mount of the export.
type Asked = Arc<Mutex<Vec<&'static str>>>;

fn agent(files: &MemoryFiles) -> Volumes {
    agent_in(&World::default(), files)
}

fn agent_in(world: &World, files: &MemoryFiles) -> Volumes {
    let disk = Arc::new(files.clone());
    let mounts = PatientMounts::over(Arc::new(files.mounts()));
    let deps = world.deps(disk.clone(), disk, Arc::new(mounts));
    Volumes::new(VolumesConfig::new(RootDir::new(ROOT)), deps)
}

/// From here on these calls for the export do not come back.
fn goes_away(files: &MemoryFiles, hanging: &'static [&'static str]) -> Asked {
    let asked = Asked::default();
    let noted = asked.clone();
    files.set_faults(move |call, path| {
        if path != Path::new(EXPORT) {
            return None;
        }
        noted.lock().unwrap().push(call);
        hanging.contains(&call).then_some(Fault::Hang)
    });
    asked
}

/// A pod with the export mounted, and another pod that has nothing to do with it.
async fn two_pods(volumes: &Volumes, files: &MemoryFiles) -> (PodUid, PodUid) {
    let volumes_of = |text: &str, uid: &str| -> Pod {
        let mut pod = pod(text);
        pod.metadata.uid = Some(uid.to_owned());
        pod
    };
    let export = r#"[{"name":"net","nfs":{"server":"srv","path":"/x"}}]"#;
    let memory = r#"[{"name":"ram","emptyDir":{"medium":"Memory"}}]"#;
    volumes.set_up(&volumes_of(export, UID)).await.unwrap();
    // The tool that would mount it is not there in memory.
    files.mounts().put("nfs4", Path::new(EXPORT)).unwrap();
    volumes.set_up(&volumes_of(memory, "u-2")).await.unwrap();
    (UID.into(), "u-2".into())
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_away_is_left_by_force() {
    let files = node();
    let volumes = agent(&files);
    let (net, other) = two_pods(&volumes, &files).await;
    let asked = goes_away(&files, &["unmount"]);
    let (done, others) = tokio::join!(volumes.tear_down(&net), async {
        let done = volumes.tear_down(&other).await;
        (done, asked.lock().unwrap().contains(&"force"))
    });
    done.unwrap();
    others.0.unwrap();
    assert!(!others.1, "the other pod does not wait for the server");
    assert_eq!(*asked.lock().unwrap(), ["unmount", "force"]);
    assert_gone(&files, "").await;
}

#[tokio::test(start_paused = true)]
async fn not_even_by_force_and_then_it_is_taken_out_of_the_tree() {
    let files = node();
    let volumes = agent(&files);
    let (net, other) = two_pods(&volumes, &files).await;
    let asked = goes_away(&files, &["unmount", "force"]);
    for _ in 0..3 {
        let late = volumes.tear_down(&net).await.unwrap_err();
        assert_eq!(
            late.to_string(),
            format!(
                "unmount of {EXPORT} failed: unmount by force {EXPORT}: no answer within 30s; its file system may hang"
            )
        );
    }
    volumes.tear_down(&other).await.unwrap();
    volumes.tear_down(&net).await.unwrap();
    assert_eq!(
        *asked.lock().unwrap(),
        ["unmount", "force", "detach"],
        "calls that hang are not made again"
    );
    files.clear_faults();
    assert_gone(&files, "").await;
}

/// A pod that is set up again, because the agent has started anew, asks nothing of a server that does not answer.
#[tokio::test(start_paused = true)]
async fn what_is_mounted_is_not_asked_again() {
    let files = node();
    let (_, _) = two_pods(&agent(&files), &files).await;
    let asked = goes_away(
        &files,
        &["stat", "lstat", "create_dir_all", "bind", "unmount"],
    );
    let export = r#"[{"name":"net","nfs":{"server":"srv","path":"/x"}}]"#;
    agent(&files).set_up(&pod(export)).await.unwrap();
    assert_eq!(*asked.lock().unwrap(), ["mounts_below"]);
    let below = files.mounts().below(Path::new(EXPORT)).await.unwrap();
    assert_eq!(below.len(), 1);
}

/// To give a volume to a group, all of it is walked through.
#[tokio::test(start_paused = true)]
async fn a_walk_that_hangs_keeps_no_other_pod_and_goes_with_who_waits() {
    let files = node();
    let volumes = agent_in(&world(), &files);
    let mut own = pod(r#"[{"name":"v","persistentVolumeClaim":{"claimName":"data"}}]"#);
    let group = serde_json::from_str(r#"{"fsGroup":2000}"#).unwrap();
    own.spec.as_mut().unwrap().security_context = Some(group);
    let mut other = pod(r#"[{"name":"dir","emptyDir":{}}]"#);
    other.metadata.uid = Some("u-2".to_owned());
    files.set_faults(|call, path| {
        let hangs = call == "share" && path == Path::new("/srv/data");
        hangs.then_some(Fault::Hang)
    });
    {
        let mut hangs = pin!(volumes.set_up(&own));
        let others = async {
            volumes.set_up(&other).await.unwrap();
            volumes.tear_down(&"u-2".into()).await.unwrap();
        };
        tokio::select! {
            biased;
            _ = &mut hangs => panic!("it hangs"),
            () = others => {}
        }
    }
    // Nothing it held is held any more.
    files.clear_faults();
    volumes.set_up(&own).await.unwrap();
    let precious = files.group(Path::new("/srv/data/precious"));
    assert_eq!(precious, Some(2000));
    volumes.tear_down(&UID.into()).await.unwrap();
    assert_gone(&files, "").await;
}
