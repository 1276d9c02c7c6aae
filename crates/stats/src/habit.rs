//! Who asks for the summary often asks for everything next. Once that was seen, both get one reading.

use crate::reading::Depth;

/// What became of the reading that stands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Use {
    pub read: Depth,
    /// Of those who got it, what the one who wanted most wanted.
    pub wanted: Depth,
    /// It is still good for those who want no more.
    pub fresh: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Habit {
    all_follows: bool,
}

impl Habit {
    /// How deep to read for this question.
    pub fn depth(&mut self, question: Depth, before: Option<Use>) -> Depth {
        if let Some(before) = before {
            if before.wanted < before.read {
                self.all_follows = false;
            }
            if before.fresh && before.read == Depth::Summary && question == Depth::Full {
                self.all_follows = true;
            }
        }
        match question {
            Depth::Summary if self.all_follows => Depth::Full,
            question => question,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_is_read_with_everything_when_everything_follows() {
        use Depth::{CpuAndMemory, Full, Summary};
        let mut habit = Habit::default();
        let before = |read, wanted, fresh| {
            Some(Use {
                read,
                wanted,
                fresh,
            })
        };
        for (question, standing, expected) in [
            (Summary, None, Summary),
            // Everything is asked for long after.
            (Full, before(Summary, Summary, false), Full),
            (Summary, before(Full, Full, false), Summary),
            (Full, before(Summary, Summary, true), Full),
            (Summary, before(Full, Full, false), Full),
            (CpuAndMemory, before(Full, Full, false), CpuAndMemory),
            (Summary, before(CpuAndMemory, CpuAndMemory, true), Full),
            // Nobody came for the rest.
            (Summary, before(Full, Summary, false), Summary),
            (Summary, before(Summary, Summary, false), Summary),
        ] {
            let found = habit.depth(question, standing);
            assert_eq!(found, expected, "{question:?} after {standing:?}");
        }
    }
}
