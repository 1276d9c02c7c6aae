//! Volumes on the machine itself, in a tempdir (as root, since it mounts).

#![allow(clippy::unwrap_used)] // all of it is test code

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use krablet_linux::{HostFiles, HostMounts, Mounts};
use krablet_pod::api::Pod;
use krablet_pod::paths::RootDir;
use krablet_volumes::{PodMounts, Volumes, VolumesConfig};

mod common;

use common::World;

/// Unmounts what a failed assertion left.
struct Cleanup(PathBuf);

impl Drop for Cleanup {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH);
    }
}

fn agent(root: &Path) -> Volumes {
    let world = World::default();
    let host = Arc::new(HostFiles);
    let deps = world.deps(host.clone(), host, Arc::new(HostMounts));
    Volumes::new(VolumesConfig::new(RootDir::new(root)), deps)
}

fn pod(data: &Path) -> Pod {
    serde_json::from_value(serde_json::json!({
        "metadata": {"uid": "u-1", "name": "web", "namespace": "ns"},
        "spec": {
            "containers": [{"name": "c", "volumeMounts": [
                {"name": "disk", "mountPath": "/d"}, {"name": "ram", "mountPath": "/r"},
                {"name": "host", "mountPath": "/h"}]}],
            "securityContext": {"fsGroup": 2000},
            "volumes": [
                {"name": "disk", "emptyDir": {}},
                {"name": "ram", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
                {"name": "host", "hostPath": {"path": data, "type": "Directory"}},
            ],
        },
    }))
    .unwrap()
}

async fn set_up(root: &Path, data: &Path) -> PodMounts {
    agent(root).set_up(&pod(data)).await.unwrap().mounts
}

#[tokio::test]
async fn made_used_and_taken_away() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: needs root");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (real, root, data) = (
        dir.path().join("real"),
        dir.path().join("root"),
        dir.path().join("data"),
    );
    fs::create_dir(&real).unwrap();
    fs::create_dir(&data).unwrap();
    fs::write(data.join("precious"), "x").unwrap();
    // The root directory of many nodes is a link to another disk.
    symlink(&real, &root).unwrap();
    let _cleanup = Cleanup(real.join("pods/u-1/volumes/kubernetes.io~empty-dir/ram"));

    let mounts = set_up(&root, &data).await;
    assert_eq!(set_up(&root, &data).await, mounts);
    let ram = &mounts["ram"].host_path;
    let found = HostMounts.below(&root).await.unwrap();
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].point, *ram);
    for (name, mode) in [("disk", 0o2777), ("ram", 0o3777)] {
        let meta = fs::metadata(&mounts[name].host_path).unwrap();
        assert_eq!((meta.mode() & 0o7777, meta.gid()), (mode, 2000), "{name}");
    }
    // The limit holds.
    assert!(fs::write(ram.join("big"), vec![0; 2 << 20]).is_err());
    fs::write(mounts["disk"].host_path.join("file"), "x").unwrap();
    symlink(&data, mounts["disk"].host_path.join("link")).unwrap();

    // Whoever holds the mount is named, and nothing is lost meanwhile.
    let held = fs::File::create(ram.join("held")).unwrap();
    let error = agent(&root).tear_down(&"u-1".into()).await.unwrap_err();
    let me = format!("process {} ", std::process::id());
    assert!(
        error.is_busy() && error.to_string().contains(&me),
        "{error}"
    );
    assert!(ram.join("held").exists());
    drop(held);

    agent(&root).tear_down(&"u-1".into()).await.unwrap();
    assert!(!real.join("pods/u-1").exists());
    assert!(data.join("precious").exists());
    assert!(HostMounts.below(&root).await.unwrap().is_empty());
}
