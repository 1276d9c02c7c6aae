//! Verdicts that were given a short time ago. Bounded: whoever asks about many things pushes out the oldest.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Verdicts held at a time.
const MAX: usize = 4096;

struct Held<V> {
    verdict: V,
    until: Instant,
    /// Tells a renewed verdict from the one it replaced.
    number: u64,
}

struct Inner<K, V> {
    held: BTreeMap<K, Held<V>>,
    /// Oldest first.
    order: VecDeque<(K, u64)>,
    next: u64,
}

pub(crate) struct Verdicts<K, V> {
    inner: Mutex<Inner<K, V>>,
    max: usize,
}

impl<K: Ord + Clone, V: Clone> Verdicts<K, V> {
    pub(crate) fn new() -> Self {
        Self::holding(MAX)
    }

    fn holding(max: usize) -> Self {
        let inner = Inner {
            held: BTreeMap::new(),
            order: VecDeque::new(),
            next: 0,
        };
        Self {
            inner: Mutex::new(inner),
            max,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner<K, V>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn get(&self, key: &K) -> Option<V> {
        let now = Instant::now();
        let inner = self.lock();
        let held = inner.held.get(key).filter(|held| held.until > now)?;
        Some(held.verdict.clone())
    }

    pub(crate) fn put(&self, key: K, verdict: V, lasts: Duration) {
        if lasts.is_zero() {
            return;
        }
        let mut inner = self.lock();
        let number = inner.next;
        inner.next += 1;
        let held = Held {
            verdict,
            until: Instant::now() + lasts,
            number,
        };
        inner.held.insert(key.clone(), held);
        inner.order.push_back((key, number));
        while inner.order.len() > self.max {
            let Some((oldest, number)) = inner.order.pop_front() else {
                break;
            };
            if inner.held.get(&oldest).is_some_and(|h| h.number == number) {
                inner.held.remove(&oldest);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn they_last_as_long_as_they_may_and_are_not_many() {
        let second = Duration::from_secs(1);
        let verdicts = Verdicts::holding(2);
        verdicts.put("a", 1, second);
        verdicts.put("never", 1, Duration::ZERO);
        assert_eq!(
            (verdicts.get(&"a"), verdicts.get(&"never")),
            (Some(1), None)
        );
        tokio::time::advance(second).await;
        assert_eq!(verdicts.get(&"a"), None);
        verdicts.put("a", 2, second);
        verdicts.put("a", 3, second);
        verdicts.put("b", 4, second);
        assert_eq!((verdicts.get(&"a"), verdicts.get(&"b")), (Some(3), Some(4)));
        verdicts.put("c", 5, second);
        assert_eq!((verdicts.get(&"a"), verdicts.get(&"c")), (None, Some(5)));
        assert!(verdicts.lock().held.len() <= 2);
    }
}
