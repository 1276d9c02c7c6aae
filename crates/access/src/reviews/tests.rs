use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use krablet_kube::{Api, Watch};
use serde::Deserialize;
use serde_json::json;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::*;

/// Says yes to everything, once it is let; counts who asks.
struct Slow {
    open: watch::Sender<bool>,
    asked: AtomicUsize,
    now: AtomicUsize,
    most: AtomicUsize,
}

impl Slow {
    fn new(open: bool) -> Arc<Self> {
        Arc::new(Self {
            open: watch::Sender::new(open),
            asked: AtomicUsize::default(),
            now: AtomicUsize::default(),
            most: AtomicUsize::default(),
        })
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }
}

/// Counts down when the call ends, whichever way.
struct Counted<'a>(&'a AtomicUsize);

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[async_trait::async_trait]
impl Api for Slow {
    async fn call(&self, _: Call) -> Result<Bytes, ApiError> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let now = self.now.fetch_add(1, Ordering::Relaxed) + 1;
        let _counted = Counted(&self.now);
        self.most.fetch_max(now, Ordering::Relaxed);
        let mut open = self.open.subscribe();
        open.wait_for(|open| *open).await.unwrap();
        // Long enough for others to come, short enough for all to have their turn.
        tokio::time::sleep(Duration::from_millis(100)).await;
        Ok(json!({"status": {"allowed": true}}).to_string().into())
    }

    async fn watch(&self, _: Call) -> Result<Watch, ApiError> {
        Err(ApiError::Connection("nothing to watch".into()))
    }

    fn reconnect(&self) {}
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Status {
    allowed: bool,
}

type Both = (Arc<Slow>, Arc<Reviews<usize, bool>>);

fn reviews(open: bool) -> Both {
    let server = Slow::new(open);
    let reviews = Reviews::new(Kube::new(server.clone()));
    (server, Arc::new(reviews))
}

async fn put(reviews: Arc<Reviews<usize, bool>>, question: usize) -> Outcome<bool> {
    put_from(None, reviews, question).await
}

async fn put_from(
    origin: Option<Origin>,
    reviews: Arc<Reviews<usize, bool>>,
    question: usize,
) -> Outcome<bool> {
    let review = || Review {
        path: "/reviews",
        body: json!({}),
        read: |status: Status| Ok(status.allowed),
    };
    let lasts = |_: &bool| Duration::from_secs(60);
    reviews.verdict(&question, origin, review, lasts).await
}

fn crowd(
    reviews: &Arc<Reviews<usize, bool>>,
    questions: impl Iterator<Item = usize>,
) -> JoinSet<Outcome<bool>> {
    questions.map(|q| put(reviews.clone(), q)).collect()
}

/// Nothing is left behind that could grow.
fn assert_empty(reviews: &Reviews<usize, bool>) {
    assert!(reviews.lock().is_empty());
    assert_eq!(reviews.waiting.available_permits(), WAITING);
    assert_eq!(reviews.turns.available_permits(), AT_ONCE);
    assert!(reviews.waiting_each.is_empty() && reviews.questions_each.is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_same_question_is_put_once() {
    let (server, reviews) = reviews(true);
    let asked = crowd(&reviews, std::iter::repeat_n(7, 200));
    assert_eq!(asked.join_all().await, vec![Ok(true); 200]);
    assert_eq!(put(reviews.clone(), 7).await, Ok(true));
    assert_eq!(server.asked(), 1);
    assert_empty(&reviews);
}

#[tokio::test(start_paused = true)]
async fn different_questions_wait_for_their_turn() {
    let (server, reviews) = reviews(true);
    let asked = crowd(&reviews, 0..200);
    assert_eq!(asked.join_all().await, vec![Ok(true); 200]);
    assert_eq!(server.asked(), 200);
    assert_eq!(server.most.load(Ordering::Relaxed), AT_ONCE);
    assert_empty(&reviews);
}

#[tokio::test(start_paused = true)]
async fn who_asked_first_may_go() {
    let (server, reviews) = reviews(false);
    let first = tokio::spawn(put(reviews.clone(), 7));
    while server.asked() == 0 {
        tokio::task::yield_now().await;
    }
    let others = crowd(&reviews, std::iter::repeat_n(7, 9));
    while reviews.lock().get(&7).is_some_and(|put| put.askers < 10) {
        tokio::task::yield_now().await;
    }
    first.abort();
    assert!(first.await.unwrap_err().is_cancelled());
    server.open.send_replace(true);
    assert_eq!(others.join_all().await, vec![Ok(true); 9]);
    assert_eq!(server.asked(), 1);
    assert_empty(&reviews);
}

#[tokio::test(start_paused = true)]
async fn a_question_nobody_waits_for_is_dropped() {
    let (server, reviews) = reviews(false);
    let mut asked = crowd(&reviews, 0..100);
    while server.asked() < AT_ONCE {
        tokio::task::yield_now().await;
    }
    asked.shutdown().await;
    assert_empty(&reviews);
    server.open.send_replace(true);
    assert_eq!(put(reviews.clone(), 0).await, Ok(true), "it is put anew");
    assert_empty(&reviews);
}

#[tokio::test(start_paused = true)]
async fn without_an_answer_nobody_waits_longer_than_may_be() {
    let (_server, reviews) = reviews(false);
    let begun = Instant::now();
    let asked = crowd(&reviews, (0..200).chain(0..200));
    let late = Err(ReviewError::Api(ApiError::Deadline(DEADLINE)));
    assert_eq!(asked.join_all().await, vec![late; 400]);
    assert_eq!(begun.elapsed(), DEADLINE);
    assert_empty(&reviews);
}

#[tokio::test(start_paused = true)]
async fn only_so_many_may_wait() {
    let (_server, reviews) = reviews(false);
    let asked = crowd(&reviews, 0..WAITING + 100);
    let answers = asked.join_all().await;
    let busy = answers.iter().filter(|a| **a == Err(ReviewError::Busy));
    assert_eq!(busy.count(), 100);
    assert!(answers.iter().all(Result::is_err));
    assert_empty(&reviews);
}

#[tokio::test(start_paused = true)]
async fn one_address_leaves_room_for_others() {
    let origin = |last: u8| Some(Origin::from(IpAddr::from([10, 0, 0, last])));
    for (case, questions, sent_away) in [
        ("few", QUESTIONS_EACH, 0),
        ("ever new ones", 1000, 1000 - QUESTIONS_EACH),
    ] {
        let (server, reviews) = reviews(false);
        let theirs = |q| put_from(origin(1), reviews.clone(), q);
        let mut crowd: JoinSet<_> = (0..questions).map(theirs).collect();
        for _ in 0..sent_away {
            let answer = crowd.join_next().await.unwrap();
            assert_eq!(answer.unwrap(), Err(ReviewError::Busy), "{case}");
        }
        // Who has put them may have the answers as well, as often as he may wait; others' questions come beside them.
        let joins = std::iter::repeat_n(0, 1000).map(|q| put_from(origin(1), reviews.clone(), q));
        let mut joins: JoinSet<_> = joins.collect();
        for _ in 0..1000 - (WAITING_EACH - QUESTIONS_EACH) {
            let answer = joins.join_next().await.unwrap();
            assert_eq!(answer.unwrap(), Err(ReviewError::Busy), "{case}");
        }
        let other = tokio::spawn(put_from(origin(2), reviews.clone(), 5000));
        let unknown = tokio::spawn(put(reviews.clone(), 5001));
        while server.asked() < QUESTIONS_EACH + 2 {
            tokio::task::yield_now().await;
        }
        server.open.send_replace(true);
        assert_eq!(other.await.unwrap(), Ok(true), "{case}");
        assert_eq!(unknown.await.unwrap(), Ok(true), "{case}");
        assert_eq!(crowd.join_all().await, vec![Ok(true); QUESTIONS_EACH]);
        let joined = WAITING_EACH - QUESTIONS_EACH;
        assert_eq!(joins.join_all().await, vec![Ok(true); joined]);
        let again = put_from(origin(1), reviews.clone(), 6000).await;
        assert_eq!(again, Ok(true), "{case}");
        assert_empty(&reviews);
    }
}
