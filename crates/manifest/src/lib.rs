//! Manifests: the bytes of a file or URL become static pods of this node, or a reason why not.
//!
//! Owns what happens to a pod between the bytes and the merge of sources: decoding ([`decode`]), the API server's
//! defaults ([`defaults`]), what makes a pod static ([`make_static`]: UID, name, node, marks), validation as strict
//! as the API server's for every field the node acts on ([`validate`]), and the refusal of references to API objects
//! ([`api_references`]). All of it is pure: values in, values out. When a pod was first seen is the merge's to mark.

mod containers;
mod decode;
pub mod defaults;
mod disks;
mod env;
mod identity;
mod image;
mod metadata;
mod mounts;
mod names;
mod network;
mod probes;
mod problem;
mod references;
mod resources;
mod scheduling;
mod security;
mod spec;
mod volumes;

use std::fmt;

use krablet_pod::api::Pod;
use krablet_pod::marks::PodSource;

pub use decode::decode;
pub use identity::make_static;
pub use image::default_pull_policy;
pub use problem::{MAX_PROBLEMS, Problem, Reason};
pub use references::api_references;
pub use spec::validate;

/// The largest manifest that is read.
pub const MAX_BYTES: usize = 10 << 20;
/// Warnings worth telling about one manifest.
pub const MAX_WARNINGS: usize = 64;

/// Where a manifest came from, and for which node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    pub place: Place,
    pub node_name: String,
    pub references: References,
}

/// Which API objects a static pod may refer to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum References {
    #[default]
    None,
    /// The node has configMaps and secrets of its own.
    LocalObjects,
    /// Whoever turned the gate PreventStaticPodAPIReferences off answers for what they do.
    All,
}

/// A manifest's place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// The path of a file.
    File(String),
    Url(String),
}

impl Place {
    #[must_use]
    pub fn source(&self) -> PodSource {
        match self {
            Place::File(_) => PodSource::File,
            Place::Url(_) => PodSource::Http,
        }
    }
}

/// What a manifest held.
#[derive(Debug, Clone, PartialEq)]
pub struct Decoded {
    pub pods: Vec<Pod>,
    /// What was passed over on the way, such as unknown fields.
    pub warnings: Vec<Warning>,
}

/// Something in a manifest that has no effect. Displays as `line 7: unknown field "spec.foo"`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warning {
    pub line: Option<usize>,
    pub message: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "line {line}: {}", self.message),
            None => f.write_str(&self.message),
        }
    }
}

/// Why a manifest is not run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("the manifest is larger than {MAX_BYTES} bytes")]
    TooLarge,
    #[error("{0}")]
    Syntax(#[from] krablet_yaml::Error),
    #[error("the manifest is empty")]
    Empty,
    #[error("line {line}: {message}")]
    NotAPod { line: usize, message: String },
    #[error("line {line}: {path}: {message}")]
    WrongType {
        path: String,
        line: usize,
        message: String,
    },
    #[error("invalid pod: name is needed for the pod")]
    NoName { line: usize },
    /// The line is that of the first problem.
    #[error("invalid pod{}: {}", in_list(*item), problem::join(problems))]
    Invalid {
        line: usize,
        item: Option<usize>,
        problems: Vec<Problem>,
    },
    /// Kinds of objects, each with the field that refers to one.
    #[error("static pods may not reference {}", told(references))]
    References {
        line: usize,
        references: Vec<(&'static str, String)>,
    },
}

impl Refusal {
    /// The line to look at first, where there is one.
    #[must_use]
    pub fn line(&self) -> Option<usize> {
        match self {
            Refusal::TooLarge | Refusal::Empty => None,
            Refusal::Syntax(error) => error.line,
            Refusal::NotAPod { line, .. }
            | Refusal::WrongType { line, .. }
            | Refusal::NoName { line }
            | Refusal::Invalid { line, .. }
            | Refusal::References { line, .. } => Some(*line),
        }
    }
}

fn in_list(item: Option<usize>) -> String {
    item.map_or_else(String::new, |i| format!(" items[{i}]"))
}

fn told(references: &[(&'static str, String)]) -> String {
    let texts: Vec<String> = references
        .iter()
        .take(MAX_PROBLEMS)
        .map(|(resource, path)| format!("{resource} ({path})"))
        .collect();
    texts.join(", ")
}
