//! What several runs of the same thing say together: the middle one, and how far they lie apart.

use std::time::Duration;

/// Runs of one measure, in any unit.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Samples(Vec<f64>);

impl Samples {
    pub fn add(&mut self, value: f64) {
        self.0.push(value);
    }

    pub fn add_time(&mut self, time: Duration) {
        self.add(time.as_secs_f64());
    }

    pub fn extend(&mut self, others: Self) {
        self.0.extend(others.0);
    }

    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Zero of none.
    pub fn greatest(&self) -> f64 {
        self.0.iter().copied().fold(0.0, f64::max)
    }

    /// The middle one, or the mean of the middle two; zero of none.
    pub fn median(&self) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        match sorted.len() {
            0 => 0.0,
            count if count % 2 == 1 => sorted[middle],
            _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
        }
    }

    /// Half the distance from the least to the greatest, as a share of the middle one.
    pub fn spread(&self) -> f64 {
        let least = self.0.iter().copied().fold(f64::INFINITY, f64::min);
        let greatest = self.0.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        match self.median() {
            0.0 => 0.0,
            median => (greatest - least) / 2.0 / median,
        }
    }
}

/// The median of the ratios of runs taken right after one another: what slows the machine for a
/// while slows both of a pair.
pub fn paired_ratio(measured: &Samples, floor: &Samples) -> f64 {
    let pairs = measured.0.iter().zip(&floor.0);
    let ratios = pairs.filter(|(_, floor)| **floor > 0.0);
    Samples(ratios.map(|(measured, floor)| measured / floor).collect()).median()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(values: &[f64]) -> Samples {
        Samples(values.to_vec())
    }

    #[test]
    fn the_middle_and_the_spread() {
        assert_eq!(samples(&[]).median(), 0.0);
        assert_eq!(samples(&[]).spread(), 0.0);
        assert_eq!(samples(&[3.0, 1.0, 9.0]).median(), 3.0);
        assert_eq!(samples(&[4.0, 1.0, 2.0, 9.0]).median(), 3.0);
        assert_eq!(samples(&[10.0, 9.0, 12.0]).spread(), 0.15);
    }

    #[test]
    fn pairs_outlive_a_slow_machine() {
        let floor = samples(&[10.0, 30.0, 11.0]);
        let measured = samples(&[11.0, 33.0, 12.1]);
        assert!((paired_ratio(&measured, &floor) - 1.1).abs() < 1e-9);
        assert_eq!(paired_ratio(&measured, &samples(&[])), 0.0);
    }
}
