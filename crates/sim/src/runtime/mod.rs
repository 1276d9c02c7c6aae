//! A container runtime in memory, behind the traits of CRI. Without weather it is the hollow
//! node's runtime, in real or virtual time; with it, every call can go wrong in every way.
//!
//! A call is served by the runtime, not by its caller: one that takes time goes on, or is given
//! up, on its own when the caller is gone.

mod events;
mod images;
mod machine;
mod service;
mod weather;

use std::future::{Future, pending};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use krablet_cri::{Code, Error, Result};
use krablet_linux::WallClock;
use krablet_linux::fake::MemoryFiles;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::sleep;

pub use machine::{Instance, KILLED, Life, Machine, Occurrence, Sandbox};
pub use weather::{CallInfo, Calm, Fate, Plan, Weather};

use events::Subscribers;

#[derive(Clone)]
pub struct SimOptions {
    pub clock: Arc<dyn WallClock>,
    pub weather: Arc<dyn Weather>,
    /// Where containers write their logs and last words; nowhere without.
    pub files: Option<MemoryFiles>,
    /// The caller's patience with one call.
    pub deadline: Duration,
}

impl SimOptions {
    /// A runtime that always works.
    pub fn calm(clock: Arc<dyn WallClock>) -> Self {
        Self {
            clock,
            weather: Arc::new(Calm),
            files: None,
            deadline: Duration::from_secs(120),
        }
    }
}

pub(crate) struct Shared {
    machine: Mutex<Machine>,
    subscribers: Mutex<Subscribers>,
    options: SimOptions,
    /// What goes on in the runtime by itself. Tasks hold weak references: all end with the runtime.
    tasks: Mutex<JoinSet<()>>,
}

/// Clones are the same runtime.
#[derive(Clone)]
pub struct SimRuntime {
    shared: Arc<Shared>,
    caller: u64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl SimRuntime {
    pub fn new(options: SimOptions) -> Self {
        let shared = Shared {
            machine: Mutex::default(),
            subscribers: Mutex::default(),
            options,
            tasks: Mutex::default(),
        };
        Self {
            shared: Arc::new(shared),
            caller: 0,
        }
    }

    /// The same runtime, as the agent with this number calls it.
    pub fn called_by(&self, caller: u64) -> Self {
        Self {
            shared: self.shared.clone(),
            caller,
        }
    }

    /// A look inside.
    pub fn with_machine<T>(&self, look: impl FnOnce(&Machine) -> T) -> T {
        look(&lock(&self.shared.machine))
    }

    /// Every event stream ends.
    pub fn cut_streams(&self) {
        lock(&self.shared.subscribers).cut();
    }

    /// Tells subscribers again what they know: every sandbox.
    pub fn repeat_events(&self) {
        let sandboxes: Vec<Sandbox> =
            self.with_machine(|machine| machine.sandboxes.values().cloned().collect());
        let wall = self.shared.wall();
        for sandbox in sandboxes {
            self.shared
                .announce(&Occurrence::SandboxMade(sandbox), wall);
        }
    }

    /// Everything that runs stops at once; the runtime remembers what there was.
    pub fn power_off(&self) {
        self.shared.change(|machine, wall| machine.power_off(wall));
    }

    /// The runtime comes back and does not know what has become of some of the containers that ran: asked one by one.
    pub(crate) fn lose(&self, which: impl FnMut(&Instance) -> bool) {
        self.shared.change(|machine, _| machine.lose(which));
    }

    fn info(&self, call: &'static str, object: &str) -> CallInfo {
        let machine = lock(&self.shared.machine);
        let container = machine.containers.get(object);
        let sandbox = machine.sandboxes.get(object);
        CallInfo {
            caller: self.caller,
            call,
            object: object.to_owned(),
            pod: container
                .map(|c| c.pod.uid.clone())
                .or_else(|| sandbox.map(|s| s.pod.uid.clone())),
            container: container.map(|c| c.name.clone()),
            changes: false,
        }
    }

    /// A call that changes something: `effect` is what the runtime does.
    async fn change<T, F>(
        &self,
        info: CallInfo,
        deadline: Duration,
        effect: impl FnOnce(Arc<Shared>) -> F + Send + 'static,
    ) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let info = CallInfo {
            changes: true,
            ..info
        };
        let weather = &self.shared.options.weather;
        let Plan { fate, goes_on } = weather.call(&info);
        let call = info.call;
        let answer = match fate {
            Fate::Serve(Duration::ZERO) => effect(self.shared.clone()).await,
            Fate::Serve(after) => self.served(after, goes_on, deadline, call, effect).await,
            Fate::FailBefore(after, code) => {
                sleep(after).await;
                Err(failed(call, code))
            }
            Fate::FailAfter(after, code) => {
                let done = self.served(after, goes_on, deadline, call, effect).await;
                done.and(Err(failed(call, code)))
            }
            Fate::Hang(None) => {
                sleep(deadline).await;
                Err(Error::deadline(call))
            }
            Fate::Hang(Some(after)) => {
                // Whoever waits for the answer gives up first; the runtime does not.
                let work = self.serve(after, goes_on, effect);
                sleep(deadline).await;
                drop(work);
                Err(Error::deadline(call))
            }
            Fate::NoAnswer(with_effect) => {
                if with_effect {
                    let _: Result<T> = effect(self.shared.clone()).await;
                }
                pending().await
            }
        };
        let answer = answer.and_then(|a| self.reached(call).map(|()| a));
        weather.answered(&info, answer.as_ref().map(drop));
        answer
    }

    /// An answer that cannot get through is none.
    fn reached(&self, call: &'static str) -> Result<()> {
        match self.shared.options.weather.is_up() {
            true => Ok(()),
            false => Err(failed(call, Code::Unavailable)),
        }
    }

    async fn served<T, F>(
        &self,
        after: Duration,
        goes_on: bool,
        deadline: Duration,
        call: &'static str,
        effect: impl FnOnce(Arc<Shared>) -> F + Send + 'static,
    ) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let answer = self.serve(after, goes_on, effect);
        match tokio::time::timeout(deadline, answer).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(failed(call, Code::Unavailable)),
            Err(_) => Err(Error::deadline(call)),
        }
    }

    /// Hands a call to the runtime. With `goes_on` it is done even if nobody waits for it.
    fn serve<T, F>(
        &self,
        after: Duration,
        goes_on: bool,
        effect: impl FnOnce(Arc<Shared>) -> F + Send + 'static,
    ) -> oneshot::Receiver<Result<T>>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let (mut answer, receiver) = oneshot::channel();
        let shared = Arc::downgrade(&self.shared);
        self.shared.spawn(async move {
            let work = async {
                sleep(after).await;
                let shared = shared.upgrade()?;
                Some(effect(shared).await)
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

    /// A call that only reads.
    async fn read<T>(
        &self,
        info: CallInfo,
        look: impl FnOnce(&Machine) -> Result<T> + Send,
    ) -> Result<T>
    where
        T: Send,
    {
        let weather = &self.shared.options.weather;
        let Plan { fate, goes_on } = weather.call(&info);
        let call = info.call;
        let look = || self.with_machine(look);
        let answer = match fate {
            Fate::Serve(Duration::ZERO) => look(),
            Fate::Serve(after) if goes_on => {
                let answer = look();
                sleep(after).await;
                answer
            }
            Fate::Serve(after) => {
                sleep(after).await;
                look()
            }
            Fate::FailBefore(after, code) | Fate::FailAfter(after, code) => {
                sleep(after).await;
                Err(failed(call, code))
            }
            Fate::Hang(_) => {
                sleep(self.shared.options.deadline).await;
                Err(Error::deadline(call))
            }
            Fate::NoAnswer(_) => pending().await,
        };
        let answer = answer.and_then(|a| self.reached(call).map(|()| a));
        weather.answered(&info, answer.as_ref().map(drop));
        answer
    }
}

fn failed(call: &'static str, code: Code) -> Error {
    let text = match code {
        Code::Unavailable => "connection refused",
        _ => "the weather is bad",
    };
    Error::new(call, code, text)
}

impl Shared {
    fn wall(&self) -> i64 {
        let now = self.options.clock.now().as_nanosecond();
        i64::try_from(now).unwrap_or(i64::MAX)
    }

    /// Changes the state and tells what happened, to the weather and to subscribers.
    fn change<T>(self: &Arc<Self>, work: impl FnOnce(&mut Machine, i64) -> T) -> T {
        let wall = self.wall();
        let (result, occurred) = {
            let mut machine = lock(&self.machine);
            let result = work(&mut machine, wall);
            let occurred = machine.take_occurred();
            for what in &occurred {
                self.options.weather.happened(&machine, what);
            }
            (result, occurred)
        };
        for what in occurred {
            self.leave_traces(&what);
            self.announce(&what, wall);
        }
        result
    }

    fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = lock(&self.tasks);
        while tasks.try_join_next().is_some() {}
        tasks.spawn(work);
    }

    /// Ends a container after a while.
    fn exit_later(self: &Arc<Self>, id: &str, after: Duration, code: i32, by_itself: bool) {
        let shared: Weak<Self> = Arc::downgrade(self);
        let id = id.to_owned();
        self.spawn(async move {
            sleep(after).await;
            if let Some(shared) = shared.upgrade() {
                shared.change(|machine, wall| machine.exit(&id, code, by_itself, wall));
            }
        });
    }

    /// Logs and last words.
    fn leave_traces(&self, what: &Occurrence) {
        let Some(files) = &self.options.files else {
            return;
        };
        // A directory that is gone takes nothing: so it is on a real node.
        match what {
            Occurrence::Started(c) => {
                let _ = files.append(Path::new(&c.log_path), b"");
            }
            Occurrence::Exited(c, _) if c.exit_code != 0 => {
                let mut mounts = c.config.mounts.iter();
                if let Some(m) = mounts.find(|m| m.container_path == "/dev/termination-log") {
                    let text = format!("ended with {}", c.exit_code);
                    let _ = files.append(Path::new(&m.host_path), text.as_bytes());
                }
            }
            _ => {}
        }
    }
}
