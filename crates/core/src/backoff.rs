//! Back-off of restarts and of image pulls: how long a container or an image has to wait, and the
//! words users read meanwhile. Times are the agent's monotonic clock; an exit is placed on it when
//! it is first seen, so a step of the wall clock neither lengthens nor cuts a wait.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use krablet_pod::api::Container;
use krablet_pod::{ContainerId, PodRef, PodUid};

use crate::Mono;

const START: Duration = Duration::from_secs(10);
const CAP: Duration = Duration::from_secs(300);
const REDUCED_START: Duration = Duration::from_secs(1);
const REDUCED_CAP: Duration = Duration::from_secs(60);
/// A container that ended longer than this after its last restart was decided ran well, whatever
/// the cap is.
const STABLE: Duration = Duration::from_secs(600);

/// First wait and longest wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackoffLimits {
    pub start: Duration,
    pub cap: Duration,
}

impl BackoffLimits {
    /// Of restarts. `max_restart_period` is `crashLoopBackOff.maxContainerRestartPeriod` where it
    /// is set and its gate is on; `reduced` is the gate ReduceDefaultCrashLoopBackOffDecay.
    pub fn of_restarts(max_restart_period: Option<Duration>, reduced: bool) -> Self {
        let (start, cap) = match reduced {
            true => (REDUCED_START, REDUCED_CAP),
            false => (START, CAP),
        };
        let cap = max_restart_period.unwrap_or(cap);
        Self {
            start: start.min(cap),
            cap,
        }
    }

    fn after(self, delay: Duration) -> Duration {
        delay.saturating_mul(2).min(self.cap)
    }
}

/// Whose restarts are counted together. Another image or other resources start afresh.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BackoffKey {
    pub pod: PodUid,
    pub container: Arc<str>,
    pub image: Arc<str>,
    pub resources: u64,
}

impl BackoffKey {
    pub fn new(pod: &PodUid, container: &Container) -> Self {
        let mut hasher = DefaultHasher::new();
        // Quantities sit in ordered maps, so equal resources give equal text.
        serde_json::to_string(&container.resources)
            .unwrap_or_default()
            .hash(&mut hasher);
        Self {
            pod: pod.clone(),
            container: container.name.as_str().into(),
            image: container.image.as_deref().unwrap_or_default().into(),
            resources: hasher.finish(),
        }
    }
}

/// May it be started, or pulled, now?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backoff {
    Start,
    Wait { until: Mono, delay: Duration },
}

#[derive(Clone, Debug)]
struct RestartEntry {
    delay: Duration,
    /// When the last restart was let through.
    decided: Mono,
    /// The exit the present wait counts from.
    exit: (ContainerId, Mono),
}

/// Restarts of crashing containers: the first at once, then after 10 s, 20 s, … up to the cap,
/// counted from the exit.
#[derive(Clone, Debug)]
pub struct CrashLoop {
    limits: BackoffLimits,
    entries: BTreeMap<BackoffKey, RestartEntry>,
}

impl CrashLoop {
    pub fn new(limits: BackoffLimits) -> Self {
        Self {
            limits,
            entries: BTreeMap::new(),
        }
    }

    /// Asks to start a container whose newest exited instance is `exited`. `exit_age` is how long
    /// ago it ended as far as the wall clock can tell; it is heeded when that exit is first seen.
    /// `Start` is a restart let through: it makes the next wait longer. A start that then fails
    /// counts like a crash.
    pub fn check(
        &mut self,
        key: &BackoffKey,
        exited: &ContainerId,
        exit_age: Duration,
        now: Mono,
    ) -> Backoff {
        let exit = Mono(now.0.saturating_sub(exit_age));
        let Some(entry) = self.entries.get_mut(key) else {
            let entry = RestartEntry {
                delay: self.limits.start,
                decided: now,
                exit: (exited.clone(), exit),
            };
            self.entries.insert(key.clone(), entry);
            return Backoff::Start;
        };
        if entry.exit.0 != *exited {
            // What was started after the last decision cannot have ended before it.
            entry.exit = (exited.clone(), exit.max(entry.decided));
        }
        let exit = entry.exit.1;
        if exit - entry.decided > STABLE {
            entry.delay = self.limits.start;
            entry.decided = now;
            return Backoff::Start;
        }
        if now - exit < entry.delay {
            return Backoff::Wait {
                until: exit + entry.delay,
                delay: entry.delay,
            };
        }
        entry.delay = self.limits.after(entry.delay);
        entry.decided = now;
        Backoff::Start
    }

    /// Forgets pods that are gone.
    pub fn retain(&mut self, mut keep: impl FnMut(&PodUid) -> bool) {
        self.entries.retain(|key, _| keep(&key.pod));
    }

    /// Forgets entries that would no longer make anyone wait.
    pub fn gc(&mut self, now: Mono) {
        self.entries
            .retain(|_, entry| now - entry.decided <= STABLE);
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

#[derive(Clone, Debug)]
struct PullEntry {
    delay: Duration,
    failed: Mono,
    error: Arc<str>,
    credentials: Arc<str>,
}

/// Failed image pulls, per pod and image: 10 s doubling to 300 s, counted from the last failure. With other
/// credentials than the last time nobody waits, and it starts from 10 s again.
#[derive(Clone, Debug, Default)]
pub struct PullBackoff {
    entries: BTreeMap<(PodUid, Arc<str>), PullEntry>,
}

impl PullBackoff {
    const LIMITS: BackoffLimits = BackoffLimits {
        start: START,
        cap: CAP,
    };
    /// So long after a failure it is forgotten.
    const FORGET: Duration = Duration::from_secs(2 * CAP.as_secs());

    /// `credentials` is a text that differs whenever they do.
    pub fn check(&self, pod: &PodUid, image: &str, credentials: &str, now: Mono) -> Backoff {
        match self.entries.get(&(pod.clone(), image.into())) {
            Some(entry)
                if now - entry.failed < entry.delay && *entry.credentials == *credentials =>
            {
                Backoff::Wait {
                    until: entry.failed + entry.delay,
                    delay: entry.delay,
                }
            }
            _ => Backoff::Start,
        }
    }

    /// Notes a failed pull; `error` is what users read until the next try.
    pub fn failed(&mut self, pod: &PodUid, image: &str, credentials: &str, error: &str, now: Mono) {
        let key = (pod.clone(), Arc::from(image));
        let counts = |entry: &&PullEntry| {
            now - entry.failed <= Self::FORGET && *entry.credentials == *credentials
        };
        let delay = match self.entries.get(&key).filter(counts) {
            Some(entry) => Self::LIMITS.after(entry.delay),
            None => Self::LIMITS.start,
        };
        let entry = PullEntry {
            delay,
            failed: now,
            error: error.into(),
            credentials: credentials.into(),
        };
        self.entries.insert(key, entry);
    }

    /// Waiting message of a container whose image may not be pulled yet.
    pub fn waiting_message(&self, pod: &PodUid, image: &str) -> String {
        let mut text = pull_event(image);
        if let Some(entry) = self.entries.get(&(pod.clone(), image.into())) {
            let _ = write!(text, ": {}", entry.error);
        }
        text
    }

    pub fn retain(&mut self, mut keep: impl FnMut(&PodUid) -> bool) {
        self.entries.retain(|(pod, _), _| keep(pod));
    }

    pub fn gc(&mut self, now: Mono) {
        self.entries
            .retain(|_, entry| now - entry.failed <= Self::FORGET);
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

/// Waiting message of a container in back-off.
pub fn restart_message(delay: Duration, container: &str, pod: &PodRef) -> String {
    format!(
        "back-off {} restarting failed container={container} pod={}_{}({})",
        go_duration(delay),
        pod.name,
        pod.namespace,
        pod.uid
    )
}

/// Event BackOff of a container.
pub fn restart_event(container: &str, pod: &PodRef) -> String {
    format!(
        "Back-off restarting failed container {container} in pod {}_{}({})",
        pod.name, pod.namespace, pod.uid
    )
}

/// Event BackOff of an image.
pub fn pull_event(image: &str) -> String {
    format!("Back-off pulling image {image:?}")
}

/// A duration as Go prints it, e.g. `1m20s`, `5m0s`, `1.5s`, `250ms`: the form of upstream's texts.
pub fn go_duration(d: Duration) -> String {
    let fraction = |whole: u128, unit: u128, suffix: &str| {
        let (int, rest) = (whole / unit, whole % unit);
        if rest == 0 {
            return format!("{int}{suffix}");
        }
        let width = unit.ilog10() as usize;
        let digits = format!("{rest:0width$}");
        format!("{int}.{}{suffix}", digits.trim_end_matches('0'))
    };
    let nanos = d.as_nanos();
    match nanos {
        0 => "0s".into(),
        n if n < 1_000 => format!("{n}ns"),
        n if n < 1_000_000 => fraction(n, 1_000, "µs"),
        n if n < 1_000_000_000 => fraction(n, 1_000_000, "ms"),
        n => {
            const MINUTE: u128 = 60_000_000_000;
            let seconds = fraction(n % MINUTE, 1_000_000_000, "s");
            match (n / (60 * MINUTE), n / MINUTE % 60) {
                (0, 0) => seconds,
                (0, minutes) => format!("{minutes}m{seconds}"),
                (hours, minutes) => format!("{hours}h{minutes}m{seconds}"),
            }
        }
    }
}

#[cfg(test)]
mod tests;
