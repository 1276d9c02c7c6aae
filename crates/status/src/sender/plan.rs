//! Which pod's status goes next. Only the newest status of a pod is ever sent, urgent ones first, a
//! few at a time and never two of one pod. A pod whose status was refused waits by itself; when the
//! server cannot be reached, one pod at a time asks whether it is back, and all others follow.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use krablet_core::status::Urgency;
use krablet_pod::PodUid;
use krablet_pod::api::{Pod, PodStatus};
use tokio::time::Instant;

const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(10);
/// A pod that only begins is told of after so long, unless it has come further by then: most pods run
/// within it, and one write says it all.
const BEGINNING: Duration = Duration::from_secs(1);
/// One that is to go and has ended, after so long: by then it is gone as a rule, and one write says that, too.
const ENDING: Duration = Duration::from_secs(1);
/// One that is to go and of which nothing has changed, after so long: most have ended by then.
const LEAVING: Duration = Duration::from_secs(10);
/// One that others go before, after so long.
const QUEUED: Duration = Duration::from_secs(10);

/// What the API server last heard of a pod.
#[derive(Clone, Debug)]
pub(super) struct Settled {
    /// Of the object it was said to; of a static pod, the mirror's.
    pub api_uid: PodUid,
    pub status: Arc<PodStatus>,
    /// Of the object after that; of one that is gone, as it was known before.
    pub resource_version: String,
    /// The object is gone, or it is another pod's now.
    pub gone: bool,
    /// The last phase was not told yet.
    pub held_back: bool,
}

/// How an attempt failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    /// The server could not be reached.
    Away,
    /// No answer came in time; that may be the server, or this one call.
    Silent,
    /// The server answered, and refused. It may ask for a wait.
    Refused { retry_after: Option<Duration> },
}

#[derive(Clone, Copy, Debug)]
struct Pending {
    since: Instant,
    urgency: Urgency,
}

impl Pending {
    fn urgent(&self) -> bool {
        self.urgency == Urgency::Urgent
    }

    fn due(&self) -> Instant {
        match self.urgency {
            Urgency::Urgent | Urgency::Normal => self.since,
            Urgency::Beginning => self.since + BEGINNING,
            Urgency::Leaving => self.since + LEAVING,
            Urgency::Ending => self.since + ENDING,
            Urgency::Queued => self.since + QUEUED,
        }
    }
}

#[derive(Debug, Default)]
struct Entry {
    /// The newest status there is. Each change makes another one, also in another life of a pod,
    /// where versions begin anew.
    noticed: Option<Arc<PodStatus>>,
    pending: Option<Pending>,
    in_flight: Option<Pending>,
    /// Nobody knows where to send it.
    parked: bool,
    tries: u32,
    not_before: Option<Instant>,
    /// A write may or may not have been done.
    unsure: bool,
    settled: Option<Settled>,
    /// The object as the last write should have left it, until the watch has caught up.
    answer: Option<Arc<Pod>>,
}

#[derive(Debug)]
pub(super) struct Plan {
    entries: BTreeMap<PodUid, Entry>,
    limit: usize,
    /// How many are on their way, and how many of them are not urgent.
    in_flight: usize,
    in_flight_normal: usize,
    away: Option<(u32, Instant)>,
}

impl Plan {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            entries: BTreeMap::new(),
            limit: limit.max(1),
            in_flight: 0,
            in_flight_normal: 0,
            away: None,
        }
    }

    /// The status was not noticed before.
    pub(super) fn is_news(&self, uid: &PodUid, status: &Arc<PodStatus>) -> bool {
        let noticed = self.entries.get(uid).and_then(|e| e.noticed.as_ref());
        noticed.is_none_or(|n| !Arc::ptr_eq(n, status))
    }

    /// There is something to tell of a pod.
    pub(super) fn tell(
        &mut self,
        uid: &PodUid,
        status: &Arc<PodStatus>,
        urgency: Urgency,
        now: Instant,
    ) {
        let entry = self.entries.entry(uid.clone()).or_default();
        entry.noticed = Some(status.clone());
        entry.parked = false;
        // What begins, or ends, after its turn has come has only just done so.
        let moves_on = |before: Urgency| {
            matches!(
                (before, urgency),
                (Urgency::Queued, Urgency::Beginning) | (Urgency::Leaving, Urgency::Ending)
            )
        };
        let before = entry.pending.filter(|p| !moves_on(p.urgency));
        let since = before.map_or(now, |p| p.since);
        entry.pending = Some(Pending { since, urgency });
    }

    /// What nobody could be told before may have found its listener.
    pub(super) fn unpark(&mut self) {
        for entry in self.entries.values_mut() {
            entry.parked = false;
        }
    }

    /// Forgets pods; those on their way are forgotten when they come back.
    pub(super) fn retain(&mut self, keep: impl Fn(&PodUid) -> bool) {
        self.entries
            .retain(|uid, entry| keep(uid) || entry.in_flight.is_some());
    }

    /// The pod to send next. It counts as on its way until [`Plan::settle`], [`Plan::fail`],
    /// [`Plan::park`] or [`Plan::let_go`].
    pub(super) fn next(&mut self, now: Instant) -> Option<PodUid> {
        if self.away.is_some_and(|(_, until)| until > now) {
            return None;
        }
        let due = self
            .candidates()
            .filter(|(_, entry, p)| entry.not_before.unwrap_or(now).max(p.due()) <= now);
        let (uid, _, _) = due.min_by_key(|(_, _, p)| (!p.urgent(), p.since))?;
        let uid = uid.clone();
        let entry = self.entries.get_mut(&uid)?;
        let pending = entry.pending.take()?;
        entry.in_flight = Some(pending);
        self.in_flight += 1;
        self.in_flight_normal += usize::from(!pending.urgent());
        Some(uid)
    }

    /// When [`Plan::next`] is worth asking again, if nothing happens before.
    pub(super) fn next_due(&self) -> Option<Instant> {
        let due = |(_, entry, p): (_, &Entry, Pending)| {
            entry.not_before.map_or(p.due(), |at| at.max(p.due()))
        };
        let earliest = self.candidates().map(due).min()?;
        let until = self.away.map_or(earliest, |(_, until)| until);
        Some(earliest.max(until))
    }

    /// Those that could go if it were time: there is a place for them.
    fn candidates(&self) -> impl Iterator<Item = (&PodUid, &Entry, Pending)> {
        let (limit, normal_limit) = match self.away {
            Some(_) => (1, 1),
            // Urgent ones find a free place even when all others are slow.
            None => (self.limit, self.limit - self.limit / 4),
        };
        let any = self.in_flight < limit;
        let normal = any && self.in_flight_normal < normal_limit;
        self.waiting()
            .filter(move |(_, _, p)| if p.urgent() { any } else { normal })
    }

    fn waiting(&self) -> impl Iterator<Item = (&PodUid, &Entry, Pending)> {
        self.entries
            .iter()
            .filter(|(_, e)| e.in_flight.is_none() && !e.parked)
            .filter_map(|(uid, e)| Some((uid, e, e.pending?)))
    }

    /// Pods that have something to be told, or are being told of.
    pub(super) fn undelivered(&self) -> usize {
        let open = |e: &&Entry| e.in_flight.is_some() || (e.pending.is_some() && !e.parked);
        self.entries.values().filter(open).count()
    }

    pub(super) fn settled(&self, uid: &PodUid) -> Option<&Settled> {
        self.entries.get(uid)?.settled.as_ref()
    }

    /// The object is to be asked for before it is written to.
    pub(super) fn is_unsure(&self, uid: &PodUid) -> bool {
        self.entries.get(uid).is_some_and(|e| e.unsure)
    }

    pub(super) fn answer(&self, uid: &PodUid) -> Option<&Arc<Pod>> {
        self.entries.get(uid)?.answer.as_ref()
    }

    pub(super) fn keep_answer(&mut self, uid: &PodUid, answer: Arc<Pod>) {
        if let Some(entry) = self.entries.get_mut(uid) {
            entry.answer = Some(answer);
        }
    }

    pub(super) fn forget_answer(&mut self, uid: &PodUid) {
        if let Some(entry) = self.entries.get_mut(uid) {
            entry.answer = None;
        }
    }

    /// The object may be there after all.
    pub(super) fn doubt_end(&mut self, uid: &PodUid) {
        let entry = self.entries.get_mut(uid);
        if let Some(settled) = entry.and_then(|e| e.settled.as_mut()) {
            settled.gone = false;
        }
    }

    /// What stands at the API server is not known any more.
    pub(super) fn doubt(&mut self, uid: &PodUid) {
        if let Some(entry) = self.entries.get_mut(uid) {
            entry.answer = None;
            entry.unsure = true;
        }
    }

    /// Back from its way: the entry, and since when it had something to tell.
    fn land(&mut self, uid: &PodUid) -> Option<(&mut Entry, Pending)> {
        let entry = self.entries.get_mut(uid)?;
        let flight = entry.in_flight.take()?;
        self.in_flight -= 1;
        self.in_flight_normal -= usize::from(!flight.urgent());
        Some((entry, flight))
    }

    /// The API server has heard it. Returns since when it had waited for that.
    pub(super) fn settle(
        &mut self,
        uid: &PodUid,
        settled: Settled,
        answer: Option<Arc<Pod>>,
    ) -> Option<Instant> {
        self.heard();
        let (entry, flight) = self.land(uid)?;
        entry.tries = 0;
        entry.not_before = None;
        entry.unsure = false;
        entry.settled = Some(settled);
        entry.answer = answer.or(entry.answer.take());
        Some(flight.since)
    }

    /// There is nobody to tell.
    pub(super) fn park(&mut self, uid: &PodUid) {
        if let Some((entry, flight)) = self.land(uid) {
            entry.pending = entry.pending.or(Some(flight));
            entry.parked = true;
        }
    }

    /// There is nothing to tell after all.
    pub(super) fn let_go(&mut self, uid: &PodUid) {
        self.land(uid);
    }

    /// It could not be told, and is tried again later; `stretch` makes the wait longer.
    pub(super) fn fail(
        &mut self,
        uid: &PodUid,
        trouble: Trouble,
        unsure: bool,
        stretch: f64,
        now: Instant,
    ) {
        match trouble {
            Trouble::Away => {
                let (tries, until) = self.away.unwrap_or((0, now));
                // Those that were on their way when it went away tell nothing new.
                if until <= now {
                    self.away = Some((tries.saturating_add(1), now + wait(tries, stretch)));
                }
            }
            Trouble::Silent => {}
            Trouble::Refused { .. } => self.heard(),
        }
        let Some((entry, flight)) = self.land(uid) else {
            return;
        };
        let newer = entry.pending.map_or(flight, |p| Pending {
            since: flight.since,
            ..p
        });
        entry.pending = Some(newer);
        entry.unsure |= unsure;
        let told = match trouble {
            Trouble::Away => return,
            Trouble::Silent => None,
            Trouble::Refused { retry_after } => retry_after,
        };
        let own = wait(entry.tries, stretch);
        entry.tries = entry.tries.saturating_add(1);
        entry.not_before = Some(now + told.map_or(own, |told| own.max(told)));
    }

    /// The server answered: whoever waited for that goes at once.
    fn heard(&mut self) {
        if self.away.is_some() {
            self.reached();
        }
    }

    /// The server is known to answer: nobody waits any longer.
    pub(super) fn reached(&mut self) {
        self.away = None;
        for entry in self.entries.values_mut() {
            entry.not_before = None;
        }
    }
}

fn wait(tries: u32, stretch: f64) -> Duration {
    let doubled = FIRST_WAIT.saturating_mul(1 << tries.min(10));
    doubled.min(LONGEST_WAIT).mul_f64(stretch)
}

#[cfg(test)]
mod tests;
