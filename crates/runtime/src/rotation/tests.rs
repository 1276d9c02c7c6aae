use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use krablet_cri::Code;
use krablet_linux::fake::{FixedClock, MemoryFiles};
use krablet_pod::Ticket;
use krablet_pod::observed::ContainerState;
use tokio::sync::mpsc;

use super::*;
use crate::gc::tests::{ScriptedRuntime, container};

const DIR: &str = "/logs/ns_p_u/c";

struct World {
    files: MemoryFiles,
    runtime: Arc<ScriptedRuntime>,
    pods: Arc<Mutex<Vec<Arc<ObservedPod>>>>,
    rotation: tokio::task::JoinHandle<()>,
    /// Tells of a write to a quiet log.
    told: mpsc::UnboundedSender<PathBuf>,
    expected: Arc<Mutex<Vec<PathBuf>>>,
    started: Arc<Notify>,
}

impl Drop for World {
    fn drop(&mut self) {
        self.rotation.abort();
    }
}

/// Tells of the writes it is told of.
struct Told {
    expected: Arc<Mutex<Vec<PathBuf>>>,
    writes: mpsc::UnboundedReceiver<PathBuf>,
}

#[async_trait]
impl FirstWrites for Told {
    fn expect(&mut self, path: &Path) {
        self.expected.lock().unwrap().push(path.to_owned());
    }

    async fn next(&mut self) -> PathBuf {
        match self.writes.recv().await {
            Some(path) => path,
            None => std::future::pending().await,
        }
    }
}

/// One pod whose container `c` runs as instance 1; instance 0 is dead. Logs are full at 100 bytes.
fn world(files: MemoryFiles, runtime: ScriptedRuntime) -> World {
    let pod = PodRef::new("u", "ns", "p");
    let mut seen = ObservedPod::absent(pod.clone(), Ticket(1));
    seen.containers = vec![
        container(&pod, 1, ContainerState::Running),
        container(&pod, 0, ContainerState::Exited),
    ];
    let pods = Arc::new(Mutex::new(vec![Arc::new(seen)]));
    let runtime = Arc::new(runtime);
    let config = RotationConfig {
        policy: RotationPolicy {
            max_size: 100,
            max_files: 4,
        },
        ..RotationConfig::default()
    };
    let known = pods.clone();
    let deps = RotationDeps {
        runtime: runtime.clone(),
        files: Arc::new(files.clone()),
        clock: Arc::new(FixedClock::default()),
        pods: Arc::new(move || known.lock().unwrap().clone()),
    };
    let (told, writes) = mpsc::unbounded_channel();
    let expected = Arc::new(Mutex::new(Vec::new()));
    let started = Arc::new(Notify::new());
    let bells = Bells {
        writes: Box::new(Told {
            expected: expected.clone(),
            writes,
        }),
        pods: started.clone(),
    };
    let rotation = tokio::spawn(LogRotation::new(config, deps, bells).run());
    World {
        files,
        runtime,
        pods,
        rotation,
        told,
        expected,
        started,
    }
}

/// Files with logs of both instances, and the runtime's part: reopening makes a new log.
fn reopening() -> (MemoryFiles, ScriptedRuntime) {
    let files = MemoryFiles::default();
    for n in [0, 1] {
        let log = Path::new(DIR).join(format!("{n}.log"));
        files.put_file(&log, b"old").unwrap();
    }
    let disk = files.clone();
    let runtime = ScriptedRuntime::with_effect(move |call| {
        if call == "reopen u-c1" {
            let log = Path::new(DIR).join("1.log");
            disk.append(&log, b"").unwrap();
        }
    });
    (files, runtime)
}

fn names(files: &MemoryFiles) -> Vec<String> {
    let paths = files.paths();
    let below = paths.iter().filter_map(|p| p.strip_prefix(DIR).ok());
    below
        .map(|p| p.display().to_string())
        .filter(|n| !n.is_empty())
        .collect()
}

async fn seconds(n: u64) {
    tokio::time::sleep(Duration::from_secs(n)).await;
}

fn write(files: &MemoryFiles, bytes: usize) {
    let log = Path::new(DIR).join("1.log");
    files.append(&log, &vec![b'x'; bytes]).unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_full_log_makes_way_and_older_ones_are_packed_and_trimmed() {
    let (files, runtime) = reopening();
    let w = world(files, runtime);
    seconds(5).await;
    assert_eq!(w.runtime.take_calls(), Vec::<String>::new());
    for _ in 0..2 {
        write(&w.files, 120);
        seconds(25).await;
        assert_eq!(w.runtime.take_calls(), ["reopen u-c1"]);
    }
    // The previous instance's log can still be asked for; the first rotation of this one is packed.
    assert_eq!(
        names(&w.files),
        [
            "0.log",
            "1.log",
            "1.log.19700101-000000.gz",
            "1.log.19700101-000001"
        ]
    );
    for _ in 0..3 {
        write(&w.files, 120);
        seconds(25).await;
    }
    assert_eq!(
        names(&w.files),
        [
            "0.log",
            "1.log",
            "1.log.19700101-000003.gz",
            "1.log.19700101-000004"
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_log_that_fills_fast_is_rotated_long_before_the_period() {
    let (files, runtime) = reopening();
    let w = world(files, runtime);
    seconds(2).await;
    // 60 bytes a second against a limit of 100 and a period of ten seconds.
    let mut largest = 0;
    for _ in 0..600 {
        write(&w.files, 6);
        tokio::time::sleep(Duration::from_millis(100)).await;
        let content = w.files.content(&Path::new(DIR).join("1.log"));
        largest = largest.max(content.unwrap_or_default().len());
    }
    assert!(w.runtime.take_calls().len() >= 15);
    // Before its speed is known, one period's worth may pass; not more.
    assert!(largest < 700, "{largest}");
    let newest = names(&w.files).into_iter().next_back().unwrap();
    let rotated = w.files.content(&Path::new(DIR).join(newest)).unwrap();
    assert!((100..200).contains(&rotated.len()), "{}", rotated.len());
}

#[tokio::test(start_paused = true)]
async fn quiet_logs_cost_one_stat_a_period() {
    let (files, runtime) = reopening();
    let w = world(files, runtime);
    seconds(5).await;
    let calls = Arc::new(AtomicUsize::new(0));
    let count = calls.clone();
    w.files.set_faults(move |op, _| {
        assert_eq!(op, "stat");
        count.fetch_add(1, Ordering::SeqCst);
        None
    });
    seconds(100).await;
    assert_eq!(calls.load(Ordering::SeqCst), 10);
    // A container that ended is looked at no more.
    w.pods.lock().unwrap().clear();
    seconds(100).await;
    assert_eq!(calls.load(Ordering::SeqCst), 10);
}

#[tokio::test(start_paused = true)]
async fn a_quiet_log_that_fills_at_once_does_not_wait_for_its_turn() {
    let (files, runtime) = reopening();
    let w = world(files, runtime);
    let log = Path::new(DIR).join("1.log");
    seconds(31).await;
    let once = std::slice::from_ref(&log);
    assert_eq!(w.expected.lock().unwrap().as_slice(), once);
    w.told.send(log.clone()).unwrap();
    let mut largest = 0;
    for _ in 0..60 {
        write(&w.files, 6);
        tokio::time::sleep(Duration::from_millis(100)).await;
        let content = w.files.content(&log);
        largest = largest.max(content.unwrap_or_default().len());
    }
    assert!(largest < 200, "{largest}");
    // Once it is quiet again the next write is worth telling; what replaced it is another file.
    seconds(40).await;
    assert_eq!(*w.expected.lock().unwrap(), [log.clone(), log]);
}

#[tokio::test(start_paused = true)]
async fn a_container_that_starts_is_looked_at_soon() {
    let (files, runtime) = reopening();
    let w = world(files, runtime);
    seconds(31).await;
    let pod = PodRef::new("new", "ns", "new");
    let mut seen = ObservedPod::absent(pod.clone(), Ticket(1));
    seen.containers = vec![container(&pod, 1, ContainerState::Running)];
    let log = PathBuf::from(&seen.containers[0].log_path);
    w.files.put_file(&log, &[b'x'; 120]).unwrap();
    w.pods.lock().unwrap().push(Arc::new(seen));
    w.started.notify_one();
    seconds(2).await;
    assert_eq!(w.runtime.take_calls(), ["reopen new-c1"]);
}

#[tokio::test(start_paused = true)]
async fn quiet_logs_are_looked_at_in_one_go() {
    let (files, runtime) = reopening();
    let w = world(files, runtime);
    // More of them, each seen at another moment.
    for n in 1..5 {
        seconds(3).await;
        let pod = PodRef::new(format!("u{n}").as_str(), "ns", format!("p{n}").as_str());
        let mut seen = ObservedPod::absent(pod.clone(), Ticket(1));
        seen.containers = vec![container(&pod, 1, ContainerState::Running)];
        let log = Path::new(&seen.containers[0].log_path);
        w.files.put_file(log, b"old").unwrap();
        w.pods.lock().unwrap().push(Arc::new(seen));
    }
    seconds(30).await;
    let looks = Arc::new(Mutex::new(BTreeMap::new()));
    let count = looks.clone();
    w.files.set_faults(move |_, _| {
        *count
            .lock()
            .unwrap()
            .entry(tokio::time::Instant::now())
            .or_insert(0) += 1;
        None
    });
    seconds(100).await;
    let looks: Vec<i32> = looks.lock().unwrap().values().copied().collect();
    assert_eq!(looks, [5; 10]);
}

#[tokio::test(start_paused = true)]
async fn a_runtime_that_does_not_reopen_gets_its_log_back() {
    let (files, runtime) = reopening();
    runtime.fail("reopen u-c1", Code::Unavailable);
    let w = world(files, runtime);
    write(&w.files, 120);
    seconds(25).await;
    assert!(!w.runtime.take_calls().is_empty());
    assert_eq!(names(&w.files), ["0.log", "1.log"]);
    let kept = w.files.content(&Path::new(DIR).join("1.log")).unwrap();
    assert_eq!(kept.len(), 123);
    w.runtime.heal();
    seconds(15).await;
    assert_eq!(names(&w.files), ["0.log", "1.log", "1.log.19700101-000000"]);
}

#[tokio::test(start_paused = true)]
async fn a_new_log_is_not_overwritten_when_the_runtime_reopened_and_said_it_failed() {
    let files = MemoryFiles::default();
    for n in [0, 1] {
        let log = Path::new(DIR).join(format!("{n}.log"));
        files.put_file(&log, &[b'x'; 120]).unwrap();
    }
    let log = Path::new(DIR).join("1.log");
    // The container's next line comes in as soon as the old log is renamed.
    let disk = files.clone();
    let path = log.clone();
    files.set_faults(move |op, p| {
        if op == "lstat" && p == path {
            disk.append(&path, b"new").unwrap();
        }
        None
    });
    let runtime = ScriptedRuntime::default();
    runtime.fail("reopen u-c1", Code::DeadlineExceeded);
    let w = world(files, runtime);
    seconds(1).await;
    assert_eq!(names(&w.files), ["0.log", "1.log", "1.log.19700101-000000"]);
    assert_eq!(w.files.content(&log).unwrap(), b"new");
}

#[tokio::test(start_paused = true)]
async fn a_rotation_cut_short_is_mended() {
    let (files, runtime) = reopening();
    let dir = Path::new(DIR);
    // Renamed, then the agent died; before that, one was half packed and one packed but not removed.
    files
        .rename(&dir.join("1.log"), &dir.join("1.log.19700101-000003"))
        .await
        .unwrap();
    for name in [
        "1.log.19700101-000001",
        "1.log.19700101-000001.gz",
        "1.log.19700101-000002.tmp",
    ] {
        files.put_file(&dir.join(name), b"x").unwrap();
    }
    let w = world(files, runtime);
    seconds(1).await;
    assert_eq!(w.runtime.take_calls(), ["reopen u-c1"]);
    assert_eq!(
        names(&w.files),
        [
            "0.log",
            "1.log",
            "1.log.19700101-000001.gz",
            "1.log.19700101-000003"
        ]
    );
}

#[tokio::test]
async fn restart_counts_from_logs() {
    let files = MemoryFiles::default();
    let dir = Path::new("/logs/ns_p_u");
    assert_eq!(log_restart_count(&files, dir, "c").await, None);
    files
        .put(Path::new("/logs/ns_p_u/c/99.log"), EntryKind::Directory)
        .unwrap();
    assert_eq!(log_restart_count(&files, dir, "c").await, None);
    for name in ["2.log", "7.log.20260101-000000.gz", "x.log", "notes"] {
        files.put_file(&dir.join("c").join(name), b"").unwrap();
    }
    assert_eq!(log_restart_count(&files, dir, "c").await, Some(8));
}
