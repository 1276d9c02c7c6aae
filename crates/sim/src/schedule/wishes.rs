//! What the sources of a node want that belongs to no cluster, or that comes from files.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use krablet_linux::WallClock;
use krablet_pod::api::{Pod, PodStatus};
use krablet_pod::marks::{self, PodSource};
use krablet_pod::{PodRef, PodUid};
use rand::RngExt;

use super::{Schedule, bound_name, manifest_name};
use crate::pods;

impl Schedule {
    pub(super) fn want(&mut self, source: PodSource, pod: Arc<Pod>) {
        self.world.lock().laws.want(&pod);
        self.wanted.put(source, pod);
    }

    pub(super) fn remove(&mut self, source: PodSource, name: &str) {
        if let Some(pod) = self.wanted.remove(source, name) {
            let uid = PodRef::of(&pod).uid;
            self.world.lock().laws.unwant(&uid);
        }
    }

    pub(super) fn draw_pod(&mut self, name: &str, source: PodSource) -> Arc<Pod> {
        self.variants += 1;
        let mut pod = pods::draw(&mut self.dice, name, self.variants);
        // The merge writes the same.
        let annotations = pod.metadata.annotations.get_or_insert_default();
        annotations.insert(marks::CONFIG_SOURCE.into(), source.as_str().into());
        let hash = pod.metadata.uid.clone().unwrap_or_default();
        annotations.insert(marks::CONFIG_HASH.into(), hash);
        Arc::new(pod)
    }

    /// A changed manifest is another pod, in the same set.
    pub(super) fn write_manifest(&mut self, n: usize) {
        let name = manifest_name(n);
        let pod = self.draw_pod(&name, PodSource::File);
        if let Some(old) = self.wanted.get(PodSource::File, &name) {
            let uid = PodRef::of(&old).uid;
            self.world.lock().laws.unwant(&uid);
        }
        self.want(PodSource::File, pod);
    }

    pub(super) fn debug(&mut self, n: usize) {
        match self.wanted.get(PodSource::Api, &bound_name(n)) {
            Some(pod) if pod.metadata.deletion_timestamp.is_some() => {}
            Some(pod) => {
                let changed = pods::debugged(&mut self.dice, &pod);
                self.want(PodSource::Api, Arc::new(changed));
            }
            None => self.bind(n),
        }
    }

    pub(super) fn resize(&mut self, n: usize) {
        match self.wanted.get(PodSource::Api, &bound_name(n)) {
            Some(pod) if pod.metadata.deletion_timestamp.is_some() => {}
            Some(pod) => {
                let changed = pods::resized(&mut self.dice, &pod);
                self.want(PodSource::Api, Arc::new(changed));
            }
            None => self.bind(n),
        }
    }

    pub(super) fn bind(&mut self, n: usize) {
        let name = bound_name(n);
        match self.wanted.get(PodSource::Api, &name) {
            Some(pod) if pod.metadata.deletion_timestamp.is_some() => {}
            Some(pod) => {
                let changed = pods::with_new_image(&mut self.dice, &pod);
                self.want(PodSource::Api, Arc::new(changed));
            }
            None => {
                let pod = self.draw_pod(&name, PodSource::Api);
                self.want(PodSource::Api, pod);
            }
        }
    }

    pub(super) fn delete(&mut self, n: usize) {
        let Some(pod) = self.wanted.get(PodSource::Api, &bound_name(n)) else {
            return;
        };
        let mut pod = (*pod).clone();
        let grace = [0, 1, 5, 30][self.dice.random_range(0..4)];
        let old = pod.metadata.deletion_grace_period_seconds;
        pod.metadata.deletion_timestamp = Some(Time(self.node.clock.now()));
        pod.metadata.deletion_grace_period_seconds = Some(old.map_or(grace, |o| o.min(grace)));
        self.want(PodSource::Api, Arc::new(pod));
        // It may have ended long ago.
        self.statuses_changed();
    }

    /// The API server takes in statuses, and drops deleted pods that have ended.
    pub(super) fn statuses_changed(&mut self) {
        self.world.look_at_statuses();
        let Some(alive) = self.agent.as_ref().filter(|_| self.server.is_none()) else {
            return;
        };
        let all = alive.handle.status.all();
        let mut told: BTreeMap<PodUid, PodStatus> = BTreeMap::new();
        let mut ended = Vec::new();
        for pod in self.wanted.all(PodSource::Api) {
            let pod_ref = PodRef::of(&pod);
            if let Some(standing) = all.get(&pod_ref.uid) {
                told.insert(pod_ref.uid, (*standing.status).clone());
                if pod.metadata.deletion_timestamp.is_some() && standing.finished {
                    ended.push(pod_ref.name.to_string());
                }
            }
        }
        self.wanted.tell_statuses(told);
        for name in ended {
            self.world.note(format_args!("{name} is deleted"));
            self.remove(PodSource::Api, &name);
        }
    }
}
