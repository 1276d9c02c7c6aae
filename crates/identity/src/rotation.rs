//! The life of the node's certificate: published to whoever shows it, renewed in time, read again
//! when somebody else replaced it, and given up when only a new start can bring another.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use jiff::Timestamp;
use krablet_kube::Kube;
use krablet_linux::WallClock;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use rustls::sign::CertifiedKey;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::bootstrap::Renewal;
use crate::changes::Changes;
use crate::csr::NodeKey;
use crate::figures::Figures;
use crate::join::Join;
use crate::request::{self, Naming};
use crate::schedule::{self, Pauses};
use crate::store::Stored;
use crate::{CertStore, IdentityError, Pair};

pub use crate::figures::IdentityHandle;

/// Without a valid certificate for so long, while the API server answers, a new start is the only
/// help left.
const LOST_AFTER: Duration = Duration::from_secs(5 * 60);
/// The wall clock and the store are looked at this often at least: a clock that is set, and a
/// machine that slept, tell nobody.
const LOOK: Duration = Duration::from_secs(60);
/// The store is not read more often than this, however often it is said to have changed.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// What the client shows to the API server; it follows the changes.
pub type PublishedKey = watch::Sender<Option<Arc<CertifiedKey>>>;

pub struct RotationDeps {
    pub node_name: String,
    pub renewal: Renewal,
    /// With the published certificate as its credentials.
    pub kube: Kube,
    pub store: CertStore,
    pub publish: PublishedKey,
    /// Hints that the store changed; without them it is looked at every minute.
    pub changes: Option<Changes>,
    pub clock: Arc<dyn WallClock>,
    pub seed: u64,
}

/// Where the first certificate comes from.
pub enum First {
    /// From here. `renew_now`: it is to be replaced at once.
    Pair { pair: Option<Pair>, renew_now: bool },
    /// It has yet to be got.
    Join(Box<Join>),
}

/// The moment to renew, on both clocks: the wall clock may be set, the other one stands still
/// while the machine sleeps.
#[derive(Clone, Copy, Debug)]
struct Due {
    wall: Timestamp,
    at: Instant,
}

impl Due {
    fn after(wait: Duration, now: Timestamp) -> Self {
        let wall = jiff::SignedDuration::try_from(wait)
            .ok()
            .and_then(|wait| now.checked_add(wait).ok());
        let later = |wait| Instant::now().checked_add(wait);
        Self {
            wall: wall.unwrap_or(Timestamp::MAX),
            at: later(wait).unwrap_or_else(|| Instant::now() + LOOK),
        }
    }

    fn is_over(&self, now: Timestamp) -> bool {
        now >= self.wall || Instant::now() >= self.at
    }

    fn left(&self, now: Timestamp) -> Duration {
        let on_the_wall = schedule::span(now, self.wall);
        on_the_wall.min(self.at.saturating_duration_since(Instant::now()))
    }
}

pub struct Rotation {
    deps: RotationDeps,
    figures: Arc<Figures>,
    dice: StdRng,
    joining: Option<Box<Join>>,
    current: Option<Pair>,
    /// Issued, published, but not on disk yet.
    unsaved: Option<Pair>,
    due: Due,
    /// After a failure the next try is then, whatever `due` says.
    retry: Option<Instant>,
    pauses: Pauses,
    looked: Instant,
    look_hinted: bool,
    lost_since: Option<Instant>,
    /// What the API server said against the last try.
    refusal: Option<String>,
    told: String,
}

/// Publishes the first certificate, if there is one, before anything runs.
pub fn build(deps: RotationDeps, first: First) -> (Rotation, IdentityHandle) {
    let figures = Figures::new();
    let handle = IdentityHandle {
        figures: figures.clone(),
        clock: deps.clock.clone(),
    };
    let now = deps.clock.now();
    let (pair, renew_now, joining) = match first {
        First::Pair { pair, renew_now } => (pair, renew_now, None),
        First::Join(join) => (None, false, Some(join)),
    };
    let mut rotation = Rotation {
        dice: StdRng::seed_from_u64(deps.seed),
        figures,
        joining,
        current: None,
        unsaved: None,
        due: Due::after(Duration::ZERO, now),
        retry: None,
        pauses: Pauses::default(),
        looked: Instant::now(),
        look_hinted: false,
        lost_since: None,
        refusal: None,
        told: String::new(),
        deps,
    };
    if let Some(pair) = pair {
        rotation.publish(pair, Origin::Found);
        if renew_now {
            rotation.due = Due::after(Duration::ZERO, now);
        }
    }
    (rotation, handle)
}

/// How we came by a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    Found,
    Issued,
}

impl Rotation {
    /// Runs until there is no certificate any more and no hope for one: what is given back says
    /// why. Dropping it is the way to end it before.
    pub async fn run(mut self) -> IdentityError {
        if let Some(join) = self.joining.take() {
            match join.run().await {
                Ok(pair) => self.publish(pair, Origin::Issued),
                Err(error) => return error,
            }
        }
        loop {
            if self.is_due() {
                self.attempt().await;
            }
            if let Some(lost) = self.lost() {
                return lost;
            }
            self.wait().await;
        }
    }

    fn rotates(&self) -> bool {
        self.deps.renewal == Renewal::Rotate
    }

    fn is_due(&self) -> bool {
        self.rotates()
            && match self.retry {
                Some(retry) => Instant::now() >= retry,
                None => self.due.is_over(self.deps.clock.now()),
            }
    }

    /// Until something may have to be done; looks at the store if it may have changed.
    async fn wait(&mut self) {
        let now = Instant::now();
        let next_try = match self.retry {
            _ if !self.rotates() => now + LOOK,
            Some(retry) => retry,
            None => now + self.due.left(self.deps.clock.now()).min(LOOK),
        };
        let next_look = match self.look_hinted {
            true => self.looked + LOOK_AGAIN,
            false => self.looked + LOOK,
        };
        let wake = next_try.min(next_look).min(now + LOOK);
        tokio::select! {
            biased;
            hint = hint(&mut self.deps.changes), if !self.look_hinted => match hint {
                Some(()) => self.look_hinted = true,
                None => {
                    tracing::warn!("the certificate directory is no longer watched; looking every minute");
                    self.deps.changes = None;
                }
            },
            () = sleep_until(wake) => {}
        }
        let hinted = self.look_hinted && self.looked.elapsed() >= LOOK_AGAIN;
        if hinted || self.looked.elapsed() >= LOOK {
            self.look_hinted = false;
            self.looked = Instant::now();
            self.reload().await;
        }
    }

    fn publish(&mut self, pair: Pair, origin: Origin) {
        let now = self.deps.clock.now();
        let (validity, random) = (pair.validity(), self.dice.random());
        let wait = match origin {
            // Somebody else's, such as an administrator's: to be replaced at once.
            Origin::Found if !pair.is_for_node(&self.deps.node_name) => Duration::ZERO,
            Origin::Found => schedule::wait_when_found(validity, now, random),
            Origin::Issued => schedule::wait_when_issued(validity, now, random),
        };
        self.due = Due::after(wait, now);
        self.figures.ends(validity.not_after.as_second());
        let key = pair.certified().clone();
        self.deps.publish.send_replace(Some(key));
        self.current = Some(pair);
    }

    async fn attempt(&mut self) {
        match self.renew().await {
            Ok(()) => {
                self.pauses.reset();
                self.retry = None;
                self.refusal = None;
                self.told.clear();
            }
            Err(error) => {
                self.figures.failed();
                let pause = self.pauses.next(self.dice.random());
                let pause = pause.max(error.retry_after().unwrap_or_default().min(LOOK));
                self.retry = Some(Instant::now() + pause);
                let text = error.to_string();
                self.refusal = error.is_answer().then(|| text.clone());
                if self.told != text {
                    tracing::warn!("cannot renew the client certificate, trying again: {text}");
                    self.told = text;
                }
            }
        }
    }

    async fn renew(&mut self) -> Result<(), IdentityError> {
        let now = self.deps.clock.now();
        let pair = match self.unsaved.take() {
            Some(pair) if !self.due.is_over(now) => pair,
            _ => {
                let key = NodeKey::generate()?;
                let (kube, node) = (&self.deps.kube, &self.deps.node_name);
                let dice = &mut self.dice;
                let pair =
                    request::certificate(kube, node, &key, Naming::Generated, now, dice).await?;
                // Used at once, stored or not: a full disk must not cost the node its place.
                self.publish(pair.clone(), Origin::Issued);
                tracing::info!(expires = %pair.validity().not_after, "client certificate renewed");
                pair
            }
        };
        let stored = self.deps.store.update(&pair, self.deps.clock.now()).await;
        if stored.is_err() {
            self.unsaved = Some(pair);
        }
        stored
    }

    /// Takes what the store has, if somebody else put it there.
    async fn reload(&mut self) {
        if self.deps.renewal == Renewal::Keep || self.unsaved.is_some() {
            return;
        }
        match self.deps.store.load().await {
            Stored::Pair(pair) if self.is_news(&pair) => {
                tracing::info!(expires = %pair.validity().not_after, "client certificate read anew");
                self.retry = None;
                self.publish(pair, Origin::Found);
            }
            Stored::Pair(_) | Stored::Absent => {}
            Stored::Broken(why) => {
                if self.told != why {
                    tracing::warn!("{why}; the one read before is still used");
                    self.told = why;
                }
            }
        }
    }

    fn is_news(&self, pair: &Pair) -> bool {
        let Some(current) = &self.current else {
            return true;
        };
        if current.same_certificate(pair) {
            return false;
        }
        let now = self.deps.clock.now();
        let (known, found) = (current.validity(), pair.validity());
        // Where we renew ourselves, an older certificate is no reason to go back.
        !self.rotates()
            || !found.is_expired(now)
                && (known.is_expired(now) || found.not_before >= known.not_before)
    }

    fn lost(&mut self) -> Option<IdentityError> {
        let now = self.deps.clock.now();
        let validity = self.current.as_ref().map(Pair::validity);
        if validity.is_some_and(|v| !v.is_expired(now)) {
            self.lost_since = None;
            return None;
        }
        let since = *self.lost_since.get_or_insert_with(|| {
            if let Some(validity) = validity {
                tracing::warn!("the client certificate expired at {}", validity.not_after);
            }
            Instant::now()
        });
        match (&self.refusal, since.elapsed() >= LOST_AFTER) {
            (Some(refusal), true) if self.rotates() => Some(IdentityError::Lost {
                expired: validity.map(|v| v.not_after),
                refusal: refusal.clone(),
            }),
            _ => None,
        }
    }
}

async fn hint(changes: &mut Option<Changes>) -> Option<()> {
    match changes {
        Some(changes) => changes.next().await,
        None => std::future::pending().await,
    }
}
