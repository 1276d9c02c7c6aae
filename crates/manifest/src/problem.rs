//! What can be wrong with a field, said the way the API server says it.

use std::fmt;

/// Problems worth telling about one pod; more than these are counted, not listed.
pub const MAX_PROBLEMS: usize = 100;
/// Characters of a bad value that a message repeats.
const MAX_SHOWN: usize = 200;

/// The kind of a problem, in the API's vocabulary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    Required,
    Invalid,
    Unsupported,
    Duplicate,
    Forbidden,
    NotFound,
    TooLong,
    TooMany,
}

impl Reason {
    /// The words a message begins with.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Reason::Required => "Required value",
            Reason::Invalid => "Invalid value",
            Reason::Unsupported => "Unsupported value",
            Reason::Duplicate => "Duplicate value",
            Reason::Forbidden => "Forbidden",
            Reason::NotFound => "Not found",
            Reason::TooLong => "Too long",
            Reason::TooMany => "Too many",
        }
    }
}

/// One thing that is wrong with a pod. Displays as `spec.containers[0].image: Required value`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The field, such as `spec.containers[0].image`.
    pub path: String,
    pub reason: Reason,
    /// The value found there, as the message shows it.
    pub value: Option<String>,
    /// What the value should have been.
    pub detail: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.reason.as_str())?;
        if let Some(value) = &self.value {
            write!(f, ": {value}")?;
        }
        if !self.detail.is_empty() {
            write!(f, ": {}", self.detail)?;
        }
        Ok(())
    }
}

/// Several problems in one line: alone as it is, more in brackets.
pub(crate) fn join(problems: &[Problem]) -> String {
    match problems {
        [only] => only.to_string(),
        many => {
            let texts: Vec<String> = many.iter().map(Problem::to_string).collect();
            format!("[{}]", texts.join(", "))
        }
    }
}

/// A field's path while walking the pod.
#[derive(Debug, Clone)]
pub(crate) struct Path(String);

impl Path {
    pub(crate) fn root(name: &str) -> Self {
        Self(name.to_owned())
    }

    pub(crate) fn child(&self, name: &str) -> Self {
        Self(format!("{}.{name}", self.0))
    }

    pub(crate) fn index(&self, index: usize) -> Self {
        Self(format!("{}[{index}]", self.0))
    }

    pub(crate) fn key(&self, key: &str) -> Self {
        Self(format!("{}[{key}]", self.0))
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A value as a message shows it: text quoted, numbers and booleans bare.
pub(crate) trait Shown {
    fn shown(&self) -> String;
}

impl Shown for str {
    fn shown(&self) -> String {
        if self.chars().count() <= MAX_SHOWN {
            return format!("{self:?}");
        }
        let short: String = self.chars().take(MAX_SHOWN).collect();
        format!("{:?}", format!("{short}..."))
    }
}

impl Shown for String {
    fn shown(&self) -> String {
        self.as_str().shown()
    }
}

/// A list as JSON writes it.
impl Shown for [String] {
    fn shown(&self) -> String {
        let shown: Vec<String> = self.iter().map(Shown::shown).collect();
        format!("[{}]", shown.join(","))
    }
}

macro_rules! shown_bare {
    ($($kind:ty),*) => {$(
        impl Shown for $kind {
            fn shown(&self) -> String {
                self.to_string()
            }
        }
    )*};
}
shown_bare!(i32, i64, usize, bool);

/// Collects problems, up to [`MAX_PROBLEMS`].
#[derive(Debug, Default)]
pub(crate) struct Report {
    problems: Vec<Problem>,
    omitted: usize,
}

impl Report {
    pub(crate) fn required(&mut self, path: &Path, detail: &str) {
        self.add(path, Reason::Required, None, detail.to_owned());
    }

    pub(crate) fn invalid<V: Shown + ?Sized>(
        &mut self,
        path: &Path,
        value: &V,
        detail: impl Into<String>,
    ) {
        self.add(path, Reason::Invalid, Some(value.shown()), detail.into());
    }

    /// One problem for each message a format check returned.
    pub(crate) fn invalid_each<V: Shown + ?Sized>(
        &mut self,
        path: &Path,
        value: &V,
        messages: Vec<String>,
    ) {
        for message in messages {
            self.invalid(path, value, message);
        }
    }

    pub(crate) fn unsupported(&mut self, path: &Path, value: &str, supported: &[&str]) {
        let quoted: Vec<String> = supported.iter().map(|name| format!("{name:?}")).collect();
        let detail = format!("supported values: {}", quoted.join(", "));
        self.add(path, Reason::Unsupported, Some(value.shown()), detail);
    }

    pub(crate) fn duplicate(&mut self, path: &Path, value: &str) {
        self.add(path, Reason::Duplicate, Some(value.shown()), String::new());
    }

    pub(crate) fn forbidden(&mut self, path: &Path, detail: &str) {
        self.add(path, Reason::Forbidden, None, detail.to_owned());
    }

    pub(crate) fn not_found(&mut self, path: &Path, value: &str) {
        self.add(path, Reason::NotFound, Some(value.shown()), String::new());
    }

    pub(crate) fn too_long(&mut self, path: &Path, limit: usize) {
        let detail = format!("may not be more than {limit} bytes");
        self.add(path, Reason::TooLong, None, detail);
    }

    pub(crate) fn too_many(&mut self, path: &Path, found: usize, limit: usize) {
        let detail = format!("must have at most {limit} items");
        self.add(path, Reason::TooMany, Some(found.to_string()), detail);
    }

    /// A choice of words: empty is a missing value, an unknown word an unsupported one.
    pub(crate) fn one_of(&mut self, path: &Path, value: &str, supported: &[&str]) {
        if value.is_empty() {
            self.required(path, "");
        } else if !supported.contains(&value) {
            self.unsupported(path, value, supported);
        }
    }

    fn add(&mut self, path: &Path, reason: Reason, value: Option<String>, detail: String) {
        if self.problems.len() >= MAX_PROBLEMS {
            self.omitted += 1;
            return;
        }
        self.problems.push(Problem {
            path: path.0.clone(),
            reason,
            value,
            detail,
        });
    }

    pub(crate) fn into_problems(mut self) -> Vec<Problem> {
        if self.omitted > 0 {
            self.problems.push(Problem {
                path: "spec".to_owned(),
                reason: Reason::TooMany,
                value: None,
                detail: format!("{} more problems are not listed", self.omitted),
            });
        }
        self.problems
    }
}

/// A list field, absent meaning empty.
pub(crate) fn list<T>(field: &Option<Vec<T>>) -> &[T] {
    field.as_deref().unwrap_or_default()
}

/// A text field, absent meaning empty.
pub(crate) fn text(field: &Option<String>) -> &str {
    field.as_deref().unwrap_or_default()
}

/// A switch, absent meaning off.
pub(crate) fn on(field: Option<bool>) -> bool {
    field.unwrap_or_default()
}
