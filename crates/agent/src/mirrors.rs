//! Keeps the mirror pods like the static ones: whenever either side changed, and now and then in
//! any case, so that none stays stale.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use krablet_core::mirror::{MirrorAction, MirrorInputs, NodeOwner, mirror_actions};
use krablet_kube::{ApiError, Kube, paths};
use krablet_pod::PodRef;
use krablet_pod::api::{Node, Pod};
use krablet_pod::marks::PodSource;
use tokio::sync::watch;
use tracing::{debug, warn};

use crate::pod_set::DesiredPods;

/// How often they are compared though nothing happened.
const AUDIT: Duration = Duration::from_secs(60);
/// Between attempts that fail; doubles up to [`SLOWEST`].
const QUICKEST: Duration = Duration::from_millis(200);
const SLOWEST: Duration = Duration::from_secs(10);

pub(crate) struct Mirrors {
    pub(crate) desired: DesiredPods,
    pub(crate) kube: Kube,
    pub(crate) node: watch::Receiver<Option<Arc<Node>>>,
    /// Before all of them have spoken, a mirror pod may have a static pod that is not known yet.
    pub(crate) sources: BTreeSet<PodSource>,
}

impl Mirrors {
    pub(crate) async fn run(mut self) {
        let mut due = self.desired.mirrors_due();
        let mut pause = QUICKEST;
        loop {
            due.mark_unchanged();
            self.node.mark_unchanged();
            let wait = match self.round().await {
                Ok(()) => {
                    pause = QUICKEST;
                    AUDIT
                }
                Err((pod, e)) => {
                    warn!(pod = %pod, err = %e, "Could not bring a mirror pod in line, will retry");
                    let wait = e.retry_after().unwrap_or(pause);
                    pause = (pause * 2).min(SLOWEST);
                    // Others' news do not make the API server answer sooner.
                    tokio::time::sleep(wait).await;
                    continue;
                }
            };
            tokio::select! {
                biased;
                Ok(()) = due.changed() => {}
                Ok(()) = self.node.changed() => {}
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    async fn round(&self) -> Result<(), (PodRef, ApiError)> {
        if !self.desired.sources_ready(&self.sources) {
            return Ok(());
        }
        let owner = owner(self.node.borrow().as_deref());
        let ending = self.desired.ending();
        let actions = mirror_actions(&MirrorInputs {
            owner: owner.as_ref(),
            statics: &self.desired.statics(),
            mirrors: &self.desired.mirrors(),
            of_past_lives: &self.desired.mirrors_of_past_lives(),
            ending: &|name| ending.contains(name),
        });
        let mut failed = None;
        for action in actions {
            let done = match action {
                MirrorAction::Create(pod) => self.create(&pod).await,
                MirrorAction::Delete(mirror) => self.delete(mirror).await,
            };
            // One that cannot be brought in line does not keep the others.
            failed = failed.or(done.err());
        }
        failed.map_or(Ok(()), Err)
    }

    async fn create(&self, pod: &Pod) -> Result<(), (PodRef, ApiError)> {
        let named = PodRef::of(pod);
        debug!(pod = %named, "Creating a mirror pod for static pod");
        let made: Result<Pod, _> = self.kube.create(paths::pods(&named.namespace), pod).await;
        match made {
            // The watch alone shows which one it is: it may be gone again, or newer, when the answer comes.
            Err(e) if !e.is_already_exists() => Err((named, e)),
            _ => Ok(()),
        }
    }

    async fn delete(&self, mirror: PodRef) -> Result<(), (PodRef, ApiError)> {
        debug!(pod = %mirror, podUID = %mirror.uid, "Deleting a mirror pod");
        let path = paths::pod(&mirror.namespace, &mirror.name);
        match self.kube.delete(path, mirror.uid.as_str(), 0).await {
            // Another one is there by now.
            Err(e) if !e.is_conflict() => Err((mirror, e)),
            _ => {
                self.desired.remove_mirror(&mirror);
                Ok(())
            }
        }
    }
}

/// A Node that is going is no owner: what it owns would go with it.
fn owner(node: Option<&Node>) -> Option<NodeOwner> {
    let metadata = &node?.metadata;
    if metadata.deletion_timestamp.is_some() {
        return None;
    }
    Some(NodeOwner {
        name: metadata.name.clone()?,
        uid: metadata.uid.clone()?,
    })
}
