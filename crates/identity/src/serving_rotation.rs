//! The certificate a node shows to those who connect to it, issued by the cluster: asked for once the node has
//! addresses, renewed in time, and asked for anew as soon as the addresses are others.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Node;
use krablet_kube::Kube;
use krablet_linux::WallClock;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use rustls::sign::CertifiedKey;
use tokio::sync::watch;
use tokio::time::sleep;

use crate::csr::NodeKey;
use crate::figures::Figures;
use crate::names::Names;
use crate::request;
use crate::schedule::{self, Pauses};
use crate::store::Stored;
use crate::{CertStore, IdentityError, IdentityHandle, Pair};

/// The wall clock is looked at this often at least.
const LOOK: Duration = Duration::from_secs(60);

/// What is shown in handshakes; nothing before there is a certificate.
pub type ShownKey = watch::Sender<Option<Arc<CertifiedKey>>>;

/// The Node object as last seen.
pub type SeenNode = watch::Receiver<Option<Arc<Node>>>;

pub struct ServingDeps {
    pub node_name: String,
    /// Whose addresses the certificate is for.
    pub node: SeenNode,
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
    figures: Arc<Figures>,
    dice: StdRng,
    current: Option<Pair>,
    /// Issued and shown, but not on disk yet.
    unsaved: bool,
    due: Timestamp,
    names: Names,
    pauses: Pauses,
    told: String,
}

impl ServingRotation {
    /// Shows what the store has, if it is still of use, before anything runs.
    pub async fn build(deps: ServingDeps) -> (Self, IdentityHandle) {
        let now = deps.clock.now();
        let figures = Figures::new();
        let handle = IdentityHandle {
            figures: figures.clone(),
            clock: deps.clock.clone(),
        };
        let mut rotation = Self {
            dice: StdRng::seed_from_u64(deps.seed),
            names: names_of(&deps.node),
            deps,
            figures,
            current: None,
            unsaved: false,
            due: now,
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
        (rotation, handle)
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
                    self.figures.failed();
                    let text = error.to_string();
                    if self.told != text {
                        tracing::warn!("no serving certificate yet, trying again: {text}");
                        self.told = text;
                    }
                    let pause = self.pauses.next(self.dice.random());
                    pause.max(error.retry_after().unwrap_or_default().min(LOOK))
                }
            };
            tokio::select! {
                biased;
                () = self.other_names() => {}
                () = sleep(pause) => {}
            }
        }
    }

    /// Back when the node has other names than before.
    async fn other_names(&mut self) {
        loop {
            if self.deps.node.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
            self.deps.node.mark_unchanged();
            let names = names_of(&self.deps.node);
            if names != self.names {
                self.names = names;
                return;
            }
        }
    }

    /// Whatever has to be done now.
    async fn step(&mut self) -> Result<(), IdentityError> {
        let names = self.names.clone();
        if self.is_due(&names) {
            if !names.suffice(self.deps.host_alone) {
                return Err(IdentityError::NoAddresses);
            }
            self.renew(&names).await?;
        }
        self.save().await
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
        if let Some(old) = &self.current {
            let age = now.duration_since(old.validity().not_before);
            self.figures.replaced_at_age(age.as_secs_f64());
        }
        self.show(pair, wait);
        self.unsaved = true;
        Ok(())
    }

    fn show(&mut self, pair: Pair, wait: Duration) {
        let wait = SignedDuration::try_from(wait).unwrap_or(SignedDuration::MAX);
        let due = self.deps.clock.now().checked_add(wait);
        self.due = due.unwrap_or(Timestamp::MAX);
        self.figures.ends(pair.validity().not_after.as_second());
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

/// None before the Node object was seen.
fn names_of(node: &SeenNode) -> Names {
    let node = node.borrow();
    let status = node.as_ref().and_then(|node| node.status.as_ref());
    let addresses = status.and_then(|status| status.addresses.as_deref());
    Names::of_node(addresses.unwrap_or_default())
}
