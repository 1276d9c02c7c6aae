//! When to audit and when to subscribe: slowly while events flow, every second while they do not,
//! and back by itself. Pure but for the seeded dice it is handed.

use std::ops::RangeInclusive;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::time::Instant;

/// A stream that lasted this long was a good one: the next loss is a first loss.
const GOOD_STREAM: Duration = Duration::from_secs(10);

#[derive(Clone, Debug)]
pub(crate) struct Periods {
    /// Between audits while events flow.
    pub audit: RangeInclusive<Duration>,
    /// Between audits while they do not.
    pub fast_audit: Duration,
    /// Between attempts to subscribe: the first, and the longest.
    pub resubscribe: RangeInclusive<Duration>,
    /// Between attempts with a runtime that has no events.
    pub unimplemented: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stream {
    Down,
    Connecting,
    Up { since: Instant },
}

pub(crate) struct Pacing {
    periods: Periods,
    dice: StdRng,
    stream: Stream,
    losses: u32,
    subscribe_at: Instant,
    audit_at: Instant,
    last_audit: Option<Instant>,
}

impl Pacing {
    /// Subscribes at once; the first audit follows the subscription, or its failure.
    pub(crate) fn new(periods: Periods, seed: u64, now: Instant) -> Self {
        Self {
            audit_at: now + periods.fast_audit,
            periods,
            dice: StdRng::seed_from_u64(seed),
            stream: Stream::Down,
            losses: 0,
            subscribe_at: now,
            last_audit: None,
        }
    }

    pub(crate) fn events_flow(&self) -> bool {
        matches!(self.stream, Stream::Up { .. })
    }

    /// When there is something to begin. An audit under way sets the time of the next one when
    /// it ends.
    pub(crate) fn wake_at(&self, auditing: bool) -> Option<Instant> {
        let audit = (!auditing).then_some(self.audit_at);
        let subscribe = (self.stream == Stream::Down).then_some(self.subscribe_at);
        audit.into_iter().chain(subscribe).min()
    }

    /// Whether to subscribe now; if so, it is taken as begun.
    pub(crate) fn subscribe_due(&mut self, now: Instant) -> bool {
        let due = self.stream == Stream::Down && self.subscribe_at <= now;
        if due {
            self.stream = Stream::Connecting;
        }
        due
    }

    pub(crate) fn audit_due(&self, now: Instant) -> bool {
        self.audit_at <= now
    }

    /// Subscribed: whatever happened before is caught by an audit from now on.
    pub(crate) fn subscribed(&mut self, now: Instant) {
        self.stream = Stream::Up { since: now };
        self.audit_at = now;
    }

    /// No stream, or no longer.
    pub(crate) fn lost(&mut self, now: Instant, unimplemented: bool) {
        if matches!(self.stream, Stream::Up { since } if now - since >= GOOD_STREAM) {
            self.losses = 0;
        }
        self.stream = Stream::Down;
        let (first, longest) = (
            *self.periods.resubscribe.start(),
            *self.periods.resubscribe.end(),
        );
        let delay = match unimplemented {
            true => self.periods.unimplemented,
            false => first.saturating_mul(1 << self.losses.min(16)).min(longest),
        };
        self.losses = self.losses.saturating_add(1);
        self.subscribe_at = now + delay;
        self.audit_soon(now);
    }

    /// An audit as soon as the fast period allows.
    pub(crate) fn audit_soon(&mut self, now: Instant) {
        let earliest = self
            .last_audit
            .map_or(now, |last| last + self.periods.fast_audit);
        self.audit_at = self.audit_at.min(earliest.max(now));
    }

    /// An audit ended.
    pub(crate) fn audited(&mut self, now: Instant, ok: bool) {
        self.last_audit = Some(now);
        let period = match ok && self.events_flow() {
            true => self.dice.random_range(self.periods.audit.clone()),
            false => self.periods.fast_audit,
        };
        self.audit_at = now + period;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn pacing(now: Instant) -> Pacing {
        let periods = Periods {
            audit: 30 * SECOND..=60 * SECOND,
            fast_audit: SECOND,
            resubscribe: SECOND..=30 * SECOND,
            unimplemented: 300 * SECOND,
        };
        Pacing::new(periods, 7, now)
    }

    #[tokio::test(start_paused = true)]
    async fn slow_with_events_fast_without() {
        let now = Instant::now();
        let mut p = pacing(now);
        assert!(p.subscribe_due(now) && !p.subscribe_due(now));
        p.subscribed(now);
        assert!(p.audit_due(now), "subscribe first, then list");
        p.audited(now, true);
        let pause = p.audit_at - now;
        assert!((30 * SECOND..=60 * SECOND).contains(&pause), "{pause:?}");
        p.audited(now, false);
        assert_eq!(
            p.wake_at(false),
            Some(now + SECOND),
            "a failed audit is repeated soon"
        );
        p.lost(now + 5 * SECOND, false);
        assert!(p.audit_due(now + 5 * SECOND), "at once after a loss");
        p.audited(now + 5 * SECOND, true);
        assert_eq!(p.wake_at(false), Some(now + 6 * SECOND));
        assert_eq!(p.wake_at(true), Some(now + 6 * SECOND), "subscription");
        assert!(p.subscribe_due(now + 6 * SECOND));
        p.subscribed(now + 7 * SECOND);
        p.audited(now + 7 * SECOND, true);
        assert!(p.audit_at >= now + 37 * SECOND, "back by itself");
    }

    #[tokio::test(start_paused = true)]
    async fn attempts_grow_apart_and_a_good_stream_resets_them() {
        let now = Instant::now();
        let mut p = pacing(now);
        let mut delays = Vec::new();
        for _ in 0..7 {
            p.lost(now, false);
            delays.push((p.subscribe_at - now).as_secs());
        }
        assert_eq!(delays, [1, 2, 4, 8, 16, 30, 30]);
        p.subscribed(now);
        p.lost(now + SECOND, false);
        assert_eq!(
            p.subscribe_at,
            now + 31 * SECOND,
            "a stream that flaps is no recovery"
        );
        p.subscribed(now);
        p.lost(now + 11 * SECOND, false);
        assert_eq!(p.subscribe_at, now + 12 * SECOND);
        p.lost(now, true);
        assert_eq!(p.subscribe_at, now + 300 * SECOND);
    }

    #[tokio::test(start_paused = true)]
    async fn hurry_has_its_limit() {
        let now = Instant::now();
        let mut p = pacing(now);
        p.subscribed(now);
        p.audited(now, true);
        p.audit_soon(now);
        assert_eq!(p.wake_at(false), Some(now + SECOND));
        assert_eq!(p.wake_at(true), None);
    }
}
