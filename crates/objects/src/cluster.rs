//! Objects of an API server, by the strategy the node is configured with.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use krablet_checkpoint::Shelf;
use krablet_kube::Kube;
use krablet_pod::api::{ConfigMap, Pod, Secret};
use krablet_pod::{PodRef, PodUid};

use crate::cached::{Cached, Ttl};
use crate::kept::KeptObjects;
use crate::object::{Object, fetch};
use crate::references::uses;
use crate::services::{ClusterServices, Memory, ServicesTask};
use crate::table::{Changed, Table};
use crate::watched::Watched;
use crate::{Bell, ObjectError, ObjectKey, Objects, Referents};

/// `configMapAndSecretChangeDetectionStrategy`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Strategy {
    /// Ask each time.
    Get,
    /// Ask again when an answer is too old.
    Cache,
    #[default]
    Watch,
}

impl Strategy {
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "Get" => Some(Strategy::Get),
            "Cache" => Some(Strategy::Cache),
            "Watch" => Some(Strategy::Watch),
            _ => None,
        }
    }
}

pub struct ClusterConfig {
    pub kube: Kube,
    pub strategy: Strategy,
    /// How long the `Cache` strategy believes an answer; the Node object may say.
    pub ttl: Ttl,
    /// Of the services.
    pub memory: Memory,
    pub keepsakes: Keepsakes,
    pub seed: u64,
}

/// Where objects are kept for a start without an API server, if anywhere.
#[derive(Clone, Default)]
pub struct Keepsakes {
    pub config_maps: Option<Shelf>,
    pub secrets: Option<Shelf>,
}

/// The task keeps the list of services; objects are watched as pods come and go.
pub fn build(config: ClusterConfig) -> (Referents, ServicesTask) {
    let bell = Bell::default();
    let table = SharedTable::default();
    let kube = config.kube;
    let store: Box<dyn Store> = match config.strategy {
        Strategy::Get => Box::new(Asked { kube: kube.clone() }),
        Strategy::Cache => Box::new(Cached::new(kube.clone(), config.ttl)),
        Strategy::Watch => Box::new(Watched::new(
            kube.clone(),
            table.clone(),
            bell.clone(),
            config.seed,
        )),
    };
    let (services, task) = ClusterServices::build(
        &kube,
        table.clone(),
        bell.clone(),
        config.memory,
        config.seed,
    );
    let referents = Referents {
        objects: Arc::new(ClusterObjects {
            table,
            store,
            kept: KeptObjects::new(config.keepsakes),
        }),
        services: Arc::new(services),
        bell,
    };
    (referents, task)
}

/// Who refers to what, for all who need to know.
#[derive(Clone, Default)]
pub(crate) struct SharedTable(Arc<Mutex<Table>>);

impl SharedTable {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Keeps objects that pods refer to.
#[async_trait]
pub(crate) trait Store: Send + Sync {
    /// One more pod refers to it.
    fn added(&self, key: &ObjectKey);
    /// Nobody refers to it.
    fn dropped(&self, key: &ObjectKey);
    async fn get(&self, key: &ObjectKey) -> Result<Object, ObjectError>;
}

struct ClusterObjects {
    table: SharedTable,
    store: Box<dyn Store>,
    kept: KeptObjects,
}

impl ClusterObjects {
    async fn get(&self, key: &ObjectKey) -> Result<Object, ObjectError> {
        let answer = self.store.get(key).await;
        self.kept.or_kept(key, answer).await
    }

    /// The table is locked meanwhile, so that what follows from two pods is done in their order.
    fn follow(&self, changed: impl FnOnce(&mut Table) -> Changed) {
        let mut table = self.table.lock();
        let changed = changed(&mut table);
        changed.added.iter().for_each(|key| self.store.added(key));
        for key in &changed.dropped {
            self.store.dropped(key);
            self.kept.dropped(key);
        }
    }
}

#[async_trait]
impl Objects for ClusterObjects {
    async fn config_map(&self, namespace: &str, name: &str) -> Result<Arc<ConfigMap>, ObjectError> {
        let key = ObjectKey::config_map(namespace, name);
        self.get(&key).await?.config_map(&key)
    }

    async fn secret(&self, namespace: &str, name: &str) -> Result<Arc<Secret>, ObjectError> {
        let key = ObjectKey::secret(namespace, name);
        self.get(&key).await?.secret(&key)
    }

    fn want(&self, pod: &Pod) {
        let uid = PodRef::of(pod).uid;
        self.follow(|table| table.want(&uid, uses(pod)));
    }

    fn forget(&self, uid: &PodUid) {
        self.follow(|table| table.forget(uid));
    }
}

/// Asks each time; keeps nothing.
struct Asked {
    kube: Kube,
}

#[async_trait]
impl Store for Asked {
    fn added(&self, _: &ObjectKey) {}

    fn dropped(&self, _: &ObjectKey) {}

    async fn get(&self, key: &ObjectKey) -> Result<Object, ObjectError> {
        let answer = fetch(&self.kube, key, false).await;
        answer.map_err(ObjectError::Api)
    }
}
