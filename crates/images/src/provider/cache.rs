//! Values that hold for a while, and never more of them than fit.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

/// Far more than a node has registries or pods.
const MAX_ENTRIES: usize = 1024;

#[derive(Debug)]
pub(super) struct Cache<T> {
    entries: BTreeMap<String, (Instant, T)>,
}

impl<T> Default for Cache<T> {
    fn default() -> Self {
        Self {
            entries: BTreeMap::new(),
        }
    }
}

impl<T> Cache<T> {
    pub(super) fn get(&self, key: &str, now: Instant) -> Option<&T> {
        let (until, value) = self.entries.get(key)?;
        (now < *until).then_some(value)
    }

    pub(super) fn put(&mut self, key: String, value: T, now: Instant, duration: Duration) {
        self.entries.retain(|_, (until, _)| now < *until);
        if self.entries.len() >= MAX_ENTRIES {
            let soonest = self.entries.iter().min_by_key(|(_, (until, _))| *until);
            if let Some(key) = soonest.map(|(key, _)| key.clone()) {
                self.entries.remove(&key);
            }
        }
        // No duration is so long that an instant could not hold it.
        let until = now.checked_add(duration.min(Duration::from_secs(u64::from(u32::MAX))));
        self.entries.insert(key, (until.unwrap_or(now), value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_over_is_gone_and_the_rest_is_bounded() {
        let now = Instant::now();
        let second = Duration::from_secs(1);
        let mut cache = Cache::default();
        cache.put("a".into(), 1, now, second);
        assert_eq!(cache.get("a", now), Some(&1));
        assert_eq!(cache.get("a", now + second), None);
        cache.put("long".into(), 2, now, Duration::MAX);
        for n in 0..2 * MAX_ENTRIES {
            cache.put(n.to_string(), 0, now, second);
        }
        assert_eq!(cache.entries.len(), MAX_ENTRIES);
        assert_eq!(cache.get("long", now), Some(&2));
    }
}
