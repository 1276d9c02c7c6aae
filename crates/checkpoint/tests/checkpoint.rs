//! What is found in a file after everything that can happen to it.
#![allow(clippy::unwrap_used)] // all of it is test code

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use krablet_checkpoint::{Checkpoint, DesiredPods, Loaded, SIZE_LIMIT, Saved, State};
use krablet_linux::fake::{Fault, FixedClock, MemoryFiles};
use krablet_linux::{EntryKind, Files, HostFiles};
use krablet_pod::api::Pod;
use proptest::prelude::*;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Words {
    words: Vec<String>,
}

impl State for Words {
    const KIND: &'static str = "Words";
}

/// The same form, another meaning.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Others {
    words: Vec<String>,
}

impl State for Others {
    const KIND: &'static str = "Others";
}

const PATH: &str = "/state/words";

fn words(text: &str) -> Words {
    Words {
        words: text.split(' ').map(str::to_owned).collect(),
    }
}

fn open(files: &MemoryFiles) -> Checkpoint<Words> {
    Checkpoint::new(Arc::new(files.clone()), PATH)
}

fn content(files: &MemoryFiles) -> Vec<u8> {
    files.content(Path::new(PATH)).unwrap()
}

async fn written(value: &Words) -> Vec<u8> {
    let files = MemoryFiles::default();
    open(&files).save(value).await.unwrap();
    content(&files)
}

fn with(bytes: &[u8]) -> MemoryFiles {
    let files = MemoryFiles::default();
    files.put_file(Path::new(PATH), bytes).unwrap();
    files
}

async fn why(bytes: &[u8]) -> String {
    match open(&with(bytes)).load().await {
        Loaded::SetAside { why, .. } => why,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_state_comes_back() {
    let files = MemoryFiles::default();
    assert_eq!(open(&files).load().await, Loaded::Absent);
    let value = words("a b \u{1F600} \" \\ \u{0}");
    assert_eq!(open(&files).save(&value).await.unwrap(), Saved::Written);
    assert_eq!(open(&files).load().await, Loaded::Valid(value));
    assert_eq!(files.mode(Path::new(PATH)), Some(0o600));
    assert_eq!(files.mode(Path::new("/state")), Some(0o700));
}

#[tokio::test]
async fn the_form_is_fixed() {
    assert_eq!(
        String::from_utf8(written(&words("a b")).await).unwrap(),
        r#"{"version":1,"kind":"Words","checksum":"f750efee86f2f96f54343b8db2de65a6e005c3a3848344cc27b5deed24dd7199","data":{"words":["a","b"]}}"#
    );
}

#[tokio::test]
async fn equal_bytes_are_not_written_again() {
    let files = MemoryFiles::default();
    let mut checkpoint = open(&files);
    checkpoint.save(&words("a")).await.unwrap();
    assert_eq!(
        checkpoint.save(&words("a")).await.unwrap(),
        Saved::Unchanged
    );
    assert_eq!(checkpoint.save(&words("b")).await.unwrap(), Saved::Written);
    // A new life knows from reading.
    let mut checkpoint = open(&files);
    checkpoint.load().await;
    assert_eq!(
        checkpoint.save(&words("b")).await.unwrap(),
        Saved::Unchanged
    );
}

#[tokio::test]
async fn a_failed_write_is_tried_again_with_equal_bytes() {
    let files = MemoryFiles::default();
    let mut checkpoint = open(&files);
    checkpoint.save(&words("a")).await.unwrap();
    files.set_faults(|call, _| {
        (call == "write_atomic").then(|| Fault::After(io::Error::other("disk")))
    });
    assert!(checkpoint.save(&words("b")).await.is_err());
    files.clear_faults();
    assert_eq!(checkpoint.save(&words("a")).await.unwrap(), Saved::Written);
    assert_eq!(open(&files).load().await, Loaded::Valid(words("a")));
}

#[tokio::test]
async fn torn_at_every_byte() {
    let whole = written(&words("some words")).await;
    for length in 0..whole.len() {
        let files = with(&whole[..length]);
        let Loaded::SetAside { path, aside, why } = open(&files).load().await else {
            panic!("{length} bytes were taken for the whole");
        };
        assert!(
            why.starts_with("not a state file, or a torn one: "),
            "{why}"
        );
        assert_eq!(path, Path::new(PATH));
        let aside = aside.unwrap();
        assert_eq!(aside, Path::new("/state/words.bad-1"));
        assert_eq!(files.content(&aside).unwrap(), &whole[..length]);
        assert_eq!(open(&files).load().await, Loaded::Absent);
    }
}

#[tokio::test]
async fn every_changed_byte_is_noticed() {
    let value = words("some words");
    let whole = written(&value).await;
    for at in 0..whole.len() {
        let mut changed = whole.clone();
        changed[at] ^= 1;
        let loaded = open(&with(&changed)).load().await;
        assert!(
            matches!(loaded, Loaded::SetAside { .. }),
            "byte {at}: {loaded:?}"
        );
    }
}

#[tokio::test]
async fn foreign_files() {
    for bytes in [
        &b"\x7fELF\0\0"[..],
        b"null",
        b"[]",
        b"{}",
        b"7",
        b"{\"version\":\"1\"}",
    ] {
        let why = why(bytes).await;
        assert!(
            why.starts_with("not a state file, or a torn one: "),
            "{why}"
        );
    }
    let whole = String::from_utf8(written(&words("a")).await).unwrap();
    assert_eq!(
        why(whole.replace("\"version\":1", "\"version\":2").as_bytes()).await,
        "written as version 2, which is not known here"
    );
    // A later version may look quite different.
    assert_eq!(
        why(br#"{"version":7,"parts":[]}"#).await,
        "written as version 7, which is not known here"
    );
    let others = Others { words: Vec::new() };
    let files = MemoryFiles::default();
    let mut checkpoint = Checkpoint::new(Arc::new(files.clone()), PATH);
    checkpoint.save(&others).await.unwrap();
    assert_eq!(
        why(&content(&files)).await,
        "holds \"Others\", not \"Words\""
    );
    assert_eq!(
        why(whole.replace("[\"a\"]", "[\"b\"]").as_bytes()).await,
        "the checksum does not match the content"
    );
    assert!(
        why(format!("{whole}{whole}").as_bytes())
            .await
            .contains("trailing")
    );
}

#[tokio::test]
async fn what_is_too_large_is_neither_read_nor_written() {
    let files = with(&vec![b' '; SIZE_LIMIT + 1]);
    let loaded = open(&files).load().await;
    assert!(
        matches!(loaded, Loaded::SetAside { aside: Some(_), .. }),
        "{loaded:?}"
    );
    let huge = Words {
        words: vec!["x".repeat(SIZE_LIMIT)],
    };
    assert!(open(&files).save(&huge).await.is_err());
    assert_eq!(open(&files).load().await, Loaded::Absent);
}

#[tokio::test]
async fn what_is_no_file_is_set_aside_too() {
    let files = MemoryFiles::default();
    files.put(Path::new(PATH), EntryKind::Directory).unwrap();
    let loaded = open(&files).load().await;
    assert!(
        matches!(loaded, Loaded::SetAside { aside: Some(_), .. }),
        "{loaded:?}"
    );
    open(&files).save(&words("a")).await.unwrap();
    assert_eq!(open(&files).load().await, Loaded::Valid(words("a")));
}

#[tokio::test]
async fn only_so_many_are_kept_and_the_oldest_goes() {
    let clock = FixedClock::default();
    let files = MemoryFiles::new(Arc::new(clock.clone()));
    for n in 0..8 {
        clock.advance(std::time::Duration::from_secs(1));
        files
            .put_file(Path::new(PATH), format!("bad {n}").as_bytes())
            .unwrap();
        open(&files).load().await;
    }
    let kept = |n: u32| {
        let bytes = files.content(&PathBuf::from(format!("{PATH}.bad-{n}")));
        bytes.map(|b| String::from_utf8(b).unwrap())
    };
    let kept: Vec<_> = (1..=6).map(kept).collect();
    let expected = ["bad 5", "bad 6", "bad 7", "bad 3", "bad 4"];
    let mut expected: Vec<_> = expected.map(|t| Some(t.to_owned())).into();
    expected.push(None);
    assert_eq!(kept, expected);
}

#[tokio::test]
async fn a_disk_that_refuses_is_not_fatal() {
    let files = with(&written(&words("a")).await);
    files.set_faults(|_, _| Some(Fault::Before(io::Error::other("disk"))));
    let loaded = open(&files).load().await;
    let Loaded::SetAside { aside, why, .. } = loaded else {
        panic!("{loaded:?}");
    };
    assert_eq!((aside, why.as_str()), (None, "disk"));
    assert!(open(&files).save(&words("b")).await.is_err());
    files.clear_faults();
    // Nothing was lost by all this.
    assert_eq!(open(&files).load().await, Loaded::Valid(words("a")));
}

/// A save dropped before, or failing before and after each of its calls, leaves the old or the new.
#[tokio::test]
async fn every_state_of_a_save_is_a_state() {
    for after in [false, true] {
        for failing in ["write_atomic", "create_dir_all"] {
            for first in [true, false] {
                let files = MemoryFiles::default();
                if !first {
                    open(&files).save(&words("old")).await.unwrap();
                }
                files.set_faults(move |call, _| {
                    let error = io::Error::other("crash");
                    let fault = if after {
                        Fault::After(error)
                    } else {
                        Fault::Before(error)
                    };
                    (call == failing).then_some(fault)
                });
                let _ = open(&files).save(&words("new")).await;
                files.clear_faults();
                match open(&files).load().await {
                    Loaded::Absent => assert!(first),
                    Loaded::Valid(value) => {
                        assert!(value == words("new") || (!first && value == words("old")));
                    }
                    other => panic!("{other:?}"),
                }
                open(&files).save(&words("next")).await.unwrap();
                assert_eq!(open(&files).load().await, Loaded::Valid(words("next")));
            }
        }
    }
}

/// On the real disk: whatever a writer that died left beside the file, the file stands and can be
/// replaced.
#[tokio::test]
async fn leftovers_of_a_dead_writer_do_no_harm() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("words");
    let files: Arc<dyn Files> = Arc::new(HostFiles);
    let open = || Checkpoint::<Words>::new(files.clone(), &path);
    open().save(&words("old")).await.unwrap();
    // The one name a write uses beside its target.
    let hash = "words".bytes().fold(0xcbf2_9ce4_8422_2325_u64, |h, b| {
        (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3)
    });
    let temporary = dir.path().join(format!(".krablet-{hash:016x}.tmp"));
    let next = written(&words("next")).await;
    for length in (0..=next.len()).step_by(7) {
        std::fs::write(&temporary, &next[..length]).unwrap();
        assert_eq!(open().load().await, Loaded::Valid(words("old")));
    }
    open().save(&words("new")).await.unwrap();
    assert_eq!(open().load().await, Loaded::Valid(words("new")));
    // The leftover was taken over, not left beside a second one.
    assert!(!temporary.exists());
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[tokio::test]
async fn pods_come_back_as_they_were() {
    let pod: Pod = serde_json::from_value(serde_json::json!({
        "metadata": {"name": "web", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}}}]},
        "status": {"phase": "Running"},
    }))
    .unwrap();
    let desired = DesiredPods {
        pods: vec![Arc::new(pod)],
    };
    let files: Arc<dyn Files> = Arc::new(MemoryFiles::default());
    let mut checkpoint = Checkpoint::new(files, "/state/pods");
    checkpoint.save(&desired).await.unwrap();
    assert_eq!(checkpoint.load().await, Loaded::Valid(desired));
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.build().unwrap().block_on(future)
}

/// Bytes of every kind: noise, and files that were once whole.
fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let whole = block_on(written(&words("some words")));
    let spoiled = (
        prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        0..3_u8,
    )
        .prop_map(move |(changes, what)| {
            let mut bytes = whole.clone();
            for (at, byte) in changes {
                let at = at.index(bytes.len());
                match what {
                    0 => bytes[at] = byte,
                    1 => bytes.insert(at, byte),
                    _ => bytes.truncate(at.max(1)),
                }
            }
            bytes
        });
    prop_oneof![prop::collection::vec(any::<u8>(), 0..200), spoiled]
}

proptest! {
    /// Never a panic, never a wrong state, and the bytes are never lost: they are the state, or they
    /// stand aside with what stood there before.
    #[test]
    fn whatever_the_bytes(first in bytes(), second in bytes()) {
        block_on(async {
            let files = MemoryFiles::default();
            let mut expected: Vec<Vec<u8>> = Vec::new();
            for bytes in [&first, &second] {
                files.put_file(Path::new(PATH), bytes).unwrap();
                match open(&files).load().await {
                    Loaded::Valid(value) => {
                        prop_assert_eq!(value, words("some words"));
                        prop_assert_eq!(&content(&files), bytes);
                    }
                    Loaded::SetAside { aside, .. } => {
                        expected.push(bytes.clone());
                        prop_assert_eq!(files.content(&aside.unwrap()), Some(bytes.clone()));
                        prop_assert!(files.content(Path::new(PATH)).is_none());
                    }
                    Loaded::Absent => prop_assert!(false, "a file was not seen"),
                }
                open(&files).save(&words("next")).await.unwrap();
                prop_assert_eq!(open(&files).load().await, Loaded::Valid(words("next")));
            }
            for (n, bytes) in expected.iter().enumerate() {
                let aside = PathBuf::from(format!("{PATH}.bad-{}", n + 1));
                prop_assert_eq!(files.content(&aside), Some(bytes.clone()));
            }
            Ok(())
        })?;
    }
}
