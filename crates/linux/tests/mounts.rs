//! Mounts, in memory and on the machine (as root, in a tempdir).

#![allow(clippy::unwrap_used)] // all of it is test code

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use krablet_linux::fake::MemoryFiles;
use krablet_linux::{EntryKind, Files, HostFiles, HostMounts, Mounts, PartStep};

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
        for point in ["dir/with space", "bind", "busy", "parts/c/0"] {
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

#[tokio::test]
async fn a_part_of_a_volume_is_shown_and_nothing_beside_it() {
    let Some((root, _cleanup)) = mount_ground() else {
        return;
    };
    let (top, point) = (root.path().join("vol"), root.path().join("parts/c/0"));
    fs::create_dir_all(top.join("dir")).unwrap();
    fs::write(top.join("dir/file"), "one").unwrap();
    std::os::unix::fs::symlink("dir/file", top.join("link")).unwrap();
    std::os::unix::fs::symlink("/etc", top.join("out")).unwrap();
    std::os::unix::fs::symlink("/nowhere", top.join("lost")).unwrap();
    std::os::unix::fs::symlink(top.join("dir"), top.join("current")).unwrap();
    let show = async |relative: &str| {
        let shown = HostMounts.bind_below(&top, Path::new(relative), &point);
        shown.await
    };
    // A directory, the same again, then a file in its place, then one that is made.
    show("dir").await.unwrap();
    show("dir").await.unwrap();
    assert_eq!(fs::read_to_string(point.join("file")).unwrap(), "one");
    assert_eq!(points(&HostMounts, &point).await.len(), 1);
    show("link").await.unwrap();
    assert_eq!(fs::read_to_string(&point).unwrap(), "one");
    show("new/deep").await.unwrap();
    assert!(top.join("new/deep").is_dir() && point.is_dir());
    show("current").await.unwrap();
    assert_eq!(fs::read_to_string(point.join("file")).unwrap(), "one");
    for (bad, step) in [
        ("out", PartStep::Show),
        ("out/krablet-none", PartStep::Make),
        ("lost", PartStep::Make),
    ] {
        let told = show(bad).await.unwrap_err();
        assert_eq!(told.error.kind(), ErrorKind::PermissionDenied, "{told}");
        assert_eq!(told.step, step, "{told}");
    }
    HostMounts.unmount(&point).await.unwrap();
    HostFiles
        .remove_tree(&root.path().join("parts"))
        .await
        .unwrap();
    assert!(top.join("dir/file").exists());
}

/// What is mounted is what was looked at, however often a directory and a link to elsewhere change places.
#[tokio::test]
async fn swapped_links_are_never_mounted() {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    use std::sync::atomic::{AtomicBool, Ordering};
    const TRIES: usize = 1_000;
    let Some((root, _cleanup)) = mount_ground() else {
        return;
    };
    let top = root.path().join("vol");
    fs::create_dir_all(top.join("dir")).unwrap();
    fs::write(top.join("dir/inside"), "").unwrap();
    fs::create_dir(root.path().join("outside")).unwrap();
    std::os::unix::fs::symlink("../outside", top.join("other")).unwrap();
    std::os::unix::fs::symlink(top.join("dir"), top.join("back")).unwrap();
    let end = std::sync::Arc::new(AtomicBool::new(false));
    let (ended, a, b) = (end.clone(), top.join("dir"), top.join("other"));
    let swapper = std::thread::spawn(move || {
        while !ended.load(Ordering::Relaxed) {
            renameat_with(CWD, &a, CWD, &b, RenameFlags::EXCHANGE).unwrap();
        }
    });
    let mut shown = [0, 0];
    for i in 0..TRIES {
        let point = root.path().join(format!("bind/{i}"));
        let way = ["dir", "back"][i % 2];
        if HostMounts
            .bind_below(&top, Path::new(way), &point)
            .await
            .is_ok()
        {
            shown[i % 2] += 1;
            let inside = point.join("inside").exists();
            HostMounts.unmount(&point).await.unwrap();
            assert!(inside, "try {i}");
        }
    }
    end.store(true, Ordering::Relaxed);
    swapper.join().unwrap();
    assert!(shown.iter().all(|times| *times > 0), "{shown:?}");
}

#[tokio::test]
async fn a_read_only_bind_and_a_mount_that_is_let_go() {
    let Some((root, _cleanup)) = mount_ground() else {
        return;
    };
    let (data, point) = (root.path().join("data"), root.path().join("bind"));
    fs::create_dir(&data).unwrap();
    fs::create_dir(&point).unwrap();
    HostMounts.bind(&data, &point, true).await.unwrap();
    assert!(fs::write(point.join("x"), "").is_err());
    fs::write(data.join("x"), "").unwrap();
    let held = fs::File::open(point.join("x")).unwrap();
    assert!(HostMounts.unmount(&point).await.is_err());
    HostMounts.detach(&point).await.unwrap();
    HostMounts.detach(&point).await.unwrap();
    assert!(points(&HostMounts, &point).await.is_empty());
    drop(held);
}
