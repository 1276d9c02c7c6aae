//! The heartbeat: a lease that is renewed four times as often as it would run out. A task of its
//! own, so that nothing else the node does can hold it up.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, OwnerReference};
use krablet_kube::{ApiError, Call, Kube, PatchKind, Priority, Verb, paths};
use krablet_linux::WallClock;
use krablet_pod::api::Node;
use rand::SeedableRng;
use rand::rngs::StdRng;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::{debug, info, warn};

use crate::calls::{BackOff, asked_to_wait, jittered, mend};

const NAMESPACE: &str = "kube-node-lease";
const TRIES: usize = 5;
const FIRST_WAIT: Duration = Duration::from_millis(200);
const LONGEST_WAIT: Duration = Duration::from_secs(7);

#[derive(Clone, Debug)]
pub struct LeaseConfig {
    pub node_name: String,
    pub duration_seconds: i32,
    /// For jitter.
    pub seed: u64,
}

impl LeaseConfig {
    pub fn new(node_name: impl Into<String>) -> Self {
        Self {
            node_name: node_name.into(),
            duration_seconds: 40,
            seed: 0,
        }
    }

    fn renew_every(&self) -> Duration {
        let seconds = u64::try_from(self.duration_seconds).unwrap_or(40).max(1);
        Duration::from_secs(seconds) / 4
    }
}

pub struct LeaseDeps {
    pub kube: Kube,
    /// The owner, as [`crate::NodeHandle`] shows it.
    pub node: watch::Receiver<Option<Arc<Node>>>,
    pub clock: Arc<dyn WallClock>,
}

/// The lease to write over `base`, or a new one.
pub fn renewed(
    base: Option<&Lease>,
    config: &LeaseConfig,
    node_uid: Option<&str>,
    now: Timestamp,
) -> Lease {
    let mut lease = base.cloned().unwrap_or_else(|| Lease {
        metadata: ObjectMeta {
            name: Some(config.node_name.clone()),
            namespace: Some(NAMESPACE.to_owned()),
            ..ObjectMeta::default()
        },
        spec: None,
    });
    lease.metadata.managed_fields = None;
    // A node that was made anew has another UID; a lease of the old one would be swept away.
    if let Some(uid) = node_uid {
        lease.metadata.owner_references = Some(vec![OwnerReference {
            api_version: "v1".to_owned(),
            kind: "Node".to_owned(),
            name: config.node_name.clone(),
            uid: uid.to_owned(),
            ..OwnerReference::default()
        }]);
    }
    lease.spec = Some(LeaseSpec {
        holder_identity: Some(config.node_name.clone()),
        lease_duration_seconds: Some(config.duration_seconds),
        renew_time: Some(MicroTime(now)),
        ..lease.spec.unwrap_or_default()
    });
    lease
}

/// From one state of the lease to the next, if it still is in the one before: a JSON merge patch. Four
/// fifths of a lease never change.
pub fn renewal(base: &Lease, renewed: &Lease) -> Value {
    let mut metadata = json!({"resourceVersion": base.metadata.resource_version});
    let owners = &renewed.metadata.owner_references;
    if *owners != base.metadata.owner_references {
        metadata["ownerReferences"] = json!(owners);
    }
    let fields = |lease: &Lease| match json!(lease.spec) {
        Value::Object(fields) => fields,
        _ => Map::new(),
    };
    let old = fields(base);
    let mut spec = fields(renewed);
    spec.retain(|name, value| old.get(name) != Some(value));
    json!({"metadata": metadata, "spec": spec})
}

/// Of an answer, what the next write needs.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Version {
    resource_version: Option<String>,
}

pub struct LeaseTask {
    config: LeaseConfig,
    deps: LeaseDeps,
    dice: StdRng,
    /// As it was last written or read; written over without reading it again.
    latest: Option<Lease>,
    failing: bool,
}

enum Ensured {
    Made,
    Found(Box<Lease>),
    /// A lease without its node would be nobody's.
    NoNode,
}

impl LeaseTask {
    pub fn build(config: LeaseConfig, deps: LeaseDeps) -> Self {
        Self {
            dice: StdRng::seed_from_u64(config.seed),
            config,
            deps,
            latest: None,
            failing: false,
        }
    }

    pub async fn run(mut self) {
        loop {
            let next = Instant::now() + jittered(self.config.renew_every(), &mut self.dice);
            self.sync().await;
            let waits_for_node = self.latest.is_none();
            tokio::select! {
                biased;
                Ok(()) = self.deps.node.changed(), if waits_for_node => {}
                () = tokio::time::sleep_until(next) => {}
            }
        }
    }

    async fn sync(&mut self) {
        if let Some(latest) = self.latest.clone()
            && self.update(latest).await
        {
            return;
        }
        let mut back_off = BackOff::new(FIRST_WAIT, LONGEST_WAIT);
        loop {
            let mut pause = back_off.next_wait();
            match self.ensure().await {
                Ok(Ensured::Made) => return self.recovered(),
                Ok(Ensured::NoNode) => return,
                Ok(Ensured::Found(lease)) => {
                    if self.update(*lease).await {
                        return;
                    }
                }
                Err(error) => {
                    self.failed("ensure", &error);
                    pause = pause.max(asked_to_wait(&error, self.config.renew_every()));
                }
            }
            tokio::time::sleep(pause).await;
        }
    }

    /// Writes over `base`, in a few tries one right after the other.
    async fn update(&mut self, mut base: Lease) -> bool {
        for _ in 0..TRIES {
            let lease = self.renewed(Some(&base));
            let path = paths::node_lease(&self.config.node_name);
            let patch = self.call(Verb::Patch(PatchKind::Merge), path);
            let patch = patch.body(renewal(&base, &lease).to_string());
            let Err(error) = self.write(patch, lease).await else {
                self.recovered();
                return true;
            };
            self.failed("renew", &error);
            if error.is_not_found() {
                self.latest = None;
                return false;
            }
            if error.is_conflict() {
                match self.read().await {
                    Ok(lease) => base = lease,
                    Err(error) => self.failed("read", &error),
                }
            }
            let wait = asked_to_wait(&error, self.config.renew_every());
            if !wait.is_zero() {
                tokio::time::sleep(wait).await;
            }
        }
        false
    }

    async fn ensure(&mut self) -> Result<Ensured, ApiError> {
        match self.read().await {
            Ok(lease) => return Ok(Ensured::Found(Box::new(lease))),
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error),
        }
        if self.node_uid().is_none() {
            debug!("The node is not registered yet, its lease waits");
            return Ok(Ensured::NoNode);
        }
        let lease = self.renewed(None);
        let body = serde_json::to_vec(&lease).map_err(|e| ApiError::Decode(e.to_string()))?;
        let create = self.call(Verb::Create, paths::NODE_LEASES.to_owned());
        self.write(create.body(body), lease).await?;
        Ok(Ensured::Made)
    }

    fn renewed(&self, base: Option<&Lease>) -> Lease {
        let uid = self.node_uid();
        renewed(base, &self.config, uid.as_deref(), self.deps.clock.now())
    }

    fn node_uid(&self) -> Option<String> {
        let node = self.deps.node.borrow();
        node.as_ref().and_then(|node| node.metadata.uid.clone())
    }

    async fn read(&self) -> Result<Lease, ApiError> {
        let path = paths::node_lease(&self.config.node_name);
        self.deps.kube.object(self.call(Verb::Get, path)).await
    }

    /// The call makes this lease of what was there.
    async fn write(&mut self, call: Call, mut lease: Lease) -> Result<(), ApiError> {
        let answer: Version = self.deps.kube.metadata(call).await?;
        lease.metadata.resource_version = answer.resource_version;
        self.latest = Some(lease);
        Ok(())
    }

    /// A hanging call must leave time for another before the lease is due again.
    fn call(&self, verb: Verb, path: String) -> Call {
        Call::new(verb, path)
            .priority(Priority::Heartbeat)
            .deadline(self.config.renew_every() / 2)
    }

    fn failed(&mut self, what: &str, error: &ApiError) {
        match self.failing {
            false => warn!(err = %error, "Failed to {what} the node lease, will retry"),
            true => debug!(err = %error, "Failed to {what} the node lease, will retry"),
        }
        self.failing = true;
        mend(self.deps.kube.api().as_ref(), error);
    }

    fn recovered(&mut self) {
        if std::mem::take(&mut self.failing) {
            info!("The node lease is renewed again");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_made_and_renewed() {
        let config = LeaseConfig::new("n1");
        let first = renewed(None, &config, Some("u1"), Timestamp::UNIX_EPOCH);
        expect_test::expect![[r#"
            {
              "apiVersion": "coordination.k8s.io/v1",
              "kind": "Lease",
              "metadata": {
                "name": "n1",
                "namespace": "kube-node-lease",
                "ownerReferences": [
                  {
                    "apiVersion": "v1",
                    "kind": "Node",
                    "name": "n1",
                    "uid": "u1"
                  }
                ]
              },
              "spec": {
                "holderIdentity": "n1",
                "leaseDurationSeconds": 40,
                "renewTime": "1970-01-01T00:00:00.000000Z"
              }
            }"#]]
        .assert_eq(&serde_json::to_string_pretty(&first).unwrap());
        let mut base = first.clone();
        base.metadata.resource_version = Some("7".to_owned());
        let later = Timestamp::from_second(10).unwrap();
        let second = renewed(Some(&base), &config, None, later);
        assert_eq!(second.metadata.resource_version.as_deref(), Some("7"));
        assert_eq!(
            second.metadata.owner_references,
            first.metadata.owner_references
        );
        let renews = |node: Option<&str>| {
            let next = renewed(Some(&base), &config, node, later);
            renewal(&base, &next).to_string()
        };
        expect_test::expect![[
            r#"{"metadata":{"resourceVersion":"7"},"spec":{"renewTime":"1970-01-01T00:00:10.000000Z"}}"#
        ]]
        .assert_eq(&renews(Some("u1")));
        assert_eq!(renews(None), renews(Some("u1")));
        expect_test::expect![[
            r#"{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"n1","uid":"u2"}],"resourceVersion":"7"},"spec":{"renewTime":"1970-01-01T00:00:10.000000Z"}}"#
        ]]
        .assert_eq(&renews(Some("u2")));
        // Another's lease becomes the node's own.
        base.spec = None;
        expect_test::expect![[
            r#"{"metadata":{"resourceVersion":"7"},"spec":{"holderIdentity":"n1","leaseDurationSeconds":40,"renewTime":"1970-01-01T00:00:10.000000Z"}}"#
        ]]
        .assert_eq(&renewal(&base, &renewed(Some(&base), &config, None, later)).to_string());
    }
}
