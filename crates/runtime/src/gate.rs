//! Gates before the runtime.
//!
//! The start gate: how many sandboxes and containers are being started at a time. A runtime that
//! is asked for everything at once finishes later than one asked for a few at a time.
//!
//! Starts whose images lie ready go first; inside a class the order is first come, first served.
//! A wait may be given up at any moment, also when the permit is already on its way.
//!
//! The stop gate: how many sandboxes are being taken down at a time. Containers are stopped without one, for their grace
//! runs; but of many pods that end together some are to be over soon, and told of, instead of all at the very end.
//!
//! Where more pods begin or end than fit at a time there is a crowd, and others leave it what the machine can do.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Semaphore, oneshot, watch};
use tokio::time::timeout;

/// From here on a stop is slow.
const SLOW_STOP: Duration = Duration::from_secs(1);
/// From here on the end of a pod takes its time, and is no reason for others to wait.
const SLOW_END: Duration = Duration::from_secs(10);

/// How many gates have a crowd before them. Clones count together.
#[derive(Clone, Debug, Default)]
pub(crate) struct Crowd(watch::Sender<usize>);

impl Crowd {
    pub(crate) fn gates(&self) -> watch::Receiver<usize> {
        self.0.subscribe()
    }

    fn gathers(&self) {
        self.0.send_modify(|gates| *gates += 1);
    }

    fn disperses(&self) {
        self.0.send_modify(|gates| *gates -= 1);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StartClass {
    /// Every image is on the node.
    Cached,
    /// Some image still has to be fetched.
    Uncached,
}

/// Clones share one gate.
#[derive(Clone, Debug)]
pub(crate) struct StartGate {
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    free: usize,
    cached: VecDeque<oneshot::Sender<StartPermit>>,
    uncached: VecDeque<oneshot::Sender<StartPermit>>,
    /// Told of while somebody waits.
    crowd: Crowd,
    crowded: bool,
}

impl State {
    fn next(&mut self) -> Option<oneshot::Sender<StartPermit>> {
        let next = self
            .cached
            .pop_front()
            .or_else(|| self.uncached.pop_front());
        let waits = !(self.cached.is_empty() && self.uncached.is_empty());
        if !waits && std::mem::replace(&mut self.crowded, false) {
            self.crowd.disperses();
        }
        next
    }
}

/// The right to start something; given back when dropped.
#[derive(Debug)]
pub(crate) struct StartPermit {
    gate: Option<StartGate>,
}

impl StartGate {
    /// At least one start is let through at a time.
    pub(crate) fn new(width: usize, crowd: Crowd) -> Self {
        Self {
            state: Arc::new(Mutex::new(State {
                free: width.max(1),
                cached: VecDeque::new(),
                uncached: VecDeque::new(),
                crowd,
                crowded: false,
            })),
        }
    }

    pub(crate) async fn acquire(&self, class: StartClass) -> StartPermit {
        let ticket = {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            if state.free > 0 {
                state.free -= 1;
                return self.permit();
            }
            let (sender, receiver) = oneshot::channel();
            let queue = match class {
                StartClass::Cached => &mut state.cached,
                StartClass::Uncached => &mut state.uncached,
            };
            // Those who gave up leave no trace, so the queue is as long as its waiters.
            queue.retain(|waiter| !waiter.is_closed());
            queue.push_back(sender);
            if !std::mem::replace(&mut state.crowded, true) {
                state.crowd.gathers();
            }
            receiver
        };
        match ticket.await {
            Ok(permit) => permit,
            // The sender lives in the queue until it sends; without one there is nothing to hold.
            Err(_) => StartPermit { gate: None },
        }
    }

    fn permit(&self) -> StartPermit {
        StartPermit {
            gate: Some(self.clone()),
        }
    }

    /// Passes a permit on to the next waiter, or keeps it.
    fn pass_on(&self) {
        loop {
            let next = {
                let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
                match state.next() {
                    Some(next) => next,
                    None => {
                        state.free += 1;
                        return;
                    }
                }
            };
            match next.send(self.permit()) {
                Ok(()) => return,
                // That waiter gave up. Its permit must not pass itself on too.
                Err(mut refused) => refused.gate = None,
            }
        }
    }
}

impl Drop for StartPermit {
    fn drop(&mut self) {
        if let Some(gate) = self.gate.take() {
            gate.pass_on();
        }
    }
}

/// What one sync holds of the gate: nothing, or a permit it can put down while it waits.
pub(crate) struct GateHold {
    gate: StartGate,
    permit: Option<StartPermit>,
}

impl GateHold {
    pub(crate) fn new(gate: StartGate) -> Self {
        Self { gate, permit: None }
    }

    /// Waits for a permit unless one is held.
    pub(crate) async fn enter(&mut self, class: StartClass) {
        if self.permit.is_none() {
            self.permit = Some(self.gate.acquire(class).await);
        }
    }

    pub(crate) fn leave(&mut self) {
        self.permit = None;
    }
}

pub(crate) struct StopGate {
    width: usize,
    places: Semaphore,
    ending: Mutex<usize>,
    crowd: Crowd,
}

/// One pod that ends.
struct Ending<'a>(&'a StopGate);

impl StopGate {
    /// At least one at a time.
    pub(crate) fn new(width: usize, crowd: Crowd) -> Self {
        let width = width.max(1);
        Self {
            width,
            places: Semaphore::new(width),
            ending: Mutex::default(),
            crowd,
        }
    }

    /// Makes the call when its turn has come. A slow one gives its place to the next: what hangs holds nobody up.
    pub(crate) async fn pass<T>(&self, call: impl Future<Output = T>) -> T {
        // Nobody closes it; if somebody did, there would be nothing to wait for.
        let place = self.places.acquire().await;
        holding(place, SLOW_STOP, call).await
    }

    /// Ends a pod. It waits for nobody, but more than fit at a time are a crowd.
    pub(crate) async fn end<T>(&self, work: impl Future<Output = T>) -> T {
        holding(Ending::begin(self), SLOW_END, work).await
    }
}

impl<'a> Ending<'a> {
    fn begin(gate: &'a StopGate) -> Self {
        let mut ending = gate.ending.lock().unwrap_or_else(PoisonError::into_inner);
        *ending += 1;
        if *ending == gate.width + 1 {
            gate.crowd.gathers();
        }
        Self(gate)
    }
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        let gate = self.0;
        let mut ending = gate.ending.lock().unwrap_or_else(PoisonError::into_inner);
        *ending -= 1;
        if *ending == gate.width {
            gate.crowd.disperses();
        }
    }
}

/// Works, and keeps the place until that is done or turns out to be slow.
async fn holding<T>(place: impl Sized, slow: Duration, work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    match timeout(slow, &mut work).await {
        Ok(done) => done,
        Err(_) => {
            drop(place);
            work.await
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

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
        let state = gate.state.lock().unwrap();
        assert_eq!((state.free, state.cached.len()), (1, 0));
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
}
