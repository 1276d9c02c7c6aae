//! Splits a command line into flags and values, by the rules of Go's pflag:
//!
//! `--name=value` or `--name value`; a switch stands alone or as `--name=false`, never with its value as the next
//! word; underscores in names are dashes; one-letter flags may be joined and may carry their value (`-v5`, `-v=5`,
//! `-v 5`); `--` ends the flags. A word that is no flag is an error.

use std::ffi::OsString;

use super::Flag;
use super::table::{REMOVED, all, find, find_short};
use crate::hint::did_you_mean;

/// A flag with the value it was given.
#[derive(Debug)]
pub(crate) struct Given {
    pub(crate) flag: &'static Flag,
    pub(crate) value: String,
}

/// Why a command line cannot be understood. Each is one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FlagError {
    /// No flag has that name.
    #[error("unknown flag: --{name}{hint}")]
    Unknown {
        /// As written, without dashes.
        name: String,
        /// A guess at what was meant, or why it is gone.
        hint: String,
    },
    /// No flag has that letter.
    #[error("unknown shorthand flag: '{letter}' in {word}{hint}")]
    UnknownShort {
        /// The letter.
        letter: char,
        /// The word it stands in.
        word: String,
        /// A guess at what was meant.
        hint: String,
    },
    /// Dashes without a name, or a name that begins with a dash or an equals sign.
    #[error("bad flag syntax: {0}")]
    Syntax(String),
    /// The value is missing.
    #[error("flag needs an argument: {0}")]
    NeedsValue(String),
    /// The value cannot be used.
    #[error("invalid argument {value:?} for --{flag}: {reason}")]
    BadValue {
        /// Name without dashes.
        flag: &'static str,
        /// The value as written.
        value: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A word that is neither a flag nor the value of one.
    #[error("unknown command {0:?}: only flags are accepted")]
    BareWord(String),
    /// A word that is not text.
    #[error("argument {0:?} is not valid UTF-8")]
    NotUtf8(String),
}

/// Splits the command line, program name not included.
///
/// # Errors
/// The first thing that cannot be understood.
pub(crate) fn parse(args: &[OsString]) -> Result<Vec<Given>, FlagError> {
    let mut given = Vec::new();
    let mut bare = None;
    let mut words = args.iter();
    while let Some(word) = next_word(&mut words)? {
        if word == "--" {
            bare = bare.or(next_word(&mut words)?);
            break;
        }
        if let Some(rest) = word.strip_prefix("--") {
            given.push(parse_long(word, rest, &mut words)?);
        } else if word.len() > 1
            && let Some(letters) = word.strip_prefix('-')
        {
            parse_short(word, letters, &mut words, &mut given)?;
        } else {
            // pflag reads on and complains about the rest first; so do we.
            bare = bare.or(Some(word));
        }
    }
    match bare {
        Some(word) => Err(FlagError::BareWord(word.to_owned())),
        None => Ok(given),
    }
}

type Words<'a> = std::slice::Iter<'a, OsString>;

fn next_word<'a>(words: &mut Words<'a>) -> Result<Option<&'a str>, FlagError> {
    words
        .next()
        .map(|word| {
            word.to_str()
                .ok_or_else(|| FlagError::NotUtf8(word.to_string_lossy().into_owned()))
        })
        .transpose()
}

fn parse_long(word: &str, rest: &str, words: &mut Words<'_>) -> Result<Given, FlagError> {
    if rest.starts_with(['-', '=']) {
        return Err(FlagError::Syntax(word.to_owned()));
    }
    let (name, value) = match rest.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (rest, None),
    };
    let flag = find(name).ok_or_else(|| unknown(name))?;
    let value = match value {
        Some(value) => value,
        None if flag.is_switch() => "true",
        None => {
            next_word(words)?.ok_or_else(|| FlagError::NeedsValue(format!("--{}", flag.name)))?
        }
    };
    Ok(Given {
        flag,
        value: value.to_owned(),
    })
}

fn unknown(name: &str) -> FlagError {
    let plain = name.replace('_', "-");
    let gone = REMOVED
        .iter()
        .find(|(removed, _)| match removed.strip_suffix('*') {
            Some(prefix) => plain.starts_with(prefix),
            None => plain == *removed,
        });
    let hint = match gone {
        Some((_, why)) => format!(" ({why})"),
        None => did_you_mean(&plain, all().map(|flag| flag.name), "--"),
    };
    FlagError::Unknown {
        name: name.to_owned(),
        hint,
    }
}

/// Reads a word of one-letter flags.
fn parse_short(
    word: &str,
    letters: &str,
    words: &mut Words<'_>,
    given: &mut Vec<Given>,
) -> Result<(), FlagError> {
    let mut rest = letters;
    while let Some(letter) = rest.chars().next() {
        let after = &rest[letter.len_utf8()..];
        let flag = find_short(letter).ok_or_else(|| unknown_short(letter, word, letters))?;
        let (value, next) = match after.strip_prefix('=') {
            Some(value) if !value.is_empty() => (value, ""),
            _ if flag.is_switch() => ("true", after),
            _ if !after.is_empty() => (after, ""),
            _ => {
                let value = next_word(words)?
                    .ok_or_else(|| FlagError::NeedsValue(format!("'{letter}' in {word}")))?;
                (value, "")
            }
        };
        given.push(Given {
            flag,
            value: value.to_owned(),
        });
        rest = next;
    }
    Ok(())
}

fn unknown_short(letter: char, word: &str, letters: &str) -> FlagError {
    let name = letters.split('=').next().unwrap_or(letters);
    let hint = find(name).map_or_else(String::new, |flag| {
        format!(" (did you mean --{}?)", flag.name)
    });
    FlagError::UnknownShort {
        letter,
        word: word.to_owned(),
        hint,
    }
}
