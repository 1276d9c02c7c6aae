//! Gates before the runtime.
//!
//! The start gate: how many sandboxes and containers are being started at a time. A runtime that
//! is asked for everything at once finishes later than one asked for a few at a time.
//!
//! Starts whose images lie ready go first; inside a class the order is first come, first served.
//! A wait may be given up at any moment, also when the permit is already on its way.
//!
//! A start that turns out to be slow lends its place to the next who waits, and goes on without one: what hangs holds
//! nobody up. What does not hang is never more than fits, and what does comes in no faster than so many at a time.
//!
//! The stop gate: how many sandboxes are being taken down at a time. Containers are stopped without one, for their grace
//! runs; but of many pods that end together some are to be over soon, and told of, instead of all at the very end.
//!
//! Where more pods begin or end than fit at a time there is a crowd, and others leave it what the machine can do.

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use futures::poll;
use tokio::sync::{Semaphore, oneshot, watch};
use tokio::time::{Instant, sleep_until, timeout};

/// From here on a start is slow. A sandbox takes a second or two, and several on a small machine whose pods all begin
/// at once: those are to stay few at a time, and hardly ever come here. What hangs does so for minutes (a network that
/// is not there yet, until the call's deadline), so others can wait that long for it to show.
const SLOW_START: Duration = Duration::from_secs(5);
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
pub(crate) struct StartGate(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Held by the one waiter who watches the time for all of them.
    clock: tokio::sync::Mutex<()>,
}

#[derive(Debug)]
struct State {
    width: usize,
    /// The places that are taken: permits by their number, and since when. The first is the oldest.
    held: BTreeMap<u64, Instant>,
    issued: u64,
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

/// The right to start something. Its place is given back when it is dropped, unless it was lent before.
#[derive(Debug)]
pub(crate) struct StartPermit {
    gate: Option<StartGate>,
    number: u64,
}

impl StartGate {
    /// At least one start is let through at a time.
    pub(crate) fn new(width: usize, crowd: Crowd) -> Self {
        Self(Arc::new(Shared {
            state: Mutex::new(State {
                width: width.max(1),
                held: BTreeMap::new(),
                issued: 0,
                cached: VecDeque::new(),
                uncached: VecDeque::new(),
                crowd,
                crowded: false,
            }),
            clock: tokio::sync::Mutex::default(),
        }))
    }

    pub(crate) async fn acquire(&self, class: StartClass) -> StartPermit {
        let ticket = match self.queue(class) {
            Ok(permit) => return permit,
            Err(ticket) => ticket,
        };
        tokio::select! {
            biased;
            permit = ticket => match permit {
                Ok(permit) => permit,
                // The sender lives in the queue until it sends; without one there is nothing to hold.
                Err(_) => StartPermit { gate: None, number: 0 },
            },
            never = self.lend() => match never {},
        }
    }

    /// A permit if there is a place, else what will bring one.
    fn queue(&self, class: StartClass) -> Result<StartPermit, oneshot::Receiver<StartPermit>> {
        let mut state = self.state();
        if state.held.len() < state.width {
            return Ok(self.permit(&mut state));
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
        Err(receiver)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn permit(&self, state: &mut State) -> StartPermit {
        let number = state.issued;
        state.issued += 1;
        state.held.insert(number, Instant::now());
        StartPermit {
            gate: Some(self.clone()),
            number,
        }
    }

    /// Lends the places of slow starts, for as long as this is waited for. All waiters wait for it, and one of them
    /// does it: when that one leaves, another takes over. So there is one timer while anybody waits, and else none.
    async fn lend(&self) -> Infallible {
        let _clock = self.0.clock.lock().await;
        loop {
            match self.lend_slow() {
                Some(next) => sleep_until(next).await,
                // Whoever waits would have such a place.
                None => std::future::pending().await,
            }
        }
    }

    /// When the oldest of those that are not slow yet will be.
    fn lend_slow(&self) -> Option<Instant> {
        loop {
            let (number, slow) = {
                let state = self.state();
                let (number, since) = state.held.first_key_value()?;
                (*number, *since + SLOW_START)
            };
            if slow > Instant::now() {
                return Some(slow);
            }
            self.pass_on(number);
        }
    }

    /// Passes a permit's place on to the next waiter, or keeps it free. Each place is passed on once.
    fn pass_on(&self, mut number: u64) {
        while let Some((waiter, permit)) = self.exchange(number) {
            match waiter.send(permit) {
                Ok(()) => return,
                // That waiter gave up. Its permit must not pass itself on too.
                Err(mut refused) => {
                    refused.gate = None;
                    number = refused.number;
                }
            }
        }
    }

    /// Takes a permit's place back, and gives it to the next waiter. None if it was taken back before, or nobody waits.
    fn exchange(&self, number: u64) -> Option<(oneshot::Sender<StartPermit>, StartPermit)> {
        let mut state = self.state();
        state.held.remove(&number)?;
        let next = state.next()?;
        Some((next, self.permit(&mut state)))
    }
}

impl Drop for StartPermit {
    fn drop(&mut self) {
        if let Some(gate) = self.gate.take() {
            gate.pass_on(self.number);
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

    /// Waits for a permit unless one is held, be its place lent or not: what was slow goes on.
    pub(crate) async fn enter(&mut self, class: StartClass) {
        if self.permit.is_none() {
            self.permit = Some(self.gate.acquire(class).await);
        }
    }

    pub(crate) fn leave(&mut self) {
        self.permit = None;
    }

    /// Does what is no start. The permit is put down if that is not done at once: it may wait for others.
    pub(crate) async fn aside<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        match poll!(work.as_mut()) {
            Poll::Ready(done) => done,
            Poll::Pending => {
                self.leave();
                work.await
            }
        }
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
mod tests;
