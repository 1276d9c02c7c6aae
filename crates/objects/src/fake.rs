//! Objects and services from memory, for tests of other rooms.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use krablet_pod::PodUid;
use krablet_pod::api::{ConfigMap, Pod, Secret, Service};

use crate::{Bell, NotRead, ObjectError, ObjectKey, Objects, Referents, Services, references};

/// Whatever was put in, for everyone. Clones share one.
#[derive(Clone, Default)]
pub struct FakeObjects {
    inner: Arc<Mutex<Inner>>,
    bell: Bell,
}

#[derive(Default)]
struct Inner {
    config_maps: BTreeMap<ObjectKey, Arc<ConfigMap>>,
    secrets: BTreeMap<ObjectKey, Arc<Secret>>,
    failing: BTreeMap<ObjectKey, ObjectError>,
    wanted: BTreeMap<PodUid, Vec<ObjectKey>>,
}

impl FakeObjects {
    pub fn new() -> Self {
        Self::default()
    }

    /// With these services.
    pub fn referents(&self, services: &FakeServices) -> Referents {
        Referents {
            objects: Arc::new(self.clone()),
            services: Arc::new(services.clone()),
            bell: self.bell.clone(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts it in the place of any there is of its name.
    pub fn put_config_map(&self, object: ConfigMap) {
        let meta = &object.metadata;
        let key = ObjectKey::config_map(
            meta.namespace.as_deref().unwrap_or_default(),
            meta.name.as_deref().unwrap_or_default(),
        );
        self.lock()
            .config_maps
            .insert(key.clone(), Arc::new(object));
        self.ring(&key);
    }

    pub fn put_secret(&self, object: Secret) {
        let meta = &object.metadata;
        let key = ObjectKey::secret(
            meta.namespace.as_deref().unwrap_or_default(),
            meta.name.as_deref().unwrap_or_default(),
        );
        self.lock().secrets.insert(key.clone(), Arc::new(object));
        self.ring(&key);
    }

    pub fn remove(&self, key: &ObjectKey) {
        let mut inner = self.lock();
        inner.config_maps.remove(key);
        inner.secrets.remove(key);
        drop(inner);
        self.ring(key);
    }

    /// From now on asking for it brings this; `None` ends that.
    pub fn fail(&self, key: &ObjectKey, error: Option<ObjectError>) {
        let mut inner = self.lock();
        match error {
            Some(error) => inner.failing.insert(key.clone(), error),
            None => inner.failing.remove(key),
        };
    }

    fn ring(&self, key: &ObjectKey) {
        let wanted = self.wanted().into_iter();
        let refers = wanted.filter(|(_, keys)| keys.contains(key));
        self.bell.ring(refers.map(|(uid, _)| uid));
    }

    /// What is kept ready for whom.
    pub fn wanted(&self) -> BTreeMap<PodUid, Vec<ObjectKey>> {
        self.lock().wanted.clone()
    }
}

#[async_trait]
impl Objects for FakeObjects {
    async fn config_map(&self, namespace: &str, name: &str) -> Result<Arc<ConfigMap>, ObjectError> {
        let key = ObjectKey::config_map(namespace, name);
        let inner = self.lock();
        match (inner.failing.get(&key), inner.config_maps.get(&key)) {
            (Some(error), _) => Err(error.clone()),
            (None, Some(object)) => Ok(object.clone()),
            (None, None) => Err(ObjectError::not_found(&key)),
        }
    }

    async fn secret(&self, namespace: &str, name: &str) -> Result<Arc<Secret>, ObjectError> {
        let key = ObjectKey::secret(namespace, name);
        let inner = self.lock();
        match (inner.failing.get(&key), inner.secrets.get(&key)) {
            (Some(error), _) => Err(error.clone()),
            (None, Some(object)) => Ok(object.clone()),
            (None, None) => Err(ObjectError::not_found(&key)),
        }
    }

    fn want(&self, pod: &Pod) {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default().into();
        let keys = references(pod).into_iter().collect();
        self.lock().wanted.insert(uid, keys);
    }

    fn forget(&self, uid: &PodUid) {
        self.lock().wanted.remove(uid);
    }
}

/// The services that were put in. Clones share one set.
#[derive(Clone)]
pub struct FakeServices {
    services: Arc<Mutex<Result<Vec<Arc<Service>>, NotRead>>>,
}

impl FakeServices {
    pub fn new(services: Vec<Service>) -> Self {
        let services = services.into_iter().map(Arc::new).collect();
        Self {
            services: Arc::new(Mutex::new(Ok(services))),
        }
    }

    /// As before the first list.
    pub fn unread() -> Self {
        Self {
            services: Arc::new(Mutex::new(Err(NotRead))),
        }
    }

    pub fn set(&self, services: Vec<Service>) {
        let services = services.into_iter().map(Arc::new).collect();
        *self.services.lock().unwrap_or_else(PoisonError::into_inner) = Ok(services);
    }
}

impl Services for FakeServices {
    fn all(&self) -> Result<Arc<[Arc<Service>]>, NotRead> {
        let services = self.services.lock().unwrap_or_else(PoisonError::into_inner);
        services.clone().map(Into::into)
    }
}
