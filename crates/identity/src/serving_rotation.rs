//! The certificate a node shows to those who connect to it, issued by the cluster: asked for once the node has
//! addresses, renewed in time, and asked for anew when the addresses are others.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Node;
use krablet_kube::{Kube, paths};
use krablet_linux::WallClock;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use rustls::sign::CertifiedKey;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use crate::csr::NodeKey;
use crate::names::Names;
use crate::request;
use crate::schedule::{self, Pauses};
use crate::store::Stored;
use crate::{CertStore, IdentityError, Pair};

/// The wall clock is looked at this often at least.
const LOOK: Duration = Duration::from_secs(60);
/// The Node object is looked at this often for other addresses.
const LOOK_AT_NODE: Duration = Duration::from_secs(10 * 60);

/// What is shown in handshakes; nothing before there is a certificate.
pub type ShownKey = watch::Sender<Option<Arc<CertifiedKey>>>;

pub struct ServingDeps {
    pub node_name: String,
    pub kube: Kube,
    /// Opened for serving certificates.
    pub store: CertStore,
    pub publish: ShownKey,
    /// A name without any address is enough to ask with.
    pub host_alone: bool,
    pub clock: Arc<dyn WallClock>,
    pub seed: u64,
}

pub struct ServingRotation {
    deps: ServingDeps,
    dice: StdRng,
    current: Option<Pair>,
    /// Issued and shown, but not on disk yet.
    unsaved: bool,
    due: Timestamp,
    names: Option<Names>,
    looked: Option<Instant>,
    pauses: Pauses,
    told: String,
}

impl ServingRotation {
    /// Shows what the store has, if it is still of use, before anything runs.
    pub async fn build(deps: ServingDeps) -> Self {
        let now = deps.clock.now();
        let mut rotation = Self {
            dice: StdRng::seed_from_u64(deps.seed),
            deps,
            current: None,
            unsaved: false,
            due: now,
            names: None,
            looked: None,
            pauses: Pauses::default(),
            told: String::new(),
        };
        match rotation.deps.store.load().await {
            Stored::Pair(pair) if !pair.validity().is_expired(now) => {
                let random = rotation.dice.random();
                let wait = schedule::wait_when_found(pair.validity(), now, random);
                rotation.show(pair, wait);
            }
            Stored::Broken(why) => tracing::warn!("{why}; another is asked for"),
            _ => {}
        }
        rotation
    }

    /// Does not end by itself.
    pub async fn run(mut self) {
        loop {
            let pause = match self.step().await {
                Ok(()) => {
                    self.pauses.reset();
                    self.told.clear();
                    let left = schedule::span(self.deps.clock.now(), self.due);
                    left.min(LOOK)
                }
                Err(error) => {
                    let text = error.to_string();
                    if self.told != text {
                        tracing::warn!("no serving certificate yet, trying again: {text}");
                        self.told = text;
                    }
                    let pause = self.pauses.next(self.dice.random());
                    pause.max(error.retry_after().unwrap_or_default().min(LOOK))
                }
            };
            sleep(pause).await;
        }
    }

    /// Whatever has to be done now.
    async fn step(&mut self) -> Result<(), IdentityError> {
        if self.looked.is_none_or(|at| at.elapsed() >= LOOK_AT_NODE) {
            self.names = Some(self.look_at_node().await?);
            self.looked = Some(Instant::now());
        }
        if let Some(names) = self.names.clone()
            && self.is_due(&names)
        {
            if !names.suffice(self.deps.host_alone) {
                self.looked = None;
                return Err(IdentityError::NoAddresses);
            }
            self.renew(&names).await?;
        }
        self.save().await
    }

    async fn look_at_node(&self) -> Result<Names, IdentityError> {
        let path = paths::node(&self.deps.node_name);
        let node: Result<Node, _> = self.deps.kube.get(path).await;
        let node = node.map_err(IdentityError::api("read the node's addresses"))?;
        let addresses = node.status.and_then(|s| s.addresses);
        Ok(Names::of_node(&addresses.unwrap_or_default()))
    }

    fn is_due(&self, names: &Names) -> bool {
        let good = self.current.as_ref().is_some_and(|pair| {
            // A node that lost its addresses for a while keeps what it has.
            pair.is_for_node(&self.deps.node_name) && names.are_in(pair)
        });
        !good || self.deps.clock.now() >= self.due
    }

    async fn renew(&mut self, names: &Names) -> Result<(), IdentityError> {
        let key = NodeKey::generate()?;
        let (kube, node) = (&self.deps.kube, &self.deps.node_name);
        let dice = &mut self.dice;
        let pair = request::serving_certificate(kube, node, &key, names, dice).await?;
        if !names.are_in(&pair) {
            return Err(IdentityError::Issued {
                name: "the serving certificate".to_owned(),
                why: "it is not for all names that were asked for".to_owned(),
            });
        }
        let now = self.deps.clock.now();
        let wait = schedule::wait_when_issued(pair.validity(), now, self.dice.random());
        tracing::info!(expires = %pair.validity().not_after, "serving certificate issued");
        self.show(pair, wait);
        self.unsaved = true;
        Ok(())
    }

    fn show(&mut self, pair: Pair, wait: Duration) {
        let wait = SignedDuration::try_from(wait).unwrap_or(SignedDuration::MAX);
        let due = self.deps.clock.now().checked_add(wait);
        self.due = due.unwrap_or(Timestamp::MAX);
        let key = pair.certified().clone();
        self.deps.publish.send_replace(Some(key));
        self.current = Some(pair);
    }

    async fn save(&mut self) -> Result<(), IdentityError> {
        if let Some(pair) = self.current.as_ref().filter(|_| self.unsaved) {
            let now = self.deps.clock.now();
            self.deps.store.update(pair, now).await?;
            self.unsaved = false;
        }
        Ok(())
    }
}
