use super::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use krablet_linux::fake::{Fault, MemoryFiles};
use krablet_linux::{HostFiles, TreeFile};
use tokio::time::timeout;

const VOLUME: &str = "/vol";

fn content(files: &[(&str, &str)]) -> TreeFiles {
    let file = |text: &str| TreeFile {
        bytes: text.as_bytes().to_vec(),
        mode: 0o644,
        owner: None,
    };
    let files = files.iter().map(|(path, text)| (path.into(), file(text)));
    files.collect()
}

fn second(n: i64) -> Timestamp {
    Timestamp::from_second(n).unwrap()
}

async fn write(files: &MemoryFiles, content: &TreeFiles, at: i64) -> io::Result<bool> {
    let writer = Writer {
        files,
        trees: files,
    };
    writer
        .write(Path::new(VOLUME), content, None, second(at))
        .await
}

fn disk() -> MemoryFiles {
    let files = MemoryFiles::default();
    files.put(Path::new(VOLUME), EntryKind::Directory).unwrap();
    files
}

/// What is in the volume's top directory.
async fn names(files: &MemoryFiles) -> Vec<String> {
    let entries = files.list(Path::new(VOLUME)).await.unwrap();
    let name =
        |e: &krablet_linux::Entry| e.path.file_name().unwrap().to_string_lossy().into_owned();
    entries.iter().map(name).collect()
}

fn read(files: &MemoryFiles, path: &str) -> Option<String> {
    let bytes = files.content(&Path::new(VOLUME).join(path))?;
    Some(String::from_utf8(bytes).unwrap())
}

#[tokio::test]
async fn the_layout_readers_expect() {
    let files = disk();
    files
        .put(Path::new("/vol/nested"), EntryKind::Directory)
        .unwrap();
    let first = content(&[("a", "1"), ("dir/b", "2"), ("dir/c/d", "3")]);
    assert!(write(&files, &first, 0).await.unwrap());
    assert_eq!(
        names(&files).await,
        [
            "..1970_01_01_00_00_00.000000000",
            "..data",
            "a",
            "dir",
            "nested"
        ]
    );
    let link = |path: &'static str| {
        let files = files.clone();
        async move {
            files
                .read_link(&Path::new(VOLUME).join(path))
                .await
                .unwrap()
        }
    };
    assert_eq!(
        link("..data").await,
        Path::new("..1970_01_01_00_00_00.000000000")
    );
    assert_eq!(link("a").await, Path::new("..data/a"));
    assert_eq!(link("dir").await, Path::new("..data/dir"));
    assert_eq!(read(&files, "dir/c/d").as_deref(), Some("3"));

    // The same again changes nothing.
    assert!(!write(&files, &first, 5).await.unwrap());
    assert_eq!(
        link("..data").await,
        Path::new("..1970_01_01_00_00_00.000000000")
    );

    // A key less, a key more, one changed: the old version goes, and a directory for another mount stays.
    let second = content(&[("a", "one"), ("e", "5")]);
    assert!(write(&files, &second, 60).await.unwrap());
    assert_eq!(
        names(&files).await,
        [
            "..1970_01_01_00_01_00.000000000",
            "..data",
            "a",
            "e",
            "nested"
        ]
    );
    assert_eq!(read(&files, "a").as_deref(), Some("one"));

    // Nothing at all is content too.
    assert!(write(&files, &content(&[]), 61).await.unwrap());
    assert_eq!(
        names(&files).await,
        ["..1970_01_01_00_01_01.000000000", "..data", "nested"]
    );
    assert!(!write(&files, &content(&[]), 62).await.unwrap());
}

#[tokio::test]
async fn a_link_that_leads_elsewhere_is_not_taken_for_ours() {
    for target in ["/etc", "../x", "plain", ".."] {
        let files = disk();
        files.put_file(Path::new("/etc/passwd"), b"x").unwrap();
        let data = Path::new(VOLUME).join(DATA);
        files.symlink(Path::new(target), &data).await.unwrap();
        write(&files, &content(&[("a", "1")]), 0).await.unwrap();
        assert_eq!(read(&files, "a").as_deref(), Some("1"), "{target}");
        assert!(files.content(Path::new("/etc/passwd")).is_some());
    }
}

/// Cut off at every single call, before and after its effect: readers see the old or the new, whole, and the next
/// write leaves nothing of the attempt.
#[tokio::test(start_paused = true)]
async fn cut_off_anywhere_readers_see_old_or_new() {
    let old = content(&[("a", "old"), ("gone", "old")]);
    let new = content(&[("a", "new"), ("b", "new")]);
    let faults: [fn() -> Fault; 3] = [
        || Fault::Hang,
        || Fault::Before(io::Error::other("broken")),
        || Fault::After(io::Error::other("broken")),
    ];
    for fault in faults {
        for at in 0.. {
            let files = disk();
            write(&files, &old, 0).await.unwrap();
            let calls = Arc::new(AtomicUsize::new(0));
            let count = calls.clone();
            files.set_faults(move |_, _| (count.fetch_add(1, Ordering::SeqCst) == at).then(fault));
            let done = timeout(Duration::from_secs(1), write(&files, &new, 1)).await;
            files.clear_faults();
            let seen = read(&files, "..data/a");
            assert!(
                matches!(seen.as_deref(), Some("old" | "new")),
                "call {at}: {seen:?}"
            );
            let other = if seen.as_deref() == Some("old") {
                "..data/gone"
            } else {
                "..data/b"
            };
            assert_eq!(read(&files, other), seen, "call {at}");
            write(&files, &new, 2).await.unwrap();
            assert_eq!(
                names(&files).await.len(),
                4,
                "call {at}: {:?}",
                names(&files).await
            );
            assert_eq!(read(&files, "b").as_deref(), Some("new"), "call {at}");
            if calls.load(Ordering::SeqCst) <= at {
                assert!(done.unwrap().is_ok());
                assert!(at > 5, "{at} calls");
                break;
            }
        }
    }
}

/// On a real file system, read in a loop while it is written again and again.
#[tokio::test]
async fn never_a_torn_read() {
    let dir = tempfile::tempdir().unwrap();
    let volume = dir.path().to_owned();
    let of = |n: usize| {
        let text = format!("{n} ").repeat(2000);
        content(&[("key", text.as_str())])
    };
    let writer = Writer {
        files: &HostFiles,
        trees: &HostFiles,
    };
    writer
        .write(&volume, &of(0), None, second(0))
        .await
        .unwrap();
    let end = Arc::new(AtomicBool::new(false));
    let (ended, path) = (end.clone(), volume.join("key"));
    let reader = std::thread::spawn(move || {
        let (mut reads, mut last) = (0usize, 0usize);
        while !ended.load(Ordering::Relaxed) {
            // Between two looks at links the version may go; opening again finds the next.
            let Ok(text) = std::fs::read_to_string(&path) else {
                continue;
            };
            let words: Vec<&str> = text.split_whitespace().collect();
            assert_eq!(words.len(), 2000);
            assert!(words.iter().all(|w| *w == words[0]));
            let seen: usize = words[0].parse().unwrap();
            assert!(seen >= last, "{seen} after {last}");
            (reads, last) = (reads + 1, seen);
        }
        reads
    });
    for n in 1..300 {
        let at = second(i64::try_from(n).unwrap());
        writer.write(&volume, &of(n), None, at).await.unwrap();
    }
    end.store(true, Ordering::Relaxed);
    assert!(reader.join().unwrap() > 0);
}
