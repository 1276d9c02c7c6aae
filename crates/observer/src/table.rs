//! The state of the observer, without its doing: which pods were seen at which ticket, which are
//! dirty, whose refresh runs, and which may start now. Values in, values out.
//!
//! - An observation counts for what was complete when its ticket was issued, and for no more.
//! - A pod has at most one refresh under way and one to follow.
//! - A hint during a refresh forces one more; a hint of a held pod waits for the hold's end, but
//!   no longer than a second.
//! - Pods that come in a crowd are proven absent by one list of all.
//! - A pod whose refresh fails is tried again at growing distances; others never wait for it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use krablet_pod::observed::ObservedPod;
use krablet_pod::{PodRef, PodUid, Ticket};
use tokio::time::Instant;

use crate::change::{Change, between};
use crate::convert::{Listed, matches};

const FIRST_RETRY: Duration = Duration::from_secs(1);
const LONGEST_RETRY: Duration = Duration::from_secs(30);
/// From so many on, pods that come together are looked for together.
const CROWD: usize = 4;

/// How refreshes are paced.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Refreshes at a time, not counting slow ones.
    pub at_once: usize,
    /// From here on a refresh is slow: it gives its place to another, and only who waits for this very
    /// pod waits for it still.
    pub slow_after: Duration,
    /// The longest a hint waits for a hold to end.
    pub hold: Duration,
}

/// A hint not yet followed up: when it came first, and how far the tickets had got when it came last.
#[derive(Clone, Copy, Debug)]
struct Dirty {
    since: Instant,
    mark: Ticket,
}

/// Somebody waits for an observation newer than `than`.
#[derive(Clone, Copy, Debug)]
struct Wanted {
    since: Instant,
    than: Ticket,
}

#[derive(Debug)]
struct Entry {
    pod: PodRef,
    view: Option<Arc<ObservedPod>>,
    /// The view is known to hold as of this ticket.
    proven: Ticket,
    refresh: Option<Ticket>,
    dirty: Option<Dirty>,
    wanted: Option<Wanted>,
    held: bool,
    failures: u32,
    retry_at: Option<Instant>,
}

impl Entry {
    fn new(pod: PodRef) -> Self {
        Self {
            pod,
            view: None,
            proven: Ticket::default(),
            refresh: None,
            dirty: None,
            wanted: None,
            held: false,
            failures: 0,
            retry_at: None,
        }
    }

    /// When the next refresh is due, and since when it has been called for.
    fn due(&self, limits: &Limits) -> Option<(Instant, Instant)> {
        if self.refresh.is_some() {
            return None;
        }
        let wanted = self.wanted.map(|wanted| (wanted.since, wanted.since));
        let dirty = self.dirty.map(|dirty| {
            let released = match self.held {
                true => dirty.since + limits.hold,
                false => dirty.since,
            };
            let at = self.retry_at.map_or(released, |retry| retry.max(released));
            (at, dirty.since)
        });
        wanted.into_iter().chain(dirty).min()
    }

    /// The view holds as of `ticket`: whoever asked for that much is content.
    fn prove(&mut self, ticket: Ticket) {
        self.proven = ticket;
        self.wanted = self.wanted.filter(|wanted| wanted.than >= ticket);
        self.dirty = self.dirty.filter(|dirty| dirty.mark >= ticket);
        self.failures = 0;
        self.retry_at = None;
    }

    fn mark(&mut self, now: Instant, mark: Ticket) {
        let since = self.dirty.map_or(now, |dirty| dirty.since);
        self.dirty = Some(Dirty { since, mark });
    }

    /// Somebody waits to hear whether the runtime holds anything of a pod that was never seen.
    fn is_unknown(&self) -> bool {
        self.view.is_none()
            && self.wanted.is_some()
            && self.dirty.is_none()
            && self.refresh.is_none()
    }

    /// A full list of that ticket will tell what is waited for.
    fn is_told_by(&self, list: Ticket) -> bool {
        self.is_unknown() && self.wanted.is_some_and(|wanted| wanted.than < list)
    }

    fn is_idle(&self) -> bool {
        let calm = self.refresh.is_none() && self.dirty.is_none() && self.wanted.is_none();
        calm && !self.held
    }

    fn set_view(&mut self, view: ObservedPod) -> (Arc<ObservedPod>, Option<Change>) {
        let view = Arc::new(view);
        let change = between(self.view.as_deref(), &view);
        self.pod = view.pod.clone();
        self.view = Some(view.clone());
        (view, change)
    }
}

/// A new view of a pod.
#[derive(Debug)]
pub(crate) struct Applied {
    pub view: Arc<ObservedPod>,
    pub change: Option<Change>,
}

/// What a full list brought to light.
#[derive(Debug, Default)]
pub(crate) struct Audited {
    /// Pods the list proved to be gone.
    pub absent: Vec<Applied>,
    /// Pods that differ and that nobody had hinted at. None, if events are to be trusted.
    pub surprises: usize,
}

/// A refresh to be done.
#[derive(Debug)]
pub(crate) struct Start {
    pub pod: PodRef,
    pub ticket: Ticket,
    pub previous: Option<Arc<ObservedPod>>,
}

pub(crate) struct Table {
    limits: Limits,
    pods: BTreeMap<PodUid, Entry>,
    /// Pods that are dirty or waited for.
    active: BTreeSet<PodUid>,
    /// Refreshes under way and when they began.
    running: BTreeMap<PodUid, Instant>,
}

impl Table {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            limits,
            pods: BTreeMap::new(),
            active: BTreeSet::new(),
            running: BTreeMap::new(),
        }
    }

    fn entry(&mut self, uid: &PodUid) -> &mut Entry {
        let unnamed = || Entry::new(PodRef::new(uid.clone(), "", ""));
        self.pods.entry(uid.clone()).or_insert_with(unnamed)
    }

    /// Something may have changed. `mark`: the newest ticket issued so far.
    pub(crate) fn hint(&mut self, uid: &PodUid, now: Instant, mark: Ticket) {
        self.entry(uid).mark(now, mark);
        self.active.insert(uid.clone());
    }

    /// While held, hints wait.
    pub(crate) fn set_held(&mut self, uid: &PodUid, held: bool) {
        if held || self.pods.contains_key(uid) {
            self.entry(uid).held = held;
            self.tidy(uid);
        }
    }

    /// A view newer than `than`, or a refresh that will bring one.
    pub(crate) fn ask(
        &mut self,
        pod: &PodRef,
        than: Ticket,
        now: Instant,
    ) -> Option<Arc<ObservedPod>> {
        if let Some(view) = self.newer(&pod.uid, than) {
            return Some(view);
        }
        let entry = self.entry(&pod.uid);
        if entry.view.is_none() {
            entry.pod = pod.clone();
        }
        if entry.refresh.is_none_or(|ticket| ticket <= than) {
            let asked = entry.wanted;
            entry.wanted = Some(Wanted {
                since: asked.map_or(now, |w| w.since),
                than: asked.map_or(than, |w| w.than.max(than)),
            });
            self.active.insert(pod.uid.clone());
        }
        None
    }

    /// The view, if it is known to hold later than `than`. Stamped with what is known.
    pub(crate) fn newer(&mut self, uid: &PodUid, than: Ticket) -> Option<Arc<ObservedPod>> {
        let entry = self.pods.get_mut(uid)?;
        if entry.proven <= than {
            return None;
        }
        let proven = entry.proven;
        let view = entry.view.as_mut()?;
        if view.ticket < proven {
            Arc::make_mut(view).ticket = proven;
        }
        Some(view.clone())
    }

    pub(crate) fn view(&self, uid: &PodUid) -> Option<&Arc<ObservedPod>> {
        self.pods.get(uid)?.view.as_ref()
    }

    /// The pod a container or sandbox was last seen in.
    pub(crate) fn owner_of(&self, id: &str) -> Option<PodUid> {
        let holds = |view: &ObservedPod| {
            view.containers.iter().any(|c| c.id.as_str() == id)
                || view.sandboxes.iter().any(|s| s.id.as_str() == id)
        };
        let owner = self
            .pods
            .iter()
            .find(|(_, e)| e.view.as_deref().is_some_and(holds));
        owner.map(|(uid, _)| uid.clone())
    }

    /// So many pods that were never seen are waited for that one list of all is less than looking at each.
    pub(crate) fn has_crowd(&self) -> bool {
        let unknown = |uid: &&PodUid| self.pods.get(*uid).is_some_and(Entry::is_unknown);
        self.active.len() >= CROWD && self.active.iter().filter(unknown).count() >= CROWD
    }

    /// Refreshes that may start now, those called for first in front. Each takes its ticket here,
    /// before any call is made. What the full list under way will tell is not asked for besides.
    pub(crate) fn start_due(
        &mut self,
        now: Instant,
        list: Option<Ticket>,
        mut ticket: impl FnMut() -> Ticket,
    ) -> Vec<Start> {
        if self.active.is_empty() {
            return Vec::new();
        }
        let places = self.limits.at_once.saturating_sub(self.in_places(now));
        let due = self.active.iter().filter_map(|uid| {
            let entry = self.pods.get(uid)?;
            let (at, since) = entry.due(&self.limits)?;
            let told = list.is_some_and(|list| entry.is_told_by(list));
            (at <= now && !told).then(|| (since, uid.clone()))
        });
        let mut due: Vec<_> = due.collect();
        due.sort();
        due.truncate(places);
        let mut starts = Vec::with_capacity(due.len());
        for (_, uid) in due {
            self.active.remove(&uid);
            self.running.insert(uid.clone(), now);
            let entry = self.entry(&uid);
            entry.dirty = None;
            entry.wanted = None;
            let ticket = ticket();
            entry.refresh = Some(ticket);
            starts.push(Start {
                pod: entry.pod.clone(),
                ticket,
                previous: entry.view.clone(),
            });
        }
        starts
    }

    fn in_places(&self, now: Instant) -> usize {
        let fast = |began: &&Instant| **began + self.limits.slow_after > now;
        self.running.values().filter(fast).count()
    }

    /// Refreshes under way, and from when on each is slow.
    pub(crate) fn slow_from(&self) -> impl Iterator<Item = (&PodUid, Instant)> {
        let after = self.limits.slow_after;
        self.running.iter().map(move |(uid, at)| (uid, *at + after))
    }

    pub(crate) fn is_slow(&self, uid: &PodUid, now: Instant) -> bool {
        let began = self.running.get(uid);
        began.is_some_and(|at| *at + self.limits.slow_after <= now)
    }

    /// When `start_due` has to be asked again at the latest.
    pub(crate) fn wake_at(&self, now: Instant) -> Option<Instant> {
        let due = self
            .active
            .iter()
            .filter_map(|uid| Some(self.pods.get(uid)?.due(&self.limits)?.0))
            .min()?;
        if due > now {
            return Some(due);
        }
        // Due, and no place free: until one is, or counts as slow.
        let slow = self.slow_from().map(|(_, at)| at);
        slow.filter(|at| *at > now).min()
    }

    /// A refresh brought a view.
    pub(crate) fn refreshed(&mut self, view: ObservedPod) -> Applied {
        let uid = view.pod.uid.clone();
        self.running.remove(&uid);
        let entry = self.entry(&uid);
        entry.refresh = None;
        entry.prove(view.ticket);
        let (view, change) = entry.set_view(view);
        self.activate(&uid);
        Applied { view, change }
    }

    /// A refresh failed: whoever waited is told by the caller, and it is tried again later.
    pub(crate) fn failed(&mut self, uid: &PodUid, now: Instant, mark: Ticket) {
        self.running.remove(uid);
        let entry = self.entry(uid);
        entry.refresh = None;
        entry.wanted = None;
        let delay = FIRST_RETRY * 2u32.saturating_pow(entry.failures.min(5));
        entry.failures = entry.failures.saturating_add(1);
        entry.retry_at = Some(now + delay.min(LONGEST_RETRY));
        entry.mark(now, mark);
        self.activate(uid);
    }

    pub(crate) fn failures(&self, uid: &PodUid) -> u32 {
        self.pods.get(uid).map_or(0, |entry| entry.failures)
    }

    /// Compares a full list that began at `ticket` with the views older than it. Equal ones are
    /// proven anew, pods the list does not hold are gone, the others get dirty.
    pub(crate) fn audited(
        &mut self,
        ticket: Ticket,
        listed: &BTreeMap<PodUid, Listed>,
        now: Instant,
    ) -> Audited {
        let mut audited = Audited::default();
        for (uid, listed) in listed {
            let new = || Entry::new(listed.pod.clone());
            let entry = self.pods.entry(uid.clone()).or_insert_with(new);
            if entry.proven > ticket || entry.refresh.is_some_and(|r| r > ticket) {
                continue;
            }
            let same = entry
                .view
                .as_deref()
                .is_some_and(|view| matches(listed, view));
            match (same, entry.refresh.is_some()) {
                (true, false) => entry.prove(ticket),
                // The refresh under way may bring an older view than this list; let it.
                (true, true) => {}
                (false, _) => {
                    let busy = entry.refresh.is_some() || entry.held;
                    let expected = busy || entry.dirty.is_some();
                    audited.surprises += usize::from(!expected);
                    // A hint from before the list, even if none came.
                    let mark = entry.dirty.map_or(Ticket::default(), |dirty| dirty.mark);
                    entry.mark(now, mark.max(ticket));
                }
            }
            self.activate(uid);
        }
        let unlisted = self.pods.keys().filter(|uid| !listed.contains_key(*uid));
        for uid in unlisted.cloned().collect::<Vec<_>>() {
            self.unlisted(&uid, ticket, now, &mut audited);
        }
        audited
    }

    fn unlisted(&mut self, uid: &PodUid, ticket: Ticket, now: Instant, audited: &mut Audited) {
        let Some(entry) = self.pods.get_mut(uid) else {
            return;
        };
        if entry.proven > ticket || entry.refresh.is_some_and(|r| r > ticket) {
            return;
        }
        let seen = entry.view.as_deref().is_some_and(|view| !view.is_absent());
        if entry.refresh.is_some() {
            if seen {
                entry.mark(now, ticket);
            }
        } else {
            audited.surprises += usize::from(seen && entry.dirty.is_none() && !entry.held);
            entry.prove(ticket);
            let (view, change) = entry.set_view(ObservedPod::absent(entry.pod.clone(), ticket));
            audited.absent.push(Applied { view, change });
        }
        self.activate(uid);
    }

    /// Forgets a pod that is gone and that nobody is busy with.
    pub(crate) fn tidy(&mut self, uid: &PodUid) {
        let gone = |entry: &Entry| {
            let absent = entry.view.as_deref().is_none_or(ObservedPod::is_absent);
            absent && entry.is_idle()
        };
        if self.pods.get(uid).is_some_and(gone) {
            self.pods.remove(uid);
        }
    }

    /// Keeps the set of active pods in step with an entry.
    fn activate(&mut self, uid: &PodUid) {
        let calls = |entry: &Entry| entry.dirty.is_some() || entry.wanted.is_some();
        if self.pods.get(uid).is_some_and(calls) {
            self.active.insert(uid.clone());
        } else {
            self.active.remove(uid);
        }
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.pods.len()
    }
}

#[cfg(test)]
#[path = "table_tests.rs"]
mod tests;
