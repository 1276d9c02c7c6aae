//! Laws about statuses, looked at whenever something happens.

use krablet_core::status;
use krablet_cri::v1;
use krablet_pod::api::{ContainerStateTerminated, ContainerStatus, PodStatus};
use krablet_pod::{PodUid, labels};
use krablet_status::Standing;

use super::{Held, Law, Laws, broken};

pub(super) fn containers(status: &PodStatus) -> impl Iterator<Item = &ContainerStatus> {
    let init = status.init_container_statuses.iter().flatten();
    init.chain(status.container_statuses.iter().flatten())
        .chain(status.ephemeral_container_statuses.iter().flatten())
}

/// Ends that a status tells of: that of the state and that of the one before.
pub(super) fn ends(of: &ContainerStatus) -> impl Iterator<Item = &ContainerStateTerminated> {
    [&of.state, &of.last_state]
        .into_iter()
        .filter_map(|state| state.as_ref()?.terminated.as_ref())
}

pub(super) fn runtime_id(id: &str) -> &str {
    id.split_once("://").map_or(id, |(_, id)| id)
}

/// What no status of one life does.
fn begins_anew(old: &Standing, new: &Standing) -> bool {
    let start = |s: &Standing| s.status.start_time.clone();
    old.version >= new.version || start(old) != start(new)
}

impl Laws {
    /// Takes in what the agent publishes, if anything changed. `stale`: what changed is read as it
    /// was before the last change.
    pub(crate) fn look_at_statuses(&mut self, stale: bool) -> Held {
        let Some((_, handle)) = &self.agent else {
            return Ok(());
        };
        let bell = *handle.status.changes().borrow();
        if bell == self.bell {
            return Ok(());
        }
        self.bell = bell;
        let all = handle.status.all();
        self.standings.retain(|uid, _| all.contains_key(uid));
        for (uid, standing) in all {
            let before = self.standings.get(&uid).cloned();
            if before
                .as_ref()
                .is_some_and(|b| b.version == standing.version)
            {
                continue;
            }
            self.record_ends(&uid, &standing.status);
            self.exceeded_in_time(&uid, &standing.status)?;
            self.goes_forward(&uid, before.as_ref(), &standing)?;
            if stale && let Some(before) = &before {
                self.goes_forward(&uid, Some(&standing), before)?;
            }
            self.standings.insert(uid, standing);
        }
        Ok(())
    }

    fn record_ends(&mut self, uid: &PodUid, status: &PodStatus) {
        for container in containers(status) {
            for end in ends(container) {
                let id = end.container_id.as_deref().map(runtime_id);
                let known = id.and_then(|id| self.ends.get_mut(id));
                if let Some(known) = known.filter(|k| k.code == end.exit_code) {
                    known.recorded = true;
                }
            }
            let state = container.state.as_ref();
            let ended = state.and_then(|s| s.terminated.as_ref());
            let id = ended.and_then(|e| e.container_id.as_deref());
            let code = ended.map_or(0, |e| e.exit_code);
            // A pod that came back may still show the status of its earlier life, or containers of
            // it that are about to be removed.
            let seen = id.is_some_and(|id| self.ends.contains_key(runtime_id(id)));
            let of_this_life = self
                .pods
                .get(uid)
                .is_some_and(|k| k.wanted && !k.status_anew);
            if seen && of_this_life && self.ends_for_good(uid, &container.name, code) {
                self.over.insert((uid.clone(), container.name.clone()));
            }
        }
    }

    /// Whether a status told that this one is never started again.
    pub(crate) fn is_over(&self, listed: &v1::Container) -> bool {
        let uid = listed.labels.get(labels::POD_UID);
        let name = listed.metadata.as_ref().map(|m| m.name.clone());
        let of = uid.map(|uid| uid.as_str().into()).zip(name);
        of.is_some_and(|of| self.over.contains(&of))
    }

    fn goes_forward(&mut self, uid: &PodUid, before: Option<&Standing>, after: &Standing) -> Held {
        let mut before = before;
        let known = self.pods.get_mut(uid);
        if let (Some(old), Some(known)) = (before, known)
            && known.status_anew
            && begins_anew(old, after)
        {
            // The pod came back under its UID: another life, another status.
            known.status_anew = false;
            self.told.retain(|(pod, _), _| pod != uid);
            before = None;
        }
        if let Some(old) = before.filter(|old| old.version >= after.version) {
            let how = format!("{uid}: version {} after {}", after.version, old.version);
            return broken(Law::NoStatusBack, how);
        }
        if let Some(old) = before {
            let (was, is) = (&old.status, &after.status);
            let (old_phase, phase) = (status::phase_of(was), status::phase_of(is));
            if status::is_terminal_phase(old_phase) && phase != old_phase {
                let how = format!("{uid}: {phase} after {old_phase}");
                return broken(Law::NoStatusBack, how);
            }
            if was.start_time.is_some() && was.start_time != is.start_time {
                return broken(Law::NoStatusBack, format!("{uid}: another start time"));
            }
        }
        for container in containers(&after.status) {
            let key = (uid.clone(), container.name.clone());
            let count = container.restart_count;
            let before = self.told.insert(key, count);
            let Some(before) = before.filter(|b| *b > count) else {
                continue;
            };
            match self.pods.get_mut(uid) {
                Some(known) if known.status_anew => {
                    known.status_anew = false;
                    self.told.retain(|(pod, _), _| pod != uid);
                }
                _ => {
                    let name = &container.name;
                    let how = format!("{name} of {uid}: status says {count} after {before}");
                    return broken(Law::CountsGrow, how);
                }
            }
        }
        Ok(())
    }
}
