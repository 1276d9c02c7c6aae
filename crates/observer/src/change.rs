//! What is new between two views of a pod, and the queue in which such news wait for their
//! reader: at most one entry per pod, newer news joining the older.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use krablet_pod::observed::{ContainerState, ObservedPod};
use krablet_pod::{ContainerId, PodRef, PodUid};
use tokio::sync::Notify;

/// More deaths of one pod than this, unread, and the oldest are forgotten.
const MAX_DIED: usize = 64;

/// Something of a pod changed in the runtime since the last report about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub pod: PodRef,
    /// Containers that ended: first seen exited, or gone without having been seen so.
    pub died: Vec<ContainerId>,
    /// Whether a sync can have something to do. Not so if all that happened is that dead
    /// containers or sandboxes were removed.
    pub worth_sync: bool,
    /// The view that showed it.
    pub observed: Arc<ObservedPod>,
}

/// The news between two views, if there are any. `None` as the old view: never seen, or absent.
pub(crate) fn between(old: Option<&ObservedPod>, new: &Arc<ObservedPod>) -> Option<Change> {
    let none = ObservedPod::absent(new.pod.clone(), new.ticket);
    let old = old.unwrap_or(&none);
    if old.sandboxes == new.sandboxes && old.containers == new.containers {
        return None;
    }
    let exited = |state| state == ContainerState::Exited;
    let newly_exited = new.containers.iter().filter(|c| {
        exited(c.state)
            && !old
                .container(&c.id)
                .is_some_and(|before| exited(before.state))
    });
    let vanished = old
        .containers
        .iter()
        .filter(|c| !exited(c.state) && new.container(&c.id).is_none());
    let died = newly_exited.chain(vanished).map(|c| c.id.clone()).collect();
    // What would be left of the old view had only the dead been removed.
    let containers = old
        .containers
        .iter()
        .filter(|c| !exited(c.state) || new.container(&c.id).is_some());
    let sandboxes = old
        .sandboxes
        .iter()
        .filter(|s| s.ready || new.sandboxes.iter().any(|n| n.id == s.id));
    let only_removals = containers.eq(&new.containers) && sandboxes.eq(&new.sandboxes);
    Some(Change {
        pod: new.pod.clone(),
        died,
        worth_sync: !only_removals,
        observed: new.clone(),
    })
}

#[derive(Default)]
struct Pending {
    order: VecDeque<PodUid>,
    changes: BTreeMap<PodUid, Change>,
}

#[derive(Default)]
pub(crate) struct Queue {
    pending: Mutex<Pending>,
    filled: Notify,
}

impl Queue {
    pub(crate) fn push(&self, change: Change) {
        let mut pending = self.pending();
        let uid = change.pod.uid.clone();
        match pending.changes.remove(&uid) {
            None => {
                pending.order.push_back(uid.clone());
                pending.changes.insert(uid, change);
            }
            Some(older) => {
                let merged = merge(older, change);
                pending.changes.insert(uid, merged);
            }
        }
        drop(pending);
        self.filled.notify_one();
    }

    fn pop(&self) -> Option<Change> {
        let mut pending = self.pending();
        let uid = pending.order.pop_front()?;
        pending.changes.remove(&uid)
    }

    fn pending(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn merge(older: Change, newer: Change) -> Change {
    let mut died = older.died;
    for id in newer.died {
        if !died.contains(&id) {
            died.push(id);
        }
    }
    let forgotten = died.len().saturating_sub(MAX_DIED);
    died.drain(..forgotten);
    Change {
        died,
        worth_sync: older.worth_sync || newer.worth_sync,
        ..newer
    }
}

/// The reading end of the news. Meant for one reader: two would share the news between them.
pub struct Changes {
    pub(crate) queue: Arc<Queue>,
}

impl Changes {
    /// The next pod with news, in the order their first unread news came. Safe to cancel.
    pub async fn next(&mut self) -> Change {
        loop {
            if let Some(change) = self.queue.pop() {
                return change;
            }
            self.queue.filled.notified().await;
        }
    }

    /// News that are there already.
    pub fn try_next(&mut self) -> Option<Change> {
        self.queue.pop()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::seen;

    fn news(old: &str, new: &str) -> Option<(Vec<String>, bool)> {
        let (old, new) = (seen(old), Arc::new(seen(new)));
        let change = between(Some(&old), &new)?;
        let died = change.died.iter().map(ToString::to_string).collect();
        Some((died, change.worth_sync))
    }

    #[test]
    fn news_between_views() {
        let died = |ids: &[&str], worth| {
            Some((
                ids.iter().map(|id| (*id).to_owned()).collect::<Vec<_>>(),
                worth,
            ))
        };
        // `s1+` a ready sandbox, `s1-` one that is not; `c1r` a running container, and so on.
        assert_eq!(news("s1+ c1r", "s1+ c1r"), None);
        assert_eq!(news("", "s1+"), died(&[], true));
        assert_eq!(news("s1+", "s1+ c1c"), died(&[], true));
        assert_eq!(news("s1+ c1c", "s1+ c1r"), died(&[], true));
        assert_eq!(news("s1+ c1r", "s1+ c1x"), died(&["c1"], true));
        assert_eq!(
            news("s1+", "s1+ c1x"),
            died(&["c1"], true),
            "lived between two looks"
        );
        assert_eq!(news("s1+ c1r", "s1+"), died(&["c1"], true), "gone unseen");
        assert_eq!(
            news("s1+ c1x c2r", "s1+ c2r"),
            died(&[], false),
            "the dead removed"
        );
        assert_eq!(news("s1- c1x", ""), died(&[], false));
        assert_eq!(news("s1+ c1x", ""), died(&[], true));
        assert_eq!(news("s1+ c1x", "s1- c1x"), died(&[], true));
        assert_eq!(news("s1+ c1x c2r", "s1+ c2x"), died(&["c2"], true));
        assert!(between(None, &Arc::new(seen(""))).is_none());
    }

    #[tokio::test]
    async fn news_of_one_pod_join_and_pods_keep_their_order() {
        let queue = Arc::new(Queue::default());
        let mut changes = Changes {
            queue: queue.clone(),
        };
        let change = |uid: &str, died: &str, worth_sync| {
            let pod = PodRef::new(uid, "ns", uid);
            Change {
                died: vec![died.into()],
                worth_sync,
                observed: Arc::new(ObservedPod::absent(pod.clone(), Default::default())),
                pod,
            }
        };
        queue.push(change("b", "1", false));
        queue.push(change("a", "2", false));
        queue.push(change("b", "3", true));
        queue.push(change("b", "1", false));
        let first = changes.next().await;
        assert_eq!(first.pod.uid.as_str(), "b");
        assert_eq!(first.died, [ContainerId::from("1"), ContainerId::from("3")]);
        assert!(first.worth_sync);
        assert_eq!(changes.next().await.pod.uid.as_str(), "a");
        assert_eq!(changes.try_next(), None);
        for n in 0..200 {
            queue.push(change("a", &n.to_string(), true));
        }
        let kept = changes.next().await.died;
        assert_eq!((kept.len(), kept[63].as_str()), (MAX_DIED, "199"));
    }
}
