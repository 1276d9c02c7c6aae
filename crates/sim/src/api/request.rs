//! What a call asks of the simulated API server.

use std::fmt;

use krablet_kube::{ApiError, Call, PatchKind, Verb, paths};
use krablet_pod::api::Pod;
use serde_json::Value;

use super::store::{Key, refusal};

/// How much of a patch is shown.
const SHOWN: usize = 400;

#[derive(Debug)]
pub(super) enum Request {
    List(Age),
    Get(Key),
    PatchStatus {
        key: Key,
        uid: Option<String>,
        version: Option<String>,
        status: Value,
    },
    Create(Box<Pod>),
    Delete {
        key: Key,
        uid: Option<String>,
        grace: i64,
    },
    /// Written and forgotten.
    Event,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Age {
    Any,
    NotOlderThan(usize),
    Newest,
}

impl Request {
    pub(super) fn changes(&self) -> bool {
        !matches!(self, Request::List(_) | Request::Get(_))
    }

    pub(super) fn of(call: &Call) -> Result<Self, ApiError> {
        let words: Vec<&str> = call.path.trim_start_matches('/').split('/').collect();
        match (call.verb, words.as_slice()) {
            (Verb::Get, _) if call.path == paths::PODS => Ok(Request::List(age(call))),
            (Verb::Get, ["api", "v1", "namespaces", ns, "pods", name]) => {
                Ok(Request::Get(key(ns, name)))
            }
            (
                Verb::Patch(PatchKind::StrategicMerge),
                ["api", "v1", "namespaces", ns, "pods", name, "status"],
            ) => {
                let mut patch: Value = body(call)?;
                let said = |name: &str| patch["metadata"][name].as_str().map(str::to_owned);
                let (uid, version) = (said("uid"), said("resourceVersion"));
                Ok(Request::PatchStatus {
                    key: key(ns, name),
                    uid,
                    version,
                    status: patch["status"].take(),
                })
            }
            (Verb::Create, ["api", "v1", "namespaces", _, "pods"]) => {
                Ok(Request::Create(Box::new(body(call)?)))
            }
            (Verb::Delete, ["api", "v1", "namespaces", ns, "pods", name]) => {
                let options: Value = body(call)?;
                let uid = options["preconditions"]["uid"].as_str();
                Ok(Request::Delete {
                    key: key(ns, name),
                    uid: uid.map(str::to_owned),
                    grace: options["gracePeriodSeconds"].as_i64().unwrap_or(30),
                })
            }
            (_, ["api", "v1", "namespaces", _, "events", ..]) => Ok(Request::Event),
            _ => {
                let message = format!("nothing is served at {:?} {}", call.verb, call.path);
                Err(refusal(405, "MethodNotAllowed", message))
            }
        }
    }
}

fn key(namespace: &str, name: &str) -> Key {
    (namespace.to_owned(), name.to_owned())
}

fn body<T: serde::de::DeserializeOwned>(call: &Call) -> Result<T, ApiError> {
    let bytes = call.body.as_deref().unwrap_or_default();
    serde_json::from_slice(bytes).map_err(|e| refusal(400, "BadRequest", e.to_string()))
}

pub(super) fn query<'a>(call: &'a Call, name: &str) -> Option<&'a str> {
    let found = call.query.iter().find(|(n, _)| *n == name);
    found.map(|(_, value)| value.as_str())
}

fn age(call: &Call) -> Age {
    match query(call, "resourceVersion") {
        None => Age::Newest,
        Some("0") => Age::Any,
        Some(version) => Age::NotOlderThan(version.parse().unwrap_or_default()),
    }
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Request::List(age) => write!(f, "list {age:?}"),
            Request::Get((_, name)) => write!(f, "get {name}"),
            Request::PatchStatus {
                key, uid, status, ..
            } => {
                let uid = uid.as_deref().unwrap_or_default();
                let text = status.to_string();
                let end = text.floor_char_boundary(SHOWN);
                write!(f, "patch {} {uid} {}", key.1, &text[..end])
            }
            Request::Create(pod) => {
                let name = pod.metadata.name.as_deref().unwrap_or_default();
                write!(f, "create {name}")
            }
            Request::Delete { key, uid, grace } => {
                let uid = uid.as_deref().unwrap_or_default();
                write!(f, "delete {} {uid} in {grace} s", key.1)
            }
            Request::Event => write!(f, "event"),
        }
    }
}
