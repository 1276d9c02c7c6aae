//! Laws about what is said to the API server, checked as it is done there.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use krablet_core::patch;
use krablet_core::status::{self, MergeInputs};
use krablet_pod::api::{Pod, PodStatus};
use krablet_pod::{PodRef, PodUid, marks};

use super::statuses::{containers, ends, runtime_id};
use super::{Held, Law, Laws, broken};
use crate::runtime::Machine;

/// A status that an agent wrote.
#[derive(Clone, Copy)]
pub(crate) struct Written<'a> {
    pub(crate) before: &'a Pod,
    pub(crate) after: &'a Pod,
    /// The UID the agent named.
    pub(crate) meant: Option<&'a str>,
    /// Nobody waited for it any more: newer statuses may have come before.
    pub(crate) late: bool,
}

/// The pod on the node that an object is about.
fn subject(object: &Pod) -> PodUid {
    match marks::annotation(object, marks::CONFIG_MIRROR) {
        Some(hash) => hash.into(),
        None => PodRef::of(object).uid,
    }
}

fn runs(machine: &Machine, uid: &PodUid) -> Option<String> {
    let mut running = machine.of_pod(uid).filter(|c| c.may_run());
    running.next().map(|c| format!("{} ({})", c.name, c.id))
}

impl Laws {
    pub(crate) fn status_written(&mut self, machine: &Machine, written: &Written<'_>) -> Held {
        let Written { before, after, .. } = written;
        let empty = PodStatus::default();
        let was = before.status.as_ref().unwrap_or(&empty);
        let is = after.status.as_ref().unwrap_or(&empty);
        self.is_meant(after, written.meant)?;
        self.tells_of(after, is)?;
        let uid = subject(after);
        if written.late {
            self.told_late.insert(uid);
            return Ok(());
        }
        if status::is_terminal(is)
            && !status::is_terminal(was)
            && let Some(running) = runs(machine, &uid)
        {
            let how = format!("{uid} is told to be over while {running} runs");
            return broken(Law::EndsEmpty, how);
        }
        self.told_forward(&uid, was, is)
    }

    fn is_meant(&self, object: &Pod, meant: Option<&str>) -> Held {
        let uid = object.metadata.uid.as_deref();
        if meant == uid {
            return Ok(());
        }
        let how = format!("{meant:?} was meant and {uid:?} was found");
        broken(Law::RightPod, how)
    }

    /// Every container a status names is one of the pod.
    fn tells_of(&self, object: &Pod, status: &PodStatus) -> Held {
        let uid = subject(object);
        for container in containers(status) {
            let ended = ends(container).filter_map(|end| end.container_id.as_deref());
            let mut ids = container.container_id.as_deref().into_iter().chain(ended);
            let strange = ids.find(|id| self.owners.get(runtime_id(id)) != Some(&uid));
            if let Some(id) = strange {
                let owner = self.owners.get(runtime_id(id));
                let how = format!("the status of {uid} tells of {id}, which is {owner:?}'s");
                return broken(Law::RightPod, how);
            }
        }
        Ok(())
    }

    fn told_forward(&self, uid: &PodUid, was: &PodStatus, is: &PodStatus) -> Held {
        let Some(why) = self.goes_back(uid, was, is) else {
            return Ok(());
        };
        // Of a pod that came back under its UID, the object tells of two lives, container by container.
        match self.pods.get(uid).is_some_and(|known| known.came_back) {
            true => Ok(()),
            false => broken(Law::ToldForward, format!("{uid}: {why}")),
        }
    }

    fn goes_back(&self, uid: &PodUid, was: &PodStatus, is: &PodStatus) -> Option<String> {
        let (old_phase, phase) = (status::phase_of(was), status::phase_of(is));
        if status::is_terminal_phase(old_phase) && phase != old_phase {
            return Some(format!("{phase} after {old_phase}"));
        }
        // What a dead agent says late, the living one may not have been shown.
        let late = self.told_late.contains(uid);
        if was.start_time.is_some() && was.start_time != is.start_time && !late {
            return Some("another start time".to_owned());
        }
        let old: BTreeMap<&str, _> = containers(was).map(|c| (c.name.as_str(), c)).collect();
        for container in containers(is) {
            let name = container.name.as_str();
            let Some(old) = old.get(name) else {
                continue;
            };
            let (before, count) = (old.restart_count, container.restart_count);
            if count < before {
                return Some(format!("{name} was restarted {count} times after {before}"));
            }
            let state = |c: &krablet_pod::api::ContainerStatus| c.state.clone().unwrap_or_default();
            let ended = state(old).terminated;
            let ended = ended.filter(|end| end.container_id.is_some());
            let for_good = ended.is_some_and(|end| self.ends_for_good(uid, name, end.exit_code));
            if for_good && state(container).terminated.is_none() {
                return Some(format!("{name} had ended for good"));
            }
        }
        None
    }

    pub(crate) fn deleted_by_agent(
        &mut self,
        machine: &Machine,
        object: &Pod,
        meant: Option<&str>,
    ) -> Held {
        self.is_meant(object, meant)?;
        if marks::is_mirror(object) {
            return Ok(());
        }
        let uid = PodRef::of(object).uid;
        if object.metadata.deletion_timestamp.is_none() {
            let how = format!("{uid} is deleted, which nobody asked for");
            return broken(Law::EndsEmpty, how);
        }
        if let Some(running) = runs(machine, &uid) {
            let how = format!("{uid} is deleted while {running} runs");
            return broken(Law::EndsEmpty, how);
        }
        // What was said last may have been covered by what was said before, and came late.
        if self.told_late.contains(&uid) {
            return Ok(());
        }
        let told = object.status.iter().flat_map(containers);
        let mut running = told.filter(|c| c.state.as_ref().is_some_and(|s| s.running.is_some()));
        match running.next() {
            Some(c) => {
                let how = format!("{uid} is deleted, and the end of {} was not told", c.name);
                broken(Law::EndsEmpty, how)
            }
            None => Ok(()),
        }
    }

    /// Why the API server does not have yet what it should have.
    pub(crate) fn api_unsettled(&self, objects: &[Arc<Pod>], now: Timestamp) -> Option<String> {
        for object in objects {
            if let Some(why) = self.object_unsettled(object, now) {
                let pod = PodRef::of(object);
                return Some(format!("object of {}: {why}", pod.uid));
            }
        }
        let mirrored = |uid: &PodUid| {
            let mut mirrors = objects.iter().filter(|o| marks::is_mirror(o));
            mirrors.any(|o| subject(o) == *uid)
        };
        let statics = self.pods.iter().filter(|(_, known)| known.wanted);
        let mut statics = statics.filter(|(_, known)| marks::is_static(&known.pod));
        let bare = statics.find(|(uid, _)| !mirrored(uid));
        bare.map(|(uid, _)| format!("{uid} has no mirror pod"))
    }

    fn object_unsettled(&self, object: &Arc<Pod>, now: Timestamp) -> Option<String> {
        let uid = subject(object);
        if object.metadata.deletion_timestamp.is_some() {
            return Some("is to be deleted and is still there".to_owned());
        }
        if !self.is_wanted(&uid) {
            return Some(format!("{uid} is not wanted"));
        }
        let Some(standing) = self.standings.get(&uid) else {
            return Some("there is no status".to_owned());
        };
        let merged = status::merge_for_api(&MergeInputs {
            api_pod: object,
            ours: &standing.status,
            could_have_running_containers: false,
            now,
        });
        let empty = PodStatus::default();
        let told = object.status.as_ref().unwrap_or(&empty);
        status::needs_update(told, &merged).then(|| {
            let left = patch::pod_status_patch(uid.as_str(), None, told, &merged);
            let left = left.map(|patch| patch["status"].to_string());
            format!("its status was not told: {}", left.unwrap_or_default())
        })
    }
}
