//! What is counted of a certificate's life, for metrics.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use krablet_linux::WallClock;

const NEVER: i64 = i64::MAX;

/// Seconds: a minute, an hour, four hours, a day, a week, then one, three, six, twelve and forty-eight months.
pub const AGE_BOUNDS: [f64; 10] = [
    60.0,
    3600.0,
    14_400.0,
    86_400.0,
    604_800.0,
    2_592_000.0,
    7_776_000.0,
    15_552_000.0,
    31_104_000.0,
    124_416_000.0,
];

/// How old certificates were when others took their place, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Ages {
    /// By [`AGE_BOUNDS`], not cumulative.
    pub buckets: [u64; AGE_BOUNDS.len()],
    pub count: u64,
    pub sum: f64,
}

impl Ages {
    fn note(&mut self, age: f64) {
        let bucket = AGE_BOUNDS.iter().position(|bound| age <= *bound);
        if let Some(count) = bucket.and_then(|n| self.buckets.get_mut(n)) {
            *count += 1;
        }
        self.count += 1;
        self.sum += age;
    }
}

pub(crate) struct Figures {
    renew_errors: AtomicU64,
    /// Unix seconds, or [`NEVER`] without a certificate.
    not_after: AtomicI64,
    ages: Mutex<Ages>,
}

impl Figures {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            renew_errors: AtomicU64::new(0),
            not_after: AtomicI64::new(NEVER),
            ages: Mutex::default(),
        })
    }

    pub(crate) fn failed(&self) {
        self.renew_errors.fetch_add(1, Ordering::Relaxed);
    }

    /// Unix seconds at which the certificate in use ends.
    pub(crate) fn ends(&self, at: i64) {
        self.not_after.store(at, Ordering::Relaxed);
    }

    pub(crate) fn replaced_at_age(&self, seconds: f64) {
        let mut ages = self.ages.lock().unwrap_or_else(PoisonError::into_inner);
        ages.note(seconds);
    }
}

/// Figures of the certificate, for metrics.
#[derive(Clone)]
pub struct IdentityHandle {
    pub(crate) figures: Arc<Figures>,
    pub(crate) clock: Arc<dyn WallClock>,
}

impl IdentityHandle {
    /// Renewals that failed.
    pub fn renew_errors(&self) -> u64 {
        self.figures.renew_errors.load(Ordering::Relaxed)
    }

    /// Until the certificate expires: negative once it has, infinite without one.
    pub fn ttl_seconds(&self) -> f64 {
        match self.figures.not_after.load(Ordering::Relaxed) {
            NEVER => f64::INFINITY,
            end => {
                let left = i128::from(end) * 1_000_000_000 - self.clock.now().as_nanosecond();
                (left / 1_000_000_000) as f64
            }
        }
    }

    /// Counted of serving certificates.
    pub fn ages(&self) -> Ages {
        let ages = self.figures.ages.lock();
        *ages.unwrap_or_else(PoisonError::into_inner)
    }
}
