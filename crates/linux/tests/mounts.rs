//! Mounts, in memory and on the machine (as root, in a tempdir).

#![allow(clippy::unwrap_used)] // all of it is test code

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use krablet_linux::fake::MemoryFiles;
use krablet_linux::{EntryKind, Files, HostFiles, HostMounts, Mounts};

async fn points(mounts: &dyn Mounts, dir: &Path) -> Vec<PathBuf> {
    let found = mounts.below(dir).await.unwrap();
    found.into_iter().map(|m| m.point).collect()
}

/// What both worlds must answer alike; nothing is left mounted if it ends well.
async fn behaves(files: &dyn Files, mounts: &dyn Mounts, root: &Path) {
    let (dir, point) = (root.join("dir"), root.join("dir/with space"));
    files.create_dir_all(&point, 0o755).await.unwrap();
    files
        .write_atomic(&point.join("below"), b"x", 0o600)
        .await
        .unwrap();
    assert_eq!(points(mounts, &dir).await, Vec::<PathBuf>::new());

    mounts.tmpfs(&point, Some(1 << 20)).await.unwrap();
    assert!(files.list(&point).await.unwrap().is_empty());
    files
        .write_atomic(&point.join("inside"), b"x", 0o600)
        .await
        .unwrap();
    for asked in [&dir, &point] {
        assert_eq!(points(mounts, asked).await, std::slice::from_ref(&point));
    }
    assert_eq!(
        points(mounts, &root.join("di")).await,
        Vec::<PathBuf>::new()
    );

    // Removal stops at the mount, at its point and from above.
    files
        .write_atomic(&dir.join("beside"), b"x", 0o600)
        .await
        .unwrap();
    for tree in [&point, &dir] {
        let error = files.remove_tree(tree).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::CrossesDevices, "{error}");
        assert!(error.to_string().contains("with space"), "{error}");
    }
    assert!(files.stat(&dir.join("beside")).await.is_err());
    assert!(files.stat(&point.join("inside")).await.is_ok());

    mounts.unmount(&point).await.unwrap();
    mounts.unmount(&point).await.unwrap();
    mounts.unmount(&root.join("never")).await.unwrap();
    assert!(files.stat(&point.join("below")).await.is_ok());
    files.remove_tree(&dir).await.unwrap();
    assert!(mounts.below(&dir).await.unwrap().is_empty());
}

#[tokio::test]
async fn memory() {
    let files = MemoryFiles::default();
    let mounts = files.mounts();
    let root = Path::new("/r");
    files.put(root, EntryKind::Directory).unwrap();
    behaves(&files, &mounts, root).await;

    mounts.tmpfs(root, None).await.unwrap();
    mounts.set_busy(root, true);
    let error = mounts.unmount(root).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ResourceBusy);
    assert_eq!(mounts.holders(root).await.len(), 1);
}

/// Unmounts whatever a failed assertion left.
struct Cleanup(PathBuf);

impl Drop for Cleanup {
    fn drop(&mut self) {
        let flags = rustix::mount::UnmountFlags::DETACH;
        for point in ["dir/with space", "bind", "busy"] {
            let _ = rustix::mount::unmount(self.0.join(point), flags);
        }
    }
}

/// A directory to mount in, or none with a printed reason.
fn mount_ground() -> Option<(tempfile::TempDir, Cleanup)> {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: needs root");
        return None;
    }
    let root = tempfile::tempdir().unwrap();
    let cleanup = Cleanup(root.path().to_owned());
    Some((root, cleanup))
}

#[tokio::test]
async fn the_machine() {
    let Some((root, _cleanup)) = mount_ground() else {
        return;
    };
    behaves(&HostFiles, &HostMounts, root.path()).await;
    // Through a link, mounts are found and told in the caller's words.
    let link = root.path().join("link");
    fs::create_dir_all(root.path().join("busy")).unwrap();
    std::os::unix::fs::symlink(root.path(), &link).unwrap();
    HostMounts
        .tmpfs(&root.path().join("busy"), None)
        .await
        .unwrap();
    assert_eq!(points(&HostMounts, &link).await, [link.join("busy")]);
}

#[tokio::test]
async fn a_busy_mount_names_its_holder() {
    let Some((root, _cleanup)) = mount_ground() else {
        return;
    };
    let point = root.path().join("busy");
    fs::create_dir(&point).unwrap();
    HostMounts.tmpfs(&point, Some(1 << 20)).await.unwrap();
    let held = fs::File::create(point.join("held")).unwrap();
    let error = HostMounts.unmount(&point).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ResourceBusy);
    assert!(error.to_string().contains("busy"), "{error}");
    let holders = HostMounts.holders(&point).await.join("; ");
    let me = format!("process {} ", std::process::id());
    assert!(
        holders.contains(&me) && holders.contains("held"),
        "{holders}"
    );
    drop(held);
    HostMounts.unmount(&point).await.unwrap();
    assert_eq!(HostMounts.holders(&point).await, Vec::<String>::new());
}

#[tokio::test]
async fn a_bind_mount_of_the_same_file_system_is_not_entered() {
    let Some((root, _cleanup)) = mount_ground() else {
        return;
    };
    let (data, tree) = (root.path().join("data"), root.path().join("bind"));
    fs::create_dir_all(data.join("sub")).unwrap();
    fs::write(data.join("sub/precious"), "x").unwrap();
    fs::create_dir_all(&tree).unwrap();
    rustix::mount::mount_bind(&data, &tree).unwrap();
    let error = HostFiles.remove_tree(&tree).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::CrossesDevices, "{error}");
    assert!(data.join("sub/precious").exists());
    HostMounts.unmount(&tree).await.unwrap();
    HostFiles.remove_tree(&tree).await.unwrap();
    assert!(data.join("sub/precious").exists());
}
