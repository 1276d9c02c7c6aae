//! Pods of an API server, in memory.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard};

use async_trait::async_trait;
use bytes::Bytes;
use krablet_core::patch::{POD_STATUS, apply};
use krablet_kube::{Api, ApiError, Call, Detail, Priority, Verb, Watch};
use serde_json::{Value, json};
use tokio::sync::watch;

/// What is answered instead of success, and whether the call is done all the same.
struct Failure {
    error: ApiError,
    done: bool,
}

#[derive(Default)]
struct State {
    /// By name.
    objects: BTreeMap<String, Value>,
    version: u64,
    /// All that each object has been, and that it was gone.
    history: BTreeMap<String, Vec<Option<Value>>>,
    calls: Vec<String>,
    /// The phases written to each, in order.
    phases: BTreeMap<String, Vec<String>>,
    priorities: BTreeMap<String, Priority>,
    at_once: BTreeMap<String, (usize, usize)>,
    failures: VecDeque<Failure>,
    away: bool,
    /// UIDs of objects that were asked to be deleted, and were.
    deleted: Vec<String>,
}

/// It is to be deleted, at once.
fn has_no_time(object: &Value) -> bool {
    let metadata = &object["metadata"];
    !metadata["deletionTimestamp"].is_null() && metadata["deletionGracePeriodSeconds"] == 0
}

fn is_kept(object: &Value) -> bool {
    !object["metadata"]["finalizers"].is_null()
}

pub struct Server {
    state: Mutex<State>,
    held: watch::Sender<bool>,
}

impl Default for Server {
    fn default() -> Self {
        Self {
            state: Mutex::default(),
            held: watch::Sender::new(false),
        }
    }
}

impl Server {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub fn put(&self, mut object: Value) {
        let mut state = self.state();
        state.version += 1;
        object["metadata"]["resourceVersion"] = json!(state.version.to_string());
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        let history = state.history.entry(name.clone()).or_default();
        history.push(Some(object.clone()));
        state.objects.insert(name, object);
    }

    pub fn change(&self, name: &str, change: impl FnOnce(&mut Value)) {
        let mut object = self.object(name).unwrap();
        change(&mut object);
        self.put(object);
    }

    pub fn remove(&self, name: &str) {
        let mut state = self.state();
        if state.objects.remove(name).is_some() {
            state.history.entry(name.to_owned()).or_default().push(None);
        }
    }

    /// Somebody wants to be heard before the object goes. What is to go takes no more of them.
    pub fn keep(&self, name: &str, keeper: &str) {
        let mut object = self.object(name).unwrap();
        let metadata = &mut object["metadata"];
        if metadata["deletionTimestamp"].is_null() {
            let mut keepers = metadata["finalizers"].as_array().cloned();
            let keepers = keepers.get_or_insert_default();
            keepers.retain(|k| k != keeper);
            keepers.push(json!(keeper));
            metadata["finalizers"] = json!(keepers);
            self.put(object);
        }
    }

    /// One of them lets go. With the last, an object goes that was there only because of them.
    pub fn let_go(&self, name: &str, keeper: &str) {
        let mut object = self.object(name).unwrap();
        let metadata = object["metadata"].as_object_mut().unwrap();
        let keepers = metadata.get_mut("finalizers").and_then(Value::as_array_mut);
        let Some(keepers) = keepers.filter(|all| all.contains(&json!(keeper))) else {
            return;
        };
        keepers.retain(|k| k != keeper);
        if keepers.is_empty() {
            metadata.remove("finalizers");
        }
        match has_no_time(&object) && !is_kept(&object) {
            true => self.take_away(&object),
            false => self.put(object),
        }
    }

    /// What it was asked to delete.
    fn take_away(&self, object: &Value) {
        let text = |key: &str| object["metadata"][key].as_str().unwrap().to_owned();
        self.remove(&text("name"));
        self.state().deleted.push(text("uid"));
    }

    /// All that an object has been so far.
    pub fn history(&self, name: &str) -> Vec<Option<Value>> {
        self.state().history.get(name).cloned().unwrap_or_default()
    }

    pub fn object(&self, name: &str) -> Option<Value> {
        self.state().objects.get(name).cloned()
    }

    /// Calls are taken, and answered when they are released.
    pub fn hold(&self) {
        self.held.send_replace(true);
    }

    pub fn release(&self) {
        self.held.send_replace(false);
    }

    pub fn fail_next(&self, error: ApiError) {
        let failure = Failure { error, done: false };
        self.state().failures.push_back(failure);
    }

    /// The next call is done, and its answer is lost.
    pub fn lose_next(&self, error: ApiError) {
        let failure = Failure { error, done: true };
        self.state().failures.push_back(failure);
    }

    pub fn heal(&self) {
        self.state().failures.clear();
    }

    pub fn deleted(&self) -> Vec<String> {
        self.state().deleted.clone()
    }

    pub fn go_away(&self, away: bool) {
        self.state().away = away;
    }

    pub fn take_calls(&self) -> Vec<String> {
        std::mem::take(&mut self.state().calls)
    }

    pub fn phases(&self, name: &str) -> Vec<String> {
        self.state().phases.get(name).cloned().unwrap_or_default()
    }

    pub fn priority(&self, name: &str) -> Option<Priority> {
        self.state().priorities.get(name).copied()
    }

    pub fn most_at_once(&self, name: &str) -> usize {
        self.state().at_once.get(name).map_or(0, |(_, most)| *most)
    }

    fn answer(&self, call: &Call, name: &str) -> Result<Bytes, ApiError> {
        let refuse = |code, reason: &str| {
            let body = json!({"reason": reason, "message": reason}).to_string();
            Err(ApiError::from_answer(code, body.as_bytes(), None))
        };
        let body: Value = call
            .body
            .as_ref()
            .map_or(Value::Null, |body| serde_json::from_slice(body).unwrap());
        let Some(mut object) = self.object(name) else {
            return refuse(404, "NotFound");
        };
        let uid = object["metadata"]["uid"].clone();
        match call.verb {
            Verb::Get => {}
            Verb::Patch(_) => {
                let version = &body["metadata"]["resourceVersion"];
                let old = !version.is_null() && *version != object["metadata"]["resourceVersion"];
                if body["metadata"]["uid"] != uid || old {
                    return refuse(409, "Conflict");
                }
                object["status"] = apply(&object["status"], &body["status"], POD_STATUS);
                if let Some(phase) = object["status"]["phase"].as_str() {
                    let mut state = self.state();
                    let phases = state.phases.entry(name.to_owned()).or_default();
                    if phases.last().map(String::as_str) != Some(phase) {
                        phases.push(phase.to_owned());
                    }
                }
                self.put(object);
                object = self.object(name).unwrap();
            }
            Verb::Delete => {
                if body["preconditions"]["uid"] != uid {
                    return refuse(409, "Conflict");
                }
                assert_eq!(body["gracePeriodSeconds"], 0);
                // First it is left no more time, and then it goes, unless somebody keeps it.
                if !has_no_time(&object) {
                    let metadata = &mut object["metadata"];
                    if metadata["deletionTimestamp"].is_null() {
                        metadata["deletionTimestamp"] = json!("2020-01-01T00:00:00Z");
                    }
                    metadata["deletionGracePeriodSeconds"] = json!(0);
                    self.put(object);
                    object = self.object(name).unwrap();
                }
                if !is_kept(&object) {
                    self.take_away(&object);
                }
            }
            other => panic!("{other:?} is not asked of pods here"),
        }
        if call.detail == Detail::Metadata {
            object = json!({"metadata": object["metadata"]});
        }
        Ok(object.to_string().into())
    }
}

#[async_trait]
impl Api for Server {
    async fn call(&self, call: Call) -> Result<Bytes, ApiError> {
        let path: Vec<&str> = call.path.split('/').collect();
        let name = path[6].to_owned();
        let verb = match call.verb {
            Verb::Get => "GET",
            Verb::Patch(_) => "PATCH",
            Verb::Delete => "DELETE",
            other => panic!("{other:?} is not asked of pods here"),
        };
        {
            let mut state = self.state();
            state.calls.push(format!("{verb} {name}"));
            state.priorities.insert(name.clone(), call.priority);
            let (now, most) = state.at_once.entry(name.clone()).or_default();
            *now += 1;
            *most = (*most).max(*now);
        }
        let mut held = self.held.subscribe();
        held.wait_for(|held| !held).await.unwrap();
        let failure = {
            let mut state = self.state();
            state.at_once.get_mut(&name).unwrap().0 -= 1;
            match state.away {
                true => Some(Failure {
                    error: ApiError::Connection("refused".into()),
                    done: false,
                }),
                false => state.failures.pop_front(),
            }
        };
        match failure {
            Some(Failure { error, done }) => {
                if done {
                    let _lost = self.answer(&call, &name);
                }
                Err(error)
            }
            None => self.answer(&call, &name),
        }
    }

    async fn watch(&self, _: Call) -> Result<Watch, ApiError> {
        panic!("nothing is watched here")
    }

    fn reconnect(&self) {}
}
