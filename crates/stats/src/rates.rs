//! Rates from two readings of a counter. Nothing is read for their sake alone: a rate stands between one scrape and the
//! next.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

/// Two readings closer than this make no better rate than the last one.
const APART: Duration = Duration::from_secs(5);
/// The first rate of a counter may come from closer ones.
const FIRST_APART: Duration = Duration::from_secs(1);
/// An average over a longer time says nothing about now.
const STALE: Duration = Duration::from_secs(600);
/// More cgroups than a node can have.
const MOST: usize = 20_000;

#[derive(Debug, Default)]
pub struct Rates(BTreeMap<String, Entry>);

#[derive(Debug)]
struct Entry {
    at: Instant,
    usage: u64,
    rate: Option<u64>,
    seen: Instant,
}

impl Rates {
    /// Takes a reading in nanoseconds and gives nanoseconds per second: since the last reading that lies far enough
    /// back, if there is one.
    pub fn note(&mut self, of: &str, at: Instant, usage: u64) -> Option<u64> {
        let Some(entry) = self.0.get_mut(of) else {
            if self.0.len() < MOST {
                let entry = Entry {
                    at,
                    usage,
                    rate: None,
                    seen: at,
                };
                self.0.insert(of.to_owned(), entry);
            }
            return None;
        };
        entry.seen = at;
        let apart = at.saturating_duration_since(entry.at);
        let enough = match entry.rate {
            Some(_) => apart >= APART,
            None => apart >= FIRST_APART,
        };
        if usage < entry.usage || apart > STALE {
            // Another cgroup under the same name, or nobody asked for long.
            (entry.at, entry.usage, entry.rate) = (at, usage, None);
        } else if enough {
            let used = u128::from(usage - entry.usage) * 1_000_000_000;
            let rate = used / apart.as_nanos().max(1);
            entry.rate = Some(u64::try_from(rate).unwrap_or(u64::MAX));
            (entry.at, entry.usage) = (at, usage);
        }
        entry.rate
    }

    /// Forgets what was not read for long.
    pub fn sweep(&mut self, now: Instant) {
        self.0
            .retain(|_, e| now.saturating_duration_since(e.seen) <= STALE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[tokio::test(start_paused = true)]
    async fn two_readings_make_a_rate() {
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let cases = [
            (0, 0, None),
            (10, 5 * SECOND, Some(SECOND / 2)),
            // Too close: the last one stands.
            (12, 7 * SECOND, Some(SECOND / 2)),
            (20, 15 * SECOND, Some(SECOND)),
            // A new cgroup.
            (30, SECOND, None),
            (31, SECOND, Some(0)),
            (2000, 100 * SECOND, None),
        ];
        let mut rates = Rates::default();
        for (seconds, usage, rate) in cases {
            assert_eq!(rates.note("a", at(seconds), usage), rate, "{seconds}");
        }
        rates.note("b", at(2000), 1);
        rates.sweep(at(2601));
        assert!(rates.0.is_empty());
    }
}
