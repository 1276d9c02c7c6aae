//! Probe verdicts: when a probe runs, what counts as success and failure in a row, and what
//! follows. One [`ProbeState`] is the whole life of one probe of one container, over all the
//! instances the container goes through.

use std::collections::BTreeMap;
use std::time::Duration;

use krablet_pod::ContainerId;
use krablet_pod::api::Probe;

use crate::Mono;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verdict {
    Unknown,
    Success,
    Failure,
}

/// Standing verdicts of one container instance; `None` where it has no such probe (or none yet).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ContainerVerdicts {
    pub startup: Option<Verdict>,
    pub liveness: Option<Verdict>,
    pub readiness: Option<Verdict>,
}

/// Standing verdicts of a pod's containers.
pub type Verdicts = BTreeMap<ContainerId, ContainerVerdicts>;

/// A probe that errs (as opposed to fails) is tried so often before its result is thrown away.
pub const TRIES: usize = 3;
/// A container that started so long before the agent was there before it, beyond doubt.
const BEFORE_AGENT: Duration = Duration::from_secs(10);
/// Each command that does not end in time may leave a process in the container: once the verdict
/// stands, the pause between two doubles, so many times at most.
const HUNG_DOUBLINGS: u32 = 2;
/// A server that was not ready at the first look is looked at again so soon, and then each time after twice as long until
/// that is a period: most are up long before the first one is over.
const FIRST_GAP: Duration = Duration::from_millis(50);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ProbeKind {
    Startup,
    Readiness,
    Liveness,
}

impl ProbeKind {
    pub const ALL: [ProbeKind; 3] = [
        ProbeKind::Startup,
        ProbeKind::Readiness,
        ProbeKind::Liveness,
    ];

    /// As events and metrics spell it.
    pub fn as_str(self) -> &'static str {
        match self {
            ProbeKind::Startup => "Startup",
            ProbeKind::Readiness => "Readiness",
            ProbeKind::Liveness => "Liveness",
        }
    }

    /// What holds of a new instance until its probe has spoken.
    fn initial(self) -> Verdict {
        match self {
            ProbeKind::Startup => Verdict::Unknown,
            ProbeKind::Readiness => Verdict::Failure,
            ProbeKind::Liveness => Verdict::Success,
        }
    }
}

/// The numbers of a probe, with the API's defaults where they are absent or zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    pub initial_delay: Duration,
    pub period: Duration,
    pub timeout: Duration,
    pub success_threshold: u32,
    pub failure_threshold: u32,
}

impl Timing {
    pub fn of(probe: &Probe) -> Self {
        let number = |value: Option<i32>, default: u32| {
            let value = value.and_then(|v| u32::try_from(v).ok());
            value.filter(|v| *v > 0).unwrap_or(default)
        };
        let seconds = |value, default| Duration::from_secs(number(value, default).into());
        Self {
            initial_delay: seconds(probe.initial_delay_seconds, 0),
            period: seconds(probe.period_seconds, 10),
            timeout: seconds(probe.timeout_seconds, 1),
            success_threshold: number(probe.success_threshold, 1),
            failure_threshold: number(probe.failure_threshold, 3),
        }
    }
}

/// How one execution ended. After [`TRIES`] errors the result is thrown away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Success,
    Failure,
    /// A command that did not end in time: a failure that also left a process behind.
    Hung,
    Error,
}

/// The newest instance of the container, as it was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    pub id: ContainerId,
    pub running: bool,
    /// How long it has been running as far as the wall clock can tell; heeded at first sight.
    pub age: Duration,
    /// What the last known status of this very instance said (`ready` of a readiness probe,
    /// `started` of a startup probe), if there was one.
    pub previous: Option<bool>,
}

/// Whether a container that runs for `age` was there before an agent that runs for `agent_age`.
pub fn was_before_agent(age: Duration, agent_age: Duration) -> bool {
    age > agent_age.saturating_add(BEFORE_AGENT)
}

#[derive(Clone, Debug)]
pub struct ProbeState {
    kind: ProbeKind,
    timing: Timing,
    instance: Option<Instance>,
    /// The next tick. Ticks are a period apart, counted from the probe's birth.
    due: Mono,
    /// Nothing stands in the way of running at `due`.
    open: bool,
    stopped: bool,
    /// Looking costs next to nothing.
    eager: bool,
    last_seen: Mono,
}

#[derive(Clone, Debug)]
struct Instance {
    id: ContainerId,
    running: bool,
    before_agent: bool,
    not_before: Mono,
    verdict: Verdict,
    /// The last result and how often it came in a row.
    run: Option<(Verdict, u32)>,
    /// Commands in a row that did not end in time since failure is the verdict.
    hung: u32,
    /// After a look that fails, how long until the next. None once it was ready or has had time for it.
    soon: Option<Duration>,
    /// The verdict stands until there is a new instance.
    hold: bool,
}

impl ProbeState {
    /// `spread` (0..1) places the first tick within a period: many probes of a restarted agent
    /// then do not come at once. `born` is when the probe was made known.
    pub fn new(kind: ProbeKind, timing: Timing, born: Mono, spread: f64) -> Self {
        let spread = timing.period.mul_f64(spread.clamp(0.0, 1.0));
        Self {
            kind,
            timing,
            instance: None,
            due: born + spread,
            open: false,
            stopped: false,
            eager: false,
            last_seen: born,
        }
    }

    /// May look more often than once in a period until a new instance is ready: nothing is run in it for that.
    pub fn eager(self) -> Self {
        Self {
            eager: true,
            ..self
        }
    }

    pub fn kind(&self) -> ProbeKind {
        self.kind
    }

    pub fn timing(&self) -> Timing {
        self.timing
    }

    /// The standing verdict and whose it is.
    pub fn verdict(&self) -> Option<(&ContainerId, Verdict)> {
        self.instance.as_ref().map(|i| (&i.id, i.verdict))
    }

    /// Takes note of what was seen of the container. `agent_age` is how long the agent runs.
    pub fn see(&mut self, seen: Option<&Seen>, agent_age: Duration, now: Mono) {
        let since_last = now - self.last_seen;
        self.last_seen = now;
        let Some(seen) = seen else {
            self.instance = None;
            return;
        };
        let is_new = self.instance.as_ref().is_none_or(|i| i.id != seen.id);
        if is_new {
            self.instance = Some(self.new_instance(seen, agent_age, since_last, now));
            // Its own delay and first look, also when it follows another without a gap.
            self.open = false;
        }
        if let Some(instance) = &mut self.instance {
            if seen.running && !instance.running {
                // Seen before it started: its delay counts from now on at the latest.
                instance.not_before = now + self.timing.initial_delay.saturating_sub(seen.age);
            }
            instance.running = seen.running;
            if !seen.running && self.kind == ProbeKind::Readiness {
                instance.verdict = Verdict::Failure;
            }
        }
    }

    fn new_instance(
        &self,
        seen: &Seen,
        agent_age: Duration,
        since_last: Duration,
        now: Mono,
    ) -> Instance {
        // An instance that was not there at the last look is no older than that look, whatever
        // the wall clock says.
        let replaced = self.instance.is_some();
        let age = match replaced {
            true => seen.age.min(since_last),
            false => seen.age,
        };
        let before_agent = !replaced && was_before_agent(age, agent_age);
        let seed = seen.previous.filter(|_| before_agent);
        let verdict = match (self.kind, seed) {
            (ProbeKind::Readiness | ProbeKind::Startup, Some(true)) => Verdict::Success,
            _ => self.kind.initial(),
        };
        Instance {
            id: seen.id.clone(),
            running: seen.running,
            before_agent,
            not_before: now + self.timing.initial_delay.saturating_sub(age),
            verdict,
            run: None,
            hung: 0,
            soon: (self.eager && self.kind == ProbeKind::Readiness && !before_agent)
                .then_some(FIRST_GAP),
            hold: self.kind == ProbeKind::Startup && verdict == Verdict::Success,
        }
    }

    /// The probe's birth met a running container: its ticks count from the container's start, so
    /// that a new container gets no less time than one whose probe was there first.
    pub fn align(&mut self, age: Duration, now: Mono) {
        let period = self.timing.period.as_nanos().max(1);
        let into = u64::try_from(age.as_nanos() % period).unwrap_or(u64::MAX);
        self.due = now
            + self
                .timing
                .period
                .saturating_sub(Duration::from_nanos(into));
    }

    /// Works out when to run next. `started` tells whether the instance's startup probe (if it
    /// has one) has succeeded. To be called after anything changed.
    pub fn schedule(&mut self, started: bool, now: Mono) -> Option<Mono> {
        let gate = started || self.kind == ProbeKind::Startup;
        let runnable = self
            .instance
            .as_ref()
            .filter(|i| i.running && !i.hold && gate && !self.stopped);
        let Some(instance) = runnable else {
            self.open = false;
            return None;
        };
        if !self.open {
            let earliest = now.max(instance.not_before);
            self.due = match self.kind {
                // Users wait for ready: its first look does not wait for a tick.
                ProbeKind::Readiness if !instance.before_agent => earliest,
                _ => next_tick(self.due, self.timing.period, earliest),
            };
            self.open = true;
        }
        Some(self.due)
    }

    /// An execution begins.
    pub fn begin(&mut self, now: Mono) {
        self.due = now + self.timing.period;
    }

    /// An execution against instance `id` ended. Returns the verdict if it changed.
    pub fn finish(&mut self, id: &ContainerId, outcome: Outcome, now: Mono) -> Option<Verdict> {
        // One that took longer than a period is followed by the next at once.
        self.due = self.due.max(now);
        let instance = self.instance.as_mut()?;
        if instance.id != *id || instance.hold || self.stopped {
            return None;
        }
        let (verdict, threshold) = match outcome {
            Outcome::Success => (Verdict::Success, self.timing.success_threshold),
            Outcome::Failure | Outcome::Hung => (Verdict::Failure, self.timing.failure_threshold),
            Outcome::Error => return None,
        };
        let count = match instance.run {
            Some((last, count)) if last == verdict => count.saturating_add(1),
            _ => 1,
        };
        instance.run = Some((verdict, count));
        let period = self.timing.period;
        let soon = instance.soon.take();
        if let Some(gap) = soon.filter(|gap| verdict == Verdict::Failure && *gap < period) {
            self.due = now + gap;
            instance.soon = Some(gap * 2);
        }
        if count < threshold {
            return None;
        }
        instance.hung = match outcome {
            Outcome::Hung => instance.hung.saturating_add(1),
            _ => 0,
        };
        let pause = 2_u32.pow(instance.hung.min(HUNG_DOUBLINGS)) - 1;
        self.due = self.due + self.timing.period.saturating_mul(pause);
        // A container that failed will be restarted, one that has started has started: no more
        // probing until there is a new instance.
        instance.hold = self.kind == ProbeKind::Startup
            || (self.kind == ProbeKind::Liveness && verdict == Verdict::Failure);
        let changed = instance.verdict != verdict;
        instance.verdict = verdict;
        changed.then_some(verdict)
    }

    /// The last look was one of those that may well fail, and there is another before a period is over.
    pub fn looks_again_soon(&self) -> bool {
        self.instance.as_ref().is_some_and(|i| i.soon.is_some())
    }

    /// The pod is terminating: liveness and startup say no more, and nothing bad.
    pub fn stop(&mut self) {
        self.stopped = true;
        self.open = false;
        if let Some(instance) = &mut self.instance {
            instance.verdict = Verdict::Success;
        }
    }

    pub fn is_stopped(&self) -> bool {
        self.stopped
    }
}

/// The first of the ticks `tick`, `tick + period`, … that is not before `earliest`.
fn next_tick(tick: Mono, period: Duration, earliest: Mono) -> Mono {
    let behind = (earliest - tick).as_nanos();
    if behind == 0 {
        return tick;
    }
    let ticks = behind.div_ceil(period.as_nanos().max(1));
    let ticks = u32::try_from(ticks).unwrap_or(u32::MAX);
    (tick + period.saturating_mul(ticks)).max(earliest)
}

#[cfg(test)]
mod tests;
