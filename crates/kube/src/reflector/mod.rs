//! One kind of object, kept as the API server has it: list, then watch, for ever.
//!
//! [`Reflector::run`] is the task. Whatever changed, it hands the whole set to its [`Sink`]; objects that did not
//! change are the same allocations as before. What to do next is decided in [`course`]; what is known stands in
//! [`store`].

mod course;
mod on_demand;
mod store;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::{FutureExt as _, StreamExt as _};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::{Api, ApiError, Call, Priority, Verb};
pub use on_demand::{OnDemand, OnDemandTask, on_demand};

use course::{Age, Course, Happened, PAGE, Step};
use store::{Listing, Store};

/// For one page.
const LIST_DEADLINE: Duration = Duration::from_secs(60);
/// How long a watch is asked to last, in seconds; spread, so that not all end at once.
const WATCH_SECONDS: std::ops::RangeInclusive<u64> = 300..=600;
/// How much longer a watch may last before it counts as dead.
const MARGIN: Duration = Duration::from_secs(30);
/// A bookmark comes about every minute. Without two of them something is wrong.
const SILENCE: Duration = Duration::from_secs(150);
/// How many lines that are there already are taken together.
const MAX_BATCH: usize = 1024;

/// Where the objects go.
#[async_trait]
pub trait Sink<T>: Send {
    /// All objects there are, by namespace and name. First called when the first list is complete.
    async fn set(&mut self, objects: Vec<Arc<T>>);
}

/// `None` until the first list is complete.
#[async_trait]
impl<T: Send + Sync> Sink<T> for watch::Sender<Option<Vec<Arc<T>>>> {
    async fn set(&mut self, objects: Vec<Arc<T>>) {
        self.send_replace(Some(objects));
    }
}

/// How it stands between us and the server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reach {
    /// The first list was complete.
    pub listed: bool,
    /// What went wrong last, until something goes well again.
    pub error: Option<ApiError>,
}

impl Reach {
    pub fn is_reached(&self) -> bool {
        self.listed && self.error.is_none()
    }
}

/// Makes an object smaller before it is kept, or puts marks on it. (Its managed fields are not even read.) It is shown the one of the same UID that was kept
/// before.
pub type Slim<T> = Box<dyn Fn(&mut T, Option<&T>) + Send + Sync>;

/// What to keep.
pub struct ReflectorConfig<T> {
    /// Where the list is, as [`crate::paths`] makes them.
    pub path: String,
    /// Such as a `fieldSelector`.
    pub query: Vec<(&'static str, String)>,
    pub slim: Slim<T>,
    pub seed: u64,
}

pub struct Reflector<T, S> {
    api: Arc<dyn Api>,
    path: String,
    query: Vec<(&'static str, String)>,
    store: Store<T>,
    course: Course,
    sink: S,
    reach: watch::Sender<Reach>,
    dice: StdRng,
}

impl<T, S> Reflector<T, S>
where
    T: DeserializeOwned + Send + Sync + 'static,
    S: Sink<T>,
{
    pub fn new(
        api: Arc<dyn Api>,
        config: ReflectorConfig<T>,
        sink: S,
    ) -> (Self, watch::Receiver<Reach>) {
        let (reach, receiver) = watch::channel(Reach::default());
        let reflector = Self {
            api,
            path: config.path,
            query: config.query,
            store: Store::new(config.slim),
            course: Course::new(),
            sink,
            reach,
            dice: StdRng::seed_from_u64(config.seed),
        };
        (reflector, receiver)
    }

    /// For one who acted on these objects before, in an earlier life: not even the first list may be older than
    /// what he was shown then.
    pub fn from_now(mut self) -> Self {
        self.course = Course::from_now();
        self
    }

    /// Never ends; drop it to end it.
    pub async fn run(mut self) {
        loop {
            let happened = match self.course.next().clone() {
                Step::List { age, paged } => self.list(&age, paged).await,
                Step::Watch(version) => self.watch(version).await,
            };
            let happened = happened.unwrap_or_else(Happened::Failed);
            match &happened {
                Happened::Failed(error) => self.missed(error),
                Happened::Silent => {
                    tracing::warn!(path = self.path, "watch is silent, listing anew");
                }
                _ => {}
            }
            let delay = self.course.after(happened, self.dice.random());
            tokio::time::sleep(delay).await;
        }
    }

    async fn list(&mut self, age: &Age, paged: bool) -> Result<Happened, ApiError> {
        let mut listing = Listing::default();
        let mut rest = None;
        let version = loop {
            let call = self.list_call(age, paged, rest);
            let page = self.api.call(call).await?;
            let paged = self.store.page(&mut listing, &page)?;
            rest = paged.rest;
            if rest.is_none() {
                break paged.version;
            }
        };
        self.store.replace(listing);
        self.sink.set(self.store.all()).await;
        self.reached(true);
        Ok(Happened::Listed { version })
    }

    fn list_call(&self, age: &Age, paged: bool, rest: Option<String>) -> Call {
        let mut call = self.get().deadline(LIST_DEADLINE);
        if paged {
            call = call.query("limit", PAGE.to_string());
        }
        match (rest, age) {
            // The token says of which version the list is.
            (Some(rest), _) => call.query("continue", rest),
            (None, Age::Any) => call.query("resourceVersion", "0"),
            (None, Age::NotOlderThan(version)) => call
                .query("resourceVersion", version.clone())
                .query("resourceVersionMatch", "NotOlderThan"),
            (None, Age::Newest) => call,
        }
    }

    fn get(&self) -> Call {
        let mut call = Call::new(Verb::Get, self.path.clone()).priority(Priority::Normal);
        call.query = self.query.clone();
        call
    }

    async fn watch(&mut self, version: String) -> Result<Happened, ApiError> {
        let seconds = self.dice.random_range(WATCH_SECONDS);
        let call = self
            .get()
            .query("watch", "true")
            .query("allowWatchBookmarks", "true")
            .query("timeoutSeconds", seconds.to_string())
            .query("resourceVersion", version);
        let begun = Instant::now();
        let mut lines = self.api.watch(call).await?.fuse();
        if !self.course.trusts(begun.elapsed()) {
            return Ok(Happened::Late);
        }
        self.reached(false);
        let end = begun + Duration::from_secs(seconds) + MARGIN;
        let mut heard = false;
        loop {
            let patience = end.min(Instant::now() + SILENCE);
            let line = match tokio::time::timeout_at(patience, lines.next()).await {
                Ok(Some(line)) => line?,
                Ok(None) => {
                    let lasted = begun.elapsed();
                    return Ok(Happened::Ended { heard, lasted });
                }
                // It goes on beyond its end: as good as ended.
                Err(_) if heard && patience == end => {
                    let lasted = begun.elapsed();
                    return Ok(Happened::Ended { heard, lasted });
                }
                Err(_) => return Ok(Happened::Silent),
            };
            heard = true;
            let mut changed = self.line(&line)?;
            // What is there already goes to the sink in one go, and so does whatever came before a failure.
            let mut failed = None;
            for _ in 0..MAX_BATCH {
                let line = match lines.next().now_or_never() {
                    Some(Some(Ok(line))) => self.line(&line),
                    Some(Some(Err(error))) => Err(error),
                    Some(None) | None => break,
                };
                match line {
                    Ok(more) => changed |= more,
                    Err(error) => {
                        failed = Some(error);
                        break;
                    }
                }
            }
            if changed {
                self.sink.set(self.store.all()).await;
            }
            if let Some(error) = failed {
                return Err(error);
            }
        }
    }

    /// Whether it changed anything.
    fn line(&mut self, line: &[u8]) -> Result<bool, ApiError> {
        let told = self.store.line(line)?;
        let version = told.version;
        self.course.after(Happened::Heard { version }, 0.0);
        Ok(told.changed)
    }

    fn reached(&self, listed: bool) {
        self.reach.send_if_modified(|reach| {
            let before = reach.clone();
            reach.listed |= listed;
            if let Some(error) = reach.error.take()
                && !error.is_expired()
            {
                tracing::info!(path = self.path, "server is reached again, after: {error}");
            }
            *reach != before
        });
    }

    /// The same complaint is logged once.
    fn missed(&self, error: &ApiError) {
        self.reach.send_if_modified(|reach| {
            let is_new = reach.error.as_ref() != Some(error);
            if is_new && !error.is_expired() {
                tracing::warn!(path = self.path, "list or watch failed: {error}");
            }
            reach.error = Some(error.clone());
            is_new
        });
    }
}

#[cfg(test)]
mod tests;
