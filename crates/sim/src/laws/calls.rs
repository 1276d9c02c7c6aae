//! Laws about calls, checked as they begin.

use krablet_core::status;
use krablet_pod::PodUid;
use krablet_pod::containers::init_containers;

use super::{Held, Law, Laws, broken};
use crate::rules;
use crate::runtime::CallInfo;

impl Laws {
    pub(crate) fn call_begins(&mut self, info: &CallInfo) -> Held {
        self.lives_and_asks(info)?;
        let Some(uid) = &info.pod else {
            return Ok(());
        };
        match info.call {
            "RunPodSandbox" | "CreateContainer" | "StartContainer" => {
                self.start_begins(info, uid)?;
                self.is_its_turn(info, uid)?;
                self.starts_no_ended_container(info, uid)
            }
            "StopContainer" | "StopPodSandbox" => {
                self.stop_asked.insert(info.object.clone());
                if let Some(gone) = self.let_go.get_mut(uid) {
                    gone.stopping = true;
                }
                // One that has ended unseen goes with the others of its round.
                if self.is_restarting_all(uid)
                    && let Some(end) = self.ends.get_mut(&info.object)
                {
                    end.stop_asked = true;
                }
                Ok(())
            }
            "RemoveContainer" => self.removal_begins(info),
            _ => Ok(()),
        }
    }

    fn lives_and_asks(&self, info: &CallInfo) -> Held {
        let alive = self.agent.as_ref().map(|(caller, _)| *caller);
        if alive == Some(info.caller) {
            return Ok(());
        }
        let how = format!(
            "{} by agent {}, while {alive:?} is alive",
            info.call, info.caller
        );
        broken(Law::DeadIsDead, how)
    }

    /// Keeps the book of pods the agent let go in step with its set.
    fn note_let_go(&mut self) {
        let Some((_, handle)) = &self.agent else {
            return;
        };
        if !handle.desired.sources_ready(&self.sources) {
            return;
        }
        for uid in self.pods.keys() {
            let desired = handle.desired.get(uid);
            let wanted = desired.is_some_and(|p| p.metadata.deletion_timestamp.is_none());
            match wanted {
                true => drop(self.let_go.remove(uid)),
                false => drop(self.let_go.entry(uid.clone()).or_default()),
            }
        }
    }

    fn start_begins(&mut self, info: &CallInfo, uid: &PodUid) -> Held {
        self.note_let_go();
        if let Some(gone) = self.let_go.get_mut(uid) {
            // What was being created when the pod was let go may come to its end.
            let last = info.call == "StartContainer" && !gone.stopping && !gone.started_one;
            if !last {
                let how = format!("{} for {uid}, which was let go", info.call);
                return broken(Law::NothingAfterEnd, how);
            }
            gone.started_one = true;
        }
        let standing = self.standings.get(uid);
        let renewed = self.pods.get(uid).is_some_and(|k| k.status_anew);
        if let Some(standing) = standing
            && status::is_terminal(&standing.status)
            && !renewed
        {
            let phase = status::phase_of(&standing.status);
            let how = format!("{} for {uid}, which is {phase}", info.call);
            return broken(Law::NothingAfterEnd, how);
        }
        Ok(())
    }

    fn is_its_turn(&self, info: &CallInfo, uid: &PodUid) -> Held {
        let name = info.container.as_deref();
        let Some(name) = name.filter(|_| info.call == "CreateContainer") else {
            return Ok(());
        };
        let Some(spec) = self.spec(uid).filter(|s| !rules::is_ephemeral(s, name)) else {
            return Ok(());
        };
        let done = self.done.get(&info.object);
        let before = init_containers(spec)
            .iter()
            .take_while(|init| init.name != name)
            .find(|init| !done.is_some_and(|d| d.contains(&init.name)));
        match before {
            Some(init) => {
                let how = format!("{name} of {uid} before {}", init.name);
                broken(Law::InitOrder, how)
            }
            None => Ok(()),
        }
    }

    fn starts_no_ended_container(&self, info: &CallInfo, uid: &PodUid) -> Held {
        let Some(name) = info
            .container
            .as_ref()
            .filter(|_| info.call == "StartContainer")
        else {
            return Ok(());
        };
        if self.over.contains(&(uid.clone(), name.clone())) {
            let how = format!("{name} of {uid} is started again");
            return broken(Law::EndedForGood, how);
        }
        // All ends but that of the instance just before stand in a status by now.
        let mut ends: Vec<_> = self
            .ends
            .values()
            .filter(|e| e.pod == *uid && e.container == *name)
            .collect();
        ends.sort_by_key(|e| e.number);
        ends.pop();
        match ends.iter().find(|e| !e.recorded && !e.stop_asked) {
            Some(end) => {
                let how = format!(
                    "exit {} of {name} of {uid} (instance {}) never stood in a status",
                    end.code, end.number
                );
                broken(Law::NoExitLost, how)
            }
            None => Ok(()),
        }
    }

    fn removal_begins(&mut self, info: &CallInfo) -> Held {
        match self.ends.remove(&info.object) {
            Some(end) if !end.recorded && !end.stop_asked && self.is_wanted(&end.pod) => {
                let how = format!(
                    "{} ({} of {}) is removed, its exit {} never stood in a status",
                    info.object, end.container, end.pod, end.code
                );
                broken(Law::NoExitLost, how)
            }
            Some(_) => Ok(()),
            // Not known to have ended: a start that comes late does not count any more.
            None => {
                self.stop_asked.insert(info.object.clone());
                Ok(())
            }
        }
    }
}
