//! What the node runs short of: what there is, held against the thresholds at which pods would have to go.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use krablet_pod::Quantity;
use krablet_pod::quantity::Format;
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::{info, warn};

use crate::conditions::Pressures;
use crate::error::NodeError;
use crate::resources::{Threshold, parse_threshold};

/// As often as a kubelet looks.
const PERIOD: Duration = Duration::from_secs(10);

/// Something that can run short.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Signal {
    Memory,
    NodeFs,
    NodeFsInodes,
    ImageFs,
    ImageFsInodes,
    Pids,
}

impl Signal {
    const ALL: [Signal; 6] = [
        Signal::Memory,
        Signal::NodeFs,
        Signal::NodeFsInodes,
        Signal::ImageFs,
        Signal::ImageFsInodes,
        Signal::Pids,
    ];

    /// As `evictionHard` names it.
    pub fn name(self) -> &'static str {
        match self {
            Signal::Memory => "memory.available",
            Signal::NodeFs => "nodefs.available",
            Signal::NodeFsInodes => "nodefs.inodesFree",
            Signal::ImageFs => "imagefs.available",
            Signal::ImageFsInodes => "imagefs.inodesFree",
            Signal::Pids => "pid.available",
        }
    }

    fn put_on(self, pressures: &mut Pressures) {
        match self {
            Signal::Memory => pressures.memory = true,
            Signal::Pids => pressures.pid = true,
            _ => pressures.disk = true,
        }
    }
}

/// How much is left, of how much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Observation {
    pub available: u64,
    pub capacity: u64,
}

/// What could be seen. What could not is not short.
pub type Observations = BTreeMap<Signal, Observation>;

#[async_trait]
pub trait Signals: Send + Sync {
    async fn observe(&self) -> Observations;
}

/// When the node is under pressure, and for how long it stays so.
#[derive(Clone, Debug, Default)]
pub struct PressureConfig {
    limits: Vec<Limit>,
    /// A pressure is taken back after so much time without it.
    transition: Duration,
}

#[derive(Clone, Copy, Debug)]
struct Limit {
    signal: Signal,
    least: Threshold,
    /// So much more has to be there before it counts as over.
    reclaim: Option<Threshold>,
}

impl PressureConfig {
    /// Of `evictionHard`, `evictionSoft` and `evictionMinimumReclaim` as they are written. A soft threshold gives pods
    /// time to end, but puts the node under pressure at once.
    pub fn parse(
        hard: &BTreeMap<String, String>,
        soft: &BTreeMap<String, String>,
        reclaim: &BTreeMap<String, String>,
        transition: Duration,
    ) -> Result<Self, NodeError> {
        let find = |field, texts: &BTreeMap<String, String>, signal: Signal| {
            let text = texts.get(signal.name());
            text.map_or(Ok(None), |text| parse_threshold(field, signal.name(), text))
        };
        let mut limits = Vec::new();
        for signal in Signal::ALL {
            let reclaim = find("evictionMinimumReclaim", reclaim, signal)?;
            let both = [
                find("evictionHard", hard, signal)?,
                find("evictionSoft", soft, signal)?,
            ];
            limits.extend(both.into_iter().flatten().map(|least| Limit {
                signal,
                least,
                reclaim,
            }));
        }
        Ok(Self { limits, transition })
    }

    /// Whether there is anything to look at.
    pub fn is_empty(&self) -> bool {
        self.limits.is_empty()
    }
}

impl Limit {
    /// Whether less is left than has to be; more has to be for a limit that `was` reached before.
    fn is_reached(&self, seen: Observation, was: bool) -> bool {
        let units = |n: u64| {
            let n = i64::try_from(n).unwrap_or(i64::MAX);
            Quantity::from_units(n, Format::BinarySi)
        };
        let capacity = units(seen.capacity);
        let mut least = self.least.of(capacity);
        if let Some(reclaim) = self.reclaim.filter(|_| was) {
            least = least.saturating_add(reclaim.of(capacity));
        }
        least > units(seen.available)
    }
}

/// What has been seen so far.
#[derive(Debug, Default)]
struct Book {
    /// Limits that were reached at the last look, by their place.
    reached: BTreeSet<usize>,
    /// When each signal was last short.
    last: BTreeMap<Signal, Instant>,
}

impl Book {
    fn look(&mut self, config: &PressureConfig, seen: &Observations, now: Instant) -> Pressures {
        let mut reached = BTreeSet::new();
        for (at, limit) in config.limits.iter().enumerate() {
            let was = self.reached.contains(&at);
            let seen = seen.get(&limit.signal);
            if seen.is_some_and(|seen| limit.is_reached(*seen, was)) {
                reached.insert(at);
                self.last.insert(limit.signal, now);
            }
        }
        self.reached = reached;
        let transition = config.transition;
        let recent = |last: Instant| last == now || now.duration_since(last) < transition;
        self.last.retain(|_, last| recent(*last));
        let mut pressures = Pressures::default();
        for signal in self.last.keys() {
            signal.put_on(&mut pressures);
        }
        pressures
    }
}

/// Looks again and again.
pub struct PressureWatch {
    config: PressureConfig,
    signals: Arc<dyn Signals>,
    book: Book,
    pressures: watch::Sender<Pressures>,
}

impl PressureWatch {
    /// The first look is taken here, so that no pod comes in before it.
    pub async fn build(
        config: PressureConfig,
        signals: Arc<dyn Signals>,
    ) -> (Self, watch::Receiver<Pressures>) {
        let mut watch = Self {
            config,
            signals,
            book: Book::default(),
            pressures: watch::Sender::new(Pressures::default()),
        };
        watch.look().await;
        let pressures = watch.pressures.subscribe();
        (watch, pressures)
    }

    pub async fn run(mut self) {
        loop {
            tokio::time::sleep(PERIOD).await;
            self.look().await;
        }
    }

    async fn look(&mut self) {
        if self.config.is_empty() {
            return;
        }
        let seen = self.signals.observe().await;
        let now = self.book.look(&self.config, &seen, Instant::now());
        let before = *self.pressures.borrow();
        if now == before {
            return;
        }
        match now == Pressures::default() {
            true => info!("The node is under no pressure any more"),
            false => {
                warn!(memory = now.memory, disk = now.disk, pid = now.pid, signals = ?seen, "The node is under pressure");
            }
        }
        self.pressures.send_replace(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(text: &str) -> BTreeMap<String, String> {
        let pair = |pair: &str| {
            let (name, value) = pair.split_once('=').unwrap();
            (name.to_owned(), value.to_owned())
        };
        text.split_whitespace().map(pair).collect()
    }

    /// `memory.available=5/100`: 5 left of 100.
    fn seen(text: &str) -> Observations {
        let one = |(name, value): (String, String)| {
            let signal = Signal::ALL.into_iter().find(|s| s.name() == name).unwrap();
            let (available, capacity) = value.split_once('/').unwrap();
            let seen = Observation {
                available: available.parse().unwrap(),
                capacity: capacity.parse().unwrap(),
            };
            (signal, seen)
        };
        texts(text).into_iter().map(one).collect()
    }

    fn shown(pressures: Pressures) -> String {
        let all = [
            ("memory", pressures.memory),
            ("disk", pressures.disk),
            ("pid", pressures.pid),
        ];
        let on: Vec<&str> = all.iter().filter(|p| p.1).map(|p| p.0).collect();
        on.join(" ")
    }

    fn config(hard: &str, soft: &str, reclaim: &str) -> PressureConfig {
        let (hard, soft, reclaim) = (texts(hard), texts(soft), texts(reclaim));
        PressureConfig::parse(&hard, &soft, &reclaim, Duration::from_secs(300)).unwrap()
    }

    #[test]
    fn signals_against_thresholds() {
        let cases = [
            (
                "memory.available=100",
                "",
                "memory.available=99/1000",
                "memory",
            ),
            ("memory.available=100", "", "memory.available=100/1000", ""),
            (
                "memory.available=10%",
                "",
                "memory.available=99/1000",
                "memory",
            ),
            ("memory.available=10%", "", "memory.available=101/1000", ""),
            ("nodefs.available=10%", "", "nodefs.available=9/100", "disk"),
            (
                "nodefs.inodesFree=5%",
                "",
                "nodefs.inodesFree=4/100",
                "disk",
            ),
            (
                "imagefs.available=15%",
                "",
                "imagefs.available=14/100",
                "disk",
            ),
            (
                "imagefs.inodesFree=5%",
                "",
                "imagefs.inodesFree=4/100",
                "disk",
            ),
            ("pid.available=100", "", "pid.available=99/32768", "pid"),
            (
                "memory.available=100 nodefs.available=10% pid.available=5%",
                "",
                "memory.available=1/1000 nodefs.available=1/100 pid.available=1/100",
                "memory disk pid",
            ),
            // A soft threshold counts at once.
            (
                "memory.available=100",
                "memory.available=200",
                "memory.available=150/1000",
                "memory",
            ),
            // What nobody asked for, what is turned off, what cannot be seen, and file systems without inodes.
            ("memory.available=100", "", "nodefs.available=1/100", ""),
            ("nodefs.available=0%", "", "nodefs.available=0/100", ""),
            ("imagefs.available=15%", "", "", ""),
            ("imagefs.inodesFree=5%", "", "imagefs.inodesFree=0/0", ""),
        ];
        for (hard, soft, signals, expected) in cases {
            let config = config(hard, soft, "");
            let got = Book::default().look(&config, &seen(signals), Instant::now());
            assert_eq!(shown(got), expected, "{hard} {soft} {signals}");
        }
    }

    #[test]
    fn a_pressure_passes_when_it_was_not_seen_for_long_enough() {
        let config = config(
            "memory.available=100 nodefs.available=10",
            "",
            "memory.available=50",
        );
        let start = Instant::now();
        let mut book = Book::default();
        for (second, signals, expected) in [
            (0, "memory.available=200/1000 nodefs.available=50/100", ""),
            (
                10,
                "memory.available=99/1000 nodefs.available=50/100",
                "memory",
            ),
            // More than the threshold, not yet as much more as is asked for.
            (
                20,
                "memory.available=149/1000 nodefs.available=9/100",
                "memory disk",
            ),
            (
                30,
                "memory.available=150/1000 nodefs.available=50/100",
                "memory disk",
            ),
            // From now on the threshold alone counts again.
            (
                40,
                "memory.available=120/1000 nodefs.available=50/100",
                "memory disk",
            ),
            (
                319,
                "memory.available=150/1000 nodefs.available=9/100",
                "memory disk",
            ),
            (
                320,
                "memory.available=150/1000 nodefs.available=50/100",
                "disk",
            ),
            (618, "", "disk"),
            (619, "", ""),
        ] {
            let now = start + Duration::from_secs(second);
            let got = book.look(&config, &seen(signals), now);
            assert_eq!(shown(got), expected, "at {second} s");
        }
    }

    #[test]
    fn odd_words_are_refused() {
        let none = BTreeMap::new();
        let odd = texts("memory.available=much");
        assert!(PressureConfig::parse(&odd, &none, &none, Duration::ZERO).is_err());
        assert!(PressureConfig::parse(&none, &odd, &none, Duration::ZERO).is_err());
        let nothing = PressureConfig::parse(&none, &none, &odd, Duration::ZERO);
        assert!(nothing.is_err());
        assert!(config("", "", "").is_empty());
    }

    struct Told(watch::Receiver<Observations>);

    #[async_trait]
    impl Signals for Told {
        async fn observe(&self) -> Observations {
            self.0.borrow().clone()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_look_is_taken_before_anybody_asks() {
        let world = watch::Sender::new(seen("memory.available=1/1000"));
        let signals = Arc::new(Told(world.subscribe()));
        let config = config("memory.available=100", "", "");
        let (task, mut pressures) = PressureWatch::build(config, signals).await;
        assert_eq!(shown(*pressures.borrow()), "memory");
        let task = tokio::spawn(task.run());
        world.send_replace(seen("memory.available=900/1000"));
        pressures.changed().await.unwrap();
        assert_eq!(shown(*pressures.borrow()), "");
        task.abort();
    }
}
