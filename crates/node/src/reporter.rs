//! Registers the Node and keeps its status true.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use krablet_kube::{ApiError, Call, PatchKind, Priority, Verb, paths};
use krablet_linux::Machine;
use krablet_pod::api::{ContainerImage, Node};
use rand::RngExt;
use rand::rngs::StdRng;
use serde_json::Value;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tracing::{debug, info, warn};

use crate::addresses::node_ips;
use crate::calls::{BackOff, asked_to_wait, jittered, mend};
use crate::conditions::{NodeEvent, Pressures};
use crate::config::NodeConfig;
use crate::health::Health;
use crate::initial::{initial_node, reconcile_existing};
use crate::patch::{changed_enough, node_patch};
use crate::runtime::RuntimeFacts;
use crate::sight::Sight;
use crate::startup::Startup;
use crate::status::{StatusInputs, updated_node};
use crate::task::{NodeDeps, record};

/// Tries of one report, one right after the other.
const TRIES: usize = 5;
const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(7);
const CALL_DEADLINE: Duration = Duration::from_secs(5);
/// Making a node passes admission, which may ask others.
const CREATE_DEADLINE: Duration = Duration::from_secs(10);
/// How long a node waits, before it registers, to know whether it is ready: mostly one call later.
const SETTLE_LIMIT: Duration = Duration::from_millis(100);
/// Files that do not answer must not stop the heartbeat.
const FACTS_LIMIT: Duration = Duration::from_secs(2);
/// Between reports that changes on this side ask for, and those that edits of the object ask for.
const OWN_GAP: Duration = Duration::from_millis(100);
const FOREIGN_GAP: Duration = Duration::from_secs(1);

pub(crate) struct Reporter {
    config: NodeConfig,
    deps: NodeDeps,
    sight: Arc<Sight>,
    node: watch::Receiver<Option<Arc<Node>>>,
    bell: Arc<Notify>,
    images: watch::Receiver<Option<Vec<ContainerImage>>>,
    dice: StdRng,
    retry: BackOff,
    known: Known,
    /// The addresses in `known`, for others.
    own_ips: watch::Sender<Vec<IpAddr>>,
    /// This life of the agent has made or found its Node.
    registered: bool,
    /// When the status was last told, and after how long it is told again though unchanged.
    reported: Option<(Instant, Duration)>,
    /// Whether the node was last seen to be closed for new pods.
    unschedulable: bool,
    /// The last report failed, which was told.
    failing: bool,
    startup: Startup,
}

/// The last good look at the machine.
#[derive(Default)]
struct Known {
    machine: Option<Machine>,
    ips: Vec<IpAddr>,
    ip_trouble: Option<String>,
}

/// One consistent look at everything a status follows from.
struct Snapshot {
    health: Health,
    pressures: Pressures,
    runtime: Option<RuntimeFacts>,
    images: Option<Vec<ContainerImage>>,
    volumes_in_use: Option<Vec<String>>,
}

impl Reporter {
    pub(crate) fn new(
        config: NodeConfig,
        deps: NodeDeps,
        sight: Arc<Sight>,
        bell: Arc<Notify>,
        images: watch::Receiver<Option<Vec<ContainerImage>>>,
        dice: StdRng,
    ) -> Self {
        let known = Known {
            ips: config.found_ips.clone(),
            ..Known::default()
        };
        Self {
            node: sight.subscribe(),
            own_ips: watch::Sender::new(known.ips.clone()),
            known,
            config,
            deps,
            sight,
            bell,
            images,
            dice,
            retry: BackOff::new(FIRST_WAIT, LONGEST_WAIT),
            registered: false,
            reported: None,
            unschedulable: false,
            failing: false,
            startup: Startup::default(),
        }
    }

    /// How the node came to be.
    pub(crate) fn startup(&self) -> Startup {
        self.startup.clone()
    }

    /// The addresses this machine was found to have.
    pub(crate) fn own_ips(&self) -> watch::Receiver<Vec<IpAddr>> {
        self.own_ips.subscribe()
    }

    pub(crate) async fn run(mut self) {
        let mut health = self.deps.inputs.health.clone();
        let settled = health.wait_for(Health::is_settled);
        let _ = tokio::time::timeout(SETTLE_LIMIT, settled).await;
        loop {
            if self.config.registration.register && !self.registered {
                self.register().await;
            }
            let next = match self.report().await {
                Ok(()) => {
                    if std::mem::take(&mut self.failing) {
                        info!("The node status is reported again");
                    }
                    self.retry.reset();
                    jittered(self.config.periods.update, &mut self.dice)
                }
                Err(error) => {
                    self.complain(&error);
                    self.retry.next_wait().min(self.config.periods.update)
                }
            };
            // A node that is gone is made again before anything is waited for.
            if !self.config.registration.register || self.registered {
                self.wait(Instant::now() + next).await;
            }
        }
    }

    /// Until something changed or the time has come.
    async fn wait(&mut self, mut due: Instant) {
        let last = Instant::now();
        loop {
            let gap = tokio::select! {
                biased;
                () = self.sight.gone.notified() => match self.sight.latest() {
                    None => {
                        self.registered = false;
                        return;
                    }
                    // Old news: it was made again since.
                    Some(_) => continue,
                },
                () = self.bell.notified() => OWN_GAP,
                Ok(()) = self.deps.inputs.health.changed() => OWN_GAP,
                Ok(()) = self.deps.inputs.pressures.changed() => OWN_GAP,
                Ok(()) = self.deps.inputs.runtime.changed() => OWN_GAP,
                Ok(()) = self.deps.inputs.volumes_in_use.changed() => OWN_GAP,
                Ok(()) = self.node.changed() => FOREIGN_GAP,
                () = tokio::time::sleep_until(due) => return,
            };
            due = due.min(last + gap);
        }
    }

    async fn register(&mut self) {
        let name = self.config.name.clone();
        let mut back_off = BackOff::new(FIRST_WAIT, LONGEST_WAIT);
        let mut told = None;
        info!(node = name, "Attempting to register node");
        self.startup.attempt();
        loop {
            let error = match self.try_register().await {
                Ok(()) => break,
                Err(error) => error,
            };
            let words = error.to_string();
            if told.as_ref() != Some(&words) {
                warn!(
                    node = name,
                    err = words,
                    "Unable to register node with API server"
                );
                told = Some(words);
            }
            mend(self.deps.kube.api().as_ref(), &error);
            let wait = back_off
                .next_wait()
                .max(asked_to_wait(&error, LONGEST_WAIT));
            tokio::time::sleep(wait).await;
        }
        info!(node = name, "Successfully registered node");
        self.registered = true;
    }

    async fn try_register(&mut self) -> Result<(), ApiError> {
        let machine = self.look().await;
        let snapshot = self.snapshot();
        let (initial, events) = initial_node(&self.inputs(&snapshot, &machine));
        let refused = match self.create(&initial).await {
            Ok(node) => {
                self.startup.made(&node);
                self.sight.saw(node);
                self.told(true, events);
                return Ok(());
            }
            // Who may not make nodes may still have one that others made.
            Err(e) if e.is_already_exists() || e.is_forbidden() => e,
            Err(e) => return Err(e),
        };
        let existing = match self.fetch().await {
            Err(e) if e.is_not_found() => return Err(refused),
            existing => existing?,
        };
        info!(node = self.config.name, "Node was previously registered");
        self.startup.found();
        let reset = self.config.registration.reset_extended_resources;
        let node = match reconcile_existing(&existing, &initial, reset) {
            Some(patch) => self.deps.kube.object(self.patch(&patch)?).await?,
            None => existing,
        };
        self.sight.saw(node);
        Ok(())
    }

    /// Tells the status if there is something to tell, in a few tries.
    async fn report(&mut self) -> Result<(), ApiError> {
        let mut result = self.try_report(self.sight.latest()).await;
        for _ in 1..TRIES {
            let Err(error) = &result else { break };
            debug!(err = %error, "Error updating node status, will retry");
            mend(self.deps.kube.api().as_ref(), error);
            let wait = asked_to_wait(error, self.config.periods.update);
            if !wait.is_zero() {
                tokio::time::sleep(wait).await;
            }
            result = self.try_report(None).await;
        }
        result
    }

    /// From what was seen last, or else from what the server says now.
    async fn try_report(&mut self, seen: Option<Arc<Node>>) -> Result<(), ApiError> {
        let old = match seen {
            Some(node) => Ok(node),
            None => self.fetch().await.map(Arc::new),
        };
        let result = match old {
            Ok(old) => self.publish(&old).await,
            Err(error) => Err(error),
        };
        match result {
            // It is made again, or, where that is not the agent's to do, waited for.
            Err(error) if error.is_not_found() => {
                debug!(node = self.config.name, "There is no Node object");
                self.sight.lost(None);
                self.registered = false;
                Ok(())
            }
            result => result,
        }
    }

    fn complain(&mut self, error: &ApiError) {
        let first = !std::mem::replace(&mut self.failing, true);
        mend(self.deps.kube.api().as_ref(), error);
        match first {
            true => warn!(err = %error, "Unable to update node status, will retry"),
            false => debug!(err = %error, "Unable to update node status, will retry"),
        }
    }

    async fn publish(&mut self, old: &Node) -> Result<(), ApiError> {
        let machine = self.look().await;
        self.note_schedulable(old);
        let snapshot = self.snapshot();
        let (new, events) = updated_node(old, &self.inputs(&snapshot, &machine));
        let changed = changed_enough(old, &new);
        let due = match self.reported {
            Some((at, after)) => at.elapsed() >= after,
            None => true,
        };
        if !changed && !due {
            return Ok(());
        }
        if let Some(patch) = node_patch(old, &new) {
            let answer: ObjectMeta = self.deps.kube.metadata(self.patch(&patch)?).await?;
            self.startup.told(&new);
            self.sight.assume(written(old, &new, answer)?);
        }
        let first = self.reported.is_none();
        self.told(changed || first, events);
        Ok(())
    }

    /// Nodes that tell a change at the same moment do not repeat it at the same moment.
    fn told(&mut self, spread: bool, events: Vec<NodeEvent>) {
        let report = self.config.periods.report;
        let after = match spread {
            true => report.mul_f64(0.5 + self.dice.random::<f64>()),
            false => report,
        };
        self.reported = Some((Instant::now(), after));
        // The own words that come back are no news.
        self.node.mark_unchanged();
        record(&self.deps.recorder, events);
    }

    fn note_schedulable(&mut self, node: &Node) {
        let spec = node.spec.as_ref();
        let unschedulable = spec.and_then(|spec| spec.unschedulable).unwrap_or(false);
        if unschedulable != self.unschedulable {
            self.unschedulable = unschedulable;
            let event = NodeEvent::schedulable(&self.config.name, unschedulable);
            record(&self.deps.recorder, vec![event]);
        }
    }

    /// Looks at the machine. Where it does not answer in time, the last look must do.
    async fn look(&mut self) -> Machine {
        let facts = self.deps.machine.clone();
        let machine = match self.known.machine.take() {
            None => facts.machine().await,
            Some(last) => {
                let looked = tokio::time::timeout(FACTS_LIMIT, facts.machine()).await;
                looked.unwrap_or(last)
            }
        };
        self.known.machine = Some(machine.clone());
        let trouble = match node_ips(&self.config, facts.as_ref(), &self.known.ips).await {
            Ok(ips) => {
                if self.known.ips != ips {
                    self.own_ips.send_replace(ips.clone());
                    self.known.ips = ips;
                }
                None
            }
            Err(trouble) => Some(trouble),
        };
        if let Some(words) = &trouble
            && trouble != self.known.ip_trouble
        {
            warn!(err = words, "Failed to set the addresses of the node");
        }
        self.known.ip_trouble = trouble;
        machine
    }

    fn snapshot(&mut self) -> Snapshot {
        let inputs = &mut self.deps.inputs;
        Snapshot {
            health: inputs.health.borrow_and_update().clone(),
            pressures: *inputs.pressures.borrow_and_update(),
            runtime: inputs.runtime.borrow_and_update().clone(),
            images: self.images.borrow_and_update().clone(),
            volumes_in_use: inputs.volumes_in_use.borrow_and_update().clone(),
        }
    }

    fn inputs<'a>(&'a self, snapshot: &'a Snapshot, machine: &'a Machine) -> StatusInputs<'a> {
        let ips = self
            .known
            .ip_trouble
            .is_none()
            .then_some(&self.known.ips[..]);
        StatusInputs {
            config: &self.config,
            machine,
            ips,
            runtime: snapshot.runtime.as_ref(),
            images: snapshot.images.as_deref(),
            health: &snapshot.health,
            pressures: snapshot.pressures,
            volumes_in_use: snapshot.volumes_in_use.as_deref(),
            now: self.deps.clock.now(),
        }
    }

    async fn create(&self, node: &Node) -> Result<Node, ApiError> {
        let call = Call::new(Verb::Create, paths::NODES.to_owned()).body(encode(node)?);
        self.call(call.deadline(CREATE_DEADLINE)).await
    }

    async fn fetch(&self) -> Result<Node, ApiError> {
        let call = Call::new(Verb::Get, paths::node(&self.config.name));
        self.call(call.deadline(CALL_DEADLINE)).await
    }

    fn patch(&self, patch: &Value) -> Result<Call, ApiError> {
        let path = paths::node_status(&self.config.name);
        let call = Call::new(Verb::Patch(PatchKind::StrategicMerge), path).body(encode(patch)?);
        Ok(call.deadline(CALL_DEADLINE).priority(Priority::Heartbeat))
    }

    async fn call(&self, call: Call) -> Result<Node, ApiError> {
        let call = call.priority(Priority::Heartbeat);
        self.deps.kube.object(call).await
    }
}

/// The node as it should be after a write, in the words of the server: times, for one, are told in
/// whole seconds.
fn written(old: &Node, new: &Node, answer: ObjectMeta) -> Result<Node, ApiError> {
    let status = serde_json::from_slice(&encode(&new.status)?);
    Ok(Node {
        metadata: answer,
        spec: old.spec.clone(),
        status: status.map_err(|e| ApiError::Decode(e.to_string()))?,
    })
}

fn encode<T: serde::Serialize>(object: &T) -> Result<Vec<u8>, ApiError> {
    serde_json::to_vec(object).map_err(|e| ApiError::Decode(e.to_string()))
}
