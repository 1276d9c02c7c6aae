//! Objects as they were last known, for pods that start while the API server is away.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use krablet_checkpoint::Shelf;
use krablet_pod::api::Pod;
use tracing::info;

use crate::cluster::Keepsakes;
use crate::object::{Object, Version};
use crate::{Kind, ObjectError, ObjectKey, references};

pub(crate) struct KeptObjects {
    shelves: Keepsakes,
    /// Which version lies there: an object is read far more often than it changes.
    versions: Mutex<BTreeMap<ObjectKey, Version>>,
}

/// What lies on the shelves of the objects a pod refers to: secrets, and configMaps.
pub fn kept_names(pod: &Pod) -> (Vec<String>, Vec<String>) {
    let all = references(pod).into_iter();
    let (secrets, config_maps): (Vec<_>, Vec<_>) = all.partition(|key| key.kind == Kind::Secret);
    let names = |keys: Vec<ObjectKey>| keys.iter().map(ToString::to_string).collect();
    (names(secrets), names(config_maps))
}

impl KeptObjects {
    pub(crate) fn new(shelves: Keepsakes) -> Self {
        Self {
            shelves,
            versions: Mutex::default(),
        }
    }

    fn shelf(&self, key: &ObjectKey) -> Option<&Shelf> {
        match key.kind {
            Kind::ConfigMap => self.shelves.config_maps.as_ref(),
            Kind::Secret => self.shelves.secrets.as_ref(),
        }
    }

    /// The answer, or what was known before if there is none because the server is away.
    pub(crate) async fn or_kept(
        &self,
        key: &ObjectKey,
        answer: Result<Object, ObjectError>,
    ) -> Result<Object, ObjectError> {
        match answer {
            Ok(object) => {
                self.keep(key, &object);
                Ok(object)
            }
            Err(error) if error.is_passing() => match self.load(key).await {
                Some(object) => {
                    info!(object = %key, "The API server is away: the object is used as it was last known");
                    Ok(object)
                }
                None => Err(error),
            },
            Err(error) => {
                if error.is_not_found() {
                    self.dropped(key);
                }
                Err(error)
            }
        }
    }

    pub(crate) fn dropped(&self, key: &ObjectKey) {
        if let Some(shelf) = self.shelf(key) {
            self.versions().remove(key);
            shelf.remove(&key.to_string());
        }
    }

    fn keep(&self, key: &ObjectKey, object: &Object) {
        let Some(shelf) = self.shelf(key) else { return };
        let version = object.version();
        if self.versions().insert(key.clone(), version.clone()) == Some(version) {
            return;
        }
        let name = key.to_string();
        match object {
            Object::ConfigMap(object) => shelf.put(&name, &**object),
            Object::Secret(object) => shelf.put(&name, &**object),
        }
    }

    async fn load(&self, key: &ObjectKey) -> Option<Object> {
        let (shelf, name) = (self.shelf(key)?, key.to_string());
        Some(match key.kind {
            Kind::ConfigMap => Object::ConfigMap(Arc::new(shelf.load(&name).await?)),
            Kind::Secret => Object::Secret(Arc::new(shelf.load(&name).await?)),
        })
    }

    fn versions(&self) -> std::sync::MutexGuard<'_, BTreeMap<ObjectKey, Version>> {
        self.versions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
