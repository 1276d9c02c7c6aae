//! An answer about all pods in the making: the list is there, and some of its pods are still
//! looked at. One that takes long is told of as the list shows it, so that it keeps nobody from knowing
//! the others.

use std::collections::BTreeMap;
use std::sync::Arc;

use krablet_pod::observed::ObservedPod;
use krablet_pod::{PodRef, PodUid, Ticket};

use crate::convert::{self, Listed};
use crate::handle::{AllWaiter, Reply};

pub(crate) struct Gathering {
    than: Ticket,
    /// The list's.
    ticket: Ticket,
    seen: BTreeMap<PodUid, Arc<ObservedPod>>,
    pending: BTreeMap<PodUid, Listed>,
    reply: Reply<Vec<Arc<ObservedPod>>>,
}

impl Gathering {
    /// `ask` gives a view newer than the ticket, or sees to it that there will be one.
    pub(crate) fn new(
        waiter: AllWaiter,
        ticket: Ticket,
        listed: &BTreeMap<PodUid, Listed>,
        mut ask: impl FnMut(&PodRef, Ticket) -> Option<Arc<ObservedPod>>,
    ) -> Self {
        let (mut seen, mut pending) = (BTreeMap::new(), BTreeMap::new());
        for (uid, listed) in listed {
            match ask(&listed.pod, waiter.than) {
                Some(view) => drop(seen.insert(uid.clone(), view)),
                None => drop(pending.insert(uid.clone(), listed.clone())),
            }
        }
        Self {
            than: waiter.than,
            ticket,
            seen,
            pending,
            reply: waiter.reply,
        }
    }

    /// Takes the views that have become new enough.
    pub(crate) fn look_again(
        &mut self,
        mut newer: impl FnMut(&PodUid, Ticket) -> Option<Arc<ObservedPod>>,
    ) {
        let (than, seen) = (self.than, &mut self.seen);
        self.pending.retain(|uid, _| match newer(uid, than) {
            Some(view) => {
                seen.insert(uid.clone(), view);
                false
            }
            None => true,
        });
    }

    pub(crate) fn waits_for(&self, uid: &PodUid) -> bool {
        self.pending.contains_key(uid)
    }

    /// Some pods could not be looked at, or not soon: what the list said of them must do. `view` gives what
    /// was known of them before.
    pub(crate) fn give_up<'a>(
        &mut self,
        on: impl Fn(&PodUid) -> bool,
        view: impl Fn(&PodUid) -> Option<&'a Arc<ObservedPod>>,
    ) {
        for (uid, listed) in self.pending.extract_if(.., |uid, _| on(uid)) {
            let view = convert::from_list(&listed, view(&uid).map(|v| &**v), self.ticket);
            self.seen.insert(uid, Arc::new(view));
        }
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.pending.is_empty()
    }

    pub(crate) fn answer(self) {
        let present = self.seen.into_values().filter(|view| !view.is_absent());
        // Whoever asked may have gone.
        let _ = self.reply.send(Ok(present.collect()));
    }
}
