//! Volumes over files and mounts in memory: whatever a crash or an error leaves is finished or taken away exactly.

#![allow(clippy::unwrap_used, clippy::expect_used)] // all of it is test code

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use krablet_linux::Mounts;
use krablet_linux::fake::{Fault, MemoryFiles};
use krablet_volumes::Volumes;
use tokio::time::timeout;

mod common;

use common::{EMPTY_DIRS, ROOT, UID, agent_over, assert_nothing_left, full_pod, node};

/// Counts calls and lets `fault` spoil call number `at`.
fn spoil(
    files: &MemoryFiles,
    at: usize,
    fault: impl Fn() -> Fault + Send + Sync + 'static,
) -> Arc<AtomicUsize> {
    let calls = Arc::new(AtomicUsize::new(0));
    let count = calls.clone();
    files.set_faults(move |_, _| (count.fetch_add(1, Ordering::SeqCst) == at).then(&fault));
    calls
}

fn broken() -> io::Error {
    io::Error::other("broken")
}

type MakeFault = fn() -> Fault;

const FAULTS: [(&str, MakeFault); 3] = [
    ("crash before", || Fault::Hang),
    ("error before", || Fault::Before(broken())),
    ("error after", || Fault::After(broken())),
];

/// Does `work` on a prepared node once for each call it makes, with that call spoilt in every way. `look` sees what is left of
/// it; then the pod is torn down, and nothing may remain. There must be more calls than `least` to spoil.
async fn cut_everywhere(
    least: usize,
    prepared: impl AsyncFn() -> MemoryFiles,
    work: impl AsyncFn(&Volumes) -> bool,
    look: impl AsyncFn(&MemoryFiles, usize, &str),
) {
    for (kind, fault) in FAULTS {
        let mut at = 0;
        loop {
            let note = format!("{kind} at call {at}");
            let files = prepared().await;
            let calls = spoil(&files, at, fault);
            let cut = agent_over(&files);
            let done = timeout(Duration::from_secs(1), work(&cut)).await;
            drop(cut);
            files.clear_faults();
            if calls.load(Ordering::SeqCst) <= at {
                assert!(done.unwrap(), "{note}");
                break;
            }
            look(&files, at, &note).await;
            agent_over(&files)
                .tear_down(&UID.into())
                .await
                .expect(&note);
            assert_nothing_left(&files, &note).await;
            at += 1;
        }
        assert!(at > least, "{kind}: {at} calls");
    }
}

#[tokio::test(start_paused = true)]
async fn a_set_up_cut_short_anywhere_is_finished_or_taken_away_exactly() {
    let set_up = async |cut: &Volumes| cut.set_up(&full_pod()).await.is_ok();
    let look = async |files: &MemoryFiles, at: usize, note: &str| {
        // Every mount that is there is in the record.
        let record = Path::new(ROOT).join("pods/u-1/krablet-volumes.json");
        let text = String::from_utf8(files.content(&record).unwrap_or_default()).unwrap();
        for mount in files.mounts().below(Path::new("/")).await.unwrap() {
            let name = mount.point.file_name().unwrap().to_str().unwrap();
            assert!(text.contains(&format!("/{name}\"")), "{note}: {text}");
        }
        if at.is_multiple_of(2) {
            let done = agent_over(files).set_up(&full_pod()).await.expect(note);
            assert_eq!(done.mounts.len(), 4, "{note}");
            let mode = files.mode(&Path::new(EMPTY_DIRS).join("disk"));
            assert_eq!(mode, Some(0o777), "{note}");
            let mounts = files.mounts().below(Path::new("/")).await.unwrap();
            assert_eq!(mounts.len(), 2, "{note}");
        }
    };
    cut_everywhere(10, async || node(), set_up, look).await;
}

#[tokio::test(start_paused = true)]
async fn a_tear_down_cut_short_anywhere_is_finished_by_the_next() {
    let prepared = async || {
        let files = node();
        agent_over(&files).set_up(&full_pod()).await.unwrap();
        let file = Path::new(EMPTY_DIRS).join("ram/x");
        files.put_file(&file, b"x").unwrap();
        files
    };
    let tear_down = async |cut: &Volumes| cut.tear_down(&UID.into()).await.is_ok();
    cut_everywhere(6, prepared, tear_down, async |_, _, _| ()).await;
}

#[tokio::test]
async fn a_torn_or_foreign_record_is_set_aside_and_the_mount_table_tells() {
    for text in [
        "",
        "{\"version\":1,\"volu",
        r#"{"version":9,"volumes":[]}"#,
        r#"{"version":1,"volumes":[{"name":"x","plugin":"p","path":"/srv/data","mounted":true}]}"#,
    ] {
        let files = node();
        let volumes = agent_over(&files);
        volumes.set_up(&full_pod()).await.unwrap();
        let record = Path::new(ROOT).join("pods/u-1/krablet-volumes.json");
        files.put_file(&record, text.as_bytes()).unwrap();
        // Setting up goes on from there, with a new record.
        agent_over(&files).set_up(&full_pod()).await.unwrap();
        let aside = record.with_extension("json.unreadable");
        assert_eq!(files.content(&aside).unwrap(), text.as_bytes());
        files.put_file(&record, text.as_bytes()).unwrap();
        volumes.tear_down(&UID.into()).await.unwrap();
        assert_nothing_left(&files, text).await;
    }
}
