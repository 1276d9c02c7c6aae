//! One line of a log file as a runtime writes it.
//!
//! ```text
//! 2016-10-06T00:17:09.669794202Z stdout P the first part of a long line
//! 2016-10-06T00:17:09.669794203Z stdout F and its end
//! {"log":"a line\n","stream":"stdout","time":"2016-10-20T18:39:20.57606443Z"}
//! ```
//!
//! The last form is that of Docker's json-file driver, which `cri-dockerd` hands on.

use std::borrow::Cow;

use jiff::Timestamp;
use serde::Deserialize;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    Stdout,
    Stderr,
}

/// What one line says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    pub time: Timestamp,
    /// The time as it was written.
    pub stamp: Cow<'a, str>,
    pub stream: Stream,
    /// With the end of line, unless more of it follows in the next entry.
    pub text: Cow<'a, [u8]>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadEntry {
    #[error("timestamp is not found")]
    NoTimestamp,
    #[error("unexpected timestamp {0:?}")]
    Timestamp(String),
    #[error("stream type is not found")]
    NoStream,
    #[error("unexpected stream type {0:?}")]
    Stream(String),
    #[error("log tag is not found")]
    NoTag,
    #[error("it is not JSON as Docker writes it: {0}")]
    Json(String),
}

/// Reads one line, its end of line included if it has one.
pub fn parse(line: &[u8]) -> Result<Entry<'_>, BadEntry> {
    match line.first() {
        Some(b'{') => parse_docker(line),
        _ => parse_cri(line),
    }
}

/// What is before the next space, and what is after it.
fn word(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = text.iter().position(|b| *b == b' ')?;
    Some((&text[..at], &text[at + 1..]))
}

fn parse_cri(line: &[u8]) -> Result<Entry<'_>, BadEntry> {
    let (stamp, rest) = word(line).ok_or(BadEntry::NoTimestamp)?;
    let (time, stamp) = parse_time(stamp)?;
    let (stream, rest) = word(rest).ok_or(BadEntry::NoStream)?;
    let stream = parse_stream(stream)?;
    let (tags, mut text) = word(rest).ok_or(BadEntry::NoTag)?;
    // Tags to come follow after a colon.
    let partial = tags.split(|b| *b == b':').next() == Some(b"P");
    if partial {
        text = text.strip_suffix(b"\n").unwrap_or(text);
    }
    Ok(Entry {
        time,
        stamp: Cow::Borrowed(stamp),
        stream,
        text: Cow::Borrowed(text),
    })
}

fn parse_time(stamp: &[u8]) -> Result<(Timestamp, &str), BadEntry> {
    let odd = || BadEntry::Timestamp(excerpt(stamp));
    let stamp = std::str::from_utf8(stamp).map_err(|_| odd())?;
    let time = stamp.parse().map_err(|_| odd())?;
    Ok((time, stamp))
}

fn parse_stream(name: &[u8]) -> Result<Stream, BadEntry> {
    match name {
        b"stdout" => Ok(Stream::Stdout),
        b"stderr" => Ok(Stream::Stderr),
        other => Err(BadEntry::Stream(excerpt(other))),
    }
}

/// Enough of what was found to know it again.
fn excerpt(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(64)]).into_owned()
}

#[derive(Deserialize)]
struct DockerLine<'a> {
    #[serde(default, borrow)]
    log: Cow<'a, str>,
    #[serde(default, borrow)]
    stream: Cow<'a, str>,
    #[serde(borrow)]
    time: Cow<'a, str>,
}

fn parse_docker(line: &[u8]) -> Result<Entry<'_>, BadEntry> {
    let read: DockerLine<'_> =
        serde_json::from_slice(line).map_err(|e| BadEntry::Json(e.to_string()))?;
    let (time, _) = parse_time(read.time.as_bytes())?;
    Ok(Entry {
        time,
        stream: parse_stream(read.stream.as_bytes())?,
        stamp: read.time,
        text: match read.log {
            Cow::Borrowed(text) => Cow::Borrowed(text.as_bytes()),
            Cow::Owned(text) => Cow::Owned(text.into_bytes()),
        },
    })
}

/// A time with all nine digits of its fraction, in the zone it was written in.
pub(crate) fn fixed_width(stamp: &str) -> String {
    let bytes = stamp.as_bytes();
    let seconds = bytes.len().min(19);
    let (whole, rest) = stamp.split_at_checked(seconds).unwrap_or((stamp, ""));
    let (fraction, zone) = match rest.strip_prefix('.') {
        Some(rest) => {
            let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
            rest.split_at_checked(digits).unwrap_or((rest, ""))
        }
        None => ("", rest),
    };
    format!("{whole}.{fraction:0<9}{zone}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn shown(line: &str) -> String {
        match parse(line.as_bytes()) {
            Ok(entry) => format!(
                "{} {:?} {:?}",
                fixed_width(&entry.stamp),
                entry.stream,
                String::from_utf8_lossy(&entry.text)
            ),
            Err(bad) => bad.to_string(),
        }
    }

    #[test]
    fn lines_as_runtimes_write_them() {
        let cases = [
            (
                "2016-10-06T00:17:09.669794202Z stdout F a line\n",
                r#"2016-10-06T00:17:09.669794202Z Stdout "a line\n""#,
            ),
            (
                "2016-10-06T00:17:09.6Z stderr P a part\n",
                r#"2016-10-06T00:17:09.600000000Z Stderr "a part""#,
            ),
            (
                "2016-10-06T02:17:09+02:00 stdout P:more x\n",
                r#"2016-10-06T02:17:09.000000000+02:00 Stdout "x""#,
            ),
            (
                "2016-10-06T00:17:09.1Z stdout F no end",
                r#"2016-10-06T00:17:09.100000000Z Stdout "no end""#,
            ),
            (
                "2016-10-06T00:17:09.1Z stdout F \n",
                r#"2016-10-06T00:17:09.100000000Z Stdout "\n""#,
            ),
            (
                r#"{"log":"a \"b\"\n","stream":"stderr","time":"2016-10-20T18:39:20.57Z"}"#,
                r#"2016-10-20T18:39:20.570000000Z Stderr "a \"b\"\n""#,
            ),
            ("", "timestamp is not found"),
            ("words\n", "timestamp is not found"),
            ("today stdout F x\n", r#"unexpected timestamp "today""#),
            ("2016-10-06T00:17:09Z stdout\n", "stream type is not found"),
            (
                "2016-10-06T00:17:09Z stdin F x\n",
                r#"unexpected stream type "stdin""#,
            ),
            ("2016-10-06T00:17:09Z stdout F\n", "log tag is not found"),
        ];
        for (line, expected) in cases {
            assert_eq!(shown(line), expected, "{line:?}");
        }
        assert!(shown("{\"log\":").starts_with("it is not JSON as Docker writes it: "));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_line_or_a_reason(line in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(entry) = parse(&line) {
                fixed_width(&entry.stamp);
                prop_assert!(entry.text.len() <= line.len());
            }
        }

        #[test]
        fn nearly_right_lines(
            stamp in "[0-9TZ:.+-]{0,35}",
            stream in "(stdout|stderr|std)",
            rest in "[FP:]{0,3} .{0,20}\n?",
        ) {
            let line = format!("{stamp} {stream} {rest}");
            if let Ok(entry) = parse(line.as_bytes()) {
                prop_assert!(fixed_width(&entry.stamp).len() >= 30);
            }
        }
    }
}
