use std::cell::Cell;

use super::*;
use futures::FutureExt;
use futures::future::{join, join_all};
use tokio::time::sleep;

#[tokio::test]
async fn only_so_many_at_a_time() {
    let gate = StartGate::new(2, Crowd::default());
    let a = gate.acquire(StartClass::Cached).await;
    let _b = gate.acquire(StartClass::Uncached).await;
    let mut third = pin!(gate.acquire(StartClass::Cached));
    assert!(third.as_mut().now_or_never().is_none());
    drop(a);
    assert!(third.as_mut().now_or_never().is_some());
}

#[tokio::test]
async fn a_crowd_is_told_until_nobody_waits() {
    let crowd = Crowd::default();
    let gate = StartGate::new(1, crowd.clone());
    let gates = crowd.gates();
    let held = gate.acquire(StartClass::Cached).await;
    assert_eq!(*gates.borrow(), 0);
    let mut second = Box::pin(gate.acquire(StartClass::Cached));
    assert!(second.as_mut().now_or_never().is_none());
    assert_eq!(*gates.borrow(), 1);
    let mut third = pin!(gate.acquire(StartClass::Uncached));
    assert!(third.as_mut().now_or_never().is_none());
    drop(second);
    assert_eq!(*gates.borrow(), 1);
    drop(held);
    assert!(third.as_mut().now_or_never().is_some());
    assert_eq!(*gates.borrow(), 0);
}

#[tokio::test(start_paused = true)]
async fn many_ends_are_a_crowd_but_not_those_that_take_their_time() {
    let crowd = Crowd::default();
    let gate = StopGate::new(2, crowd.clone());
    let gates = crowd.gates();
    let mut first = Box::pin(gate.end(std::future::pending::<()>()));
    let mut second = Box::pin(gate.end(std::future::pending::<()>()));
    assert!((&mut first).now_or_never().is_none());
    assert!((&mut second).now_or_never().is_none());
    assert_eq!(*gates.borrow(), 0);
    let third = async { tokio::time::sleep(SLOW_END / 2).await };
    let mut third = Box::pin(gate.end(third));
    assert!((&mut third).now_or_never().is_none());
    assert_eq!(*gates.borrow(), 1);
    third.await;
    assert_eq!(*gates.borrow(), 0);
    let mut fourth = Box::pin(gate.end(std::future::pending::<()>()));
    assert!((&mut fourth).now_or_never().is_none());
    assert_eq!(*gates.borrow(), 1);
    // The first two hang, and the crowd is over without their end.
    let _ = timeout(SLOW_END, futures::future::join(first, second)).await;
    assert_eq!(*gates.borrow(), 0);
    drop(fourth);
    assert_eq!(*gate.ending.lock().unwrap(), 0);
}

#[tokio::test]
async fn cached_first_then_in_order() {
    let gate = StartGate::new(1, Crowd::default());
    let held = gate.acquire(StartClass::Cached).await;
    let mut u1 = pin!(gate.acquire(StartClass::Uncached));
    let mut u2 = pin!(gate.acquire(StartClass::Uncached));
    let mut c1 = pin!(gate.acquire(StartClass::Cached));
    let mut c2 = pin!(gate.acquire(StartClass::Cached));
    assert!(u1.as_mut().now_or_never().is_none());
    assert!(u2.as_mut().now_or_never().is_none());
    assert!(c1.as_mut().now_or_never().is_none());
    assert!(c2.as_mut().now_or_never().is_none());
    drop(held);
    assert!(u1.as_mut().now_or_never().is_none());
    assert!(c2.as_mut().now_or_never().is_none());
    drop(c1.as_mut().now_or_never().expect("first cached"));
    drop(c2.as_mut().now_or_never().expect("second cached"));
    assert!(u2.as_mut().now_or_never().is_none());
    drop(u1.as_mut().now_or_never().expect("first uncached"));
    assert!(u2.as_mut().now_or_never().is_some());
}

#[tokio::test]
async fn waits_given_up_lose_no_permit() {
    let gate = StartGate::new(1, Crowd::default());
    let held = gate.acquire(StartClass::Cached).await;
    // One gives up while it waits, one when the permit has already been sent to it.
    let mut early = Box::pin(gate.acquire(StartClass::Cached));
    assert!(early.as_mut().now_or_never().is_none());
    let mut late = Box::pin(gate.acquire(StartClass::Cached));
    assert!(late.as_mut().now_or_never().is_none());
    drop(early);
    drop(held);
    drop(late);
    let permit = gate.acquire(StartClass::Uncached).now_or_never();
    assert!(permit.is_some());
    drop(permit);
    let state = gate.state();
    assert_eq!((state.held.len(), state.cached.len()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn stops_come_one_after_the_other_and_slow_ones_let_others_pass() {
    let gate = StopGate::new(2, Crowd::default());
    let begun = tokio::time::Instant::now();
    let stop = async |millis| {
        let call = async { tokio::time::sleep(Duration::from_millis(millis)).await };
        gate.pass(call).await;
        begun.elapsed().as_millis()
    };
    // The first hangs, and keeps its place for a second; the others share what is left.
    let all = futures::join!(stop(60_000), stop(400), stop(400), stop(400), stop(400));
    assert_eq!(all, (60_000, 400, 800, 1200, 1400));
    assert_eq!(gate.places.available_permits(), 2);
}

#[tokio::test]
async fn a_stop_that_is_given_up_leaves_its_place() {
    let gate = StopGate::new(1, Crowd::default());
    let hangs = gate.pass(std::future::pending::<()>());
    assert!(hangs.now_or_never().is_none());
    assert_eq!(gate.pass(async { 7 }).await, 7);
}

/// Seconds since then.
fn at(begun: Instant) -> u64 {
    begun.elapsed().as_secs()
}

const SLOW: u64 = SLOW_START.as_secs();

#[tokio::test(start_paused = true)]
async fn a_slow_start_lends_its_place_and_has_none_to_give_back() {
    let gate = StartGate::new(2, Crowd::default());
    let begun = Instant::now();
    let slow = [
        gate.acquire(StartClass::Cached).await,
        gate.acquire(StartClass::Uncached).await,
    ];
    let third = gate.acquire(StartClass::Uncached).await;
    let fourth = gate.acquire(StartClass::Cached).await;
    assert_eq!(at(begun), SLOW);
    let mut fifth = Box::pin(gate.acquire(StartClass::Cached));
    assert!((&mut fifth).now_or_never().is_none());
    drop(slow);
    assert!((&mut fifth).now_or_never().is_none());
    drop(third);
    let fifth = (&mut fifth).now_or_never();
    assert!(fifth.is_some());
    drop((fourth, fifth));
    assert_eq!(gate.state().held.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn each_start_has_its_own_time() {
    let gate = StartGate::new(1, Crowd::default());
    let begun = Instant::now();
    let hold = async |seconds| {
        let _permit = gate.acquire(StartClass::Cached).await;
        let since = at(begun);
        sleep(Duration::from_secs(seconds)).await;
        since
    };
    // The second takes over from the first before that is slow, and is slow itself.
    let all = futures::join!(hold(SLOW - 2), hold(3600), hold(1), hold(1));
    let lent = 2 * SLOW - 2;
    assert_eq!(all, (0, SLOW - 2, lent, lent + 1));
}

#[tokio::test(start_paused = true)]
async fn what_hangs_comes_in_no_faster_and_what_does_not_is_as_few_as_ever() {
    let gate = StartGate::new(2, Crowd::default());
    let begun = Instant::now();
    let hang = async || {
        let _permit = gate.acquire(StartClass::Cached).await;
        let since = at(begun);
        sleep(Duration::from_secs(3600)).await;
        since
    };
    let (running, most) = (Cell::new(0), Cell::new(0));
    let start = async || {
        let _permit = gate.acquire(StartClass::Uncached).await;
        running.set(running.get() + 1);
        most.set(running.get().max(most.get()));
        sleep(Duration::from_secs(1)).await;
        running.set(running.get() - 1);
        at(begun)
    };
    let hanging = join_all((0..6).map(|_| hang()));
    let healthy = join_all((0..6).map(|_| start()));
    let (hanging, healthy) = join(hanging, healthy).await;
    assert_eq!(hanging, [0, 0, SLOW, SLOW, 2 * SLOW, 2 * SLOW]);
    let first = 3 * SLOW + 1;
    let pairs = [first, first + 1, first + 2];
    assert_eq!(healthy, pairs.map(|at| [at; 2]).concat());
    assert_eq!(most.get(), 2);
    assert_eq!(gate.state().held.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn lent_places_go_to_the_same_classes_first() {
    let gate = StartGate::new(1, Crowd::default());
    let begun = Instant::now();
    let _slow = gate.acquire(StartClass::Cached).await;
    let hang = async |class| {
        let _permit = gate.acquire(class).await;
        let since = at(begun);
        sleep(Duration::from_secs(3600)).await;
        since
    };
    // The one who came first, and so watches the time, has its turn last.
    let all = futures::join!(
        hang(StartClass::Uncached),
        hang(StartClass::Cached),
        hang(StartClass::Cached)
    );
    assert_eq!(all, (3 * SLOW, SLOW, 2 * SLOW));
}

#[tokio::test(start_paused = true)]
async fn when_the_one_who_watches_the_time_goes_another_does() {
    let gate = StartGate::new(1, Crowd::default());
    let begun = Instant::now();
    let _slow = gate.acquire(StartClass::Cached).await;
    let mut watches = Box::pin(gate.acquire(StartClass::Cached));
    let mut second = Box::pin(gate.acquire(StartClass::Cached));
    let both = join(&mut watches, &mut second);
    assert!(timeout(SLOW_START / 2, both).await.is_err());
    drop(watches);
    let _second = second.await;
    assert_eq!(at(begun), SLOW);
    assert!(gate.0.clock.try_lock().is_ok(), "nobody waits");
}

#[tokio::test(start_paused = true)]
async fn waits_given_up_lose_no_lent_place() {
    let crowd = Crowd::default();
    let gate = StartGate::new(1, crowd.clone());
    let slow = gate.acquire(StartClass::Cached).await;
    let mut second = Box::pin(gate.acquire(StartClass::Cached));
    assert!((&mut second).now_or_never().is_none());
    let mut third = Box::pin(gate.acquire(StartClass::Cached));
    assert!((&mut third).now_or_never().is_none());
    sleep(SLOW_START).await;
    // The place has been sent to the second, who does not look any more.
    assert!(gate.lend_slow().is_some());
    assert_eq!(*crowd.gates().borrow(), 1);
    drop(second);
    assert_eq!(*crowd.gates().borrow(), 0);
    let third = (&mut third).now_or_never();
    assert!(third.is_some());
    drop(slow);
    assert_eq!(gate.state().held.len(), 1);
    drop(third);
    assert_eq!(gate.state().held.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_crowd_is_over_when_the_last_has_a_lent_place() {
    let crowd = Crowd::default();
    let gate = StartGate::new(1, crowd.clone());
    let gates = crowd.gates();
    let slow = gate.acquire(StartClass::Cached).await;
    let mut second = Box::pin(gate.acquire(StartClass::Cached));
    assert!((&mut second).now_or_never().is_none());
    assert_eq!(*gates.borrow(), 1);
    let second = second.await;
    assert_eq!(*gates.borrow(), 0);
    drop(slow);
    assert_eq!(*gates.borrow(), 0);
    drop(second);
    assert!(gate.acquire(StartClass::Cached).now_or_never().is_some());
}

#[tokio::test(start_paused = true)]
async fn who_lent_its_place_goes_on() {
    let gate = StartGate::new(1, Crowd::default());
    let mut hold = GateHold::new(gate.clone());
    hold.enter(StartClass::Cached).await;
    let other = gate.acquire(StartClass::Cached).await;
    assert!(hold.enter(StartClass::Cached).now_or_never().is_some());
    // With what it puts down the place of the other is not free.
    hold.leave();
    assert!(hold.enter(StartClass::Cached).now_or_never().is_none());
    drop(other);
    assert!(hold.enter(StartClass::Cached).now_or_never().is_some());
}

#[tokio::test]
async fn a_permit_is_put_down_for_what_has_to_wait_only() {
    let gate = StartGate::new(1, Crowd::default());
    let mut hold = GateHold::new(gate.clone());
    hold.enter(StartClass::Cached).await;
    assert_eq!(hold.aside(async { 7 }).await, 7);
    assert!(gate.acquire(StartClass::Cached).now_or_never().is_none());
    let (tell, told) = oneshot::channel();
    let mut waits = Box::pin(hold.aside(told));
    assert!((&mut waits).now_or_never().is_none());
    assert!(gate.acquire(StartClass::Cached).now_or_never().is_some());
    tell.send(8).unwrap();
    assert_eq!(waits.await, Ok(8));
}
