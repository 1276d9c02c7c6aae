//! The one task that writes views. It reads events, asks and timers, starts observations, and
//! hands their results to the table; every answer to anybody leaves from here.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use krablet_cri::{EventStream, RuntimeService, v1};
use krablet_linux::{Files, WallClock};
use krablet_pod::observed::ObservedPod;
use krablet_pod::{PodRef, PodUid, Ticket};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};

use crate::convert::{self, Listed};
use crate::gather::Gathering;
use crate::handle::{AllWaiter, Reply, Shared, Waiter};
use crate::inspect::Reach;
use crate::pacing::Pacing;
use crate::stats::{Overdue, RuntimeHealth};
use crate::table::{Applied, Start, Table};
use crate::{ObserveError, ObserverConfig};

/// Events taken before anything else gets its turn again.
const MAX_EVENTS: usize = 256;

/// `None`: the stream ended.
type Event = Option<krablet_cri::Result<v1::ContainerEventResponse>>;

/// What came back from the runtime.
pub(crate) enum Done {
    Looked {
        pod: PodRef,
        began: Instant,
        result: Result<ObservedPod, ObserveError>,
    },
    Listed {
        ticket: Ticket,
        began: Instant,
        result: Result<BTreeMap<PodUid, Listed>, ObserveError>,
    },
    Subscribed(krablet_cri::Result<EventStream>),
    Pinged(Result<(), String>),
}

/// The observer's task. Nothing is observed until it runs, and nobody waits in vain once it is
/// dropped.
pub struct Observer {
    pub(crate) config: ObserverConfig,
    pub(crate) runtime: Arc<dyn RuntimeService>,
    pub(crate) files: Arc<dyn Files>,
    pub(crate) clock: Arc<dyn WallClock>,
    pub(crate) seed: u64,
    pub(crate) shared: Arc<Shared>,
    pub(crate) health: watch::Sender<RuntimeHealth>,
}

impl Drop for Observer {
    fn drop(&mut self) {
        self.shared.close();
    }
}

impl Observer {
    /// Observes until dropped.
    pub async fn run(self) {
        let now = Instant::now();
        let mut owner = Owner {
            table: Table::new(self.config.limits()),
            pacing: Pacing::new(self.config.periods(), self.seed, now),
            work: FuturesUnordered::new(),
            stream: None,
            waiters: BTreeMap::new(),
            all_waiters: Vec::new(),
            gatherings: Vec::new(),
            audit: None,
            audit_ok: now,
            audit_began: None,
            audit_failing: false,
            pinging: false,
            observer: self,
        };
        owner.run().await;
    }
}

struct Owner {
    observer: Observer,
    table: Table,
    pacing: Pacing,
    work: FuturesUnordered<BoxFuture<'static, Done>>,
    stream: Option<EventStream>,
    waiters: BTreeMap<PodUid, Vec<Waiter>>,
    /// Those who wait for an audit that has not begun or not ended.
    all_waiters: Vec<AllWaiter>,
    gatherings: Vec<Gathering>,
    /// The ticket of the audit under way.
    audit: Option<Ticket>,
    /// When the last good audit began; at first, when we did.
    audit_ok: Instant,
    audit_began: Option<Instant>,
    /// The last audit failed: who waits for one pod is not made to wait for another list of all.
    audit_failing: bool,
    pinging: bool,
}

impl Owner {
    async fn run(&mut self) {
        loop {
            let now = Instant::now();
            self.take_asks(now);
            self.start_due(now);
            self.pass_over_slow(now);
            let begin = self.pacing.wake_at(self.audit.is_some());
            let times = [begin, self.table.wake_at(now), self.slow_at()];
            let at = times.into_iter().flatten().min();
            tokio::select! {
                biased;
                Some(done) = self.work.next(), if !self.work.is_empty() => self.done(done),
                event = next_event(&mut self.stream) => self.events(event),
                () = self.observer.shared.asked.notified() => {}
                () = wake(at) => {}
            }
        }
    }

    fn take_asks(&mut self, now: Instant) {
        let asks = self.observer.shared.take_asks();
        let mark = self.observer.shared.newest_ticket();
        for (uid, held) in &asks.held {
            self.table.set_held(uid, *held);
        }
        for uid in &asks.hints {
            self.table.hint(uid, now, mark);
        }
        for waiter in asks.waiters {
            match self.table.ask(&waiter.pod, waiter.than, now) {
                Some(view) => self.give(waiter.reply, view),
                None => {
                    let uid = waiter.pod.uid.clone();
                    self.waiters.entry(uid).or_default().push(waiter);
                }
            }
        }
        self.all_waiters.extend(asks.all_waiters);
    }

    fn start_due(&mut self, now: Instant) {
        if self.pacing.subscribe_due(now) {
            self.subscribe();
        }
        let crowd = !self.audit_failing && self.table.has_crowd();
        let asked = !self.all_waiters.is_empty() || crowd;
        if self.audit.is_none() && (self.pacing.audit_due(now) || asked) {
            self.start_audit(now);
        }
        let shared = self.observer.shared.clone();
        let starts = self.table.start_due(now, self.audit, || shared.ticket());
        for start in starts {
            self.start_look(start, now);
        }
    }

    fn reach(&self, now: Instant, limit: Duration) -> Reach {
        Reach {
            runtime: self.observer.runtime.clone(),
            files: self.observer.files.clone(),
            limit,
            deadline: now + limit,
        }
    }

    fn start_look(&mut self, start: Start, now: Instant) {
        let reach = self.reach(now, self.observer.config.look_limit);
        self.observer.shared.stats().refreshes += 1;
        self.work.push(Box::pin(async move {
            let previous = start.previous.as_deref();
            let result = reach.pod(&start.pod, start.ticket, previous).await;
            let (pod, began) = (start.pod, now);
            Done::Looked { pod, began, result }
        }));
    }

    fn start_audit(&mut self, now: Instant) {
        let reach = self.reach(now, self.observer.config.audit_limit);
        let ticket = self.observer.shared.ticket();
        self.audit = Some(ticket);
        if let Some(before) = self.audit_began.replace(now) {
            let mut stats = self.observer.shared.stats();
            stats.audit_intervals.record(now - before);
        }
        self.work.push(Box::pin(async move {
            let result = reach.list_all().await;
            let began = now;
            Done::Listed {
                ticket,
                began,
                result,
            }
        }));
    }

    fn subscribe(&mut self) {
        let runtime = self.observer.runtime.clone();
        let limit = self.observer.config.look_limit;
        self.work.push(Box::pin(async move {
            let deadline = krablet_cri::Error::deadline("GetContainerEvents");
            let result = timeout(limit, runtime.container_events()).await;
            Done::Subscribed(result.unwrap_or(Err(deadline)))
        }));
    }

    fn ping(&mut self, now: Instant) {
        if self.pinging {
            return;
        }
        self.pinging = true;
        let limit = self.observer.config.ping_limit;
        let reach = self.reach(now, limit);
        self.work.push(Box::pin(
            async move { Done::Pinged(reach.ping(limit).await) },
        ));
    }

    fn done(&mut self, done: Done) {
        let now = Instant::now();
        match done {
            Done::Looked { pod, began, result } => {
                let took = now - began;
                self.observer.shared.stats().refresh_durations.record(took);
                match result {
                    Ok(view) => self.looked(view, now),
                    Err(error) => self.look_failed(&pod, error, now),
                }
            }
            Done::Listed {
                ticket,
                began,
                result,
            } => {
                self.audit = None;
                let took = now - began;
                self.observer.shared.stats().audit_durations.record(took);
                self.pacing.audited(now, result.is_ok());
                self.audit_failing = result.is_err();
                match result {
                    Ok(listed) => self.audited(ticket, began, listed, now),
                    Err(error) => self.audit_failed(error, now),
                }
            }
            Done::Subscribed(Ok(stream)) => {
                tracing::info!("Container events flow");
                self.stream = Some(stream);
                self.pacing.subscribed(now);
                self.set_health(|health| health.events = true);
            }
            Done::Subscribed(Err(error)) => self.stream_lost(Some(error), now),
            Done::Pinged(result) => {
                self.pinging = false;
                let news = self.observer.health.borrow().error.is_none();
                if let (Err(error), true) = (&result, news) {
                    tracing::warn!("The runtime does not answer: {error}");
                }
                self.set_health(|health| health.error = result.err());
            }
        }
    }

    fn looked(&mut self, view: ObservedPod, now: Instant) {
        let uid = view.pod.uid.clone();
        let applied = self.table.refreshed(view);
        self.publish(applied);
        self.serve(&uid);
        self.settle(None, now);
        self.table.tidy(&uid);
        self.answered(now);
    }

    fn look_failed(&mut self, pod: &PodRef, error: ObserveError, now: Instant) {
        let mark = self.observer.shared.newest_ticket();
        self.table.failed(&pod.uid, now, mark);
        self.observer.shared.stats().refresh_failures += 1;
        if self.table.failures(&pod.uid) == 1 {
            tracing::warn!(pod = %pod, podUID = %pod.uid, "Pod cannot be observed: {error}");
        }
        if error.is_unavailable() {
            // All of the runtime may be gone: find out.
            self.pacing.audit_soon(now);
        }
        for waiter in self.waiters.remove(&pod.uid).unwrap_or_default() {
            answer(waiter.reply, Err(error.clone()));
        }
        self.settle(Some(&pod.uid), now);
    }

    fn audited(
        &mut self,
        ticket: Ticket,
        began: Instant,
        listed: BTreeMap<PodUid, Listed>,
        now: Instant,
    ) {
        let audited = self.table.audited(ticket, &listed, now);
        {
            let mut stats = self.observer.shared.stats();
            stats.last_audit = Some(began);
            if self.pacing.events_flow() {
                stats.discrepancies += u64::try_from(audited.surprises).unwrap_or(u64::MAX);
            }
        }
        self.audit_ok = began;
        let waited: Vec<_> = self.waiters.keys().cloned().collect();
        let gone: Vec<_> = audited
            .absent
            .iter()
            .map(|a| a.view.pod.uid.clone())
            .collect();
        for applied in audited.absent {
            self.publish(applied);
        }
        for uid in &waited {
            self.serve(uid);
        }
        self.gather(ticket, &listed, now);
        self.settle(None, now);
        for uid in &gone {
            self.table.tidy(uid);
        }
        self.set_health(|health| health.overdue = None);
        self.answered(now);
    }

    fn audit_failed(&mut self, error: ObserveError, now: Instant) {
        self.observer.shared.stats().audit_failures += 1;
        for waiter in std::mem::take(&mut self.all_waiters) {
            answer(waiter.reply, Err(error.clone()));
        }
        let since = self.audit_ok;
        let overdue = now - since >= self.observer.config.audit_overdue;
        self.set_health(|health| {
            health.overdue = overdue.then(|| Overdue {
                culprit: error.to_string(),
                since,
            });
        });
        self.ping(now);
    }

    /// Those who wait for all pods get this list if it is new enough for them, once the pods
    /// that differ from their views were looked at.
    fn gather(&mut self, ticket: Ticket, listed: &BTreeMap<PodUid, Listed>, now: Instant) {
        let waiting = std::mem::take(&mut self.all_waiters);
        let (ready, later) = waiting.into_iter().partition(|w| w.than < ticket);
        self.all_waiters = later;
        let (table, shared) = (&mut self.table, &self.observer.shared);
        for waiter in ready {
            let gathering = Gathering::new(waiter, ticket, listed, |pod, than| {
                table
                    .ask(pod, than, now)
                    .inspect(|view| shared.publish(view))
            });
            self.gatherings.push(gathering);
        }
    }

    /// Views may have become newer, looks slow, or `failed` could not be looked at: gatherings that wait
    /// for nothing more are answered. A look that is given up here goes on for its pod.
    fn settle(&mut self, failed: Option<&PodUid>, now: Instant) {
        let table = &mut self.table;
        for gathering in &mut self.gatherings {
            gathering.look_again(|uid, than| table.newer(uid, than));
            let given_up = |uid: &PodUid| failed == Some(uid) || table.is_slow(uid, now);
            gathering.give_up(given_up, |uid| table.view(uid));
        }
        let finished = self.gatherings.extract_if(.., |g| g.is_complete());
        finished.for_each(Gathering::answer);
    }

    fn pass_over_slow(&mut self, now: Instant) {
        if self.slow_at().is_some_and(|at| at <= now) {
            self.settle(None, now);
        }
    }

    /// When the next look is slow that somebody waits for who waits for all pods.
    fn slow_at(&self) -> Option<Instant> {
        let waited_for = |uid: &PodUid| self.gatherings.iter().any(|g| g.waits_for(uid));
        let looks = self.table.slow_from();
        let looks = looks.filter(|(uid, _)| waited_for(uid));
        looks.map(|(_, at)| at).min()
    }

    /// Answers those who wait for a pod and whose ticket is older than its view by now.
    fn serve(&mut self, uid: &PodUid) {
        let Some(waiting) = self.waiters.remove(uid) else {
            return;
        };
        let mut still = Vec::new();
        for waiter in waiting {
            match self.table.newer(uid, waiter.than) {
                Some(view) => self.give(waiter.reply, view),
                None => still.push(waiter),
            }
        }
        if !still.is_empty() {
            self.waiters.insert(uid.clone(), still);
        }
    }

    /// An answered view is the published one, so that there is one copy of it.
    fn give(&self, reply: Reply<Arc<ObservedPod>>, view: Arc<ObservedPod>) {
        self.observer.shared.publish(&view);
        answer(reply, Ok(view));
    }

    fn publish(&self, applied: Applied) {
        self.observer.shared.publish(&applied.view);
        if let Some(change) = applied.change {
            self.observer.shared.changes.push(change);
        }
    }

    /// Takes an event and those that are there already, so that one look follows them all.
    fn events(&mut self, first: Event) {
        let now = Instant::now();
        self.event(first, now);
        for _ in 0..MAX_EVENTS {
            match next_event(&mut self.stream).now_or_never() {
                Some(event) => self.event(event, now),
                None => break,
            }
        }
    }

    fn event(&mut self, event: Event, now: Instant) {
        let event = match event {
            Some(Ok(event)) => event,
            Some(Err(error)) => return self.stream_lost(Some(error), now),
            None => return self.stream_lost(None, now),
        };
        self.count_event(event.created_at);
        let owner = convert::pod_of_event(&event);
        match owner.or_else(|| self.table.owner_of(&event.container_id)) {
            Some(uid) => {
                let mark = self.observer.shared.newest_ticket();
                self.table.hint(&uid, now, mark);
            }
            // Something happened somewhere.
            None => self.pacing.audit_soon(now),
        }
    }

    fn count_event(&self, created_at: i64) {
        let age = self.observer.clock.now().as_nanosecond() - i128::from(created_at);
        let age = Duration::from_nanos(u64::try_from(age).unwrap_or_default());
        let mut stats = self.observer.shared.stats();
        stats.events += 1;
        stats.event_ages.record(age);
    }

    fn stream_lost(&mut self, error: Option<krablet_cri::Error>, now: Instant) {
        let unimplemented = error
            .as_ref()
            .is_some_and(krablet_cri::Error::is_unimplemented);
        let text = error.map_or_else(|| "the stream ended".to_owned(), |e| e.to_string());
        self.stream = None;
        if unimplemented {
            tracing::info!("The runtime has no container events; it is audited every second");
        } else if self.pacing.events_flow() {
            self.observer.shared.stats().stream_losses += 1;
            tracing::warn!("Container events are lost, auditing every second meanwhile: {text}");
        } else {
            tracing::debug!("No container events yet: {text}");
        }
        self.pacing.lost(now, unimplemented);
        self.set_health(|health| health.events = false);
    }

    /// The runtime answered an observation.
    fn answered(&self, now: Instant) {
        self.observer.health.send_if_modified(|health| {
            let first = health.last_ok.replace(now).is_none();
            health.error.take().is_some() || first
        });
    }

    fn set_health(&self, set: impl FnOnce(&mut RuntimeHealth)) {
        self.observer.health.send_if_modified(|health| {
            let before = health.clone();
            set(health);
            *health != before
        });
    }
}

/// Whoever asked may have gone; then the answer is for nobody.
fn answer<T>(reply: Reply<T>, result: Result<T, ObserveError>) {
    let _ = reply.send(result);
}

async fn next_event(stream: &mut Option<EventStream>) -> Event {
    match stream {
        Some(stream) => stream.next().await,
        None => std::future::pending().await,
    }
}

async fn wake(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}
