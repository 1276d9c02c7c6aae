//! Pure readers of what the kernel writes: texts in, values out. A line that is none is left out.

pub mod machine;
pub mod net;
pub mod v1;
pub mod v2;

use crate::reading::{Depth, Psi, PsiLine, Tasks};

/// Files by their names.
pub trait Files {
    /// Nothing where it cannot be read. Stands until the next one is asked for.
    fn text(&mut self, name: &str) -> Option<&str>;

    /// Of a file with nothing else in it.
    fn number(&mut self, name: &str) -> Option<u64> {
        self.text(name).and_then(number)
    }

    /// A number that is set from outside: it may be one that was read a while ago.
    fn setting(&mut self, name: &'static str) -> Option<u64> {
        self.number(name)
    }
}

/// The kernel rounds "without limit" to something below the largest number.
const UNLIMITED: u64 = 1 << 62;

/// One number and a line end; `max` is the largest one.
pub(crate) fn number(text: &str) -> Option<u64> {
    match text.trim() {
        "max" => Some(u64::MAX),
        text => text.parse().ok(),
    }
}

pub(crate) fn limit(value: u64) -> Option<u64> {
    (value <= UNLIMITED).then_some(value)
}

/// The value of a key in lines of `key value`.
pub(crate) fn keyed(text: &str, key: &str) -> Option<u64> {
    let mut pairs = pairs(text).filter(|(k, _)| *k == key);
    pairs.find_map(|(_, value)| value.number())
}

/// Keys and values. Most are not wanted, so who wants one makes a number of it.
pub(crate) fn pairs(text: &str) -> impl Iterator<Item = (&str, Value<'_>)> {
    let lines = text.split('\n');
    lines.filter_map(|line| line.split_once(' ').map(|(key, value)| (key, Value(value))))
}

#[derive(Clone, Copy)]
pub(crate) struct Value<'a>(&'a str);

impl Value<'_> {
    fn number(self) -> Option<u64> {
        self.0.trim().parse().ok()
    }

    /// Of a limit: whether it is one. What cannot be read may be.
    pub fn limits(self) -> bool {
        self.number().is_none_or(|number| limit(number).is_some())
    }

    /// What is no number is as if it were not there.
    pub fn into(self, place: &mut u64) {
        if let Some(number) = self.number() {
            *place = number;
        }
    }
}

/// `major:minor`.
pub(crate) fn device(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

fn count_lines(text: &str) -> u64 {
    text.lines().filter(|line| !line.is_empty()).count() as u64
}

/// From the files of processes, of threads, and of the most threads there may be.
pub(crate) fn tasks(
    files: &mut dyn Files,
    names: [&'static str; 3],
    depth: Depth,
) -> Option<Tasks> {
    let [processes, threads, max] = names;
    let processes = count_lines(files.text(processes)?);
    let (threads, max) = match depth {
        Depth::Full => (files.number(threads), files.setting(max)),
        _ => (None, None),
    };
    Some(Tasks {
        processes,
        threads: threads.unwrap_or(processes),
        threads_max: max.and_then(limit).unwrap_or_default(),
        files: None,
    })
}

/// The text of a pressure file. Older kernels have no `full` line for the CPU.
pub fn pressure(text: &str) -> Option<Psi> {
    let mut found = Psi::default();
    let mut some = false;
    for line in text.lines() {
        let Some((kind, rest)) = line.split_once(' ') else {
            continue;
        };
        match kind {
            "some" => {
                found.some = psi_line(rest);
                some = true;
            }
            "full" => found.full = psi_line(rest),
            _ => {}
        }
    }
    some.then_some(found)
}

fn psi_line(text: &str) -> PsiLine {
    let mut line = PsiLine::default();
    for (key, value) in text.split(' ').filter_map(|pair| pair.split_once('=')) {
        let average = || value.parse().unwrap_or_default();
        match key {
            "avg10" => line.avg10 = average(),
            "avg60" => line.avg60 = average(),
            "avg300" => line.avg300 = average(),
            "total" => line.total = value.parse().unwrap_or_default(),
            _ => {}
        }
    }
    line
}

#[cfg(test)]
pub(crate) mod testing {
    /// A directory of recorded texts.
    struct Recorded<'a>(&'a [(&'a str, &'a str)]);

    impl super::Files for Recorded<'_> {
        fn text(&mut self, name: &str) -> Option<&str> {
            let found = self.0.iter().find(|(n, _)| *n == name);
            found.map(|(_, text)| *text)
        }
    }

    pub fn files<'a>(texts: &'a [(&'a str, &'a str)]) -> impl super::Files + 'a {
        Recorded(texts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_limits() {
        assert_eq!(number("12\n"), Some(12));
        assert_eq!(number("max\n"), Some(u64::MAX));
        assert_eq!(number("-1\n"), None);
        assert_eq!(limit(9_223_372_036_854_771_712), None);
        assert_eq!(limit(u64::MAX), None);
        assert_eq!(limit(1 << 30), Some(1 << 30));
        assert_eq!(keyed("a 1\nab 2\n", "ab"), Some(2));
        assert_eq!(keyed("a 1\nnonsense\n", "b"), None);
        assert_eq!(device("253:1"), Some((253, 1)));
    }

    #[test]
    fn pressure_with_and_without_a_full_line() {
        let both = "some avg10=1.50 avg60=0.25 avg300=0.00 total=1234\n\
                    full avg10=0.50 avg60=0.00 avg300=0.00 total=99\n";
        let found = pressure(both).unwrap();
        assert_eq!((found.some.avg10, found.some.total), (1.5, 1234));
        assert_eq!((found.full.avg10, found.full.total), (0.5, 99));
        let some = "some avg10=0.00 avg60=0.00 avg300=0.00 total=7\n";
        assert_eq!(pressure(some).unwrap().full, PsiLine::default());
        assert_eq!(pressure(""), None);
    }
}
