//! What cgroups are held to: limits, shares and quotas, which are a third of all files. They change when a pod is resized,
//! which its containers tell, and hardly ever otherwise, so they stand for a while.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::Duration;

use krablet_pod::observed::ObservedPod;
use tokio::time::Instant;

/// For those that somebody changes by hand.
const STAND: Duration = Duration::from_secs(60);
/// More cgroups than a node can have.
const MOST: usize = 20_000;

/// By the paths of cgroups.
#[derive(Debug, Default)]
pub struct Settings(BTreeMap<String, Kept>);

/// Of one cgroup: numbers by the names of their files.
#[derive(Debug)]
pub struct Kept {
    since: Instant,
    stamp: Stamp,
    numbers: Vec<(&'static str, Option<u64>)>,
}

/// Another one when the containers of a pod are others, or are held to something else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp(u64);

impl Stamp {
    pub fn of(pod: &ObservedPod) -> Self {
        let mut hasher = DefaultHasher::new();
        for container in pod.running() {
            container.id.as_str().hash(&mut hasher);
            let told = container.resources.map(|r| {
                let cpu = (r.cpu_period, r.cpu_quota, r.cpu_shares);
                (cpu, r.memory_limit)
            });
            told.hash(&mut hasher);
        }
        Self(hasher.finish())
    }
}

impl Kept {
    fn new(stamp: Stamp, since: Instant) -> Self {
        Self {
            since,
            stamp,
            numbers: Vec::new(),
        }
    }

    fn stands(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.since) < STAND
    }

    /// The number of a file; none if it has to be read.
    pub fn number(&self, name: &str) -> Option<Option<u64>> {
        let mut known = self.numbers.iter();
        known.find(|(n, _)| *n == name).map(|(_, number)| *number)
    }

    pub fn note(&mut self, name: &'static str, number: Option<u64>) {
        self.numbers.push((name, number));
    }
}

impl Settings {
    /// What still stands of a cgroup, for who reads it and gives it back.
    pub fn take(&mut self, path: &str, stamp: Stamp, now: Instant) -> Kept {
        let fresh = Kept::new(stamp, now);
        match self.0.get_mut(path) {
            Some(kept) if kept.stamp == stamp && kept.stands(now) => std::mem::replace(kept, fresh),
            _ => fresh,
        }
    }

    pub fn give_back(&mut self, path: &str, kept: Kept) {
        if let Some(place) = self.0.get_mut(path) {
            *place = kept;
        } else if self.0.len() < MOST {
            self.0.insert(path.to_owned(), kept);
        }
    }

    /// Forgets what does not stand any more.
    pub fn sweep(&mut self, now: Instant) {
        self.0.retain(|_, kept| kept.stands(now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn settings_stand_for_a_minute_or_until_the_pod_is_another() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut settings = Settings::default();
        let mut read = |stamp, seconds, number| {
            let mut kept = settings.take("/pod", Stamp(stamp), at(seconds));
            let known = kept.number("limit");
            if known.is_none() {
                kept.note("limit", number);
            }
            settings.give_back("/pod", kept);
            known
        };
        assert_eq!(read(1, 0, Some(5)), None);
        assert_eq!(read(1, 59, Some(6)), Some(Some(5)));
        assert_eq!(read(1, 60, None), None);
        assert_eq!(read(1, 61, Some(6)), Some(None), "not there stands, too");
        assert_eq!(read(2, 62, Some(7)), None);
        assert_eq!(read(2, 121, Some(8)), Some(Some(7)));
        settings.sweep(at(121));
        assert_eq!(settings.0.len(), 1);
        settings.sweep(at(122));
        assert!(settings.0.is_empty());
    }
}
