//! Things to count with. Clones count together. Each knows the series it is told as, and takes a
//! moment's lock at most, never across an await.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use crate::distribution::Distribution;
use crate::series::{Kind, Series};

/// Label sets of one series beyond this many are counted together as [`OTHER`].
const MAX_SETS: usize = 200;
/// A label value longer than this is cut.
const MAX_VALUE: usize = 120;
/// What label values are called that there was no room for.
const OTHER: &str = "other";

/// The values of a series' labels, in their order.
pub(crate) type LabelValues = Box<[Box<str>]>;

pub(crate) fn label_values(values: &[&str]) -> LabelValues {
    values.iter().map(|v| (*v).into()).collect()
}

fn cut(value: &str) -> &str {
    let end = value.char_indices().nth(MAX_VALUE);
    end.map_or(value, |(end, _)| &value[..end])
}

#[derive(Clone, Debug)]
pub struct Counter {
    pub(crate) series: &'static Series,
    value: Arc<AtomicU64>,
}

impl Counter {
    pub(crate) fn new(series: &'static Series) -> Self {
        Self {
            series,
            value: Arc::default(),
        }
    }

    pub fn add(&self, more: u64) {
        self.value.fetch_add(more, Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.value.load(Ordering::Relaxed)
    }
}

#[derive(Clone, Debug)]
pub struct Histogram {
    pub(crate) series: &'static Series,
    seen: Arc<Mutex<Distribution>>,
}

impl Histogram {
    pub(crate) fn new(series: &'static Series) -> Self {
        Self {
            series,
            seen: Arc::new(Mutex::new(empty(series))),
        }
    }

    pub fn observe(&self, value: f64) {
        lock(&self.seen).observe(value);
    }

    pub fn observe_duration(&self, took: Duration) {
        lock(&self.seen).observe_duration(took);
    }

    pub fn get(&self) -> Distribution {
        lock(&self.seen).clone()
    }
}

/// A duration that is taken once, from whoever comes first.
#[derive(Clone, Debug)]
pub struct FirstDuration {
    pub(crate) series: &'static Series,
    taken: Arc<OnceLock<Duration>>,
}

impl FirstDuration {
    pub(crate) fn new(series: &'static Series) -> Self {
        Self {
            series,
            taken: Arc::default(),
        }
    }

    /// Later ones change nothing.
    pub fn offer(&self, took: Duration) {
        self.taken.get_or_init(|| took);
    }

    /// Zero until there is one.
    pub fn get(&self) -> Duration {
        self.taken.get().copied().unwrap_or_default()
    }
}

/// A counter for each set of label values.
#[derive(Clone, Debug)]
pub struct CounterVec {
    pub(crate) series: &'static Series,
    sets: Arc<Mutex<BTreeMap<LabelValues, u64>>>,
}

impl CounterVec {
    pub(crate) fn new(series: &'static Series) -> Self {
        Self {
            series,
            sets: Arc::default(),
        }
    }

    /// The values are those of the series' labels, in their order.
    pub fn add(&self, values: &[&str], more: u64) {
        let mut sets = lock(&self.sets);
        *set(&mut sets, values, || 0) += more;
    }

    pub fn get(&self) -> BTreeMap<LabelValues, u64> {
        lock(&self.sets).clone()
    }
}

/// A number that goes up and down for each set of label values. All are set together.
#[derive(Clone, Debug)]
pub struct GaugeVec {
    pub(crate) series: &'static Series,
    sets: Arc<Mutex<BTreeMap<LabelValues, u64>>>,
}

impl GaugeVec {
    pub(crate) fn new(series: &'static Series) -> Self {
        Self {
            series,
            sets: Arc::default(),
        }
    }

    /// What is not among them is told no more.
    pub fn set<'a>(&self, all: impl IntoIterator<Item = (Vec<&'a str>, u64)>) {
        let all = all.into_iter();
        let all = all.map(|(values, number)| (label_values(&values), number));
        *lock(&self.sets) = all.collect();
    }

    pub fn get(&self) -> BTreeMap<LabelValues, u64> {
        lock(&self.sets).clone()
    }
}

/// A histogram for each set of label values.
#[derive(Clone, Debug)]
pub struct HistogramVec {
    pub(crate) series: &'static Series,
    sets: Arc<Mutex<BTreeMap<LabelValues, Distribution>>>,
}

impl HistogramVec {
    pub(crate) fn new(series: &'static Series) -> Self {
        Self {
            series,
            sets: Arc::default(),
        }
    }

    /// The values are those of the series' labels, in their order.
    pub fn observe(&self, values: &[&str], value: f64) {
        let mut sets = lock(&self.sets);
        set(&mut sets, values, || empty(self.series)).observe(value);
    }

    pub fn observe_duration(&self, values: &[&str], took: Duration) {
        let mut sets = lock(&self.sets);
        set(&mut sets, values, || empty(self.series)).observe_duration(took);
    }

    pub fn get(&self) -> BTreeMap<LabelValues, Distribution> {
        lock(&self.sets).clone()
    }
}

fn empty(series: &'static Series) -> Distribution {
    Distribution::new(match series.kind {
        Kind::Histogram(bounds) => bounds,
        Kind::Counter | Kind::Gauge => &[],
    })
}

/// The entry of a label set, or, when there are too many sets already, the one for all others.
fn set<'a, T>(
    sets: &'a mut BTreeMap<LabelValues, T>,
    values: &[&str],
    make: impl FnOnce() -> T,
) -> &'a mut T {
    let mut key: LabelValues = values.iter().map(|v| cut(v).into()).collect();
    if sets.len() >= MAX_SETS && !sets.contains_key(&key) {
        key = label_values(&vec![OTHER; values.len()]);
    }
    sets.entry(key).or_insert_with(make)
}

/// Nobody panics between two writes, so what a poisoned lock guards is still whole.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::series;

    #[test]
    fn clones_count_together() {
        let counter = Counter::new(&series::STARTED_PODS);
        counter.clone().add(2);
        counter.add(1);
        assert_eq!(counter.get(), 3);
        let histogram = Histogram::new(&series::CONTAINERS_PER_POD);
        histogram.clone().observe(3.0);
        assert_eq!(histogram.get().count(), 1);
    }

    #[test]
    fn the_first_duration_stays() {
        let first = FirstDuration::new(&series::FIRST_NETWORK_POD_START);
        assert_eq!(first.get(), Duration::ZERO);
        first.clone().offer(Duration::from_secs(3));
        first.offer(Duration::from_secs(9));
        assert_eq!(first.get(), Duration::from_secs(3));
    }

    #[test]
    fn label_sets_are_bounded() {
        let counter = CounterVec::new(&series::TERMINATED_CONTAINERS);
        for code in 0..MAX_SETS + 50 {
            counter.add(&["container", &code.to_string(), "Error"], 1);
        }
        counter.add(&["container", "0", "Error"], 1);
        counter.add(&["container", "1", &"x".repeat(5000)], 1);
        let sets = counter.get();
        assert_eq!(sets.len(), MAX_SETS + 1);
        assert_eq!(sets[&label_values(&["container", "0", "Error"])], 2);
        assert_eq!(sets[&label_values(&[OTHER; 3])], 51);
    }

    #[test]
    fn long_values_are_cut_between_characters() {
        assert_eq!(cut(&"ä".repeat(500)), "ä".repeat(MAX_VALUE));
        assert_eq!(cut("ä"), "ä");
    }
}
