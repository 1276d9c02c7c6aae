//! How often we may ask, and who goes first when there is a queue.
//!
//! A token bucket (`kubeAPIQPS`, `kubeAPIBurst`) in front of a queue ordered by [`Priority`], first come first served
//! within one. A heartbeat takes a token if there is one and goes at once in any case; watches do not pass here at
//! all. What nobody waits for leaves half of the burst to others: the events of a hundred pods that end come before the
//! statuses that say so, and would have them wait for seconds. When too many wait, whoever comes next is sent away instead
//! of remembered.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::{ApiError, Priority};

/// More than any agent has to say at once: pods, their events, their statuses.
const MAX_WAITING: usize = 4096;

/// Calls per second on average, and in one go.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    /// Zero or less: no limit.
    pub qps: f64,
    pub burst: u32,
}

impl Rate {
    pub const UNLIMITED: Rate = Rate { qps: 0.0, burst: 0 };
}

/// Delays that grow with each failure in a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Backoff {
    /// After the first failure.
    pub base: Duration,
    pub factor: f64,
    /// Never more than this.
    pub cap: Duration,
    /// Which part of a delay is left to chance: 0.5 makes it half to whole.
    pub jitter: f64,
}

impl Backoff {
    /// After that many failures in a row (none: no delay). `chance` is from 0 to 1.
    pub fn delay(&self, failures: u32, chance: f64) -> Duration {
        let Some(doublings) = failures.checked_sub(1) else {
            return Duration::ZERO;
        };
        let exponent = i32::try_from(doublings).unwrap_or(i32::MAX);
        let grown = self.base.as_secs_f64() * self.factor.powi(exponent);
        // An overflow to infinity is capped like any other.
        let whole = grown.min(self.cap.as_secs_f64());
        let part = 1.0 - self.jitter.clamp(0.0, 1.0) * chance.clamp(0.0, 1.0);
        Duration::try_from_secs_f64(whole * part).unwrap_or(self.cap)
    }
}

/// Time since the limiter was made.
type At = Duration;

/// Tokens that come back with time.
#[derive(Clone, Debug)]
struct Bucket {
    qps: f64,
    burst: f64,
    tokens: f64,
    at: At,
}

impl Bucket {
    /// `None` if there is no limit.
    fn new(rate: Rate) -> Option<Self> {
        let burst = f64::from(rate.burst.max(1));
        (rate.qps > 0.0).then_some(Self {
            qps: rate.qps,
            burst,
            tokens: burst,
            at: At::ZERO,
        })
    }

    fn fill(&mut self, now: At) {
        let passed = now.saturating_sub(self.at).as_secs_f64();
        self.tokens = (self.tokens + passed * self.qps).min(self.burst);
        self.at = self.at.max(now);
    }

    fn take(&mut self, now: At, priority: Priority) -> bool {
        self.fill(now);
        // A hair's breadth short, because of rounding, is enough.
        if self.tokens < self.needed(priority) - 1e-6 {
            return false;
        }
        self.tokens = (self.tokens - 1.0).max(0.0);
        true
    }

    /// How many tokens have to be there for one to be taken.
    fn needed(&self, priority: Priority) -> f64 {
        match priority {
            Priority::Background => 1.0 + (self.burst / 2.0).floor(),
            Priority::Heartbeat | Priority::Urgent | Priority::Normal => 1.0,
        }
    }

    /// When there is a token, if nobody takes one meanwhile.
    fn due(&self, priority: Priority) -> At {
        let wait = (self.needed(priority) - self.tokens).max(0.0) / self.qps;
        self.at + Duration::try_from_secs_f64(wait).unwrap_or(Duration::MAX / 4)
    }
}

/// A place in the queue: the lower goes first.
type Place = (Priority, u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    Go,
    /// First in the queue; look again then.
    At(At),
    /// Others are first.
    Behind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Arrival {
    Go,
    Wait(Place),
    Full,
}

/// The queue. Pure: `W` is however a waiter is woken.
struct Turns<W> {
    bucket: Option<Bucket>,
    waiting: BTreeMap<Place, W>,
    next: u64,
    most: usize,
}

impl<W: Clone> Turns<W> {
    fn new(rate: Rate, most: usize) -> Self {
        Self {
            bucket: Bucket::new(rate),
            waiting: BTreeMap::new(),
            next: 0,
            most,
        }
    }

    fn arrive(&mut self, now: At, priority: Priority, waker: impl FnOnce() -> W) -> Arrival {
        let Some(bucket) = &mut self.bucket else {
            return Arrival::Go;
        };
        if priority == Priority::Heartbeat {
            bucket.take(now, priority);
            return Arrival::Go;
        }
        let first = self.waiting.first_key_value();
        if first.is_none_or(|((other, _), _)| priority < *other) && bucket.take(now, priority) {
            return Arrival::Go;
        }
        if self.waiting.len() >= self.most {
            return Arrival::Full;
        }
        let place = (priority, self.next);
        self.next += 1;
        self.waiting.insert(place, waker());
        Arrival::Wait(place)
    }

    /// Whoever goes has to [`leave`](Self::leave).
    fn turn(&mut self, now: At, place: Place) -> Turn {
        let Some(bucket) = &mut self.bucket else {
            return Turn::Go;
        };
        if self.waiting.first_key_value().map(|(first, _)| *first) != Some(place) {
            return Turn::Behind;
        }
        match bucket.take(now, place.0) {
            true => Turn::Go,
            false => Turn::At(bucket.due(place.0)),
        }
    }

    /// Who is to look next, because the one before it is gone.
    fn leave(&mut self, place: Place) -> Option<W> {
        let was_first = self.waiting.keys().next() == Some(&place);
        self.waiting.remove(&place);
        let first = self
            .waiting
            .first_key_value()
            .map(|(_, waker)| waker.clone());
        first.filter(|_| was_first)
    }
}

/// The queue in front of a client.
pub(crate) struct Limiter {
    turns: Mutex<Turns<Arc<Notify>>>,
    start: Instant,
}

impl Limiter {
    pub(crate) fn new(rate: Rate) -> Self {
        Self {
            turns: Mutex::new(Turns::new(rate, MAX_WAITING)),
            start: Instant::now(),
        }
    }

    /// Returns when it is this call's turn. Giving up is fine at any time.
    pub(crate) async fn turn(&self, priority: Priority) -> Result<(), ApiError> {
        let mut waker = None;
        let arrival = self.lock().arrive(self.start.elapsed(), priority, || {
            waker.insert(Arc::new(Notify::new())).clone()
        });
        let (place, waker) = match (arrival, waker) {
            (Arrival::Wait(place), Some(waker)) => (place, waker),
            (Arrival::Full, _) => {
                let problem = format!("{MAX_WAITING} calls wait for their turn already");
                return Err(ApiError::Connection(problem));
            }
            _ => return Ok(()),
        };
        let waiter = Waiter {
            limiter: self,
            place,
        };
        loop {
            let turn = self.lock().turn(self.start.elapsed(), waiter.place);
            match turn {
                Turn::Go => return Ok(()),
                // Somebody more urgent may come and go before then; looking again does no harm.
                Turn::At(at) => tokio::time::sleep_until(self.start + at).await,
                Turn::Behind => waker.notified().await,
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Turns<Arc<Notify>>> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Gives up its place when dropped, and lets the next one look.
struct Waiter<'a> {
    limiter: &'a Limiter,
    place: Place,
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        if let Some(next) = self.limiter.lock().leave(self.place) {
            next.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Priority::{Background, Heartbeat, Normal, Urgent};

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn turns(qps: f64, burst: u32, most: usize) -> Turns<&'static str> {
        Turns::new(Rate { qps, burst }, most)
    }

    #[test]
    fn delays_grow_to_their_cap() {
        let backoff = Backoff {
            base: ms(100),
            factor: 2.0,
            cap: ms(1000),
            jitter: 0.5,
        };
        let cases = [
            (0, 0.0, 0),
            (1, 0.0, 100),
            (1, 1.0, 50),
            (2, 0.0, 200),
            (4, 0.0, 800),
            (5, 0.0, 1000),
            (5, 0.5, 750),
            (u32::MAX, 0.0, 1000),
        ];
        for (failures, chance, expected) in cases {
            assert_eq!(backoff.delay(failures, chance), ms(expected), "{failures}");
        }
    }

    #[test]
    fn a_burst_then_the_rate() {
        let mut turns = turns(10.0, 2, 9);
        let mut arrive = |at: u64| turns.arrive(ms(at), Normal, || "");
        assert_eq!(arrive(0), Arrival::Go);
        assert_eq!(arrive(0), Arrival::Go);
        assert_eq!(arrive(0), Arrival::Wait((Normal, 0)));
        assert_eq!(turns.turn(ms(0), (Normal, 0)), Turn::At(ms(100)));
        assert_eq!(turns.turn(ms(100), (Normal, 0)), Turn::Go);
        turns.leave((Normal, 0));
        let mut arrive = |at: u64| turns.arrive(ms(at), Normal, || "");
        assert_eq!(arrive(150), Arrival::Wait((Normal, 1)));
    }

    #[test]
    fn the_urgent_overtake() {
        let mut turns = turns(10.0, 1, 9);
        let mut arrive = |priority, name| turns.arrive(ms(0), priority, || name);
        assert_eq!(arrive(Background, ""), Arrival::Go);
        assert_eq!(arrive(Background, "event"), Arrival::Wait((Background, 0)));
        assert_eq!(arrive(Normal, "pod"), Arrival::Wait((Normal, 1)));
        assert_eq!(arrive(Urgent, "ready"), Arrival::Wait((Urgent, 2)));
        assert_eq!(arrive(Heartbeat, ""), Arrival::Go, "never waits");
        assert_eq!(turns.turn(ms(100), (Normal, 1)), Turn::Behind);
        assert_eq!(turns.turn(ms(100), (Urgent, 2)), Turn::Go);
        assert_eq!(turns.leave((Urgent, 2)), Some("pod"));
        // Who gives up in the middle wakes nobody.
        assert_eq!(turns.leave((Background, 0)), None);
        assert_eq!(turns.leave((Normal, 1)), None);
    }

    #[test]
    fn half_of_the_burst_is_not_for_what_nobody_waits_for() {
        for (burst, spared) in [(1, 0), (2, 1), (5, 2), (100, 50)] {
            let mut turns = turns(10.0, burst, 0);
            let mut gone = |priority| {
                let all = std::iter::repeat_with(|| turns.arrive(ms(0), priority, || ""));
                all.take_while(|arrival| *arrival == Arrival::Go).count()
            };
            let background = gone(Background);
            assert_eq!(
                (background, gone(Normal)),
                (burst as usize - spared, spared)
            );
        }
        // It gets its turn when there is more than that again.
        let mut turns = turns(10.0, 4, 9);
        for _ in 0..3 {
            assert_eq!(turns.arrive(ms(0), Normal, || ""), Arrival::Go);
        }
        let event = turns.arrive(ms(0), Background, || "");
        assert_eq!(event, Arrival::Wait((Background, 0)));
        assert_eq!(turns.turn(ms(0), (Background, 0)), Turn::At(ms(200)));
        assert_eq!(turns.arrive(ms(0), Normal, || ""), Arrival::Go);
        assert_eq!(turns.turn(ms(200), (Background, 0)), Turn::At(ms(300)));
        assert_eq!(turns.turn(ms(300), (Background, 0)), Turn::Go);
    }

    #[test]
    fn neither_the_queue_nor_a_debt_grows_without_end() {
        let mut turns = turns(1.0, 1, 1);
        for _ in 0..100 {
            assert_eq!(turns.arrive(ms(0), Heartbeat, || ""), Arrival::Go);
        }
        let arrive = |turns: &mut Turns<_>, at: u64| turns.arrive(ms(at), Normal, || "");
        assert_eq!(arrive(&mut turns, 0), Arrival::Wait((Normal, 0)));
        assert_eq!(arrive(&mut turns, 0), Arrival::Full);
        assert_eq!(turns.turn(ms(1000), (Normal, 0)), Turn::Go);
    }

    #[test]
    fn no_limit() {
        for qps in [0.0, -1.0] {
            let mut turns = turns(qps, 1, 0);
            for _ in 0..10 {
                assert_eq!(turns.arrive(ms(0), Background, || ""), Arrival::Go);
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn all_get_their_turn_in_order() {
        let limiter = Limiter::new(Rate {
            qps: 50.0,
            burst: 1,
        });
        let order = Mutex::new(Vec::new());
        let one = |priority: Priority, name: &'static str| {
            let (limiter, order) = (&limiter, &order);
            async move {
                limiter.turn(priority).await.unwrap();
                order.lock().unwrap().push(name);
            }
        };
        let given_up = async {
            let turn = limiter.turn(Urgent);
            assert!(tokio::time::timeout(ms(1), turn).await.is_err());
        };
        tokio::join!(
            one(Normal, "first"),
            given_up,
            one(Background, "event"),
            one(Normal, "pod"),
            one(Urgent, "ready"),
            one(Heartbeat, "lease"),
        );
        let expected = ["first", "lease", "ready", "pod", "event"];
        assert_eq!(*order.lock().unwrap(), expected);
    }
}
