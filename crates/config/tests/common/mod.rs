//! A file system in memory, and short ways to load a configuration from it.

#![allow(dead_code)]

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use krablet_config::{ConfigError, ConfigFiles, Loaded, load};

/// The two lines every configuration file begins with.
pub const HEADER: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";

#[derive(Default)]
pub struct Files(BTreeMap<PathBuf, Vec<u8>>);

impl Files {
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a file as it is.
    pub fn raw(mut self, path: &str, content: impl Into<Vec<u8>>) -> Self {
        self.0.insert(PathBuf::from(path), content.into());
        self
    }

    /// Adds a configuration file with its two first lines.
    pub fn with(self, path: &str, fields: &str) -> Self {
        self.raw(path, format!("{HEADER}{fields}"))
    }
}

impl ConfigFiles for Files {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.0
            .get(path)
            .cloned()
            .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "no such file"))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<PathBuf>> {
        let mut found: Vec<_> = self
            .0
            .keys()
            .filter(|path| path.starts_with(dir))
            .cloned()
            .collect();
        if found.is_empty() {
            return Err(io::Error::new(io::ErrorKind::NotFound, "no such directory"));
        }
        found.sort();
        Ok(found)
    }

    fn absolute(&self, path: &Path) -> io::Result<PathBuf> {
        Ok(Path::new("/cwd").join(path))
    }
}

pub fn args(words: &[&str]) -> Vec<OsString> {
    words.iter().map(OsString::from).collect()
}

pub fn try_load(words: &[&str], files: &Files) -> Result<Loaded, ConfigError> {
    load(&args(words), files)
}

pub fn loaded(words: &[&str], files: &Files) -> Loaded {
    try_load(words, files).unwrap_or_else(|error| panic!("{words:?}: {error}"))
}

/// Loads a file with these fields and no flag but `--config`.
pub fn from_file(fields: &str) -> Loaded {
    loaded(&["--config=/k.yaml"], &Files::new().with("/k.yaml", fields))
}

/// The warnings, as the user sees them.
pub fn warnings(loaded: &Loaded) -> Vec<String> {
    loaded.warnings.iter().map(ToString::to_string).collect()
}

/// What is said about a command line that cannot be used.
pub fn message(words: &[&str], files: &Files) -> String {
    match try_load(words, files) {
        Ok(_) => "accepted".to_owned(),
        Err(error) => error.to_string(),
    }
}

/// What is said about a file whose fields begin on line 3.
pub fn file_message(fields: &str) -> String {
    message(&["--config=/k.yaml"], &Files::new().with("/k.yaml", fields))
}
