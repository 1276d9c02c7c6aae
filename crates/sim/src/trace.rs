//! The trace of a schedule: what crossed the boundaries, what went wrong, what came of it. Its hash
//! is the identity of a run.

use std::collections::VecDeque;
use std::fmt;

use tokio::time::Instant;

/// Lines kept for whoever has to find out what happened.
const TAIL: usize = 160;
const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const PRIME: u64 = 0x0000_0100_0000_01b3;

pub(crate) struct Trace {
    hash: u64,
    tail: VecDeque<String>,
    begun: Instant,
    print: bool,
}

impl Trace {
    pub(crate) fn new(print: bool) -> Self {
        Self {
            hash: OFFSET,
            tail: VecDeque::with_capacity(TAIL),
            begun: Instant::now(),
            print,
        }
    }

    pub(crate) fn note(&mut self, what: fmt::Arguments<'_>) {
        let at = self.begun.elapsed();
        let line = format!("{:>9.3} {what}", at.as_secs_f64());
        for byte in line.bytes() {
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(PRIME);
        }
        if self.print {
            println!("{line}");
        }
        if self.tail.len() == TAIL {
            self.tail.pop_front();
        }
        self.tail.push_back(line);
    }

    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }

    pub(crate) fn tail(&self) -> Vec<String> {
        self.tail.iter().cloned().collect()
    }
}
