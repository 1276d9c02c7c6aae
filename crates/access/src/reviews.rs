//! Questions to the API server whose answer is in the status of what was sent. A question is put once, however many wait
//! for its answer; the answer is remembered for a while. Who asks is often a stranger, and can ask about ever new things: the
//! calls take no turn of the agent's own work, and nobody can have so many under way that there is no room for others.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::{BoxFuture, Shared};
use krablet_kube::{ApiError, Call, Kube, Pace, Verb};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::ReviewError;
use crate::shares::{Origin, Share, Shares};
use crate::verdicts::Verdicts;

/// Questions under way at a time; the next ones wait for their turn.
const AT_ONCE: usize = 32;
/// Who may wait for an answer at a time, whether the question is his own or somebody else's; who comes then is told to
/// come again.
const WAITING: usize = 4096;
/// Of these from one address.
const WAITING_EACH: usize = 64;
/// Questions without an answer yet that one address has put. At the usual pace (`kubeAPIQPS`) it takes sixty addresses that
/// do nothing else until somebody waits longer than may be.
const QUESTIONS_EACH: usize = 8;
/// From the moment a question is put, the wait for its turn included.
const DEADLINE: Duration = Duration::from_secs(10);

/// A question, and what its answer means.
pub(crate) struct Review<S, V> {
    pub(crate) path: &'static str,
    pub(crate) body: Value,
    pub(crate) read: fn(S) -> Result<V, ReviewError>,
}

type Outcome<V> = Result<V, ReviewError>;
type Answer<V> = Shared<BoxFuture<'static, Outcome<V>>>;

/// A question that was put. Whoever waits for the answer drives it on; with the last of them it goes.
struct Put<V> {
    answer: Answer<V>,
    askers: usize,
    /// Of the one who put it.
    _share: Share,
}

pub(crate) struct Reviews<K: Ord, V> {
    kube: Kube,
    turns: Arc<Semaphore>,
    waiting: Semaphore,
    waiting_each: Shares,
    questions_each: Shares,
    known: Verdicts<K, V>,
    put: Mutex<BTreeMap<K, Put<V>>>,
}

impl<K, V> Reviews<K, V>
where
    K: Ord + Clone,
    V: Clone + Send + Sync + 'static,
{
    pub(crate) fn new(kube: Kube) -> Self {
        Self {
            kube,
            turns: Arc::new(Semaphore::new(AT_ONCE)),
            waiting: Semaphore::new(WAITING),
            waiting_each: Shares::new(WAITING_EACH),
            questions_each: Shares::new(QUESTIONS_EACH),
            known: Verdicts::new(),
            put: Mutex::default(),
        }
    }

    /// What is known without asking.
    pub(crate) fn known(&self, question: &K) -> Option<V> {
        self.known.get(question)
    }

    /// The verdict that is known, or that is waited for already, or else that of a new review; it holds for as long as
    /// `lasts` says. Who asks is counted by `origin` if he is one who may be a stranger.
    pub(crate) async fn verdict<S: DeserializeOwned + Default + 'static>(
        &self,
        question: &K,
        origin: Option<Origin>,
        review: impl FnOnce() -> Review<S, V>,
        lasts: impl FnOnce(&V) -> Duration,
    ) -> Outcome<V> {
        if let Some(known) = self.known(question) {
            return Ok(known);
        }
        let share = self.waiting_each.take(origin);
        let _share = share.ok_or(ReviewError::Busy)?;
        let _waits = self.waiting.try_acquire().map_err(|_| ReviewError::Busy)?;
        let asker = match self.join(question, origin, review) {
            Ok(asker) => asker,
            Err(outcome) => return outcome,
        };
        let outcome = asker.answer.clone().await;
        asker.settle(&outcome, lasts);
        outcome
    }

    /// Waits for the answer with whoever does already; `Err` is a verdict that came meanwhile, or why there will be none.
    fn join<'a, S: DeserializeOwned + Default + 'static>(
        &'a self,
        question: &'a K,
        origin: Option<Origin>,
        review: impl FnOnce() -> Review<S, V>,
    ) -> Result<Asker<'a, K, V>, Outcome<V>> {
        let mut put = self.lock();
        // Looked for again now that nobody can settle it in between: an answer is remembered before it is let go.
        if let Some(known) = self.known(question) {
            return Err(Ok(known));
        }
        let joined = match put.entry(question.clone()) {
            Entry::Occupied(found) => found.into_mut(),
            Entry::Vacant(place) => {
                let share = self.questions_each.take(origin);
                let share = share.ok_or(Err(ReviewError::Busy))?;
                let asked = ask(self.kube.clone(), self.turns.clone(), review());
                place.insert(Put {
                    answer: asked.boxed().shared(),
                    askers: 0,
                    _share: share,
                })
            }
        };
        joined.askers += 1;
        Ok(Asker {
            reviews: self,
            question,
            answer: joined.answer.clone(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<K, Put<V>>> {
        self.put.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One who waits for an answer, until dropped.
struct Asker<'a, K: Ord, V: Clone> {
    reviews: &'a Reviews<K, V>,
    question: &'a K,
    answer: Answer<V>,
}

impl<K, V> Asker<'_, K, V>
where
    K: Ord + Clone,
    V: Clone + Send + Sync + 'static,
{
    /// The first to hear the answer sees to it that it is remembered, and that whoever comes now does not join it.
    fn settle(&self, outcome: &Outcome<V>, lasts: impl FnOnce(&V) -> Duration) {
        let mut put = self.reviews.lock();
        let is_mine = put
            .get(self.question)
            .is_some_and(|put| put.answer.ptr_eq(&self.answer));
        if !is_mine {
            return;
        }
        if let Ok(verdict) = outcome {
            let known = &self.reviews.known;
            known.put(self.question.clone(), verdict.clone(), lasts(verdict));
        }
        put.remove(self.question);
    }
}

impl<K: Ord, V: Clone> Drop for Asker<'_, K, V> {
    fn drop(&mut self) {
        let put = self.reviews.put.lock();
        let mut put = put.unwrap_or_else(PoisonError::into_inner);
        let Some(found) = put.get_mut(self.question) else {
            return;
        };
        // One of that name may have been put anew.
        if found.answer.ptr_eq(&self.answer) {
            found.askers = found.askers.saturating_sub(1);
            if found.askers == 0 {
                put.remove(self.question);
            }
        }
    }
}

async fn ask<S: DeserializeOwned + Default, V>(
    kube: Kube,
    turns: Arc<Semaphore>,
    review: Review<S, V>,
) -> Outcome<V> {
    let answered = async {
        let _turn = turns.acquire().await.map_err(|_| ReviewError::Busy)?;
        let call = Call::new(Verb::Create, review.path.to_owned())
            .body(review.body.to_string())
            .pace(Pace::Reviews)
            .deadline(DEADLINE);
        let answer: Map<String, Value> = kube.object(call).await?;
        status(answer)
    };
    let late = |_| ReviewError::Api(ApiError::Deadline(DEADLINE));
    let status = timeout(DEADLINE, answered).await.map_err(late)??;
    (review.read)(status)
}

fn status<S: DeserializeOwned + Default>(mut answer: Map<String, Value>) -> Result<S, ReviewError> {
    match answer.remove("status") {
        // An object and nothing else: a list would be read field by field as well.
        Some(status @ Value::Object(_)) => serde_json::from_value(status)
            .map_err(|e| ReviewError::Refused(format!("the answer cannot be read: {e}"))),
        _ => Ok(S::default()),
    }
}

#[cfg(test)]
mod tests;
