//! A map that forgets what was not touched for longest.

use std::collections::BTreeMap;

pub(super) struct Lru<V> {
    capacity: usize,
    turn: u64,
    entries: BTreeMap<u64, (u64, V)>,
    /// By the turn of the last touch.
    order: BTreeMap<u64, u64>,
}

impl<V> Lru<V> {
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            capacity: capacity.max(1),
            turn: 0,
            entries: BTreeMap::new(),
            order: BTreeMap::new(),
        }
    }

    /// The entry of a key, made if there is none.
    pub(super) fn touch(&mut self, key: u64, make: impl FnOnce() -> V) -> &mut V {
        self.turn += 1;
        if let Some((turn, _)) = self.entries.get(&key) {
            self.order.remove(turn);
        } else if self.entries.len() == self.capacity
            && let Some((_, oldest)) = self.order.pop_first()
        {
            self.entries.remove(&oldest);
        }
        self.order.insert(self.turn, key);
        let entry = self.entries.entry(key).or_insert_with(|| (0, make()));
        entry.0 = self.turn;
        &mut entry.1
    }

    #[cfg(test)]
    fn keys(&self) -> Vec<u64> {
        self.order.values().copied().collect()
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
        assert_eq!(lru.keys(), [1, 3]);
        assert_eq!(*lru.touch(2, || 0), 0);
        assert_eq!(lru.entries.len(), 2);
    }
}
