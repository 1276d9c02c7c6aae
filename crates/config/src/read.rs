//! Reads configuration files: the main one and the drop-ins over it.
//!
//! A file is decoded strictly first; unknown and duplicate fields are then only warned about, so that a file written for
//! another version is still accepted. A value of the wrong type is fatal.

use std::path::{Path, PathBuf};

use krablet_yaml::Document;
use serde_json::{Map, Value};

use crate::decode::Decoder;
use crate::files::ConfigFiles;
use crate::flags::Given;
use crate::gates::FeatureGates;
use crate::problem::{Origin, Problem, Warning};
use crate::types::{API_VERSION, KIND, KubeletConfiguration};

/// A file that was read, kept to tell where a value was written.
pub(crate) struct ConfigDocument {
    path: PathBuf,
    document: Document,
}

/// Where values were written: files from weakest to strongest, then flags.
pub(crate) struct Origins<'a> {
    documents: &'a [ConfigDocument],
    given: &'a [Given],
}

/// Everything that came out of the files.
pub(crate) struct FromFiles {
    pub(crate) config: KubeletConfiguration,
    pub(crate) documents: Vec<ConfigDocument>,
    pub(crate) warnings: Vec<Warning>,
    pub(crate) problems: Vec<Problem>,
}

impl ConfigDocument {
    fn origin(&self, line: Option<usize>) -> Origin {
        Origin::File {
            path: self.path.display().to_string(),
            line,
        }
    }

    fn origin_of(&self, field: &str) -> Origin {
        self.origin(Some(self.document.nearest_line(field)))
    }
}

impl<'a> Origins<'a> {
    pub(crate) const fn new(documents: &'a [ConfigDocument], given: &'a [Given]) -> Self {
        Self { documents, given }
    }

    /// Where the value of `field` was written last, if it was.
    pub(crate) fn of(&self, field: &str) -> Option<Origin> {
        let by_flag = self.given.iter().rev().find(|given| {
            given.flag.field.is_some_and(|set| {
                match field.strip_prefix(set) {
                    Some("") => true,
                    // One key of a map: only the flag that names it.
                    Some(rest) => {
                        rest.starts_with(['.', '['])
                            && given.value.contains(rest.trim_matches(['.', '[', ']']))
                    }
                    None => false,
                }
            })
        });
        if let Some(given) = by_flag {
            return Some(Origin::Flag(given.flag.name.to_owned()));
        }
        self.documents.iter().rev().find_map(|read| {
            let line = read.document.line_of(field)?;
            Some(read.origin(Some(line)))
        })
    }
}

/// Reads the main file over the defaults, when there is one, then each drop-in over that.
pub(crate) fn read_files(
    files: &dyn ConfigFiles,
    config: &str,
    config_dir: &str,
    gates: &FeatureGates,
) -> FromFiles {
    let mut out = FromFiles {
        config: KubeletConfiguration::flag_defaults(gates),
        documents: Vec::new(),
        warnings: Vec::new(),
        problems: Vec::new(),
    };
    if !config.is_empty() {
        out.read_main(files, Path::new(config), gates);
    }
    if !config_dir.is_empty() {
        out.read_drop_ins(files, Path::new(config_dir), gates);
    }
    out
}

impl FromFiles {
    fn read_main(&mut self, files: &dyn ConfigFiles, path: &Path, gates: &FeatureGates) {
        let read = match read_document(files, path) {
            Ok(read) => read,
            Err(problem) => return self.problems.push(problem),
        };
        let Some(map) = self.check(&read, gates).cloned() else {
            return;
        };
        let mut config = KubeletConfiguration::decode(&map, gates, &mut Decoder::default());
        let written = map.get("evictionHard").is_some_and(|hard| !hard.is_null());
        config.eviction.apply_default_thresholds(written);
        if let Some(dir) = read.path.parent() {
            resolve_paths(&mut config, dir);
        }
        self.config = config;
        self.documents.push(read);
    }

    fn read_drop_ins(&mut self, files: &dyn ConfigFiles, dir: &Path, gates: &FeatureGates) {
        let paths = match files.list(dir) {
            Ok(paths) => paths,
            Err(error) => {
                let origin = Origin::File {
                    path: dir.display().to_string(),
                    line: None,
                };
                let reason = format!("cannot read the drop-in directory: {error}");
                return self.problems.push(Problem::new("", reason).at(origin));
            }
        };
        let mut merged = self.config.to_json();
        for path in paths {
            if !path.to_string_lossy().ends_with(".conf") {
                let skipped = path.display().to_string();
                self.warnings.push(Warning::SkippedFile(skipped));
                continue;
            }
            match read_document(files, &path) {
                Ok(read) => {
                    if let Some(map) = self.check(&read, gates) {
                        merge_patch(&mut merged, &Value::Object(map.clone()));
                        self.documents.push(read);
                    }
                }
                Err(problem) => self.problems.push(problem),
            }
        }
        if let Value::Object(map) = &merged {
            self.config = KubeletConfiguration::decode(map, gates, &mut Decoder::default());
        }
    }

    /// Notes what is wrong or odd about a file; hands back its fields when it can be used.
    fn check<'d>(
        &mut self,
        read: &'d ConfigDocument,
        gates: &FeatureGates,
    ) -> Option<&'d Map<String, Value>> {
        let Value::Object(map) = &read.document.value else {
            let problem = Problem::new("", "want a mapping of fields").at(read.origin_of(""));
            self.problems.push(problem);
            return None;
        };
        if let Err((field, reason)) = check_kind(map) {
            let problem = Problem::new(field, reason).at(read.origin_of(field));
            self.problems.push(problem);
            return None;
        }
        for duplicate in &read.document.duplicates {
            self.warnings.push(Warning::DuplicateField {
                origin: read.origin(Some(duplicate.line)),
                field: duplicate.path.clone(),
            });
        }
        let mut cx = Decoder::default();
        KubeletConfiguration::decode(map, gates, &mut cx);
        for field in cx.unknown {
            self.warnings.push(Warning::UnknownField {
                origin: read.origin_of(&field),
                field,
            });
        }
        let usable = cx.errors.is_empty();
        for (field, reason) in cx.errors {
            let origin = read.origin_of(&field);
            self.problems.push(Problem::new(field, reason).at(origin));
        }
        usable.then_some(map)
    }
}

fn read_document(files: &dyn ConfigFiles, path: &Path) -> Result<ConfigDocument, Problem> {
    let path = files.absolute(path).unwrap_or_else(|_| path.to_owned());
    let problem = |line, reason: String| {
        let path = path.display().to_string();
        Problem::new("", reason).at(Origin::File { path, line })
    };
    let bytes = files
        .read(&path)
        .map_err(|error| problem(None, format!("cannot read the file: {error}")))?;
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Err(problem(None, "the file is empty".to_owned()));
    }
    let documents = krablet_yaml::parse_documents(&bytes)
        .map_err(|error| problem(error.line, error.message))?;
    // Go reads the first document of a stream and never looks at the rest.
    let document = documents
        .into_iter()
        .find(|document| !document.value.is_null())
        .ok_or_else(|| problem(None, "the file holds no configuration".to_owned()))?;
    Ok(ConfigDocument { path, document })
}

/// The file must say what it is, in the one version there is.
fn check_kind(map: &Map<String, Value>) -> Result<(), (&'static str, String)> {
    for (field, wanted) in [("apiVersion", API_VERSION), ("kind", KIND)] {
        match map.get(field) {
            Some(Value::String(found)) if found == wanted => {}
            None | Some(Value::Null) => {
                return Err((field, format!("missing, want {wanted}")));
            }
            Some(found) => return Err((field, format!("want {wanted}, found {found}"))),
        }
    }
    Ok(())
}

/// JSON merge patch: mappings are merged, null removes, everything else replaces.
fn merge_patch(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        patch.clone_into(target);
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Value::Object(target) = target else {
        return;
    };
    for (key, value) in patch {
        if value.is_null() {
            target.remove(key);
        } else {
            merge_patch(target.entry(key.clone()).or_insert(Value::Null), value);
        }
    }
}

/// Relative paths in the main file start at its directory.
fn resolve_paths(config: &mut KubeletConfiguration, dir: &Path) {
    for path in config.paths_mut() {
        if !path.is_empty() && !path.starts_with('/') {
            *path = clean(&dir.join(&*path));
        }
    }
}

/// The path without `.`, `..` and doubled slashes.
fn clean(path: &Path) -> String {
    let mut cleaned = PathBuf::from("/");
    for part in path.components() {
        match part {
            std::path::Component::ParentDir => {
                cleaned.pop();
            }
            std::path::Component::Normal(name) => cleaned.push(name),
            _ => {}
        }
    }
    cleaned.display().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn merges_as_rfc_7396() {
        let cases = [
            (json!({"a": 1}), json!({"a": 2}), json!({"a": 2})),
            (json!({"a": 1}), json!({"b": 2}), json!({"a": 1, "b": 2})),
            (json!({"a": 1, "b": 2}), json!({"a": null}), json!({"b": 2})),
            (json!({"a": [1, 2]}), json!({"a": [3]}), json!({"a": [3]})),
            (
                json!({"a": {"b": 1, "c": 2}}),
                json!({"a": {"b": 3}}),
                json!({"a": {"b": 3, "c": 2}}),
            ),
            (json!({"a": {"b": 1}}), json!({"a": "x"}), json!({"a": "x"})),
            (
                json!({"a": "x"}),
                json!({"a": {"b": 1}}),
                json!({"a": {"b": 1}}),
            ),
            (json!({}), json!({"a": {"b": null}}), json!({"a": {}})),
        ];
        for (target, patch, expected) in cases {
            let mut merged = target.clone();
            merge_patch(&mut merged, &patch);
            assert_eq!(merged, expected, "{target} + {patch}");
        }
    }

    #[test]
    fn cleans_paths() {
        for (path, expected) in [
            ("/etc/k/../pki/ca.crt", "/etc/pki/ca.crt"),
            ("/a//b/./c", "/a/b/c"),
            ("/../..", "/"),
        ] {
            assert_eq!(clean(Path::new(path)), expected);
        }
    }
}
