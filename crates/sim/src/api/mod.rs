//! An API server in memory, behind the trait everything of the agent speaks to. It has the pods of
//! one node, takes events and forgets them, and every call and watch can go wrong in every way.
//!
//! A call that changes something is served by the server, not by its caller: it goes on, or is given
//! up, on its own when the caller is gone.

mod request;
mod store;
mod watch;

use std::future::pending;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use krablet_kube::{Api, ApiError, Call, Watch};
use krablet_linux::WallClock;
use krablet_pod::api::Pod;
use krablet_pod::{PodRef, marks};
use tokio::sync::{oneshot, watch as channel};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::clock::SimClock;
use crate::laws::Written;
use crate::mutation::Mutation;
use crate::runtime::SimRuntime;
use crate::world::{ApiFate, ApiPlan, World};
use request::{Age, Request, query};
use store::{Deleted, Key, Store, not_found, refusal};

/// What every watch looks at.
#[derive(Clone, Copy, Debug)]
struct Tide {
    version: usize,
    /// Watches were cut so often.
    cuts: u64,
    up: bool,
}

struct Shared {
    store: Mutex<Store>,
    tide: channel::Sender<Tide>,
    world: Arc<World>,
    runtime: SimRuntime,
    clock: SimClock,
    /// Calls that are being served. They hold weak references: all end with the server.
    tasks: Mutex<JoinSet<()>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Clones are the same server.
#[derive(Clone)]
pub(crate) struct ApiServer {
    shared: Arc<Shared>,
}

/// The server as one agent calls it.
struct Client {
    shared: Arc<Shared>,
    caller: u64,
}

/// Who else changes things: people and controllers.
impl ApiServer {
    pub(crate) fn new(world: &Arc<World>, runtime: &SimRuntime, clock: &SimClock) -> Self {
        let tide = Tide {
            version: 0,
            cuts: 0,
            up: true,
        };
        Self {
            shared: Arc::new(Shared {
                store: Mutex::default(),
                tide: channel::Sender::new(tide),
                world: world.clone(),
                runtime: runtime.clone(),
                clock: clock.clone(),
                tasks: Mutex::default(),
            }),
        }
    }

    pub(crate) fn client(&self, caller: u64) -> Arc<dyn Api> {
        Arc::new(Client {
            shared: self.shared.clone(),
            caller,
        })
    }

    pub(crate) fn pods(&self) -> Vec<Arc<Pod>> {
        lock(&self.shared.store).pods()
    }

    pub(crate) fn get(&self, namespace: &str, name: &str) -> Option<Arc<Pod>> {
        let key = (namespace.to_owned(), name.to_owned());
        let store = lock(&self.shared.store);
        store.get(&key).map(|object| object.pod.clone())
    }

    pub(crate) fn create(&self, pod: Pod) {
        let now = self.shared.clock.now();
        let made = lock(&self.shared.store).create(pod, now);
        self.shared.done(made.map(drop));
    }

    pub(crate) fn edit(&self, namespace: &str, name: &str, edit: impl FnOnce(&mut Pod)) {
        let key = (namespace.to_owned(), name.to_owned());
        let edited = lock(&self.shared.store).edit(&key, edit);
        self.shared.done(edited.map(drop));
    }

    /// The pod as it is then, if it is not gone.
    pub(crate) fn delete(&self, namespace: &str, name: &str, grace: i64) -> Option<Arc<Pod>> {
        let key = (namespace.to_owned(), name.to_owned());
        let now = self.shared.clock.now();
        let deleted = lock(&self.shared.store).delete(&key, grace, now);
        let left = match &deleted {
            Ok(Deleted::Marked(pod)) => Some(pod.clone()),
            _ => None,
        };
        self.shared.done(deleted.map(drop));
        left
    }

    /// Takes one of the finalizers away. Whether the object went with it.
    pub(crate) fn release(&self, namespace: &str, name: &str) -> bool {
        self.edit(namespace, name, |pod| {
            let finalizers = pod.metadata.finalizers.iter().flatten().skip(1);
            let left: Vec<String> = finalizers.cloned().collect();
            pod.metadata.finalizers = Some(left).filter(|left| !left.is_empty());
        });
        self.get(namespace, name).is_none()
    }

    pub(crate) fn set_up(&self, up: bool) {
        self.shared.tide.send_modify(|tide| tide.up = up);
    }

    pub(crate) fn cut_watches(&self) {
        self.shared.tide.send_modify(|tide| tide.cuts += 1);
    }

    /// Versions before the newest cannot be watched from any more.
    pub(crate) fn forget_history(&self) {
        let mut store = lock(&self.shared.store);
        store.forgotten = store.version();
    }
}

impl Shared {
    fn is_up(&self) -> bool {
        self.tide.borrow().up
    }

    /// Tells watches what there is to tell.
    fn done(&self, outcome: Result<(), ApiError>) {
        if let Err(e) = outcome {
            self.world.note(format_args!("   refused: {e}"));
        }
        let version = lock(&self.store).version();
        self.tide.send_if_modified(|tide| {
            let changed = tide.version != version;
            tide.version = version;
            changed
        });
    }

    fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = lock(&self.tasks);
        while tasks.try_join_next().is_some() {}
        tasks.spawn(work);
    }

    /// How far a server that is behind has come.
    fn stale(&self, store: &Store) -> usize {
        let back = self.world.stale_by();
        let then = Instant::now().checked_sub(back);
        then.map_or(store.version(), |then| store.version_at(then))
    }

    fn read(&self, request: &Request) -> Result<Bytes, ApiError> {
        let store = lock(&self.store);
        match request {
            Request::List(age) => {
                let version = match age {
                    Age::Any => self.stale(&store),
                    Age::NotOlderThan(known) => self.stale(&store).max(*known),
                    Age::Newest => store.version(),
                };
                self.world
                    .note(format_args!("   list of version {version}"));
                Ok(store.list(version))
            }
            Request::Get(key) => {
                let found = store.get(key).ok_or_else(|| not_found(key))?;
                Ok(found.bytes.clone())
            }
            _ => Ok(Bytes::new()),
        }
    }

    /// Does what an agent asked for. `late`: nobody waits for it any more.
    fn change(&self, request: Request, late: bool) -> Result<Bytes, ApiError> {
        let answer = match request {
            Request::PatchStatus {
                key,
                uid,
                version,
                status,
            } => {
                let meant = (uid.as_deref(), version.as_deref());
                self.patch_status(&key, meant, &status, late)
            }
            Request::Create(pod) => {
                let now = self.clock.now();
                let made = lock(&self.store).create(*pod, now);
                made.map(|object| object.bytes.clone())
            }
            Request::Delete { key, uid, grace } => self.delete(&key, uid.as_deref(), grace),
            _ => Ok(Bytes::from_static(b"{}")),
        };
        self.done(Ok(()));
        answer
    }

    /// The object, if it is the one meant.
    fn meant(&self, key: &Key, uid: Option<&str>) -> Result<Arc<Pod>, ApiError> {
        let store = lock(&self.store);
        let object = store.get(key).ok_or_else(|| not_found(key))?;
        let found = object.pod.metadata.uid.as_deref();
        let careless = self.world.mutation() == Some(Mutation::IgnoreUid);
        match uid.is_some() && uid != found && !careless {
            true => Err(refusal(409, "Conflict", "the UID is another one".into())),
            false => Ok(object.pod.clone()),
        }
    }

    fn patch_status(
        &self,
        key: &Key,
        (uid, version): (Option<&str>, Option<&str>),
        patch: &serde_json::Value,
        late: bool,
    ) -> Result<Bytes, ApiError> {
        let before = self.meant(key, uid)?;
        if version.is_some() && version != before.metadata.resource_version.as_deref() {
            let message = "the object has been modified".to_owned();
            return Err(refusal(409, "Conflict", message));
        }
        if self.world.mutation() == Some(Mutation::LoseStatus) {
            let store = lock(&self.store);
            return store
                .get(key)
                .map(|o| o.bytes.clone())
                .ok_or_else(|| not_found(key));
        }
        let object = lock(&self.store).patch_status(key, patch)?;
        let written = Written {
            before: &before,
            after: &object.pod,
            meant: uid,
            late,
        };
        self.check(|machine, laws| laws.status_written(machine, &written));
        if self.world.mutation() == Some(Mutation::OldStatus) {
            let back = Written {
                before: &object.pod,
                after: &before,
                ..written
            };
            self.check(|machine, laws| laws.status_written(machine, &back));
        }
        let deleted = object.pod.metadata.deletion_timestamp.is_some();
        if deleted && self.world.mutation() == Some(Mutation::HastyDelete) {
            self.delete(key, uid, 0)?;
        }
        Ok(object.bytes.clone())
    }

    fn delete(&self, key: &Key, uid: Option<&str>, grace: i64) -> Result<Bytes, ApiError> {
        let before = self.meant(key, uid)?;
        self.check(|machine, laws| laws.deleted_by_agent(machine, &before, uid));
        let now = self.clock.now();
        if let Deleted::Gone(pod) = lock(&self.store).delete(key, grace, now)? {
            let uid = PodRef::of(&pod).uid;
            self.world.note(format_args!("   {uid} is deleted"));
            if !marks::is_mirror(&pod) {
                self.world.lock().laws.unwant_object(&uid);
            }
        }
        Ok(Bytes::from_static(b"{}"))
    }

    fn check(
        &self,
        look: impl FnOnce(&crate::runtime::Machine, &mut crate::laws::Laws) -> crate::laws::Held,
    ) {
        let world = &self.world;
        let held = self
            .runtime
            .with_machine(|machine| look(machine, &mut world.lock().laws));
        world.check(held);
    }
}

impl Client {
    fn unreachable() -> ApiError {
        ApiError::Connection("connection refused".to_owned())
    }

    /// Hands a change to the server. With `goes_on` it is done even if nobody waits for it.
    fn serve(
        &self,
        request: Request,
        (before, after): (Duration, Duration),
        deadline: Instant,
        goes_on: bool,
    ) -> oneshot::Receiver<Result<Bytes, ApiError>> {
        let (mut answer, receiver) = oneshot::channel();
        let shared = Arc::downgrade(&self.shared);
        let caller = self.caller;
        self.shared.spawn(async move {
            let work = async {
                sleep(before).await;
                let shared = shared.upgrade()?;
                let late = Instant::now() >= deadline || !shared.world.lock().laws.lives(caller);
                let text = if late { "late" } else { "done" };
                shared.world.note(format_args!("   {text} {request}"));
                let done = shared.change(request, late);
                drop(shared);
                sleep(after).await;
                Some(done)
            };
            let done = tokio::select! {
                biased;
                done = work => done,
                () = answer.closed(), if !goes_on => None,
            };
            if let Some(done) = done {
                // Nobody may wait any more.
                let _ = answer.send(done);
            }
        });
        receiver
    }

    async fn answer(&self, call: Call, request: Request, plan: ApiPlan) -> Result<Bytes, ApiError> {
        let deadline = Instant::now() + call.deadline;
        let in_time = |answer: oneshot::Receiver<Result<Bytes, ApiError>>| async move {
            match tokio::time::timeout_at(deadline, answer).await {
                Ok(Ok(answer)) => answer,
                Ok(Err(_)) => Err(Self::unreachable()),
                Err(_) => Err(ApiError::Deadline(call.deadline)),
            }
        };
        let none = Duration::ZERO;
        match plan.fate {
            ApiFate::Serve(before, after) if request.changes() => {
                in_time(self.serve(request, (before, after), deadline, plan.goes_on)).await
            }
            ApiFate::Serve(before, after) => {
                sleep(before).await;
                let read = self.shared.read(&request);
                sleep(after).await;
                read
            }
            ApiFate::Refuse(after, error) => {
                sleep(after).await;
                Err(error)
            }
            ApiFate::ServeAndFail(before, error) => {
                if request.changes() {
                    let answer = self.serve(request, (before, none), deadline, plan.goes_on);
                    in_time(answer).await?;
                } else {
                    sleep(before).await;
                }
                Err(error)
            }
            ApiFate::Hang(effect) => {
                if let Some(after) = effect.filter(|_| request.changes()) {
                    drop(self.serve(request, (after, none), deadline, true));
                }
                tokio::time::sleep_until(deadline).await;
                Err(ApiError::Deadline(call.deadline))
            }
            ApiFate::NoAnswer(with_effect) => {
                if with_effect && request.changes() {
                    // The caller is as good as dead.
                    let _ = self.shared.change(request, false);
                }
                pending().await
            }
        }
    }
}

#[async_trait]
impl Api for Client {
    async fn call(&self, call: Call) -> Result<Bytes, ApiError> {
        let request = Request::of(&call)?;
        let text = request.to_string();
        let plan =
            self.shared
                .world
                .api_call(self.caller, &text, call.deadline, self.shared.is_up());
        let answer = self.answer(call, request, plan).await;
        let answer = match self.shared.is_up() {
            true => answer,
            false => Err(Self::unreachable()),
        };
        if let Err(e) = &answer {
            let end = text.floor_char_boundary(40);
            self.shared
                .world
                .note(format_args!("   {}: {e}", &text[..end]));
        }
        answer
    }

    async fn watch(&self, call: Call) -> Result<Watch, ApiError> {
        let number = |name| query(&call, name).and_then(|text| text.parse::<usize>().ok());
        let from = number("resourceVersion").unwrap_or_default();
        let lasts = number("timeoutSeconds").unwrap_or(60);
        let text = format!("watch from {from}");
        let world = &self.shared.world;
        let plan = world.api_call(self.caller, &text, call.deadline, self.shared.is_up());
        match plan.fate {
            ApiFate::Serve(before, _) => sleep(before).await,
            ApiFate::Refuse(after, error) | ApiFate::ServeAndFail(after, error) => {
                sleep(after).await;
                return Err(error);
            }
            ApiFate::Hang(_) => {
                sleep(call.deadline).await;
                return Err(ApiError::Deadline(call.deadline));
            }
            ApiFate::NoAnswer(_) => pending().await,
        }
        if !self.shared.is_up() {
            return Err(Self::unreachable());
        }
        let forgotten = lock(&self.shared.store).forgotten;
        if from < forgotten {
            let message = format!("too old resource version: {from} ({forgotten})");
            return Err(refusal(410, "Expired", message));
        }
        Ok(watch::lines(
            &self.shared,
            from,
            Duration::from_secs(lasts as u64),
        ))
    }

    fn reconnect(&self) {}
}
