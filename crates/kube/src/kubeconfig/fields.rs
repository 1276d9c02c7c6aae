//! Fields of a document, each knowing its name, so that a complaint can say where.

use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::KubeconfigError;

/// A field that is there. Null counts as absent, as in Go.
#[derive(Clone)]
pub(super) struct Field<'a> {
    file: &'a Path,
    /// Empty for the document itself.
    name: String,
    value: &'a Value,
}

impl<'a> Field<'a> {
    pub(super) fn document(file: &'a Path, value: &'a Value) -> Self {
        Self {
            file,
            name: String::new(),
            value,
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn bad(&self, problem: impl Into<String>) -> KubeconfigError {
        KubeconfigError::Field {
            path: self.file.display().to_string(),
            field: self.name.clone(),
            problem: problem.into(),
        }
    }

    fn named(&self, name: &str) -> String {
        match self.name.as_str() {
            "" => name.to_owned(),
            outer => format!("{outer}.{name}"),
        }
    }

    pub(super) fn missing(&self, name: &str) -> KubeconfigError {
        KubeconfigError::Field {
            path: self.file.display().to_string(),
            field: self.named(name),
            problem: "missing".to_owned(),
        }
    }

    /// A field of this mapping, if it was written.
    pub(super) fn get(&self, name: &str) -> Result<Option<Field<'a>>, KubeconfigError> {
        let Value::Object(map) = self.value else {
            return Err(self.wanted("a mapping"));
        };
        let value = map.get(name).filter(|value| !value.is_null());
        Ok(value.map(|value| Field {
            file: self.file,
            name: self.named(name),
            value,
        }))
    }

    /// The items of a list; none if it was not written.
    pub(super) fn items(&self, name: &str) -> Result<Vec<Field<'a>>, KubeconfigError> {
        let Some(field) = self.get(name)? else {
            return Ok(Vec::new());
        };
        let Value::Array(items) = field.value else {
            return Err(field.wanted("a list"));
        };
        let item = |(at, value)| Field {
            file: self.file,
            name: format!("{}[{at}]", field.name),
            value,
        };
        Ok(items.iter().enumerate().map(item).collect())
    }

    pub(super) fn text(&self, name: &str) -> Result<Option<String>, KubeconfigError> {
        match self.get(name)? {
            Some(field) => field.as_text().map(Some),
            None => Ok(None),
        }
    }

    /// Text that is not empty; an empty one says as little as none.
    pub(super) fn word(&self, name: &str) -> Result<Option<String>, KubeconfigError> {
        Ok(self.text(name)?.filter(|text| !text.is_empty()))
    }

    pub(super) fn as_text(&self) -> Result<String, KubeconfigError> {
        match self.value {
            Value::String(text) => Ok(text.clone()),
            _ => Err(self.wanted("text")),
        }
    }

    pub(super) fn flag(&self, name: &str) -> Result<bool, KubeconfigError> {
        match self.get(name)? {
            None => Ok(false),
            Some(field) => match field.value {
                Value::Bool(flag) => Ok(*flag),
                _ => Err(field.wanted("true or false")),
            },
        }
    }

    pub(super) fn raw(&self) -> &'a Value {
        self.value
    }

    pub(super) fn base64(&self, name: &str) -> Result<Option<Vec<u8>>, KubeconfigError> {
        let Some(field) = self.get(name)? else {
            return Ok(None);
        };
        // Go passes over line breaks within the data.
        let mut text = field.as_text()?;
        text.retain(|c| c != '\n' && c != '\r');
        let data = STANDARD.decode(text).map_err(|_| field.bad("not base64"))?;
        Ok((!data.is_empty()).then_some(data))
    }

    /// A path, from the file's own directory on.
    pub(super) fn path(&self, name: &str) -> Result<Option<PathBuf>, KubeconfigError> {
        Ok(self.word(name)?.map(|path| self.beside_file(&path)))
    }

    pub(super) fn beside_file(&self, path: &str) -> PathBuf {
        match self.file.parent() {
            Some(directory) => directory.join(path),
            None => PathBuf::from(path),
        }
    }

    /// Only the kind of the value is told: it may be a secret.
    fn wanted(&self, wanted: &str) -> KubeconfigError {
        let found = match self.value {
            Value::Null => "nothing",
            Value::Bool(_) => "a boolean",
            Value::Number(_) => "a number",
            Value::String(_) => "text",
            Value::Array(_) => "a list",
            Value::Object(_) => "a mapping",
        };
        let problem = format!("want {wanted}, found {found}");
        match self.name.as_str() {
            "" => KubeconfigError::Syntax {
                path: self.file.display().to_string(),
                problem,
            },
            _ => self.bad(problem),
        }
    }
}
