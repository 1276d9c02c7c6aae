//! One recording at a time.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::{PERIOD, ProfileError, signal};

static TAKEN: AtomicBool = AtomicBool::new(false);

/// Runs until it is finished or dropped.
#[derive(Debug)]
pub struct Recording(());

/// What a recording found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Samples {
    /// Addresses of each, the innermost first.
    pub stacks: Vec<Vec<usize>>,
    /// Samples that did not fit, or whose stack could not be walked.
    pub lost: u64,
}

impl Recording {
    pub fn begin() -> Result<Self, ProfileError> {
        if TAKEN.swap(true, Ordering::SeqCst) {
            return Err(ProfileError::Busy);
        }
        // Gives the turn back if the kernel says no.
        let recording = Self(());
        signal::begin(PERIOD).map_err(ProfileError::Kernel)?;
        Ok(recording)
    }

    /// What was found so far.
    pub fn samples(&self) -> Samples {
        let (stacks, lost) = signal::stacks();
        Samples { stacks, lost }
    }

    pub fn finish(self) -> Samples {
        signal::end();
        self.samples()
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        signal::end();
        TAKEN.store(false, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;

    use super::*;
    use crate::proto::Profile;
    use crate::{Taken, encode, mappings};

    #[inline(never)]
    fn work(rounds: u64) -> u64 {
        (0..rounds).fold(1, |sum, n| black_box(sum.wrapping_mul(31).wrapping_add(n)))
    }

    #[inline(never)]
    fn work_until(recording: &Recording, samples: usize) -> u64 {
        let mut sum = 0;
        while recording.samples().stacks.len() < samples {
            sum ^= work(black_box(100_000));
        }
        sum
    }

    /// The only test that records: there is one recorder in a process.
    #[test]
    fn what_works_is_found_working() {
        let recording = Recording::begin().unwrap();
        assert!(matches!(Recording::begin(), Err(ProfileError::Busy)));
        let workers = [1, 2].map(|_| std::thread::spawn(|| work(black_box(5_000_000))));
        work_until(&recording, 20);
        for worker in workers {
            worker.join().unwrap();
        }
        let samples = recording.finish();
        assert!(samples.stacks.len() >= 20);
        // The innermost frames are of what worked, and their callers are below them.
        let near = |address: usize, place: usize| (place..place + 4096).contains(&address);
        let (inner, outer) = (work as *const () as usize, work_until as *const () as usize);
        let found = samples.stacks.iter().any(|stack| {
            let inner = stack.iter().position(|at| near(*at, inner));
            inner.is_some_and(|n| stack[n..].iter().any(|at| near(*at, outer)))
        });
        assert!(found, "{inner:x} {outer:x} {:x?}", samples.stacks);

        let taken = Taken {
            at_nanos: 1_700_000_000_000_000_000,
            nanos: 2_000_000_000,
        };
        let mappings = mappings().unwrap();
        let packed = encode(&samples, &mappings, taken).unwrap();
        let profile = Profile::unpack(&packed).unwrap();
        let counted: i64 = profile.sample.iter().map(|s| s.value[0]).sum();
        assert_eq!(counted, i64::try_from(samples.stacks.len()).unwrap());
        let own = std::env::current_exe().unwrap();
        let own = profile.mapping.iter().find(|m| {
            let name = &profile.string_table[usize::try_from(m.filename).unwrap()];
            own.to_string_lossy() == name.as_str()
        });
        let own = own.unwrap();
        let address = u64::try_from(inner).unwrap();
        assert!((own.memory_start..own.memory_limit).contains(&address));
        let here = |l: &crate::proto::Location| {
            l.mapping_id == own.id && near(usize::try_from(l.address).unwrap(), inner)
        };
        assert!(profile.location.iter().any(here));

        // The next one begins with nothing.
        let again = Recording::begin().unwrap();
        assert!(again.samples().stacks.len() < samples.stacks.len());
        drop(again);
    }
}
