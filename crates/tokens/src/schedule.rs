//! When a token is renewed.

use jiff::{SignedDuration, Timestamp};

/// No token is used longer than this, however long it is good for.
const MAX_AGE: SignedDuration = SignedDuration::from_hours(24);
/// Renewals come up to this much sooner, each token's by another part of it.
const SPREAD: SignedDuration = SignedDuration::from_secs(10);

/// How long a token is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Life {
    pub expires: Timestamp,
    /// From its beginning to its end.
    pub seconds: i64,
}

/// After four fifths of the token's life, or a day if that is sooner; `share`, from 0 to 1, of the spread before that.
pub fn renew_at(life: Life, share: f64) -> Timestamp {
    let seconds = SignedDuration::from_secs(life.seconds);
    let last_fifth = SignedDuration::from_secs(life.seconds.saturating_mul(20) / 100);
    let earlier = SPREAD.mul_f64(share.clamp(0.0, 1.0));
    let minus =
        |from: Timestamp, by: SignedDuration| from.saturating_sub(by).unwrap_or(Timestamp::MIN);
    let begun = minus(life.expires, seconds);
    let old = begun.saturating_add(MAX_AGE).unwrap_or(Timestamp::MAX);
    minus(old.min(minus(life.expires, last_fifth)), earlier)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_fifths_of_a_life_but_never_more_than_a_day() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let day = 24 * 3600;
        for (seconds, share, expected) in [
            (600, 0.0, 480),
            (600, 1.0, 470),
            (3600, 0.0, 2880),
            (3607, 0.0, 3607 - 721),
            (day, 0.0, day - day / 5),
            (10 * day, 0.0, day),
            (10 * day, 0.5, day - 5),
        ] {
            // Issued at zero.
            let life = Life {
                expires: at(seconds),
                seconds,
            };
            assert_eq!(renew_at(life, share), at(expected), "{seconds} {share}");
        }
    }
}
