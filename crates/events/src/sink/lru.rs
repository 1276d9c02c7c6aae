//! A map that forgets what was not touched for longest.

use std::collections::VecDeque;

/// For some thousand entries and some events a second: a key is looked for from the newest back, and everything lies in two
/// pieces of memory, for what is kept one by one would be spread between all that a burst of work has left again.
pub(super) struct Lru<V> {
    capacity: usize,
    /// Each beside its value, in the order of the last touch.
    keys: VecDeque<u64>,
    values: VecDeque<V>,
}

impl<V> Lru<V> {
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            capacity: capacity.max(1),
            keys: VecDeque::new(),
            values: VecDeque::new(),
        }
    }

    /// The entry of a key, made if there is none.
    pub(super) fn touch(&mut self, key: u64, make: impl FnOnce() -> V) -> &mut V {
        let known = self.keys.iter().rposition(|k| *k == key);
        let value = known.and_then(|place| {
            self.keys.remove(place);
            self.values.remove(place)
        });
        if self.keys.len() == self.capacity {
            self.keys.pop_front();
            self.values.pop_front();
        }
        self.keys.push_back(key);
        self.values.push_back(value.unwrap_or_else(make));
        let newest = self.values.len() - 1;
        &mut self.values[newest]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_untouched_goes() {
        let mut lru = Lru::new(2);
        *lru.touch(1, || 10) += 1;
        lru.touch(2, || 20);
        assert_eq!(*lru.touch(1, || 0), 11);
        lru.touch(3, || 30);
        assert_eq!(lru.keys, [1, 3]);
        assert_eq!(*lru.touch(2, || 0), 0);
        assert_eq!(lru.keys, [3, 2]);
        assert_eq!(lru.values, [30, 0]);
    }
}
