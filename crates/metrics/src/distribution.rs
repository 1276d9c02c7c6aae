//! Observations sorted into fixed buckets.

use std::time::Duration;

#[derive(Clone, Debug, PartialEq)]
pub struct Distribution {
    bounds: &'static [f64],
    /// One per bound, not cumulative, and one for what is greater than all of them.
    counts: Vec<u64>,
    sum: f64,
}

impl Distribution {
    pub fn new(bounds: &'static [f64]) -> Self {
        Self {
            bounds,
            counts: vec![0; bounds.len() + 1],
            sum: 0.0,
        }
    }

    /// Of counts kept elsewhere: one per bound, not cumulative, and the number of all.
    pub fn of(bounds: &'static [f64], counts: &[u64], total: u64, sum: f64) -> Self {
        let mut all: Vec<u64> = counts.iter().copied().take(bounds.len()).collect();
        all.resize(bounds.len(), 0);
        let within = all.iter().sum();
        all.push(total.saturating_sub(within));
        Self {
            bounds,
            counts: all,
            sum,
        }
    }

    pub fn observe(&mut self, value: f64) {
        if !value.is_finite() {
            return;
        }
        let within = self.bounds.iter().position(|bound| value <= *bound);
        let bucket = within.unwrap_or(self.bounds.len());
        if let Some(count) = self.counts.get_mut(bucket) {
            *count += 1;
        }
        self.sum += value;
    }

    pub fn observe_duration(&mut self, took: Duration) {
        self.observe(took.as_secs_f64());
    }

    /// Adds what another one with the same bounds holds.
    pub fn merge(&mut self, other: &Distribution) {
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
        self.sum += other.sum;
    }

    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    pub fn sum(&self) -> f64 {
        self.sum
    }

    /// Each bound with the number of observations not greater than it. The last bound is infinite.
    pub fn cumulative(&self) -> impl Iterator<Item = (f64, u64)> {
        let bounds = self.bounds.iter().copied().chain([f64::INFINITY]);
        let mut below = 0;
        bounds.zip(&self.counts).map(move |(bound, count)| {
            below += count;
            (bound, below)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: [f64; 2] = [1.0, 2.0];

    #[test]
    fn a_bound_belongs_to_its_bucket() {
        let mut seen = Distribution::new(&BOUNDS);
        for value in [0.5, 1.0, 1.5, 9.0, f64::NAN, f64::INFINITY] {
            seen.observe(value);
        }
        let expected = [(1.0, 2), (2.0, 3), (f64::INFINITY, 4)];
        assert!(seen.cumulative().eq(expected));
        assert_eq!((seen.count(), seen.sum()), (4, 12.0));
        assert_eq!(seen, Distribution::of(&BOUNDS, &[2, 1], 4, 12.0));
        let mut twice = seen.clone();
        twice.merge(&seen);
        assert_eq!(twice, Distribution::of(&BOUNDS, &[4, 2], 8, 24.0));
    }

    #[test]
    fn counts_that_do_not_fit_the_bounds_harm_nothing() {
        let few = Distribution::of(&BOUNDS, &[1], 3, 0.0);
        assert!(
            few.cumulative()
                .eq([(1.0, 1), (2.0, 1), (f64::INFINITY, 3)])
        );
        let many = Distribution::of(&BOUNDS, &[1, 1, 1], 1, 0.0);
        assert_eq!(many.count(), 2);
    }
}
