//! Keeps the mirror pods like the static ones: whenever either side changed, and now and then in
//! any case, so that none stays stale.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use krablet_core::mirror::{MirrorAction, MirrorInputs, NodeOwner, mirror_actions};
use krablet_kube::{ApiError, Kube, paths};
use krablet_pod::api::{Node, Pod};
use krablet_pod::marks::PodSource;
use krablet_pod::{FullName, PodRef};
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::{debug, warn};

use crate::pod_set::DesiredPods;

/// How often they are compared though nothing happened.
const AUDIT: Duration = Duration::from_secs(60);
/// Between attempts while the server is away; doubles up to [`SLOWEST`].
const QUICKEST: Duration = Duration::from_millis(200);
const SLOWEST: Duration = Duration::from_secs(10);
/// Between attempts with a mirror pod that the server refuses; doubles up to [`AUDIT`].
const REFUSED: Duration = Duration::from_secs(1);

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
        let mut refusals = Refusals::default();
        loop {
            due.mark_unchanged();
            self.node.mark_unchanged();
            if let Err((pod, e)) = self.round(&mut refusals).await {
                warn!(pod = %pod, podUID = %pod.uid, err = %e, "Could not bring a mirror pod in line, will retry");
                let wait = e.retry_after().unwrap_or(pause);
                pause = (pause * 2).min(SLOWEST);
                // Others' news do not make the API server answer sooner.
                tokio::time::sleep(wait).await;
                continue;
            }
            pause = QUICKEST;
            let audit = Instant::now() + AUDIT;
            let next = refusals.next().map_or(audit, |next| next.min(audit));
            tokio::select! {
                biased;
                Ok(()) = due.changed() => {}
                Ok(()) = self.node.changed() => {}
                () = tokio::time::sleep_until(next) => {}
            }
        }
    }

    /// One that the server refuses waits by itself; the failure told is one that others would meet too.
    async fn round(&self, refusals: &mut Refusals) -> Result<(), (PodRef, ApiError)> {
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
        let due: Vec<(PodRef, MirrorAction)> = actions.into_iter().map(named).collect();
        refusals.retain(&due);
        for (pod, action) in due {
            if refusals.holds(&pod, Instant::now()) {
                continue;
            }
            let done = match action {
                MirrorAction::Create(pod) => self.create(&pod).await,
                MirrorAction::Delete(mirror) => self.delete(mirror).await,
            };
            // One that cannot be brought in line does not keep the others.
            match done {
                Ok(()) => refusals.taken(&pod),
                Err((pod, e)) if !e.is_passing() => {
                    if refusals.note(&pod, e.to_string(), Instant::now()) {
                        warn!(pod = %pod, podUID = %pod.uid, err = %e, "The API server refuses to bring a mirror pod in line, will retry");
                    }
                }
                Err(away) => failed = failed.or(Some(away)),
            }
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

fn named(action: MirrorAction) -> (PodRef, MirrorAction) {
    let pod = match &action {
        MirrorAction::Create(pod) => PodRef::of(pod),
        MirrorAction::Delete(mirror) => mirror.clone(),
    };
    (pod, action)
}

/// What the API server refuses, by the full names of the pods: a namespace that is not there, a quota, a policy.
#[derive(Default)]
struct Refusals(BTreeMap<FullName, Refusal>);

struct Refusal {
    why: String,
    pause: Duration,
    until: Instant,
}

impl Refusals {
    /// Forgets those that nothing is to be done about any more.
    fn retain(&mut self, due: &[(PodRef, MirrorAction)]) {
        let due: BTreeSet<FullName> = due.iter().map(|(pod, _)| pod.full_name()).collect();
        self.0.retain(|name, _| due.contains(name));
    }

    fn holds(&self, pod: &PodRef, now: Instant) -> bool {
        let refusal = self.0.get(&pod.full_name());
        refusal.is_some_and(|refusal| now < refusal.until)
    }

    /// True if that is news.
    fn note(&mut self, pod: &PodRef, why: String, now: Instant) -> bool {
        let before = self.0.remove(&pod.full_name());
        let pause = before
            .as_ref()
            .map_or(REFUSED, |b| (b.pause * 2).min(AUDIT));
        let is_new = before.is_none_or(|before| before.why != why);
        let until = now + pause;
        let refusal = Refusal { why, pause, until };
        self.0.insert(pod.full_name(), refusal);
        is_new
    }

    fn taken(&mut self, pod: &PodRef) {
        self.0.remove(&pod.full_name());
    }

    /// When the next is to be tried again.
    fn next(&self) -> Option<Instant> {
        self.0.values().map(|refusal| refusal.until).min()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_is_refused_waits_longer_each_time_and_is_told_once() {
        let (web, db) = (PodRef::new("u", "ns", "web"), PodRef::new("v", "ns", "db"));
        let mut refusals = Refusals::default();
        let begun = Instant::now();
        let no_namespace = || "namespaces \"ns\" not found".to_owned();
        assert!(refusals.note(&web, no_namespace(), begun));
        assert!(refusals.holds(&web, begun) && !refusals.holds(&db, begun));
        assert_eq!(refusals.next(), Some(begun + REFUSED));
        assert!(!refusals.holds(&web, begun + REFUSED));
        assert!(!refusals.note(&web, no_namespace(), begun));
        assert_eq!(refusals.next(), Some(begun + REFUSED * 2));
        assert!(refusals.note(&web, "exceeded quota".to_owned(), begun));
        for _ in 0..20 {
            refusals.note(&web, "exceeded quota".to_owned(), begun);
        }
        assert_eq!(refusals.next(), Some(begun + AUDIT));
        refusals.note(&db, "exceeded quota".to_owned(), begun);
        refusals.taken(&web);
        assert!(!refusals.holds(&web, begun) && refusals.holds(&db, begun));
        refusals.retain(&[named(MirrorAction::Delete(web))]);
        assert_eq!(refusals.next(), None);
    }
}
