//! A runtime that hangs, fails, forgets to tell, or changes between two calls.

use super::*;

#[tokio::test(start_paused = true)]
async fn lost_events_are_made_up_for_by_the_audit() {
    let mut bed = Bed::settled(|w| w.add_pod("a")).await;
    let before = bed.handle.stats().discrepancies;
    bed.world(|w| {
        w.muted = true;
        w.exit("a-c", 1);
    });
    let change = bed.change(61 * SECOND).await.unwrap();
    assert_eq!(change.died, ["a-c".into()]);
    assert_eq!(bed.handle.stats().discrepancies - before, 1);
    bed.world(|w| w.remove_pod("a"));
    let change = bed.change(61 * SECOND).await.unwrap();
    assert!(change.observed.is_absent());
    assert_eq!(bed.handle.latest(&"a".into()), None);
}

#[tokio::test(start_paused = true)]
async fn a_lost_stream_is_bridged_by_fast_audits_and_comes_back() {
    let mut bed = Bed::settled(|w| w.add_pod("a")).await;
    let mut health = bed.handle.health();
    assert!(health.borrow_and_update().events);
    bed.world(|w| {
        w.events = Events::Refused;
        w.cut_stream();
    });
    health.wait_for(|h| !h.events).await.unwrap();
    pass(10 * SECOND).await;
    bed.world(|w| w.exit("a-c", 1));
    let change = bed.change(SECOND + SECOND / 2).await.unwrap();
    assert_eq!(change.died, ["a-c".into()]);
    assert!(health.borrow().is_healthy(), "without events, but healthy");

    bed.world(|w| w.events = Events::Flow);
    timeout(31 * SECOND, health.wait_for(|h| h.events))
        .await
        .expect("events never came back")
        .unwrap();
    pass(SECOND).await;
    bed.runtime.take_calls();
    pass(25 * SECOND).await;
    assert_eq!(bed.runtime.take_calls(), [""; 0], "slow audits again");
    bed.world(|w| w.add_container("a", "a-c2"));
    assert!(bed.change(SECOND / 10).await.is_some());
    assert_eq!(bed.handle.stats().stream_losses, 1);
}

#[tokio::test(start_paused = true)]
async fn a_status_call_that_hangs_degrades_its_pod_alone() {
    let bed = Bed::settled(|w| {
        w.add_pod("a");
        w.add_pod("b");
    })
    .await;
    bed.world(|w| {
        w.hanging.insert("ContainerStatus a-c".to_owned());
        w.exit("a-c", 1);
    });
    let error = bed.newest("a").await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "ContainerStatus of container a-c of pod ns/a (a): no answer within 30s"
    );
    let stuck = bed.newest("a");
    let others = async {
        assert!(!bed.newest("b").await.unwrap().is_absent());
        bed.world(|w| w.exit("b-c", 2));
        let view = bed.newest("b").await.unwrap();
        assert_eq!(states(&view), [("b-c".to_owned(), ContainerState::Exited)]);
    };
    let others = timeout(SECOND, others);
    let (stuck, others) = tokio::join!(stuck, others);
    assert!(stuck.is_err());
    others.expect("another pod had to wait");

    // Whoever wants all pods gets the stuck one as the list shows it.
    let all = bed
        .handle
        .all_newer_than(bed.handle.ticket())
        .await
        .unwrap();
    let shown: Vec<_> = all.iter().map(|v| (v.pod.to_string(), states(v))).collect();
    let exited = |id: &str| vec![(id.to_owned(), ContainerState::Exited)];
    assert_eq!(
        shown,
        [
            ("ns/a".to_owned(), exited("a-c")),
            ("ns/b".to_owned(), exited("b-c"))
        ]
    );
    assert!(all[0].containers[0].exit.is_none());
    assert!(bed.handle.health().borrow().is_healthy());

    // It recovers by itself.
    bed.world(|w| w.hanging.clear());
    pass(61 * SECOND).await;
    let view = bed.handle.latest(&"a".into()).unwrap();
    assert!(view.containers[0].exit.is_some());
}

#[tokio::test(start_paused = true)]
async fn many_stuck_pods_leave_room_for_the_others() {
    let bed = Bed::start(|w| {
        w.add_pod("z");
        for n in 0..40 {
            w.add_pod(&format!("stuck-{n}"));
            w.hanging.insert(format!("ContainerStatus stuck-{n}-c"));
        }
    });
    let view = timeout(10 * SECOND, bed.newest("z")).await;
    assert!(!view.expect("no place was left").unwrap().is_absent());
}

/// What is told of all pods as of now, by those who cannot wait for a look to be given up.
async fn soon(bed: &Bed) -> Vec<Arc<ObservedPod>> {
    let ticket = bed.handle.ticket();
    let all = timeout(10 * SECOND, bed.handle.all_newer_than(ticket)).await;
    let all = all.expect("all had to wait for one").unwrap();
    assert!(all.iter().all(|view| view.ticket > ticket));
    all
}

fn uids(all: &[Arc<ObservedPod>]) -> Vec<&str> {
    all.iter().map(|view| view.pod.uid.as_str()).collect()
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_was_stuck_before_the_first_list_is_told_of_as_alive_and_soon() {
    let bed = Bed::start(|w| {
        w.add_pod("a");
        w.add_pod("b");
        let answer = "ContainerStatus a-c".to_owned();
        w.slow.insert(answer, 20 * SECOND);
    });
    let before = bed.handle.ticket();
    let all = soon(&bed).await;
    assert_eq!(uids(&all), ["a", "b"]);
    assert!(all.iter().all(|view| view.is_alive()));
    assert_eq!(all[0].pod, pod("a"));
    assert!(all[0].ips().is_empty(), "no more than the list tells");
    assert_eq!(all[1].ips(), ["10.0.0.1"]);

    // That is no view of its own: whoever acts on it waits for its look, which goes on.
    assert_eq!(bed.handle.latest(&"a".into()), None);
    let own = bed.handle.newer_than(&pod("a"), before).await.unwrap();
    assert_eq!(own.ips(), ["10.0.0.1"]);
    let calls = bed.runtime.take_calls();
    assert_eq!(bed.count(&calls, "ContainerStatus a-c"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_stuck_pod_is_told_of_as_the_newest_list_shows_it() {
    let bed = Bed::settled(|w| {
        w.add_pod("a");
        w.add_pod("b");
    })
    .await;
    bed.world(|w| {
        w.hanging.insert("ContainerStatus a-c".to_owned());
        w.exit("a-c", 1);
    });
    let all = soon(&bed).await;
    let exited = vec![("a-c".to_owned(), ContainerState::Exited)];
    assert_eq!(states(&all[0]), exited);
    assert_eq!(all[0].containers[0].exit, None);
    assert_eq!(all[0].ips(), ["10.0.0.1"], "known from before");
    // A look that began before what is asked for, and that is slow already.
    bed.world(|w| w.add_container("a", "a-c2"));
    assert_eq!(soon(&bed).await[0].containers.len(), 2);
    bed.world(|w| w.remove_pod("a"));
    assert_eq!(uids(&soon(&bed).await), ["b"]);
}

#[tokio::test(start_paused = true)]
async fn many_stuck_pods_are_told_of_soon() {
    let bed = Bed::start(|w| {
        w.add_pod("z");
        for n in 0..40 {
            w.add_pod(&format!("stuck-{n}"));
            w.hanging.insert(format!("ContainerStatus stuck-{n}-c"));
        }
    });
    let all = soon(&bed).await;
    assert_eq!(all.len(), 41);
    assert!(all.iter().all(|view| view.is_alive()));
    assert_eq!(all[40].ips(), ["10.0.0.1"]);
}

#[tokio::test(start_paused = true)]
async fn pods_that_wait_for_their_turn_to_be_looked_at_are_waited_for() {
    let bed = Bed::start(|w| {
        for n in 0..40 {
            w.add_pod(&format!("p{n}"));
            let answer = format!("ContainerStatus p{n}-c");
            w.slow.insert(answer, SECOND / 2);
        }
    });
    let all = soon(&bed).await;
    assert_eq!(all.len(), 40);
    assert!(all.iter().all(|view| view.ips() == ["10.0.0.1"]));
}

#[tokio::test(start_paused = true)]
async fn an_exit_between_list_and_status_is_seen_at_once() {
    let bed = Bed::settled(|w| w.add_pod("a")).await;
    bed.world(|w| w.after_list = Some(Box::new(|w| w.exit("a-c", 9))));
    let view = bed.newest("a").await.unwrap();
    assert_eq!(view.containers[0].exit.as_ref().unwrap().exit_code, 9);
}

#[tokio::test(start_paused = true)]
async fn what_vanishes_between_list_and_status_is_listed_again() {
    let bed = Bed::settled(|w| w.add_pod("a")).await;
    bed.world(|w| {
        let vanish = |w: &mut World| drop(w.containers.remove("a-c"));
        w.after_list = Some(Box::new(vanish));
    });
    let view = bed.newest("a").await.unwrap();
    assert_eq!(states(&view), []);
    assert_eq!(view.sandboxes.len(), 1);
    let calls = bed.runtime.take_calls();
    assert_eq!(bed.count(&calls, "ListContainers a"), 2);
}

#[tokio::test(start_paused = true)]
async fn a_runtime_that_is_down_is_unhealthy_until_it_is_back() {
    let mut bed = Bed::settled(|w| w.add_pod("a")).await;
    let mut health = bed.handle.health();
    bed.world(|w| {
        w.down = true;
        w.cut_stream();
    });
    let error = bed.newest("a").await.unwrap_err();
    assert!(error.is_unavailable());
    assert!(
        error
            .to_string()
            .starts_with("ListPodSandbox of pod ns/a (a): rpc error:")
    );
    assert!(
        bed.handle
            .all_newer_than(bed.handle.ticket())
            .await
            .is_err()
    );
    let down = health
        .wait_for(|h| h.error.is_some())
        .await
        .unwrap()
        .clone();
    assert!(!down.is_healthy());
    assert!(
        down.error
            .unwrap()
            .starts_with("Version: rpc error: code = Unavailable")
    );
    health
        .wait_for(|h| h.overdue.is_some())
        .await
        .expect("the audit is overdue in the end");
    assert!(
        bed.handle.latest(&"a".into()).is_some(),
        "down is not absent"
    );

    bed.world(|w| {
        w.down = false;
        w.exit("a-c", 1);
    });
    timeout(60 * SECOND, health.wait_for(|h| h.is_healthy() && h.events))
        .await
        .expect("never healthy again")
        .unwrap();
    assert!(bed.change(31 * SECOND).await.is_some());
}

#[tokio::test(start_paused = true)]
async fn lists_that_hang_are_told_from_a_runtime_that_is_down() {
    let bed = Bed::settled(|w| w.add_pod("a")).await;
    bed.world(|w| assert!(w.hanging.insert("ListContainers".to_owned())));
    let mut health = bed.handle.health();
    let begun = tokio::time::Instant::now();
    let late = health.wait_for(|h| h.overdue.is_some()).await.unwrap();
    let overdue = late.overdue.clone().unwrap();
    drop(late);
    assert_eq!(
        overdue.culprit,
        "ListContainers of all pods: no answer within 30s"
    );
    assert!(overdue.since <= begun);
    assert_eq!(health.borrow().error, None, "it answers the cheap call");
    assert!(!health.borrow().is_healthy());
    bed.world(|w| w.hanging.clear());
    health.wait_for(|h| h.is_healthy()).await.unwrap();
}
