//! Laws about what is started again, and what is not.

use std::collections::{BTreeMap, BTreeSet};

use krablet_core::restart::pod_policy;
use krablet_core::status;
use krablet_pod::PodUid;
use krablet_pod::api::PodSpec;
use krablet_pod::containers::{self, ContainerKind, is_sidecar};
use krablet_pod::observed::ContainerState;

use super::{Held, Law, Laws, broken};
use crate::rules::{self, Follows};
use crate::runtime::{Instance, Machine};

/// A container has ended in a way that calls for another round of all.
#[derive(Debug)]
struct Call {
    pod: PodUid,
    container: String,
    sandbox: String,
    by_itself: bool,
    /// What else had run in the pod by then.
    others: BTreeSet<String>,
}

#[derive(Debug, Default)]
pub(super) struct Book {
    /// Ephemeral containers that were started.
    looked_into: BTreeSet<(PodUid, String)>,
    /// Containers that have called for a restart of all and are still there.
    callers: BTreeMap<String, Call>,
}

impl Laws {
    /// Whether a container that ended so is never started again. An init container that is done is, in
    /// another sandbox, and only a pod that is never to be restarted gets no other.
    pub(super) fn ends_for_good(&self, uid: &PodUid, name: &str, code: i32) -> bool {
        let Some(spec) = self.spec(uid) else {
            return false;
        };
        if rules::is_ephemeral(spec, name) {
            return true;
        }
        let Some(found) = containers::find(spec, name) else {
            return false;
        };
        let init = found.kind == ContainerKind::Init;
        let anew = init && (is_sidecar(found.container) || pod_policy(spec) != "Never");
        let follows = rules::after_exit(spec, found.container, code);
        follows == Follows::Nothing && !anew && !rules::may_restart_all(spec)
    }

    /// Whether another instance follows one whose end nobody saw, or none in any case.
    pub(crate) fn may_be_lost(&self, c: &Instance) -> bool {
        let spec = self.spec(&c.pod.uid);
        spec.is_some_and(|spec| !rules::is_never_restarted(spec, &c.name))
    }

    pub(super) fn started_once(&mut self, c: &Instance) -> Held {
        let uid = &c.pod.uid;
        let ephemeral = |spec: &PodSpec| rules::is_ephemeral(spec, &c.name);
        if !self.spec(uid).is_some_and(ephemeral) {
            return Ok(());
        }
        match self
            .restarts
            .looked_into
            .insert((uid.clone(), c.name.clone()))
        {
            true => Ok(()),
            false => {
                let how = format!("ephemeral {} of {uid} is started again", c.name);
                broken(Law::OnceOnly, how)
            }
        }
    }

    /// Notes who has run when a container calls for another round.
    pub(super) fn calls_for_all(&mut self, machine: &Machine, c: &Instance, by_itself: bool) {
        let uid = &c.pod.uid;
        let Some(spec) = self.spec(uid).filter(|_| self.is_wanted(uid)) else {
            return;
        };
        if !rules::restarts_all(spec, &c.name, c.exit_code) {
            return;
        }
        // An earlier instance that ended in such a way tells of the same, and may be there a little longer.
        let ran = machine.of_pod(uid).filter(|other| match other.state {
            ContainerState::Created => false,
            ContainerState::Exited if rules::restarts_all(spec, &other.name, other.exit_code) => {
                false
            }
            _ => other.id != c.id && containers::find(spec, &other.name).is_some(),
        });
        let call = Call {
            pod: uid.clone(),
            container: c.name.clone(),
            sandbox: c.sandbox_id.clone(),
            by_itself,
            others: ran.map(|other| other.id.clone()).collect(),
        };
        self.restarts.callers.insert(c.id.clone(), call);
    }

    /// The agent that has stopped a container to start it again alone may do so, whatever its end called for.
    pub(super) fn starts_alone(&mut self, c: &Instance) -> Held {
        let callers = std::mem::take(&mut self.restarts.callers).into_iter();
        let (same, rest): (BTreeMap<String, Call>, _) =
            callers.partition(|(_, call)| call.pod == c.pod.uid && call.container == c.name);
        self.restarts.callers = rest;
        let unasked = same.iter().find(|(id, call)| {
            let asked = self.stop_asked.contains(*id) || self.stop_asked.contains(&call.sandbox);
            call.by_itself && !asked
        });
        match unasked {
            Some((id, call)) => {
                let how = format!(
                    "{} of {} is started alone after {id}, which called for a restart of all",
                    c.name, call.pod
                );
                broken(Law::WholeRounds, how)
            }
            None => Ok(()),
        }
    }

    /// Whether this is a container whose end called for another round.
    pub(crate) fn has_called(&self, id: &str) -> bool {
        self.restarts.callers.contains_key(id)
    }

    pub(super) fn is_restarting_all(&self, uid: &PodUid) -> bool {
        self.restarts.callers.values().any(|call| call.pod == *uid)
    }

    /// The one that called for another round goes last, and with it all that was done in the round before.
    pub(super) fn round_ends(&mut self, machine: &Machine, c: &Instance) -> Held {
        let Some(call) = self.restarts.callers.remove(&c.id) else {
            return Ok(());
        };
        self.done.remove(&c.sandbox_id);
        let uid = &call.pod;
        // Those that were stopped with it may have ended in a way that calls for the same.
        if self.is_restarting_all(uid) {
            return Ok(());
        }
        let standing = self.standings.get(uid);
        let over = standing.is_some_and(|s| status::is_terminal(&s.status));
        let goes_on = self.pods.get(uid).is_some_and(|known| {
            let deleted = known.pod.metadata.deletion_timestamp.is_some();
            known.wanted && !known.came_back && !deleted
        });
        let mut others = call.others.iter();
        let left = others.find_map(|id| machine.containers.get(id));
        match left.filter(|_| goes_on && !over) {
            Some(left) => {
                let how = format!(
                    "{} ({} of {uid}), which called for a restart of all, is removed before {} ({})",
                    c.id, c.name, left.id, left.name
                );
                broken(Law::WholeRounds, how)
            }
            None => Ok(()),
        }
    }
}
