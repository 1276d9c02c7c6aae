//! Who stays at a door: connections with something under way do. Those without go when they have been idle for long, and
//! at once when somebody new needs the place.

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
    idle_since: Instant,
    /// Somebody else needs the place.
    unwanted: bool,
}

impl State {
    fn idle(&self) -> Option<Instant> {
        (self.under_way == 0).then_some(self.idle_since)
    }
}

/// The connections there are, by the order they came in.
#[derive(Default)]
struct Book {
    present: Mutex<(u64, BTreeMap<u64, watch::Sender<State>>)>,
    /// Rings when one of them has nothing more under way.
    idle: Notify,
}

impl Book {
    fn lock(&self) -> MutexGuard<'_, (u64, BTreeMap<u64, watch::Sender<State>>)> {
        self.present.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the one that has been idle longest to go. False if there is none that was not told before.
    fn shed(&self) -> bool {
        let present = self.lock();
        let idle = present.1.values().filter_map(|guest| {
            let state = guest.borrow();
            let since = state.idle().filter(|_| !state.unwanted)?;
            drop(state);
            Some((since, guest))
        });
        let Some((_, longest)) = idle.min_by_key(|(since, _)| *since) else {
            return false;
        };
        longest.send_modify(|state| state.unwanted = true);
        true
    }
}

/// A bounded number of connections.
pub(crate) struct Guests {
    places: Arc<Semaphore>,
    book: Arc<Book>,
}

impl Guests {
    pub(crate) fn at_most(places: usize) -> Self {
        Self {
            places: Arc::new(Semaphore::new(places)),
            book: Arc::default(),
        }
    }

    /// Waits for a place. If there is none, who has been idle longest gives way; those with something under way never do.
    pub(crate) async fn enter(&self) -> Guest {
        loop {
            // Asked for before the look, so that nobody becomes idle unnoticed between the two.
            let idle = self.book.idle.notified();
            let free = self.places.clone().acquire_owned();
            let free = match self.places.available_permits() == 0 && !self.book.shed() {
                true => tokio::select! {
                    biased;
                    free = free => Some(free),
                    () = idle => None,
                },
                false => timeout(NEXT, free).await.ok(),
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
        let state = watch::Sender::new(State {
            under_way: 0,
            idle_since: Instant::now(),
            unwanted: false,
        });
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

    /// Ready when nothing has been under way for so long, or the place is needed.
    pub(crate) async fn has_to_go(&self, patience: Duration) {
        tokio::select! {
            () = self.is_unwanted() => {}
            () = self.idle_for(patience) => {}
        }
    }

    pub(crate) async fn is_unwanted(&self) {
        let mut state = self.state.subscribe();
        // The sender is held here: it does not go away.
        let _ = state.wait_for(|state| state.unwanted).await;
    }

    /// Ready when nothing has been under way for so long.
    pub(crate) async fn idle_for(&self, time: Duration) {
        let mut state = self.state.subscribe();
        loop {
            let idle = state.borrow_and_update().idle();
            let over = async {
                match idle {
                    Some(since) => sleep_until(since + time).await,
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
        UnderWay(self.clone())
    }
}

pub(crate) struct UnderWay(Doings);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.state.send_modify(|state| {
            state.under_way = state.under_way.saturating_sub(1);
            state.idle_since = Instant::now();
        });
        self.0.book.idle.notify_one();
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

impl<T: Unpin> hyper::body::Body for Held<T> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        if let Poll::Ready(None | Some(Err(_))) = polled {
            self.holds = None;
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
mod tests {
    use futures::FutureExt as _;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn unwanted(guest: &Guest) -> bool {
        guest.is_unwanted().now_or_never().is_some()
    }

    #[tokio::test(start_paused = true)]
    async fn who_has_been_idle_longest_gives_way() {
        let guests = Guests::at_most(3);
        let [first, second, third] = [
            guests.enter().await,
            guests.enter().await,
            guests.enter().await,
        ];
        let busy = first.doings().begin();
        tokio::time::advance(SECOND).await;
        drop(second.doings().begin());
        let mut new = Box::pin(guests.enter());
        assert!((&mut new).now_or_never().is_none());
        let told = [&first, &second, &third].map(unwanted);
        assert_eq!(told, [false, false, true], "busy, idle, idle for longer");
        drop(third);
        let fourth = new.await;
        drop(second);
        assert!(!unwanted(&fourth) && !unwanted(&first));
        drop(busy);
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_with_something_under_way_does() {
        let guests = Guests::at_most(1);
        let first = guests.enter().await;
        let busy = first.doings().begin();
        let mut new = Box::pin(guests.enter());
        assert!(timeout(3600 * SECOND, &mut new).await.is_err());
        assert!(!unwanted(&first));
        drop(busy);
        assert!((&mut new).now_or_never().is_none());
        assert!(unwanted(&first), "as soon as it is idle");
        // It began something all the same, and is not waited for beyond it.
        let busy = first.doings().begin();
        assert!(timeout(3600 * SECOND, &mut new).await.is_err());
        drop(busy);
        drop(first);
        new.await;
    }

    #[tokio::test(start_paused = true)]
    async fn idleness_counts_from_the_end_of_the_last_answer() {
        let guests = Guests::at_most(1);
        let guest = guests.enter().await;
        let begun = Instant::now();
        let [one, other] = [guest.doings().begin(), guest.doings().begin()];
        tokio::spawn(async move {
            tokio::time::sleep(100 * SECOND).await;
            drop(one);
            tokio::time::sleep(100 * SECOND).await;
            drop(other);
        });
        guest.has_to_go(90 * SECOND).await;
        assert_eq!(begun.elapsed(), 290 * SECOND);
    }
}
