//! The observer over a runtime in memory, in virtual time.

mod trouble;

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use krablet_cri::v1;
use krablet_linux::fake::FixedClock;
use krablet_pod::observed::{ContainerState, ObservedPod};
use krablet_pod::{PodRef, PodUid};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::fake::{Events, FakeRuntime, MemoryFiles, World};
use crate::{Change, Changes, ObserveError, ObserverConfig, ObserverDeps, ObserverHandle, build};

const SECOND: Duration = Duration::from_secs(1);
const LONG: Duration = Duration::from_secs(3600);

struct Bed {
    runtime: Arc<FakeRuntime>,
    files: Arc<MemoryFiles>,
    handle: ObserverHandle,
    changes: Changes,
    tasks: JoinSet<()>,
}

impl Bed {
    fn start(prepare: impl FnOnce(&mut World)) -> Self {
        let runtime = Arc::new(FakeRuntime::new());
        prepare(&mut runtime.world());
        let files = Arc::new(MemoryFiles::default());
        let deps = ObserverDeps {
            runtime: runtime.clone(),
            files: files.clone(),
            clock: Arc::new(FixedClock::at(Timestamp::UNIX_EPOCH)),
            seed: 1,
        };
        let (observer, handle) = build(ObserverConfig::default(), deps);
        let mut tasks = JoinSet::new();
        tasks.spawn(observer.run());
        Self {
            runtime,
            files,
            changes: handle.take_changes(),
            handle,
            tasks,
        }
    }

    /// Starts and lets the first looks come to their end.
    async fn settled(prepare: impl FnOnce(&mut World)) -> Self {
        let mut bed = Self::start(prepare);
        pass(Duration::from_millis(100)).await;
        while bed.changes.try_next().is_some() {}
        bed.runtime.take_calls();
        bed
    }

    fn world<T>(&self, change: impl FnOnce(&mut World) -> T) -> T {
        change(&mut self.runtime.world())
    }

    async fn newest(&self, uid: &str) -> Result<Arc<ObservedPod>, ObserveError> {
        let ticket = self.handle.ticket();
        self.handle.newer_than(&pod(uid), ticket).await
    }

    async fn change(&mut self, within: Duration) -> Option<Change> {
        timeout(within, self.changes.next()).await.ok()
    }

    fn count(&self, calls: &[String], call: &str) -> usize {
        calls.iter().filter(|c| c.starts_with(call)).count()
    }
}

fn pod(uid: &str) -> PodRef {
    PodRef::new(uid, "ns", uid)
}

/// Virtual time goes by.
async fn pass(time: Duration) {
    sleep(time).await;
}

fn states(view: &ObservedPod) -> Vec<(String, ContainerState)> {
    let containers = view.containers.iter();
    containers.map(|c| (c.id.to_string(), c.state)).collect()
}

#[tokio::test(start_paused = true)]
async fn a_pod_is_seen_and_an_unknown_one_is_proven_absent() {
    let bed = Bed::settled(|w| w.add_pod("a")).await;
    let view = bed.newest("a").await.unwrap();
    assert_eq!(view.pod, pod("a"));
    assert_eq!(view.ips(), ["10.0.0.1"]);
    assert_eq!(states(&view), [("a-c".to_owned(), ContainerState::Running)]);
    assert_eq!(bed.handle.latest(&"a".into()), Some(view));

    bed.runtime.take_calls();
    let absent = bed.newest("b").await.unwrap();
    assert!(absent.is_absent());
    assert_eq!(absent.pod, pod("b"));
    assert_eq!(
        bed.runtime.take_calls(),
        ["ListPodSandbox b", "ListContainers b"]
    );
    assert_eq!(bed.handle.latest(&"b".into()), None);
}

#[tokio::test(start_paused = true)]
async fn an_event_leads_to_a_look_at_that_pod_alone() {
    let mut bed = Bed::settled(|w| {
        w.add_pod("a");
        w.add_pod("b");
    })
    .await;
    bed.world(|w| w.exit("a-c", 3));
    let change = bed.change(SECOND / 100).await.unwrap();
    assert_eq!((change.pod, change.worth_sync), (pod("a"), true));
    assert_eq!(change.died, ["a-c".into()]);
    let exit = change.observed.containers[0].exit.clone().unwrap();
    assert_eq!(exit.exit_code, 3);
    assert_eq!(
        bed.runtime.take_calls(),
        [
            "ListPodSandbox a",
            "ListContainers a",
            "ContainerStatus a-c"
        ]
    );
    // An exited container is never asked about again.
    bed.world(|w| w.add_container("a", "a-c2"));
    bed.change(SECOND / 100).await.unwrap();
    assert_eq!(
        bed.runtime.take_calls(),
        [
            "ListPodSandbox a",
            "ListContainers a",
            "ContainerStatus a-c2"
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn quiet_pods_cost_nothing_between_audits() {
    let bed = Bed::start(|w| (0..110).for_each(|n| w.add_pod(&format!("pod-{n}"))));
    pass(SECOND).await;
    let calls = bed.runtime.take_calls();
    // The subscription, one audit, and for each pod two lists and two statuses.
    assert_eq!(calls.len(), 1 + 2 + 110 * 4);
    let stats = bed.handle.stats();
    pass(LONG).await;
    let calls = bed.runtime.take_calls();
    let audits = bed.handle.stats().audit_durations.count - stats.audit_durations.count;
    assert!((60..=120).contains(&audits), "{audits}");
    assert_eq!(calls.len() as u64, 2 * audits);
    assert_eq!(
        bed.handle.stats().discrepancies,
        110,
        "all found by the first audit"
    );
}

#[tokio::test(start_paused = true)]
async fn a_storm_of_events_is_two_looks() {
    let bed = Bed::settled(|w| w.add_pod("a")).await;
    bed.world(|w| {
        w.list_delay = SECOND / 100;
        (0..500).for_each(|_| w.emit("a", "a-c"));
    });
    pass(SECOND).await;
    let calls = bed.runtime.take_calls();
    assert!(bed.count(&calls, "ListContainers") <= 2, "{calls:?}");
    assert_eq!(bed.handle.stats().events, 500);
}

#[tokio::test(start_paused = true)]
async fn late_events_of_a_pod_long_gone_do_no_harm() {
    let mut bed = Bed::settled(|w| w.add_pod("a")).await;
    bed.world(|w| w.remove_pod("a"));
    assert!(bed.change(SECOND).await.unwrap().observed.is_absent());
    bed.world(|w| w.emit("a", "a-c"));
    assert_eq!(bed.change(SECOND).await, None);
    assert_eq!(bed.handle.latest(&"a".into()), None);
}

#[tokio::test(start_paused = true)]
async fn an_event_that_names_no_pod_finds_it_by_the_container_or_audits() {
    let mut bed = Bed::settled(|w| w.add_pod("a")).await;
    pass(2 * SECOND).await;
    bed.world(|w| {
        w.muted = true;
        w.exit("a-c", 1);
        w.emit_nameless("a-c");
    });
    assert_eq!(bed.change(SECOND / 10).await.unwrap().died, ["a-c".into()]);
    bed.world(|w| {
        w.add_pod("b");
        w.emit_nameless("b-c");
    });
    assert_eq!(bed.change(SECOND).await.unwrap().pod, pod("b"));
}

#[tokio::test(start_paused = true)]
async fn what_happens_while_subscribing_is_not_missed() {
    let mut bed = Bed::settled(|w| w.add_pod("a")).await;
    bed.world(|w| {
        w.cut_stream();
        w.muted = true;
    });
    pass(SECOND / 2).await;
    bed.world(|w| w.exit("a-c", 1));
    assert!(bed.change(2 * SECOND).await.is_some());
}

#[tokio::test(start_paused = true)]
async fn a_runtime_without_events_is_audited_every_second() {
    let mut bed = Bed::settled(|w| {
        w.events = Events::Unimplemented;
        w.add_pod("a");
    })
    .await;
    bed.world(|w| w.exit("a-c", 1));
    assert!(bed.change(SECOND + SECOND / 2).await.is_some());
    assert!(bed.handle.health().borrow().is_healthy());
    bed.runtime.take_calls();
    pass(600 * SECOND).await;
    let calls = bed.runtime.take_calls();
    assert_eq!(bed.count(&calls, "GetContainerEvents"), 2, "asked rarely");
    assert!(bed.count(&calls, "ListContainers") >= 590);
    assert_eq!(bed.count(&calls, "ContainerStatus"), 0);
    assert_eq!(
        bed.handle.stats().discrepancies,
        0,
        "nobody promised events"
    );
    // An upgraded runtime is noticed.
    bed.world(|w| w.events = Events::Flow);
    let mut health = bed.handle.health();
    health.wait_for(|h| h.events).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_observation_begun_before_an_action_does_not_answer_for_it() {
    let bed = Bed::settled(|w| w.add_pod("a")).await;
    bed.world(|w| w.list_delay = 5 * SECOND);
    let early = bed.newest("a");
    let acting = async {
        // The early look has made its lists and is waiting for them.
        pass(SECOND).await;
        bed.world(|w| {
            w.muted = true;
            w.add_container("a", "a-c2");
        });
        bed.newest("a").await
    };
    let (early, late) = tokio::join!(early, acting);
    let (early, late) = (early.unwrap(), late.unwrap());
    assert_eq!(early.containers.len(), 1);
    assert_eq!(late.containers.len(), 2);
    assert!(late.ticket > early.ticket);
}

#[tokio::test(start_paused = true)]
async fn all_pods_are_proven_by_a_full_list() {
    let bed = Bed::settled(|w| {
        w.muted = true;
        w.add_pod("a");
        w.add_pod("b");
    })
    .await;
    bed.world(|w| {
        w.remove_pod("a");
        w.exit("b-c", 4);
        w.add_pod("c");
    });
    let ticket = bed.handle.ticket();
    let all = bed.handle.all_newer_than(ticket).await.unwrap();
    let shown: Vec<_> = all.iter().map(|v| v.pod.to_string()).collect();
    assert_eq!(shown, ["ns/b", "ns/c"]);
    assert!(all.iter().all(|view| view.ticket > ticket));
    assert_eq!(all[0].containers[0].exit.as_ref().unwrap().exit_code, 4);
    bed.runtime.take_calls();
    let again = bed
        .handle
        .all_newer_than(bed.handle.ticket())
        .await
        .unwrap();
    assert_eq!(again.len(), 2);
    assert_eq!(
        bed.runtime.take_calls(),
        ["ListPodSandbox", "ListContainers"]
    );
}

#[tokio::test(start_paused = true)]
async fn a_full_list_begun_before_an_action_does_not_answer_for_it() {
    let bed = Bed::settled(|w| w.add_pod("a")).await;
    bed.world(|w| {
        w.list_delay = 5 * SECOND;
        w.muted = true;
    });
    let early = bed.handle.all_newer_than(bed.handle.ticket());
    let acting = async {
        pass(SECOND).await;
        bed.world(|w| w.add_pod("b"));
        bed.handle.all_newer_than(bed.handle.ticket()).await
    };
    let (early, late) = tokio::join!(early, acting);
    assert_eq!((early.unwrap().len(), late.unwrap().len()), (1, 2));
}

#[tokio::test(start_paused = true)]
async fn events_of_a_held_pod_wait_for_the_end_of_the_hold() {
    let bed = Bed::settled(|w| w.add_pod("a")).await;
    let uid = PodUid::from("a");
    let hold = bed.handle.hold(&uid);
    let second = bed.handle.hold(&uid);
    bed.world(|w| w.add_container("a", "a-c2"));
    pass(SECOND / 2).await;
    drop(second);
    pass(SECOND / 10).await;
    assert_eq!(bed.runtime.take_calls(), [""; 0]);
    drop(hold);
    pass(SECOND / 10).await;
    let calls = bed.runtime.take_calls();
    assert_eq!(bed.count(&calls, "ListContainers a"), 1);
    // Who holds for long is overtaken, once a second.
    let _hold = bed.handle.hold(&uid);
    for _ in 0..40 {
        bed.world(|w| w.emit("a", "a-c"));
        pass(SECOND / 10).await;
    }
    let calls = bed.runtime.take_calls();
    let looks = bed.count(&calls, "ListContainers a");
    assert!((3..=4).contains(&looks), "{looks}");
}

#[tokio::test(start_paused = true)]
async fn a_request_is_a_hint() {
    let mut bed = Bed::settled(|w| {
        w.muted = true;
        w.add_pod("a");
    })
    .await;
    bed.world(|w| w.exit("a-c", 1));
    bed.handle.request(&"a".into());
    assert!(bed.change(SECOND / 10).await.is_some());
}

#[tokio::test(start_paused = true)]
async fn the_last_words_of_a_container_are_read_when_it_is_first_seen_exited() {
    let mut bed = Bed::settled(|w| {
        w.add_pod("a");
        w.mounts = vec![v1::Mount {
            container_path: "/dev/termination-log".to_owned(),
            host_path: "/pods/a/message".to_owned(),
            ..Default::default()
        }];
    })
    .await;
    bed.files.write("/pods/a/message", b"out of cheese");
    bed.world(|w| w.exit("a-c", 1));
    let change = bed.change(SECOND).await.unwrap();
    let exit = change.observed.containers[0].exit.clone().unwrap();
    assert_eq!(exit.message, "out of cheese");
    bed.files.write("/pods/a/message", b"something else");
    let view = bed.newest("a").await.unwrap();
    assert_eq!(view.containers[0].exit.as_ref(), Some(&exit));
}

#[tokio::test(start_paused = true)]
async fn nobody_waits_for_an_observer_that_is_gone() {
    let mut bed = Bed::settled(|w| {
        w.add_pod("a");
        w.hanging.insert("ListContainers b".to_owned());
    })
    .await;
    let waiting = bed.handle.clone();
    let mut waiting = spawned(async move {
        let ticket = waiting.ticket();
        waiting.newer_than(&pod("b"), ticket).await
    });
    pass(SECOND).await;
    bed.tasks.shutdown().await;
    let answer = waiting.join_next().await.unwrap().unwrap();
    assert_eq!(answer, Err(ObserveError::Stopped));
    assert_eq!(bed.newest("a").await, Err(ObserveError::Stopped));
    assert_eq!(
        bed.handle.all_newer_than(bed.handle.ticket()).await,
        Err(ObserveError::Stopped)
    );
    drop(bed.handle.hold(&"a".into()));
}

fn spawned<T: Send + 'static>(task: impl Future<Output = T> + Send + 'static) -> JoinSet<T> {
    let mut tasks = JoinSet::new();
    tasks.spawn(task);
    tasks
}

#[tokio::test(start_paused = true)]
async fn two_runs_of_one_seed_are_the_same() {
    async fn trace() -> Vec<String> {
        let bed = Bed::start(|w| (0..20).for_each(|n| w.add_pod(&format!("p{n}"))));
        for n in 0..20 {
            pass(7 * SECOND).await;
            bed.world(|w| {
                w.exit(&format!("p{n}-c"), n);
                if n == 10 {
                    w.cut_stream();
                }
            });
        }
        pass(LONG).await;
        bed.runtime.take_calls()
    }
    assert_eq!(trace().await, trace().await);
}
