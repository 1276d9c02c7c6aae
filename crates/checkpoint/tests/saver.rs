//! The saver, under a clock that stands still until everybody waits.
#![allow(clippy::unwrap_used)] // all of it is test code

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use krablet_checkpoint::{Checkpoint, Loaded, Saver, State, saver};
use krablet_linux::fake::{Fault, MemoryFiles};
use serde::{Deserialize, Serialize};
use tokio::task::JoinHandle;
use tokio::time::{Instant, advance, sleep};

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Number(u64);

impl State for Number {
    const KIND: &'static str = "Number";
}

const PATH: &str = "/state/number";

/// A saver on a disk that counts and times the writes.
struct World {
    files: MemoryFiles,
    writes: Arc<Mutex<Vec<Instant>>>,
    refusing: Arc<AtomicBool>,
    hanging: Arc<AtomicBool>,
    saver: Option<Saver<Number>>,
    task: JoinHandle<()>,
}

impl World {
    fn new() -> Self {
        let files = MemoryFiles::default();
        files
            .put(Path::new("/state"), krablet_linux::EntryKind::Directory)
            .unwrap();
        let writes = Arc::new(Mutex::new(Vec::new()));
        let refusing = Arc::new(AtomicBool::new(false));
        let hanging = Arc::new(AtomicBool::new(false));
        let (log, refuse, hang) = (writes.clone(), refusing.clone(), hanging.clone());
        files.set_faults(move |call, _| {
            if call != "write_atomic" {
                return None;
            }
            log.lock().unwrap().push(Instant::now());
            if hang.load(Ordering::SeqCst) {
                return Some(Fault::Hang);
            }
            let refused = refuse.load(Ordering::SeqCst);
            refused.then(|| Fault::Before(io::Error::other("disk")))
        });
        let checkpoint = Checkpoint::new(Arc::new(files.clone()), PATH);
        let (saver, task) = saver(checkpoint);
        Self {
            files,
            writes,
            refusing,
            hanging,
            saver: Some(saver),
            task: tokio::spawn(task.run()),
        }
    }

    fn set(&self, n: u64) {
        self.saver.as_ref().unwrap().set(Number(n));
    }

    fn writes(&self) -> Vec<Instant> {
        self.writes.lock().unwrap().clone()
    }

    /// Reads past the faults.
    async fn stands(&self) -> Option<u64> {
        let copy = MemoryFiles::default();
        let bytes = self.files.content(Path::new(PATH))?;
        copy.put_file(Path::new(PATH), &bytes).unwrap();
        match Checkpoint::<Number>::new(Arc::new(copy), PATH).load().await {
            Loaded::Valid(Number(n)) => Some(n),
            other => panic!("{other:?}"),
        }
    }

    async fn close(mut self) -> Self {
        self.saver = None;
        (&mut self.task).await.unwrap();
        self
    }
}

/// Lets every task run until it waits for time.
async fn settle() {
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_first_change_is_written_at_once() {
    let world = World::new();
    world.set(1);
    settle().await;
    assert_eq!(world.stands().await, Some(1));
}

#[tokio::test(start_paused = true)]
async fn changes_are_gathered_and_the_newest_wins() {
    let world = World::new();
    for n in 0..1000 {
        world.set(n);
        advance(Duration::from_millis(10)).await;
        settle().await;
    }
    sleep(Duration::from_secs(5)).await;
    assert_eq!(world.stands().await, Some(999));
    let writes = world.writes();
    assert!(writes.len() <= 12, "{} writes", writes.len());
    let paced = writes
        .windows(2)
        .all(|w| w[1] - w[0] >= Duration::from_secs(1));
    assert!(paced, "{writes:?}");
}

#[tokio::test(start_paused = true)]
async fn a_quiet_state_costs_nothing() {
    let world = World::new();
    world.set(1);
    sleep(Duration::from_secs(3600)).await;
    assert_eq!(world.writes().len(), 1);
    // Set to what it is: nothing to write.
    world.set(1);
    sleep(Duration::from_secs(3600)).await;
    assert_eq!(world.writes().len(), 1);
    world.set(2);
    settle().await;
    assert_eq!(world.stands().await, Some(2));
}

#[tokio::test(start_paused = true)]
async fn the_end_writes_the_last_value_without_waiting() {
    let world = World::new();
    world.set(1);
    settle().await;
    world.set(2);
    settle().await;
    assert_eq!(world.stands().await, Some(1));
    let world = world.close().await;
    assert_eq!(world.stands().await, Some(2));
    assert_eq!(world.writes().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_saver_never_set_writes_nothing() {
    let world = World::new().close().await;
    assert_eq!(world.writes().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn every_clone_has_to_go_before_the_end() {
    let world = World::new();
    let clone = world.saver.clone().unwrap();
    clone.set(Number(1));
    drop(clone);
    world.set(2);
    let world = world.close().await;
    assert_eq!(world.stands().await, Some(2));
}

#[tokio::test(start_paused = true)]
async fn a_refusing_disk_is_tried_again_and_again_but_seldom() {
    let world = World::new();
    world.refusing.store(true, Ordering::SeqCst);
    world.set(1);
    sleep(Duration::from_secs(3600)).await;
    let attempts = world.writes().len();
    assert!((60..=70).contains(&attempts), "{attempts}");
    world.set(2);
    world.refusing.store(false, Ordering::SeqCst);
    sleep(Duration::from_secs(61)).await;
    assert_eq!(world.stands().await, Some(2));
    // And from then on at the usual pace.
    world.set(3);
    sleep(Duration::from_secs(2)).await;
    assert_eq!(world.stands().await, Some(3));
}

#[tokio::test(start_paused = true)]
async fn a_refusing_or_hanging_disk_does_not_hold_up_the_end() {
    let world = World::new();
    world.refusing.store(true, Ordering::SeqCst);
    world.set(1);
    world.close().await;
    let world = World::new();
    world.hanging.store(true, Ordering::SeqCst);
    world.set(1);
    settle().await;
    world.set(2);
    world.close().await;
}

/// Dropped at any point, the file holds some value that was set, and none older than one it held.
#[tokio::test(start_paused = true)]
async fn dropped_at_any_point() {
    for cut in 0..30 {
        let mut steps = 0;
        let world = World::new();
        let mut before = None;
        for n in 0..10 {
            world.set(n);
            for _ in 0..3 {
                tokio::task::yield_now().await;
                if steps == cut {
                    world.task.abort();
                }
                steps += 1;
            }
            advance(Duration::from_millis(700)).await;
            let stands = world.stands().await;
            assert!(
                stands >= before && stands <= Some(n),
                "{before:?} {stands:?}"
            );
            before = stands;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn who_must_know_waits_until_it_is_written() {
    let world = World::new();
    let saver = world.saver.clone().unwrap();
    saver.saved().await;
    world.refusing.store(true, Ordering::SeqCst);
    world.set(1);
    let waiting = tokio::spawn(async move { saver.saved().await });
    sleep(Duration::from_secs(5)).await;
    assert!(!waiting.is_finished());
    world.refusing.store(false, Ordering::SeqCst);
    waiting.await.unwrap();
    assert_eq!(world.stands().await, Some(1));
    // Nobody waits for a writer that is gone.
    let saver = world.saver.clone().unwrap();
    world.task.abort();
    world.set(2);
    saver.saved().await;
}
