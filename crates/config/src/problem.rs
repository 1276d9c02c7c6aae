//! What can be wrong with a configuration, and what is only worth a word.

use std::fmt;

use crate::flags::FlagError;

/// Where a value was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A line of a file; the line is missing when the parser could not tell.
    File {
        /// Path of the file.
        path: String,
        /// 1-based line.
        line: Option<usize>,
    },
    /// A command-line flag, without its dashes.
    Flag(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File {
                path,
                line: Some(line),
            } => write!(f, "{path}:{line}"),
            Self::File { path, line: None } => f.write_str(path),
            Self::Flag(name) => write!(f, "--{name}"),
        }
    }
}

/// One reason not to start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Where the value was written, when it was written anywhere.
    pub origin: Option<Origin>,
    /// Path of the field, such as `authentication.x509.clientCAFile`; empty for a file as a whole.
    pub field: String,
    /// What is wrong.
    pub reason: String,
}

impl Problem {
    pub(crate) fn new(field: impl Into<String>, reason: impl Into<String>) -> Self {
        Self {
            origin: None,
            field: field.into(),
            reason: reason.into(),
        }
    }

    pub(crate) fn at(mut self, origin: Origin) -> Self {
        self.origin = Some(origin);
        self
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(origin) = &self.origin {
            write!(f, "{origin}: ")?;
        }
        if !self.field.is_empty() {
            write!(f, "{}: ", self.field)?;
        }
        f.write_str(&self.reason)
    }
}

/// Something to tell the user, although the agent starts.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Warning {
    /// A field no version of the configuration knows; it is ignored.
    #[error("{origin}: unknown field {field:?} is ignored")]
    UnknownField {
        /// Where it stands.
        origin: Origin,
        /// Its path.
        field: String,
    },
    /// A field written twice; the last one counts.
    #[error("{origin}: field {field:?} is written more than once, the last one counts")]
    DuplicateField {
        /// Where the later one stands.
        origin: Origin,
        /// Its path.
        field: String,
    },
    /// A flag that will go away.
    #[error("flag --{flag} is deprecated: {instead}")]
    DeprecatedFlag {
        /// Name without dashes.
        flag: &'static str,
        /// What to do instead.
        instead: String,
    },
    /// A file in the drop-in directory that is not read.
    #[error("{0}: skipped, only files ending in .conf are read from the drop-in directory")]
    SkippedFile(String),
    /// Anything else.
    #[error("{0}")]
    Note(String),
}

/// Why the agent cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The command line itself cannot be understood.
    #[error(transparent)]
    Flag(#[from] FlagError),
    /// Everything that is wrong with the configuration, one line each.
    #[error("{}", lines(.0))]
    Problems(Vec<Problem>),
}

fn lines(problems: &[Problem]) -> String {
    let lines: Vec<String> = problems.iter().map(Problem::to_string).collect();
    lines.join("\n")
}
