//! Who stays at a door: connections with something under way do. Those without go when they have been idle for long, and
//! at once when somebody new needs the place; then those go as well who have not taken for long what is there for them.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use hyper::body::{Frame, SizeHint};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, sleep_until, timeout};

/// Who was told to go is given so long for the last words; then the next one is told as well.
const NEXT: Duration = Duration::from_millis(100);

/// What is known of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct State {
    under_way: usize,
    /// Those of them of which a piece waits to be taken.
    waiting: usize,
    /// When the last of these began to wait.
    still_since: Instant,
    idle_since: Instant,
    /// Somebody else needs the place.
    unwanted: bool,
    /// And for what is under way there is no hope.
    given_up: bool,
}

impl State {
    fn new(now: Instant) -> Self {
        Self {
            under_way: 0,
            waiting: 0,
            still_since: now,
            idle_since: now,
            unwanted: false,
            given_up: false,
        }
    }

    fn idle(&self) -> Option<Instant> {
        (self.under_way == 0).then_some(self.idle_since)
    }

    /// Since when nothing goes on but that the client does not take its answers. One of them that is taken, or still made,
    /// speaks for the others: they may be of different people, who share a connection.
    fn stuck(&self) -> Option<Instant> {
        let all_wait = self.under_way > 0 && self.waiting == self.under_way;
        all_wait.then_some(self.still_since)
    }
}

/// What is done for somebody new.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Choice {
    Goes(u64),
    /// Nobody has to go before then.
    NobodyBefore(Instant),
}

/// Who has been idle longest gives way, or else who has taken nothing for longest, if that is longer than the door's
/// patience. Those who were told before are on their way.
fn choose(present: impl Iterator<Item = (u64, State)>, now: Instant, patience: Duration) -> Choice {
    let present: Vec<_> = present.filter(|(_, state)| !state.unwanted).collect();
    let longest = |since: fn(&State) -> Option<Instant>| {
        let all = present.iter();
        all.filter_map(|(number, state)| Some((since(state)?, *number)))
            .min()
    };
    if let Some((_, number)) = longest(State::idle) {
        return Choice::Goes(number);
    }
    match longest(State::stuck) {
        Some((since, number)) if since + patience <= now => Choice::Goes(number),
        Some((since, _)) => Choice::NobodyBefore(since + patience),
        // Who gets stuck from now on.
        None => Choice::NobodyBefore(now + patience),
    }
}

/// The connections there are, by the order they came in.
struct Book {
    present: Mutex<(u64, BTreeMap<u64, watch::Sender<State>>)>,
    /// Rings when one of them has something less under way.
    idle: Notify,
    /// How long nothing may be under way, or nothing be taken of what is.
    patience: Duration,
}

impl Book {
    fn lock(&self) -> MutexGuard<'_, (u64, BTreeMap<u64, watch::Sender<State>>)> {
        self.present.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells somebody to go, or tells when to look again.
    fn shed(&self) -> Choice {
        let present = self.lock();
        let states = present.1.iter();
        let states = states.map(|(number, guest)| (*number, *guest.borrow()));
        let choice = choose(states, Instant::now(), self.patience);
        if let Choice::Goes(number) = choice
            && let Some(guest) = present.1.get(&number)
        {
            guest.send_modify(|state| {
                state.unwanted = true;
                state.given_up = state.stuck().is_some();
            });
        }
        choice
    }
}

/// A bounded number of connections.
pub(crate) struct Guests {
    places: Arc<Semaphore>,
    book: Arc<Book>,
}

impl Guests {
    pub(crate) fn new(places: usize, patience: Duration) -> Self {
        Self {
            places: Arc::new(Semaphore::new(places)),
            book: Arc::new(Book {
                present: Mutex::default(),
                idle: Notify::new(),
                patience,
            }),
        }
    }

    /// Waits for a place. If there is none, somebody gives way who is idle or takes nothing; others never do.
    pub(crate) async fn enter(&self) -> Guest {
        loop {
            // Asked for before the look, so that nobody becomes idle unnoticed between the two.
            let idle = self.book.idle.notified();
            let free = self.places.clone().acquire_owned();
            let choice = (self.places.available_permits() == 0).then(|| self.book.shed());
            let free = match choice {
                Some(Choice::NobodyBefore(then)) => tokio::select! {
                    biased;
                    free = free => Some(free),
                    () = idle => None,
                    () = sleep_until(then) => None,
                },
                Some(Choice::Goes(_)) | None => timeout(NEXT, free).await.ok(),
            };
            if let Some(Ok(place)) = free {
                return Guest::new(place, self.book.clone());
            }
        }
    }
}

/// A connection that has a place, until dropped.
pub(crate) struct Guest {
    _place: OwnedSemaphorePermit,
    number: u64,
    state: watch::Sender<State>,
    book: Arc<Book>,
}

impl Guest {
    fn new(place: OwnedSemaphorePermit, book: Arc<Book>) -> Self {
        let state = watch::Sender::new(State::new(Instant::now()));
        let mut present = book.lock();
        let number = present.0;
        present.0 += 1;
        present.1.insert(number, state.clone());
        drop(present);
        Self {
            _place: place,
            number,
            state,
            book,
        }
    }

    pub(crate) fn doings(&self) -> Doings {
        Doings {
            state: self.state.clone(),
            book: self.book.clone(),
        }
    }

    /// How long this one may be idle.
    pub(crate) fn patience(&self) -> Duration {
        self.book.patience
    }

    /// Ready when nothing has been under way for too long, or the place is needed.
    pub(crate) async fn has_to_go(&self) {
        tokio::select! {
            () = self.is_unwanted() => {}
            () = self.idle_for(self.patience()) => {}
        }
    }

    pub(crate) async fn is_unwanted(&self) {
        let mut state = self.state.subscribe();
        // The sender is held here: it does not go away.
        let _ = state.wait_for(|state| state.unwanted).await;
    }

    /// Ready when nothing has been under way for so long.
    pub(crate) async fn idle_for(&self, time: Duration) {
        self.until(|state| Some(state.idle()? + time)).await;
    }

    /// Ready when the place is needed, and nothing has been taken for too long of what is under way. To be told so moves
    /// what was buffered, and is no sign of life.
    pub(crate) async fn is_given_up(&self) {
        let patience = self.patience();
        let moment = |state: &State| match state.given_up {
            true => Some(state.still_since),
            false => Some(state.stuck().filter(|_| state.unwanted)? + patience),
        };
        self.until(moment).await;
    }

    /// The moment that follows from the state, if one does.
    async fn until(&self, moment: impl Fn(&State) -> Option<Instant>) {
        let mut state = self.state.subscribe();
        loop {
            let moment = moment(&state.borrow_and_update());
            let over = async {
                match moment {
                    Some(moment) => sleep_until(moment).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                _ = state.changed() => {}
                () = over => return,
            }
        }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.book.lock().1.remove(&self.number);
    }
}

/// Tells what a connection does.
#[derive(Clone)]
pub(crate) struct Doings {
    state: watch::Sender<State>,
    book: Arc<Book>,
}

impl Doings {
    /// Something is under way until the answer is dropped.
    pub(crate) fn begin(&self) -> UnderWay {
        self.state.send_modify(|state| state.under_way += 1);
        UnderWay {
            doings: self.clone(),
            waits: false,
        }
    }
}

pub(crate) struct UnderWay {
    doings: Doings,
    /// For its taker.
    waits: bool,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let Doings { state, book } = &self.doings;
        state.send_modify(|state| {
            state.under_way = state.under_way.saturating_sub(1);
            state.waiting = state.waiting.saturating_sub(usize::from(self.waits));
            state.idle_since = Instant::now();
        });
        book.idle.notify_one();
    }
}

/// What looks on while an answer is taken.
pub(crate) trait OnLooker {
    /// Whether a piece of it is there that was not taken yet.
    fn waits(&mut self, _waits: bool) {}
}

impl OnLooker for UnderWay {
    fn waits(&mut self, waits: bool) {
        if self.waits == waits {
            return;
        }
        self.waits = waits;
        self.doings.state.send_if_modified(|state| {
            match waits {
                true => {
                    state.waiting += 1;
                    state.still_since = Instant::now();
                }
                false => state.waiting = state.waiting.saturating_sub(1),
            }
            // It is of every piece of every answer, and nobody else's business but of who waits for this one to go.
            state.unwanted
        });
    }
}

/// The body of an answer, which holds something until its last piece is taken.
pub(crate) struct Held<T> {
    body: Body,
    holds: Option<T>,
}

impl<T> Held<T> {
    /// What holds nothing only passes through.
    pub(crate) fn new(body: Body, holds: Option<T>) -> Self {
        Self { body, holds }
    }
}

impl<T: OnLooker + Unpin> hyper::body::Body for Held<T> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        // Who asks for more has taken what was there.
        if let Some(holds) = &mut self.holds {
            holds.waits(false);
        }
        let polled = Pin::new(&mut self.body).poll_frame(context);
        match (&polled, &mut self.holds) {
            (Poll::Ready(Some(Ok(_))), Some(holds)) => holds.waits(true),
            (Poll::Ready(None | Some(Err(_))), _) => self.holds = None,
            _ => {}
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests;
