//! Keeps the mirror pods like the static ones: whenever either side changed, and now and then in
//! any case, so that none stays stale.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use krablet_core::mirror::{MirrorAction, MirrorInputs, NodeOwner, mirror_actions};
use krablet_kube::{ApiError, Kube, paths};
use krablet_pod::api::{Node, Pod};
use krablet_pod::marks::{self, PodSource};
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
        refusals.retain(&actions);
        for action in actions {
            let wish = Wish::of(&action);
            if refusals.hold(&wish, Instant::now()) {
                continue;
            }
            let done = match action {
                MirrorAction::Create(pod) => self.create(&pod).await,
                MirrorAction::Delete(mirror) => self.delete(mirror).await,
            };
            // One that cannot be brought in line does not keep the others.
            match done {
                Ok(()) => refusals.taken(&wish),
                Err((pod, e)) if is_refusal(&e) => {
                    if refusals.note(wish, e.to_string(), Instant::now()) {
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

/// The server's word on this one pod; other failures any pod would meet.
fn is_refusal(error: &ApiError) -> bool {
    error.is_answer() && !error.is_passing() && !error.is_unauthorized()
}

/// What was asked for, so that the same is told from something else under the same name: a mended manifest, or the same
/// for a new Node, is tried at once.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Wish {
    pod: FullName,
    version: String,
}

impl Wish {
    fn of(action: &MirrorAction) -> Self {
        match action {
            MirrorAction::Create(pod) => {
                let owners = pod.metadata.owner_references.iter().flatten();
                let owners: Vec<&str> = owners.map(|owner| owner.uid.as_str()).collect();
                let hash = marks::annotation(pod, marks::CONFIG_HASH).unwrap_or_default();
                Self {
                    pod: PodRef::of(pod).full_name(),
                    version: format!("create {hash} {}", owners.join(" ")),
                }
            }
            MirrorAction::Delete(mirror) => Self {
                pod: mirror.full_name(),
                version: format!("delete {}", mirror.uid),
            },
        }
    }
}

/// What the API server refuses, by the full names of the pods: a namespace that is not there, a quota, a policy.
#[derive(Default)]
struct Refusals(BTreeMap<FullName, Refusal>);

struct Refusal {
    wish: Wish,
    why: String,
    pause: Duration,
    until: Instant,
}

impl Refusals {
    /// Forgets those that nothing is to be done about any more, or something else.
    fn retain(&mut self, due: &[MirrorAction]) {
        let due: Vec<Wish> = due.iter().map(Wish::of).collect();
        self.0.retain(|_, refusal| due.contains(&refusal.wish));
    }

    fn hold(&self, wish: &Wish, now: Instant) -> bool {
        let refusal = self.0.get(&wish.pod);
        refusal.is_some_and(|refusal| refusal.wish == *wish && now < refusal.until)
    }

    /// True if that is news.
    fn note(&mut self, wish: Wish, why: String, now: Instant) -> bool {
        let before = self.0.remove(&wish.pod);
        let pause = before
            .as_ref()
            .map_or(REFUSED, |b| (b.pause * 2).min(AUDIT));
        let is_new = before.is_none_or(|before| before.why != why);
        let until = now + pause;
        let refusal = Refusal {
            wish: wish.clone(),
            why,
            pause,
            until,
        };
        self.0.insert(wish.pod, refusal);
        is_new
    }

    fn taken(&mut self, wish: &Wish) {
        self.0.remove(&wish.pod);
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

    fn delete(uid: &str, name: &str) -> MirrorAction {
        MirrorAction::Delete(PodRef::new(uid, "ns", name))
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_refused_waits_longer_each_time_and_is_told_once() {
        let (web, db) = (delete("u", "web"), delete("v", "db"));
        let (web, db) = (Wish::of(&web), Wish::of(&db));
        let mut refusals = Refusals::default();
        let begun = Instant::now();
        let mut refused = |wish: &Wish, why: &str| {
            let is_new = refusals.note(wish.clone(), why.to_owned(), begun);
            (is_new, refusals.next().unwrap() - begun)
        };
        assert_eq!(refused(&web, "no namespace"), (true, REFUSED));
        assert_eq!(refused(&web, "no namespace"), (false, REFUSED * 2));
        assert_eq!(refused(&web, "exceeded quota"), (true, REFUSED * 4));
        for _ in 0..20 {
            refused(&web, "exceeded quota");
        }
        assert_eq!(refused(&web, "exceeded quota"), (false, AUDIT));
        assert_eq!(refused(&db, "exceeded quota"), (true, REFUSED));
        assert!(refusals.hold(&web, begun) && refusals.hold(&db, begun));
        assert!(!refusals.hold(&web, begun + AUDIT));
        refusals.taken(&web);
        assert!(!refusals.hold(&web, begun) && refusals.hold(&db, begun));
    }

    #[tokio::test(start_paused = true)]
    async fn something_else_under_the_same_name_is_tried_at_once() {
        let mut refusals = Refusals::default();
        let begun = Instant::now();
        let (old, new) = (delete("u", "web"), delete("v", "web"));
        refusals.note(Wish::of(&old), "no".to_owned(), begun);
        assert!(!refusals.hold(&Wish::of(&new), begun));
        refusals.retain(&[old]);
        assert!(refusals.next().is_some());
        refusals.retain(&[new]);
        assert_eq!(refusals.next(), None);
    }

    #[test]
    fn what_every_pod_would_meet_is_no_refusal() {
        let status = |code| ApiError::from_answer(code, b"", None);
        for (error, refusal) in [
            (status(404), true),
            (status(403), true),
            (status(422), true),
            (status(401), false),
            (status(429), false),
            (status(503), false),
            (ApiError::Tls("expired".into()), false),
            (ApiError::Credentials("none".into()), false),
            (ApiError::Connection("refused".into()), false),
        ] {
            assert_eq!(is_refusal(&error), refusal, "{error:?}");
        }
    }
}
