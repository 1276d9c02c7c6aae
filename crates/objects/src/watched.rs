//! One watch for each object that pods refer to, and none for any other. The API server lets a node list and watch
//! only single objects that pods of the node refer to, so each is a list with a field selector; all of them share
//! the connections to the server.
//!
//! A watch ends when nobody refers to the object, when the object turns out to be immutable, and when nothing but
//! environments and pulls could need it and none did for a while. The next who asks gets a list anew.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use k8s_openapi::Metadata;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use krablet_kube::{Kube, Reach, Reflector, ReflectorConfig, Sink};
use krablet_pod::api::{ConfigMap, Secret};
use serde::de::DeserializeOwned;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tracing::debug;

use crate::cluster::{SharedTable, Store};
use crate::object::{self, Object};
use crate::{Bell, Kind, ObjectError, ObjectKey};

/// How long a reader waits while the server fails to answer.
const FAILING: Duration = Duration::from_secs(1);
/// How long a reader waits for a list whose turn has not come or that is under way.
const PATIENCE: Duration = Duration::from_secs(10);
/// Longer than the longest back-off of a container or a pull, at whose end the object is asked for again.
const IDLE: Duration = Duration::from_secs(600);

/// Why there is or is no watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Watched,
    /// Nobody asked for long.
    Idle,
    Immutable,
}

/// What the server told.
#[derive(Clone, Debug, Default)]
struct Known {
    /// By which run of the watch it was last confirmed.
    run: u64,
    /// None before the first list; then the object, or that there is none.
    object: Option<Option<Object>>,
}

struct Item {
    known: watch::Sender<Known>,
    reach: watch::Receiver<Reach>,
    state: State,
    /// The watch of the moment, counted.
    run: u64,
    /// Somebody was told what is known, and would be interested in news.
    was_read: bool,
    last_read: Instant,
    _task: JoinSet<()>,
}

pub(crate) struct Watched {
    inner: Arc<Inner>,
}

struct Inner {
    kube: Kube,
    table: SharedTable,
    bell: Bell,
    /// Locked after the table, never before.
    items: Mutex<BTreeMap<ObjectKey, Item>>,
    seed: AtomicU64,
}

impl Watched {
    pub(crate) fn new(kube: Kube, table: SharedTable, bell: Bell, seed: u64) -> Self {
        Self {
            inner: Arc::new(Inner {
                kube,
                table,
                bell,
                items: Mutex::default(),
                seed: AtomicU64::new(seed),
            }),
        }
    }
}

#[async_trait]
impl Store for Watched {
    fn added(&self, key: &ObjectKey) {
        let mut items = self.inner.items();
        let run = match items.get(key) {
            None => 0,
            // Deleted and made anew under the same name, it would be another: a pod that is new here sees that.
            Some(item) if item.state == State::Immutable => item.run,
            Some(_) => return,
        };
        let (reach, task) = self.inner.watch(key, run + 1);
        let now = Instant::now();
        let item = items.entry(key.clone()).or_insert_with(|| Item {
            known: watch::Sender::new(Known::default()),
            reach: reach.clone(),
            state: State::Watched,
            run: 0,
            was_read: false,
            last_read: now,
            _task: JoinSet::new(),
        });
        item.begin(reach, task);
    }

    fn dropped(&self, key: &ObjectKey) {
        self.inner.items().remove(key);
    }

    async fn get(&self, key: &ObjectKey) -> Result<Object, ObjectError> {
        let Some((mut known, mut reach, run)) = self.inner.asked(key) else {
            return Err(ObjectError::not_registered(key));
        };
        let fresh = async {
            // An error here means that nobody refers to it any more: what is known is all there is.
            let _ = known.wait_for(|known| known.run >= run).await;
        };
        let failing = async {
            let _ = reach.wait_for(|reach| reach.error.is_some()).await;
        };
        wait(fresh, failing).await;
        self.inner.told(key);
        let known = known.borrow().object.clone();
        match known {
            Some(Some(object)) => Ok(object),
            Some(None) => Err(ObjectError::not_found(key)),
            None => Err(ObjectError::timed_out(key, reach.borrow().error.clone())),
        }
    }
}

/// Until it is there, or has failed to come for long enough.
async fn wait(fresh: impl Future<Output = ()>, failing: impl Future<Output = ()>) {
    tokio::pin!(fresh);
    let begun = Instant::now();
    let patience = async {
        let failed = timeout(PATIENCE, failing).await;
        if failed.is_ok() {
            tokio::time::sleep_until((begun + FAILING).max(Instant::now())).await;
        }
    };
    tokio::select! {
        biased;
        () = &mut fresh => {}
        () = patience => {}
    }
}

impl Item {
    fn begin(&mut self, reach: watch::Receiver<Reach>, task: JoinSet<()>) {
        self.run += 1;
        self.state = State::Watched;
        self.reach = reach;
        self._task = task;
    }
}

type Asked = (watch::Receiver<Known>, watch::Receiver<Reach>, u64);

impl Inner {
    fn items(&self) -> MutexGuard<'_, BTreeMap<ObjectKey, Item>> {
        self.items.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Somebody wants to know: a watch that was ended is begun anew.
    fn asked(self: &Arc<Self>, key: &ObjectKey) -> Option<Asked> {
        let mut items = self.items();
        let item = items.get_mut(key)?;
        item.last_read = Instant::now();
        if item.state == State::Idle {
            let (reach, task) = self.watch(key, item.run + 1);
            item.begin(reach, task);
        }
        Some((item.known.subscribe(), item.reach.clone(), item.run))
    }

    /// Before the reader takes what is known: whatever changes from now on rings the bell.
    fn told(&self, key: &ObjectKey) {
        if let Some(item) = self.items().get_mut(key) {
            item.was_read = true;
        }
    }

    fn watch(self: &Arc<Self>, key: &ObjectKey, run: u64) -> (watch::Receiver<Reach>, JoinSet<()>) {
        let enough = Arc::new(Notify::new());
        let news = News {
            inner: Arc::downgrade(self),
            key: key.clone(),
            run,
            enough: enough.clone(),
        };
        let (reach, reflector) = match key.kind {
            Kind::ConfigMap => self.reflector::<ConfigMap>(key, news),
            Kind::Secret => self.reflector::<Secret>(key, news),
        };
        let idle = idle(Arc::downgrade(self), key.clone());
        let mut task = JoinSet::new();
        task.spawn(async move {
            tokio::select! {
                biased;
                () = enough.notified() => {}
                () = idle => {}
                () = reflector => {}
            }
        });
        (reach, task)
    }

    fn reflector<T>(
        &self,
        key: &ObjectKey,
        news: News,
    ) -> (watch::Receiver<Reach>, BoxFuture<'static, ()>)
    where
        T: DeserializeOwned + Metadata<Ty = ObjectMeta> + Send + Sync + 'static,
        News: Sink<T>,
    {
        let config = ReflectorConfig {
            path: object::list_path(key),
            query: vec![("fieldSelector", format!("metadata.name={}", key.name))],
            slim: Box::new(|object: &mut T, _| object::slim(object)),
            seed: self.seed.fetch_add(1, Ordering::Relaxed),
        };
        let (reflector, reach) = Reflector::<T, News>::new(self.kube.api().clone(), config, news);
        (reach, reflector.from_now().run().boxed())
    }

    /// Whether the watch may end.
    fn rest(&self, key: &ObjectKey) -> bool {
        let table = self.table.lock();
        if table.is_lasting(key) {
            return false;
        }
        let mut items = self.items();
        let Some(item) = items.get_mut(key) else {
            return true;
        };
        let known = item.known.borrow().object.is_some();
        let rests = known && item.last_read.elapsed() >= IDLE;
        if rests {
            debug!(object = %key, "Not acquired for long time, Stopped watching for changes");
            item.state = State::Idle;
        }
        rests
    }

    /// The server told how it stands.
    fn news(&self, key: &ObjectKey, run: u64, object: Option<Object>) -> Verdict {
        let mut items = self.items();
        let Some(item) = items.get_mut(key).filter(|item| item.run == run) else {
            return Verdict::default();
        };
        let is_immutable = object.as_ref().is_some_and(Object::is_immutable);
        let changed = match (&item.known.borrow().object, &object) {
            (Some(Some(old)), Some(new)) => !old.is_same(new),
            (Some(None), None) => false,
            _ => true,
        };
        let object = Some(object);
        item.known.send_replace(Known { run, object });
        if is_immutable {
            debug!(object = %key, "Stopped watching for changes - object is immutable");
            item.state = State::Immutable;
        }
        Verdict {
            ring: changed && std::mem::take(&mut item.was_read),
            enough: is_immutable,
        }
    }
}

#[derive(Default)]
struct Verdict {
    /// Somebody knows it otherwise.
    ring: bool,
    /// Nothing more will come.
    enough: bool,
}

/// Ends when nobody has asked for long.
async fn idle(inner: Weak<Inner>, key: ObjectKey) {
    loop {
        tokio::time::sleep(IDLE).await;
        match inner.upgrade() {
            Some(inner) if !inner.rest(&key) => {}
            _ => return,
        }
    }
}

/// Where a watch brings what it hears.
struct News {
    inner: Weak<Inner>,
    key: ObjectKey,
    run: u64,
    enough: Arc<Notify>,
}

impl News {
    fn set(&self, object: Option<Object>) {
        let Some(inner) = self.inner.upgrade() else {
            return;
        };
        let verdict = inner.news(&self.key, self.run, object);
        if verdict.ring {
            let referrers = inner.table.lock().referrers(&self.key);
            inner.bell.ring(referrers);
        }
        if verdict.enough {
            self.enough.notify_one();
        }
    }
}

#[async_trait]
impl Sink<ConfigMap> for News {
    async fn set(&mut self, objects: Vec<Arc<ConfigMap>>) {
        News::set(self, objects.into_iter().next().map(Object::ConfigMap));
    }
}

#[async_trait]
impl Sink<Secret> for News {
    async fn set(&mut self, objects: Vec<Arc<Secret>>) {
        News::set(self, objects.into_iter().next().map(Object::Secret));
    }
}
