//! When which pod is due. One entry per pod; a later one replaces an earlier.

use std::collections::{BTreeMap, BTreeSet};

use krablet_core::Mono;
use krablet_pod::PodUid;

#[derive(Debug, Default)]
pub(crate) struct Wakes {
    by_time: BTreeSet<(Mono, PodUid)>,
    by_pod: BTreeMap<PodUid, Mono>,
}

impl Wakes {
    pub(crate) fn set(&mut self, uid: &PodUid, at: Mono) {
        self.clear(uid);
        self.by_pod.insert(uid.clone(), at);
        self.by_time.insert((at, uid.clone()));
    }

    pub(crate) fn clear(&mut self, uid: &PodUid) {
        if let Some(at) = self.by_pod.remove(uid) {
            self.by_time.remove(&(at, uid.clone()));
        }
    }

    pub(crate) fn next(&self) -> Option<Mono> {
        self.by_time.first().map(|(at, _)| *at)
    }

    pub(crate) fn take_due(&mut self, now: Mono) -> Vec<PodUid> {
        let mut due = Vec::new();
        while let Some((at, uid)) = self.by_time.first().cloned()
            && at <= now
        {
            self.clear(&uid);
            due.push(uid);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(seconds: u64) -> Mono {
        Mono(Duration::from_secs(seconds))
    }

    #[test]
    fn due_pods_come_in_order_of_time_and_once() {
        let mut wakes = Wakes::default();
        wakes.set(&"a".into(), at(5));
        wakes.set(&"b".into(), at(3));
        wakes.set(&"c".into(), at(9));
        wakes.set(&"a".into(), at(1));
        assert_eq!(wakes.next(), Some(at(1)));
        assert_eq!(wakes.take_due(at(4)), [PodUid::from("a"), "b".into()]);
        wakes.clear(&"c".into());
        assert_eq!(wakes.next(), None);
        assert!(wakes.take_due(at(100)).is_empty());
    }
}
