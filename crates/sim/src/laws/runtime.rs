//! Laws about what happens in the runtime.

use krablet_pod::PodUid;
use krablet_pod::containers::{init_containers, is_sidecar};
use krablet_pod::marks;

use super::{End, Held, Law, Laws, broken};
use crate::runtime::{Instance, Machine, Occurrence};

impl Laws {
    pub(crate) fn happened(&mut self, machine: &Machine, what: &Occurrence) -> Held {
        match what {
            Occurrence::Created(c) => {
                self.owners.insert(c.id.clone(), c.pod.uid.clone());
                self.given(c)
            }
            Occurrence::Updated(_, c) => self.given(c),
            Occurrence::Started(c) => self.started(machine, c),
            Occurrence::Exited(c, by_itself) => {
                self.exited(c, *by_itself);
                self.calls_for_all(machine, c, *by_itself);
                Ok(())
            }
            Occurrence::Removed(c) => self.round_ends(machine, c),
            _ => Ok(()),
        }
    }

    fn started(&mut self, machine: &Machine, c: &Instance) -> Held {
        let uid = &c.pod.uid;
        let twin = machine
            .of_pod(uid)
            .find(|o| o.may_run() && o.name == c.name && o.id != c.id);
        if let Some(twin) = twin {
            let how = format!("{} of {uid} runs as {} and as {}", c.name, twin.id, c.id);
            return broken(Law::OneInstance, how);
        }
        self.alone_under_its_name(machine, c)?;
        self.started_once(c)?;
        self.starts_alone(c)?;
        let sidecar = self.init_kind(uid, &c.name) == Some(true);
        if sidecar {
            let done = self.done.entry(c.sandbox_id.clone()).or_default();
            done.insert(c.name.clone());
        }
        self.count(c)
    }

    fn alone_under_its_name(&self, machine: &Machine, c: &Instance) -> Held {
        let is_static = |uid: &PodUid| {
            let known = self.pods.get(uid);
            known.is_some_and(|k| marks::is_static(&k.pod))
        };
        if !is_static(&c.pod.uid) {
            return Ok(());
        }
        let other = machine.containers.values().find(|o| {
            o.may_run()
                && o.pod.uid != c.pod.uid
                && o.pod.full_name() == c.pod.full_name()
                && is_static(&o.pod.uid)
        });
        match other {
            Some(other) => {
                let how = format!(
                    "{} of {} starts while {} of {} runs",
                    c.name, c.pod.uid, other.name, other.pod.uid
                );
                broken(Law::OneOfAName, how)
            }
            None => Ok(()),
        }
    }

    /// Whether the container is an init container, and then whether it is a sidecar.
    fn init_kind(&self, uid: &PodUid, name: &str) -> Option<bool> {
        let init = init_containers(self.spec(uid)?).iter();
        init.clone().find(|i| i.name == name).map(is_sidecar)
    }

    fn count(&mut self, c: &Instance) -> Held {
        let key = (c.pod.uid.clone(), c.name.clone());
        let count = c.restart_count();
        let before = self.counted.insert(key, count);
        let known = self.pods.get_mut(&c.pod.uid);
        match before.filter(|before| *before > count) {
            Some(before) => match known {
                Some(known) if known.counts_anew => {
                    known.counts_anew = false;
                    let uid = c.pod.uid.clone();
                    self.counted
                        .retain(|(pod, name), _| *pod != uid || *name == c.name);
                    Ok(())
                }
                _ => {
                    let how = format!(
                        "{} of {} starts with {count} after {before}",
                        c.name, c.pod.uid
                    );
                    broken(Law::CountsGrow, how)
                }
            },
            None => Ok(()),
        }
    }

    fn exited(&mut self, c: &Instance, by_itself: bool) {
        let uid = &c.pod.uid;
        if c.exit_code == 0 && self.init_kind(uid, &c.name) == Some(false) {
            let done = self.done.entry(c.sandbox_id.clone()).or_default();
            done.insert(c.name.clone());
        }
        if !by_itself || !self.is_wanted(uid) {
            return;
        }
        let stop_asked = self.stop_asked.contains(&c.id) || self.stop_asked.contains(&c.sandbox_id);
        let end = End {
            pod: uid.clone(),
            container: c.name.clone(),
            number: c.number,
            code: c.exit_code,
            recorded: false,
            stop_asked,
        };
        self.ends.insert(c.id.clone(), end);
    }
}
