//! The saver, under a clock that stands still until everybody waits.
#![allow(clippy::unwrap_used)] // all of it is test code

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use krablet_checkpoint::{Checkpoint, CheckpointError, Loaded, Saved, Saver, State, Store, saver};
use krablet_linux::fake::{Fault, MemoryFiles};
use serde::{Deserialize, Serialize};
use tokio::task::JoinHandle;
use tokio::time::{Instant, advance, sleep};

/// A number, and who holds it.
#[derive(Debug, Serialize, Deserialize)]
struct Number {
    n: u64,
    #[serde(skip)]
    _held: Arc<()>,
}

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
    /// Held by each number that was set and not let go of.
    held: Arc<()>,
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
            held: Arc::default(),
        }
    }

    fn set(&self, n: u64) {
        let _held = self.held.clone();
        self.saver.as_ref().unwrap().set(Number { n, _held });
    }

    /// How many numbers are held by the saver.
    fn held(&self) -> usize {
        Arc::strong_count(&self.held) - 1
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
            Loaded::Valid(number) => Some(number.n),
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
    let _held = Arc::default();
    clone.set(Number { n: 1, _held });
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

#[tokio::test(start_paused = true)]
async fn what_is_written_is_held_no_longer() {
    let world = World::new();
    for n in 1..5 {
        world.set(n);
        assert_eq!(world.held(), 1);
        sleep(Duration::from_secs(2)).await;
        assert_eq!((world.held(), world.writes().len()), (0, n as usize));
    }
    // Who asks later learns that it is written.
    world.saver.as_ref().unwrap().saved().await;
    // Nothing is left to write at the end, and what stands there stays.
    let world = world.close().await;
    assert_eq!((world.stands().await, world.writes().len()), (Some(4), 4));
}

#[tokio::test(start_paused = true)]
async fn what_could_not_be_written_is_held_until_it_is() {
    let world = World::new();
    world.refusing.store(true, Ordering::SeqCst);
    world.set(1);
    sleep(Duration::from_secs(600)).await;
    assert_eq!((world.held(), world.stands().await), (1, None));
    world.refusing.store(false, Ordering::SeqCst);
    sleep(Duration::from_secs(61)).await;
    assert_eq!((world.held(), world.stands().await), (0, Some(1)));
}

/// Takes its time.
struct Slow(Arc<Mutex<Vec<u64>>>);

#[async_trait]
impl Store<u64> for Slow {
    async fn save(&mut self, value: &u64) -> Result<Saved, CheckpointError> {
        sleep(Duration::from_secs(3)).await;
        self.0.lock().unwrap().push(*value);
        Ok(Saved::Written)
    }

    fn path(&self) -> &Path {
        Path::new(PATH)
    }
}

#[tokio::test(start_paused = true)]
async fn a_value_that_comes_while_another_is_written_is_not_forgotten_with_it() {
    let written = Arc::default();
    let (saver, task) = saver(Slow(Arc::clone(&written)));
    let task = tokio::spawn(task.run());
    saver.set(1);
    sleep(Duration::from_secs(2)).await;
    saver.set(2);
    saver.set(3);
    saver.saved().await;
    assert_eq!(*written.lock().unwrap(), [1, 3]);
    drop(saver);
    task.await.unwrap();
    assert_eq!(*written.lock().unwrap(), [1, 3]);
}
