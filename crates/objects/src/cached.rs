//! Objects asked for when they are needed, and again when what was told has become too old.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use krablet_kube::Kube;
use tokio::time::Instant;

use crate::cluster::Store;
use crate::object::{Object, fetch};
use crate::{ObjectError, ObjectKey};

/// Unless the Node object says otherwise.
const DEFAULT_TTL: Duration = Duration::from_secs(60);

/// How long an answer is good, if somebody has said so.
pub type Ttl = Arc<dyn Fn() -> Option<Duration> + Send + Sync>;

/// The last answer worth keeping: the object, or that there is none.
type Answer = Option<(Instant, Result<Object, ObjectError>)>;

pub(crate) struct Cached {
    kube: Kube,
    ttl: Ttl,
    items: Mutex<BTreeMap<ObjectKey, Arc<tokio::sync::Mutex<Answer>>>>,
}

impl Cached {
    pub(crate) fn new(kube: Kube, ttl: Ttl) -> Self {
        Self {
            kube,
            ttl,
            items: Mutex::default(),
        }
    }

    fn items(&self) -> MutexGuard<'_, BTreeMap<ObjectKey, Arc<tokio::sync::Mutex<Answer>>>> {
        self.items.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Store for Cached {
    /// A pod that is new here sees the object as it is now.
    fn added(&self, key: &ObjectKey) {
        self.items().insert(key.clone(), Arc::default());
    }

    fn dropped(&self, key: &ObjectKey) {
        self.items().remove(key);
    }

    async fn get(&self, key: &ObjectKey) -> Result<Object, ObjectError> {
        let item = self.items().get(key).cloned();
        let item = item.ok_or_else(|| ObjectError::not_registered(key))?;
        // Those who ask at the same time share one question.
        let mut last = item.lock().await;
        let now = Instant::now();
        let ttl = (self.ttl)().unwrap_or(DEFAULT_TTL);
        match &*last {
            Some((at, Ok(object))) if now < *at + ttl => return Ok(object.clone()),
            _ => {}
        }
        let remembered = matches!(&*last, Some((_, Ok(_))));
        let known = |last: &Answer| last.as_ref().map(|(_, known)| known.clone());
        match fetch(&self.kube, key, remembered).await {
            Ok(object) => {
                let is_older = match &*last {
                    Some((_, Ok(old))) => object.is_older(old),
                    _ => false,
                };
                if !is_older {
                    *last = Some((now, Ok(object)));
                }
            }
            Err(error) if error.is_not_found() => {
                *last = Some((now, Err(ObjectError::Api(error))));
            }
            // What is known, even if it is old, is better than nothing.
            Err(error) => return known(&last).unwrap_or(Err(ObjectError::Api(error))),
        }
        known(&last).unwrap_or_else(|| Err(ObjectError::not_found(key)))
    }
}
