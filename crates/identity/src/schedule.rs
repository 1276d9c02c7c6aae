//! When: the moment of the next rotation, and the pauses between tries. Pure.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crate::Validity;

/// A certificate is renewed when this part of its life is over, plus up to [`SPREAD`] of it, so
/// that nodes that joined together do not all ask together for ever.
const EARLIEST: f64 = 0.7;
const SPREAD: f64 = 0.2;
/// Between two certificates there is at least this, or half of a very short life: a clock that is
/// wrong must not make us ask without end.
const SHORTEST: Duration = Duration::from_secs(30);

const FIRST_PAUSE: Duration = Duration::from_secs(2);
const LONGEST_PAUSE: Duration = Duration::from_secs(32);
const PAUSE_JITTER: f64 = 0.1;

/// The part of a certificate's life after which it is renewed; `random` is in 0..1.
fn part(random: f64) -> f64 {
    EARLIEST + SPREAD * random.clamp(0.0, 1.0)
}

/// From one moment to a later one, nothing if it is not later.
pub(crate) fn span(from: Timestamp, to: Timestamp) -> Duration {
    Duration::try_from(to.duration_since(from)).unwrap_or_default()
}

/// When a certificate is to be renewed.
pub(crate) fn rotation_deadline(validity: Validity, random: f64) -> Timestamp {
    let life = span(validity.not_before, validity.not_after);
    let used = SignedDuration::try_from(life.mul_f64(part(random))).unwrap_or(SignedDuration::MAX);
    validity
        .not_before
        .checked_add(used)
        .unwrap_or(validity.not_after)
}

/// How long a certificate found at `now` is left alone. A clock that is far behind must not make
/// this longer than the certificate can live.
pub(crate) fn wait_when_found(validity: Validity, now: Timestamp, random: f64) -> Duration {
    let life = span(validity.not_before, validity.not_after);
    span(now, rotation_deadline(validity, random)).min(life.mul_f64(part(random)))
}

/// How long a certificate that was issued just now is left alone. Issuers date certificates back
/// by minutes, which may be more than a short one lives, so its life counts from now.
pub(crate) fn wait_when_issued(validity: Validity, now: Timestamp, random: f64) -> Duration {
    let life = span(validity.not_before, validity.not_after);
    let rest = span(now.max(validity.not_before), validity.not_after);
    rest.mul_f64(part(random)).max(SHORTEST.min(life / 2))
}

/// Pauses between tries: doubling, with a little noise, up to a longest one that stays.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pauses {
    taken: u32,
}

impl Pauses {
    /// `random` is in 0..1.
    pub(crate) fn next(&mut self, random: f64) -> Duration {
        let doubled = FIRST_PAUSE.saturating_mul(1 << self.taken.min(8));
        self.taken = self.taken.saturating_add(1);
        doubled
            .min(LONGEST_PAUSE)
            .mul_f64(1.0 + PAUSE_JITTER * random.clamp(0.0, 1.0))
    }

    pub(crate) fn reset(&mut self) {
        self.taken = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::at;

    const DAY: i64 = 24 * 3600;

    fn valid(from: i64, to: i64) -> Validity {
        Validity {
            not_before: at(from),
            not_after: at(to),
        }
    }

    #[test]
    fn the_deadline_is_at_70_to_90_percent_of_life() {
        // (from, to, random, deadline)
        let cases = [
            (0, 60, 0.0, 42),
            (0, 60, 1.0, 54),
            (0, 60, 0.5, 48),
            (-3600, 3600, 0.0, 1440),
            (0, 365 * DAY, 0.0, 365 * DAY * 7 / 10),
            (0, 365 * DAY, 1.0, 365 * DAY * 9 / 10),
            // Randomness out of its range, and a life that makes no sense.
            (0, 60, 7.0, 54),
            (60, 0, 0.5, 60),
        ];
        for (from, to, random, deadline) in cases {
            let found = rotation_deadline(valid(from, to), random);
            let off = found.duration_since(at(deadline)).abs();
            assert!(
                off < SignedDuration::from_millis(1),
                "{from}..{to}: {found}"
            );
        }
    }

    #[test]
    fn how_long_a_certificate_is_left_alone() {
        type Wait = fn(Validity, Timestamp, f64) -> Duration;
        let (found, issued): (Wait, Wait) = (wait_when_found, wait_when_issued);
        let hour = 3600;
        // (which, from, to, now, seconds at the earliest)
        let cases = [
            (found, 0, 60, 0, 42),
            (found, 0, 60, 40, 2),
            (found, 0, 60, 50, 0),
            (found, 0, 60, 5000, 0),
            // The clock is an hour behind: no longer than the certificate's own time.
            (found, 0, 60, -hour, 42),
            (issued, 0, 60, 0, 42),
            // Dated back by five minutes.
            (issued, -300, 60, 0, 42),
            (issued, -300, 365 * DAY, 0, 365 * DAY * 7 / 10),
            // The clock is behind, or ahead: nothing is asked for without end.
            (issued, 0, 60, -hour, 42),
            (issued, 0, 60, hour, 30),
            (issued, 0, 365 * DAY, 500 * DAY, 30),
            (issued, 0, 10, 0, 7),
            (issued, 0, 10, 20, 5),
        ];
        for (wait, from, to, now, seconds) in cases {
            let wait = wait(valid(from, to), at(now), 0.0);
            assert_eq!(
                wait.as_secs_f64().round() as i64,
                seconds,
                "{from}..{to} {now}"
            );
        }
    }

    #[test]
    fn pauses_double_up_to_half_a_minute() {
        let mut pauses = Pauses::default();
        let seconds: Vec<u64> = (0..7).map(|_| pauses.next(0.0).as_secs()).collect();
        assert_eq!(seconds, [2, 4, 8, 16, 32, 32, 32]);
        assert_eq!(pauses.next(1.0), LONGEST_PAUSE.mul_f64(1.1));
        pauses.reset();
        assert_eq!(pauses.next(0.5), FIRST_PAUSE.mul_f64(1.05));
        let mut long = Pauses { taken: u32::MAX };
        assert_eq!(long.next(0.0), LONGEST_PAUSE);
    }
}
