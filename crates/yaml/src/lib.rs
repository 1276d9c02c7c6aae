//! YAML and JSON the way Go's `sigs.k8s.io/yaml` reads them.
//!
//! Owns the road from bytes to [`serde_json::Value`]: YAML 1.1 scalars (`0644`, `yes`, `1_000`), merge keys,
//! anchors under a budget, keys turned into strings, and the line each field stands on, so that a later
//! complaint about a field can name its place. Duplicate keys do not fail: the last one wins, as in Go's lenient
//! decoder, and each is listed in [`Document::duplicates`] for callers that warn or refuse.
//!
//! What Go would swallow silently but no user can mean is refused with a line: `.inf`, a null key, an alias
//! bomb, more than [`MAX_DEPTH`] levels. The size of the input is the caller's to cap.

mod builder;
mod json;
mod lines;
mod resolve;
mod yaml;

use std::fmt;

use serde_json::Value;

use lines::Lines;

/// Levels of nesting, aliases counted as what they stand for.
pub const MAX_DEPTH: usize = 128;
/// Scalars, sequences and mappings in one stream, aliases counted as what they stand for.
pub const MAX_NODES: usize = 250_000;
/// Bytes of text that aliases and anchors may multiply a stream by.
pub const MAX_ALIAS_BYTES: usize = 10 << 20;
/// Duplicate keys worth listing; the rest is counted as the same mistake.
pub const MAX_DUPLICATES: usize = 64;

/// Why a stream could not be read, with the line when the parser knows it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct Error {
    /// 1-based line in the stream.
    pub line: Option<usize>,
    /// What is wrong there.
    pub message: String,
}

impl Error {
    pub(crate) fn at(line: usize, message: impl Into<String>) -> Self {
        Self {
            line: Some(line),
            message: message.into(),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "line {line}: {}", self.message),
            None => f.write_str(&self.message),
        }
    }
}

/// A key written more than once in one mapping; the last value won.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Duplicate {
    /// Where, such as `spec.containers[0].image`.
    pub path: String,
    /// Line of the later key.
    pub line: usize,
}

/// One document of a stream.
#[derive(Debug, Clone)]
pub struct Document {
    /// The document as JSON; an empty document is `Null`.
    pub value: Value,
    /// Keys written more than once, in the order they were met.
    pub duplicates: Vec<Duplicate>,
    lines: Lines,
}

impl Document {
    /// The 1-based line of the field at `json_path` (`spec.containers[0].image`,
    /// `metadata.annotations[a.b/c]`; the empty path is the document itself).
    /// For a key that is the line of the key, for a list item the line it begins on.
    #[must_use]
    pub fn line_of(&self, json_path: &str) -> Option<usize> {
        match self.lines.walk(json_path) {
            (line, true) => Some(line),
            (_, false) => None,
        }
    }

    /// The line of the field at `json_path` or, where it was not written, of the closest parent that was.
    #[must_use]
    pub fn nearest_line(&self, json_path: &str) -> usize {
        self.lines.walk(json_path).0
    }
}

/// Reads a stream of exactly one document, YAML or JSON. Empty documents around it are passed over; an empty
/// stream is one `Null` document.
///
/// # Errors
/// Bad syntax, a broken budget, or a second document with content.
pub fn parse(bytes: &[u8]) -> Result<Document, Error> {
    let mut found: Option<Document> = None;
    for document in parse_documents(bytes)? {
        match &found {
            Some(first) if !first.value.is_null() => {
                if !document.value.is_null() {
                    return Err(Error::at(
                        document.nearest_line(""),
                        "a second document begins here, but exactly one is expected",
                    ));
                }
            }
            _ => found = Some(document),
        }
    }
    Ok(found.unwrap_or_else(|| Document {
        value: Value::Null,
        duplicates: Vec::new(),
        lines: Lines::leaf(1),
    }))
}

/// Reads every document of a stream, empty ones (`Null`) included.
///
/// # Errors
/// Bad syntax or a broken budget, anywhere in the stream.
pub fn parse_documents(bytes: &[u8]) -> Result<Vec<Document>, Error> {
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let before = bytes.get(..error.valid_up_to()).unwrap_or_default();
        Error::at(line_after(before), "the text is not valid UTF-8")
    })?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if json::looks_like(text) {
        return Ok(vec![json::parse(text)?]);
    }
    yaml::parse(text)
}

/// The line on which the byte after `before` stands.
fn line_after(before: &[u8]) -> usize {
    before.iter().filter(|byte| **byte == b'\n').count() + 1
}
