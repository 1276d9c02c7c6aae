//! Drives the YAML parser's events into the builder.

use granit_parser::{Event, Parser, ScalarStyle, ScanError, Tag};

use crate::builder::{Budget, Builder};
use crate::resolve::{self, Scalar};
use crate::{Document, Error};

/// Reads every document of the stream.
pub(crate) fn parse(text: &str) -> Result<Vec<Document>, Error> {
    refuse_control_characters(text)?;
    let mut options = granit_parser::Options::default();
    options.set_emit_comments(false);
    let mut parser = Parser::new_from_str_with_options(text, options);
    let mut budget = Budget::default();
    let mut documents = Vec::new();
    while let Some(event) = parser.next_event() {
        let (event, span) = event.map_err(|error| syntax(&error))?;
        if let Event::DocumentStart(..) = event {
            let line = span.start.line();
            documents.push(document(text, &mut parser, &mut budget, line)?);
        }
    }
    Ok(documents)
}

type StrParser<'t> = Parser<'t, granit_parser::StrInput<'t>>;

fn document(
    source: &str,
    parser: &mut StrParser<'_>,
    budget: &mut Budget,
    start: usize,
) -> Result<Document, Error> {
    let mut builder = Builder::new(budget);
    while let Some(event) = parser.next_event() {
        let (event, span) = event.map_err(|error| syntax(&error))?;
        let line = span.start.line();
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                if style == ScalarStyle::Plain
                    && text == "<<"
                    && builder.wants_key()
                    && tag.as_deref().is_none_or(|tag| is_core(tag, "merge"))
                {
                    builder.merge_key();
                    continue;
                }
                let mut text = text.into_owned();
                let is_block = matches!(style, ScalarStyle::Literal | ScalarStyle::Folded);
                if is_block && span.end.byte_offset() == Some(source.len()) {
                    drop_added_break(&mut text, source);
                }
                let (scalar, text) = scalar(text, style, tag.as_deref(), line)?;
                builder.scalar(&scalar, text, line, anchor)?;
            }
            Event::SequenceStart(_, anchor, _) => builder.open(false, line, anchor)?,
            Event::MappingStart(_, anchor, _) => builder.open(true, line, anchor)?,
            Event::SequenceEnd | Event::MappingEnd => builder.close(line)?,
            Event::Alias(anchor) => builder.alias(anchor, line)?,
            Event::DocumentEnd => break,
            _ => {}
        }
    }
    Ok(builder.finish(start))
}

/// A block scalar that ends with the file, on a line without a break, has none at its end either; the parser adds one.
fn drop_added_break(text: &mut String, source: &str) {
    let last_line = source.rsplit(['\n', '\r']).next().unwrap_or_default();
    let Some(body) = text.strip_suffix('\n') else {
        return;
    };
    let blank = last_line.trim().is_empty();
    let content = body.rsplit('\n').next().unwrap_or_default();
    if !blank || (!content.is_empty() && last_line.ends_with(content)) {
        text.pop();
    }
}

fn scalar(
    text: String,
    style: ScalarStyle,
    tag: Option<&Tag>,
    line: usize,
) -> Result<(Scalar, String), Error> {
    let Some(tag) = tag else {
        let scalar = match style {
            ScalarStyle::Plain => resolve::plain(&text),
            _ => Scalar::Text,
        };
        return Ok((scalar, text));
    };
    for name in ["int", "float", "bool", "null"] {
        if is_core(tag, name) {
            let scalar =
                resolve::tagged(name, &text).map_err(|message| Error::at(line, message))?;
            return Ok((scalar, text));
        }
    }
    if is_core(tag, "binary") {
        return Err(Error::at(
            line,
            "!!binary is not supported, write the base64 text without the tag",
        ));
    }
    // `!!str`, `!!timestamp` and tags of the user's own leave the text as it stands.
    Ok((Scalar::Text, text))
}

fn is_core(tag: &Tag, name: &str) -> bool {
    tag.suffix_in_namespace("tag:yaml.org,2002:")
        .is_some_and(|suffix| suffix == name)
}

/// YAML allows printable characters only; a binary file is told at its first byte.
fn refuse_control_characters(text: &str) -> Result<(), Error> {
    let mut line = 1;
    for c in text.chars() {
        match c {
            '\n' => line += 1,
            '\t' | '\r' | '\u{20}'..='\u{7e}' | '\u{85}' | '\u{a0}'..='\u{fefe}' => {}
            '\u{ff00}'..='\u{fffd}' | '\u{10000}'.. => {}
            c => {
                return Err(Error::at(
                    line,
                    format!(
                        "control characters are not allowed (U+{:04X})",
                        u32::from(c)
                    ),
                ));
            }
        }
    }
    Ok(())
}

fn syntax(error: &ScanError) -> Error {
    Error::at(error.marker().line(), error.info())
}
