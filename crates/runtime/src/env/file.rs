//! Files of variables that a pod's own containers write: `NAME='value'` lines, a strict part of what a shell reads.
//!
//! A value stands in single quotes, may go over lines and is taken as it is; behind it only a comment may follow.
//! Blank lines and `#` lines are passed over. `NAME= …` with a space is an empty value, as in a shell.

use std::fmt;

/// A longer line is refused.
const MAX_LINE: usize = 64 << 10;

/// What is wrong in a file, with the line.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Problem {
    line: usize,
    what: &'static str,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { line, what } = self;
        write!(
            f,
            "invalid environment variable format at line {line}: {what}"
        )
    }
}

/// The first value of a name, if it has one. What comes behind it is not looked at.
pub(super) fn value_of(bytes: &[u8], wanted: &str) -> Result<Option<Vec<u8>>, Problem> {
    let mut lines = Lines {
        rest: Some(bytes),
        number: 0,
    };
    while let Some(line) = lines.next()? {
        let line = trim_start(line);
        if line.is_empty() || line.starts_with(b"#") {
            continue;
        }
        let Some(equals) = line.iter().position(|b| *b == b'=') else {
            return Err(lines.problem("missing '='"));
        };
        let (name, value) = (&line[..equals], &line[equals + 1..]);
        if name.is_empty() {
            return Err(lines.problem("empty variable name"));
        }
        if name.ends_with(b" ") || name.ends_with(b"\t") {
            return Err(lines.problem("whitespace before '=' is not allowed"));
        }
        let is_wanted = name == wanted.as_bytes();
        if value.starts_with(b" ") || value.starts_with(b"\t") {
            if is_wanted {
                return Ok(None);
            }
            continue;
        }
        let Some(quoted) = value.strip_prefix(b"'") else {
            return Err(lines.problem("value must be enclosed in single quotes"));
        };
        let value = lines.quoted(quoted)?;
        if is_wanted {
            return Ok(Some(value));
        }
    }
    Ok(None)
}

fn trim_start(line: &[u8]) -> &[u8] {
    let text = line.iter().position(|b| !matches!(b, b' ' | b'\t'));
    &line[text.unwrap_or(line.len())..]
}

struct Lines<'a> {
    rest: Option<&'a [u8]>,
    number: usize,
}

impl<'a> Lines<'a> {
    /// Without its end, be that LF or CRLF.
    fn next(&mut self) -> Result<Option<&'a [u8]>, Problem> {
        let Some(rest) = self.rest.filter(|rest| !rest.is_empty()) else {
            return Ok(None);
        };
        self.number += 1;
        let end = rest.iter().position(|b| *b == b'\n');
        let line = &rest[..end.unwrap_or(rest.len())];
        self.rest = end.map(|end| &rest[end + 1..]);
        if line.len() >= MAX_LINE {
            return Err(self.problem("the line is too long"));
        }
        Ok(Some(line.strip_suffix(b"\r").unwrap_or(line)))
    }

    /// From behind the opening quote.
    fn quoted(&mut self, mut text: &'a [u8]) -> Result<Vec<u8>, Problem> {
        let begun = self.number;
        let mut value = Vec::new();
        loop {
            if let Some(end) = text.iter().position(|b| *b == b'\'') {
                value.extend_from_slice(&text[..end]);
                let behind = trim_start(&text[end + 1..]);
                if !behind.is_empty() && !behind.starts_with(b"#") {
                    return Err(self.problem("unexpected content after closing quote"));
                }
                return Ok(value);
            }
            value.extend_from_slice(text);
            value.push(b'\n');
            text = self.next()?.ok_or(Problem {
                line: begun,
                what: "unclosed single quote",
            })?;
        }
    }

    fn problem(&self, what: &'static str) -> Problem {
        Problem {
            line: self.number,
            what,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn values_by_name() {
        let text = b"# comment\n\n  A='1'\nB='two words' # said\r\nC='x\n# no comment\ny'\nD= 'z'\n\tE='$(A)\\n'\nA='2'\nF=''";
        let get = |name: &str| {
            value_of(text, name)
                .unwrap()
                .map(|v| String::from_utf8(v).unwrap())
        };
        let cases = [
            ("A", Some("1")),
            ("B", Some("two words")),
            ("C", Some("x\n# no comment\ny")),
            ("D", None),
            ("E", Some("$(A)\\n")),
            ("F", Some("")),
            ("G", None),
        ];
        for (name, expected) in cases {
            assert_eq!(get(name).as_deref(), expected, "{name}");
        }
        assert_eq!(value_of(b"", "A"), Ok(None));
    }

    #[test]
    fn what_is_no_such_file() {
        let cases: [(&[u8], usize, &str); 7] = [
            (b"\nA", 2, "missing '='"),
            (b"='1'", 1, "empty variable name"),
            (b"A ='1'", 1, "whitespace before '=' is not allowed"),
            (b"A=1", 1, "value must be enclosed in single quotes"),
            (b"A=\"1\"", 1, "value must be enclosed in single quotes"),
            (b"B=''\nA='1\n2\n", 2, "unclosed single quote"),
            (b"A='1'x", 1, "unexpected content after closing quote"),
        ];
        for (text, line, what) in cases {
            assert_eq!(value_of(text, "A"), Err(Problem { line, what }));
        }
        let long = [b"A='".as_slice(), &[b'x'; MAX_LINE], b"'"].concat();
        assert!(value_of(&long, "A").is_err());
        // What is found before a mistake is found.
        assert_eq!(value_of(b"A='1'\nB", "A"), Ok(Some(b"1".to_vec())));
    }

    /// Whatever can stand in quotes, be it text or not.
    fn quotable() -> impl Strategy<Value = Vec<u8>> {
        // But for what ends the quotes, or a line. Cases that are refused are counted, and a million of these too many.
        let bytes = any::<u8>().prop_map(|b| if b"'\r".contains(&b) { b'"' } else { b });
        prop_oneof![
            "[^'\r]{0,64}".prop_map(String::into_bytes),
            prop::collection::vec(bytes, 0..64),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop_oneof![
            prop::collection::vec(prop::sample::select(b"A='# \t\r\n\xc3\xff".as_slice()), 0..32),
            prop::collection::vec(any::<u8>(), 0..64),
        ]) {
            let _ = value_of(&bytes, "A");
        }

        #[test]
        fn what_is_quoted_comes_back(value in quotable(), before in "(B='[^'\r]{0,8}'\n){0,3}") {
            let text = [before.as_bytes(), b"A='", &value, b"' # end\n"].concat();
            prop_assert_eq!(value_of(&text, "A"), Ok(Some(value)));
        }
    }
}
