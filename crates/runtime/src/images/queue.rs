//! Whose pull is next. Pulls wait for a free slot; it goes to the registry that has the fewest pulls under way, and
//! there to who came first: a registry that is slow does not hold up the others. Who waits for an image that
//! somebody else brings in the meantime is told so.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::config::ImageSettings;

pub(crate) struct PullQueue {
    /// None: as many as like.
    slots: Option<usize>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    given: u64,
    places: BTreeMap<u64, Waiting>,
}

struct Waiting {
    registry: String,
    image: String,
    bell: Arc<Notify>,
    granted: bool,
    arrived: bool,
}

impl State {
    fn pulling(&self) -> usize {
        self.places.values().filter(|w| w.granted).count()
    }

    fn pulling_from(&self, registry: &str) -> usize {
        let here = self.places.values().filter(|w| w.registry == registry);
        here.filter(|w| w.granted).count()
    }

    /// Gives free slots away.
    fn grant(&mut self, slots: Option<usize>) {
        while slots.is_none_or(|slots| self.pulling() < slots) {
            let waiting = self.places.iter().filter(|(_, w)| !w.granted);
            let next = waiting.min_by_key(|(number, w)| (self.pulling_from(&w.registry), **number));
            let Some(number) = next.map(|(number, _)| *number) else {
                return;
            };
            if let Some(next) = self.places.get_mut(&number) {
                next.granted = true;
                next.bell.notify_one();
            }
        }
    }
}

/// What there is to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Pull.
    Go,
    /// Somebody else has pulled the same image.
    Arrived,
}

/// A place in the queue, and the slot once it was given one. Dropping it gives either back.
pub(crate) struct Place<'a> {
    queue: &'a PullQueue,
    number: u64,
    bell: Arc<Notify>,
}

impl PullQueue {
    pub(crate) fn new(settings: &ImageSettings) -> Self {
        let slots = match (settings.serialize_pulls, settings.max_parallel_pulls) {
            (true, _) => Some(1),
            (false, None | Some(0)) => None,
            (false, Some(n)) => Some(n as usize),
        };
        Self {
            slots,
            state: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn enter(&self, registry: &str, image: &str) -> Place<'_> {
        let bell = Arc::new(Notify::new());
        let mut state = self.lock();
        state.given += 1;
        let number = state.given;
        let waiting = Waiting {
            registry: registry.to_owned(),
            image: image.to_owned(),
            bell: bell.clone(),
            granted: false,
            arrived: false,
        };
        state.places.insert(number, waiting);
        state.grant(self.slots);
        Place {
            queue: self,
            number,
            bell,
        }
    }

    /// The image was pulled.
    pub(crate) fn arrived(&self, image: &str) {
        let mut state = self.lock();
        let waiting = state.places.values_mut();
        for place in waiting.filter(|w| !w.granted && w.image == image) {
            place.arrived = true;
            place.bell.notify_one();
        }
    }
}

impl Place<'_> {
    pub(crate) async fn turn(&self) -> Turn {
        loop {
            if let Some(turn) = self.look() {
                return turn;
            }
            self.bell.notified().await;
        }
    }

    fn look(&self) -> Option<Turn> {
        let mut state = self.queue.lock();
        let place = state.places.get_mut(&self.number)?;
        // Who was told both looks for the image first.
        if std::mem::take(&mut place.arrived) {
            return Some(Turn::Arrived);
        }
        place.granted.then_some(Turn::Go)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut state = self.queue.lock();
        state.places.remove(&self.number);
        state.grant(self.queue.slots);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    fn queue(slots: u32) -> PullQueue {
        PullQueue::new(&ImageSettings {
            serialize_pulls: slots == 1,
            max_parallel_pulls: Some(slots),
            ..ImageSettings::default()
        })
    }

    fn has_turn(place: &Place<'_>) -> bool {
        place.turn().now_or_never() == Some(Turn::Go)
    }

    #[test]
    fn a_slow_registry_does_not_hold_up_the_others() {
        let queue = queue(2);
        let slow: Vec<Place<'_>> = (0..4)
            .map(|n| queue.enter("slow", &n.to_string()))
            .collect();
        let quick = queue.enter("quick", "q");
        let turns = |slow: &[Place<'_>]| slow.iter().map(has_turn).collect::<Vec<_>>();
        assert_eq!(
            (turns(&slow), has_turn(&quick)),
            (vec![true, true, false, false], false)
        );
        let mut slow = slow;
        drop(slow.remove(0));
        assert_eq!(
            (turns(&slow), has_turn(&quick)),
            (vec![true, false, false], true)
        );
        drop(quick);
        assert_eq!(turns(&slow), [true, true, false]);
    }

    #[test]
    fn first_come_first_served_and_who_leaves_is_passed_over() {
        let queue = queue(1);
        let mut places: Vec<Place<'_>> = (0..4).map(|_| queue.enter("r", "i")).collect();
        places.remove(1);
        drop(places.remove(0));
        assert_eq!(
            places.iter().map(has_turn).collect::<Vec<_>>(),
            [true, false]
        );
        places.clear();
        assert!(queue.lock().places.is_empty());
    }

    #[test]
    fn who_waits_is_told_that_the_image_came() {
        let queue = queue(1);
        let pulling = queue.enter("r", "a");
        let (same, other) = (queue.enter("r", "a"), queue.enter("r", "b"));
        queue.arrived("a");
        assert_eq!(same.turn().now_or_never(), Some(Turn::Arrived));
        assert_eq!(same.turn().now_or_never(), None, "told once");
        assert_eq!(other.turn().now_or_never(), None);
        assert!(has_turn(&pulling));
        drop(pulling);
        assert!(has_turn(&same));
    }
}
