//! An API server with configMaps, secrets and services, as far as a node asks: get, list and watch of single ones.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt as _;
use krablet_kube::{Api, ApiError, Call, Kube, Watch};
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

#[derive(Default)]
struct State {
    version: u64,
    /// By the path of the list, and by name.
    objects: BTreeMap<(String, String), Value>,
    watches: Vec<Open>,
    failing: Option<ApiError>,
    asked: Vec<String>,
    next: u64,
}

struct Open {
    id: u64,
    list: String,
    name: Option<String>,
    lines: mpsc::Sender<Value>,
}

/// Clones are one server.
#[derive(Clone, Default)]
pub struct Server {
    state: Arc<Mutex<State>>,
    /// Whenever somebody asked or hung up.
    stirred: watch::Sender<()>,
}

impl Server {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn kube(&self) -> Kube {
        Kube::new(Arc::new(self.clone()))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts an object into a list, and tells who watches.
    pub fn put(&self, list: &str, name: &str, mut object: Value) {
        let mut state = self.state();
        state.version += 1;
        let namespace = list.split('/').nth(4).unwrap_or_default();
        let meta = &mut object["metadata"];
        meta["name"] = name.into();
        meta["namespace"] = namespace.into();
        meta["resourceVersion"] = state.version.to_string().into();
        if meta["uid"].is_null() {
            meta["uid"] = name.into();
        }
        let key = (list.to_owned(), name.to_owned());
        let known = state.objects.insert(key, object.clone());
        let kind = known.map_or("ADDED", |_| "MODIFIED");
        state.tell(list, name, kind, &object);
    }

    pub fn delete(&self, list: &str, name: &str) {
        let mut state = self.state();
        state.version += 1;
        let key = (list.to_owned(), name.to_owned());
        let mut object = state.objects.remove(&key).unwrap();
        object["metadata"]["resourceVersion"] = state.version.to_string().into();
        state.tell(list, name, "DELETED", &object);
    }

    /// Every call fails like this from now on, and every watch ends.
    pub fn fail(&self, error: Option<ApiError>) {
        let mut state = self.state();
        if error.is_some() {
            state.watches.clear();
        }
        state.failing = error;
    }

    /// What was asked since the last time, as `get /path?query`.
    pub fn asked(&self) -> Vec<String> {
        std::mem::take(&mut self.state().asked)
    }

    /// The objects that are watched, by list and name.
    pub fn watched(&self) -> Vec<String> {
        let state = self.state();
        let watches = state.watches.iter();
        let mut all: Vec<String> = watches
            .map(|w| format!("{}/{}", w.list, w.name.as_deref().unwrap_or("*")))
            .collect();
        all.sort();
        all
    }

    /// Waits until these are watched and no others.
    pub async fn until_watched(&self, wanted: &[&str]) {
        let mut stirred = self.stirred.subscribe();
        let mut wanted = wanted.to_vec();
        wanted.sort_unstable();
        while self.watched() != wanted {
            stirred.changed().await.unwrap();
        }
    }

    fn note(&self, verb: &str, call: &Call) -> Result<(), ApiError> {
        let query = call.query.iter();
        let query: Vec<String> = query
            .filter(|(name, _)| !matches!(*name, "timeoutSeconds" | "limit"))
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        let asked = format!("{verb} {}?{}", call.path, query.join("&"));
        let mut state = self.state();
        state.asked.push(asked);
        let failing = state.failing.clone();
        drop(state);
        self.stirred.send_replace(());
        failing.map_or(Ok(()), Err)
    }
}

impl State {
    fn tell(&mut self, list: &str, name: &str, kind: &str, object: &Value) {
        let concerned = |w: &&Open| w.list == list && w.name.as_deref().is_none_or(|n| n == name);
        for open in self.watches.iter().filter(concerned) {
            let line = json!({"type": kind, "object": object});
            open.lines.try_send(line).unwrap();
        }
    }
}

fn selected(call: &Call) -> Option<String> {
    let selector = call.query.iter().find(|(name, _)| *name == "fieldSelector");
    let selector = selector.map(|(_, value)| value);
    selector.and_then(|s| s.strip_prefix("metadata.name=").map(str::to_owned))
}

/// Tells the server when it is dropped.
struct HangUp(Server, u64);

impl Drop for HangUp {
    fn drop(&mut self) {
        self.0.state().watches.retain(|w| w.id != self.1);
        self.0.stirred.send_replace(());
    }
}

#[async_trait]
impl Api for Server {
    async fn call(&self, call: Call) -> Result<Bytes, ApiError> {
        self.note("get", &call)?;
        let state = self.state();
        let is_list = ["/configmaps", "/secrets", "/services"];
        let answer = if is_list.iter().any(|end| call.path.ends_with(end)) {
            let wanted = selected(&call);
            let items = state.objects.iter().filter(|((list, name), _)| {
                let list = list.as_str();
                let here = list == call.path
                    || call.path == "/api/v1/services" && list.ends_with("/services");
                here && wanted.as_ref().is_none_or(|w| w == name)
            });
            let items: Vec<&Value> = items.map(|(_, object)| object).collect();
            json!({"metadata": {"resourceVersion": state.version.to_string()}, "items": items})
        } else {
            let (list, name) = call.path.rsplit_once('/').unwrap();
            let found = state.objects.get(&(list.to_owned(), name.to_owned()));
            let kind = list.rsplit('/').next().unwrap();
            found.cloned().ok_or_else(|| ApiError::Status {
                code: 404,
                reason: "NotFound".to_owned(),
                message: format!("{kind} {name:?} not found"),
                retry_after: None,
            })?
        };
        Ok(answer.to_string().into())
    }

    async fn watch(&self, call: Call) -> Result<Watch, ApiError> {
        self.note("watch", &call)?;
        let (lines, told) = mpsc::channel(64);
        let mut state = self.state();
        state.next += 1;
        let id = state.next;
        state.watches.push(Open {
            id,
            list: call.path.clone(),
            name: selected(&call),
            lines,
        });
        drop(state);
        self.stirred.send_replace(());
        let hang_up = HangUp(self.clone(), id);
        let lines = futures::stream::unfold((told, hang_up), |(mut told, hang_up)| async move {
            // A bookmark a minute, as real ones send.
            let line = match timeout(Duration::from_secs(60), told.recv()).await {
                Ok(line) => line?,
                Err(_) => {
                    json!({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "1"}}})
                }
            };
            Some((Ok(Bytes::from(line.to_string())), (told, hang_up)))
        });
        Ok(lines.boxed())
    }

    fn reconnect(&self) {}
}
