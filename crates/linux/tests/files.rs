//! The same questions to the machine's files and to those in memory; what only a machine can be
//! asked follows.

#![allow(clippy::unwrap_used)] // all of it is test code

use std::fs;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use krablet_linux::fake::MemoryFiles;
use krablet_linux::{EntryKind, Files, HostFiles};

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
}

fn names(entries: &[krablet_linux::Entry]) -> Vec<String> {
    entries
        .iter()
        .filter_map(|e| e.path.file_name())
        .map(|n| n.to_string_lossy().into_owned())
        .collect()
}

/// What both worlds must answer alike. `root` is an existing empty directory.
async fn behaves(files: &dyn Files, root: &Path) {
    let dir = root.join("a/b/c");
    files.create_dir_all(&dir, 0o750).await.unwrap();
    files.create_dir_all(&dir, 0o700).await.unwrap();
    assert_eq!(files.lstat(&dir).await.unwrap().kind, EntryKind::Directory);

    let file = dir.join("f");
    files.write_atomic(&file, b"one", 0o600).await.unwrap();
    files.write_atomic(&file, b"two2", 0o600).await.unwrap();
    assert_eq!(files.read(&file, 4).await.unwrap(), b"two2");
    let error = files.read(&file, 3).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::FileTooLarge);
    assert!(error.to_string().contains("a/b/c/f"), "{error}");
    assert_eq!(files.read_tail(&file, 2).await.unwrap(), b"o2");
    assert_eq!(files.read_tail(&file, 99).await.unwrap(), b"two2");
    assert_eq!(names(&files.list(&dir).await.unwrap()), ["f"]);
    assert_eq!(files.names(&dir).await.unwrap(), ["f"]);

    files.touch(&file, 0o600).await.unwrap();
    assert_eq!(files.stat(&file).await.unwrap().size, 4);
    files.touch(&dir.join("new"), 0o600).await.unwrap();
    assert_eq!(files.stat(&dir.join("new")).await.unwrap().size, 0);

    let link = dir.join("link");
    files.symlink(Path::new("nowhere"), &link).await.unwrap();
    files.symlink(Path::new("f"), &link).await.unwrap();
    assert_eq!(files.read_link(&link).await.unwrap(), Path::new("f"));
    assert_eq!(files.lstat(&link).await.unwrap().kind, EntryKind::Symlink);
    assert_eq!(files.stat(&link).await.unwrap().kind, EntryKind::File);
    let is_link = files.read_link(&file).await.unwrap_err();
    assert_eq!(is_link.kind(), ErrorKind::InvalidInput);

    let error = files.remove_dir(&dir).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DirectoryNotEmpty);
    let error = files.remove_file(&dir).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::IsADirectory);
    assert!(files.names(&file).await.is_err());
    let error = files.list(&file).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotADirectory);
    let error = files.create_dir_all(&file.join("x"), 0o755).await;
    assert_eq!(error.unwrap_err().kind(), ErrorKind::NotADirectory);
    let error = files.write_atomic(&root.join("no/x"), b"", 0o600).await;
    assert_eq!(error.unwrap_err().kind(), ErrorKind::NotFound);

    files
        .rename(&root.join("a/b"), &root.join("moved"))
        .await
        .unwrap();
    assert_eq!(
        files.read(&root.join("moved/c/f"), 9).await.unwrap(),
        b"two2"
    );
    let absent = files.stat(&file).await.unwrap_err();
    assert_eq!(absent.kind(), ErrorKind::NotFound);

    let (plain, packed) = (root.join("moved/c/f"), root.join("moved/c/f.gz"));
    files.gzip(&plain, &packed).await.unwrap();
    assert_eq!(
        files.lstat(&plain).await.unwrap_err().kind(),
        ErrorKind::NotFound
    );
    let bytes = files.read(&packed, 999).await.unwrap();
    let mut text = String::new();
    flate2::read::GzDecoder::new(bytes.as_slice())
        .read_to_string(&mut text)
        .unwrap();
    assert_eq!(text, "two2");

    for gone in [root.join("moved"), root.join("a"), root.join("never")] {
        files.remove_tree(&gone).await.unwrap();
        files.remove_file(&gone).await.unwrap();
        files.remove_dir(&gone).await.unwrap();
    }
    assert!(files.list(root).await.unwrap().is_empty());
}

#[tokio::test]
async fn the_machine_and_memory_behave_alike() {
    let root = tempfile::tempdir().unwrap();
    behaves(&HostFiles, root.path()).await;
    let memory = MemoryFiles::default();
    memory.put(Path::new("/r"), EntryKind::Directory).unwrap();
    behaves(&memory, Path::new("/r")).await;
}

#[tokio::test]
async fn modes_are_exact() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("d/e");
    HostFiles.create_dir_all(&dir, 0o777).await.unwrap();
    assert_eq!(mode(&dir), 0o777);
    let file = dir.join("f");
    HostFiles.write_atomic(&file, b"", 0o666).await.unwrap();
    assert_eq!(mode(&file), 0o666);
    HostFiles.touch(&dir.join("t"), 0o622).await.unwrap();
    assert_eq!(mode(&dir.join("t")), 0o622);
    HostFiles.set_mode(&dir, 0o2777).await.unwrap();
    assert_eq!(mode(&dir), 0o2777);
    HostFiles.create_dir_all(&dir, 0o700).await.unwrap();
    assert_eq!(mode(&dir), 0o2777, "an existing directory stays as it is");
}

#[tokio::test]
async fn leftovers_of_a_crash_are_taken_over_and_traps_are_not_followed() {
    let root = tempfile::tempdir().unwrap();
    let (target, victim) = (root.path().join("state"), root.path().join("victim"));
    fs::write(&victim, "precious").unwrap();
    HostFiles.write_atomic(&target, b"v1", 0o600).await.unwrap();
    // The temporary name is fixed, so one write tells it.
    let leftover = {
        let missing = root.path().join("gone/state");
        let error = HostFiles
            .write_atomic(&missing, b"", 0o600)
            .await
            .unwrap_err();
        let text = error.to_string();
        let name = text
            .split('/')
            .next_back()
            .unwrap()
            .split(':')
            .next()
            .unwrap()
            .to_owned();
        root.path().join(name)
    };
    type Trap<'a> = &'a dyn Fn();
    let traps: [(&str, Trap); 4] = [
        ("half a file", &|| fs::write(&leftover, "half").unwrap()),
        ("a link", &|| symlink(&victim, &leftover).unwrap()),
        ("a hard link", &|| {
            fs::hard_link(&victim, &leftover).unwrap()
        }),
        ("a fifo", &|| {
            let mode = rustix::fs::Mode::RUSR;
            rustix::fs::mknodat(
                rustix::fs::CWD,
                &leftover,
                rustix::fs::FileType::Fifo,
                mode,
                0,
            )
            .unwrap();
        }),
    ];
    for (trap, lay) in traps {
        lay();
        HostFiles
            .write_atomic(&target, trap.as_bytes(), 0o600)
            .await
            .unwrap();
        assert_eq!(fs::read_to_string(&target).unwrap(), trap);
        assert_eq!(fs::read_to_string(&victim).unwrap(), "precious", "{trap}");
        assert!(fs::symlink_metadata(&leftover).is_err(), "{trap} is left");
    }
    // A link in the target's own place is replaced, not written through.
    fs::remove_file(&target).unwrap();
    symlink(&victim, &target).unwrap();
    HostFiles
        .write_atomic(&target, b"new", 0o600)
        .await
        .unwrap();
    assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
    assert_eq!(fs::read_to_string(&target).unwrap(), "new");
}

#[tokio::test]
async fn many_writers_of_one_file_leave_one_whole() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("f");
    let mut writers = tokio::task::JoinSet::new();
    for i in 0..16u8 {
        let path = path.clone();
        writers.spawn(async move {
            let bytes = vec![i; 10_000];
            HostFiles.write_atomic(&path, &bytes, 0o600).await
        });
    }
    while let Some(done) = writers.join_next().await {
        done.unwrap().unwrap();
    }
    let bytes = fs::read(&path).unwrap();
    assert_eq!(bytes.len(), 10_000);
    assert!(bytes.iter().all(|b| *b == bytes[0]));
    assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1);
}

#[tokio::test]
async fn a_link_with_the_longest_name() {
    let root = tempfile::tempdir().unwrap();
    let link = root.path().join(format!("{}.log", "x".repeat(251)));
    HostFiles.symlink(Path::new("/a"), &link).await.unwrap();
    HostFiles.symlink(Path::new("/b"), &link).await.unwrap();
    assert_eq!(fs::read_link(&link).unwrap(), Path::new("/b"));
    assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1);
}

#[tokio::test]
async fn a_fifo_or_device_is_not_read() {
    let root = tempfile::tempdir().unwrap();
    let fifo = root.path().join("fifo");
    let mode = rustix::fs::Mode::RUSR;
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    for path in [fifo.as_path(), Path::new("/dev/zero")] {
        let error = HostFiles.read(path, 10).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    }
}

#[tokio::test]
async fn gzip_keeps_the_mode_and_takes_over_a_leftover() {
    let root = tempfile::tempdir().unwrap();
    let (plain, victim) = (root.path().join("0.log.x"), root.path().join("victim"));
    fs::write(&victim, "precious").unwrap();
    for lay in ["file", "link"] {
        fs::write(&plain, "text").unwrap();
        fs::set_permissions(&plain, fs::Permissions::from_mode(0o640)).unwrap();
        let leftover = root.path().join("0.log.x.tmp");
        match lay {
            "file" => fs::write(&leftover, "half of a longer one").unwrap(),
            _ => symlink(&victim, &leftover).unwrap(),
        }
        let packed = root.path().join("0.log.x.gz");
        HostFiles.gzip(&plain, &packed).await.unwrap();
        assert_eq!(mode(&packed), 0o640);
        assert!(!plain.exists() && fs::symlink_metadata(&leftover).is_err());
        assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
        let mut text = String::new();
        flate2::read::GzDecoder::new(fs::File::open(&packed).unwrap())
            .read_to_string(&mut text)
            .unwrap();
        assert_eq!(text, "text");
    }
}

#[tokio::test]
async fn removing_a_tree_follows_no_link() {
    let root = tempfile::tempdir().unwrap();
    let outside = root.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("precious"), "x").unwrap();
    let tree = root.path().join("tree");
    fs::create_dir_all(tree.join("sub/sub")).unwrap();
    symlink(&outside, tree.join("to-dir")).unwrap();
    symlink(outside.join("precious"), tree.join("sub/to-file")).unwrap();
    symlink("..", tree.join("sub/sub/up")).unwrap();
    fs::hard_link(outside.join("precious"), tree.join("sub/hard")).unwrap();
    HostFiles.remove_tree(&tree).await.unwrap();
    assert!(!tree.exists());
    assert!(outside.join("precious").exists());

    let link = root.path().join("link");
    symlink(&outside, &link).unwrap();
    HostFiles.remove_tree(&link).await.unwrap();
    assert!(fs::symlink_metadata(&link).is_err());
    assert!(outside.join("precious").exists());
}

#[tokio::test]
async fn removing_a_deep_and_a_wide_tree() {
    let root = tempfile::tempdir().unwrap();
    let tree = root.path().join("tree");
    fs::create_dir(&tree).unwrap();
    // Deeper than a path may be long: each level is made inside the one before.
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::DIRECTORY;
    let none = rustix::fs::Mode::empty();
    let mut at = rustix::fs::open(&tree, flags, none).unwrap();
    for level in 0..3000 {
        let name = if level % 7 == 0 {
            "a-rather-long-name"
        } else {
            "d"
        };
        rustix::fs::mkdirat(&at, name, rustix::fs::Mode::RWXU).unwrap();
        at = rustix::fs::openat(&at, name, flags, none).unwrap();
    }
    drop(at);
    // A name the removal itself would use.
    fs::create_dir_all(tree.join(".krablet-removed-1/x")).unwrap();
    let wide = tree.join("wide");
    fs::create_dir(&wide).unwrap();
    for i in 0..2500 {
        fs::write(wide.join(i.to_string()), "").unwrap();
    }
    HostFiles.remove_tree(&tree).await.unwrap();
    assert!(!tree.exists());
}

#[tokio::test]
async fn group_is_set_and_nonsense_refused() {
    let root = tempfile::tempdir().unwrap();
    if !rustix::process::geteuid().is_root() {
        println!("skipped: needs root");
        return;
    }
    HostFiles.set_group(root.path(), 4242).await.unwrap();
    assert_eq!(fs::metadata(root.path()).unwrap().gid(), 4242);
    assert!(HostFiles.set_group(root.path(), u32::MAX).await.is_err());
}
