//! The observer as others hold it. Asks go into one inbox, where asks of a kind for one pod are
//! one; views come out of a map that only the observer writes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use krablet_pod::observed::ObservedPod;
use krablet_pod::{PodRef, PodUid, Ticket};
use tokio::sync::{Notify, oneshot, watch};

use crate::ObserveError;
use crate::change::{Changes, Queue};
use crate::stats::{ObserverStats, RuntimeHealth};

pub(crate) type Reply<T> = oneshot::Sender<Result<T, ObserveError>>;

/// Somebody who waits for a view of one pod.
pub(crate) struct Waiter {
    pub pod: PodRef,
    pub than: Ticket,
    pub reply: Reply<Arc<ObservedPod>>,
}

/// Somebody who waits for all pods.
pub(crate) struct AllWaiter {
    pub than: Ticket,
    pub reply: Reply<Vec<Arc<ObservedPod>>>,
}

/// What others ask of the observer. As long as the callers that wait, and the pods they name.
#[derive(Default)]
pub(crate) struct Inbox {
    pub hints: BTreeSet<PodUid>,
    /// Pods whose hold began or ended, and which of both was last.
    pub held: BTreeMap<PodUid, bool>,
    pub waiters: Vec<Waiter>,
    pub all_waiters: Vec<AllWaiter>,
    holds: BTreeMap<PodUid, u32>,
    closed: bool,
}

pub(crate) struct Shared {
    tickets: AtomicU64,
    inbox: Mutex<Inbox>,
    pub(crate) asked: Notify,
    views: RwLock<BTreeMap<PodUid, Arc<ObservedPod>>>,
    pub(crate) stats: Mutex<ObserverStats>,
    pub(crate) changes: Arc<Queue>,
}

impl Shared {
    pub(crate) fn new() -> Self {
        Self {
            tickets: AtomicU64::new(0),
            inbox: Mutex::default(),
            asked: Notify::new(),
            views: RwLock::default(),
            stats: Mutex::default(),
            changes: Arc::default(),
        }
    }

    /// A new ticket, greater than all before it.
    pub(crate) fn ticket(&self) -> Ticket {
        Ticket(self.tickets.fetch_add(1, Ordering::SeqCst) + 1)
    }

    /// The newest ticket issued so far.
    pub(crate) fn newest_ticket(&self) -> Ticket {
        Ticket(self.tickets.load(Ordering::SeqCst))
    }

    pub(crate) fn publish(&self, view: &Arc<ObservedPod>) {
        let mut views = self.views.write().unwrap_or_else(PoisonError::into_inner);
        if view.is_absent() {
            views.remove(&view.pod.uid);
        } else {
            views.insert(view.pod.uid.clone(), view.clone());
        }
    }

    pub(crate) fn stats(&self) -> MutexGuard<'_, ObserverStats> {
        self.stats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was asked since the last time.
    pub(crate) fn take_asks(&self) -> Inbox {
        let mut inbox = self.inbox();
        Inbox {
            hints: std::mem::take(&mut inbox.hints),
            held: std::mem::take(&mut inbox.held),
            waiters: std::mem::take(&mut inbox.waiters),
            all_waiters: std::mem::take(&mut inbox.all_waiters),
            ..Inbox::default()
        }
    }

    /// No one will answer any more: who waits is let go.
    pub(crate) fn close(&self) {
        let mut inbox = self.inbox();
        inbox.closed = true;
        inbox.waiters.clear();
        inbox.all_waiters.clear();
    }

    fn ask(&self, put: impl FnOnce(&mut Inbox)) {
        let mut inbox = self.inbox();
        if !inbox.closed {
            put(&mut inbox);
            drop(inbox);
            self.asked.notify_one();
        }
    }
}

/// A handle on the observer.
#[derive(Clone)]
pub struct ObserverHandle {
    pub(crate) shared: Arc<Shared>,
    pub(crate) health: watch::Receiver<RuntimeHealth>,
}

impl ObserverHandle {
    /// Issues a ticket: whatever is complete by now is part of any observation newer than it.
    pub fn ticket(&self) -> Ticket {
        self.shared.ticket()
    }

    /// A hint that something of the pod may have changed: it is looked at soon.
    pub fn request(&self, pod: &PodUid) {
        self.shared.ask(|inbox| {
            inbox.hints.insert(pod.clone());
        });
    }

    /// A view of the pod that began after the ticket was issued; looks at the runtime if there is
    /// none. A pod the runtime knows nothing of comes as an absent one, proven by a list. Fails
    /// when the runtime does not answer for this pod in time.
    pub async fn newer_than(
        &self,
        pod: &PodRef,
        than: Ticket,
    ) -> Result<Arc<ObservedPod>, ObserveError> {
        if let Some(view) = self.latest(&pod.uid).filter(|view| view.ticket > than) {
            return Ok(view);
        }
        let (reply, answer) = oneshot::channel();
        let pod = pod.clone();
        self.shared
            .ask(|inbox| inbox.waiters.push(Waiter { pod, than, reply }));
        answer.await.unwrap_or(Err(ObserveError::Stopped))
    }

    /// The last view of a pod the runtime holds something of, however old.
    pub fn latest(&self, uid: &PodUid) -> Option<Arc<ObservedPod>> {
        let views = self.shared.views.read();
        views
            .unwrap_or_else(PoisonError::into_inner)
            .get(uid)
            .cloned()
    }

    /// The last views of all pods, however old.
    pub fn all(&self) -> Vec<Arc<ObservedPod>> {
        let views = self.shared.views.read();
        let views = views.unwrap_or_else(PoisonError::into_inner);
        views.values().cloned().collect()
    }

    /// All pods the runtime holds something of, as of a full list that began after the ticket.
    /// Pods that changed are looked at first; where the runtime does not answer for one of them, or
    /// takes longer than a moment ([`crate::ObserverConfig::slow_look`]), what the list tells of it must
    /// do, and its newly exited containers come without an exit. So every pod that is not absent comes,
    /// and as new as asked for; of one that comes from the list [`Self::latest`] may still know nothing.
    pub async fn all_newer_than(
        &self,
        than: Ticket,
    ) -> Result<Vec<Arc<ObservedPod>>, ObserveError> {
        let (reply, answer) = oneshot::channel();
        self.shared
            .ask(|inbox| inbox.all_waiters.push(AllWaiter { than, reply }));
        answer.await.unwrap_or(Err(ObserveError::Stopped))
    }

    /// Says that the caller is acting on a pod. Until the hold is dropped, hints only mark the
    /// pod; one look follows at the end, or after a second of holding. Asking for a newer view
    /// is not held back.
    pub fn hold(&self, uid: &PodUid) -> Hold {
        self.shared.ask(|inbox| {
            *inbox.holds.entry(uid.clone()).or_default() += 1;
            inbox.held.insert(uid.clone(), true);
        });
        Hold {
            shared: self.shared.clone(),
            uid: uid.clone(),
        }
    }

    /// The news of what changed. For one reader.
    pub fn take_changes(&self) -> Changes {
        Changes {
            queue: self.shared.changes.clone(),
        }
    }

    pub fn health(&self) -> watch::Receiver<RuntimeHealth> {
        self.health.clone()
    }

    pub fn stats(&self) -> ObserverStats {
        self.shared.stats().clone()
    }
}

/// A pod is being acted on, until this is dropped.
#[must_use = "the hold ends when this is dropped"]
pub struct Hold {
    shared: Arc<Shared>,
    uid: PodUid,
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.shared.ask(|inbox| {
            let Some(count) = inbox.holds.get_mut(&self.uid) else {
                return;
            };
            *count -= 1;
            if *count == 0 {
                inbox.holds.remove(&self.uid);
                inbox.held.insert(self.uid.clone(), false);
            }
        });
    }
}
