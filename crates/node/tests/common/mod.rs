//! A small API server in memory: nodes and leases, resource versions, a watch, and faults.

// Every test file uses its own part of this.
#![allow(dead_code, clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use jiff::Timestamp;
use krablet_kube::{Api, ApiError, Call, Detail, Kube, PatchKind, Priority, Verb, Watch, paths};
use krablet_linux::WallClock;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;

/// What happens to a call instead of success.
#[derive(Clone, Debug)]
pub enum Fault {
    /// Refused with this code before it had an effect.
    Code(u16),
    /// The connection broke; the call may have had its effect.
    Broken { after_effect: bool },
    /// No answer until the deadline.
    Hang,
    /// Come back later.
    Busy(u64),
}

type FaultHook = Box<dyn Fn(&Call) -> Option<Fault> + Send + Sync>;

#[derive(Default)]
struct State {
    version: u64,
    uids: u64,
    objects: BTreeMap<String, Value>,
    /// Every change of a node, with its version.
    history: Vec<(u64, Bytes)>,
    /// Versions up to this are forgotten.
    compacted: u64,
    /// Watches of an earlier epoch are closed.
    epoch: u64,
    calls: Vec<Call>,
    reconnects: usize,
    faults: Option<FaultHook>,
}

/// Clones share one.
#[derive(Clone)]
pub struct Server {
    state: Arc<Mutex<State>>,
    changed: watch::Sender<u64>,
}

impl Default for Server {
    fn default() -> Self {
        Self {
            state: Arc::default(),
            changed: watch::Sender::new(0),
        }
    }
}

impl Server {
    pub fn kube(&self) -> Kube {
        Kube::new(Arc::new(self.clone()))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn bump(&self) {
        self.changed.send_modify(|n| *n += 1);
    }

    pub fn fail(&self, fault: impl Fn(&Call) -> Option<Fault> + Send + Sync + 'static) {
        self.state().faults = Some(Box::new(fault));
    }

    pub fn heal(&self) {
        self.state().faults = None;
    }

    pub fn calls(&self) -> Vec<Call> {
        self.state().calls.clone()
    }

    pub fn count(&self, wanted: impl Fn(&Call) -> bool) -> usize {
        self.state()
            .calls
            .iter()
            .filter(|call| wanted(call))
            .count()
    }

    pub fn reconnects(&self) -> usize {
        self.state().reconnects
    }

    pub fn object(&self, path: &str) -> Option<Value> {
        self.state().objects.get(path).cloned()
    }

    pub fn node(&self) -> Option<Value> {
        self.object(&paths::node("n1"))
    }

    pub fn lease(&self) -> Option<Value> {
        self.object(&paths::node_lease("n1"))
    }

    pub fn condition(&self, kind: &str) -> Option<Value> {
        let node = self.node()?;
        let conditions = node["status"]["conditions"].as_array()?;
        conditions.iter().find(|c| c["type"] == kind).cloned()
    }

    /// True once the server says so; each call and change is a chance.
    pub async fn until(&self, what: &str, holds: impl Fn(&Server) -> bool) {
        let mut changed = self.changed.subscribe();
        let waiting = async {
            while !holds(self) {
                changed.changed().await.unwrap();
            }
        };
        // Virtual time: only a state that never comes gets here.
        let limit = Duration::from_secs(24 * 3600);
        if tokio::time::timeout(limit, waiting).await.is_err() {
            panic!("never came: {what}; node: {:?}", self.node());
        }
    }

    /// As a user or a controller would.
    pub fn put(&self, path: &str, object: Value) {
        self.state().store(path, object);
        self.bump();
    }

    pub fn edit(&self, path: &str, edit: impl FnOnce(&mut Value)) {
        let mut state = self.state();
        let mut object = state.objects[path].clone();
        edit(&mut object);
        state.store(path, object);
        drop(state);
        self.bump();
    }

    pub fn remove(&self, path: &str) {
        self.state().remove(path);
        self.bump();
    }

    /// All is forgotten, versions begin anew, watches are told nothing.
    pub fn wipe(&self) {
        let mut state = self.state();
        state.objects.clear();
        state.history.clear();
        state.version = 0;
        state.compacted = 0;
        drop(state);
        self.bump();
    }

    /// As when a server is started again.
    pub fn close_watches(&self) {
        self.state().epoch += 1;
        self.bump();
    }

    /// Closes all watches and forgets what they could have gone on from.
    pub fn compact(&self) {
        let mut state = self.state();
        state.version += 100;
        state.compacted = state.version;
        state.epoch += 1;
        state.history.clear();
        drop(state);
        self.bump();
    }
}

impl State {
    fn store(&mut self, path: &str, mut object: Value) -> Value {
        self.version += 1;
        let kind = match self.objects.get(path) {
            Some(old) => {
                object["metadata"]["uid"] = old["metadata"]["uid"].clone();
                "MODIFIED"
            }
            None => {
                self.uids += 1;
                object["metadata"]["uid"] = json!(format!("uid-{}", self.uids));
                "ADDED"
            }
        };
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.objects.insert(path.to_owned(), object.clone());
        self.tell(path, kind, &object);
        object
    }

    fn remove(&mut self, path: &str) {
        if let Some(mut object) = self.objects.remove(path) {
            self.version += 1;
            object["metadata"]["resourceVersion"] = json!(self.version.to_string());
            self.tell(path, "DELETED", &object);
        }
    }

    fn tell(&mut self, path: &str, kind: &str, object: &Value) {
        if path.starts_with(paths::NODES) {
            let line = json!({"type": kind, "object": object}).to_string();
            self.history.push((self.version, line.into()));
        }
    }

    fn perform(&mut self, call: &Call) -> Result<Value, ApiError> {
        let body: Value = call
            .body
            .as_ref()
            .map(|body| serde_json::from_slice(body).unwrap())
            .unwrap_or_default();
        let path = call.path.strip_suffix("/status").unwrap_or(&call.path);
        match call.verb {
            Verb::Get if path == paths::NODES => Ok(self.list()),
            Verb::Get => self.objects.get(path).cloned().ok_or_else(not_found),
            Verb::Create => {
                let name = body["metadata"]["name"].as_str().unwrap();
                let path = format!("{path}/{name}");
                match self.objects.contains_key(&path) {
                    true => Err(status(409, "AlreadyExists")),
                    false => Ok(self.store(&path, body)),
                }
            }
            Verb::Patch(PatchKind::StrategicMerge | PatchKind::Merge) => {
                let mut object = self.objects.get(path).cloned().ok_or_else(not_found)?;
                let wanted = &body["metadata"]["resourceVersion"];
                if !wanted.is_null() && *wanted != object["metadata"]["resourceVersion"] {
                    return Err(status(409, "Conflict"));
                }
                merge(&mut object, &body, "");
                Ok(self.store(path, object))
            }
            _ => Err(status(405, "MethodNotAllowed")),
        }
    }

    fn list(&self) -> Value {
        let nodes = self.objects.iter();
        let nodes = nodes.filter(|(path, _)| path.starts_with(paths::NODES));
        let items: Vec<&Value> = nodes.map(|(_, node)| node).collect();
        json!({"metadata": {"resourceVersion": self.version.to_string()}, "items": items})
    }
}

/// A strategic merge, as far as nodes need one.
pub fn merge(object: &mut Value, patch: &Value, field: &str) {
    match patch {
        Value::Object(fields) => {
            if !object.is_object() {
                *object = json!({});
            }
            for (name, value) in fields {
                if value.is_null() {
                    object.as_object_mut().unwrap().remove(name);
                } else {
                    merge(&mut object[name.as_str()], value, name);
                }
            }
        }
        Value::Array(items) if field == "conditions" => {
            let mut list = object.as_array().cloned().unwrap_or_default();
            for item in items {
                let at = list.iter().position(|old| old["type"] == item["type"]);
                match at {
                    Some(at) if item["$patch"] == "delete" => drop(list.remove(at)),
                    Some(at) => merge(&mut list[at], item, ""),
                    None => list.push(item.clone()),
                }
            }
            *object = json!(list);
        }
        Value::Array(items) if field == "addresses" => {
            let marked = items.iter().any(|item| item["$patch"] == "replace");
            assert!(marked, "addresses must be replaced: {patch}");
            let kept = items.iter().filter(|item| item["$patch"].is_null());
            *object = json!(kept.collect::<Vec<_>>());
        }
        other => *object = other.clone(),
    }
}

fn status(code: u16, reason: &str) -> ApiError {
    let body = json!({"reason": reason, "message": reason}).to_string();
    ApiError::from_answer(code, body.as_bytes(), None)
}

fn not_found() -> ApiError {
    status(404, "NotFound")
}

fn fault_error(fault: &Fault, call: &Call) -> ApiError {
    match fault {
        Fault::Code(code) => status(*code, ""),
        Fault::Broken { .. } => ApiError::Connection("connection reset".to_owned()),
        Fault::Hang => ApiError::Deadline(call.deadline),
        Fault::Busy(seconds) => {
            ApiError::from_answer(429, b"{}", Some(Duration::from_secs(*seconds)))
        }
    }
}

#[async_trait::async_trait]
impl Api for Server {
    async fn call(&self, call: Call) -> Result<Bytes, ApiError> {
        tokio::task::yield_now().await;
        let fault = {
            let mut state = self.state();
            state.calls.push(call.clone());
            state.faults.as_ref().and_then(|hook| hook(&call))
        };
        self.bump();
        if let Some(Fault::Hang) = fault {
            tokio::time::sleep(call.deadline).await;
        }
        if let Some(fault) = &fault
            && !matches!(fault, Fault::Broken { after_effect: true })
        {
            return Err(fault_error(fault, &call));
        }
        let answer = self.state().perform(&call);
        self.bump();
        match fault {
            Some(fault) => Err(fault_error(&fault, &call)),
            None => answer.map(|object| match call.detail {
                Detail::Whole => object.to_string().into(),
                Detail::Metadata => json!({"metadata": object["metadata"]}).to_string().into(),
            }),
        }
    }

    async fn watch(&self, call: Call) -> Result<Watch, ApiError> {
        tokio::task::yield_now().await;
        let fault = {
            let mut state = self.state();
            state.calls.push(call.clone());
            state.faults.as_ref().and_then(|hook| hook(&call))
        };
        self.bump();
        if let Some(fault) = fault {
            if let Fault::Hang = fault {
                tokio::time::sleep(call.deadline).await;
            }
            return Err(fault_error(&fault, &call));
        }
        let asked = |name: &str| -> u64 {
            let value = call.query.iter().find(|(key, _)| *key == name);
            value.map_or(0, |(_, value)| value.parse().unwrap())
        };
        let from = asked("resourceVersion");
        if from > self.state().version {
            return Err(status(504, "Timeout"));
        }
        if from < self.state().compacted {
            let gone =
                r#"{"type":"ERROR","object":{"code":410,"reason":"Expired","message":"old"}}"#;
            return Ok(futures::stream::iter([Ok(Bytes::from(gone))]).boxed());
        }
        let epoch = self.state().epoch;
        let life = tokio::time::sleep(Duration::from_secs(asked("timeoutSeconds")));
        let changes = futures::stream::unfold(
            (self.clone(), from, self.changed.subscribe()),
            move |(server, from, mut changed)| async move {
                loop {
                    let next = {
                        let state = server.state();
                        if state.epoch != epoch {
                            return None;
                        }
                        let next = state.history.iter().find(|(version, _)| *version > from);
                        next.cloned()
                    };
                    if let Some((version, line)) = next {
                        return Some((Ok(line), (server, version, changed)));
                    }
                    changed.changed().await.ok()?;
                }
            },
        );
        Ok(changes.take_until(life).boxed())
    }

    fn reconnect(&self) {
        self.state().reconnects += 1;
    }
}

/// Wall-clock time that follows the virtual one.
pub struct Steady(pub Instant);

impl WallClock for Steady {
    fn now(&self) -> Timestamp {
        let millis = self.0.elapsed().as_millis();
        Timestamp::from_millisecond(i64::try_from(millis).unwrap()).unwrap()
    }
}

pub fn is_list(call: &Call) -> bool {
    call.verb == Verb::Get && call.path == paths::NODES && !is_watch(call)
}

pub fn is_watch(call: &Call) -> bool {
    call.query.iter().any(|(name, _)| *name == "watch")
}

pub fn is_status_patch(call: &Call) -> bool {
    matches!(call.verb, Verb::Patch(_)) && call.path.ends_with("/status")
}

pub fn is_lease(call: &Call) -> bool {
    call.path.starts_with(paths::NODE_LEASES)
}

pub fn is_renewal(call: &Call) -> bool {
    is_lease(call) && matches!(call.verb, Verb::Patch(_))
}

pub fn is_heartbeat(call: &Call) -> bool {
    call.priority == Priority::Heartbeat
}
