//! JSON, read by JSON's rules. A YAML parser takes nearly all of it, but not escaped surrogate pairs, keys on
//! their own line or keys over 1024 characters; text that is JSON goes this way, the rest is YAML.

use serde::de::IgnoredAny;

use crate::builder::{Budget, Builder};
use crate::resolve::Scalar;
use crate::{Document, Error};

/// Whether the text is one whole JSON object or array. A flow-style YAML document is not.
pub(crate) fn looks_like(text: &str) -> bool {
    let begins = text.trim_start_matches([' ', '\t', '\r', '\n']);
    begins.starts_with(['{', '[']) && serde_json::from_str::<IgnoredAny>(text).is_ok()
}

/// Reads text that [`looks_like`] JSON, so brackets and commas are known to be in order.
pub(crate) fn parse(text: &str) -> Result<Document, Error> {
    let mut budget = Budget::default();
    let mut builder = Builder::new(&mut budget);
    let mut reader = Reader {
        text,
        at: 0,
        line: 1,
    };
    while let Some(byte) = reader.peek() {
        match byte {
            b'{' | b'[' => {
                reader.at += 1;
                builder.open(byte == b'{', reader.line, 0)?;
            }
            b'}' | b']' => {
                reader.at += 1;
                builder.close(reader.line)?;
            }
            b'"' => {
                let text = reader.string()?;
                builder.scalar(&Scalar::Text, text, reader.line, 0)?;
            }
            b',' | b':' => reader.at += 1,
            _ => {
                let word = reader.word();
                let scalar = literal(word, reader.line)?;
                builder.scalar(&scalar, word.to_owned(), reader.line, 0)?;
            }
        }
    }
    Ok(builder.finish(1))
}

struct Reader<'t> {
    text: &'t str,
    at: usize,
    line: usize,
}

impl<'t> Reader<'t> {
    /// The next byte that is not white space.
    fn peek(&mut self) -> Option<u8> {
        loop {
            let byte = *self.text.as_bytes().get(self.at)?;
            match byte {
                b'\n' => self.line += 1,
                b' ' | b'\t' | b'\r' => {}
                _ => return Some(byte),
            }
            self.at += 1;
        }
    }

    fn string(&mut self) -> Result<String, Error> {
        let bytes = self.text.as_bytes();
        let mut end = self.at + 1;
        loop {
            match bytes.get(end) {
                Some(b'\\') => end += 2,
                Some(b'"') => break,
                Some(_) => end += 1,
                None => return Err(Error::at(self.line, "a string does not end")),
            }
        }
        let quoted = self.text.get(self.at..=end).unwrap_or_default();
        self.at = end + 1;
        serde_json::from_str(quoted).map_err(|error| Error::at(self.line, error.to_string()))
    }

    /// A number or a literal; always at least one byte, so that reading ends.
    fn word(&mut self) -> &'t str {
        let rest = self.text.get(self.at..).unwrap_or_default();
        let length = rest
            .find([',', ':', '}', ']', ' ', '\t', '\r', '\n'])
            .unwrap_or(rest.len())
            .max(1);
        self.at += length;
        rest.get(..length).unwrap_or_default()
    }
}

fn literal(word: &str, line: usize) -> Result<Scalar, Error> {
    match word {
        "null" => return Ok(Scalar::Null),
        "true" => return Ok(Scalar::Bool(true)),
        "false" => return Ok(Scalar::Bool(false)),
        _ => {}
    }
    if let Ok(value) = word.parse::<i64>() {
        return Ok(Scalar::Int(value));
    }
    if let Ok(value) = word.parse::<u64>() {
        return Ok(Scalar::Uint(value));
    }
    match word.parse::<f64>() {
        Ok(value) if value.is_finite() => Ok(Scalar::Float(value)),
        _ => Err(Error::at(line, format!("{word} is not a JSON number"))),
    }
}
