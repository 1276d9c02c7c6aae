//! Which entries are shown, and how: pure, fed line by line.

use jiff::Timestamp;

use crate::entry::{Stream, fixed_width, parse};

/// What somebody wants to see of a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogOptions {
    pub follow: bool,
    pub timestamps: bool,
    /// Nothing older.
    pub since: Option<Timestamp>,
    /// The last so many lines; lines that were written in parts count by their parts.
    pub tail: Option<u64>,
    pub limit_bytes: Option<u64>,
    /// Only this one of the two.
    pub stream: Option<Stream>,
}

/// Whether there is any use in going on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Appetite {
    Hungry,
    Full,
}

/// Takes lines of a log file and makes of them what is shown.
#[derive(Debug)]
pub(crate) struct Filter {
    timestamps: bool,
    since: Option<Timestamp>,
    stream: Option<Stream>,
    /// Bytes that may still be shown.
    bytes: u64,
    /// Lines that may still be shown.
    lines: u64,
    line_begins: bool,
}

impl Filter {
    pub(crate) fn new(options: &LogOptions) -> Self {
        Self {
            timestamps: options.timestamps,
            since: options.since,
            stream: options.stream,
            bytes: options.limit_bytes.unwrap_or(u64::MAX),
            // Lines written after the look at the end are not asked for, unless the log is followed.
            lines: match options.tail {
                Some(tail) if !options.follow => tail,
                _ => u64::MAX,
            },
            line_begins: true,
        }
    }

    pub(crate) fn appetite(&self) -> Appetite {
        match self.bytes == 0 || self.lines == 0 {
            true => Appetite::Full,
            false => Appetite::Hungry,
        }
    }

    /// Adds to `out` what is shown of a line. The error is why it cannot be read; it is passed over.
    pub(crate) fn take(
        &mut self,
        line: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Appetite, crate::BadEntry> {
        if self.appetite() == Appetite::Full {
            return Ok(Appetite::Full);
        }
        let entry = parse(line)?;
        let old = self.since.is_some_and(|since| entry.time < since);
        if !old && self.stream.is_none_or(|wanted| wanted == entry.stream) {
            if self.timestamps && self.line_begins {
                self.show(fixed_width(&entry.stamp).as_bytes(), out);
                self.show(b" ", out);
            }
            self.show(&entry.text, out);
        }
        self.lines = self.lines.saturating_sub(1);
        self.line_begins = entry.text.last().is_none_or(|last| *last == b'\n');
        Ok(self.appetite())
    }

    fn show(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        let room = usize::try_from(self.bytes).unwrap_or(usize::MAX);
        let shown = &bytes[..bytes.len().min(room)];
        out.extend_from_slice(shown);
        if self.bytes != u64::MAX {
            self.bytes -= shown.len() as u64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "\
2020-01-01T00:00:01Z stdout F one
2020-01-01T00:00:02Z stdout P two,
2020-01-01T00:00:03Z stdout F and more
not a line
2020-01-01T00:00:04Z stderr F oh
2020-01-01T00:00:05Z stdout F five
";

    fn shown(options: &LogOptions) -> String {
        let mut filter = Filter::new(options);
        let mut out = Vec::new();
        for line in LOG.split_inclusive('\n') {
            if filter.take(line.as_bytes(), &mut out) == Ok(Appetite::Full) {
                break;
            }
        }
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn what_is_shown() {
        let all = LogOptions::default();
        assert_eq!(shown(&all), "one\ntwo,and more\noh\nfive\n");
        let since = Some("2020-01-01T00:00:04Z".parse().unwrap());
        assert_eq!(
            shown(&LogOptions {
                since,
                ..all.clone()
            }),
            "oh\nfive\n"
        );
        let stream = Some(Stream::Stderr);
        assert_eq!(
            shown(&LogOptions {
                stream,
                ..all.clone()
            }),
            "oh\n"
        );
        let limit_bytes = Some(6);
        assert_eq!(
            shown(&LogOptions {
                limit_bytes,
                ..all.clone()
            }),
            "one\ntw"
        );
        let tail = Some(2);
        assert_eq!(
            shown(&LogOptions {
                tail,
                ..all.clone()
            }),
            "one\ntwo,"
        );
        let none = LogOptions {
            limit_bytes: Some(0),
            ..all.clone()
        };
        assert_eq!(shown(&none), "");
        let stamped = LogOptions {
            timestamps: true,
            ..all
        };
        assert_eq!(
            shown(&stamped),
            "2020-01-01T00:00:01.000000000Z one\n\
             2020-01-01T00:00:02.000000000Z two,and more\n\
             2020-01-01T00:00:04.000000000Z oh\n\
             2020-01-01T00:00:05.000000000Z five\n"
        );
    }
}
