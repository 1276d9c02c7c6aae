//! Brings recorded events to the API server, as its other components do: repetitions are counted in
//! one object, many that are alike become one, and no object gets more than its share. Nobody waits
//! for an event: what cannot be written in time is lost.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use krablet_kube::{ApiError, Call, Detail, Kube, PatchKind, Priority, Verb, paths};
use krablet_pod::PodUid;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::{debug, warn};

use crate::{Event, Kind, RING_CAPACITY, Recorder};

mod correlator;
mod lru;
#[cfg(test)]
mod tests;

use correlator::{Correlator, Write};

const MAX_TRIES: u32 = 12;
const RETRY: Duration = Duration::from_secs(10);
/// An event is not worth a longer wait, for others wait behind it.
const CALL_DEADLINE: Duration = Duration::from_secs(10);
/// How many events may wait for another try.
const MAX_WAITING: usize = 256;
/// So long good news may wait for pods that begin or end.
const PATIENCE: Duration = Duration::from_secs(10);
/// So much of it: beyond, the recorder's ring could lose what was not read yet.
const MAX_HELD: usize = RING_CAPACITY / 2;

#[derive(Clone, Debug)]
pub struct SinkConfig {
    pub node_name: String,
    /// `eventRecordQPS`: events a second, 0 for any number of them.
    pub rate: u32,
    /// `eventBurst`: so many may go at once.
    pub burst: u32,
    /// Of every random number the sink draws.
    pub seed: u64,
}

/// Tells the resource version of a pod's object, as last known.
pub type ResourceVersions = Arc<dyn Fn(&PodUid) -> Option<String> + Send + Sync>;

#[derive(Clone)]
pub struct SinkDeps {
    pub recorder: Recorder,
    pub kube: Kube,
    pub resource_version: ResourceVersions,
    /// Other than zero while many pods begin or end: what the machine can do is theirs first.
    pub crowds: watch::Receiver<usize>,
}

/// A write that failed, and when it is tried again.
struct Waiting {
    write: Write,
    tries: u32,
    at: Instant,
}

pub struct Sink {
    deps: SinkDeps,
    correlator: Correlator,
    pace: Pace,
    waiting: VecDeque<Waiting>,
    /// Good news, and when it came.
    held: VecDeque<(Instant, Event)>,
    random: StdRng,
    started: Instant,
}

impl Sink {
    pub fn new(config: SinkConfig, deps: SinkDeps) -> Self {
        let now = Instant::now();
        Self {
            correlator: Correlator::new(&config.node_name),
            pace: Pace::new(config.rate, config.burst, now),
            waiting: VecDeque::new(),
            held: VecDeque::new(),
            random: StdRng::seed_from_u64(config.seed),
            started: now,
            deps,
        }
    }

    /// Writes events until it is dropped, beginning with the oldest the recorder still holds.
    pub async fn run(mut self) {
        let mut newest = self.deps.recorder.newest();
        let mut seen = 0;
        loop {
            newest.mark_unchanged();
            for event in self.deps.recorder.since(seen) {
                seen = event.sequence;
                match event.kind {
                    Kind::Warning => self.tell(&event).await,
                    Kind::Normal => self.held.push_back((Instant::now(), event)),
                }
            }
            self.write_waiting().await;
            if let Some(event) = self.next_held() {
                self.tell(&event).await;
                continue;
            }
            let patience = self.held.front().map(|(came, _)| *came + PATIENCE);
            let due = self.waiting.iter().map(|w| w.at).chain(patience).min();
            tokio::select! {
                biased;
                changed = newest.changed() => if changed.is_err() {
                    return;
                },
                Ok(()) = self.deps.crowds.changed() => {}
                () = sleep_until(due) => {}
            }
        }
    }

    /// The oldest good news, unless it can wait.
    fn next_held(&mut self) -> Option<Event> {
        let (came, _) = self.held.front()?;
        let crowded = *self.deps.crowds.borrow() > 0;
        if crowded && came.elapsed() < PATIENCE && self.held.len() <= MAX_HELD {
            return None;
        }
        let event = self.held.pop_front().map(|(_, event)| event);
        if self.held.is_empty() {
            // What a crowd brought was many, and it is over.
            self.held.shrink_to_fit();
        }
        event
    }

    async fn tell(&mut self, event: &Event) {
        let pod = event.subject.pod();
        let version = pod.and_then(|pod| (self.deps.resource_version)(&pod.uid));
        let now = self.started.elapsed();
        if let Some(write) = self.correlator.correlate(event, version, now) {
            self.supersede(&write);
            self.write(write, 0).await;
        }
    }

    /// An older count must not be written after a newer one.
    fn supersede(&mut self, newer: &Write) {
        self.waiting.retain(|old| old.write.name() != newer.name());
    }

    async fn write_waiting(&mut self) {
        let now = Instant::now();
        for _ in 0..self.waiting.len() {
            match self.waiting.pop_front() {
                Some(due) if due.at <= now => self.write(due.write, due.tries).await,
                Some(later) => self.waiting.push_back(later),
                None => {}
            }
        }
    }

    async fn write(&mut self, write: Write, tries: u32) {
        self.pace.turn().await;
        let Err(error) = put(&self.deps.kube, &write).await else {
            return;
        };
        let event = write.name();
        if error.is_answer() && !error.is_passing() {
            // The namespace ends or is gone, or the event is not to the server's liking.
            debug!(event, err = %error, "Server rejected event (will not retry!)");
            return;
        }
        let tries = tries + 1;
        if tries >= MAX_TRIES {
            warn!(event, err = %error, "Unable to write event (retry limit exceeded!)");
            return;
        }
        debug!(event, err = %error, "Unable to write event (may retry after sleeping)");
        // The first wait differs from node to node, so that they do not come all at once.
        let wait = match tries {
            1 => RETRY.mul_f64(self.random.random_range(0.0..1.0)),
            _ => RETRY,
        };
        let wait = error.retry_after().map_or(wait, |told| wait.max(told));
        if self.waiting.len() == MAX_WAITING {
            self.waiting.pop_front();
        }
        self.waiting.push_back(Waiting {
            write,
            tries,
            at: Instant::now() + wait,
        });
    }
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// Patches the event if it was written before; one that the server has forgotten begins anew.
async fn put(kube: &Kube, write: &Write) -> Result<(), ApiError> {
    let call = |verb, path, body: String| {
        // Nothing is made of the answer.
        let call = Call::new(verb, path).body(body).detail(Detail::Metadata);
        kube.api()
            .call(call.priority(Priority::Background).deadline(CALL_DEADLINE))
    };
    if let Some(patch) = &write.patch {
        let path = paths::event(write.namespace(), write.name());
        let verb = Verb::Patch(PatchKind::StrategicMerge);
        match call(verb, path, patch.to_string()).await {
            Err(e) if e.is_not_found() => {}
            answer => return answer.map(drop),
        }
    }
    let event = serde_json::to_string(&write.event).map_err(|e| ApiError::Decode(e.to_string()))?;
    let path = paths::events(write.namespace());
    call(Verb::Create, path, event).await.map(drop)
}

/// So many a second, and a few more at once after a rest.
struct Pace {
    rate: f64,
    burst: f64,
    left: f64,
    at: Instant,
}

impl Pace {
    fn new(rate: u32, burst: u32, now: Instant) -> Self {
        let burst = f64::from(burst.max(1));
        Self {
            rate: f64::from(rate),
            burst,
            left: burst,
            at: now,
        }
    }

    async fn turn(&mut self) {
        if self.rate == 0.0 {
            return;
        }
        let now = Instant::now();
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        self.left = self.burst.min(self.left + passed * self.rate) - 1.0;
        self.at = now;
        if self.left < 0.0 {
            tokio::time::sleep(Duration::from_secs_f64(-self.left / self.rate)).await;
        }
    }
}
